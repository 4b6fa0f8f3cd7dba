//! The thread routes over real HTTP: what they queue, what they show, and to whom.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "http_api/inspect.rs"]
mod inspect;
#[path = "support/rap.rs"]
mod support;
#[path = "support/world.rs"]
mod world;

use std::sync::Arc;

use dormouse::config::Config;
use dormouse::http::auth::Tokens;
use dormouse::http::{Access, HttpDeps, router};
use dormouse::message::{
    CallId, Compact, DedupId, InputContent, InputMessage, ThreadId, UserChoiceAnswer, UserChoiceRequired,
};
use dormouse::model::scripted::{ScriptedEvent, ScriptedModel};
use dormouse::rap::CallbackDeps;
use dormouse::store::{StateStore, Store};
use dormouse::tools::ToolError;
use serde_json::{Value, json};
use support::{Outbox, StoreDown, tokens};
use world::{Delivery, World};

const ANN: &str = "token-of-ann-0123456789";
const BOB: &str = "token-of-bob-0123456789";

/// A world with an HTTP front; what is POSTed waits in `outbox` until it is delivered.
struct Front {
    world: World,
    outbox: Arc<Outbox>,
    url: String,
    http: reqwest::Client,
    token: Option<&'static str>,
}

fn bearer() -> Access {
    Access::Bearer(Tokens::from_json(&json!({"ann": ANN, "bob": BOB}).to_string()).unwrap())
}

impl Front {
    async fn new(access: Access, model: Vec<Vec<ScriptedEvent>>) -> Self {
        let world = World::new(ScriptedModel::script(model));
        let store = world.runtime.store.clone();
        Self::over(store, world, access).await
    }

    async fn over(store: Arc<dyn Store>, world: World, access: Access) -> Self {
        let outbox = Arc::new(Outbox::default());
        let callback = CallbackDeps {
            store,
            sender: outbox.clone(),
            tokens: tokens("http://unused"),
            config: Arc::new(Config::default()),
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = router(HttpDeps { callback, access, webhooks: Default::default() });
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { world, outbox, url, http: reqwest::Client::new(), token: None }
    }

    /// The same front, asked by somebody else.
    fn of(&self, token: &'static str) -> Front {
        Front {
            world: self.world.clone(),
            outbox: self.outbox.clone(),
            url: self.url.clone(),
            http: self.http.clone(),
            token: Some(token),
        }
    }

    async fn ask(&self, request: reqwest::RequestBuilder) -> (u16, Value) {
        let request = match self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        (status, response.json().await.expect("every answer is JSON"))
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        self.ask(self.http.get(format!("{}{path}", self.url))).await
    }

    async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        self.ask(self.http.post(format!("{}{path}", self.url)).json(&body)).await
    }

    fn queued(&self) -> Vec<(InputMessage, DedupId)> {
        self.outbox.take()
    }

    /// Hands what was POSTed to the worker, one batch of it.
    async fn work(&self) {
        let batch: Vec<Delivery> = self
            .queued()
            .iter()
            .map(|(message, dedup)| Delivery {
                dedup: dedup.as_str().to_owned(),
                ..self.world.message(message)
            })
            .collect();
        assert!(!batch.is_empty(), "nothing was queued");
        assert_eq!(self.world.deliver(&batch).await, Vec::<String>::new());
    }
}

fn say(text: &str) -> Vec<ScriptedEvent> {
    vec![ScriptedEvent::Text(text.into()), ScriptedEvent::End("end_turn".into())]
}

#[tokio::test]
async fn a_message_is_queued_once_and_answered_in_the_thread() {
    let front = Front::new(Access::Loopback, vec![say("hello"), say("again")]).await;
    let body = json!({"text": "hi", "dedup_id": "one", "metadata": {"channel": 1.0}});
    let (status, first) = front.post("/threads/t-1/messages", body.clone()).await;
    assert_eq!((status, first["thread_id"].as_str()), (202, Some("t-1")), "{first}");
    let (_, second) = front.post("/threads/t-1/messages", body).await;
    assert_eq!(first, second, "the same id is the same message");
    let (_, third) = front.post("/threads/t-2/messages", json!({"text": "hi", "dedup_id": "one"})).await;
    assert_ne!(first["dedup_id"], third["dedup_id"], "ids are a thread's own");
    let sent = front.queued();
    assert_eq!(sent.len(), 3);
    assert_eq!(sent[0].0.content, InputContent::Text("hi".into()));
    assert_eq!(sent[0].0.metadata.as_ref().map(|raw| raw.get()), Some(r#"{"channel":1.0}"#));
    assert_eq!(sent[0], sent[1]);
    let delivery = Delivery { dedup: sent[0].1.as_str().to_owned(), ..front.world.message(&sent[0].0) };
    front.world.done(&delivery).await;

    let (status, thread) = front.get("/threads/t-1").await;
    assert_eq!(status, 200, "{thread}");
    assert_eq!(thread["items"][0]["item"]["parts"][0]["text"], "hi");
    assert_eq!(thread["items"][1]["item"]["text"], "hello");
    assert_eq!(
        (&thread["head"], &thread["next"], &thread["closed"]),
        (&json!(3), &Value::Null, &json!(false))
    );
    let (_, page) = front.get("/threads/t-1?limit=1").await;
    assert_eq!((page["items"].as_array().unwrap().len(), &page["next"]), (1, &json!(1)));
    let (_, page) = front.get("/threads/t-1?limit=1&after=1").await;
    assert_eq!((&page["items"][0]["seq"], &page["next"]), (&json!(2), &Value::Null));
}

/// A PNG of one pixel: anything else is kept as a note.
const PIXEL: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

#[tokio::test]
async fn several_parts_are_one_message_of_the_thread() {
    let front = Front::new(Access::Loopback, vec![say("a cat")]).await;
    let parts = json!([
        {"type": "text", "text": "what is this?"},
        {"type": "image", "data": {"type": "base64", "value": PIXEL}, "media_type": "png"},
    ]);
    assert_eq!(front.post("/threads/t/messages", json!({"content": parts})).await.0, 202);
    front.work().await;
    let (_, thread) = front.get("/threads/t").await;
    assert_eq!(thread["items"][0]["item"]["parts"], parts);
    assert_eq!(thread["items"][1]["item"]["text"], "a cat");
    let one = json!({"content": [{"type": "text", "text": "only"}]});
    assert_eq!(front.post("/threads/t/messages", one).await.0, 202);
    assert_eq!(front.queued()[0].0.content, InputContent::Text("only".into()), "as every producer writes it");
}

#[tokio::test]
async fn bad_requests_are_refused_with_a_reason_and_nothing_is_queued() {
    let front = Front::new(Access::Loopback, vec![]).await;
    let long = "x".repeat(17_000);
    let cases = [
        (json!({}), "one of"),
        (json!({"text": "a", "content": []}), "one of"),
        (json!({"text": " \n"}), "empty"),
        (json!({"content": []}), "empty"),
        (json!({"content": [{"type": "hologram"}]}), "text or image"),
        (json!({"content": [{"type": "text"}]}), "text"),
        (json!({"text": 7}), "string"),
        (json!({"text": "a", "metadata": []}), "map"),
        (json!({"text": "a", "metadata": {"x": long}}), "metadata"),
        (json!({"text": "a", "metadata": {"agent": "nobody"}}), "agent"),
        (json!({"text": "a", "metadata": {"user_id": "u".repeat(300)}}), "user_id"),
        (json!({"text": "a", "dedup_id": ""}), "dedup_id"),
        (json!({"text": "a", "surprise": 1}), "surprise"),
        (json!("a"), "NewMessage"),
    ];
    for (body, reason) in cases {
        let (status, answer) = front.post("/threads/t/messages", body.clone()).await;
        assert_eq!(status, 400, "{body}: {answer}");
        assert!(answer["error"].as_str().unwrap().contains(reason), "{body}: {answer}");
    }
    for thread in ["x".repeat(129), "%20".into(), "%C3%A9".into(), "%FF".into()] {
        assert_eq!(front.post(&format!("/threads/{thread}/messages"), json!({"text": "a"})).await.0, 400);
        assert_eq!(front.get(&format!("/threads/{thread}")).await.0, 400);
    }
    for query in ["limit=0", "limit=201", "limit=x", "after=-1", "what=1"] {
        assert_eq!(front.get(&format!("/threads/t?{query}")).await.0, 400, "{query}");
    }
    assert_eq!(front.get("/threads?limit=1000").await.0, 400);
    let post = || front.http.post(format!("{}/threads/t/messages", front.url));
    assert_eq!(front.ask(post().body(r#"{"text":"a"}"#)).await.0, 415);
    let huge = json!({"text": "x".repeat(5 * 1024 * 1024)});
    assert_eq!(front.ask(post().json(&huge)).await.0, 413);
    let two = post().header("idempotency-key", "a").json(&json!({"text": "a", "dedup_id": "b"}));
    assert_eq!(front.ask(two).await.0, 400);
    assert_eq!(front.get("/threads/none").await.0, 404);
    assert_eq!(front.queued(), vec![]);
}

#[tokio::test]
async fn a_thread_is_there_for_the_principal_that_made_it_and_for_nobody_else() {
    let front = Front::new(bearer(), vec![say("hello ann"), say("hello bob")]).await;
    let (ann, bob) = (front.of(ANN), front.of(BOB));
    for nobody in [&front, &front.of("token-of-eve-0123456789")] {
        for (status, _) in [
            nobody.get("/threads").await,
            nobody.get("/threads/t").await,
            nobody.post("/threads/t/messages", json!({"text": "x"})).await,
        ] {
            assert_eq!(status, 401);
        }
    }
    let lie = json!({"text": "hi", "metadata": {"user_id": "bob", "channel": "c"}});
    assert_eq!(ann.post("/threads/t/messages", lie).await.0, 202);
    // Also while it is only queued.
    assert_eq!(bob.post("/threads/t/messages", json!({"text": "mine"})).await.0, 404);
    front.work().await;
    let (status, thread) = ann.get("/threads/t").await;
    assert_eq!((status, &thread["owner"]), (200, &json!("ann")));
    assert_eq!(thread["items"][0]["user"], "ann");
    assert_eq!(bob.get("/threads/t").await.0, 404);
    assert_eq!(bob.post("/threads/t/messages", json!({"text": "mine"})).await.0, 404);
    assert_eq!(bob.post("/threads/b/messages", json!({"text": "mine"})).await.0, 202);
    front.work().await;
    let listed = |(_, list): (u16, Value)| -> Vec<String> {
        let threads = list["threads"].as_array().unwrap().iter();
        threads.map(|thread| thread["thread_id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(listed(ann.get("/threads").await), ["t"]);
    assert_eq!(listed(bob.get("/threads").await), ["b"]);
    // A later message without metadata keeps the thread's, and says who speaks.
    assert_eq!(ann.post("/threads/t/messages", json!({"text": "more"})).await.0, 202);
    let metadata = front.queued().remove(0).0.metadata.unwrap();
    assert_eq!(metadata.get(), r#"{"channel":"c","user_id":"ann"}"#);
}

#[tokio::test]
async fn a_thread_without_an_owner_is_nobody_s_over_http() {
    let front = Front::new(bearer(), vec![say("hello")]).await;
    front.world.done(&front.world.user("hi")).await;
    assert_eq!(front.of(ANN).get(&format!("/threads/{}", world::THREAD)).await.0, 404);
}

#[tokio::test]
async fn without_configuration_the_routes_are_closed_or_for_this_machine_alone() {
    let closed = Front::new(Access::Closed, vec![]).await;
    assert_eq!(closed.get("/threads").await.0, 404);
    assert_eq!(closed.post("/threads/t/messages", json!({"text": "x"})).await.0, 404);
    assert_eq!(closed.get("/healthz").await.0, 200);
    let front = Front::new(Access::Loopback, vec![]).await;
    assert_eq!(front.get("/threads").await, (200, json!({"threads": []})));
    for (name, value) in [("host", "evil.example"), ("origin", "https://evil.example"), ("origin", "null")] {
        let request = front.http.get(format!("{}/threads", front.url)).header(name, value);
        assert_eq!(front.ask(request).await.0, 403, "{name}: {value}");
    }
    let request = front.http.get(format!("{}/threads", front.url)).header("origin", "http://localhost:5173");
    assert_eq!(front.ask(request).await.0, 200);
}

#[tokio::test]
async fn what_is_out_of_order_is_a_503_that_says_nothing_of_the_inside() {
    let world = World::new(ScriptedModel::script(vec![]));
    let front = Front::over(Arc::new(StoreDown), world, Access::Loopback).await;
    for (status, answer) in [
        front.get("/threads").await,
        front.get("/threads/t").await,
        front.post("/threads/t/messages", json!({"text": "x"})).await,
    ] {
        assert_eq!(status, 503);
        assert!(!answer["error"].as_str().unwrap().contains("ordered"), "{answer}");
    }
}

#[tokio::test]
async fn a_closed_thread_takes_nothing_and_is_still_shown() {
    use dormouse::store::{Committed, ConversationStore, Expect};
    let front = Front::new(Access::Loopback, vec![say("hello")]).await;
    front.world.done(&front.world.user("hi")).await;
    let mut meta = front.world.meta().await;
    let expect = Expect::At { epoch: meta.epoch, head: meta.head, token: meta.token.clone() };
    (meta.closed, meta.token) = (true, "close".to_owned());
    let commit = dormouse::store::Commit::new(expect, meta, 0);
    assert_eq!(front.world.store.commit(commit).await.unwrap(), Committed::Done);
    let path = format!("/threads/{}", ThreadId::from(world::THREAD));
    assert_eq!(front.post(&format!("{path}/messages"), json!({"text": "x"})).await.0, 409);
    assert_eq!(front.get(&path).await.1["closed"], true);
}

#[tokio::test]
async fn the_description_is_served() {
    let front = Front::new(Access::Closed, vec![]).await;
    let (status, document) = front.get("/openapi.json").await;
    assert_eq!((status, document["openapi"].as_str()), (200, Some("3.1.0")));
}

/// A thread whose tool has asked the user something, and the call that asks.
async fn asking(access: Access, model: Vec<Vec<ScriptedEvent>>) -> (Front, CallId) {
    let call = vec![ScriptedEvent::call("", "echo", "{}"), ScriptedEvent::End("tool_use".into())];
    let front = Front::new(access, [vec![call], model].concat()).await;
    front.world.done(&front.world.user("go")).await;
    let call = front.world.pending().await.remove(0);
    front.world.done(&front.world.message(&question(&call))).await;
    (front, call)
}

fn question(call: &CallId) -> InputMessage {
    let choice = UserChoiceRequired {
        id: call.clone(),
        call_id: None,
        prompt: "Drop?".into(),
        choices: vec!["Drop".into(), "Keep".into()],
        default: 1,
        response_url: "https://b.example/answer".into(),
    };
    InputMessage::plain(ThreadId::from(world::THREAD), InputContent::UserChoiceRequired(choice))
}

fn answers(front: &Front) -> Vec<(String, CallId, usize)> {
    front.world.tools.answered.lock().unwrap().clone()
}

fn kinds(front: &Front) -> Vec<String> {
    let sent = front.world.output.sent.lock().unwrap().clone();
    let kind = |message: &dormouse::message::OutputMessage| -> Value {
        serde_json::from_str(&message.to_body().unwrap()).unwrap()
    };
    sent.iter().map(|message| kind(message)["type"].as_str().unwrap_or("text").to_owned()).collect()
}

const HERE: &str = "/threads/th-1";

#[tokio::test]
async fn rap_44_a_choice_is_answered_once_and_what_comes_later_is_refused() {
    let (front, call) = asking(Access::Loopback, vec![say("kept")]).await;
    let (status, open) = front.get(&format!("{HERE}/choices")).await;
    let shown = json!([{"choice_id": call, "prompt": "Drop?", "choices": ["Drop", "Keep"], "default": 1}]);
    assert_eq!((status, &open["choices"]), (200, &shown));
    let path = format!("{HERE}/choices/{call}");
    for bad in [json!({"selected": 2}), json!({"selected": -1}), json!({"selected": "Drop"}), json!({})] {
        assert_eq!(front.post(&path, bad.clone()).await.0, 400, "{bad}");
    }
    assert_eq!(front.post(&format!("{HERE}/choices/c-none"), json!({"selected": 0})).await.0, 404);
    assert_eq!(front.queued(), vec![]);

    let (status, queued) = front.post(&path, json!({"selected": 0})).await;
    assert_eq!(status, 202, "{queued}");
    front.work().await;
    let once = vec![("https://b.example/answer".to_owned(), call.clone(), 0)];
    assert_eq!(answers(&front), once);
    assert_eq!(kinds(&front).last().map(String::as_str), Some("user_choice_complete"));
    assert_eq!(front.world.pending().await, vec![call.clone()], "the tool still works on it");
    assert_eq!(front.get(&format!("{HERE}/choices")).await.1, json!({"choices": []}));
    assert_eq!(front.post(&path, json!({"selected": 1})).await.0, 404);

    // Straight from the queue as well: under the same id nothing happens, under another the user is told.
    let again = UserChoiceAnswer { id: call.clone(), selected: Some(1) };
    let again = InputMessage::plain(ThreadId::from(world::THREAD), InputContent::UserChoiceAnswer(again));
    let dedup = queued["dedup_id"].as_str().unwrap().to_owned();
    front.world.done(&Delivery { dedup, ..front.world.message(&again) }).await;
    let told = front.world.output.texts().len();
    front.world.done(&front.world.message(&again)).await;
    assert_eq!(answers(&front), once);
    assert_eq!(front.world.output.texts().len(), told + 1);
    assert_eq!(kinds(&front).last().map(String::as_str), Some("error"));
    front.world.done(&front.world.result(&call, "dropped")).await;
    assert_eq!(front.world.story().await.last().unwrap(), "assistant: kept");
}

#[tokio::test]
async fn rap_44_d21_a_dismissed_choice_and_an_interrupted_call_post_the_default() {
    let (front, call) = asking(Access::Loopback, vec![]).await;
    assert_eq!(front.post(&format!("{HERE}/choices/{call}"), json!({"selected": null})).await.0, 202);
    front.work().await;
    assert_eq!(answers(&front), [("https://b.example/answer".to_owned(), call, 1)]);

    let (front, call) = asking(Access::Loopback, vec![say("stopped")]).await;
    front.world.done(&front.world.user("stop")).await;
    assert_eq!(answers(&front), [("https://b.example/answer".to_owned(), call.clone(), 1)]);
    assert_eq!(*front.world.tools.cancelled.lock().unwrap(), std::slice::from_ref(&call));
    assert!(kinds(&front).contains(&"user_choice_complete".to_owned()));
    assert!(front.world.store.open_choices(&ThreadId::from(world::THREAD)).await.unwrap().is_empty());
    assert_eq!(front.post(&format!("{HERE}/choices/{call}"), json!({"selected": 0})).await.0, 404);
}

#[tokio::test]
async fn rap_44_an_answer_that_does_not_get_through_is_an_error_that_the_model_reads() {
    let (front, call) = asking(Access::Loopback, vec![say("it is gone")]).await;
    *front.world.tools.failures.lock().unwrap() = vec![ToolError::Failed("status 410".into())];
    assert_eq!(front.post(&format!("{HERE}/choices/{call}"), json!({"selected": 0})).await.0, 202);
    front.work().await;
    front.world.settle().await;
    let story = front.world.story().await;
    assert_eq!(story[2..], ["result: Error: status 410", "assistant: it is gone"]);
}

#[tokio::test]
async fn i4_an_answer_whose_post_died_is_posted_again_and_a_question_of_a_settled_call_is_over() {
    let (front, call) = asking(Access::Loopback, vec![say("done"), say("more")]).await;
    let answer = UserChoiceAnswer { id: call.clone(), selected: Some(0) };
    let answer = InputMessage::plain(ThreadId::from(world::THREAD), InputContent::UserChoiceAnswer(answer));
    let delivery = front.world.message(&answer);
    // The output queue refuses: the commit is made, and nothing after it.
    *front.world.output.failures.lock().unwrap() = 1;
    assert_eq!(
        front.world.deliver(std::slice::from_ref(&delivery)).await,
        std::slice::from_ref(&delivery.message_id)
    );
    assert_eq!(answers(&front), []);
    front.world.done(&delivery.again()).await;
    assert_eq!(answers(&front), [("https://b.example/answer".to_owned(), call, 0)]);

    let (front, call) = asking(Access::Loopback, vec![say("done")]).await;
    front.world.done(&front.world.result(&call, "never mind")).await;
    assert_eq!(front.get(&format!("{HERE}/choices")).await.1, json!({"choices": []}));
    assert!(front.world.store.open_choices(&ThreadId::from(world::THREAD)).await.unwrap().is_empty());
    assert_eq!(answers(&front), []);
}

#[tokio::test]
async fn choices_calls_and_cancelling_are_the_owner_s_alone() {
    let (front, call) = asking(bearer(), vec![]).await;
    let bob = front.of(BOB);
    for status in [
        bob.get(&format!("{HERE}/choices")).await.0,
        bob.get(&format!("{HERE}/pending")).await.0,
        bob.get(&format!("{HERE}/views")).await.0,
        bob.post(&format!("{HERE}/cancel"), json!({})).await.0,
        bob.post(&format!("{HERE}/choices/{call}"), json!({"selected": 0})).await.0,
        bob.post(&format!("{HERE}/pending/{call}/settle"), json!({})).await.0,
        bob.post(&format!("{HERE}/calls/{call}/resend"), json!({})).await.0,
    ] {
        assert_eq!(status, 404);
    }
    assert_eq!(front.post(&format!("{HERE}/cancel"), json!({})).await.0, 401);
    assert_eq!(front.queued(), vec![]);
}

#[tokio::test]
async fn a_running_response_is_cancelled_and_what_was_said_is_kept() {
    let slow = vec![
        ScriptedEvent::Text("it was a dark".into()),
        ScriptedEvent::DelayMs(60_000),
        ScriptedEvent::Text(" and stormy night".into()),
        ScriptedEvent::End("end_turn".into()),
    ];
    let front = Front::new(Access::Loopback, vec![say("hello"), slow, say("gladly")]).await;
    front.world.done(&front.world.user("hi")).await;
    // Of a thread that sleeps there is nothing to cancel; its next response is not meant.
    assert_eq!(
        front.post(&format!("{HERE}/cancel"), json!({})).await,
        (202, json!({"thread_id": "th-1", "head": 3}))
    );
    let started = std::time::Instant::now();
    let (world, story) = (front.world.clone(), front.world.user("tell me a story"));
    let running = tokio::spawn(async move { world.deliver(&[story]).await });
    tokio::time::sleep(std::time::Duration::from_millis(1_500)).await;
    assert!(!running.is_finished(), "an old request stopped it");
    assert_eq!(front.post(&format!("{HERE}/cancel"), json!({})).await.0, 202);
    assert_eq!(running.await.unwrap(), Vec::<String>::new());
    assert!(started.elapsed() < std::time::Duration::from_secs(20));
    assert_eq!(front.world.story().await[2..], ["user: tell me a story", "assistant: it was a dark"]);
    let texts = front.world.output.texts();
    assert!(texts.iter().any(|text| text == "it was a dark") && texts.last().unwrap().starts_with("Stopped"));
    front.world.done(&front.world.user("go on")).await;
    assert_eq!(front.world.story().await.last().unwrap(), "assistant: gladly");
    assert_eq!(front.post("/threads/none/cancel", json!({})).await.0, 404);
}

#[tokio::test]
async fn f65_a_pending_call_is_settled_by_hand_and_its_late_result_is_a_note() {
    let call = vec![ScriptedEvent::call("", "echo", "{}"), ScriptedEvent::End("tool_use".into())];
    let front = Front::new(Access::Loopback, vec![call, say("then not")]).await;
    front.world.done(&front.world.user("go")).await;
    let call = front.world.pending().await.remove(0);
    let (_, pending) = front.get(&format!("{HERE}/pending")).await;
    let shown =
        json!([{"call_id": call, "seq": 2, "name": "echo", "parked": false, "since_ms": world::NOW_MS}]);
    assert_eq!(pending["pending"], shown);
    let path = format!("{HERE}/pending/{call}/settle");
    assert_eq!(front.post(&path, json!({"reason": "x".repeat(3_000)})).await.0, 400);
    assert_eq!(front.post(&format!("{HERE}/pending/c-none/settle"), json!({})).await.0, 404);
    assert_eq!(front.post(&path, json!({"reason": "the server is gone"})).await.0, 202);
    front.work().await;
    front.world.done(&front.world.result(&call, "late")).await;
    let story = front.world.story().await;
    assert_eq!(story[2..4], ["result: Error: the server is gone", "assistant: then not"]);
    assert!(story[4].starts_with("user: [late result of echo"), "{story:?}");
    assert_eq!(front.post(&path, json!({})).await.0, 404);
}

#[tokio::test]
async fn i6_a_pending_call_is_sent_again_by_hand_under_its_id_and_only_by_a_slice() {
    let call = vec![
        ScriptedEvent::call("a", "echo", "{}"),
        ScriptedEvent::call("b", "other", "{}"),
        ScriptedEvent::End("tool_use".into()),
    ];
    let front = Front::new(Access::Loopback, vec![call, say("done")]).await;
    front.world.done(&front.world.user("go")).await;
    let calls = front.world.pending().await;
    let path = |call: &CallId| format!("{HERE}/calls/{call}/resend");
    assert_eq!(front.post(&format!("{HERE}/calls/c-none/resend"), json!({})).await.0, 404);
    let (status, one) = front.post(&path(&calls[0]), json!({})).await;
    let (_, two) = front.post(&path(&calls[0]), json!({})).await;
    assert_eq!((status, &one["thread_id"]), (202, &json!("th-1")));
    assert_ne!(one["dedup_id"], two["dedup_id"], "each request is one of its own");
    assert_eq!(front.world.tools.calls().len(), 2, "the request itself sends nothing");
    front.work().await;
    let sent = |call: &CallId| front.world.tools.calls().iter().filter(|sent| *sent == call).count();
    assert_eq!((sent(&calls[0]), sent(&calls[1])), (3, 1));
    assert_eq!(front.world.story().await.len(), 3, "nothing is added to the history");

    // One whose result is in, and one that is settled when the message comes: nothing is sent.
    front.world.done(&front.world.result(&calls[0], "A")).await;
    assert_eq!(front.post(&path(&calls[0]), json!({})).await.0, 409);
    assert_eq!(front.post(&path(&calls[1]), json!({})).await.0, 202);
    front.world.done(&front.world.result(&calls[1], "B")).await;
    front.work().await;
    assert_eq!((sent(&calls[0]), sent(&calls[1])), (3, 1));
    assert_eq!(front.world.story().await[3..], ["result: A", "result: B", "assistant: done"]);
}

#[tokio::test]
async fn i4_a_resend_that_died_behind_its_commit_is_resumed() {
    let call = vec![ScriptedEvent::call("a", "echo", "{}"), ScriptedEvent::End("tool_use".into())];
    let front = Front::new(Access::Loopback, vec![call, say("done")]).await;
    front.world.done(&front.world.user("go")).await;
    let call = front.world.pending().await.remove(0);
    let resend = dormouse::message::Resend { id: call.clone() };
    let message = InputMessage::plain(ThreadId::from(world::THREAD), InputContent::Resend(resend));
    let delivery = front.world.message(&message);
    front.world.store.fail_commits([dormouse::store::memory::CommitFault::AnswerLost]);
    let _ = front.world.deliver(std::slice::from_ref(&delivery)).await;
    front.world.done(&delivery.again()).await;
    assert!(front.world.tools.calls().len() >= 2);
    assert!(front.world.tools.calls().iter().all(|sent| *sent == call));
}

#[tokio::test]
async fn the_configuration_opens_nothing_to_others_without_tokens() {
    use dormouse::assembly::{Reach, access};
    use dormouse::config::{HttpAuth, HttpConfig};
    let with = async |auth, tokens_env: Option<&str>, reach| {
        let http = HttpConfig { auth, tokens_env: tokens_env.map(str::to_owned), ..HttpConfig::default() };
        let config = Config { http, ..Config::default() };
        let access = access(&config, &aws_config::SdkConfig::builder().build(), reach).await;
        access.map_err(|e| e.to_string())
    };
    assert!(matches!(with(None, None, Reach::Loopback).await, Ok(Access::Loopback)));
    assert!(matches!(with(None, None, Reach::Network).await, Ok(Access::Closed)));
    let error = with(Some(HttpAuth::None), None, Reach::Network).await.err().unwrap();
    assert!(error.contains("http.auth"), "{error}");
    for reach in [Reach::Loopback, Reach::Network] {
        let error = with(Some(HttpAuth::Bearer), None, reach).await.err().unwrap();
        assert!(error.contains("http.tokens_secret"), "{error}");
        // Any variable that is set but holds no tokens.
        let error = with(Some(HttpAuth::Bearer), Some("CARGO_MANIFEST_DIR"), reach).await.err().unwrap();
        assert!(error.contains("http.tokens_env") && !error.contains("/"), "{error}");
    }
}

#[tokio::test]
async fn a_thread_is_rewound_forked_and_closed_by_its_owner_alone() {
    let front = Front::new(bearer(), vec![say("one"), say("two"), say("deux")]).await;
    let (ann, bob) = (front.of(ANN), front.of(BOB));
    for text in ["1", "2"] {
        ann.post("/threads/t-1/messages", json!({"text": text})).await;
        ann.work().await;
    }
    let last = json!({"target": "last_prompt", "preview": true});
    for path in ["rewind", "fork", "close", "compact"] {
        let body = match path {
            "fork" => json!({"thread_id": "t-9"}),
            "compact" => json!({}),
            _ => last.clone(),
        };
        assert_eq!(bob.post(&format!("/threads/t-1/{path}"), body).await.0, 404, "{path}");
    }
    let (status, seen) = ann.post("/threads/t-1/rewind", last).await;
    assert_eq!((status, &seen["turns"]), (200, &json!([{"turn": 1, "text": "2"}])), "{seen}");
    assert!(front.queued().is_empty(), "a preview queues nothing");
    let edit = json!({"target": {"turn": 1}, "seen": seen["seen"], "then": {"say": [{"type": "text", "text": "zwei"}]}});
    assert_eq!(ann.post("/threads/t-1/rewind", edit.clone()).await.0, 202);
    ann.work().await;
    let (_, thread) = ann.get("/threads/t-1").await;
    let ids: Vec<&str> =
        thread["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["i0-1", "i0-2", "i1-1", "i1-2"], "the whole conversation, over its logs");
    assert_eq!(thread["items"][3]["item"]["text"], "deux");
    let (_, page) = ann.get("/threads/t-1?limit=1&after=2").await;
    assert_eq!((&page["items"][0]["id"], &page["next"]), (&json!("i1-1"), &json!(3)));
    let (status, why) = ann.post("/threads/t-1/rewind", edit).await;
    assert!(status == 409 && why["error"].as_str().unwrap().contains("look again"), "{why}");
    for (path, body, status) in [
        ("rewind", json!({"target": {"turn": 7}}), 409),
        ("rewind", json!({"target": "yesterday"}), 400),
        ("rewind", json!({"target": "last_prompt", "then": {"say": [{"type": "text", "text": " "}]}}), 400),
        ("fork", json!({"thread_id": "t-1"}), 409),
        ("fork", json!({"thread_id": "t-2", "through": 7}), 409),
        ("compact", json!({"focus": " "}), 400),
        ("compact", json!({"focus": "x".repeat(2_001)}), 400),
        ("compact", json!({"model": "x"}), 400),
    ] {
        assert_eq!(ann.post(&format!("/threads/t-1/{path}"), body.clone()).await.0, status, "{path} {body}");
    }
    assert_eq!(ann.post("/threads/t-1/fork", json!({"thread_id": "t-2", "through": 0})).await.0, 202);
    ann.work().await;
    let (_, fork) = ann.get("/threads/t-2").await;
    assert_eq!((fork["owner"].as_str(), fork["items"].as_array().unwrap().len()), (Some("ann"), 2), "{fork}");
    assert_eq!(bob.get("/threads/t-2").await.0, 404);
    assert_eq!(ann.post("/threads/t-1/compact", json!({"focus": "names"})).await.0, 202);
    let wanted = Compact { manual: true, focus: Some("names".to_owned()) };
    let queued = ann.queued();
    assert_eq!(queued[0].0.content, InputContent::Compact(wanted));
    assert_eq!(ann.post("/threads/t-1/close", json!({})).await.0, 202);
    ann.work().await;
    assert_eq!(ann.post("/threads/t-1/compact", json!({})).await.0, 409);
    assert_eq!(ann.get("/threads/t-1").await.1["closed"], true);
    assert_eq!(ann.post("/threads/t-1/rewind", json!({"target": "last_prompt"})).await.0, 409);
}

#[tokio::test]
async fn a_thread_is_exported_and_imported_by_its_owner_alone() {
    let front = Front::new(bearer(), vec![say("one"), say("two")]).await;
    let (ann, bob) = (front.of(ANN), front.of(BOB));
    ann.post("/threads/t-1/messages", json!({"text": "1"})).await;
    ann.work().await;
    assert_eq!(bob.get("/threads/t-1/export").await.0, 404);
    let (status, document) = ann.get("/threads/t-1/export").await;
    assert_eq!((status, document["items"].as_array().unwrap().len()), (200, 2), "{document}");
    assert_eq!(ann.get("/threads/t-1/export?epoch=3").await.0, 404);
    assert_eq!(ann.post("/threads/t-1/import", document.clone()).await.0, 409, "it is there already");
    assert_eq!(bob.post("/threads/t-1/import", document.clone()).await.0, 404, "it is somebody else's");
    for wrong in [json!({}), json!({"dormouse_snapshot": 9}), json!([1])] {
        assert_eq!(bob.post("/threads/t-2/import", wrong.clone()).await.0, 400, "{wrong}");
    }
    assert_eq!(bob.post("/threads/t-2/import", document.clone()).await.0, 202);
    bob.work().await;
    let (_, thread) = bob.get("/threads/t-2").await;
    assert_eq!((&thread["owner"], &thread["items"][1]["item"]["text"]), (&json!("bob"), &json!("one")));
    assert_eq!(ann.get("/threads/t-2").await.0, 404);
    let (_, again) = bob.get("/threads/t-2/export").await;
    assert_eq!(again["items"][1]["item"], document["items"][1]["item"]);
    // What ann has said is what bob says now: nobody acts in another one's name.
    let users = |document: &Value| {
        document["items"].as_array().unwrap().iter().map(|item| item["user"].clone()).collect::<Vec<_>>()
    };
    assert!(users(&document).iter().any(|user| user == "ann"), "{document}");
    assert!(users(&again).iter().all(|user| user == "bob" || user.is_null()), "{again}");
    bob.post("/threads/t-2/messages", json!({"text": "2"})).await;
    bob.work().await;
    assert_eq!(bob.get("/threads/t-2").await.1["items"][3]["item"]["text"], "two");
}
