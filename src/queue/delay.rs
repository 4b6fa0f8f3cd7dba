//! Timers over a standard delay queue, whose function (`slice::relay`) forwards what is due into the FIFO queue: a
//! FIFO queue itself cannot delay single messages.
//!
//! SQS delays a message for 15 minutes at most. A later one carries its time and is put back by the relay until it
//! is due: such hops need nothing but the queue, so that a timer of any length is as durable as the queue is.

use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_sqs::Client;
use serde::{Deserialize, Serialize};

use super::sqs::{Queue, check_id, unwritable};
use super::{QueueError, TimerSender};
use crate::message::{DedupId, InputError, InputMessage, ThreadId, json};

/// The longest delay of a message in SQS.
pub const MAX_HOP: Duration = Duration::from_secs(900);

/// A message of the delay queue: an input, and where and when it goes. Producers of other runtimes write no
/// `due_ms`; theirs are due as soon as they are visible.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delayed {
    /// The `InputMessage`, as JSON text.
    pub message: String,
    /// Its group.
    pub group_id: ThreadId,
    /// The id under which it is sent.
    pub dedup_id: DedupId,
    /// When, in milliseconds since the epoch; absent: now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_ms: Option<i64>,
}

impl Delayed {
    /// `message`, to be sent under `dedup` at `due_ms`.
    ///
    /// # Errors
    /// Ids that the FIFO queue will not take: better told now than when it is due.
    pub fn new(due_ms: i64, message: &InputMessage, dedup: &DedupId) -> Result<Self, QueueError> {
        check_id("thread id", message.group_id.as_str())?;
        check_id("dedup id", dedup.as_str())?;
        let (group_id, dedup_id) = (message.group_id.clone(), dedup.clone());
        let message = message.to_body().map_err(unwritable)?;
        Ok(Self { message, group_id, dedup_id, due_ms: Some(due_ms) })
    }

    /// As the queue has it.
    pub fn to_body(&self) -> Result<String, QueueError> {
        json::to_queue_body(self).map_err(unwritable)
    }

    /// The input itself.
    ///
    /// # Errors
    /// It is none, or one for another group.
    pub fn input(&self) -> Result<InputMessage, InputError> {
        let message = InputMessage::parse(self.message.as_bytes())?;
        match message.group_id == self.group_id {
            true => Ok(message),
            false => Err(InputError::Malformed("its group_id is not that of its envelope".to_owned())),
        }
    }
}

/// The standard delay queue.
#[derive(Clone)]
pub struct SqsDelay {
    queue: Queue,
    hop: Duration,
}

impl SqsDelay {
    /// The queue at `url`.
    pub fn new(client: Client, url: impl Into<String>) -> Self {
        Self::with_hop(client, url, MAX_HOP)
    }

    /// The same with another bound on one delay, at most [`MAX_HOP`].
    pub fn with_hop(client: Client, url: impl Into<String>, hop: Duration) -> Self {
        Self { queue: Queue { client, url: url.into() }, hop: hop.min(MAX_HOP) }
    }

    /// The bound on one delay.
    pub fn hop(&self) -> Duration {
        self.hop
    }
}

#[async_trait]
impl TimerSender for SqsDelay {
    async fn schedule(&self, due_ms: i64, message: &InputMessage, dedup: &DedupId) -> Result<(), QueueError> {
        let body = Delayed::new(due_ms, message, dedup)?.to_body()?;
        self.queue.send_delayed(body, seconds_until(due_ms, self.hop)).await
    }
}

/// Seconds from now to `due_ms`, rounded up, within what one hop may last.
fn seconds_until(due_ms: i64, hop: Duration) -> i32 {
    let left = due_ms.saturating_sub(jiff::Timestamp::now().as_millisecond());
    let seconds = u64::try_from(left).unwrap_or(0).div_ceil(1000).min(hop.as_secs());
    i32::try_from(seconds).unwrap_or(i32::MAX)
}
