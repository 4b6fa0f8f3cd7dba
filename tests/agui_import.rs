//! Conversations that clients kept become threads: over real HTTP, in memory and in DynamoDB, with all of their branches, and
//! gone on with from wherever their client stands.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/crash.rs"]
mod crash;
#[path = "agui_import/crashes.rs"]
mod crashes;
#[path = "support/ddb.rs"]
mod ddb;
#[path = "support/front.rs"]
mod front;
#[path = "support/history/mod.rs"]
mod history;
#[path = "agui_import/rules.rs"]
mod rules;
#[path = "support/rap.rs"]
mod support;
#[path = "agui_import/whole.rs"]
mod whole;
#[path = "support/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dormouse::http::Access;
use dormouse::http::auth::Tokens;
use dormouse::message::{CallId, ContentPart, Epoch, InputContent, InputMessage, MAX_STATE_BYTES, ThreadId};
use dormouse::model::scripted::ScriptedModel;
use dormouse::store::ConversationStore;
use dormouse::store::dynamodb::{DynamoStore, create_table};
use dormouse::thread::{Redaction, delete, redact};
use front::{Front, events};
use serde_json::{Value, json};
use world::World;

const ANN: &str = "token-of-ann-0123456789";
const BOB: &str = "token-of-bob-0123456789";
/// Streams of these tests are over by then.
const TIME: Duration = Duration::from_secs(10);

impl Front {
    async fn new(access: Access) -> Self {
        Self::before(World::new(ScriptedModel::prompts()), access, TIME).await
    }

    /// Over the embedded DynamoDB.
    async fn over_dynamo() -> Self {
        let client = ddb::client(&ddb::shared_url());
        let table = format!("import-{}", uuid::Uuid::new_v4());
        create_table(&client, &table).await.unwrap();
        let world = World::over(Arc::new(DynamoStore::new(client, table)), ScriptedModel::prompts());
        Self::before(world, Access::Loopback, TIME).await
    }

    fn store(&self) -> &dyn ConversationStore {
        &*self.world.runtime.store
    }

    /// Posts a run, hands it to the worker, and reads its stream to the end.
    async fn run(&self, thread: &str, run: &str, messages: Value) -> Vec<Value> {
        let input = json!({ "threadId": thread, "runId": run, "messages": messages });
        let url = format!("{}/agent/default/run", self.url);
        let (body, ()) = tokio::join!(
            async { self.http.post(url).json(&input).send().await.unwrap().text().await.unwrap() },
            self.work_when_posted()
        );
        events(&body)
    }

    /// A user's turn: the run must end well.
    async fn turn(&self, thread: &str, run: &str, messages: Value) {
        let events = self.run(thread, run, messages).await;
        assert_eq!(events.last().unwrap()["type"], "RUN_FINISHED", "{events:?}");
    }

    async fn post(&self, thread: &str, token: Option<&str>, body: &Value) -> (u16, Value) {
        let post = self.http.post(format!("{}/threads/{thread}/messages", self.url)).json(body);
        let answer =
            token.into_iter().fold(post, |post, token| post.bearer_auth(token)).send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    /// Imports, and has the worker make the thread.
    async fn import(&self, thread: &str, body: &Value) -> Value {
        let (status, answer) = self.post(thread, None, body).await;
        assert_eq!((status, &answer["threadId"]), (202, &json!(thread)), "{answer}");
        self.work().await;
        answer
    }

    async fn get(&self, path: &str) -> Value {
        self.http.get(format!("{}/{path}", self.url)).send().await.unwrap().json().await.unwrap()
    }

    async fn export(&self, thread: &str) -> Value {
        self.get(&format!("threads/{thread}/messages?format=repository")).await
    }

    async fn listed(&self, thread: &str) -> Vec<Value> {
        let listed = self.get(&format!("threads/{thread}/messages")).await;
        listed["messages"].as_array().unwrap().clone()
    }

    /// The story of the thread as it stands.
    async fn story(&self, thread: &str) -> Vec<String> {
        let loaded = self.store().load(&ThreadId::from(thread), &[]).await.unwrap();
        loaded.items.iter().map(|item| world::tell(&item.body)).collect()
    }

    async fn epoch(&self, thread: &str) -> Epoch {
        self.store().meta(&ThreadId::from(thread)).await.unwrap().unwrap().epoch
    }

    /// Answers the first call that is open.
    async fn answer(&self, thread: &str, text: &str) {
        let thread = ThreadId::from(thread);
        let meta = self.store().meta(&thread).await.unwrap().unwrap();
        let call: CallId = meta.pending[0].call.clone();
        let message = InputMessage::tool_result(thread, call, vec![ContentPart::text(text)]);
        self.world.done(&self.world.message(&message)).await;
    }
}

fn bearer() -> Access {
    Access::Bearer(Tokens::from_json(&json!({"ann": ANN, "bob": BOB}).to_string()).unwrap())
}

fn user(id: &str, text: &str) -> Value {
    json!({ "id": id, "role": "user", "content": text })
}

fn shows(id: &str) -> Value {
    json!({ "id": id, "role": "assistant", "content": "whatever" })
}

/// A message as assistant-ui keeps it.
fn kept(parent: Option<&str>, id: &str, role: &str, parts: Value) -> Value {
    let parts = if parts.is_string() { json!([{ "type": "text", "text": parts }]) } else { parts };
    json!({ "parentId": parent, "message": { "id": id, "role": role, "content": parts, "metadata": {} } })
}

/// An export as a tree, in which what the server has named goes by its place: ids of calls, and of messages that no client
/// has named. Of messages that follow one the order is that of the list.
fn nameless(export: &Value) -> Value {
    let listed = export["messages"].as_array().unwrap();
    let mut messages: Vec<Value> = Vec::new();
    let mut next = vec![Value::Null];
    while let Some(parent) = next.pop() {
        let known = listed.iter().find(|entry| entry["message"]["id"] == parent);
        messages.extend(known.cloned());
        let children = listed.iter().rev().filter(|entry| entry["parentId"] == parent);
        next.extend(children.map(|entry| entry["message"]["id"].clone()));
    }
    assert_eq!(messages.len(), listed.len(), "all of it is one tree");
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    for (at, entry) in messages.iter().enumerate() {
        let id = entry["message"]["id"].as_str().unwrap();
        let is_servers = id.starts_with('i') || id.starts_with('f');
        names.insert(id.to_owned(), if is_servers { format!("#{at}") } else { id.to_owned() });
        for (part, call) in entry["message"]["content"].as_array().unwrap().iter().enumerate() {
            if let Some(call) = call["toolCallId"].as_str() {
                names.insert(call.to_owned(), format!("call {at}.{part}"));
            }
        }
    }
    fn rename(value: &Value, names: &BTreeMap<String, String>) -> Value {
        match value {
            Value::String(text) => json!(names.get(text).unwrap_or(text)),
            Value::Array(values) => values.iter().map(|value| rename(value, names)).collect(),
            Value::Object(members) => {
                members.iter().map(|(name, value)| (name.clone(), rename(value, names))).collect()
            }
            other => other.clone(),
        }
    }
    rename(&json!({ "headId": export["headId"], "messages": messages }), &names)
}

/// A thread with an edit, a reload, a call with its result, reasoning, and a branch that was gone back to.
async fn branched(front: &Front, thread: &str) {
    front.turn(thread, "r1", json!([user("u1", "think delta")])).await;
    front.turn(thread, "r2", json!([user("u1", ""), shows("i0-2"), user("u2", "say bravo")])).await;
    // An edit, a reload of it, and the older branch once more.
    front
        .turn(thread, "r3", json!([user("u1", ""), shows("i0-2"), user("u3", "say \"quoted\"\nlines")]))
        .await;
    front.turn(thread, "r4", json!([user("u1", ""), shows("i0-2"), user("u3", "")])).await;
    let call = user("u4", r#"look echo {"k":[1,2.5]}"#);
    let (events, ()) = tokio::join!(
        front.run(thread, "r5", json!([user("u1", ""), shows("i0-2"), user("u2", ""), shows("i0-5"), call])),
        async {
            loop {
                tokio::time::sleep(Duration::from_millis(20)).await;
                let meta = front.store().meta(&ThreadId::from(thread)).await.unwrap().unwrap();
                if !meta.pending.is_empty() {
                    return front.answer(thread, r#"{"found":["x",null]}"#).await;
                }
            }
        }
    );
    assert_eq!(events.last().unwrap()["type"], "RUN_FINISHED", "{events:?}");
}

#[tokio::test]
async fn h4_an_export_is_imported_with_its_branches_and_exported_the_same() {
    for front in [Front::new(Access::Loopback).await, Front::over_dynamo().await] {
        branched(&front, "one").await;
        let export = front.export("one").await;
        assert_eq!(export["messages"].as_array().unwrap().len(), 11, "{export:#}");
        let (asked, epoch) = (front.world.model.calls(), front.epoch("one").await);
        let answer = front.import("two", &export).await;
        assert_eq!(answer["branches"], 4, "{answer}");
        assert_eq!(front.world.model.calls(), asked, "no model is asked");
        let again = front.export("two").await;
        assert_eq!(nameless(&again), nameless(&export), "{again:#}\n{export:#}");
        assert_eq!(front.story("two").await, front.story("one").await);
        assert_eq!(front.epoch("one").await, epoch, "the other one is as it was");
        // And that one elsewhere.
        front.import("three", &again).await;
        assert_eq!(nameless(&front.export("three").await), nameless(&export));
        // What the thread has of its own from here on changes no name of what it began with.
        let named = front.listed("two").await;
        let list: Vec<Value> = named.iter().cloned().chain([user("u9", "say nine")]).collect();
        let epoch = front.epoch("two").await;
        front.turn("two", "r1", json!(list)).await;
        assert_eq!(front.epoch("two").await, epoch, "nothing is cut");
        assert_eq!(front.listed("two").await[..named.len()], named);
        assert_eq!(front.story("two").await.last().unwrap(), "assistant: nine");
    }
}

/// A conversation of a browser: an edit of its second message, a reload of the first answer.
fn browser() -> Value {
    json!({ "headId": "a2", "messages": [
        kept(None, "u1", "user", json!("one")),
        kept(Some("u1"), "a1", "assistant", json!("first")),
        kept(Some("a1"), "u2", "user", json!("two")),
        kept(Some("u2"), "a2", "assistant", json!("second")),
        kept(Some("a1"), "u3", "user", json!("three")),
        kept(Some("u3"), "a3", "assistant", json!("third")),
        kept(Some("u1"), "a4", "assistant", json!("first again")),
    ]})
}

#[tokio::test]
async fn r21_an_import_brings_the_state_of_its_head() {
    let front = Front::new(Access::Loopback).await;
    let state = json!({ "items": [null, 1.5], "who": "ann" });
    let mut kept = browser();
    kept["state"] = state.clone();
    front.import("tree", &kept).await;
    let export = front.export("tree").await;
    assert_eq!(export["state"], state);
    front.import("again", &export).await;
    assert_eq!(front.export("again").await, export);
    let list = json!({ "messages": front.listed("tree").await, "state": state });
    front.import("list", &list).await;
    assert_eq!(front.export("list").await["state"], state);
    // It stands at the end of the head: an edit of what is in front of it has none.
    front.turn("tree", "r1", json!([user("u1", ""), shows("a1"), user("u9", "say nine")])).await;
    assert_eq!(front.export("tree").await.get("state"), None);
    kept["state"] = json!("x".repeat(MAX_STATE_BYTES));
    let (status, refused) = front.post("large", None, &kept).await;
    assert!(status == 413 && refused["error"].as_str().unwrap().contains("`state` has"), "{refused}");
}

#[tokio::test]
async fn h4_a_client_goes_on_where_it_stands_in_what_it_has_imported() {
    for front in [Front::new(Access::Loopback).await, Front::over_dynamo().await] {
        front.import("t", &browser()).await;
        assert_eq!(front.epoch("t").await, Epoch(3));
        let listed: Vec<Value> =
            front.listed("t").await.iter().map(|message| message["id"].clone()).collect();
        assert_eq!(listed, ["u1", "a1", "u2", "a2"]);
        // At the head, nothing is cut.
        let here = [user("u1", ""), shows("a1"), user("u2", ""), shows("a2"), user("u5", "seen")];
        front.turn("t", "r1", json!(here)).await;
        assert_eq!(front.epoch("t").await, Epoch(3));
        assert_eq!(front.story("t").await.last().unwrap(), "assistant: seen: one|two");
        // On an edited branch, and on one that only the id of its answer tells from others.
        let edited = [user("u1", ""), shows("a1"), user("u3", ""), shows("a3"), user("u6", "seen")];
        front.turn("t", "r2", json!(edited)).await;
        assert_eq!(
            front.story("t").await[2..],
            ["user: three", "assistant: third", "user: seen", "assistant: seen: one|three"]
        );
        front.turn("t", "r3", json!([user("u1", ""), shows("a4"), user("u7", "seen")])).await;
        assert_eq!(
            front.story("t").await,
            ["user: one", "assistant: first again", "user: seen", "assistant: seen: one"]
        );
        // A reload of something imported.
        front.turn("t", "r4", json!([user("u1", "")])).await;
        assert_eq!(front.story("t").await.len(), 2);
        let ids: Vec<Value> = front.listed("t").await.iter().map(|message| message["id"].clone()).collect();
        assert_eq!(ids[0], "u1");
        let export = front.export("t").await;
        for id in ["a1", "a2", "a3", "a4", "u2", "u3", "u5", "u6", "u7"] {
            let known =
                export["messages"].as_array().unwrap().iter().filter(|entry| entry["message"]["id"] == id);
            assert_eq!(known.count(), 1, "{id} is there once: {export:#}");
        }
    }
}

#[tokio::test]
async fn h4_ids_that_dormouse_has_given_elsewhere_are_known_and_not_given_again() {
    let front = Front::new(Access::Loopback).await;
    // A thread whose user speaks without ids of their own.
    for text in ["say one", "say two"] {
        let said = InputMessage::user_text("plain".into(), text);
        front.world.done(&front.world.message(&said)).await;
    }
    let export = front.export("plain").await;
    let ids = |export: &Value| -> Vec<String> {
        let of = |entry: &Value| entry["message"]["id"].as_str().unwrap().to_owned();
        export["messages"].as_array().unwrap().iter().map(of).collect()
    };
    assert_eq!(ids(&export), ["i0-1", "i0-2", "i0-3", "i0-4"]);
    front.import("copy", &export).await;
    // A client that still goes by the old ones is at home.
    let here = [user("i0-1", ""), shows("i0-2"), user("i0-3", ""), shows("i0-4"), user("u1", "seen")];
    front.turn("copy", "r1", json!(here)).await;
    assert_eq!(front.story("copy").await.last().unwrap(), "assistant: seen: say one|say two");
    assert_eq!(front.epoch("copy").await, Epoch(1), "nothing was cut");
    let copy = front.export("copy").await;
    assert_eq!(
        ids(&copy),
        ["i0-1", "i0-2", "i0-3", "i0-4", "u1", "i1-2"],
        "no two are one, here or in its client"
    );
    let listed = front.get("../threads/copy/branches").await;
    assert_eq!(listed["branches"].as_array().unwrap().len(), 1, "there is no other branch: {listed}");
    // Ids of inherited places are known as well, and given anew: here they are those of other items.
    let mut odd = copy;
    for (at, id) in ["f1-i0-3", "f1-i0-1", "i99999-1"].iter().enumerate() {
        odd["messages"][at]["message"]["id"] = json!(id);
        odd["messages"][at + 1]["parentId"] = json!(id);
    }
    front.import("odd", &odd).await;
    let here = [
        user("f1-i0-3", ""),
        shows("f1-i0-1"),
        user("i99999-1", ""),
        shows("i0-4"),
        user("u1", ""),
        user("u2", "seen"),
    ];
    front.turn("odd", "r1", json!(here)).await;
    let ids = ids(&front.export("odd").await);
    assert_eq!(ids, ["f1-i0-1", "f1-i0-2", "i99999-1", "i0-4", "u1", "i1-2", "u2", "i2-2"], "no two are one");
}

#[tokio::test]
async fn h4_calls_of_an_import_are_all_settled_and_the_next_request_is_whole() {
    let front = Front::new(Access::Loopback).await;
    let call = |id: &str, more: Value| {
        let mut part = json!({ "type": "tool-call", "toolCallId": id, "toolName": "find" });
        part.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        part
    };
    let parts = json!([
        { "type": "reasoning", "text": "hm" },
        { "type": "text", "text": "let me see" },
        call("c1", json!({ "argsText": "{\"q\":1}", "args": { "q": 1 }, "result": { "n": 1 } })),
        call("c2", json!({ "argsText": "{broken", "result": "it failed", "isError": true })),
        { "type": "text", "text": "and" },
        call("c3", json!({ "args": { "q": [3] } })),
    ]);
    let body = json!({ "messages": [kept(None, "u1", "user", json!("find it")), kept(Some("u1"), "a1", "assistant", parts)] });
    front.import("t", &body).await;
    let story = [
        "user: find it",
        "reasoning: hm",
        "assistant: let me see",
        "call: find {\"q\":1}",
        "call: find {broken",
        "result: {\"n\":1}",
        "result: it failed",
        "assistant: and",
        "call: find {\"q\":[3]}",
        "interrupt",
    ];
    assert_eq!(front.story("t").await, story);
    let loaded = front.store().load(&"t".into(), &[]).await.unwrap();
    assert_eq!(loaded.meta.unwrap().pending, [], "nobody works on any of them");
    let listed = front.listed("t").await;
    let roles: Vec<&str> = listed.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "reasoning", "assistant", "tool", "tool", "assistant", "tool"]);
    assert_eq!((&listed[2]["id"], &listed[4]["error"]), (&json!("a1"), &json!("it failed")));
    let minted: Vec<&str> =
        listed[2]["toolCalls"].as_array().unwrap().iter().map(|call| call["id"].as_str().unwrap()).collect();
    assert!(minted.iter().all(|id| id.starts_with("c0-")), "{minted:?}");
    // The model sees all but the reasoning, which nobody has signed.
    front.turn("t", "r1", json!([user("u1", ""), shows("a1"), user("u2", "say on")])).await;
    let request = format!("{:?}", front.world.model.requests().last().unwrap());
    assert!(
        request.contains("let me see") && request.contains("it failed") && !request.contains("hm"),
        "{request}"
    );
    assert!(request.contains("interrupted by a message of the user"), "{request}");
}

#[tokio::test]
async fn h4_a_body_that_is_no_conversation_says_what_is_wrong() {
    let front = Front::new(Access::Loopback).await;
    let mut bad = browser();
    bad["messages"][3]["message"]["id"] = Value::Null;
    let many: Vec<Value> = (0..10_001).map(|n| user(&format!("u{n}"), "x")).collect();
    let fan = (0..65).map(|n| kept(Some("u1"), &format!("a{n}"), "assistant", json!("x")));
    let fan: Vec<Value> = [kept(None, "u1", "user", json!("x"))].into_iter().chain(fan).collect();
    let cases = [
        (json!("text"), "neither a list"),
        (json!({ "messages": {} }), "neither a list"),
        (bad, "messages[3].message.id is missing"),
        (json!([]), "nothing to import"),
        (
            json!([{ "role": "system", "content": "be brief" }, 7, { "role": "user", "content": " " }]),
            "nothing to import",
        ),
        (json!([user(&"x".repeat(1_025), "x")]), "messages[0] has an id of more than 1024"),
        (json!(many), "more than 10000 messages"),
        (json!({ "messages": fan }), "more than 64 branches"),
    ];
    for (body, why) in cases {
        let (status, answer) = front.post("t", None, &body).await;
        assert_eq!(status, 400, "{answer}");
        assert!(answer["error"].as_str().unwrap().contains(why), "{answer} is not about {why}");
    }
    let url = format!("{}/threads/t/messages", front.url);
    let send = async |url: &str, kind: &str, body: String| {
        let answer = front.http.post(url).header("content-type", kind).body(body).send().await.unwrap();
        assert_eq!(answer.headers()["access-control-allow-origin"], "*", "a page must be able to read why");
        answer.status().as_u16()
    };
    assert_eq!(send(&url, "application/json", "{".into()).await, 400);
    assert_eq!(send(&url, "text/plain", "[]".into()).await, 415);
    assert_eq!(send(&url, "application/json", " ".repeat(5 * 1024 * 1024)).await, 413);
    assert_eq!(send(&format!("{url}?agent=nobody"), "application/json", browser().to_string()).await, 404);
    assert_eq!(front.outbox.sent(), [], "nothing was queued");
    assert_eq!(front.listed("t").await, [] as [Value; 0]);
}

#[tokio::test]
async fn h4_an_import_makes_a_new_thread_and_only_for_its_owner() {
    let front = Front::new(bearer()).await;
    assert_eq!(front.post("t", None, &browser()).await.0, 401);
    assert_eq!(front.post("t", Some(ANN), &browser()).await.0, 202);
    // The name is claimed before the thread is there; the same once more is one.
    assert_eq!(front.post("t", Some(BOB), &browser()).await.0, 404);
    assert_eq!(front.post("t", Some(ANN), &browser()).await.0, 202);
    let sent = front.outbox.sent();
    assert_eq!(sent[0].1, sent[1].1, "under one id");
    let queued = |message: &InputMessage| match &message.content {
        InputContent::Import(import) => import.log.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(queued(&sent[0].0), queued(&sent[1].0), "and stored once");
    front.work().await;
    assert_eq!(front.post("t", Some(ANN), &browser()).await.0, 409);
    assert_eq!(front.post("t", Some(BOB), &browser()).await.0, 404);
    let listed = |token: &str| {
        let url = format!("{}/threads/t/messages", front.url);
        let get = front.http.get(url).bearer_auth(token).send();
        async { get.await.unwrap().json::<Value>().await.unwrap()["messages"].as_array().unwrap().len() }
    };
    assert_eq!((listed(ANN).await, listed(BOB).await), (4, 0));
    let items = front.store().load(&"t".into(), &[]).await.unwrap().items;
    assert!(items.iter().all(|item| item.facts.user.as_deref() == Some("ann")), "she acts for nobody else");
    assert_eq!(front.store().meta(&"t".into()).await.unwrap().unwrap().owner.as_deref(), Some("ann"));
}

#[tokio::test]
async fn a_hidden_branch_of_an_import_is_redacted_and_deleted_with_its_thread() {
    let front = Front::new(Access::Loopback).await;
    let mut body = browser();
    body["messages"][5]["message"]["content"][0]["text"] = json!("the secret-42");
    front.import("t", &body).await;
    let thread = ThreadId::from("t");
    let store = &front.world.store;
    assert_eq!(redact(store, &thread, &Redaction::Text("secret-42".into())).await.unwrap(), 1);
    let export = front.export("t").await.to_string();
    assert!(export.contains("the [redacted]") && !export.contains("secret-42"), "{export}");
    let log = store.meta(&thread).await.unwrap().unwrap().base[0].thread.clone();
    front.world.done(&front.world.message(&InputMessage::plain("t".into(), InputContent::Close))).await;
    delete(store, &thread).await.unwrap();
    assert!(store.log(&log, Epoch(0)).await.unwrap().items.is_empty());
}

#[tokio::test]
async fn i6_an_import_that_meets_a_thread_is_refused_and_changes_nothing() {
    let front = Front::new(Access::Loopback).await;
    assert_eq!(front.post("t", None, &browser()).await.0, 202);
    assert_eq!(front.post("t", None, &json!([user("u1", "another")])).await.0, 202, "nobody has made it yet");
    front.work().await;
    assert_eq!(front.story("t").await.len(), 4, "the first one");
    let told = front.world.output.sent.lock().unwrap().last().unwrap().text.clone();
    assert!(told.contains("Nothing was imported: a thread of this name exists"), "{told}");
}
