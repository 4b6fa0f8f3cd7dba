//! The state that all fakes of one world share, and the world's memory of what has happened.

use std::collections::{BTreeMap, VecDeque};
use std::ops::AddAssign;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use dormouse::message::{CallId, DedupId, InputMessage, ThreadId};
use dormouse::store::memory::MemoryStore;

use crate::ledger::Ledger;
use crate::plan::Plan;
use crate::queue::{Message, Queue, Which, Window};
use crate::rng::Rng;
use crate::sent::{Kind, Sent};

/// Lines of the trace that a failing seed shows.
pub const TRACE: usize = 40;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub worlds: u64,
    /// Slices that began: one that starts over after a lost race counts again.
    pub slices: u64,
    pub crashes: u64,
    pub faults: u64,
    pub redeliveries: u64,
    pub commits: u64,
    pub requests: u64,
    pub dispatches: u64,
    pub duplicates: u64,
    pub given_up: u64,
    /// Messages that their queue gave up on.
    pub died: u64,
    /// Summaries that stand for the older part of a thread.
    pub generations: u64,
}

impl AddAssign for Stats {
    fn add_assign(&mut self, other: Self) {
        self.worlds += other.worlds;
        self.slices += other.slices;
        self.crashes += other.crashes;
        self.faults += other.faults;
        self.redeliveries += other.redeliveries;
        self.commits += other.commits;
        self.requests += other.requests;
        self.dispatches += other.dispatches;
        self.duplicates += other.duplicates;
        self.given_up += other.given_up;
        self.died += other.died;
        self.generations += other.generations;
    }
}

/// Something that a tool or an outside system will send.
#[derive(Clone, Debug)]
pub struct Later {
    pub message: InputMessage,
    pub dedup: DedupId,
    pub window: Window,
}

pub struct Sim {
    pub seed: u64,
    pub rng: Rng,
    pub plan: Plan,
    /// No fault is armed any more.
    pub calm: bool,
    /// The model answers with plain text.
    pub plain: bool,
    pub store: MemoryStore,
    pub ledger: Ledger,
    pub sent: Sent,
    pub queue: Queue,
    /// What `queue` gave up on, until it is drained.
    pub dead_letters: Queue,
    /// All that `queue` ever gave up on.
    pub dead: Vec<Message>,
    pub later: Vec<Later>,
    pub published: BTreeMap<(ThreadId, String), String>,
    pub kept: Vec<String>,
    pub dispatched: BTreeMap<CallId, usize>,
    pub cancelled: BTreeMap<CallId, usize>,
    pub ran: BTreeMap<CallId, usize>,
    pub stats: Stats,
    pub now_s: u64,
    pub step: usize,
    /// The worker that is being polled, by the step in which it received its batch.
    pub worker: usize,
    /// Moves whenever a fake is asked or goes on: a worker that moves nothing waits for time.
    pub activity: u64,
    pub violation: Option<String>,
    trace: Option<VecDeque<String>>,
    traced: usize,
}

/// A handle on the world; clones share it.
#[derive(Clone)]
pub struct World(Arc<Mutex<Sim>>);

impl World {
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Sim::new(0, Plan::free(0), 0))))
    }

    /// Another world in the same place: what holds the handle needs not be made anew.
    pub fn reset(&self, seed: u64, plan: Plan, traced: usize) {
        self.with(|sim| *sim = Sim::new(seed, plan, traced));
    }

    pub fn with<T>(&self, act: impl FnOnce(&mut Sim) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether a fault of this rate strikes now.
    pub fn strikes(&self, rate: impl FnOnce(&Plan) -> u32, what: &str) -> bool {
        self.with(|sim| {
            let strikes = sim.chance(rate);
            if strikes {
                sim.stats.faults += 1;
                sim.note(|| format!("  fault: {what}"));
            }
            strikes
        })
    }

    /// A point at which the worker can be killed, and others can go on.
    pub async fn pause(&self) {
        let pauses = self.with(|sim| match sim.chance(|plan| plan.slow) {
            true => 1 + sim.rng.below(20),
            false => 1,
        });
        for _ in 0..pauses {
            Pause(false).await;
            self.with(|sim| sim.activity += 1);
        }
    }
}

struct Pause(bool);

impl Future for Pause {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Sim {
    fn new(seed: u64, plan: Plan, traced: usize) -> Self {
        Self {
            seed,
            rng: Rng::new(seed),
            plan,
            calm: false,
            plain: false,
            store: MemoryStore::new(),
            ledger: Ledger::default(),
            sent: Sent::default(),
            queue: Queue::default(),
            dead_letters: Queue::default(),
            dead: Vec::new(),
            later: Vec::new(),
            published: BTreeMap::new(),
            kept: Vec::new(),
            dispatched: BTreeMap::new(),
            cancelled: BTreeMap::new(),
            ran: BTreeMap::new(),
            stats: Stats { worlds: 1, ..Stats::default() },
            now_s: 0,
            step: 0,
            worker: 0,
            activity: 0,
            violation: None,
            trace: (traced > 0).then(VecDeque::new),
            traced,
        }
    }

    pub fn chance(&mut self, rate: impl FnOnce(&Plan) -> u32) -> bool {
        !self.calm && self.rng.chance(rate(&self.plan))
    }

    pub fn queue_of(&mut self, which: Which) -> &mut Queue {
        match which {
            Which::Input => &mut self.queue,
            Which::Dead => &mut self.dead_letters,
        }
    }

    /// Remembers a line of the trace, if somebody will read it.
    pub fn note(&mut self, line: impl FnOnce() -> String) {
        let step = self.step;
        let Some(trace) = &mut self.trace else { return };
        trace.push_back(format!("{step:>5} {:>5}s w{:<4} {}", self.now_s, self.worker, line()));
        if trace.len() > self.traced {
            trace.pop_front();
        }
    }

    pub fn trace(&self) -> String {
        self.trace.iter().flatten().map(|line| format!("{line}\n")).collect()
    }

    /// The first broken promise ends the world.
    pub fn broken(&mut self, what: impl Into<String>) {
        let what = what.into();
        self.note(|| format!("BROKEN {what}"));
        self.violation.get_or_insert(what);
    }

    pub fn hold(&mut self, result: Result<(), String>) {
        if let Err(what) = result {
            self.broken(what);
        }
    }

    /// Puts an input on the queue.
    pub fn send(&mut self, message: &InputMessage, dedup: &DedupId, kind: Kind, window: Window) {
        let Ok(body) = message.to_body() else { return self.broken("a message does not serialise") };
        self.send_body(&message.group_id.clone(), dedup, body, kind, window);
    }

    pub fn send_body(&mut self, group: &ThreadId, dedup: &DedupId, body: String, kind: Kind, window: Window) {
        self.note(|| format!("send {group} {dedup} {kind:?}"));
        self.sent.add(group, dedup, kind, body.clone());
        self.queue.send(self.now_s, group, dedup, body, window);
    }
}
