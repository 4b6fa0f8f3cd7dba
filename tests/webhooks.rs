//! Webhooks: the address that an agent gets, and what a POST to it does, over real HTTP.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[cfg(feature = "local")]
#[path = "support/command.rs"]
mod command;
#[path = "support/rap.rs"]
mod peer;
#[path = "support/world.rs"]
mod world;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dormouse::config::Config;
use dormouse::http::{Access, HttpDeps, WebhookSecrets, router};
use dormouse::message::{CallId, DedupId, InputMessage, Synthetic, ThreadId};
use dormouse::model::scripted::{ScriptedEvent, ScriptedModel, prompts};
use dormouse::rap::CallbackDeps;
use dormouse::store::{StateStore, Store};
use dormouse::tools::{Registry, builtin};
use hmac::{Hmac, KeyInit, Mac};
use peer::{Outbox, StoreDown, tokens};
use reqwest::RequestBuilder;
use serde_json::{Value, json};
use sha2::Sha256;
use world::{Delivery, THREAD, World};

const SECRET: &str = "what-the-hub-signs-with";

/// A world whose agent has webhooks, and the front that takes their POSTs; what it queues waits in `outbox`.
struct Front {
    world: World,
    outbox: Arc<Outbox>,
    url: String,
    http: reqwest::Client,
}

impl Front {
    async fn new() -> Self {
        Self::with(ScriptedModel::from_fn(prompts::respond), None).await
    }

    /// `down`: a store for the front alone.
    async fn with(model: ScriptedModel, down: Option<Arc<dyn Store>>) -> Self {
        let mut world = World::with_builtins(model);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let store: Arc<dyn Store> = Arc::new(world.store.clone());
        let hooks = builtin::webhooks(tokens(&url), vec!["hub".into(), "lost".into()]);
        let echo = world.registry.get("echo").unwrap().clone();
        world.runtime.tools = Arc::new(Registry::new(builtin::all(&store).into_iter().chain([hooks, echo])));
        let outbox = Arc::new(Outbox::default());
        let callback = CallbackDeps {
            store: down.unwrap_or(store),
            sender: outbox.clone(),
            tokens: tokens(&url),
            config: Arc::new(Config::default()),
        };
        let webhooks =
            WebhookSecrets::default().with("hub", Some(SECRET.into()), None).with("lost", None, None);
        let app = router(HttpDeps { callback, access: Access::Closed, webhooks });
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { world, outbox, url, http: reqwest::Client::new() }
    }

    /// Lets the agent ask for a webhook, and returns what it is told.
    async fn told(&self, arguments: Value) -> String {
        self.world.done(&self.world.user(&format!("call receive_webhook {arguments}"))).await;
        let story = self.world.story().await;
        story.iter().rev().find_map(|line| line.strip_prefix("result: ")).unwrap().to_owned()
    }

    /// The address of a new webhook.
    async fn hook(&self, arguments: Value) -> String {
        let told = self.told(arguments).await;
        let url = told.lines().next().unwrap().to_owned();
        assert!(url.starts_with(&format!("{}/hooks/", self.url)), "{told}");
        url
    }

    fn to(&self, url: &str) -> RequestBuilder {
        self.http.post(url)
    }

    fn queued(&self) -> Vec<(InputMessage, DedupId)> {
        self.outbox.take()
    }

    /// Hands what was queued to the worker.
    async fn work(&self) {
        for (message, dedup) in self.queued() {
            let delivery = Delivery { dedup: dedup.as_str().to_owned(), ..self.world.message(&message) };
            self.world.done(&delivery).await;
        }
    }

    async fn last(&self) -> String {
        self.world.story().await.into_iter().rfind(|line| line.starts_with("event: ")).unwrap_or_default()
    }
}

async fn post(request: RequestBuilder) -> (u16, Value) {
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.json().await.expect("every answer is JSON"))
}

fn signature(body: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
    mac.update(body.as_bytes());
    data_encoding::HEXLOWER.encode(&mac.finalize().into_bytes())
}

#[tokio::test]
async fn a_post_wakes_the_agent_and_its_body_is_the_event() {
    let front = Front::new().await;
    let url = front.hook(json!({"description": "the build"})).await;
    assert_eq!(post(front.to(&url).body(r#"{"state":"green"}"#)).await, (200, json!({"status": "queued"})));
    front.work().await;
    let story = front.world.story().await;
    assert_eq!(story[story.len() - 2], r#"event: {"state":"green"}"#);
    assert!(story[story.len() - 1].ends_with(r#"{"state":"green"}"#), "the model has seen it: {story:?}");
    // Any content type, no UTF-8, nothing at all.
    for (body, text) in [
        (b"plain".to_vec(), "event: plain"),
        (b"a\xff\xfeb\0".to_vec(), "event: a\u{FFFD}\u{FFFD}b\0"),
        (b" \n".to_vec(), "event: (the webhook was called with an empty body)"),
        (Vec::new(), "event: (the webhook was called with an empty body)"),
    ] {
        assert_eq!(post(front.to(&url).header("content-type", "image/odd").body(body)).await.0, 200);
        front.work().await;
        assert_eq!(front.last().await, text);
    }
}

#[tokio::test]
async fn d33_a_post_to_a_webhook_with_a_secret_must_be_signed_with_it() {
    let front = Front::new().await;
    let url = front.hook(json!({"secret": "hub"})).await;
    let body = r#"{"action":"opened"}"#;
    let signed = |header: &str, value: &str| front.to(&url).header(header, value).body(body);
    let good = signature(body);
    for bad in [
        front.to(&url).body(body),
        signed("x-hub-signature-256", &format!("sha256={}", signature("another body"))),
        signed("x-hub-signature-256", "sha256="),
        signed("x-hub-signature", &good),
        signed("x-hub-signature-256", &format!("sha256={good}")).body("another body"),
    ] {
        assert_eq!(post(bad).await, (401, json!({"error": "the signature is missing or wrong"})));
    }
    assert_eq!(front.queued(), vec![]);
    assert_eq!(post(signed("x-hub-signature-256", &format!("sha256={good}"))).await.0, 200);
    assert_eq!(post(signed("x-signature-256", &good)).await.0, 200);
    assert_eq!(front.queued().len(), 2);
    // A secret that is configured and cannot be read lets nothing in, signed or not, and the service tries again.
    let url = front.hook(json!({"secret": "lost"})).await;
    let (status, answer) = post(front.to(&url).header("x-signature-256", &good).body(body)).await;
    assert_eq!((status, answer), (503, json!({"error": "the signature cannot be checked now"})));
    assert_eq!(front.queued(), vec![]);
    let told = front.told(json!({"secret": "hunter2"})).await;
    assert!(told.starts_with("Error: there is no secret of that name; configured: hub, lost."), "{told}");
    assert!(!told.contains("hunter2"), "it may be the secret itself: {told}");
}

#[tokio::test]
async fn d31_tokens_of_callbacks_and_of_webhooks_do_not_open_each_others_doors() {
    let front = Front::new().await;
    let url = front.hook(json!({})).await;
    let token = url.rsplit('/').next().unwrap();
    let subscribed = subscription(&front).await;
    let event = json!({"type": "subscription_event", "group_id": THREAD, "tool_call_id": subscribed.as_str(),
        "text": "x"});
    let rap = |token: &str| format!("{}/rap/{token}", front.url);
    assert_eq!(post(front.to(&rap(token)).json(&event)).await.0, 401);
    let callback = tokens(&front.url).token(&ThreadId::from(THREAD), &subscribed);
    assert_eq!(post(front.to(&rap(&callback)).json(&event)).await.0, 200, "at its own door it is good");
    assert_eq!(front.queued().len(), 1);
    let hooks = |token: &str| format!("{}/hooks/{token}", front.url);
    for bad in [callback.as_str(), &token[..token.len() - 1], &token.replacen("hook1", "v1", 1), "x", "%ff"] {
        assert_eq!(
            post(front.to(&hooks(bad)).body("x")).await,
            (401, json!({"error": "unauthorised"})),
            "{bad}"
        );
    }
    assert_eq!(front.queued(), vec![]);
    let response = front.http.get(&url).send().await.unwrap();
    assert_eq!((response.status().as_u16(), &response.headers()["allow"]), (405, &"POST".parse().unwrap()));
}

async fn subscription(front: &Front) -> CallId {
    front.world.store.get_active_subscriptions(&ThreadId::from(THREAD)).await.unwrap().pop().unwrap()
}

#[tokio::test]
async fn an_ended_subscription_is_gone_and_what_was_queued_before_is_dropped() {
    let front = Front::new().await;
    let url = front.hook(json!({})).await;
    let call = subscription(&front).await;
    assert_eq!(post(front.to(&url).body("the last")).await.0, 200);
    let ends = format!("call cancel_subscription {}", json!({"tool_call_id": call.as_str()}));
    front.world.done(&front.world.user(&ends)).await;
    assert_eq!(post(front.to(&url).body("too late")).await, (410, json!({"error": "gone"})));
    front.work().await;
    assert_eq!(front.last().await, "", "{:?}", front.world.story().await);
    // Of a thread that nobody knows, signed by us all the same.
    let hook = dormouse::rap::Hook {
        thread: ThreadId::from("nowhere"),
        call,
        options: dormouse::rap::HookOptions { secret: None, associative: true },
    };
    assert_eq!(post(front.to(&tokens(&front.url).hook_url(&hook)).body("x")).await.0, 410);
    assert_eq!(front.queued(), vec![]);
}

#[tokio::test]
async fn i2_d17_a_delivery_that_is_sent_again_is_one_event_and_without_an_id_each_counts() {
    let front = Front::new().await;
    let url = front.hook(json!({})).await;
    for header in ["idempotency-key", "webhook-id", "x-github-delivery"] {
        for _ in 0..2 {
            assert_eq!(post(front.to(&url).header(header, "72d3162e").body("again")).await.0, 200);
        }
        let queued = front.queued();
        assert_eq!(queued[0].1, queued[1].1, "{header}: the queue, and after it the thread, know it again");
        front
            .world
            .done(&Delivery { dedup: queued[0].1.as_str().into(), ..front.world.message(&queued[0].0) })
            .await;
        front
            .world
            .done(&Delivery { dedup: queued[1].1.as_str().into(), ..front.world.message(&queued[1].0) })
            .await;
    }
    for _ in 0..2 {
        assert_eq!(post(front.to(&url).body("again")).await.0, 200);
    }
    front.work().await;
    let events = front.world.story().await.iter().filter(|line| *line == "event: again").count();
    assert_eq!(events, 5, "three with ids, each twice, and two without");
    // The same id at another webhook is another event.
    let other = front.hook(json!({})).await;
    for url in [&url, &other] {
        assert_eq!(post(front.to(url).header("webhook-id", "one").body("x")).await.0, 200);
    }
    let queued = front.queued();
    assert_ne!(queued[0].1, queued[1].1);
}

#[tokio::test]
async fn rap_39_events_have_threads_of_their_own_if_the_agent_wants_that() {
    let front = Front::new().await;
    let url = front.hook(json!({"associative": false})).await;
    let before = front.world.story().await;
    assert_eq!(post(front.to(&url).body("build 7 broke")).await.0, 200);
    let synthetic = front.outbox.sent()[0].0.synthetic.clone();
    assert!(
        matches!(synthetic, Some(Synthetic::SubscriptionEvent { associative: false, .. })),
        "{synthetic:?}"
    );
    front.work().await;
    assert_eq!(front.world.story().await, before, "the parent is not run");
    front.world.settle().await;
    use dormouse::store::ConversationStore;
    let threads = front.world.store.list_threads(10).await.unwrap();
    let child = threads.into_iter().find(|summary| summary.thread.as_str() != THREAD).unwrap();
    let story = front.world.story_of(&child.thread).await;
    assert!(story.contains(&"result: build 7 broke".to_owned()), "{story:?}");
}

#[tokio::test]
async fn rap_42_the_33rd_subscription_is_refused_also_within_one_step() {
    let asks = |n: usize| -> Vec<ScriptedEvent> {
        let calls = (0..n).map(|i| ScriptedEvent::call(format!("p{i}"), "receive_webhook", "{}"));
        calls.chain([ScriptedEvent::End("tool_use".into())]).collect()
    };
    let done = vec![ScriptedEvent::Text("ok".into()), ScriptedEvent::End("end_turn".into())];
    let front = Front::with(ScriptedModel::script(vec![asks(31), asks(3), done]), None).await;
    front.world.done(&front.world.user("watch")).await;
    let active = front.world.store.get_active_subscriptions(&ThreadId::from(THREAD)).await.unwrap();
    assert_eq!(active.len(), 32);
    let story = front.world.story().await;
    let refused =
        story.iter().filter(|line| line.starts_with("result: Error: this thread has 32 subscriptions"));
    assert_eq!(refused.count(), 2, "{story:?}");
}

#[tokio::test]
async fn a_body_above_4_mib_is_refused_and_an_outage_is_worth_another_try() {
    let front = Front::new().await;
    let url = front.hook(json!({})).await;
    let (status, answer) = post(front.to(&url).body("x".repeat(4 * 1024 * 1024 + 1))).await;
    assert_eq!((status, answer), (413, json!({"error": "the limit is 4 MiB"})));
    assert_eq!(post(front.to(&url).body("x".repeat(4 * 1024 * 1024))).await.0, 200);
    assert_eq!(front.queued().len(), 1);
    front.outbox.down.store(true, Ordering::SeqCst);
    assert_eq!(post(front.to(&url).body("x")).await.0, 503);

    let down = Front::with(ScriptedModel::from_fn(prompts::respond), Some(Arc::new(StoreDown))).await;
    let url = down.hook(json!({})).await;
    assert_eq!(post(down.to(&url).body("x")).await.0, 503);
    assert_eq!(down.queued(), vec![]);
}

/// The real binary, with a secret of its configuration.
#[cfg(feature = "local")]
#[tokio::test(flavor = "multi_thread")]
async fn a_post_to_the_running_binary_wakes_its_agent() {
    let home = command::Home::new();
    std::fs::write(home.path("dormouse.toml"), "[webhook_secrets.hub]\nenv = 'HUB_SECRET'\n").unwrap();
    let serving = home.serve_with(&[], &[("HUB_SECRET", SECRET)]);
    let address = |thread: &str, arguments: &str| {
        home.ok(&["send", &format!("call receive_webhook {arguments}"), "--thread", thread]);
        let items = home.items_when(thread, |items| items.len() == 4);
        let url = items[2].strip_prefix("tool_result: ").unwrap().lines().next().unwrap().to_owned();
        assert!(url.starts_with(serving.endpoints["http"].as_str().unwrap()), "{url}");
        url
    };
    let (open, signed) = (address("t1", "{}"), address("t2", r#"{"secret":"hub"}"#));
    let http = reqwest::Client::new();
    // Too large for the queue: it goes by claim check.
    let large = format!("build {}", "x".repeat(300 * 1024));
    assert_eq!(post(http.post(&open).body(large.clone())).await.0, 200);
    let items = home.items_when("t1", |items| items.len() == 6);
    assert_eq!(items[4], format!("event: {large}"));
    assert!(items[5].ends_with(&large), "its agent was asked");

    assert_eq!(post(http.post(&signed).body("push")).await.0, 401);
    let header = format!("sha256={}", signature("push"));
    assert_eq!(post(http.post(&signed).header("x-hub-signature-256", header).body("push")).await.0, 200);
    let items = home.items_when("t2", |items| items.len() == 6);
    assert_eq!(items[4], "event: push");
    assert!(serving.terminate().success());
    let log = std::fs::read_to_string(home.path("serve.err")).unwrap();
    for url in [&open, &signed] {
        let token = url.rsplit('/').next().unwrap();
        assert!(!log.contains(token), "an address can send events, so it is never logged");
    }
}
