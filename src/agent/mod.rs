//! dormouse as a library: agents that run inside your own process, over the same slices and the same commits.
//!
//! An [`AgentSystem`] is put together with a [`builder`](AgentSystem::builder): agents (a model, a prompt), tools, a store
//! and queues, each of which is a port with a default that needs nothing outside the process. A [`Thread`] of it is then
//! driven in one of two ways:
//!
//! - [`Thread::step`] runs one slice for one input and returns what it said; what the threads send to one another meanwhile
//!   waits for [`AgentSystem::settle`]. Nothing runs in between.
//! - [`AgentSystem::start`] makes the system *resident*: each active thread is owned by one task, a
//!   [`ThreadActor`](actor::ThreadActor), behind a cloneable [`ThreadHandle`]; inputs are routed to it, new user text ends a
//!   running response at once, and a thread that nobody speaks to is put down after a while.
//!
//! Either way an input is processed exactly as a message of the queue: it has a dedup id and a sequence number, prepared
//! inputs and output go into the store under the same conditions, and what a commit promises is sent after it. A thread may
//! be served by workers and by this room at once: one commit wins, the other starts over from it.
//!
//! What happens is told as [`AgentEvent`]s to a [stream](AgentSystem::events), and inline to
//! [observers](AgentSystemBuilder::observer).
//!
//! | file | what it holds |
//! |---|---|
//! | `builder` | how a system is put together |
//! | `events` | what it tells |
//! | `input` | what it is told, and the queue inside the process |
//! | `step` | one slice for one input |
//! | `actor`, `redelivery` | the resident mode: the owner of one thread, and what becomes of its inputs |
//! | `handle`, `view` | how it is spoken to, and what is seen of it |
//! | `resident` | the resident mode: all threads |
//! | `tool` | tools from closures |

pub mod actor;
mod builder;
mod events;
mod handle;
mod input;
mod redelivery;
mod resident;
mod step;
mod tool;
mod view;

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::stream::BoxStream;
use tokio::sync::{Mutex, broadcast};

use crate::mcp::McpServers;
use crate::message::ThreadId;
use crate::slice::Runtime;

pub use builder::{AgentSystemBuilder, BuildError};
pub use events::AgentEvent;
pub use handle::{ActorGone, NotPushed, ReadError, ThreadHandle, WriteOutcome};
pub use input::AgentInput;
pub use resident::{Resident, ResidentError, ResidentOptions};
pub use step::{Step, StepError, Thread};
pub use tool::FnTool;
pub use view::{ReplaySnapshot, Running};

use input::{Inbox, Sequence};

/// Agents inside this process. Cheap to clone; see the module.
#[derive(Clone)]
pub struct AgentSystem {
    inner: Arc<Inner>,
}

struct Inner {
    runtime: Runtime,
    events: broadcast::Sender<AgentEvent>,
    sequence: Arc<Sequence>,
    /// What the threads have sent to one another; none where a real queue takes it, or a resident system has it.
    inbox: Mutex<Option<Inbox>>,
    /// There was one.
    is_local: bool,
    mcp: Option<Arc<McpServers>>,
    abandoned: Abandoned,
}

/// Threads whose last slice was dropped before its end: what it committed may be owed still, and nothing in the store can
/// tell that from what was sent. Whoever serves such a thread next takes that up first.
#[derive(Clone, Default)]
struct Abandoned(Arc<std::sync::Mutex<BTreeSet<ThreadId>>>);

impl Abandoned {
    fn add(&self, thread: &ThreadId) {
        self.threads().insert(thread.clone());
    }

    fn take(&self, thread: &ThreadId) -> bool {
        self.threads().remove(thread)
    }

    fn threads(&self) -> std::sync::MutexGuard<'_, BTreeSet<ThreadId>> {
        // A set is whole whatever panicked while it was locked.
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl AgentSystem {
    /// Begins one.
    pub fn builder() -> AgentSystemBuilder {
        AgentSystemBuilder::default()
    }

    /// A system over parts that were put together elsewhere, by [`crate::assembly::assemble`] say: its table, queues, tool
    /// servers. What its threads send goes to the queue of `runtime`.
    pub fn over(runtime: Runtime) -> Self {
        Self::with(runtime, None, None)
    }

    fn with(mut runtime: Runtime, inbox: Option<Inbox>, mcp: Option<Arc<McpServers>>) -> Self {
        let events = events::attach(&mut runtime);
        let (sequence, is_local) = (Arc::default(), inbox.is_some());
        let inbox = Mutex::new(inbox);
        let abandoned = Abandoned::default();
        Self { inner: Arc::new(Inner { runtime, events, sequence, inbox, is_local, mcp, abandoned }) }
    }

    /// The parts that its slices speak to.
    pub fn runtime(&self) -> &Runtime {
        &self.inner.runtime
    }

    /// What happens from now on, in every thread. A reader that stays far behind is told how much it has missed.
    pub fn events(&self) -> BoxStream<'static, AgentEvent> {
        events::stream(self.inner.events.subscribe())
    }

    /// A thread, which need not exist yet.
    pub fn thread(&self, id: impl Into<String>) -> Thread {
        Thread::new(self.clone(), ThreadId::new(id))
    }

    /// Makes it resident, on the current tokio runtime, until [`Resident::stop`]; then it may be started again.
    ///
    /// # Errors
    /// It is resident already.
    pub async fn start(&self, options: ResidentOptions) -> Result<Resident, ResidentError> {
        Resident::start(self, options).await
    }

    /// Ends MCP sessions and processes, where there are any.
    pub async fn close(&self) {
        if let Some(mcp) = &self.inner.mcp {
            mcp.close().await;
        }
    }
}
