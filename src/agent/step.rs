//! One slice for one input, in the caller's own task.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_stream::try_stream;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::redelivery::{keep_owed, left_behind};
use super::{Abandoned, AgentEvent, AgentInput, AgentSystem, events};
use crate::message::{CallId, ThreadId};
use crate::slice::records::process_next;
use crate::slice::{Runtime, Seat};
use crate::store::Meta;
use crate::thread::{Change, Follower};

/// Time of a slice, where nothing else bounds it: what Lambda would give it.
pub(super) const SLICE_TIME: Duration = Duration::from_secs(15 * 60);
/// Slices that one [`AgentSystem::settle`] runs.
const MAX_SETTLING: usize = 10_000;

/// One thread of a system.
#[derive(Clone)]
pub struct Thread {
    system: AgentSystem,
    id: ThreadId,
}

/// What a slice has brought about.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// What it told, in order.
    pub events: Vec<AgentEvent>,
    /// Calls of the thread that are out: it sleeps until their results are given in.
    pub open_calls: Vec<CallId>,
}

impl Step {
    /// The texts of its replies, questions and errors.
    pub fn texts(&self) -> Vec<&str> {
        let outputs = self.events.iter().filter_map(|event| match event {
            AgentEvent::Output(message) => Some(message.text.as_str()),
            AgentEvent::Shown { .. } | AgentEvent::Missed { .. } => None,
        });
        outputs.collect()
    }
}

/// Why a step is not done. `step(input.again())` goes on from what is committed; if anything else is given in instead,
/// what was committed stands, and what it had promised is sent then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct StepError {
    /// What happened, fit for the user.
    pub why: String,
    /// When to try again, where somebody has said so.
    pub after: Option<Duration>,
}

impl Thread {
    pub(super) fn new(system: AgentSystem, id: ThreadId) -> Self {
        Self { system, id }
    }

    /// Its id.
    pub fn id(&self) -> &ThreadId {
        &self.id
    }

    /// Runs one slice for `input`, and returns what it told once everything is committed and sent.
    ///
    /// An input that can never be processed is kept as a dead letter and told to the user; a known duplicate has no effect;
    /// neither is an error. A call that a tool has let out is among [`Step::open_calls`]; give its result in as
    /// [`AgentInput::result`].
    ///
    /// # Errors
    /// The store, the model or a queue does not do its work now.
    pub async fn step(&self, input: impl Into<AgentInput>) -> Result<Step, StepError> {
        let stood = Arc::new(Stood::default());
        let events = self.slice(input.into(), stood.clone()).try_collect().await?;
        let open_calls = stood.meta().map(|meta| meta.pending).unwrap_or_default();
        let open_calls = open_calls.into_iter().filter(|call| !call.parked).map(|call| call.call).collect();
        Ok(Step { events, open_calls })
    }

    /// Takes up what a process before this one may have left of the thread: what it owed is sent, perhaps once more, and what
    /// it had not finished goes on. Worth a call before the first step in a process, on a store that lasts.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub async fn resume(&self) -> Result<Vec<AgentEvent>, StepError> {
        let left = left_behind(self.system.runtime(), &self.id).await;
        let left = left.map_err(|e| StepError { why: e.to_string(), after: None })?;
        let mut told = Vec::new();
        for (_, input) in left {
            told.extend(self.step(input).await?.events);
        }
        Ok(told)
    }

    /// As [`step`](Self::step), with its events as they come. Nothing runs unless the stream is polled; dropping it ends
    /// the slice as a crash would.
    pub fn stream(&self, input: impl Into<AgentInput>) -> BoxStream<'static, Result<AgentEvent, StepError>> {
        self.slice(input.into(), Arc::default())
    }

    fn slice(
        &self,
        input: AgentInput,
        stood: Arc<Stood>,
    ) -> BoxStream<'static, Result<AgentEvent, StepError>> {
        let (tell, mut told) = mpsc::unbounded_channel();
        let mut runtime = self.system.runtime().clone();
        events::tap(&mut runtime, move |event| drop(tell.send(event)));
        let key = self.system.inner.sequence.next(runtime.clock.as_ref());
        let thread = self.id.clone();
        let abandoned = self.system.inner.abandoned.clone();
        let work = async move {
            let failed = |e: &dyn std::fmt::Display| StepError { why: e.to_string(), after: None };
            let unfinished = Unfinished::begin(abandoned, &thread);
            if unfinished.again {
                let left = left_behind(&runtime, &thread).await.map_err(|e| failed(&e))?;
                for (_, left) in left {
                    process(&runtime, &thread, &left, &key, None).await?;
                }
            }
            process(&runtime, &thread, &input, &key, Some(stood)).await?;
            unfinished.end();
            Ok::<(), StepError>(())
        };
        let stream = try_stream! {
            let mut work = std::pin::pin!(work);
            let ended: Result<(), StepError> = loop {
                let next = tokio::select! {
                    biased;
                    Some(event) = told.recv() => Ok(event),
                    ended = &mut work => Err(ended),
                };
                match next {
                    Ok(event) => yield event,
                    Err(ended) => break ended,
                }
            };
            while let Ok(event) = told.try_recv() {
                yield event;
            }
            ended?;
        };
        stream.boxed()
    }
}

/// One slice for one input.
async fn process(
    runtime: &Runtime,
    thread: &ThreadId,
    input: &AgentInput,
    key: &str,
    stood: Option<Arc<Stood>>,
) -> Result<(), StepError> {
    let record = input.record(thread, key).map_err(|e| StepError { why: e.to_string(), after: None })?;
    // Nobody cancels it: whoever drops the stream has ended it.
    let (_keep, cancel) = oneshot::channel();
    let follower = stood.map(|stood| stood as Arc<dyn Follower>);
    let mut seat = Seat { follower, ..Seat::new(cancel) };
    let deadline = Instant::now() + SLICE_TIME;
    match process_next(runtime, thread, &[record], deadline, &mut seat).await {
        (_, Some(failure)) => {
            keep_owed(runtime, thread, &input.id).await;
            Err(StepError { why: failure.reason, after: failure.after })
        }
        (_, None) => Ok(()),
    }
}

/// A slice that has begun and not ended: dropped, it leaves its thread abandoned.
struct Unfinished {
    abandoned: Abandoned,
    thread: ThreadId,
    /// One before it was.
    again: bool,
    ended: bool,
}

impl Unfinished {
    fn begin(abandoned: Abandoned, thread: &ThreadId) -> Self {
        let again = abandoned.take(thread);
        Self { abandoned, thread: thread.clone(), again, ended: false }
    }

    fn end(mut self) {
        self.ended = true;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.ended {
            self.abandoned.add(&self.thread);
        }
    }
}

impl AgentSystem {
    /// Runs slices for what its threads have sent to one another and to themselves, children's work among it, until nothing
    /// is left, and returns what they told. Nothing is done where a real queue takes those messages, or while the system
    /// is resident.
    ///
    /// # Errors
    /// As [`Thread::step`]: the message stays, and the next call begins with it.
    pub async fn settle(&self) -> Result<Vec<AgentEvent>, StepError> {
        let mut told = Vec::new();
        let mut inbox = self.inner.inbox.lock().await;
        let Some(inbox) = inbox.as_mut() else { return Ok(told) };
        for _ in 0..MAX_SETTLING {
            let next = match inbox.held.take() {
                Some(held) => held,
                None => match inbox.queue.try_recv() {
                    Ok(next) => next,
                    Err(_) => return Ok(told),
                },
            };
            let thread = Thread::new(self.clone(), next.message.group_id.clone());
            match thread.step(&next).await {
                Ok(step) => told.extend(step.events),
                Err(e) => {
                    inbox.held = Some(next.again());
                    return Err(e);
                }
            }
        }
        let why = format!("the threads still send to one another after {MAX_SETTLING} slices");
        Err(StepError { why, after: None })
    }
}

/// Where the thread stood last.
#[derive(Default)]
struct Stood(Mutex<Option<Meta>>);

impl Stood {
    fn meta(&self) -> Option<Meta> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Follower for Stood {
    fn changed(&self, change: Change) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = change.meta;
    }
}
