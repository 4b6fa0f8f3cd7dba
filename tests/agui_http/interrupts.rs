//! What a thread waits for, as the end of a run, a page load and `connect` show it: the same in each (R16, H9).

use dormouse::message::{CallId, OAuthRequired, UserChoiceRequired};

use super::*;

const AUTH_URL: &str = "https://idp.example/authorize";

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
        let choice = UserChoiceRequired {
            id: calls[0].clone(),
            call_id: None,
            prompt: "Which one?".to_owned(),
            choices: vec!["a".to_owned(), "b".to_owned()],
            default: 0,
            response_url: "https://b.example/answer".to_owned(),
        };
        let oauth = OAuthRequired { id: calls[1].clone(), call_id: None, auth_url: AUTH_URL.to_owned() };
        for content in [InputContent::UserChoiceRequired(choice), InputContent::OAuthRequired(oauth)] {
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
