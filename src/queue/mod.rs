//! Queues as ports: where inputs go, now or later, where output goes, where what can never succeed goes.

pub mod delay;
pub mod scheduler;
pub mod sqs;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::message::{DedupId, InputMessage, MessageId, OutputMessage, ThreadId};

/// Bytes of a message that still go on the queue itself; larger inputs go by claim check. Far below the 1 MiB
/// of SQS, so that batches and attributes fit as well.
pub const MAX_INLINE_INPUT: usize = 200 * 1024;

/// A queue could not take a message, also after repeats in place.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// Passes by itself.
    #[error("the queue is unavailable ({0}); try again")]
    Unavailable(String),
    /// Does not pass: a missing queue, a missing permission, a bad message.
    #[error("the queue refuses: {0}")]
    Refused(String),
}

/// Puts inputs on the FIFO queue.
#[async_trait]
pub trait InputSender: Send + Sync {
    /// Sends to the group of `message`; within the queue's window a second send of `dedup` has no effect.
    /// What is too large goes by claim check.
    async fn send(&self, message: &InputMessage, dedup: &DedupId) -> Result<(), QueueError>;
}

/// Puts inputs on the FIFO queue at a later time.
#[async_trait]
pub trait TimerSender: Send + Sync {
    /// Has `message` sent under `dedup` at `due_ms` (milliseconds since the epoch), soon if that is past. It may
    /// be sent more than once and a moment late, and nothing takes it back; a second call for `dedup` does not
    /// move it.
    async fn schedule(&self, due_ms: i64, message: &InputMessage, dedup: &DedupId) -> Result<(), QueueError>;
}

/// Puts messages on the output queue.
#[async_trait]
pub trait OutputSender: Send + Sync {
    /// Sends at least once; a consumer may see a `message_id` twice. A text above the queue's limit is cut,
    /// and says so.
    async fn send(&self, message: &OutputMessage) -> Result<(), QueueError>;
}

/// Keeps what can never be processed, with its reason, for an operator.
#[async_trait]
pub trait DeadLetters: Send + Sync {
    /// Keeps the raw body of a message of `thread`.
    async fn keep(
        &self,
        thread: &ThreadId,
        message_id: &str,
        body: &str,
        reason: &str,
    ) -> Result<(), QueueError>;
}

/// A message of the dead-letter queue that dormouse put there itself, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantined {
    /// Why it can never be processed.
    pub reason: String,
    /// The message's own id.
    pub message_id: MessageId,
    /// Its message group.
    pub thread: ThreadId,
    /// Its body, or the beginning of it.
    pub body: String,
    /// The digest under which the whole body is kept, where `body` is only its beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<String>,
}

/// Says when a record that is handed back comes again; without a word it waits out the queue's visibility.
#[async_trait]
pub trait Redelivery: Send + Sync {
    /// Makes the message visible again after `delay`. Best effort: on failure the visibility runs out.
    async fn come_back(&self, receipt_handle: &str, delay: std::time::Duration);
}
