//! A world with a small window, a clock that a test sets, and a model that summarises when it is told to.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use async_trait::async_trait;
use dormouse::history::request::{ModelRequest, RequestMessage};
use dormouse::message::{Compact, ContentPart, InputContent, InputMessage, ThreadId};
use dormouse::model::scripted::{ScriptedEvent, ScriptedModel, prompts};
use dormouse::model::{ModelError, ModelInfo, ModelProvider, ModelStream, Usage};
use dormouse::slice::{AgentProfile, Agents, Clock, Summaries};
use dormouse::store::{ConversationStore, Meta};

use crate::world::{NOW_MS, THREAD, World};

/// Tokens of the window: half of it is usable, 8,750 tokens are the soft limit.
pub const WINDOW: u64 = 20_000;
pub const HARD: u64 = 10_000;
/// Characters of a turn's text: 500 tokens.
pub const TURN_CHARS: usize = 2_000;

/// A clock that stands until a test moves it.
pub struct Hand(pub AtomicI64);

impl Clock for Hand {
    fn now_ms(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The same model where it summarises: with a window that takes everything at once.
struct Wide(Arc<ScriptedModel>);

#[async_trait]
impl ModelProvider for Wide {
    fn info(&self) -> ModelInfo {
        ModelInfo { context_window: Some(100_000), ..self.0.info() }
    }

    fn model(&self) -> &str {
        self.0.model()
    }

    async fn stream(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        self.0.stream(request).await
    }
}

/// One agent, which a test changes between two messages.
#[cfg(feature = "local")]
pub struct Agent(pub std::sync::Mutex<AgentProfile>);

#[cfg(feature = "local")]
impl Agents for Agent {
    fn default_agent(&self) -> &str {
        "default"
    }

    fn knows(&self, agent: &str) -> bool {
        agent == "default"
    }

    fn profile(&self, _agent: &str) -> Result<AgentProfile, ModelError> {
        Ok(self.0.lock().unwrap().clone())
    }
}

struct Summarised(Arc<dyn Agents>, Arc<Wide>);

impl Agents for Summarised {
    fn default_agent(&self) -> &str {
        self.0.default_agent()
    }

    fn knows(&self, agent: &str) -> bool {
        self.0.knows(agent)
    }

    fn profile(&self, agent: &str) -> Result<AgentProfile, ModelError> {
        let compaction = Some(Summaries::by(self.1.clone()));
        Ok(AgentProfile { compaction, ..self.0.profile(agent)? })
    }
}

fn said(event: &ScriptedEvent) -> usize {
    match event {
        ScriptedEvent::Text(text) | ScriptedEvent::Reasoning(text) => text.len(),
        ScriptedEvent::Call(call) => call.name.len() + call.arguments.len(),
        _ => 0,
    }
}

pub struct Bed {
    pub world: World,
    pub clock: Arc<Hand>,
    /// Summaries that were asked for.
    pub summaries: Arc<AtomicUsize>,
}

/// Whether a request asks for a summary.
pub fn is_summary(request: &ModelRequest) -> bool {
    request.system.as_deref().is_some_and(|system| system.starts_with("You summarise a conversation"))
}

/// A summary that says how much there was.
pub fn summary(number: usize) -> Vec<ScriptedEvent> {
    vec![ScriptedEvent::Text(format!("Goal: summary number {number}. {}", "It went on. ".repeat(60)))]
}

impl Bed {
    pub fn new() -> Self {
        Self::with(WINDOW, |number, _| summary(number))
    }

    /// With a window, and what the summariser answers.
    pub fn with(
        window: u64,
        summarise: impl Fn(usize, &ModelRequest) -> Vec<ScriptedEvent> + Send + Sync + 'static,
    ) -> Self {
        Self::answering(window, summarise, |request| {
            let last = texts(request).pop().unwrap_or_default();
            match last.strip_prefix("turn ").and_then(|rest| rest.split(':').next()) {
                Some(n) => vec![ScriptedEvent::Text(format!("echo: turn {n}"))],
                None => prompts::respond(request),
            }
        })
    }

    pub fn answering(
        window: u64,
        summarise: impl Fn(usize, &ModelRequest) -> Vec<ScriptedEvent> + Send + Sync + 'static,
        answer: impl Fn(&ModelRequest) -> Vec<ScriptedEvent> + Send + Sync + 'static,
    ) -> Self {
        let summaries = Arc::new(AtomicUsize::new(0));
        let counted = summaries.clone();
        let respond = move |request: &ModelRequest| {
            if is_summary(request) {
                return summarise(counted.fetch_add(1, Ordering::Relaxed) + 1, request);
            }
            if let Err(problem) = crate::provider_rules::judge(request) {
                panic!("I5: {problem}");
            }
            let mut events = answer(request);
            // What a provider counts: all there is in the request.
            let input = size(request);
            events.retain(|event| !matches!(event, ScriptedEvent::Usage(_)));
            let output = events.iter().map(said).sum::<usize>() as u64 / 4 + 10;
            let ends = matches!(events.last(), Some(ScriptedEvent::Error(_) | ScriptedEvent::End(_)));
            if !ends {
                events.push(ScriptedEvent::Usage(Usage { input, output, cached: 0 }));
            }
            events
        };
        let info = ModelInfo { context_window: Some(window), ..ModelInfo::default() };
        let mut world = World::with_builtins(ScriptedModel::from_fn(respond).with_info(info));
        let wide = Arc::new(Wide(world.model.clone()));
        world.runtime.agents = Arc::new(Summarised(world.runtime.agents.clone(), wide));
        let clock = Arc::new(Hand(AtomicI64::new(NOW_MS)));
        world.runtime.clock = clock.clone();
        Self { world, clock, summaries }
    }

    /// Without tools: nothing but the prompt is fixed.
    pub fn bare(mut self) -> Self {
        self.world.runtime.tools = Arc::new(dormouse::tools::Registry::default());
        self
    }

    pub fn pass(&self, seconds: i64) {
        self.clock.0.fetch_add(seconds * 1_000, Ordering::Relaxed);
    }

    pub fn summaries(&self) -> usize {
        self.summaries.load(Ordering::Relaxed)
    }

    /// A text of about 500 tokens and its answer.
    pub async fn turn(&self, n: usize) {
        self.world.done(&self.world.user(&long(n))).await;
    }

    /// Turns, without what goes on beside them.
    pub async fn turns(&self, n: std::ops::Range<usize>) {
        for n in n {
            self.turn(n).await;
        }
    }

    pub async fn say(&self, text: &str) -> String {
        self.world.done(&self.world.user(text)).await;
        self.world.output.texts().last().unwrap().clone()
    }

    pub async fn compact(&self) {
        self.ask(Compact { manual: true, focus: None }).await;
    }

    pub async fn ask(&self, request: Compact) {
        let message = InputMessage::plain(ThreadId::from(THREAD), InputContent::Compact(request));
        self.world.done(&self.world.message(&message)).await;
        self.world.settle().await;
    }

    pub async fn meta(&self) -> Meta {
        self.world.meta().await
    }

    /// What requests read of the thread: items that were not read, and how many were.
    pub async fn read(&self) -> (usize, usize) {
        let loaded = self.world.store.load_for_request(&THREAD.into(), &[]).await.unwrap();
        (loaded.unread, loaded.items.len())
    }

    /// The last request of the conversation itself.
    pub fn request(&self) -> ModelRequest {
        self.requests().pop().unwrap()
    }

    pub fn requests(&self) -> Vec<ModelRequest> {
        self.world.model.requests().into_iter().filter(|request| !is_summary(request)).collect()
    }
}

/// The `n`th text: long, answered in a word.
pub fn long(n: usize) -> String {
    let mut text = format!("turn {n}: ");
    while text.len() < TURN_CHARS {
        text.push_str("so it goes on and on, ");
    }
    text
}

/// Tokens of a request, as a provider that needs four bytes for one would count them.
pub fn size(request: &ModelRequest) -> u64 {
    let tools = request
        .tools
        .iter()
        .map(|tool| tool.name.len() + tool.description.len() + tool.input_schema.to_string().len());
    let texts = texts(request);
    let bytes = texts.iter().map(String::len).chain(tools).sum::<usize>();
    bytes as u64 / 4
}

/// Every text of a request, in order.
pub fn texts(request: &ModelRequest) -> Vec<String> {
    let mut texts: Vec<String> = request.system.iter().cloned().collect();
    for message in &request.messages {
        match message {
            RequestMessage::User(parts) => {
                for part in parts {
                    texts.push(ContentPart::join_text(std::slice::from_ref(part)));
                }
            }
            RequestMessage::Assistant(said) => {
                texts.extend(said.text.clone());
                texts.extend(said.calls.iter().map(|call| format!("{} {}", call.name, call.arguments)));
            }
            RequestMessage::ToolResults(results) => {
                texts.extend(results.iter().map(|result| ContentPart::join_text(&result.parts)));
            }
        }
    }
    texts
}
