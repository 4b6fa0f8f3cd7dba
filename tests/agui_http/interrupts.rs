//! What a thread waits for, as the end of a run, a page load and `connect` show it: the same in each (R16, H9).

use dormouse::message::{CallId, OAuthRequired, UserChoiceRequired};
use dormouse::model::scripted::ScriptedEvent;

use super::*;

const AUTH_URL: &str = "https://idp.example/authorize";

fn choice(call: &CallId) -> InputContent {
    choice_of(call, vec!["a".to_owned(), "b".to_owned()])
}

fn choice_of(call: &CallId, choices: Vec<String>) -> InputContent {
    InputContent::UserChoiceRequired(UserChoiceRequired {
        id: call.clone(),
        call_id: None,
        prompt: "Which one?".to_owned(),
        choices,
        default: 0,
        response_url: "https://b.example/answer".to_owned(),
    })
}

/// Two calls at work, one of which asks something and waits for consent, and the end of the run that they pause.
async fn paused(front: &Front) -> (Vec<CallId>, Vec<Value>) {
    let posted = input("t", "r1", json!([user("u1", r#"both echo {"k":1} other {"k":2}"#)]));
    let thread = ThreadId::from("t");
    let work = async {
        while front.outbox.sent().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        front.work().await;
        let meta = front.world.runtime.store.meta(&thread).await.unwrap().unwrap();
        let calls: Vec<CallId> = meta.pending.into_iter().map(|pending| pending.call).collect();
        let oauth = OAuthRequired { id: calls[1].clone(), call_id: None, auth_url: AUTH_URL.to_owned() };
        for content in [choice(&calls[0]), InputContent::OAuthRequired(oauth)] {
            let message = InputMessage::plain(thread.clone(), content);
            front.world.done(&front.world.message(&message)).await;
        }
        calls
    };
    let (events, calls) = tokio::join!(front.run(&posted), work);
    (calls, events)
}

fn interrupts(event: &Value) -> Vec<Value> {
    event["outcome"]["interrupts"].as_array().cloned().unwrap_or_default()
}

#[tokio::test]
async fn h9_a_page_load_and_the_end_of_the_run_show_the_same_open_questions() {
    let front = Front::new(Access::Loopback).await;
    let (calls, events) = paused(&front).await;
    let told = interrupts(events.last().unwrap());
    let names: Vec<&str> = told.iter().map(|told| told["reason"].as_str().unwrap()).collect();
    assert_eq!(names, ["input_required", "dormouse:oauth"]);
    assert_eq!(told[1]["metadata"], json!({ "authUrl": AUTH_URL }));
    let load = async |path: &str| front.json(front.http.get(format!("{}/threads/t/{path}", front.url))).await;
    let loaded = load("messages").await;
    let last = loaded["messages"].as_array().unwrap().last().unwrap();
    assert_eq!(last["metadata"]["custom"]["agui"]["interrupts"], json!(told));
    assert_eq!(loaded["interrupts"], json!(told));
    assert_eq!(loaded.get("activeRunId"), None, "a paused thread is not busy");
    let repository = load("messages?format=repository").await;
    let last = &repository["messages"].as_array().unwrap().last().unwrap()["message"];
    assert_eq!(last["metadata"]["custom"]["agui"]["interrupts"], json!(told));
    assert_eq!(last["status"], json!({ "type": "requires-action", "reason": "interrupt" }));
    let connected = front.stream("agent/default/connect", &input("t", "c", json!([]))).await;
    let shown = connected.iter().find(|event| event["type"] == "MESSAGES_SNAPSHOT").unwrap();
    let last = shown["messages"].as_array().unwrap().last().unwrap();
    assert_eq!(last["metadata"]["custom"]["agui"]["interrupts"], json!(told));
    // The run is over: there is nothing to stop, and nothing is lost by trying.
    let stop = front.http.post(format!("{}/agent/default/stop/t", front.url));
    assert_eq!(front.json(stop).await, json!({ "stopped": false }));
    // A replay of the run says where to consent for as long as that is open.
    let posted = input("t", "r1", json!([user("u1", "")]));
    assert_eq!(interrupts(front.run(&posted).await.last().unwrap()), told);
    let answers = json!([
        { "interruptId": told[1]["id"], "status": "resolved" },
        { "interruptId": told[0]["id"], "status": "resolved", "payload": { "selected": "b" } },
    ]);
    let mut resume = input("t", "r2", json!([user("u1", "")]));
    resume["resume"] = answers;
    let (events, ()) = tokio::join!(front.run(&resume), async {
        while front.outbox.sent().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        front.work().await;
        for call in &calls {
            let mut result = front.world.result(call, "ok");
            result.group = "t".to_owned();
            result.body =
                InputMessage::tool_result(ThreadId::from("t"), call.clone(), vec![ContentPart::text("ok")])
                    .to_body()
                    .unwrap();
            front.world.done(&result).await;
        }
    });
    let kinds = types(&events);
    assert_eq!(kinds.iter().filter(|kind| **kind == "TOOL_CALL_RESULT").count(), 2, "{kinds:?}");
    assert!(!kinds.contains(&"TOOL_CALL_START"), "they are not called again: {kinds:?}");
    assert_eq!(events.last().unwrap().get("outcome"), None);
    let told = interrupts(front.run(&posted).await.last().unwrap());
    assert_eq!((told.len(), told[1].get("metadata")), (2, None), "the address is gone with its question");
}

#[tokio::test]
async fn rap_45_a_view_that_changes_while_a_run_is_followed_is_an_event_of_its_stream() {
    let front = Front::new(Access::Loopback).await;
    let thread = ThreadId::from("t");
    let put = async |content: &str| {
        let content = dormouse::message::RawJson::parse(content).unwrap();
        front.world.runtime.store.put_view(&thread, "diff", &content).await.unwrap();
    };
    put(r#"{"before":1}"#).await;
    let posted = input("t", "r1", json!([user("u1", r#"look echo {"k":1}"#)]));
    let (events, ()) = tokio::join!(front.run(&posted), async {
        while front.outbox.sent().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        front.work().await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        put("{\n\"patch\": null}").await;
        let call = front.world.runtime.store.meta(&thread).await.unwrap().unwrap().pending.remove(0).call;
        let result = InputMessage::tool_result(thread.clone(), call, vec![ContentPart::text("ok")]);
        front.world.done(&front.world.message(&result)).await;
    });
    let shown: Vec<&Value> = events.iter().filter(|event| event["type"] == "CUSTOM").collect();
    let view = json!({ "view_type": "diff", "content": { "patch": null } });
    assert_eq!(shown, [&json!({ "type": "CUSTOM", "name": "dormouse:view", "value": view })]);
    let views = front.url.replace("/agui", "/threads/t/views");
    assert_eq!(front.json(front.http.get(views)).await["views"], json!([view]), "as the route shows it");
    assert_eq!(types(&events).last(), Some(&"RUN_FINISHED"));
    assert!(!types(&front.run(&posted).await).contains(&"CUSTOM"), "a replay tells nothing again");
}

#[tokio::test]
async fn r15_an_interrupt_behind_several_assistant_messages_is_the_last_ones() {
    let step = |text: &str, tool: &str| {
        vec![
            ScriptedEvent::Text(text.into()),
            ScriptedEvent::call(tool, tool, "{}"),
            ScriptedEvent::End("tool_use".into()),
        ]
    };
    let model = ScriptedModel::script(vec![step("one", "echo"), step("two", "other")]);
    let front = Front::over(World::new(model), Access::Loopback).await;
    let thread = ThreadId::from("t");
    let call = async || {
        let meta = front.world.runtime.store.meta(&thread).await.unwrap().unwrap();
        meta.pending[0].call.clone()
    };
    let posted = input("t", "r1", json!([user("u1", "go")]));
    let (events, ()) = tokio::join!(front.run(&posted), async {
        while front.outbox.sent().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        front.work().await;
        let result = InputMessage::tool_result(thread.clone(), call().await, vec![ContentPart::text("1")]);
        front.world.done(&front.world.message(&result)).await;
        let question = InputMessage::plain(thread.clone(), choice(&call().await));
        front.world.done(&front.world.message(&question)).await;
    });
    let told = interrupts(events.last().unwrap());
    assert_eq!(told.len(), 1);
    // A list of messages before the end would cost assistant-ui the pause.
    let kinds = types(&events);
    assert_eq!(kinds.iter().filter(|kind| **kind == "TEXT_MESSAGE_START").count(), 2, "{kinds:?}");
    assert!(!kinds.contains(&"MESSAGES_SNAPSHOT"), "{kinds:?}");
    let load = front.http.get(format!("{}/threads/t/messages", front.url));
    let loaded = front.json(load).await["messages"].clone();
    let of_assistant = loaded.as_array().unwrap().iter().filter(|message| message["role"] == "assistant");
    let shown: Vec<(&Value, bool)> = of_assistant
        .map(|message| {
            (&message["content"], message["metadata"]["custom"]["agui"]["interrupts"] == json!(told))
        })
        .collect();
    assert_eq!(shown, [(&json!("one"), false), (&json!("two"), true)]);
}

#[tokio::test]
async fn i7_a_question_as_large_as_a_callback_is_asked_in_full_and_the_threads_state_stays_small() {
    let front = Front::new(Access::Loopback).await;
    let thread = ThreadId::from("t");
    let choices: Vec<String> = (0..5_000).map(|n| format!("{n} {}", "x".repeat(200))).collect();
    let posted = input("t", "r1", json!([user("u1", r#"look echo {"k":1}"#)]));
    let (events, ()) = tokio::join!(front.run(&posted), async {
        while front.outbox.sent().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        front.work().await;
        let call = front.world.runtime.store.meta(&thread).await.unwrap().unwrap().pending.remove(0).call;
        let question = InputMessage::plain(thread.clone(), choice_of(&call, choices.clone()));
        front.world.done(&front.world.message(&question)).await;
    });
    let told = interrupts(events.last().unwrap());
    assert_eq!(told[0]["responseSchema"]["properties"]["selected"]["enum"], json!(choices));
    let row = front.world.store.run(&thread, "r1").await.unwrap().unwrap();
    assert!(row.end.as_ref().unwrap().len() < 1_000, "{:?}", row.end);
}
