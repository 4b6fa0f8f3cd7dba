//! One process' worth of dormouse over fakes that a test controls: a store in memory, a scripted model, tools
//! that record what they are sent, queues that are lists. What goes in is a real `SqsEvent`.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use aws_lambda_events::event::sqs::{SqsEvent, SqsMessage};
use dormouse::message::{
    CallId, ContentPart, DedupId, InputMessage, Item, ItemBody, OutputMessage, ThreadId,
};
use dormouse::model::scripted::ScriptedModel;
use dormouse::model::{ModelError, ModelProvider};
use dormouse::queue::{DeadLetters, InputSender, OutputSender, QueueError, Redelivery};
use dormouse::slice::drain::Drain;
use dormouse::slice::records::process_records;
use dormouse::slice::{AgentProfile, Agents, Clock, Limits, NoObserver, Runtime, Summaries};
use dormouse::store::memory::{CommitFault, MemoryStore};
use dormouse::store::{ConversationStore, Meta, Store};
use dormouse::tools::{
    Execution, Invocation, Registry, Rerun, Tool, ToolDefinition, ToolError, ToolOutput, Waiting,
};
use tokio::time::Instant;

/// The thread that most tests speak to.
pub const THREAD: &str = "th-1";

/// What the world's clock says.
pub const NOW_MS: i64 = 1_700_000_000_000;

/// A message as a test hands it in, again and again if it likes.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub message_id: String,
    pub group: String,
    pub dedup: String,
    pub receive_count: u32,
    pub body: String,
}

impl Delivery {
    pub fn again(&self) -> Self {
        Self { receive_count: self.receive_count + 1, ..self.clone() }
    }
}

#[derive(Clone)]
pub struct World {
    pub store: MemoryStore,
    pub model: Arc<ScriptedModel>,
    pub tools: Arc<Tools>,
    /// The tools themselves, for a test that makes its own choice of them.
    pub registry: Registry,
    pub input: Arc<Inbox>,
    pub output: Arc<Output>,
    pub dead: Arc<Dead>,
    pub delays: Arc<Delays>,
    pub runtime: Runtime,
    sequence: Arc<Mutex<u64>>,
}

impl World {
    pub fn new(model: ScriptedModel) -> Self {
        let store = MemoryStore::new();
        Self { store: store.clone(), ..Self::over(Arc::new(store), model) }
    }

    /// Over any store; what reads `store` directly then sees nothing.
    pub fn over(port: Arc<dyn Store>, model: ScriptedModel) -> Self {
        let store = MemoryStore::new();
        let model = Arc::new(model);
        let tools = Arc::new(Tools::new(port.clone()));
        let input = Arc::new(Inbox::default());
        let output = Arc::new(Output::default());
        let dead = Arc::new(Dead::default());
        let delays = Arc::new(Delays::default());
        let registry = Registry::new(Self::fakes(&tools));
        let runtime = Runtime {
            store: port,
            agents: Arc::new(OneAgent(model.clone())),
            tools: Arc::new(registry.clone()),
            input: input.clone(),
            output: output.clone(),
            dead_letters: dead.clone(),
            redelivery: delays.clone(),
            observer: Arc::new(NoObserver),
            clock: Arc::new(Steady),
            limits: Limits::default(),
        };
        Self { store, model, tools, registry, input, output, dead, delays, runtime, sequence: Arc::default() }
    }

    /// With the tools that dormouse brings itself.
    pub fn with_builtins(model: ScriptedModel) -> Self {
        let mut world = Self::new(model);
        let fakes = Self::fakes(&world.tools);
        let store: Arc<dyn Store> = Arc::new(world.store.clone());
        let tools = dormouse::tools::builtin::all(&store).into_iter().chain(fakes);
        world.runtime.tools = Arc::new(Registry::new(tools));
        world
    }

    fn fakes(tools: &Arc<Tools>) -> [Arc<dyn Tool>; 5] {
        [
            Arc::new(Fake::asynchronous("echo", tools, Waiting::Active)),
            Arc::new(Fake::asynchronous("other", tools, Waiting::Active)),
            Arc::new(Fake::asynchronous("nap", tools, Waiting::Passive)),
            Arc::new(Fake::synchronous("add", tools, Rerun::Safe)),
            Arc::new(Fake::synchronous("pay", tools, Rerun::Never)),
        ]
    }

    /// A message under ids of its own.
    pub fn message(&self, message: &InputMessage) -> Delivery {
        let mut sequence = self.sequence.lock().unwrap();
        *sequence += 1;
        Delivery {
            message_id: format!("m-{sequence}"),
            group: message.group_id.as_str().to_owned(),
            dedup: format!("d-{sequence}"),
            receive_count: 1,
            body: message.to_body().unwrap(),
        }
    }

    pub fn user(&self, text: &str) -> Delivery {
        self.message(&InputMessage::user_text(ThreadId::from(THREAD), text))
    }

    pub fn result(&self, call: &CallId, text: &str) -> Delivery {
        let parts = vec![ContentPart::text(text)];
        let message = InputMessage::tool_result(ThreadId::from(THREAD), call.clone(), parts);
        Delivery { dedup: format!("result-{call}"), ..self.message(&message) }
    }

    /// Hands a batch in and returns the message ids that were handed back.
    pub async fn deliver(&self, batch: &[Delivery]) -> Vec<String> {
        self.deliver_within(batch, Duration::from_secs(300)).await
    }

    pub async fn deliver_within(&self, batch: &[Delivery], time: Duration) -> Vec<String> {
        let mut event = SqsEvent::default();
        event.records = batch.iter().map(|delivery| self.record(delivery)).collect();
        let response = process_records(&self.runtime, event, Instant::now() + time).await;
        response.batch_item_failures.into_iter().map(|failure| failure.item_identifier).collect()
    }

    /// Hands one message in; it must be done.
    pub async fn done(&self, delivery: &Delivery) {
        let failed = self.deliver(std::slice::from_ref(delivery)).await;
        assert!(failed.is_empty(), "handed back: {failed:?}");
    }

    pub fn record(&self, delivery: &Delivery) -> SqsMessage {
        let sequence: u64 = delivery.message_id.trim_start_matches("m-").parse().unwrap_or(0);
        let mut message = SqsMessage::default();
        message.message_id = Some(delivery.message_id.clone());
        message.receipt_handle = Some(format!("handle-{}", delivery.message_id));
        message.body = Some(delivery.body.clone());
        message.attributes = [
            ("MessageGroupId", delivery.group.clone()),
            ("MessageDeduplicationId", delivery.dedup.clone()),
            ("SequenceNumber", format!("{sequence:020}")),
            ("ApproximateReceiveCount", delivery.receive_count.to_string()),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
        message
    }

    /// What happens to a message that the queue has given up on: the drain takes it, and its thread is told.
    pub async fn dies(&self, delivery: &Delivery) {
        let mut record = self.record(delivery);
        record.attributes.insert("DeadLetterQueueSourceArn".to_owned(), "arn:aws:sqs:x:1:in.fifo".to_owned());
        assert!(self.drain(record).await, "the drain hands it back");
        self.settle().await;
    }

    /// Hands one record of the dead-letter queue to the drain, and says whether it was taken.
    pub async fn drain(&self, record: SqsMessage) -> bool {
        let (store, input) = (self.runtime.store.clone(), self.runtime.input.clone());
        let drain = Drain { store, input, clock: self.runtime.clock.clone() };
        let mut event = SqsEvent::default();
        event.records = vec![record];
        drain.process_records(event).await.batch_item_failures.is_empty()
    }

    /// Hands in what dormouse has sent to its own queue, until nothing is left.
    pub async fn settle(&self) {
        for _ in 0..100 {
            let sent = std::mem::take(&mut *self.input.sent.lock().unwrap());
            if sent.is_empty() {
                return;
            }
            for (message, dedup) in sent {
                let delivery = Delivery { dedup: dedup.as_str().to_owned(), ..self.message(&message) };
                self.done(&delivery).await;
            }
        }
        panic!("the thread keeps sending to itself");
    }

    pub async fn meta(&self) -> Meta {
        self.store.meta(&ThreadId::from(THREAD)).await.unwrap().unwrap()
    }

    pub async fn items(&self) -> Vec<Item> {
        self.store.load(&ThreadId::from(THREAD), &[]).await.unwrap().items
    }

    /// The history in short: `user: hi`, `call: echo`, `result: ok`, ….
    pub async fn story(&self) -> Vec<String> {
        self.story_of(&ThreadId::from(THREAD)).await
    }

    /// The same of any thread, what it inherits included.
    pub async fn story_of(&self, thread: &ThreadId) -> Vec<String> {
        let items = self.store.load(thread, &[]).await.unwrap().items;
        items.iter().map(|item| tell(&item.body)).collect()
    }

    pub async fn pending(&self) -> Vec<CallId> {
        self.meta().await.pending.into_iter().map(|pending| pending.call).collect()
    }
}

pub fn tell(body: &ItemBody) -> String {
    match body {
        ItemBody::System(item) => format!("system: {}", item.text),
        ItemBody::User(item) => format!("user: {}", ContentPart::join_text(&item.parts)),
        ItemBody::Assistant(item) => format!("assistant: {}", item.text),
        ItemBody::ToolCall(item) => format!("call: {} {}", item.name, item.arguments),
        ItemBody::ToolResult(item) => {
            format!("result: {}", ContentPart::join_text(&item.parts))
        }
        ItemBody::BackendToolCall(item) => format!("backend: {}", item.summary),
        ItemBody::Reasoning(item) => format!("reasoning: {}", item.text),
        ItemBody::Interrupt(_) => "interrupt".to_owned(),
        ItemBody::Event(item) => format!("event: {}", ContentPart::join_text(&item.parts)),
        ItemBody::State(item) => format!("state: {}", item.state.get()),
        ItemBody::Unknown { kind } => format!("unknown: {kind}"),
    }
}

struct Steady;

impl Clock for Steady {
    fn now_ms(&self) -> i64 {
        NOW_MS
    }
}

struct OneAgent(Arc<ScriptedModel>);

impl Agents for OneAgent {
    fn default_agent(&self) -> &str {
        "default"
    }

    fn knows(&self, agent: &str) -> bool {
        agent == "default"
    }

    fn profile(&self, _agent: &str) -> Result<AgentProfile, ModelError> {
        let model: Arc<dyn ModelProvider> = self.0.clone();
        Ok(AgentProfile {
            model,
            system_prompt: Some("be brief".to_owned()),
            max_output_tokens: None,
            prune: true,
            compaction: Some(Summaries::by(self.0.clone())),
        })
    }
}

/// What the tools were sent.
pub struct Tools {
    store: Arc<dyn Store>,
    pub dispatched: Mutex<Vec<Invocation>>,
    pub ran: Mutex<Vec<Invocation>>,
    pub cancelled: Mutex<Vec<CallId>>,
    /// Where each answer to a choice went, and which.
    pub answered: Mutex<Vec<(String, CallId, usize)>>,
    /// Fails the next dispatches.
    pub failures: Mutex<Vec<ToolError>>,
    /// Each call is looked up in the store when it leaves (I3).
    look_up: AtomicBool,
    /// Its next commit fails once a synchronous tool has run.
    fail_after_run: Mutex<Option<MemoryStore>>,
}

impl Tools {
    fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            dispatched: Mutex::default(),
            ran: Mutex::default(),
            cancelled: Mutex::default(),
            answered: Mutex::default(),
            failures: Mutex::default(),
            look_up: AtomicBool::new(true),
            fail_after_run: Mutex::default(),
        }
    }

    /// The first commit after the next run of a synchronous tool fails.
    pub fn fail_commit_after_run(&self, store: MemoryStore) {
        *self.fail_after_run.lock().unwrap() = Some(store);
    }

    /// Off where the look-up itself would be counted.
    pub fn look_up(&self, on: bool) {
        self.look_up.store(on, Ordering::Relaxed);
    }

    async fn assert_committed(&self, call: &Invocation) {
        if self.look_up.load(Ordering::Relaxed) {
            let meta = self.store.meta(&call.thread).await.unwrap().expect("the thread is stored");
            assert!(meta.pending.iter().any(|pending| pending.call == call.call), "left before its commit");
        }
    }

    pub fn dispatched(&self) -> Vec<Invocation> {
        self.dispatched.lock().unwrap().clone()
    }

    pub fn calls(&self) -> Vec<CallId> {
        self.dispatched().into_iter().map(|invocation| invocation.call).collect()
    }
}

struct Fake {
    definition: ToolDefinition,
    execution: Execution,
    tools: Arc<Tools>,
}

impl Fake {
    fn asynchronous(name: &str, tools: &Arc<Tools>, waiting: Waiting) -> Self {
        Self::new(name, tools, Execution::Asynchronous(waiting))
    }

    fn synchronous(name: &str, tools: &Arc<Tools>, rerun: Rerun) -> Self {
        Self::new(name, tools, Execution::Synchronous(rerun))
    }

    fn new(name: &str, tools: &Arc<Tools>, execution: Execution) -> Self {
        let input_schema = serde_json::json!({
            "type": "object", "properties": {"text": {"type": "string"}}
        });
        let definition =
            ToolDefinition { name: name.to_owned(), description: format!("the tool {name}"), input_schema };
        Self { definition, execution, tools: tools.clone() }
    }
}

#[async_trait]
impl Tool for Fake {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn execution(&self) -> Execution {
        self.execution
    }

    fn server(&self) -> Option<&str> {
        matches!(self.execution, Execution::Asynchronous(_)).then_some("fake")
    }

    async fn execute(&self, call: &Invocation) -> Result<(), ToolError> {
        self.tools.assert_committed(call).await;
        self.tools.dispatched.lock().unwrap().push(call.clone());
        match self.tools.failures.lock().unwrap().pop() {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }

    async fn execute_synchronous(&self, call: &Invocation) -> Result<ToolOutput, ToolError> {
        self.tools.assert_committed(call).await;
        self.tools.ran.lock().unwrap().push(call.clone());
        if let Some(store) = self.tools.fail_after_run.lock().unwrap().take() {
            store.fail_commits([CommitFault::Unavailable]);
        }
        Ok(ToolOutput::text(format!("ran {}", call.arguments)))
    }

    async fn cancel(&self, _thread: &ThreadId, call: &CallId) {
        self.tools.cancelled.lock().unwrap().push(call.clone());
    }

    async fn answer_choice(&self, url: &str, choice: &CallId, selected: usize) -> Result<(), ToolError> {
        self.tools.answered.lock().unwrap().push((url.to_owned(), choice.clone(), selected));
        match self.tools.failures.lock().unwrap().pop() {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }
}

#[derive(Default)]
pub struct Inbox {
    pub sent: Mutex<Vec<(InputMessage, DedupId)>>,
}

#[async_trait]
impl InputSender for Inbox {
    async fn send(&self, message: &InputMessage, dedup: &DedupId) -> Result<(), QueueError> {
        self.sent.lock().unwrap().push((message.clone(), dedup.clone()));
        Ok(())
    }
}

#[derive(Default)]
pub struct Output {
    pub sent: Mutex<Vec<OutputMessage>>,
    /// Refuses the next sends.
    pub failures: Mutex<usize>,
}

impl Output {
    /// Texts sent so far, each message once however often it was sent.
    pub fn texts(&self) -> Vec<String> {
        let mut seen = BTreeMap::new();
        let sent = self.sent.lock().unwrap();
        sent.iter()
            .filter(|message| seen.insert(message.message_id.clone(), ()).is_none())
            .map(|message| message.text.clone())
            .collect()
    }
}

#[async_trait]
impl OutputSender for Output {
    async fn send(&self, message: &OutputMessage) -> Result<(), QueueError> {
        let mut failures = self.failures.lock().unwrap();
        if *failures > 0 {
            *failures -= 1;
            return Err(QueueError::Unavailable("a test says so".to_owned()));
        }
        self.sent.lock().unwrap().push(message.clone());
        Ok(())
    }
}

#[derive(Default)]
pub struct Dead {
    pub kept: Mutex<Vec<(String, String)>>,
    pub failures: Mutex<usize>,
}

#[async_trait]
impl DeadLetters for Dead {
    async fn keep(
        &self,
        _thread: &ThreadId,
        message_id: &str,
        _body: &str,
        reason: &str,
    ) -> Result<(), QueueError> {
        let mut failures = self.failures.lock().unwrap();
        if *failures > 0 {
            *failures -= 1;
            return Err(QueueError::Unavailable("a test says so".to_owned()));
        }
        self.kept.lock().unwrap().push((message_id.to_owned(), reason.to_owned()));
        Ok(())
    }
}

#[derive(Default)]
pub struct Delays {
    pub set: Mutex<Vec<(String, Duration)>>,
}

#[async_trait]
impl Redelivery for Delays {
    async fn come_back(&self, receipt_handle: &str, delay: Duration) {
        self.set.lock().unwrap().push((receipt_handle.to_owned(), delay));
    }
}
