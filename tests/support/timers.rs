//! Timers that a test reads and delivers by hand.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::sync::Mutex;

use async_trait::async_trait;
use dormouse::message::{DedupId, InputMessage};
use dormouse::queue::{QueueError, TimerSender};

/// Makes an error of a text.
type Failure = fn(String) -> QueueError;

#[derive(Default)]
pub struct Timers {
    pub set: Mutex<Vec<(i64, InputMessage, DedupId)>>,
    /// How the next ones fail, if they do.
    pub fails: Mutex<Option<Failure>>,
}

#[async_trait]
impl TimerSender for Timers {
    async fn schedule(&self, due_ms: i64, message: &InputMessage, dedup: &DedupId) -> Result<(), QueueError> {
        if let Some(failure) = *self.fails.lock().unwrap() {
            return Err(failure("a test says so".to_owned()));
        }
        self.set.lock().unwrap().push((due_ms, message.clone(), dedup.clone()));
        Ok(())
    }
}

impl Timers {
    /// What was set so far: when each is due, what it brings, and under which id.
    pub fn all(&self) -> Vec<(i64, InputMessage, DedupId)> {
        self.set.lock().unwrap().clone()
    }
}
