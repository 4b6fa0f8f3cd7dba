//! The routes of AG-UI clients over real HTTP: what is a status and what is an event, to whom threads are shown, and what
//! becomes of a run that is posted again, left, stopped or too slow.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/front.rs"]
mod front;
#[path = "agui_http/interrupts.rs"]
mod interrupts;
#[path = "support/rap.rs"]
mod support;
#[path = "support/world.rs"]
mod world;

use std::time::Duration;

use dormouse::agui::wire::RunInput;
use dormouse::http::Access;
use dormouse::http::auth::Tokens;
use dormouse::message::{ContentPart, InputContent, InputMessage, MAX_STATE_BYTES, ThreadId};
use dormouse::model::scripted::ScriptedModel;
use dormouse::store::{RunRow, RunState, RunStore};
use front::{Front, events};
use serde_json::{Value, json};
use world::{Delivery, NOW_MS, World};

const ANN: &str = "token-of-ann-0123456789";
const BOB: &str = "token-of-bob-0123456789";
/// Streams of these tests are over by then.
const TIME: Duration = Duration::from_secs(2);

impl Front {
    async fn new(access: Access) -> Self {
        Self::over(World::new(ScriptedModel::prompts()), access).await
    }

    async fn over(world: World, access: Access) -> Self {
        Self::before(world, access, TIME).await
    }

    /// Posts a run and reads its stream to the end.
    async fn run(&self, input: &Value) -> Vec<Value> {
        self.stream("agent/default/run", input).await
    }

    async fn stream(&self, path: &str, input: &Value) -> Vec<Value> {
        let answer = self.http.post(format!("{}/{path}", self.url)).json(input).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        events(&answer.text().await.unwrap())
    }

    /// Posts a run and hands it to the worker at once.
    async fn answered(&self, input: &Value) -> Vec<Value> {
        tokio::join!(self.run(input), self.work_when_posted()).0
    }

    async fn json(&self, request: reqwest::RequestBuilder) -> Value {
        request.send().await.unwrap().json().await.unwrap()
    }
}

fn input(thread: &str, run: &str, messages: Value) -> Value {
    json!({ "threadId": thread, "runId": run, "messages": messages })
}

fn user(id: &str, text: &str) -> Value {
    json!({ "id": id, "role": "user", "content": text })
}

fn types(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

fn bearer() -> Access {
    Access::Bearer(Tokens::from_json(&json!({"ann": ANN, "bob": BOB}).to_string()).unwrap())
}

#[tokio::test]
async fn r2_only_what_comes_before_a_run_is_a_status() {
    let front = Front::new(Access::Loopback).await;
    let url = format!("{}/agent/default/run", front.url);
    let send = async |url: &str, kind: &str, body: String| {
        let answer = front.http.post(url).header("content-type", kind).body(body).send().await.unwrap();
        assert_eq!(answer.headers()["access-control-allow-origin"], "*", "a page must be able to read why");
        answer.status().as_u16()
    };
    let json = "application/json";
    assert_eq!(send(&url, json, "{".into()).await, 400);
    assert_eq!(send(&url, json, r#"{"threadId":"t","runId":"r"}"#.into()).await, 400);
    assert_eq!(send(&url, "text/plain", "{}".into()).await, 415);
    assert_eq!(send(&url, json, "x".repeat(5 * 1024 * 1024)).await, 413);
    let nobody = url.replace("default", "nobody");
    assert_eq!(send(&nobody, json, input("t", "r", json!([])).to_string()).await, 404);
    assert_eq!(front.outbox.sent(), [], "nothing was queued");
    let closed = Front::new(bearer()).await;
    let answer =
        closed.http.post(format!("{}/agent/default/run", closed.url)).json(&json!({})).send().await.unwrap();
    assert_eq!(answer.status(), 401);
    assert_eq!(answer.headers()["access-control-allow-origin"], "*");
    let preflight = closed.http.request(reqwest::Method::OPTIONS, format!("{}/info", closed.url));
    assert_eq!(preflight.send().await.unwrap().status(), 200, "a browser sends no token with it");
}

#[tokio::test]
async fn r8_a_run_that_is_posted_again_is_shown_again_also_without_its_events() {
    let front = Front::new(Access::Loopback).await;
    let posted = input("t", "r1", json!([user("u1", "say alpha")]));
    let first = front.answered(&posted).await;
    assert_eq!(types(&first).last(), Some(&"RUN_FINISHED"));
    assert_eq!(front.run(&posted).await, first);
    assert_eq!(front.outbox.sent(), [], "an ended run is not queued again");
    // As after an hour: the row is there, what was shown is not.
    let thread = ThreadId::from("t");
    front.world.store.put_run(&thread, &RunRow::queued("r2", "{}", 0), NOW_MS).await.unwrap();
    let second = input("t", "r2", json!([user("u1", ""), user("u2", "say bravo")]));
    let request = RunInput::parse(second.to_string().as_bytes()).unwrap().request;
    let message = InputMessage::plain(thread, InputContent::Run(request));
    front.world.done(&front.world.message(&message)).await;
    let again = front.run(&second).await;
    assert_eq!(types(&again), ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]);
    assert_eq!(again[1]["messages"][3]["content"], "bravo");
    let unseen =
        input("t", "r3", json!([user("u1", ""), user("u2", ""), json!({"id": "x", "role": "assistant"})]));
    let nothing = front.answered(&unseen).await;
    assert_eq!(types(&nothing), ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"], "R11.6");
    assert_eq!(nothing[1]["messages"].as_array().unwrap().len(), 4);
}

#[tokio::test]
async fn a_stream_that_gets_no_more_time_says_so_and_the_run_goes_on() {
    let front = Front::new(Access::Loopback).await;
    let posted = input("t", "r1", json!([user("u1", "say alpha")]));
    let events = front.run(&posted).await;
    assert_eq!(types(&events), ["RUN_STARTED", "RUN_ERROR"]);
    assert_eq!(events[1]["code"], "STREAM_TIMEOUT");
    // Posted again while it is queued it is sent again, under one id.
    let (_, ()) = tokio::join!(front.run(&posted), async {
        while front.outbox.sent().len() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let sent = front.outbox.sent();
        assert_eq!(sent[0].1, sent[1].1);
        assert!(matches!(sent[0].0.content, InputContent::Run(_)));
        front.work().await;
    });
    let events = front.run(&posted).await;
    assert_eq!(types(&events).last(), Some(&"RUN_FINISHED"));
    assert_eq!(front.world.story_of(&ThreadId::from("t")).await, ["user: say alpha", "assistant: alpha"]);
}

#[tokio::test]
async fn a_thread_is_its_makers_and_empty_to_others() {
    let front = Front::new(bearer()).await;
    let run = |token: &str, id: &str| {
        let posted = input("t", id, json!([user("u1", "say alpha")]));
        front.http.post(format!("{}/agent/default/run", front.url)).bearer_auth(token).json(&posted).send()
    };
    let (answer, ()) = tokio::join!(async { run(ANN, "r1").await.unwrap().text().await.unwrap() }, async {
        while front.outbox.sent().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        front.work().await;
    });
    assert!(answer.contains("RUN_FINISHED"), "{answer}");
    assert_eq!(run(BOB, "r2").await.unwrap().status(), 404);
    let messages = |token: &str| {
        let get = front.http.get(format!("{}/threads/t/messages", front.url)).bearer_auth(token);
        front.json(get)
    };
    assert_eq!(messages(BOB).await, json!({ "threadId": "t", "messages": [] }));
    assert_eq!(messages(ANN).await["messages"].as_array().unwrap().len(), 2);
    let stop = front.http.post(format!("{}/agent/default/stop/t", front.url)).bearer_auth(BOB);
    assert_eq!(front.json(stop.json(&json!({ "runId": "r1" }))).await, json!({ "stopped": false }));
}

#[tokio::test]
async fn a_run_that_nobody_has_worked_on_is_stopped_for_good() {
    let front = Front::new(Access::Loopback).await;
    let posted = input("t", "r1", json!([user("u1", "say alpha")]));
    let stop = async |body: Value| {
        let url = format!("{}/agent/default/stop/t", front.url);
        front.json(front.http.post(url).json(&body)).await["stopped"].clone()
    };
    let (events, ()) = tokio::join!(front.run(&posted), async {
        while front.outbox.sent().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(stop(json!({ "runId": "another" })).await, false);
        assert_eq!(stop(json!({ "runId": "r1" })).await, true);
        assert_eq!(stop(json!({ "runId": "r1" })).await, false, "it has ended");
    });
    assert_eq!((types(&events), &events[1]["code"]), (vec!["RUN_STARTED", "RUN_ERROR"], &json!("abort")));
    front.work().await;
    assert_eq!(front.world.story_of(&ThreadId::from("t")).await, Vec::<String>::new());
    assert_eq!(stop(json!({})).await, false, "an idle thread");
}

#[tokio::test]
async fn r13_a_client_that_goes_on_ends_the_run_that_it_has_left() {
    let front = Front::new(Access::Loopback).await;
    let thread = ThreadId::from("t");
    let first = input("t", "r1", json!([user("u1", r#"call echo {"k":1}"#)]));
    front.answered(&first).await;
    assert_eq!(front.world.store.run(&thread, "r1").await.unwrap().unwrap().state, RunState::Waiting);
    let next = input("t", "r2", json!([user("u1", ""), user("u2", "say bravo")]));
    let events = front.answered(&next).await;
    assert_eq!(types(&events).last(), Some(&"RUN_FINISHED"));
    let left = front.world.store.run(&thread, "r1").await.unwrap().unwrap();
    assert!(left.stop && left.end.is_some_and(|end| end.contains("abort")));
    let shown = front.run(&first).await;
    assert_eq!(types(&shown).last(), Some(&"RUN_ERROR"), "its own stream ends too");
}

#[tokio::test]
async fn odd_names_are_names_and_no_two_are_one() {
    let front = Front::new(Access::Loopback).await;
    let long = "é".repeat(500);
    for (thread, id) in [(long.as_str(), " "), ("main", "main"), ("  ", &long)] {
        let events = front.answered(&input(thread, id, json!([user(id, "say alpha")]))).await;
        assert_eq!((&events[0]["threadId"], &events[0]["runId"]), (&json!(thread), &json!(id)));
        assert_eq!(types(&events).last(), Some(&"RUN_FINISHED"));
        let mut url: reqwest::Url = front.url.parse().unwrap();
        url.path_segments_mut().unwrap().extend(["threads", thread, "messages"]);
        let listed = front.json(front.http.get(url)).await;
        assert_eq!(listed["messages"][0]["id"], id, "{listed}");
        assert_eq!(listed["messages"].as_array().unwrap().len(), 2);
    }
}

#[tokio::test]
async fn a_client_that_connects_is_shown_the_thread_and_then_the_run_under_way() {
    let front = Front::new(Access::Loopback).await;
    let events = front.stream("agent/default/connect", &input("t", "c0", json!([]))).await;
    assert_eq!(types(&events), ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]);
    assert_eq!(events[1]["messages"], json!([]));
    front.answered(&input("t", "r1", json!([user("u1", "say alpha")]))).await;
    let waiting = input("t", "r2", json!([user("u1", ""), user("u2", r#"look echo {"k":1}"#)]));
    front.answered(&waiting).await;
    let connecting = input("t", "c1", json!([]));
    let (events, ()) = tokio::join!(front.stream("agent/default/connect", &connecting), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let meta = front.world.runtime.store.meta(&ThreadId::from("t")).await.unwrap().unwrap();
        let parts = vec![ContentPart::text("done")];
        let message = InputMessage::tool_result(ThreadId::from("t"), meta.pending[0].call.clone(), parts);
        front.world.done(&front.world.message(&message)).await;
    });
    let ids: Vec<&Value> =
        events[1]["messages"].as_array().unwrap().iter().map(|message| &message["id"]).collect();
    assert_eq!(ids, ["u1", "i0-2", "u2"], "the run's own messages come as its events");
    assert_eq!(types(&events)[2..4], ["RUN_FINISHED", "RUN_STARTED"]);
    assert_eq!((&events[3]["runId"], types(&events).last()), (&json!("r2"), Some(&"RUN_FINISHED")));
    let said: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(said, "let me look{\"k\":1}it is done");
}

#[tokio::test]
async fn r21_the_state_is_in_every_answer_that_shows_the_thread() {
    let front = Front::new(Access::Loopback).await;
    let state = json!({ "items": ["a", null], "text": "0123456789" });
    let mut first = input("t", "r1", json!([user("u1", "say alpha")]));
    first["state"] = state.clone();
    let events = front.answered(&first).await;
    assert_eq!(types(&events)[..2], ["RUN_STARTED", "STATE_SNAPSHOT"]);
    assert_eq!(events[1], json!({ "type": "STATE_SNAPSHOT", "snapshot": state }));
    for path in ["threads/t/messages", "threads/t/messages?format=repository"] {
        let shown = front.json(front.http.get(format!("{}/{path}", front.url))).await;
        assert_eq!(shown["state"], state, "{path}");
    }
    let none = front.json(front.http.get(format!("{}/threads/other/messages", front.url))).await;
    assert_eq!(none.get("state"), None, "{none}");
    let connected = front.stream("agent/default/connect", &input("t", "c1", json!([]))).await;
    assert_eq!(types(&connected), ["RUN_STARTED", "STATE_SNAPSHOT", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]);
    // A known run whose events are gone, and a request with nothing new.
    let thread = ThreadId::from("t");
    front.world.store.put_run(&thread, &RunRow::queued("r2", "{}", 0), NOW_MS).await.unwrap();
    let second = input("t", "r2", json!([user("u1", ""), user("u2", "say bravo")]));
    let request = RunInput::parse(second.to_string().as_bytes()).unwrap().request;
    let message = InputMessage::plain(thread, InputContent::Run(request));
    front.world.done(&front.world.message(&message)).await;
    let again = front.run(&second).await;
    assert_eq!(types(&again), ["RUN_STARTED", "STATE_SNAPSHOT", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]);
    let mut large = input("t", "r3", json!([]));
    large["state"] = json!("x".repeat(MAX_STATE_BYTES));
    let refused =
        front.http.post(format!("{}/agent/default/run", front.url)).json(&large).send().await.unwrap();
    assert_eq!(refused.status(), 413);
    assert!(refused.text().await.unwrap().contains("`state` has"), "it says what is too large");
}

#[tokio::test]
async fn a_double_click_is_one_turn_and_both_streams_show_it() {
    let front = Front::new(Access::Loopback).await;
    let posted = input("t", "r1", json!([user("u1", "slow 20 word")]));
    let (first, second, ()) = tokio::join!(front.run(&posted), front.run(&posted), async {
        // Both may have queued it: under one id, of which a FIFO queue takes one.
        while front.outbox.sent().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        front.work().await;
    });
    let said = |events: &[Value]| {
        events.iter().filter_map(|event| event["delta"].as_str()).collect::<Vec<_>>().concat()
    };
    assert_eq!(said(&first), vec!["word"; 20].join(" "));
    assert_eq!(said(&first), said(&second));
    assert_eq!((types(&first).last(), types(&second).last()), (Some(&"RUN_FINISHED"), Some(&"RUN_FINISHED")));
    assert_eq!(front.world.story_of(&ThreadId::from("t")).await.len(), 2);
}

#[tokio::test]
async fn r2_a_closed_thread_says_so_in_a_stream() {
    let front = Front::new(Access::Loopback).await;
    front.answered(&input("t", "r1", json!([user("u1", "say alpha")]))).await;
    let close = InputMessage::plain(ThreadId::from("t"), InputContent::Close);
    front.world.done(&front.world.message(&close)).await;
    let events = front.answered(&input("t", "r2", json!([user("u1", ""), user("u2", "say bravo")]))).await;
    assert_eq!(types(&events), ["RUN_STARTED", "RUN_ERROR"]);
    assert_eq!(
        (&events[1]["code"], &events[1]["message"]),
        (&json!("INTERNAL"), &json!("the thread is closed"))
    );
}

#[tokio::test]
async fn a_run_whose_message_no_worker_could_take_ends_in_its_stream() {
    let front = Front::new(Access::Loopback).await;
    let posted = input("t", "r1", json!([user("u1", "say alpha")]));
    let (events, ()) = tokio::join!(front.run(&posted), async {
        while front.outbox.sent().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let (message, dedup) = front.outbox.take().remove(0);
        let delivery = Delivery { dedup: dedup.as_str().to_owned(), ..front.world.message(&message) };
        front.world.dies(&delivery).await;
    });
    assert_eq!(
        (types(&events), &events[1]["code"]),
        (vec!["RUN_STARTED", "RUN_ERROR"], &json!("WORKER_LOST"))
    );
    assert_eq!(front.run(&posted).await, events, "for good");
}
