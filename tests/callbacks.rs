//! The callback endpoint over real HTTP: every row of the status table (`reference/rap.md` part 3), the tokens,
//! and the field cases that show at the endpoint.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "support/rap.rs"]
mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dormouse::config::{Config, ToolServerConfig};
use dormouse::http::{Access, HttpDeps, router};
use dormouse::message::{
    CallId, ContentPart, DedupId, Epoch, ImageData, InputContent, InputMessage, Seq, Synthetic, ThreadId,
    ToolResultInput,
};
use dormouse::rap::CallbackDeps;
use dormouse::rap::callback::{MAX_CALLBACK_BYTES, result_dedup};
use dormouse::store::memory::MemoryStore;
use dormouse::store::{
    Commit, Committed, ConversationStore, DedupLife, Expect, Meta, PendingCall, StateStore, Store,
    SubscriptionChange,
};
use serde_json::{Value, json};
use support::{Outbox, StoreDown, tokens};

const THREAD: &str = "th-1";
/// Dispatched, without a result.
const PENDING: &str = "c-pending";
/// Answered, its result parked.
const PARKED: &str = "c-parked";
/// Answered by the runtime, that result parked.
const STOOD_IN: &str = "c-stood-in";
/// Answered by its tool.
const ANSWERED: &str = "c-answered";
/// Settled by the runtime.
const INTERRUPTED: &str = "c-interrupted";
/// Answered, with an active subscription.
const SUBSCRIBED: &str = "c-subscribed";
/// Answered, its subscription ended.
const ENDED: &str = "c-ended";

struct World {
    url: String,
    store: MemoryStore,
    outbox: Arc<Outbox>,
    http: reqwest::Client,
    router: axum::Router,
}

impl World {
    async fn new() -> Self {
        let store = MemoryStore::new();
        seed(&store, THREAD, false).await;
        seed(&store, "th-closed", true).await;
        Self::over(Arc::new(store.clone()), store).await
    }

    async fn over(port: Arc<dyn Store>, store: MemoryStore) -> Self {
        let outbox = Arc::new(Outbox::default());
        let server =
            ToolServerConfig { url: "https://b.example/tools".into(), ..ToolServerConfig::default() };
        let config = Config { tool_servers: [("b".into(), server)].into(), ..Config::default() };
        let callback = CallbackDeps {
            store: port,
            sender: outbox.clone(),
            tokens: tokens("http://unused"),
            config: Arc::new(config),
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = router(HttpDeps { callback, access: Access::Closed, webhooks: Default::default() });
        let app = router.clone();
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { url, store, outbox, http: reqwest::Client::new(), router }
    }

    /// POSTs raw bytes under a token, without a content type.
    async fn raw(&self, token: &str, body: impl Into<reqwest::Body>) -> (u16, Value) {
        let response = self.http.post(format!("{}/rap/{token}", self.url)).body(body).send().await.unwrap();
        let status = response.status().as_u16();
        (status, response.json().await.expect("every answer is JSON"))
    }

    /// POSTs a callback about `call` under its own token.
    async fn post(&self, call: &str, body: Value) -> u16 {
        self.post_to(THREAD, call, body).await
    }

    async fn post_to(&self, thread: &str, call: &str, body: Value) -> u16 {
        self.raw(&token(thread, call), body.to_string()).await.0
    }

    /// What was queued since the last look, where exactly one message is expected.
    fn one(&self) -> (InputMessage, DedupId) {
        let mut sent = self.outbox.take();
        assert_eq!(sent.len(), 1, "{sent:?}");
        sent.remove(0)
    }

    fn nothing(&self) {
        assert_eq!(self.outbox.take(), vec![]);
    }
}

async fn seed(store: &MemoryStore, thread: &str, closed: bool) {
    let thread = ThreadId::from(thread);
    let pending = |call: &str, parked| PendingCall {
        call: CallId::from(call),
        seq: Seq(1),
        name: "watch_build".into(),
        passive: false,
        synchronous: false,
        server: Some("b".into()),
        hold: None,
        terms: Default::default(),
        parked,
        cause: vec![],
        user: None,
        extra: serde_json::Map::new(),
    };
    let mut meta = Meta::new_root(thread.clone(), "default", None, 0);
    meta.pending = vec![pending(PENDING, false), pending(PARKED, true), pending(STOOD_IN, true)];
    meta.closed = closed;
    meta.token = "seed".into();
    let commit = Commit {
        dedup: [PARKED, ANSWERED, SUBSCRIBED, ENDED]
            .map(|call| (result_dedup(&thread, &CallId::from(call)), DedupLife::Forever))
            .to_vec(),
        subscriptions: vec![
            SubscriptionChange::Start(CallId::from(SUBSCRIBED)),
            SubscriptionChange::End(CallId::from(ENDED)),
        ],
        ..Commit::new(Expect::Absent, meta, 0)
    };
    assert_eq!(store.commit(commit).await.unwrap(), Committed::Done);
}

fn token(thread: &str, call: &str) -> String {
    tokens("").token(&ThreadId::from(thread), &CallId::from(call))
}

/// A call id that `thread` would mint at a position it has not reached.
fn unknown() -> String {
    CallId::mint(&ThreadId::from(THREAD), Epoch(0), Seq(99)).as_str().to_owned()
}

fn result(call: &str) -> Value {
    json!({"type": "tool_result", "group_id": THREAD, "id": call, "text": "ok"})
}

fn event(call: &str) -> Value {
    json!({"type": "subscription_event", "group_id": THREAD, "tool_call_id": call, "text": "green"})
}

fn oauth(call: &str) -> Value {
    json!({"type": "oauth", "group_id": THREAD, "id": call, "auth_url": "https://idp.example/authorize?x=1"})
}

fn choice(call: &str) -> Value {
    json!({"type": "user_choice", "group_id": THREAD, "id": call, "prompt": "Drop?",
           "choices": ["Drop", "Keep"], "default": 1, "response_url": "https://b.example/answer"})
}

fn view() -> Value {
    json!({"type": "view_update", "group_id": THREAD, "view_type": "diff", "content": {"n": 1.0}})
}

fn with(mut body: Value, changes: Value) -> Value {
    for (name, value) in changes.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn without(mut body: Value, member: &str) -> Value {
    body.as_object_mut().unwrap().remove(member);
    body
}

fn tool_result(message: &InputMessage) -> &ToolResultInput {
    match &message.content {
        InputContent::ToolResult(result) => result,
        other => panic!("{other:?}"),
    }
}

fn result_text(message: &InputMessage) -> String {
    ContentPart::join_text(&tool_result(message).content)
}

// The token: row 1.

#[tokio::test]
async fn rap_08_f63_no_forged_or_foreign_token_is_401_and_changes_nothing() {
    let world = World::new().await;
    let good = token(THREAD, PENDING);
    let body = || result(PENDING).to_string();
    let mut forged = good.clone();
    let last = if forged.pop() == Some('A') { 'E' } else { 'A' };
    forged.push(last);
    let long = "x".repeat(5_000);
    for bad in ["x", "v1.a.b.c.d", "%FF", "%00", forged.as_str(), &good[..good.len() - 5], &long] {
        assert_eq!(world.raw(bad, body()).await.0, 401, "{bad}");
    }
    // The token of another call, and of another thread, for a body that is valid in itself.
    assert_eq!(world.raw(&token(THREAD, ANSWERED), body()).await.0, 401);
    assert_eq!(world.raw(&token("th-2", PENDING), body()).await.0, 401);
    assert_eq!(world.raw(&good, with(result(PENDING), json!({"group_id": "th-2"})).to_string()).await.0, 401);
    let foreign_event = with(event(SUBSCRIBED), json!({"group_id": THREAD}));
    assert_eq!(world.raw(&good, foreign_event.to_string()).await.0, 401);
    // The token is checked first: nothing is said about a body that is not JSON.
    assert_eq!(world.raw("x", "not json").await.0, 401);
    assert_eq!(world.raw("x", vec![b' '; MAX_CALLBACK_BYTES + 1]).await.0, 401);
    world.nothing();
    assert_eq!(world.raw(&good, body()).await.0, 200);
}

// Bodies: rows 2 to 4.

#[tokio::test]
async fn rap_12_a_body_that_cannot_be_read_is_400_and_changes_nothing() {
    let world = World::new().await;
    let raw = async |body: &str| world.raw(&token(THREAD, PENDING), body.to_owned()).await.0;
    for body in ["", "not json", "[]", "null", "\"text\"", "{", "7"] {
        assert_eq!(raw(body).await, 400, "{body}");
    }
    let bodies = [
        without(result(PENDING), "type"),
        with(result(PENDING), json!({"type": "smell"})),
        with(result(PENDING), json!({"type": 1})),
        without(result(PENDING), "group_id"),
        with(result(PENDING), json!({"group_id": 7})),
        without(result(PENDING), "id"),
        with(result(PENDING), json!({"id": null})),
        with(result(PENDING), json!({"id": 7})),
        without(event(PENDING), "tool_call_id"),
        with(without(event(PENDING), "tool_call_id"), json!({"id": PENDING})),
        without(oauth(PENDING), "id"),
        without(choice(PENDING), "id"),
        without(event(PENDING), "text"),
        with(event(PENDING), json!({"final": "yes"})),
        with(event(PENDING), json!({"associative": 1})),
        without(view(), "view_type"),
        with(view(), json!({"view_type": ""})),
        with(view(), json!({"content": []})),
        without(view(), "content"),
    ];
    for body in bodies {
        assert_eq!(raw(&body.to_string()).await, 400, "{body}");
    }
    world.nothing();
}

#[tokio::test]
async fn rap_12_an_answer_that_cannot_be_used_is_400_and_settles_its_call() {
    let world = World::new().await;
    let cases = [
        (without(result(PENDING), "text"), "text"),
        (with(result(PENDING), json!({"text": null, "content": []})), "text"),
        (with(result(PENDING), json!({"text": {"a": 1}})), "text"),
        (with(result(PENDING), json!({"subscription": "yes"})), "subscription"),
        (with(result(PENDING), json!({"call_id": 7})), "call_id"),
        (with(oauth(PENDING), json!({"auth_url": "http://idp.example/"})), "auth_url"),
        (with(oauth(PENDING), json!({"auth_url": "javascript:alert(1)"})), "auth_url"),
        (with(oauth(PENDING), json!({"auth_url": format!("https://x/{}", "a".repeat(5_000))})), "auth_url"),
        (without(oauth(PENDING), "auth_url"), "auth_url"),
        (with(choice(PENDING), json!({"choices": []})), "choices"),
        (with(choice(PENDING), json!({"choices": ["a", 7]})), "choices"),
        (with(choice(PENDING), json!({"choices": ["a".repeat(70_000)], "default": 0})), "choices"),
        (without(choice(PENDING), "choices"), "choices"),
        (without(choice(PENDING), "prompt"), "prompt"),
        (with(choice(PENDING), json!({"default": 2})), "default"),
        (with(choice(PENDING), json!({"default": -1})), "default"),
        (with(choice(PENDING), json!({"default": "0"})), "default"),
        (with(choice(PENDING), json!({"response_url": "ftp://b.example/"})), "response_url"),
        (with(choice(PENDING), json!({"response_url": "https://evil.example/"})), "response_url"),
        (with(choice(PENDING), json!({"response_url": "http://b.example/"})), "response_url"),
        (without(choice(PENDING), "response_url"), "response_url"),
    ];
    for (body, field) in cases {
        let (status, answer) = world.raw(&token(THREAD, PENDING), body.to_string()).await;
        assert_eq!(status, 400, "{body}");
        assert!(answer["error"].as_str().unwrap().contains(field), "{answer} for {body}");
        let (message, dedup) = world.one();
        let text = result_text(&message);
        assert!(
            text.starts_with("Error: ") && text.contains("watch_build") && text.contains(field),
            "{text}"
        );
        assert_eq!(tool_result(&message).id.as_str(), PENDING);
        assert_eq!(dedup, result_dedup(&ThreadId::from(THREAD), &CallId::from(PENDING)));
    }
    // A call that has its result is not settled again.
    for call in [PARKED, ANSWERED, INTERRUPTED] {
        assert_eq!(world.post(call, without(result(call), "text")).await, 400);
    }
    world.nothing();
}

#[tokio::test]
async fn rap_11_d18_a_body_above_the_cap_is_413_and_settles_its_call() {
    let world = World::new().await;
    let of = |bytes: usize| {
        let frame = result(PENDING).to_string().len() - "ok".len();
        with(result(PENDING), json!({"text": "a".repeat(bytes - frame)})).to_string()
    };
    assert_eq!(world.raw(&token(THREAD, PENDING), of(MAX_CALLBACK_BYTES)).await.0, 200);
    assert_eq!(result_text(&world.one().0).len(), MAX_CALLBACK_BYTES - result(PENDING).to_string().len() + 2);
    for bytes in [MAX_CALLBACK_BYTES + 1, 10 * 1024 * 1024] {
        let (status, answer) = world.raw(&token(THREAD, PENDING), of(bytes)).await;
        assert_eq!((status, answer["error"].as_str().unwrap().contains("4 MiB")), (413, true));
        assert!(result_text(&world.one().0).starts_with("Error: "));
    }
    assert_eq!(world.raw(&token(THREAD, ANSWERED), of(MAX_CALLBACK_BYTES + 1)).await.0, 413);
    assert_eq!(world.raw(&token("th-none", PENDING), of(MAX_CALLBACK_BYTES + 1)).await.0, 410);
    world.nothing();
}

#[tokio::test]
async fn d18_a_client_that_reads_no_answer_before_it_has_sent_everything_still_gets_the_413() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let world = World::new().await;
    let bytes = 10 * 1024 * 1024;
    let mut stream =
        tokio::net::TcpStream::connect(world.url.strip_prefix("http://").unwrap()).await.unwrap();
    let head = format!(
        "POST /rap/{} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {bytes}\r\n\r\n",
        token(THREAD, PENDING)
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&vec![b' '; bytes]).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}

// Results: rows 5 to 7 and 11.

#[tokio::test]
async fn rap_13_a_result_of_a_pending_call_is_queued_under_the_id_of_its_kind_thread_and_call() {
    let world = World::new().await;
    let body = with(
        result(PENDING),
        json!({"call_id": "p-1", "subscription": true, "later": {"x": 1},
               "display_as": [{"type": "hologram", "content": 1.0}, {"type": "text", "content": "x"}]}),
    );
    assert_eq!(world.post(PENDING, body).await, 200);
    let (message, dedup) = world.one();
    assert_eq!(message.group_id.as_str(), THREAD);
    assert_eq!(tool_result(&message).id.as_str(), PENDING);
    assert_eq!(tool_result(&message).call_id.as_deref(), Some("p-1"));
    assert_eq!(result_text(&message), "ok");
    assert!(message.subscription);
    assert_eq!(message.synthetic, None);
    let display = message.display_as.unwrap();
    assert_eq!(
        display.get(),
        r#"[{"type":"hologram","content":1.0},{"type":"text","content":"x"}]"#,
        "as received"
    );
    assert_eq!(dedup, DedupId::derive("rap-tool-result", &[THREAD, PENDING]));
}

#[tokio::test]
async fn rap_35_display_segments_that_are_no_array_cost_nothing_but_themselves() {
    let world = World::new().await;
    for display in [json!({}), json!("x"), json!(null), json!(7)] {
        assert_eq!(world.post(PENDING, with(result(PENDING), json!({"display_as": display}))).await, 200);
        assert_eq!(world.one().0.display_as, None);
    }
}

#[tokio::test]
async fn rap_33_content_beats_text_and_what_cannot_be_shown_is_skipped() {
    let world = World::new().await;
    let png = json!({"type": "image", "data": "iVBORw0KGgo=", "mediaType": "image/png"});
    let image = ContentPart::Image {
        data: ImageData::Base64("iVBORw0KGgo=".into()),
        media_type: Some("image/png".into()),
    };
    let hologram = json!({"type": "hologram", "data": 1});
    let a = json!({"type": "text", "text": "a"});
    let cases = [
        (json!({"content": [a]}), vec![ContentPart::text("a")]),
        (json!({"content": []}), vec![ContentPart::text("ok")]),
        (json!({"content": null}), vec![ContentPart::text("ok")]),
        (json!({"content": "a"}), vec![ContentPart::text("ok")]),
        (json!({"content": [png]}), vec![image.clone()]),
        (json!({"content": [png], "text": null}), vec![image.clone()]),
        (json!({"content": [png, hologram, a, 7]}), vec![image, ContentPart::text("a")]),
        (json!({"content": [hologram]}), vec![ContentPart::text("ok")]),
        (json!({"text": ""}), vec![ContentPart::text("")]),
    ];
    for (change, expected) in cases {
        assert_eq!(world.post(PENDING, with(result(PENDING), change.clone())).await, 200, "{change}");
        assert_eq!(tool_result(&world.one().0).content, expected, "{change}");
    }
    for content in [json!([hologram]), json!([{"type": "image", "data": "not base64!"}])] {
        let body = with(result(PENDING), json!({"content": content, "text": null}));
        assert_eq!(world.post(PENDING, body).await, 200);
        assert!(result_text(&world.one().0).contains("cannot be"), "a note stands in for it");
    }
}

#[tokio::test]
async fn f65_a_result_in_whose_place_the_runtime_has_answered_is_queued_also_while_that_is_parked() {
    let world = World::new().await;
    assert_eq!(world.post(STOOD_IN, result(STOOD_IN)).await, 200);
    assert_eq!(tool_result(&world.one().0).id.as_str(), STOOD_IN);
}

#[tokio::test]
async fn rap_10_14_f05_f64_a_result_of_an_answered_call_is_200_without_effect() {
    let world = World::new().await;
    for call in [ANSWERED, PARKED, SUBSCRIBED] {
        assert_eq!(world.post(call, result(call)).await, 200);
        assert_eq!(world.post(call, with(result(call), json!({"text": "Error: other"}))).await, 200);
    }
    world.nothing();
    // Two deliveries before the slice has run: both are queued, and under one dedup id the first wins.
    assert_eq!(world.post(PENDING, with(result(PENDING), json!({"text": "Error: x"}))).await, 200);
    assert_eq!(world.post(PENDING, result(PENDING)).await, 200);
    let sent = world.outbox.take();
    assert_eq!(sent[0].1, sent[1].1);
}

#[tokio::test]
async fn rap_47_f65_a_result_of_an_interrupted_call_is_queued_for_the_slice_to_note() {
    let world = World::new().await;
    assert_eq!(world.post(INTERRUPTED, result(INTERRUPTED)).await, 200);
    assert_eq!(world.one().1, DedupId::derive("rap-tool-result", &[THREAD, INTERRUPTED]));
}

#[tokio::test]
async fn rap_09_17_d32_what_concerns_no_open_thread_or_no_call_is_410() {
    let world = World::new().await;
    for thread in ["th-closed", "th-none"] {
        let bodies = [result(PENDING), event(PENDING), oauth(PENDING), choice(PENDING), view()];
        for body in bodies.map(|body| with(body, json!({"group_id": thread}))) {
            assert_eq!(world.post_to(thread, PENDING, body.clone()).await, 410, "{body}");
        }
    }
    let unknown = unknown();
    for body in [result(&unknown), event(&unknown), oauth(&unknown), choice(&unknown)] {
        assert_eq!(world.post(&unknown, body.clone()).await, 410, "{body}");
    }
    world.nothing();
    assert!(world.store.meta(&ThreadId::from("th-none")).await.unwrap().is_none());
}

// Events: rows 8 and 9.

#[tokio::test]
async fn rap_16_events_are_queued_while_their_call_or_subscription_is_open() {
    let world = World::new().await;
    for call in [SUBSCRIBED, PENDING, PARKED] {
        let body = with(event(call), json!({"associative": true, "final": true}));
        assert_eq!(world.post(call, body).await, 200);
        let (message, _) = world.one();
        assert_eq!(result_text(&message), "green");
        let expected = Synthetic::SubscriptionEvent {
            tool_call_id: CallId::from(call),
            associative: true,
            r#final: true,
        };
        assert_eq!(message.synthetic, Some(expected));
    }
    let nulls = with(event(SUBSCRIBED), json!({"associative": null, "final": null, "later": 1}));
    assert_eq!(world.post(SUBSCRIBED, nulls).await, 200);
    let flags = |message: &InputMessage| match message.synthetic {
        Some(Synthetic::SubscriptionEvent { associative, r#final, .. }) => (associative, r#final),
        ref other => panic!("{other:?}"),
    };
    assert_eq!(flags(&world.one().0), (false, false));
    // Ended: servers do send one after a cancellation.
    assert_eq!(world.post(ENDED, event(ENDED)).await, 200);
    // Never subscribed.
    assert_eq!(world.post(ANSWERED, event(ANSWERED)).await, 410);
    assert_eq!(world.post(INTERRUPTED, event(INTERRUPTED)).await, 410);
    world.nothing();
}

#[tokio::test]
async fn d17_each_event_counts_unless_its_sender_names_it() {
    let world = World::new().await;
    let post = async |key: Option<&str>, call: &str| {
        let mut request = world.http.post(format!("{}/rap/{}", world.url, token(THREAD, call)));
        if let Some(key) = key {
            request = request.header("Idempotency-Key", key);
        }
        let status = request.body(event(call).to_string()).send().await.unwrap().status();
        assert_eq!(status, 200);
        let dedup = world.one().1;
        assert!(dedup.as_str().len() <= 128);
        dedup
    };
    assert_ne!(post(None, SUBSCRIBED).await, post(None, SUBSCRIBED).await);
    let named = post(Some("e-1"), SUBSCRIBED).await;
    assert_eq!(post(Some("e-1"), SUBSCRIBED).await, named);
    assert_ne!(post(Some("e-2"), SUBSCRIBED).await, named);
    assert_ne!(post(Some("e-1"), PENDING).await, named, "a key counts within its call");
    assert!(post(Some(&"k".repeat(4_000)), SUBSCRIBED).await.as_str().len() <= 128);
}

// Consent and choices: rows 5 and 11.

#[tokio::test]
async fn rap_43_44_only_a_pending_call_may_ask_the_user() {
    let world = World::new().await;
    assert_eq!(world.post(PENDING, with(oauth(PENDING), json!({"call_id": null}))).await, 200);
    let (message, dedup) = world.one();
    assert_eq!(dedup, DedupId::derive("rap-oauth", &[THREAD, PENDING]));
    let InputContent::OAuthRequired(asked) = message.content else { panic!("{message:?}") };
    assert_eq!((asked.id.as_str(), asked.auth_url.starts_with("https://idp.example/")), (PENDING, true));

    assert_eq!(world.post(PENDING, choice(PENDING)).await, 200);
    let (message, dedup) = world.one();
    assert_eq!(dedup, DedupId::derive("rap-user-choice", &[THREAD, PENDING]));
    let InputContent::UserChoiceRequired(asked) = message.content else { panic!("{message:?}") };
    assert_eq!((asked.choices.len(), asked.default, asked.prompt.as_str()), (2, 1, "Drop?"));

    // The published crate reads a missing default as 0.
    assert_eq!(world.post(PENDING, without(choice(PENDING), "default")).await, 200);
    let (message, _) = world.one();
    let InputContent::UserChoiceRequired(asked) = message.content else { panic!("{message:?}") };
    assert_eq!(asked.default, 0);

    for call in [PARKED, ANSWERED, INTERRUPTED, SUBSCRIBED] {
        assert_eq!(world.post(call, oauth(call)).await, 410);
        assert_eq!(world.post(call, choice(call)).await, 410);
    }
    world.nothing();
}

// Views: row 10.

#[tokio::test]
async fn rap_45_a_view_is_stored_as_received_also_after_the_result() {
    let world = World::new().await;
    let view_of = |content: &str| {
        format!(r#"{{"type":"view_update","group_id":"{THREAD}","view_type":"diff","content":{content}}}"#)
    };
    let raw = r#"{"n":1.0,"z":12345678901234567890123,"a":"x"}"#;
    assert_eq!(world.raw(&token(THREAD, PENDING), view_of("{}")).await.0, 200);
    assert_eq!(world.raw(&token(THREAD, ANSWERED), view_of(raw)).await.0, 200);
    let views = world.store.views(&ThreadId::from(THREAD)).await.unwrap();
    assert_eq!(views.len(), 1);
    assert_eq!((views[0].0.as_str(), views[0].1.get()), ("diff", raw));
    world.nothing();
}

// Ports out of order: row 12.

#[tokio::test]
async fn rap_11_18_a_store_or_queue_out_of_order_is_503_and_has_no_effect() {
    let world = World::new().await;
    world.outbox.down.store(true, Ordering::SeqCst);
    for (call, body) in [
        (PENDING, result(PENDING)),
        (SUBSCRIBED, event(SUBSCRIBED)),
        (PENDING, oauth(PENDING)),
        (PENDING, choice(PENDING)),
        (PENDING, without(result(PENDING), "text")),
    ] {
        assert_eq!(world.post(call, body.clone()).await, 503, "{body}");
    }
    assert_eq!(world.raw(&token(THREAD, PENDING), vec![b' '; MAX_CALLBACK_BYTES + 1]).await.0, 503);
    world.outbox.down.store(false, Ordering::SeqCst);
    assert_eq!(world.post(PENDING, result(PENDING)).await, 200, "the server's retry goes through");

    let world = World::over(Arc::new(StoreDown), MemoryStore::new()).await;
    for body in [result(PENDING), event(PENDING), oauth(PENDING), choice(PENDING), view()] {
        let response = world
            .http
            .post(format!("{}/rap/{}", world.url, token(THREAD, PENDING)))
            .body(body.to_string())
            .send()
            .await
            .unwrap();
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()["retry-after"], "1");
    }
    world.nothing();
}

// Odd text, at the endpoint and through the queue.

#[tokio::test]
async fn rap_01_f31_f33_odd_text_arrives_mended_where_it_must_and_unchanged_where_it_can() {
    let world = World::new().await;
    let raw = |text: &str| {
        format!(r#"{{"type":"tool_result","group_id":"{THREAD}","id":"{PENDING}","text":"{text}"}}"#)
    };
    let cases = [
        (raw(r"a\ud83dz").into_bytes(), "a\u{FFFD}z"),
        (raw(r"x\u0000y").into_bytes(), "x\u{0}y"),
        (raw(r"x\\u0000y").into_bytes(), "x\\u0000y"),
        (raw("\u{FFFE}\u{FFFF}").into_bytes(), "\u{FFFE}\u{FFFF}"),
        (raw(r"\ud83d\ude00").into_bytes(), "😀"),
        ([b"\xEF\xBB\xBF".as_slice(), raw("x").as_bytes()].concat(), "x"),
    ];
    for (body, expected) in cases {
        assert_eq!(world.raw(&token(THREAD, PENDING), body).await.0, 200, "{expected:?}");
        assert_eq!(result_text(&world.one().0), expected);
    }
    let mut invalid = raw("x").into_bytes();
    let at = invalid.iter().rposition(|b| *b == b'x').unwrap();
    invalid[at] = 0xFF;
    assert_eq!(world.raw(&token(THREAD, PENDING), invalid).await.0, 200);
    assert_eq!(result_text(&world.one().0), "\u{FFFD}");
}

#[tokio::test]
async fn ids_of_any_length_and_alphabet_are_told_apart() {
    let world = World::new().await;
    for thread in ["a/b?c#d", "größe 😀", &"t".repeat(128), &"t".repeat(129), ""] {
        for call in ["c/1", "ü", &"c".repeat(129)] {
            let body = with(result(call), json!({"group_id": thread}));
            assert_eq!(world.post_to(thread, call, body.clone()).await, 410, "a thread that is not there");
            assert_eq!(world.post_to(thread, "other", body).await, 401);
        }
    }
    world.nothing();
}

#[tokio::test]
async fn hostile_bodies_are_answered() {
    let world = World::new().await;
    let deep = format!(
        r#"{{"type":"tool_result","group_id":"{THREAD}","id":"{PENDING}","text":"ok","content":{}{},"display_as":{}{}}}"#,
        "[".repeat(100_000),
        "]".repeat(100_000),
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    assert_eq!(world.raw(&token(THREAD, PENDING), deep).await.0, 200);
    let (message, _) = world.one();
    assert_eq!((result_text(&message).as_str(), message.display_as), ("ok", None));
    let twice = format!(
        r#"{{"type":"tool_result","group_id":"{THREAD}","id":"other","id":"{PENDING}","text":"a","text":"b"}}"#
    );
    assert_eq!(world.raw(&token(THREAD, PENDING), twice).await.0, 200);
    assert_eq!(result_text(&world.one().0), "b", "the last of two equal members counts");
}

// The rest of the front.

#[tokio::test]
async fn the_same_router_answers_the_events_of_api_gateway() {
    use lambda_http::tower::ServiceExt;

    let world = World::new().await;
    let body = result(PENDING).to_string();
    let encoded = data_encoding::BASE64.encode(body.as_bytes());
    for (body, is_base64) in [(&body, false), (&encoded, true)] {
        let path = format!("/rap/{}", token(THREAD, PENDING));
        let event = json!({
            "version": "2.0", "routeKey": "$default", "rawPath": path, "rawQueryString": "",
            "headers": {"host": "x.execute-api.eu-central-1.amazonaws.com", "content-type": "application/json"},
            "body": body, "isBase64Encoded": is_base64,
            "requestContext": {
                "accountId": "1", "apiId": "x", "domainName": "x", "domainPrefix": "x", "requestId": "r",
                "routeKey": "$default", "stage": "$default", "time": "", "timeEpoch": 0,
                "http": {"method": "POST", "path": path, "protocol": "HTTP/1.1", "sourceIp": "::1", "userAgent": ""},
            },
        });
        let request = lambda_http::request::from_str(&event.to_string()).unwrap();
        let response = world.router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(result_text(&world.one().0), "ok");
    }
}

#[tokio::test]
async fn the_front_answers_in_json_whatever_is_asked() {
    let world = World::new().await;
    let get = async |path: &str| {
        let response = world.http.get(format!("{}{path}", world.url)).send().await.unwrap();
        (response.status().as_u16(), response.json::<Value>().await.unwrap())
    };
    assert_eq!(get("/healthz").await, (200, json!({"status": "ok"})));
    assert_eq!(get("/nowhere").await.0, 404);
    let (status, body) = get(&format!("/rap/{}", token(THREAD, PENDING))).await;
    assert_eq!((status, body["error"].is_string()), (405, true));
    let response = world.http.post(format!("{}/rap/", world.url)).send().await.unwrap();
    assert_eq!(response.status(), 404);
    let (status, body) = world.raw(&token(THREAD, PENDING), result(PENDING).to_string()).await;
    assert_eq!((status, body), (200, json!({"status": "queued"})));
}
