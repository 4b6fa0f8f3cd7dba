//! An existing Infinity deployment's messages and tool servers, unchanged, on the real embedded stack: what goes in has
//! the exact JSON and dedup ids that its producers and callbacks write, what comes out is what its consumers read.
//! `docs/migration.md` says how to move.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(feature = "local")]

#[path = "support/stack.rs"]
mod stack;
#[path = "support/rap.rs"]
mod support;
#[path = "support/world.rs"]
mod world;

use std::time::Duration;

use axum::http::StatusCode;
use dormouse::config::Config;
use dormouse::local::aws::DELAY_QUEUE;
use dormouse::message::{CallId, ThreadId};
use serde_json::{Value, json};
use stack::{Stack, found, queued, said};
use support::{FakeServer, offering};

const THREAD: &str = "C042-1700000000.000100";

/// A tool server, and dormouse configured with the deployment's own list of tool sets.
async fn deployment() -> (FakeServer, Stack) {
    let server = offering(&["watch"], |_, _| StatusCode::OK.into()).await;
    let sets = json!({"tool_sets": [
        {"type": "toolset_server", "server_url": server.url, "id": "builds"},
        {"type": "local_process", "command": "left out, with a warning"},
    ]});
    let mut config = Config { allow_http_hosts: vec!["127.0.0.1".to_owned()], ..Config::default() };
    config.add_tool_sets(&sets.to_string()).unwrap();
    assert_eq!(config.tool_servers.keys().collect::<Vec<_>>(), ["builds"]);
    (server, Stack::start(config).await)
}

/// The id of the `n`th call that the server got, counted from 0.
async fn call(server: &FakeServer, n: usize) -> String {
    let seen = found(|| server.at("/invoke").get(n).map(support::Seen::json)).await;
    seen["id"].as_str().unwrap().to_owned()
}

/// A tool result as the callback function of the deployment queues it.
fn result(thread: &str, id: &str, text: &str) -> Value {
    queued(
        thread,
        json!({"type": "toolresult", "id": id, "call_id": null,
                          "content": [{"type": "text", "text": text}]}),
    )
}

fn with(mut body: Value, member: &str, value: Value) -> Value {
    body[member] = value;
    body
}

#[tokio::test]
async fn rap_33_user_text_images_and_results_go_in_and_text_with_its_metadata_comes_out() {
    let (server, stack) = deployment().await;
    let metadata = json!({"channel": "C042", "thread_ts": "1700000000.000100", "user_id": "U1"});
    let first = with(said(THREAD, "[Ann]: hello"), "metadata", metadata.clone());
    stack.queue(&first, "Ev01").await;
    stack.story_ending(THREAD, "assistant: echo: [Ann]: hello").await;
    // A producer that sends again under the same id, and another thread that uses it for something else.
    stack.queue(&first, "Ev01").await;
    stack.queue(&said("C043", "say elsewhere"), "Ev01").await;
    stack.story_ending("C043", "assistant: elsewhere").await;

    let png =
        json!({"type": "image", "data": {"type": "base64", "value": "iVBORw0KGgo="}, "media_type": "png"});
    stack.queue(&queued(THREAD, png), "Ev02").await;
    stack.story_when(THREAD, |story| story.len() == 4).await;

    stack.queue(&said(THREAD, "call watch {}"), "Ev03").await;
    let id = call(&server, 0).await;
    let content = json!({"type": "toolresult", "id": id, "call_id": "p-1", "content": [
        {"type": "text", "text": "build 812"},
        {"type": "image", "data": {"type": "url", "value": "https://b.example/812.png"}, "media_type": "png"},
    ]});
    let display = json!([{"type": "text", "content": "for people"}]);
    stack
        .queue(&with(queued(THREAD, content), "display_as", display), &format!("rap-tool-result-{id}"))
        .await;
    // This model takes no images: a placeholder stands for it (RAP 33); what is stored keeps it.
    let answer = "result: build 812\n[image omitted: this model takes no images]";
    let story = stack.story_ending(THREAD, &format!("assistant: {answer}")).await;
    assert_eq!(story[4..7], ["user: call watch {}", "call: watch {}", "result: build 812"]);
    // The tool answers over HTTP as well: the first result counts.
    let url = server.at("/invoke")[0].json()["callback_url"].as_str().unwrap().to_owned();
    let late = json!({"type": "tool_result", "group_id": THREAD, "id": id, "text": "another"});
    assert_eq!(stack.callback(&url, &late).await, 200);
    stack.queue(&said(THREAD, "say done"), "Ev04").await;
    let story = stack.story_ending(THREAD, "assistant: done").await;
    assert_eq!(story.len(), 10, "nothing twice: {story:?}");

    let outputs = stack.outputs_when(|output| output["text"] == "done").await;
    let here: Vec<&Value> = outputs.iter().filter(|output| output["thread_id"] == THREAD).collect();
    let texts: Vec<&str> = here.iter().map(|output| output["text"].as_str().unwrap()).collect();
    for text in ["echo: [Ann]: hello", "[watch({})]", answer, "done"] {
        assert!(texts.contains(&text), "{text:?} is not among {texts:?}");
    }
    for output in here {
        assert_eq!(output["metadata"], metadata, "the root's, on every message");
        assert!(output.get("type").is_none(), "plain text has no type: {output}");
    }
    let elsewhere = outputs.iter().find(|output| output["thread_id"] == "C043").unwrap();
    assert_eq!(elsewhere["metadata"], json!({}), "an object where there is none");
}

#[tokio::test]
async fn consent_and_choices_go_through_the_queue_and_come_out_typed() {
    let (server, stack) = deployment().await;
    let metadata = json!({"channel": "C042"});
    stack.queue(&with(said(THREAD, "call watch {}"), "metadata", metadata.clone()), "Ev01").await;
    let id = call(&server, 0).await;
    let consent = json!({"type": "oauth_required", "id": id, "call_id": null,
                         "auth_url": "https://idp.example/authorize?x=1"});
    stack.queue(&queued(THREAD, consent), &format!("rap-oauth-{id}")).await;
    let question = json!({"type": "user_choice_required", "id": id, "call_id": null, "prompt": "Which?",
                          "choices": ["a", "b"], "default": 0, "response_url": format!("{}/answer", server.url)});
    stack.queue(&queued(THREAD, question), &format!("rap-user-choice-{id}")).await;
    let outputs = stack.outputs_when(|output| output["type"] == "user_choice_required").await;
    stack
        .queue(&queued(THREAD, json!({"type": "user_choice_answer", "id": id, "selected": 1})), "Ev02")
        .await;
    let answer = found(|| server.at("/answer").first().map(support::Seen::json)).await;
    assert_eq!(answer, json!({"id": id, "selected": 1}));
    let over = stack.outputs_when(|output| output["type"] == "user_choice_complete").await;

    // Exactly the members that consumers know, and what dormouse adds to each message.
    let frozen = |output: &Value| {
        let mut members = output.as_object().unwrap().clone();
        for added in ["message_id", "thread_id", "text"] {
            let text = members.remove(added).and_then(|added| added.as_str().map(str::to_owned));
            assert!(!text.unwrap().is_empty(), "{added} in {output}");
        }
        Value::Object(members)
    };
    let of_type =
        |outputs: &[Value], kind: &str| frozen(outputs.iter().find(|output| output["type"] == kind).unwrap());
    assert_eq!(
        of_type(&outputs, "oauth_required"),
        json!({"type": "oauth_required", "auth_url": "https://idp.example/authorize?x=1", "metadata": metadata})
    );
    assert_eq!(
        of_type(&outputs, "user_choice_required"),
        json!({"type": "user_choice_required", "id": id, "prompt": "Which?", "choices": ["a", "b"], "default": 0,
               "metadata": metadata})
    );
    assert_eq!(
        of_type(&over, "user_choice_complete"),
        json!({"type": "user_choice_complete", "choice_id": id, "metadata": metadata})
    );
    stack.queue(&result(THREAD, &id, "b it is"), &format!("rap-tool-result-{id}")).await;
    stack.story_ending(THREAD, "assistant: result: b it is").await;
}

#[tokio::test]
async fn events_in_both_forms_reports_and_delayed_messages_are_understood() {
    let (server, stack) = deployment().await;
    stack.queue(&said(THREAD, "call watch {}"), "Ev01").await;
    let id = call(&server, 0).await;
    let subscribing = with(result(THREAD, &id, "watching"), "subscription", json!(true));
    stack.queue(&subscribing, &format!("rap-tool-result-{id}")).await;
    stack.story_ending(THREAD, "assistant: result: watching").await;

    let event = |text: &str, synthetic: Value| with(result(THREAD, "ignored", text), "synthetic", synthetic);
    let kind = "subscription_event";
    let inline = json!({"type": kind, "tool_call_id": id, "associative": true, "final": false});
    stack.queue(&event("running", inline), "random-1").await;
    stack.story_ending(THREAD, "assistant: result: watching, running").await;
    // The old form, a bare string, and the new one without its flags: a thread of its own for each.
    stack.queue(&event("old form", json!(id)), "random-2").await;
    stack.queue(&event("new form", json!({"type": kind, "tool_call_id": id})), "random-3").await;
    let told = async {
        let mut told = Vec::new();
        while told.len() < 2 {
            told.clear();
            for child in stack.store().list_threads(10).await.unwrap() {
                let story = stack.story(child.thread.as_str()).await.join("\n");
                let forms = ["old form", "new form"].into_iter().filter(|text| story.contains(*text));
                told.extend(forms.map(|text| (text, child.thread.clone())));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        told
    };
    let told = tokio::time::timeout(Duration::from_secs(60), told).await.unwrap();
    assert_eq!(told.len(), 2, "{told:?}");
    assert_ne!(told[0].1, told[1].1, "each has a thread of its own");
    assert!(told.iter().all(|(_, thread)| thread.as_str() != THREAD), "{told:?}");
    let last = json!({"type": kind, "tool_call_id": id, "associative": true, "final": true});
    stack.queue(&event("green", last), "random-4").await;
    stack.story_ending(THREAD, "assistant: result: watching, running, green").await;
    let active = stack.store().get_active_subscriptions(&ThreadId::from(THREAD)).await.unwrap();
    assert_eq!(active, Vec::<CallId>::new());

    // A child's report and its parent's message.
    let spawn = json!({"instructions": "wait", "child_of": [THREAD], "fresh_context": true});
    stack.queue(&said(THREAD, &format!("call spawn_thread {spawn}")), "Ev02").await;
    let story = stack.story_when(THREAD, |story| story.last().unwrap().contains("result: th-")).await;
    let child = story.last().unwrap().rsplit(' ').next().unwrap().to_owned();
    stack.story_when(&child, |story| story.last().is_some_and(|line| line.starts_with("assistant"))).await;
    let meta = stack.store().meta(&ThreadId::from(child.as_str())).await.unwrap().unwrap();
    let origin = meta.origin.unwrap();
    let report = json!({"type": "thread_report", "tool_call_id": origin, "child_thread_id": child});
    stack.queue(&with(result(THREAD, "", "half done"), "synthetic", report), "random-5").await;
    stack.story_when(THREAD, |story| story.contains(&"event: half done".to_owned())).await;
    let message = json!({"type": "parent_message", "tool_call_id": origin});
    stack.queue(&with(result(&child, "", "hurry up"), "synthetic", message), "random-6").await;
    stack.story_when(&child, |story| story.contains(&"event: hurry up".to_owned())).await;
    // Its output names the child, and carries the root's metadata.
    stack.outputs_when(|output| output["text"].as_str().unwrap().starts_with(&format!("[{child}] "))).await;

    // A message of the delay queue, as the deployment's timers write it.
    let sqs = stack.system.endpoints().clients().sqs;
    let url = sqs.get_queue_url().queue_name(DELAY_QUEUE).send().await.unwrap().queue_url.unwrap();
    let delayed = json!({"message": said("C044", "say good morning").to_string(), "group_id": "C044",
                         "dedup_id": "timer-1"});
    for _ in 0..2 {
        sqs.send_message().queue_url(&url).message_body(delayed.to_string()).send().await.unwrap();
    }
    let story = stack.story_ending("C044", "assistant: good morning").await;
    stack.queue(&said("C044", "say done"), "Ev03").await;
    assert_eq!(stack.story_ending("C044", "assistant: done").await.len(), story.len() + 2, "once");
}
