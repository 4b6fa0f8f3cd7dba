//! The resident mode: every active thread has an actor, inputs are routed to it, and what nobody speaks to is put down.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::join_all;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::actor::{ActorOptions, Start, ThreadActor};
use super::handle::{ThreadHandle, WeakHandle};
use super::input::Inbox;
use super::{ActorGone, AgentInput, AgentSystem};
use crate::message::ThreadId;

/// Threads of which it is remembered that this process has served them. Beyond it all are forgotten; what they owed is
/// then perhaps sent once more.
const MAX_REMEMBERED: usize = 100_000;

/// How a resident system goes about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResidentOptions {
    /// How each thread is served.
    pub actor: ActorOptions,
    /// Threads that may be active at once, children not counted.
    pub max_active: usize,
}

impl Default for ResidentOptions {
    fn default() -> Self {
        Self { actor: ActorOptions::default(), max_active: 10_000 }
    }
}

/// Why a thread cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResidentError {
    /// Only one resident system takes the messages between the threads.
    #[error("the system is resident already")]
    AlreadyResident,
    /// Too many threads are active.
    #[error("{0} threads are active, and that is the most; try again when some are idle")]
    Busy(usize),
    /// It was stopped.
    #[error("the system was stopped")]
    Stopped,
}

/// A system that is resident. Dropping it is [`Resident::stop`] without waiting.
pub struct Resident {
    orders: mpsc::UnboundedSender<Order>,
    router: JoinHandle<()>,
}

enum Order {
    Open(ThreadId, oneshot::Sender<Result<ThreadHandle, ResidentError>>),
    Idle(ThreadId),
    Stop(Duration),
}

impl Resident {
    pub(super) async fn start(system: &AgentSystem, options: ResidentOptions) -> Result<Self, ResidentError> {
        let mut held = system.inner.inbox.lock().await;
        // Where a real queue takes the messages between threads there is none to take.
        let local = held.take();
        if local.is_none() && system.inner.is_local {
            return Err(ResidentError::AlreadyResident);
        }
        let (orders, taken) = mpsc::unbounded_channel();
        let router = Router {
            system: system.clone(),
            options,
            orders: orders.downgrade(),
            active: BTreeMap::new(),
            served: BTreeSet::new(),
        };
        Ok(Self { orders, router: tokio::spawn(router.run(taken, local)) })
    }

    /// The handle of a thread, whose actor is started if there is none. A handle keeps its actor: drop it when the client
    /// is gone.
    ///
    /// # Errors
    /// Too many threads are active.
    pub async fn thread(&self, id: impl Into<String>) -> Result<ThreadHandle, ResidentError> {
        let (reply, answer) = oneshot::channel();
        let order = Order::Open(ThreadId::new(id), reply);
        self.orders.send(order).map_err(|_| ResidentError::Stopped)?;
        answer.await.map_err(|_| ResidentError::Stopped)?
    }

    /// Takes nothing any more, also of those who have handles, lets what was pushed be done for `grace`, and drops what is
    /// left then, as a crash would: nothing that was acknowledged is lost.
    pub async fn stop(self, grace: Duration) {
        // A router that is gone has stopped already.
        let _ = self.orders.send(Order::Stop(grace));
        if self.router.await.is_err() {
            tracing::error!("the router of a resident system panicked");
        }
    }
}

struct Router {
    system: AgentSystem,
    options: ResidentOptions,
    orders: mpsc::WeakUnboundedSender<Order>,
    active: BTreeMap<ThreadId, Active>,
    /// Threads that an actor of this process has served: what they owed was sent.
    served: BTreeSet<ThreadId>,
}

struct Active {
    /// Keeps the actor of a thread that is not idle.
    handle: Option<ThreadHandle>,
    weak: WeakHandle,
    task: JoinHandle<()>,
}

impl Router {
    async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Order>, mut inbox: Option<Inbox>) {
        if let Some(held) = inbox.as_mut().and_then(|inbox| inbox.held.take()) {
            self.route(held);
        }
        let grace = loop {
            tokio::select! {
                biased;
                order = orders.recv() => match order {
                    Some(Order::Open(thread, reply)) => {
                        let _ = reply.send(self.open(thread));
                    }
                    Some(Order::Idle(thread)) => self.let_go(&thread),
                    Some(Order::Stop(grace)) => break grace,
                    None => break Duration::ZERO,
                },
                input = next(&mut inbox) => match input {
                    Some(input) => self.route(input),
                    None => inbox = None,
                },
            }
        };
        let (mut tasks, mut stop) = (Vec::new(), Vec::new());
        for (thread, active) in std::mem::take(&mut self.active) {
            if let Some(handle) = active.handle.or_else(|| active.weak.upgrade()) {
                handle.end();
            }
            stop.push((thread, active.task.abort_handle()));
            tasks.push(active.task);
        }
        if tokio::time::timeout(grace, join_all(tasks)).await.is_err() {
            tracing::warn!(
                "slices that were still running are dropped; what is not committed of them is lost"
            );
            for (thread, task) in stop.iter().filter(|(_, task)| !task.is_finished()) {
                task.abort();
                self.system.inner.abandoned.add(thread);
            }
        }
        // What was sent meanwhile waits for the next start, or to be settled.
        *self.system.inner.inbox.lock().await = inbox;
    }

    /// Passes on what one thread has sent to another, or to itself.
    fn route(&mut self, input: AgentInput) {
        let thread = input.message.group_id.clone();
        // An actor of which a handle is at hand is there.
        if let Err(ActorGone) = self.serve(thread.clone()).pass_on(input) {
            tracing::error!(%thread, "a message between threads found nobody");
        }
    }

    fn open(&mut self, thread: ThreadId) -> Result<ThreadHandle, ResidentError> {
        self.forget_ended();
        if self.active.len() >= self.options.max_active && !self.active.contains_key(&thread) {
            return Err(ResidentError::Busy(self.options.max_active));
        }
        Ok(self.serve(thread))
    }

    /// Actors that have ended are forgotten where there would be too many.
    fn forget_ended(&mut self) {
        if self.active.len() >= self.options.max_active {
            self.active.retain(|_, active| active.handle.is_some() || !active.task.is_finished());
        }
    }

    /// The handle of a thread's actor, started if there is none.
    fn serve(&mut self, thread: ThreadId) -> ThreadHandle {
        self.forget_ended();
        let before = match self.active.remove(&thread) {
            Some(mut active) => match active.handle.clone().or_else(|| active.weak.upgrade()) {
                Some(handle) => {
                    active.handle = Some(handle.clone());
                    self.active.insert(thread, active);
                    return handle;
                }
                // It has no handles left and may still be at its last input.
                None => Some(active.task),
            },
            None => None,
        };
        if self.served.len() >= MAX_REMEMBERED {
            self.served.clear();
        }
        let start = if self.served.insert(thread.clone()) { self.options.actor.start } else { Start::Fresh };
        let options = ActorOptions { start, ..self.options.actor.clone() };
        let orders = self.orders.clone();
        let on_idle = Box::new(move |thread: &ThreadId| {
            if let Some(orders) = orders.upgrade() {
                let _ = orders.send(Order::Idle(thread.clone()));
            }
        });
        let (handle, task) =
            ThreadActor::spawn_behind(&self.system, thread.clone(), options, on_idle, before);
        let weak = handle.downgrade();
        self.active.insert(thread, Active { handle: Some(handle.clone()), weak, task });
        handle
    }

    /// Keeps the actor of an idle thread no longer: it ends, unless somebody else has a handle.
    fn let_go(&mut self, thread: &ThreadId) {
        if let Some(active) = self.active.get_mut(thread) {
            active.handle = None;
        }
    }
}

async fn next(inbox: &mut Option<Inbox>) -> Option<AgentInput> {
    match inbox {
        Some(inbox) => inbox.queue.recv().await,
        None => std::future::pending().await,
    }
}
