//! What goes wrong, how often, and how often it did.

use std::collections::{BTreeMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::rng::{Rng, hash};

/// Expected injections from which on none at all is no accident.
const SURELY: u64 = 15;
/// A rate is a number in so many.
const PER: u64 = 1000;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A request was carried out and its answer is lost, or says that the server is out of order.
    AnswerLost,
    /// A request is refused for now.
    Throttled,
    /// A transaction is cancelled since another one holds a row.
    Conflict,
    /// Keys of a batch are left unprocessed.
    Unprocessed,
    /// Every try of one commit fails, with or without effect: the slice fails with it.
    CommitStuck,
    /// Received messages are handed to a second worker as well.
    DeliveredTwice,
    /// A worker does not delete what it has done; it becomes visible again.
    DeleteForgotten,
    /// A worker dies at some await of its slices.
    WorkerCrashed,
    /// A tool server takes a call and its acknowledgement is lost.
    ToolAckLost,
    /// A tool answers before it acknowledges.
    ToolEarly,
    /// A tool answers late.
    ToolLate,
    /// A tool answers twice.
    ToolTwice,
}

impl Fault {
    pub const ALL: [Self; 12] = [
        Self::AnswerLost,
        Self::Throttled,
        Self::Conflict,
        Self::Unprocessed,
        Self::CommitStuck,
        Self::DeliveredTwice,
        Self::DeleteForgotten,
        Self::WorkerCrashed,
        Self::ToolAckLost,
        Self::ToolEarly,
        Self::ToolLate,
        Self::ToolTwice,
    ];

    /// In a thousand of its occasions.
    fn rate(self) -> u64 {
        match self {
            Self::AnswerLost | Self::Throttled => 15,
            Self::Conflict | Self::Unprocessed | Self::WorkerCrashed | Self::ToolLate => 40,
            Self::CommitStuck => 8,
            Self::DeliveredTwice | Self::ToolTwice => 80,
            Self::DeleteForgotten => 50,
            Self::ToolAckLost => 50,
            Self::ToolEarly => 150,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::AnswerLost => "answers lost",
            Self::Throttled => "throttles",
            Self::Conflict => "conflicts",
            Self::Unprocessed => "unprocessed batches",
            Self::CommitStuck => "commits stuck",
            Self::DeliveredTwice => "batches delivered twice",
            Self::DeleteForgotten => "deletes forgotten",
            Self::WorkerCrashed => "workers crashed",
            Self::ToolAckLost => "tool acknowledgements lost",
            Self::ToolEarly => "tool answers early",
            Self::ToolLate => "tool answers late",
            Self::ToolTwice => "tool answers twice",
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    occasions: u64,
    injected: u64,
}

/// The dice of one run.
#[derive(Debug)]
pub struct Faults {
    seed: u64,
    on: bool,
    throws: AtomicU64,
    counts: Mutex<BTreeMap<Fault, Count>>,
    /// Names that were asked for before.
    names: Mutex<HashSet<u64>>,
}

impl Faults {
    pub fn new(seed: u64, on: bool) -> Self {
        Self { seed, on, throws: AtomicU64::new(0), counts: Mutex::default(), names: Mutex::default() }
    }

    /// A generator of its own for one occasion.
    pub fn dice(&self) -> Rng {
        let throw = self.throws.fetch_add(1, Ordering::Relaxed);
        Rng::new(hash(self.seed, [throw.to_string().as_str()]))
    }

    /// Whether a fault happens now.
    pub fn strike(&self, fault: Fault) -> bool {
        let strikes = self.decide(fault, self.dice().next());
        self.count(fault, strikes);
        strikes
    }

    /// Whether it happens to `name`; always the same for one name, and counted once.
    pub fn strikes(&self, fault: Fault, name: &str) -> bool {
        let number = hash(self.seed, [fault.name(), name]);
        let strikes = self.decide(fault, number);
        if self.names.lock().unwrap().insert(number) {
            self.count(fault, strikes);
        }
        strikes
    }

    fn decide(&self, fault: Fault, number: u64) -> bool {
        self.on && number % PER < fault.rate()
    }

    fn count(&self, fault: Fault, strikes: bool) {
        let mut counts = self.counts.lock().unwrap();
        let count = counts.entry(fault).or_default();
        count.occasions += 1;
        count.injected += u64::from(strikes);
    }

    pub fn injected(&self, fault: Fault) -> u64 {
        self.counts.lock().unwrap().get(&fault).map_or(0, |count| count.injected)
    }

    /// Kinds that had occasion enough and never happened: then the run proves nothing about them.
    pub fn missing(&self) -> Vec<&'static str> {
        let counts = self.counts.lock().unwrap();
        let never = |fault: &Fault| {
            let count = counts.get(fault).copied().unwrap_or_default();
            count.injected == 0 && count.occasions * fault.rate() / PER >= SURELY
        };
        Fault::ALL.into_iter().filter(|fault| self.on && never(fault)).map(Fault::name).collect()
    }
}
