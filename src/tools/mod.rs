//! Tools as a port: what the model may call, and how a call is carried out.
//!
//! A *synchronous* tool runs inside the slice after the commit of its call; an *asynchronous* one is
//! dispatched and answers through the input queue, in a millisecond or in three days.

pub mod builtin;
mod registry;
mod schema;
mod servers;

use async_trait::async_trait;
use serde_json::Value;

pub use crate::history::request::ToolDefinition;
use crate::message::{CallId, ContentPart, DedupId, Firing, InputMessage, MessageId, ThreadId};
use crate::queue::QueueError;
use crate::store::{Hold, Terms};
pub use registry::{ArgumentError, RESERVED_NAMES, Registry};
pub use servers::{AgentTools, Offer, ToolServers};

/// How a tool's calls are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Execution {
    /// Inside the slice.
    Synchronous(Rerun),
    /// Dispatched; the result comes back as an input.
    Asynchronous(Waiting),
}

/// Whether a synchronous call may run again after a crash hid whether it ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rerun {
    /// Built in or idempotent: it runs again under its id.
    Safe,
    /// It is answered as *lost*.
    Never,
}

/// What an outstanding asynchronous call means for other inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Work is going on: events are deferred until its result is in.
    Active,
    /// It only waits (a sleep): anything may interrupt it.
    Passive,
}

/// One call as it leaves the process.
#[derive(Clone, Debug, PartialEq)]
pub struct Invocation {
    /// The thread.
    pub thread: ThreadId,
    /// Root first, parent last; empty on a root.
    pub ancestors: Vec<ThreadId>,
    /// dormouse's id of the call, the same on every attempt.
    pub call: CallId,
    /// The tool.
    pub name: String,
    /// The arguments: text of a JSON object, as the model wrote it.
    pub arguments: String,
    /// The principal on whose behalf.
    pub user: Option<String>,
    /// The messages that caused it.
    pub cause: Vec<MessageId>,
    /// Whether an earlier delivery may have let it out already: what takes no call id can tell by this alone.
    pub resumed: bool,
}

/// What a synchronous tool returns.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolOutput {
    /// The result for the model.
    pub parts: Vec<ContentPart>,
    /// What else the call brings about, in the commit of its result.
    pub effects: Vec<Effect>,
}

impl ToolOutput {
    /// A text, and nothing else.
    pub fn text(text: impl Into<String>) -> Self {
        Self { parts: vec![ContentPart::text(text)], effects: Vec::new() }
    }

    /// The same with an effect.
    pub fn with(mut self, effect: Effect) -> Self {
        self.effects.push(effect);
        self
    }
}

/// What a synchronous call changes in its own thread besides its result. Only tools that are built in have any.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// The call takes events from here on.
    Subscribe,
    /// The call has its tool set a timer for this firing, after the commit.
    Schedule(Firing),
    /// A call of this thread takes no events any more; its tool server is told.
    Unsubscribe(CallId),
    /// The call makes a child of this thread.
    Spawn(Spawn),
    /// The report among the call's arguments goes to the parent.
    Report,
    /// The message among the call's arguments goes to a child.
    Message {
        /// The child.
        to: ThreadId,
        /// The call that made it.
        origin: CallId,
    },
    /// The thread is closed, and the slice ends.
    Close,
    /// What the thread shares with its user's application changes so.
    Share(json_patch::Patch),
}

/// A child to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spawn {
    /// What it inherits.
    pub context: SpawnContext,
    /// The result of the call that it wakes up with.
    pub instructions: String,
}

/// What a child inherits of its parent's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpawnContext {
    /// Nothing.
    Fresh,
    /// Everything up to the point where no call is open.
    Inherit,
}

/// Why a call could not be carried out. The text goes to the model: no address, no stack trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ToolError {
    /// The tool, or the way to it, refused for good.
    #[error("{0}")]
    Failed(String),
    /// It did not answer in time, or answered with a fault, also after the retries.
    #[error("{0}")]
    Unavailable(String),
}

/// A tool.
#[async_trait]
pub trait Tool: Send + Sync {
    /// What the model is told.
    fn definition(&self) -> &ToolDefinition;

    /// How its calls are carried out.
    fn execution(&self) -> Execution;

    /// The tool server it belongs to; none for built-in tools.
    fn server(&self) -> Option<&str> {
        None
    }

    /// What its calls wait for before they are dispatched; none: they go out with their commit.
    fn hold(&self) -> Option<Hold> {
        None
    }

    /// What its calls are given while they wait.
    fn terms(&self) -> Terms {
        Terms::default()
    }

    /// Dispatches a call and returns without waiting for its result. Called only after the call is committed.
    async fn execute(&self, call: &Invocation) -> Result<(), ToolError> {
        Err(ToolError::Failed(format!("{} runs inside the slice", call.name)))
    }

    /// Runs a call inside the slice. Called only for [`Execution::Synchronous`] tools.
    async fn execute_synchronous(&self, call: &Invocation) -> Result<ToolOutput, ToolError> {
        Err(ToolError::Failed(format!("{} does not run inside a slice", call.name)))
    }

    /// Tells whoever runs `call` that nobody waits for it any more. Best effort.
    async fn cancel(&self, _thread: &ThreadId, _call: &CallId) {}

    /// Tells the tool's server that the thread is closed. Best effort.
    async fn close(&self, _thread: &ThreadId) {}

    /// Has a firing of the schedule that `call` made come when it is due. Called only after that is committed, at least
    /// once, with the arguments of the call.
    async fn set_timer(
        &self,
        _thread: &ThreadId,
        _call: &CallId,
        _arguments: &str,
        _firing: Firing,
    ) -> Result<(), QueueError> {
        Err(QueueError::Refused(format!("{} makes no schedules", self.definition().name)))
    }

    /// Has the question whether a call may run dismissed when its time is up. Called only after it is asked and committed,
    /// at least once.
    async fn set_expiry(
        &self,
        _due_ms: i64,
        _dismissal: &InputMessage,
        _dedup: &DedupId,
    ) -> Result<(), QueueError> {
        Err(QueueError::Refused(format!("{} has no timers", self.definition().name)))
    }

    /// Tells whoever runs `choice` what the user has chosen. Called only after that is committed, at least once.
    async fn answer_choice(
        &self,
        _response_url: &str,
        _choice: &CallId,
        _selected: usize,
    ) -> Result<(), ToolError> {
        Err(ToolError::Failed(format!("{} asks nobody", self.definition().name)))
    }
}

/// Where an agent's tools come from: built in, discovered from tool servers, or both.
#[async_trait]
pub trait ToolSource: Send + Sync {
    /// The tools of `agent` in the session of `root`, and what went wrong on the way: a server that is down
    /// costs its tools, never the thread.
    async fn tools(&self, agent: &str, root: &ThreadId) -> ToolSet;
}

/// The tools of one session, and complaints for the user.
#[derive(Clone, Default)]
pub struct ToolSet {
    /// What can be called.
    pub registry: Registry,
    /// One line for each server or tool that is missing, fit for the user.
    pub problems: Vec<String>,
}

/// A fixed set of tools, the same for every agent and session.
#[async_trait]
impl ToolSource for Registry {
    async fn tools(&self, _agent: &str, _root: &ThreadId) -> ToolSet {
        ToolSet { registry: self.clone(), problems: Vec::new() }
    }
}

/// The empty object schema: a tool without arguments.
pub fn no_arguments() -> Value {
    serde_json::json!({"type": "object", "properties": {}})
}
