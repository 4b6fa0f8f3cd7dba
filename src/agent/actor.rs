//! One resident thread: a task that owns it.
//!
//! The actor is the thread's queue and its worker in one. Inputs wait in arrival order; a slice takes those that are there,
//! as a worker takes a batch of the queue, and what fails is done again after a delay, counted, and in the end given up on,
//! all by the rules of the slices. What the actor knows of the thread besides is a copy of what is committed: it follows the
//! commits, never runs ahead of them, and is read again from the store where another writer has moved the thread.
//!
//! While a slice runs, the mailbox is served: reads see what is committed and what is being streamed, and new user text ends
//! the response at once.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use super::handle::{Command, Pushed, Read, ThreadHandle};
use super::input::Sequence;
use super::step::SLICE_TIME;
use super::view::{Partial, Running, View};
use super::{AgentEvent, AgentSystem, events};
use crate::message::ThreadId;
use crate::slice::records::{Failure, Record, process_next};
use crate::slice::{Cancel, DisplayEvent, Runtime, Seat};
use crate::thread::{Change, Follower, HistoryManager, Known};

/// Inputs that one slice takes: as many as a batch of the queue.
const MAX_BATCH: usize = 10;
/// Times that an input is given in before it is put aside as a dead letter: what a queue allows.
const MAX_RECEIVES: u32 = 100;

/// How an actor goes about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActorOptions {
    /// Inputs from outside that wait at most; more are refused, or wait for a place.
    pub capacity: usize,
    /// After so long without anything to do it forgets what it knows of the thread.
    pub idle_after: Duration,
    /// The longest time of one slice.
    pub slice_time: Duration,
    /// Whether another process may have died in the middle of the thread's work.
    pub start: Start,
}

impl Default for ActorOptions {
    fn default() -> Self {
        let idle_after = Duration::from_secs(300);
        Self { capacity: 64, idle_after, slice_time: SLICE_TIME, start: Start::Resume }
    }
}

/// How an actor begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With what the thread's last slice may have left: what it owed is sent, perhaps once more, and what it had not
    /// finished goes on. (A worker that serves the thread at this very moment loses a race by it, and nothing else.)
    Resume,
    /// Whoever served the thread before has finished.
    Fresh,
}

/// What tells an actor's owner that it has nothing to do.
pub(super) type OnIdle = Box<dyn Fn(&ThreadId) + Send + Sync>;

/// The owner of one thread. See the module.
pub struct ThreadActor {
    pub(super) runtime: Runtime,
    pub(super) thread: ThreadId,
    sequence: Arc<Sequence>,
    options: ActorOptions,
    on_idle: OnIdle,
    mailbox: mpsc::UnboundedReceiver<Command>,
    /// Handles are left.
    open: bool,
    /// What the slice tells, in the order in which it happens.
    progress: mpsc::UnboundedReceiver<Progress>,
    follower: Arc<Tap>,
    pub(super) queue: VecDeque<Queued>,
    /// Inputs taken and inputs done since the start: a flush waits for the one to reach the other.
    pub(super) taken: u64,
    pub(super) done: u64,
    pub(super) flushes: Vec<(u64, oneshot::Sender<()>)>,
    known: Option<Known>,
    partial: Partial,
    running: Running,
    /// Reads that wait until something is known.
    reads: Vec<Read>,
    /// What was left by whoever served the thread before is still to be looked at.
    pub(super) start: Start,
    /// When the next slice may run: the last one has failed.
    pub(super) not_before: Option<Instant>,
}

pub(super) struct Queued {
    pub(super) pushed: Pushed,
    pub(super) key: String,
}

enum Progress {
    Changed(Box<Change>),
    Shown(DisplayEvent),
}

struct Tap(mpsc::UnboundedSender<Progress>);

impl Follower for Tap {
    fn changed(&self, change: Change) {
        // An actor that has ended knows nothing any more.
        let _ = self.0.send(Progress::Changed(Box::new(change)));
    }
}

impl ThreadActor {
    /// Starts the actor of `thread` on the current tokio runtime, and returns its handle. The actor ends when the last
    /// handle is gone and everything that was pushed is done.
    ///
    /// Messages between threads go to the queue of `system`; whoever wants them served too uses [`AgentSystem::start`].
    pub fn spawn(system: &AgentSystem, thread: ThreadId, options: ActorOptions) -> ThreadHandle {
        Self::spawn_behind(system, thread, options, Box::new(|_| {}), None).0
    }

    /// The same, once the actor before it has ended.
    pub(super) fn spawn_behind(
        system: &AgentSystem,
        thread: ThreadId,
        options: ActorOptions,
        on_idle: OnIdle,
        before: Option<JoinHandle<()>>,
    ) -> (ThreadHandle, JoinHandle<()>) {
        let (mailbox, commands) = mpsc::unbounded_channel();
        let (tell, progress) = mpsc::unbounded_channel();
        let follower = Arc::new(Tap(tell));
        let mut runtime = system.runtime().clone();
        let (shown, own) = (follower.clone(), thread.clone());
        events::tap(&mut runtime, move |event| {
            if let AgentEvent::Shown { thread, event } = event
                && thread == own
            {
                let _ = shown.0.send(Progress::Shown(event));
            }
        });
        let handle = ThreadHandle {
            thread: thread.clone(),
            mailbox,
            places: Arc::new(Semaphore::new(options.capacity)),
            capacity: options.capacity,
            store: runtime.store.clone(),
        };
        let actor = Self {
            runtime,
            thread,
            sequence: system.inner.sequence.clone(),
            start: options.start,
            options,
            on_idle,
            mailbox: commands,
            open: true,
            progress,
            follower,
            queue: VecDeque::new(),
            taken: 0,
            done: 0,
            flushes: Vec::new(),
            known: None,
            partial: Partial::default(),
            running: Running::Nothing,
            reads: Vec::new(),
            not_before: None,
        };
        let task = tokio::spawn(async move {
            if let Some(before) = before {
                // However it ended, it is over.
                let _ = before.await;
            }
            actor.run().await;
        });
        (handle, task)
    }

    async fn run(mut self) {
        if let Err(error) = self.resume().await {
            tracing::warn!(thread = %self.thread, %error, "what the thread was left with is looked at later");
        }
        let mut idle_from = Instant::now();
        // Its owner was told that there is nothing to do.
        let mut rests = false;
        loop {
            // What has arrived already goes into one batch, and is no news that ends a response.
            while self.open
                && self.queue.len() < MAX_BATCH
                && let Ok(command) = self.mailbox.try_recv()
            {
                self.take(command).await;
                (idle_from, rests) = (Instant::now(), false);
            }
            let now = Instant::now();
            let pause = self.not_before.filter(|&until| until > now);
            if !self.queue.is_empty() && pause.is_none() {
                self.slice().await;
                (idle_from, rests) = (Instant::now(), false);
                continue;
            }
            if !self.open && self.queue.is_empty() {
                return;
            }
            if !self.open {
                tokio::time::sleep_until(pause.unwrap_or(now)).await;
                continue;
            }
            let until = match pause {
                Some(until) => Some(until),
                None => (!rests).then(|| idle_from + self.options.idle_after),
            };
            let command = match until {
                Some(until) => timeout_at(until, self.mailbox.recv()).await.ok(),
                None => Some(self.mailbox.recv().await),
            };
            match command {
                Some(Some(command)) => {
                    self.take(command).await;
                    (idle_from, rests) = (Instant::now(), false);
                }
                Some(None) => self.open = false,
                None if self.queue.is_empty() => {
                    (self.known, rests) = (None, true);
                    (self.on_idle)(&self.thread);
                }
                None => {}
            }
        }
    }

    /// Takes a command while no slice runs.
    async fn take(&mut self, command: Command) {
        if matches!(command, Command::Read(_)) && self.known.is_none() {
            let store = self.runtime.store.clone();
            match HistoryManager::new_with_history(store.clone(), store, self.thread.clone()).await {
                Ok(manager) => self.follow(Progress::Changed(Box::new(manager.change()))),
                Err(e) => {
                    if let Command::Read(read) = command {
                        read(Err(&e.to_string()));
                    }
                    return;
                }
            }
        }
        self.take_at_once(command);
    }

    /// Takes a command without waiting for anything.
    fn take_at_once(&mut self, command: Command) {
        match command {
            Command::Push(pushed) => {
                self.taken += 1;
                let key = self.sequence.next(self.runtime.clock.as_ref());
                self.queue.push_back(Queued { pushed: *pushed, key });
            }
            Command::Read(read) => match &self.known {
                Some(known) => read(Ok(&self.view(known))),
                None => self.reads.push(read),
            },
            Command::Flush(reply) => {
                self.flushes.push((self.taken, reply));
                self.answer_flushes();
            }
            Command::Stop => {}
            Command::End => self.open = false,
        }
    }

    /// How a command ends a running response, if it does. What was said before is nothing new: pushed once more it must not
    /// end its own answer.
    fn ends_response(&self, command: &Command) -> Option<Cancel> {
        match command {
            Command::Push(pushed) => {
                let input = &pushed.input;
                let known = self.known.iter().flat_map(|known| known.items.iter().rev());
                let is_old = self.queue.iter().any(|queued| queued.pushed.input.id == input.id)
                    || known.into_iter().any(|item| item.facts.dedup.as_ref() == Some(&input.id));
                (input.is_user_text() && !is_old).then_some(Cancel::UserText)
            }
            Command::Stop => Some(Cancel::Stop),
            Command::Read(_) | Command::Flush(_) | Command::End => None,
        }
    }

    fn view<'a>(&'a self, known: &'a Known) -> View<'a> {
        let accepted = self.queue.iter().map(|queued| {
            let input = &queued.pushed.input;
            (input.id.clone(), input.message.clone())
        });
        View {
            thread: &self.thread,
            known,
            partial: &self.partial,
            running: self.running,
            accepted: accepted.collect(),
        }
    }

    pub(super) fn answer_flushes(&mut self) {
        let done = self.done;
        let (over, waiting) = self.flushes.drain(..).partition(|(upto, _)| *upto <= done);
        self.flushes = waiting;
        let over: Vec<(u64, oneshot::Sender<()>)> = over;
        for (_, reply) in over {
            let _ = reply.send(());
        }
    }

    /// Goes along with what the slice tells.
    fn follow(&mut self, progress: Progress) {
        match progress {
            Progress::Shown(event) => self.partial.show(event),
            Progress::Changed(change) => {
                // What is committed is no part of the response any more.
                if !change.items.is_empty() {
                    self.partial.end();
                }
                self.known.get_or_insert_with(Known::nothing).follow(*change);
            }
        }
        if let Some(known) = &self.known {
            let reads = std::mem::take(&mut self.reads);
            let view = self.view(known);
            for read in reads {
                read(Ok(&view));
            }
        }
    }

    /// Runs one slice for what is first in the queue, serving the mailbox meanwhile.
    async fn slice(&mut self) {
        let records = match self.records().await {
            Ok(records) => records,
            Err(failure) => return self.settle(1, 0, Some(failure)).await,
        };
        let again = records.iter().any(|record| record.receives() > 1);
        let (cancel, cancelled) = oneshot::channel();
        let mut cancel = Some(cancel);
        let mut seat =
            Seat { known: self.known.clone(), follower: Some(self.follower.clone()), ..Seat::new(cancelled) };
        self.running = Running::Slice;
        let (done, failure) = {
            let (runtime, thread) = (self.runtime.clone(), self.thread.clone());
            let deadline = Instant::now() + self.options.slice_time;
            let work = process_next(&runtime, &thread, &records, deadline, &mut seat);
            // A tool of this process may panic: that costs an attempt, as it does on Lambda.
            let mut work = pin!(AssertUnwindSafe(work).catch_unwind());
            loop {
                tokio::select! {
                    // First what has happened, then what is asked about it, then what happens next.
                    biased;
                    Some(progress) = self.progress.recv() => self.follow(progress),
                    command = self.mailbox.recv(), if self.open => match command {
                        None => self.open = false,
                        Some(command) => {
                            if let Some(how) = self.ends_response(&command)
                                && let Some(cancel) = cancel.take()
                            {
                                // A slice that is over needs no end.
                                let _ = cancel.send(how);
                            }
                            self.take_at_once(command);
                        }
                    },
                    ended = &mut work => {
                        break ended.unwrap_or_else(|_| {
                            let reason = "a part of the slice panicked; the input is tried again".to_owned();
                            tracing::error!(thread = %self.thread, "a slice panicked; its inputs are tried again");
                            (0, Some(Failure { reason, after: None }))
                        });
                    }
                }
            }
        };
        while let Ok(progress) = self.progress.try_recv() {
            self.follow(progress);
        }
        self.running = Running::Nothing;
        self.partial.end();
        if again || failure.is_some() {
            // What a slice without the history in hand has committed was not told, nor what failed on its way back.
            self.known = None;
        }
        self.settle(records.len(), done, failure).await;
        if self.known.is_none() && !self.reads.is_empty() {
            for read in std::mem::take(&mut self.reads) {
                self.take(Command::Read(read)).await;
            }
        }
    }

    /// What the next slice is for.
    async fn records(&mut self) -> Result<Vec<Record>, Failure> {
        let failure = |reason: String| Failure { reason, after: None };
        self.resume().await.map_err(|e| failure(e.to_string()))?;
        if let Some(first) = self.queue.front()
            && first.pushed.input.receives > MAX_RECEIVES
        {
            self.bury().await.map_err(|e| failure(e.to_string()))?;
        }
        let batch = self.queue.iter().take(MAX_BATCH);
        let records = batch.map(|queued| queued.pushed.input.record(&self.thread, &queued.key));
        records.collect::<Result<_, _>>().map_err(|e| failure(e.to_string()))
    }
}
