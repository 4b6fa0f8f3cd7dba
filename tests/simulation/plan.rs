//! What kind of world a seed makes. Each seed switches some kinds of trouble off and others up: faults that are
//! always mixed hide the histories that only one of them leads to.

use std::time::Duration;

use crate::rng::Rng;

/// Worlds whose threads outgrow their window, per mille.
const COMPACTED: u32 = 250;

/// Whether anything may happen at any time, or only while everything else is at rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Workers, users and tools interleave.
    Free,
    /// One worker, one message at a time, tools answer after the slice: with crashes or without, the same end.
    Orderly,
}

/// Rates are per mille.
#[derive(Clone, Debug)]
pub struct Plan {
    pub schedule: Schedule,
    pub threads: usize,
    pub texts: usize,
    pub workers: usize,
    pub batch: usize,
    /// Seconds; below the time that a slice has, a message is handed to a second worker while the first runs.
    pub visibility_s: u64,
    /// Receives after which the queue gives up; mostly as the template sets it.
    pub max_receives: u32,
    /// How often time passes though somebody could act.
    pub time: u32,
    /// Workers that are killed.
    pub crash: u32,
    /// Finished batches whose acknowledgement never arrives.
    pub lost_ack: u32,
    pub store: u32,
    /// Sends and visibility changes.
    pub queues: u32,
    pub slow: u32,
    /// Model failures beside those that the request's content decides.
    pub model: u32,
    /// Dispatches that fail, tool servers that are down.
    pub tools: u32,
    /// Answers that come twice, late, wrongly or never.
    pub answers: u32,
    pub events: u32,
    /// Inputs that come again under another message id.
    pub resend: u32,
    /// Bodies that nobody can read.
    pub junk: u32,
    /// Tokens of the model's window. Where it is known, texts are long and threads are compacted.
    pub window: Option<u64>,
    /// People who ask for a compaction where others write.
    pub compact: u32,
}

impl Plan {
    pub fn free(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x5EED);
        let rng = &mut rng;
        let stale = rng.chance(200);
        let mut plan = Self {
            schedule: Schedule::Free,
            threads: rng.pick(&[1, 1, 2, 3]),
            texts: 2 + rng.below(6),
            workers: rng.pick(&[1, 2, 3]),
            batch: rng.pick(&[1, 3, 10, 10]),
            visibility_s: if stale { 12 } else { 120 },
            // A queue must not give up on what is still being worked on.
            max_receives: if stale { 100 } else { rng.pick(&[100, 100, 8, 3]) },
            time: if stale { 40 } else { 5 },
            crash: rng.pick(&[0, 100, 300]),
            lost_ack: rng.pick(&[0, 20, 100]),
            store: rng.pick(&[0, 0, 15, 60]),
            queues: rng.pick(&[0, 0, 15, 60]),
            slow: rng.pick(&[0, 100]),
            model: rng.pick(&[0, 50, 200]),
            tools: rng.pick(&[0, 50, 150]),
            answers: rng.pick(&[0, 100, 400]),
            events: rng.pick(&[0, 150, 500]),
            resend: rng.pick(&[0, 0, 100]),
            junk: rng.pick(&[0, 0, 60]),
            window: None,
            compact: 0,
        };
        if !stale && rng.chance(COMPACTED) {
            plan.window = Some(rng.pick(&[11_000, 16_000, 32_000]));
            plan.compact = rng.pick(&[0, 100, 300]);
            plan.texts += 4 + rng.below(8);
            // What summarises takes its time.
            plan.visibility_s = 700;
        }
        plan
    }

    /// What an invocation may take: never a multiple of the unit of time, so that no two moments meet.
    pub fn invocation(&self) -> Duration {
        Duration::from_millis(if self.window.is_some() { 413_900 } else { 53_900 })
    }

    pub fn orderly(seed: u64, crash: u32) -> Self {
        let mut rng = Rng::new(seed ^ 0x0DD5);
        let rng = &mut rng;
        Self {
            schedule: Schedule::Orderly,
            threads: rng.pick(&[1, 2]),
            texts: 2 + rng.below(5),
            workers: 1,
            batch: 1,
            visibility_s: 120,
            max_receives: 100,
            time: 0,
            crash,
            lost_ack: crash / 5,
            store: 0,
            queues: 0,
            slow: 0,
            model: 0,
            tools: rng.pick(&[0, 100]),
            answers: rng.pick(&[0, 200]),
            events: rng.pick(&[0, 200, 500]),
            resend: 0,
            junk: 0,
            window: None,
            compact: 0,
        }
    }
}
