//! Threads over real HTTP and through real slices, on servers that stream as providers do. One that was made on one
//! provider goes on with each of the others: the requests are ones that the provider takes (`support/wire_rules`), nothing
//! that another provider signed is among them, and when the thread comes back, what it was is what it was sent before, byte
//! for byte (F38 to F42, I5, I8). And what a provider may have cached of a request is what the next one begins with.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
// The server needs what the feature `local` brings to axum.
#![cfg(feature = "local")]

#[path = "support/provider_server.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod provider_server;
#[path = "provider_threads/replies.rs"]
mod replies;
#[path = "support/wire_rules/mod.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod wire_rules;
#[path = "support/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use dormouse::config::ModelConfig;
use dormouse::message::{ContentPart, ImageData, InputContent, InputMessage, Synthetic};
use dormouse::model::genai::GenaiModel;
use dormouse::model::scripted::ScriptedModel;
use dormouse::model::{ModelError, ModelProvider};
use dormouse::slice::{AgentProfile, Agents};
use provider_server::{Received, Server};
use replies::{Said, proof, reply, sealed, thought};
use serde_json::Value;
use serde_json::value::RawValue;
use wire_rules::Verdict;
use world::{THREAD, World};

/// A provider: what the configuration calls it, a model whose name switches the strictest rules on, and where in a
/// body of its dialect the conversation stands.
struct Provider {
    name: &'static str,
    model: &'static str,
    judge: fn(&Value) -> Verdict,
    list: &'static str,
    /// What proves its thoughts goes back to it.
    proves: Proves,
}

#[derive(Clone, Copy, PartialEq)]
enum Proves {
    Nothing,
    /// The thought itself, unsigned.
    Thoughts,
    /// Signatures of calls.
    Calls,
    /// Encrypted reasoning.
    Encrypted,
    /// Signed thoughts and sealed ones.
    Blocks,
}

const PROVIDERS: [Provider; 6] = [
    Provider {
        name: "openai",
        model: "gpt-4.1",
        judge: wire_rules::chat::judge,
        list: "messages",
        proves: Proves::Nothing,
    },
    Provider {
        name: "deepseek",
        model: "deepseek-reasoner",
        judge: |body| wire_rules::chat::judge(&without_plain_reasoning(body)),
        list: "messages",
        proves: Proves::Thoughts,
    },
    Provider {
        name: "openai_resp",
        model: "gpt-5.1",
        judge: wire_rules::responses::judge,
        list: "input",
        proves: Proves::Encrypted,
    },
    Provider {
        name: "anthropic",
        model: "claude-sonnet-4-5",
        judge: wire_rules::anthropic::judge,
        list: "messages",
        proves: Proves::Blocks,
    },
    Provider {
        name: "gemini",
        model: "gemini-3-pro-preview",
        judge: |body| wire_rules::gemini::judge(body, true),
        list: "contents",
        proves: Proves::Calls,
    },
    Provider {
        name: "bedrock_api",
        model: "global.openai.gpt-5.6-terra",
        judge: wire_rules::bedrock::judge,
        list: "messages",
        proves: Proves::Blocks,
    },
];

/// DeepSeek's one member more: <https://api-docs.deepseek.com/guides/thinking_mode>.
fn without_plain_reasoning(body: &Value) -> Value {
    let mut body = body.clone();
    for message in body["messages"].as_array_mut().into_iter().flatten() {
        if message["role"] == "assistant" {
            message.as_object_mut().unwrap().remove("reasoning_content");
        }
    }
    body
}

/// One provider of a test: its server, and the model that speaks to it.
struct Side {
    provider: &'static Provider,
    server: Server,
    model: Arc<dyn ModelProvider>,
    answers: AtomicUsize,
}

impl Side {
    async fn start(provider: &'static Provider) -> Self {
        let server = Server::start(Vec::new()).await;
        let config = ModelConfig {
            base_url: Some(server.url.clone()),
            image_input: true,
            ..ModelConfig::from_spec(&format!("{}::{}", provider.name, provider.model))
        };
        let model = Arc::new(GenaiModel::new(&config, Some("key".to_owned())).unwrap());
        Self { provider, server, model, answers: AtomicUsize::new(0) }
    }

    /// What it answers next.
    fn will(&self, text: &str, calls: &[&str]) {
        let n = self.answers.fetch_add(1, Ordering::Relaxed);
        self.server.then(reply(self.provider.name, &Said { n, text, calls }));
    }

    fn last(&self) -> Received {
        self.server.received().pop().unwrap()
    }

    /// Everything of its own that a body may hold: proofs and thoughts of all its answers.
    fn own(&self) -> Vec<String> {
        let name = self.provider.name;
        let all = (0..self.answers.load(Ordering::Relaxed))
            .flat_map(|n| [proof(name, n), sealed(name, n), thought(name, n)]);
        all.collect()
    }

    /// Every request so far is one that it takes, and holds nothing of `other`.
    fn assert_taken_without(&self, other: &Side) {
        for (at, received) in self.server.received().iter().enumerate() {
            if let Err(why) = (self.provider.judge)(&received.body) {
                panic!("{}, request {at}: {why}\n{:#}", self.provider.name, received.body);
            }
            for own in other.own() {
                assert!(
                    !received.text.contains(&own),
                    "{}, request {at}: {own:?} of {}",
                    self.provider.name,
                    other.provider.name
                );
            }
        }
    }
}

/// The agent, whose model is changed between two messages.
struct Switched(Mutex<Arc<dyn ModelProvider>>);

impl Agents for Switched {
    fn default_agent(&self) -> &str {
        "default"
    }

    fn knows(&self, agent: &str) -> bool {
        agent == "default"
    }

    fn profile(&self, _agent: &str) -> Result<AgentProfile, ModelError> {
        Ok(AgentProfile {
            model: self.0.lock().unwrap().clone(),
            system_prompt: Some("be brief".to_owned()),
            max_output_tokens: Some(1_000),
            prune: true,
        })
    }
}

struct Thread {
    world: World,
    agent: Arc<Switched>,
}

impl Thread {
    fn on(side: &Side) -> Self {
        let mut world = World::new(ScriptedModel::from_fn(|_| Vec::new()));
        let agent = Arc::new(Switched(Mutex::new(side.model.clone())));
        world.runtime.agents = agent.clone();
        Self { world, agent }
    }

    fn switch_to(&self, side: &Side) {
        *self.agent.0.lock().unwrap() = side.model.clone();
    }

    async fn say(&self, text: &str) {
        let parts = vec![ContentPart::text(text), image()];
        let message = InputMessage::plain(THREAD.into(), InputContent::Parts(parts));
        self.world.done(&self.world.message(&message)).await;
    }

    /// The result of the call that is the `n`th from the end; it opens a subscription.
    async fn answer(&self, from_end: usize, parts: Vec<ContentPart>) {
        let calls = self.world.tools.calls();
        let call = calls[calls.len() - from_end].clone();
        let mut message = InputMessage::tool_result(THREAD.into(), call, parts);
        message.subscription = true;
        self.world.done(&self.world.message(&message)).await;
    }

    async fn event(&self, text: &str) {
        let call = self.world.tools.calls()[0].clone();
        let parts = vec![ContentPart::text(text), image()];
        let mut message = InputMessage::tool_result(THREAD.into(), call.clone(), parts);
        message.synthetic =
            Some(Synthetic::SubscriptionEvent { tool_call_id: call, associative: true, r#final: false });
        self.world.done(&self.world.message(&message)).await;
    }

    /// Parallel calls, results with images and one that failed, an interrupt, an event.
    async fn talk_with(&self, side: &Side) {
        side.will("let me look", &["echo", "other"]);
        self.say("look at this").await;
        self.answer(2, vec![ContentPart::text("a picture"), image()]).await;
        side.will("seen", &[]);
        self.answer(1, vec![ContentPart::text("Error: no such thing")]).await;
        side.will("once more", &["echo"]);
        self.say("again").await;
        side.will("stopped", &[]);
        self.say("stop it").await;
        side.will("noted", &[]);
        self.event("something has happened").await;
    }
}

/// A picture of one pixel.
const PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg==";

fn image() -> ContentPart {
    ContentPart::Image { data: ImageData::Base64(PNG.into()), media_type: Some("png".into()) }
}

/// The members of a body as they were sent.
fn members(received: &Received) -> BTreeMap<String, Box<RawValue>> {
    serde_json::from_str(&received.text).unwrap()
}

/// The entries of the conversation as they were sent, but for the marks of caching, which move on.
fn entries(received: &Received, list: &str) -> Vec<String> {
    let all: Vec<Box<RawValue>> = serde_json::from_str(members(received)[list].get()).unwrap();
    all.iter().map(|entry| unmarked(entry.get())).collect()
}

/// An entry without its mark, which Anthropic takes for the same: "`content` as a string is shorthand for an array of one
/// content block of type text".
fn unmarked(entry: &str) -> String {
    let mut value: Value = serde_json::from_str(entry).unwrap();
    let Some(blocks) = value["content"].as_array_mut() else { return entry.to_owned() };
    let mark = blocks.last_mut().and_then(Value::as_object_mut).and_then(|last| last.remove("cache_control"));
    if mark.is_none() {
        return entry.to_owned();
    }
    if let [block] = &blocks[..]
        && block["type"] == "text"
    {
        value["content"] = block["text"].clone();
    }
    value.to_string()
}

/// `now` says everything that `before` said, in the same bytes.
fn assert_extends(now: &Received, before: &Received, list: &str) {
    let (all, earlier) = (entries(now, list), entries(before, list));
    assert!(all.len() > earlier.len(), "{} entries, {} before", all.len(), earlier.len());
    for (at, (now, before)) in all.iter().zip(&earlier).enumerate() {
        assert_eq!(now, before, "entry {at}");
    }
    let (mut now, mut before) = (members(now), members(before));
    now.remove(list);
    before.remove(list);
    let text = |members: BTreeMap<String, Box<RawValue>>| -> Vec<String> {
        members.iter().map(|(name, value)| format!("{name}: {value}")).collect()
    };
    assert_eq!(text(now), text(before), "what stands beside the conversation");
}

/// The pairs of which the first is `from`, one after another.
async fn goes_on_with_each_of_the_others(from: &str) {
    let provider = |name: &str| PROVIDERS.iter().find(|provider| provider.name == name).unwrap();
    for other in PROVIDERS.iter().filter(|other| other.name != from) {
        println!("{from} -> {} -> {from}", other.name);
        pair(provider(from), other).await;
    }
}

async fn pair(first: &'static Provider, second: &'static Provider) {
    let (first, second) = (Side::start(first).await, Side::start(second).await);
    let thread = Thread::on(&first);
    thread.talk_with(&first).await;
    let before = first.last();

    thread.switch_to(&second);
    thread.talk_with(&second).await;

    thread.switch_to(&first);
    first.will("here again", &[]);
    thread.say("back to you").await;
    assert_extends(&first.last(), &before, first.provider.list);
    let body = first.last().text;
    let name = first.provider.name;
    // Of its five answers the first and the third call; each of them is proven as the provider does it.
    for (n, calls) in [true, false, true, false, false].into_iter().enumerate() {
        let expected = match first.provider.proves {
            Proves::Nothing => vec![],
            Proves::Thoughts => vec![thought(name, n)],
            Proves::Calls if calls => vec![proof(name, n)],
            Proves::Calls => vec![],
            Proves::Encrypted => vec![proof(name, n)],
            Proves::Blocks => vec![thought(name, n), proof(name, n), sealed(name, n)],
        };
        for own in expected {
            assert_eq!(body.matches(&own).count(), 1, "{own} of answer {n} of {name}");
        }
    }

    // In the middle of a turn: one calls, the other reads the result, and the first takes over again.
    first.will("one more", &["other"]);
    thread.say("and now?").await;
    thread.switch_to(&second);
    second.will("let me too", &["echo"]);
    thread.answer(1, vec![ContentPart::text("for the other"), image()]).await;
    thread.switch_to(&first);
    first.will("mine again", &[]);
    thread.answer(1, vec![ContentPart::text("for the first")]).await;
    thread.switch_to(&second);
    second.will("bye", &[]);
    thread.say("the end").await;

    first.assert_taken_without(&second);
    second.assert_taken_without(&first);
    assert_eq!((first.server.received().len(), second.server.received().len()), (8, 7));
}

#[tokio::test]
async fn f39_i5_a_thread_of_openai_chat_goes_on_with_each_of_the_others_and_comes_back() {
    goes_on_with_each_of_the_others("openai").await;
}

#[tokio::test]
async fn f39_f40_i5_a_thread_of_deepseek_goes_on_with_each_of_the_others_and_comes_back() {
    goes_on_with_each_of_the_others("deepseek").await;
}

#[tokio::test]
async fn f39_i5_a_thread_of_openai_responses_goes_on_with_each_of_the_others_and_comes_back() {
    goes_on_with_each_of_the_others("openai_resp").await;
}

#[tokio::test]
async fn f38_f39_f40_i5_a_thread_of_anthropic_goes_on_with_each_of_the_others_and_comes_back() {
    goes_on_with_each_of_the_others("anthropic").await;
}

#[tokio::test]
async fn f39_f42_i5_a_thread_of_gemini_goes_on_with_each_of_the_others_and_comes_back() {
    goes_on_with_each_of_the_others("gemini").await;
}

#[tokio::test]
async fn f38_f39_f40_i5_a_thread_of_bedrock_goes_on_with_each_of_the_others_and_comes_back() {
    goes_on_with_each_of_the_others("bedrock_api").await;
}

/// Where the marks stand: the member, and in the conversation also the entry.
fn marks(body: &Value) -> Vec<(&'static str, usize)> {
    let marked = |block: &Value| block.get("cache_control").is_some();
    let mut all = Vec::new();
    for member in ["tools", "system"] {
        let blocks = body[member].as_array().unwrap();
        all.extend((0..blocks.len()).filter(|at| marked(&blocks[*at])).map(|at| (member, at)));
    }
    let messages = body["messages"].as_array().unwrap();
    let has_mark = |message: &Value| {
        let Some(blocks) = message["content"].as_array() else { return false };
        assert!(blocks[..blocks.len() - 1].iter().all(|block| !marked(block)), "only a last block is marked");
        marked(&blocks[blocks.len() - 1])
    };
    all.extend((0..messages.len()).filter(|at| has_mark(&messages[*at])).map(|at| ("messages", at)));
    all
}

#[tokio::test]
async fn what_anthropic_was_told_to_cache_of_a_request_is_what_the_next_one_begins_with() {
    let side = Side::start(PROVIDERS.iter().find(|provider| provider.name == "anthropic").unwrap()).await;
    let thread = Thread::on(&side);
    thread.talk_with(&side).await;
    let requests = side.server.received();
    assert_eq!(requests.len(), 5);
    for received in &requests {
        assert_eq!((side.provider.judge)(&received.body), Ok(()));
        let last_tool = received.body["tools"].as_array().unwrap().len() - 1;
        let last_message = received.body["messages"].as_array().unwrap().len() - 1;
        let marks = marks(&received.body);
        assert_eq!(marks[..2], [("tools", last_tool), ("system", 0)]);
        assert_eq!(*marks.last().unwrap(), ("messages", last_message), "to be read by the next request");
    }
    for pair in requests.windows(2) {
        assert_extends(&pair[1], &pair[0], "messages");
        let written = *marks(&pair[0].body).last().unwrap();
        assert!(marks(&pair[1].body).contains(&written), "read where it was written: {written:?}");
    }
}
