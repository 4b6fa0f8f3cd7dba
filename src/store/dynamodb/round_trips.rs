//! Counts round trips: how many requests had to wait for each other.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a store's requests cost in time: requests that overlap are one round trip.
///
/// Clones share their count. Hand one to [`super::DynamoStore::with_round_trips`].
#[derive(Clone, Debug, Default)]
pub struct RoundTrips(Arc<Mutex<Timeline>>);

#[derive(Debug, Default)]
struct Timeline {
    /// Each start and each end is one tick: the order of what happened, without a clock.
    ticks: u64,
    /// Start and, once it is over, end of each request.
    requests: Vec<(u64, Option<u64>)>,
}

impl Timeline {
    fn tick(&mut self) -> u64 {
        self.ticks += 1;
        self.ticks
    }
}

impl RoundTrips {
    /// No requests yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Requests sent since the last [`reset`](Self::reset).
    pub fn requests(&self) -> usize {
        self.lock().requests.len()
    }

    /// The longest chain of requests of which none overlaps another.
    pub fn sequential(&self) -> usize {
        let mut over: Vec<(u64, u64)> =
            self.lock().requests.iter().filter_map(|(start, end)| Some(((*end)?, *start))).collect();
        over.sort_unstable();
        let mut chain = 0;
        let mut last_end = 0;
        // Taking the earliest end first leaves the most room: the classic interval schedule.
        for (end, start) in over {
            if start > last_end {
                chain += 1;
                last_end = end;
            }
        }
        chain
    }

    /// Forgets everything so far.
    pub fn reset(&self) {
        self.lock().requests.clear();
    }

    /// Notes that a request starts; it ends when the flight is dropped.
    pub(super) fn start(&self) -> Flight {
        let mut timeline = self.lock();
        let start = timeline.tick();
        timeline.requests.push((start, None));
        Flight { round_trips: self.clone(), start }
    }

    fn lock(&self) -> MutexGuard<'_, Timeline> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request under way.
pub(super) struct Flight {
    round_trips: RoundTrips,
    start: u64,
}

impl Drop for Flight {
    fn drop(&mut self) {
        let mut timeline = self.round_trips.lock();
        let end = timeline.tick();
        // Not found after a reset while it was under way: then it belongs to nothing that is counted.
        if let Some(request) = timeline.requests.iter_mut().find(|(start, _)| *start == self.start) {
            request.1 = Some(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_overlap_are_one_round_trip() {
        let trips = RoundTrips::new();
        let (a, b) = (trips.start(), trips.start());
        drop(a);
        let c = trips.start();
        drop((b, c));
        drop(trips.start());
        assert_eq!((trips.requests(), trips.sequential()), (4, 3), "a, then c beside b, then the last");
        trips.reset();
        let (a, b) = (trips.start(), trips.start());
        drop((a, b));
        assert_eq!((trips.requests(), trips.sequential()), (2, 1));
    }
}
