//! The relay: what the delay queue hands out goes on into the FIFO queue, or back until it is due.
//!
//! It runs in the worker function, as a second event source, and in local mode. No thread is touched. A record is
//! acknowledged once it is in another queue; a crash between the two sends it again under the same dedup id.

use std::sync::Arc;
use std::time::Duration;

use aws_lambda_events::event::sqs::{SqsBatchResponse, SqsEvent, SqsMessage};
use futures::future::join_all;

use super::Clock;
use crate::message::{InputError, ThreadId};
use crate::queue::delay::Delayed;
use crate::queue::{DeadLetters, InputSender, QueueError, Redelivery, TimerSender};

/// Receives after which what the FIFO queue refuses is put aside: a right that is missing may come back, a bad message
/// does not get better.
const MAX_REFUSALS: u32 = 10;
/// When a record that could not be forwarded comes again.
const RETRY_DELAY: Duration = Duration::from_secs(10);
/// The group among the dead letters of what names no thread.
const NO_THREAD: &str = "delay-queue";

/// What the relay speaks to.
#[derive(Clone)]
pub struct Relay {
    /// The last segment of its queue's address and ARN.
    pub queue_name: String,
    /// Where what is due goes.
    pub input: Arc<dyn InputSender>,
    /// The delay queue itself, for what is not due yet.
    pub timers: Arc<dyn TimerSender>,
    /// For what is no timer.
    pub dead_letters: Arc<dyn DeadLetters>,
    /// The delay queue: when a record comes again.
    pub redelivery: Arc<dyn Redelivery>,
    /// When.
    pub clock: Arc<dyn Clock>,
}

impl Relay {
    /// Whether a batch is of the delay queue. All records of a batch are of one queue.
    pub fn is_source_of(&self, event: &SqsEvent) -> bool {
        let arn = event.records.first().and_then(|record| record.event_source_arn.as_deref());
        arn.and_then(|arn| arn.rsplit(':').next()).is_some_and(|name| name == self.queue_name)
    }

    /// Takes a batch of the delay queue and says which records are to be delivered again.
    pub async fn process_records(&self, event: SqsEvent) -> SqsBatchResponse {
        let failed = join_all(event.records.iter().map(|record| self.process(record))).await;
        let mut response = SqsBatchResponse::default();
        response.set_failures(failed.into_iter().flatten().collect::<Vec<_>>());
        response
    }

    /// The id of a record that is to come again.
    async fn process(&self, record: &SqsMessage) -> Option<String> {
        let error = self.forward(record).await.err()?;
        let message_id = record.message_id.clone().unwrap_or_default();
        tracing::warn!(message_id, %error, "a timer could not be forwarded yet");
        self.redelivery.come_back(record.receipt_handle.as_deref().unwrap_or_default(), RETRY_DELAY).await;
        Some(message_id)
    }

    async fn forward(&self, record: &SqsMessage) -> Result<(), QueueError> {
        let body = record.body.as_deref().unwrap_or_default();
        let delayed = match serde_json::from_str::<Delayed>(body) {
            Ok(delayed) => delayed,
            Err(e) => {
                let reason = format!("it is not a message for the delay queue: {e}");
                return self.put_aside_nameless(record, body, &reason).await;
            }
        };
        let message = match delayed.input() {
            Ok(message) => message,
            Err(e @ InputError::NewerSchema { .. }) => return Err(QueueError::Unavailable(e.to_string())),
            Err(e @ (InputError::Malformed(_) | InputError::UnknownContent(_))) => {
                return self.put_aside_nameless(record, body, &e.to_string()).await;
            }
        };
        let sent = match delayed.due_ms.filter(|due_ms| *due_ms > self.clock.now_ms()) {
            Some(due_ms) => self.timers.schedule(due_ms, &message, &delayed.dedup_id).await,
            None => self.input.send(&message, &delayed.dedup_id).await,
        };
        match sent {
            Err(QueueError::Refused(reason)) if receives(record) >= MAX_REFUSALS => {
                match self.put_aside(record, &delayed.group_id, &delayed.message, &reason).await {
                    // Its group may be what is wrong with it.
                    Err(QueueError::Refused(_)) => self.put_aside_nameless(record, body, &reason).await,
                    kept => kept,
                }
            }
            sent => sent,
        }
    }

    async fn put_aside_nameless(
        &self,
        record: &SqsMessage,
        body: &str,
        reason: &str,
    ) -> Result<(), QueueError> {
        self.put_aside(record, &ThreadId::from(NO_THREAD), body, reason).await
    }

    async fn put_aside(
        &self,
        record: &SqsMessage,
        thread: &ThreadId,
        body: &str,
        reason: &str,
    ) -> Result<(), QueueError> {
        let message_id = record.message_id.as_deref().unwrap_or_default();
        self.dead_letters.keep(thread, message_id, body, reason).await?;
        // The reason may quote the body: it stands in the dead letter alone.
        tracing::error!(
            message_id,
            bytes = body.len(),
            "a message of the delay queue cannot be forwarded and was put on the dead-letter queue, with its reason"
        );
        Ok(())
    }
}

fn receives(record: &SqsMessage) -> u32 {
    record.attributes.get("ApproximateReceiveCount").and_then(|n| n.parse().ok()).unwrap_or(1)
}
