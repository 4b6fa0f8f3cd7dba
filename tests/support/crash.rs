//! A world whose ports stop for ever at a chosen point, as they do for a process that is killed there: the slice is
//! dropped where it stands, and what it had done up to then stays done.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use dormouse::history::request::ModelRequest;
use dormouse::message::{CallId, DedupId, Epoch, Item, MessageId, OutputMessage, RawJson, ThreadId};
use dormouse::model::scripted::ScriptedModel;
use dormouse::model::{ModelError, ModelInfo, ModelProvider, ModelStream};
use dormouse::queue::{OutputSender, QueueError};
use dormouse::slice::{AgentProfile, Agents};
use dormouse::store::memory::MemoryStore;
use dormouse::store::{
    ChoiceRow, Commit, Committed, Compacted, CompactionCommit, ConversationStore, DeadLetter, Generation,
    GenerationId, Hold, Kinship, Loaded, Log, Meta, RunStore, Span, StateStore, Stop, Store, StoreError,
    Subscription, Terms, ThreadSummary,
};
use dormouse::tools::{Execution, Invocation, Registry, Tool, ToolDefinition, ToolError, ToolOutput};
use futures::StreamExt;
use tokio::sync::Notify;

use crate::world::{Delivery, World};

/// No slice takes longer to get where it is to be killed.
const LIMIT: Duration = Duration::from_secs(30);
/// Turns that everything else of a slice gets while one port stands still: more than any slice takes.
const TURNS: usize = 200;

/// Where a slice is killed. Numbers count from 1, from the beginning of the delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// The thread is not read yet.
    Load,
    /// A commit is asked for and nothing of it is written.
    CommitAsked(usize),
    /// A commit is written and its answer does not arrive.
    CommitWritten(usize),
    /// The first piece of a response has arrived.
    Streaming(usize),
    /// The output is not in its queue yet.
    OutputAsked,
    /// The output is in its queue and the answer does not arrive.
    OutputSent,
    /// The tool has not received the call yet.
    CallAsked(&'static str),
    /// The tool has the call and the acknowledgement does not arrive.
    CallTaken(&'static str),
    /// The synchronous tool has run and its result is nowhere.
    Ran(&'static str),
    /// The notice about an interrupted call is not out yet.
    CancelAsked,
    /// The tool has the notice and the answer does not arrive.
    CancelTaken,
}

/// The point that is armed, and whether it was reached.
#[derive(Default)]
struct Kill {
    armed: Mutex<Option<Point>>,
    counts: Mutex<(usize, usize)>,
    reached: Notify,
}

impl Kill {
    /// Passes, or stands still for ever.
    async fn pass(&self, point: Point) {
        if *self.armed.lock().unwrap() == Some(point) {
            self.reached.notify_one();
            std::future::pending::<()>().await;
        }
    }

    fn arm(&self, point: Option<Point>) {
        *self.armed.lock().unwrap() = point;
        *self.counts.lock().unwrap() = (0, 0);
    }

    fn next_commit(&self) -> usize {
        let mut counts = self.counts.lock().unwrap();
        counts.0 += 1;
        counts.0
    }

    fn next_request(&self) -> usize {
        let mut counts = self.counts.lock().unwrap();
        counts.1 += 1;
        counts.1
    }
}

/// A [`World`] whose slices can be killed. The model does what the prompts say.
pub struct Mortal {
    pub world: World,
    kill: Arc<Kill>,
}

impl Mortal {
    pub async fn new() -> Self {
        let kill = Arc::new(Kill::default());
        let store = MemoryStore::new();
        let port: Arc<dyn Store> = Arc::new(MortalStore { store: store.clone(), kill: kill.clone() });
        let mut world = World::over(port, ScriptedModel::prompts());
        world.store = store;
        let offered = world.runtime.tools.tools("default", &ThreadId::from(crate::world::THREAD)).await;
        let tools = offered
            .registry
            .iter()
            .map(|tool| Arc::new(MortalTool { tool: tool.clone(), kill: kill.clone() }) as Arc<dyn Tool>);
        world.runtime.tools = Arc::new(Registry::new(tools));
        world.runtime.agents = Arc::new(MortalAgents(world.runtime.agents.clone(), kill.clone()));
        world.runtime.output = Arc::new(MortalOutput(world.runtime.output.clone(), kill.clone()));
        Self { world, kill }
    }

    /// Delivers a message to a slice that is killed at `point`.
    pub async fn killed(&self, point: Point, delivery: &Delivery) {
        self.killed_batch(point, std::slice::from_ref(delivery)).await;
    }

    /// The same with several messages at once.
    pub async fn killed_batch(&self, point: Point, batch: &[Delivery]) {
        self.kill.arm(Some(point));
        let (world, batch) = (self.world.clone(), batch.to_vec());
        let slice = tokio::spawn(async move { world.deliver(&batch).await });
        let reached = tokio::time::timeout(LIMIT, self.kill.reached.notified()).await;
        assert!(reached.is_ok(), "{point:?} was not reached; the slice has ended: {}", slice.is_finished());
        // What runs beside the port that stands still gets as far as it can.
        for _ in 0..TURNS {
            tokio::task::yield_now().await;
        }
        slice.abort();
        assert!(slice.await.is_err_and(|error| error.is_cancelled()), "{point:?}: the slice was not running");
        self.kill.arm(None);
    }
}

struct MortalStore {
    store: MemoryStore,
    kill: Arc<Kill>,
}

#[async_trait]
impl ConversationStore for MortalStore {
    async fn load(&self, thread: &ThreadId, dedup: &[DedupId]) -> Result<Loaded, StoreError> {
        self.kill.pass(Point::Load).await;
        self.store.load(thread, dedup).await
    }

    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        let number = self.kill.next_commit();
        self.kill.pass(Point::CommitAsked(number)).await;
        let committed = self.store.commit(commit).await;
        self.kill.pass(Point::CommitWritten(number)).await;
        committed
    }

    async fn load_for_request(&self, thread: &ThreadId, dedup: &[DedupId]) -> Result<Loaded, StoreError> {
        self.kill.pass(Point::Load).await;
        self.store.load_for_request(thread, dedup).await
    }

    async fn compact(&self, change: CompactionCommit) -> Result<Compacted, StoreError> {
        let number = self.kill.next_commit();
        self.kill.pass(Point::CommitAsked(number)).await;
        let compacted = self.store.compact(change).await;
        self.kill.pass(Point::CommitWritten(number)).await;
        compacted
    }

    async fn generation(&self, id: &GenerationId) -> Result<Option<Generation>, StoreError> {
        self.store.generation(id).await
    }

    async fn read_span(&self, span: &Span) -> Result<Vec<Item>, StoreError> {
        self.store.read_span(span).await
    }

    async fn log(&self, thread: &ThreadId, epoch: Epoch) -> Result<Log, StoreError> {
        self.store.log(thread, epoch).await
    }

    async fn put_log(&self, snapshot: &ThreadId, items: &[Item]) -> Result<(), StoreError> {
        self.store.put_log(snapshot, items).await
    }

    async fn is_message_processed(&self, thread: &ThreadId, dedup: &DedupId) -> Result<bool, StoreError> {
        self.store.is_message_processed(thread, dedup).await
    }

    async fn meta(&self, thread: &ThreadId) -> Result<Option<Meta>, StoreError> {
        self.store.meta(thread).await
    }

    async fn claim_thread(&self, thread: &ThreadId, owner: &str, now_ms: i64) -> Result<String, StoreError> {
        self.store.claim_thread(thread, owner, now_ms).await
    }

    async fn list_threads_of(&self, owner: &str, limit: usize) -> Result<Vec<ThreadSummary>, StoreError> {
        self.store.list_threads_of(owner, limit).await
    }

    async fn list_threads(&self, limit: usize) -> Result<Vec<ThreadSummary>, StoreError> {
        self.store.list_threads(limit).await
    }

    async fn raise_attempts(
        &self,
        thread: &ThreadId,
        dedup: &DedupId,
        cause: &dormouse::message::MessageId,
    ) -> Result<u32, StoreError> {
        self.store.raise_attempts(thread, dedup, cause).await
    }

    async fn lower_attempts(&self, thread: &ThreadId, dedup: &DedupId) -> Result<(), StoreError> {
        self.store.lower_attempts(thread, dedup).await
    }

    async fn failed_input(
        &self,
        thread: &ThreadId,
        cause: &MessageId,
    ) -> Result<Option<DedupId>, StoreError> {
        self.store.failed_input(thread, cause).await
    }

    async fn put_claim(&self, body: &str) -> Result<String, StoreError> {
        self.store.put_claim(body).await
    }

    async fn claim(&self, digest: &str) -> Result<Option<String>, StoreError> {
        self.store.claim(digest).await
    }
}

#[async_trait]
impl StateStore for MortalStore {
    fn runs(&self) -> Option<&dyn RunStore> {
        self.store.runs()
    }

    async fn metadata(&self, root: &ThreadId) -> Result<Option<RawJson>, StoreError> {
        self.store.metadata(root).await
    }

    async fn subscription(
        &self,
        thread: &ThreadId,
        call: &CallId,
    ) -> Result<Option<Subscription>, StoreError> {
        self.store.subscription(thread, call).await
    }

    async fn get_active_subscriptions(&self, thread: &ThreadId) -> Result<Vec<CallId>, StoreError> {
        self.store.get_active_subscriptions(thread).await
    }

    async fn choice(&self, thread: &ThreadId, id: &CallId) -> Result<Option<ChoiceRow>, StoreError> {
        self.store.choice(thread, id).await
    }

    async fn open_choices(&self, thread: &ThreadId) -> Result<Vec<ChoiceRow>, StoreError> {
        self.store.open_choices(thread).await
    }

    async fn request_stop(&self, thread: &ThreadId, stop: &Stop) -> Result<(), StoreError> {
        self.store.request_stop(thread, stop).await
    }

    async fn stop(&self, thread: &ThreadId) -> Result<Option<Stop>, StoreError> {
        self.store.stop(thread).await
    }

    async fn put_view(&self, thread: &ThreadId, kind: &str, content: &RawJson) -> Result<(), StoreError> {
        self.store.put_view(thread, kind, content).await
    }

    async fn views(&self, thread: &ThreadId) -> Result<Vec<(String, RawJson)>, StoreError> {
        self.store.views(thread).await
    }

    async fn manifest(&self, server: &str) -> Result<Option<(String, i64)>, StoreError> {
        self.store.manifest(server).await
    }

    async fn put_manifest(&self, server: &str, manifest: &str, now_ms: i64) -> Result<(), StoreError> {
        self.store.put_manifest(server, manifest, now_ms).await
    }

    async fn relatives(
        &self,
        thread: &ThreadId,
        kinship: Kinship,
        after: Option<&ThreadId>,
        limit: usize,
    ) -> Result<Vec<ThreadId>, StoreError> {
        self.store.relatives(thread, kinship, after, limit).await
    }

    async fn open_children(&self, root: &ThreadId) -> Result<u32, StoreError> {
        self.store.open_children(root).await
    }

    async fn keep_dead_letter(&self, letter: &DeadLetter) -> Result<(), StoreError> {
        self.store.keep_dead_letter(letter).await
    }

    async fn dead_letter(&self, thread: &ThreadId, id: &MessageId) -> Result<Option<DeadLetter>, StoreError> {
        self.store.dead_letter(thread, id).await
    }

    async fn dead_letters(&self, limit: usize) -> Result<Vec<DeadLetter>, StoreError> {
        self.store.dead_letters(limit).await
    }

    async fn forget_dead_letter(&self, thread: &ThreadId, id: &MessageId) -> Result<(), StoreError> {
        self.store.forget_dead_letter(thread, id).await
    }
}

struct MortalTool {
    tool: Arc<dyn Tool>,
    kill: Arc<Kill>,
}

impl MortalTool {
    /// The points name tools by constants; a tool that none names cannot be killed at.
    fn name(&self) -> &'static str {
        let names = ["echo", "other", "nap", "add", "pay"];
        names.into_iter().find(|name| *name == self.tool.definition().name).unwrap_or("")
    }
}

#[async_trait]
impl Tool for MortalTool {
    fn definition(&self) -> &ToolDefinition {
        self.tool.definition()
    }

    fn execution(&self) -> Execution {
        self.tool.execution()
    }

    fn server(&self) -> Option<&str> {
        self.tool.server()
    }

    fn hold(&self) -> Option<Hold> {
        self.tool.hold()
    }

    fn terms(&self) -> Terms {
        self.tool.terms()
    }

    async fn execute(&self, call: &Invocation) -> Result<(), ToolError> {
        self.kill.pass(Point::CallAsked(self.name())).await;
        let taken = self.tool.execute(call).await;
        self.kill.pass(Point::CallTaken(self.name())).await;
        taken
    }

    async fn execute_synchronous(&self, call: &Invocation) -> Result<ToolOutput, ToolError> {
        let ran = self.tool.execute_synchronous(call).await;
        self.kill.pass(Point::Ran(self.name())).await;
        ran
    }

    async fn answer_choice(&self, url: &str, choice: &CallId, selected: usize) -> Result<(), ToolError> {
        self.tool.answer_choice(url, choice, selected).await
    }

    async fn cancel(&self, thread: &ThreadId, call: &CallId) {
        self.kill.pass(Point::CancelAsked).await;
        self.tool.cancel(thread, call).await;
        self.kill.pass(Point::CancelTaken).await;
    }
}

struct MortalAgents(Arc<dyn Agents>, Arc<Kill>);

impl Agents for MortalAgents {
    fn default_agent(&self) -> &str {
        self.0.default_agent()
    }

    fn knows(&self, agent: &str) -> bool {
        self.0.knows(agent)
    }

    fn profile(&self, agent: &str) -> Result<AgentProfile, ModelError> {
        let profile = self.0.profile(agent)?;
        let model = Arc::new(MortalModel(profile.model, self.1.clone()));
        Ok(AgentProfile { model, ..profile })
    }
}

struct MortalModel(Arc<dyn ModelProvider>, Arc<Kill>);

#[async_trait]
impl ModelProvider for MortalModel {
    fn info(&self) -> ModelInfo {
        self.0.info()
    }

    fn model(&self) -> &str {
        self.0.model()
    }

    async fn stream(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        let point = Point::Streaming(self.1.next_request());
        let (stream, kill) = (self.0.stream(request).await?, self.1.clone());
        Ok(Box::pin(stream.enumerate().then(move |(at, event)| {
            let kill = kill.clone();
            async move {
                // The first piece passes; the second never comes.
                if at == 1 {
                    kill.pass(point).await;
                }
                event
            }
        })))
    }
}

struct MortalOutput(Arc<dyn OutputSender>, Arc<Kill>);

#[async_trait]
impl OutputSender for MortalOutput {
    async fn send(&self, message: &OutputMessage) -> Result<(), QueueError> {
        self.1.pass(Point::OutputAsked).await;
        self.0.send(message).await?;
        self.1.pass(Point::OutputSent).await;
        Ok(())
    }
}

/// Distinct values, for what is done at least once.
pub fn distinct<T: Ord + Clone>(values: &[T]) -> BTreeSet<T> {
    values.iter().cloned().collect()
}
