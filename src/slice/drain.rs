//! The drain: what lands in the dead-letter queue is kept for an operator, and its thread is told (I7).
//!
//! Nothing is judged here and no thread is touched: the record is written first, then an `undeliverable` message goes to
//! the thread's own group, and the slice that it causes settles what the dead message has left behind (`poison`). Both
//! are idempotent, so a drain that dies starts over.

use std::sync::Arc;

use aws_lambda_events::event::sqs::{SqsBatchResponse, SqsEvent};
use futures::future::join_all;

use super::records::{Record, by_thread, response};
use super::{Clock, SliceError};
use crate::message::{DedupId, InputContent, InputMessage, MessageId, Undeliverable};
use crate::queue::{InputSender, Quarantined, QueueError};
use crate::store::{DeadLetter, Store};

/// Characters of a reason that are kept; one may quote a body.
const MAX_REASON_CHARS: usize = 2_000;
/// Why a message that its queue gave up on is here.
const DIED: &str = "the queue gave up on it: no worker finished it in as many receives as the queue allows";

/// What the drain speaks to.
#[derive(Clone)]
pub struct Drain {
    /// Where dead letters are kept.
    pub store: Arc<dyn Store>,
    /// The input queue.
    pub input: Arc<dyn InputSender>,
    /// When.
    pub clock: Arc<dyn Clock>,
}

impl Drain {
    /// Takes a batch of the dead-letter queue and says which records are to be delivered again.
    pub async fn process_records(&self, event: SqsEvent) -> SqsBatchResponse {
        let threads = by_thread(event);
        response(join_all(threads.iter().map(|(_, records)| self.process_thread(records))).await)
    }

    /// In order, and from the first failure on nothing: returns the ids of those that are left.
    async fn process_thread(&self, records: &[Record]) -> Vec<String> {
        for (at, record) in records.iter().enumerate() {
            if let Err(error) = self.process(record).await {
                tracing::warn!(thread = %record.thread, %error, "dead letters are handed back");
                return records[at..].iter().map(|record| record.message_id.clone()).collect();
            }
        }
        Vec::new()
    }

    async fn process(&self, record: &Record) -> Result<(), SliceError> {
        let quarantined = match record.died_in {
            // However much its body looks like one of ours.
            Some(_) => None,
            None => serde_json::from_str::<Quarantined>(&record.body).ok(),
        };
        let Some(quarantined) = quarantined else { return self.undeliverable(record).await };
        let whole = match &quarantined.claim {
            Some(digest) => self.store.claim(digest).await?,
            None => None,
        };
        self.keep(&DeadLetter {
            thread: quarantined.thread,
            message_id: quarantined.message_id,
            reason: quarantined.reason.chars().take(MAX_REASON_CHARS).collect(),
            body: whole.unwrap_or(quarantined.body),
            kept_at_ms: self.clock.now_ms(),
        })
        .await
    }

    /// A message that the queue gave up on.
    async fn undeliverable(&self, record: &Record) -> Result<(), SliceError> {
        let message = InputMessage::parse(record.body.as_bytes()).ok().map(|message| message.content);
        let claimed = match &message {
            // It would expire; what an operator is to decide about must not.
            Some(InputContent::ClaimCheck(claim)) => self.store.claim(&claim.digest).await?,
            Some(_) | None => None,
        };
        let message_id = MessageId::new(&record.message_id);
        self.keep(&DeadLetter {
            thread: record.thread.clone(),
            message_id: message_id.clone(),
            reason: DIED.to_owned(),
            body: claimed.unwrap_or_else(|| record.body.clone()),
            kept_at_ms: self.clock.now_ms(),
        })
        .await?;
        if matches!(message, Some(InputContent::Undeliverable(_))) {
            // Whoever was to be told of a death has died of it: another one would come here as well.
            return Ok(());
        }
        let dead = Undeliverable { message_id };
        let dedup = DedupId::derive("undeliverable", &[&record.message_id]);
        let message = InputMessage::plain(record.thread.clone(), InputContent::Undeliverable(dead));
        match self.input.send(&message, &dedup).await {
            Err(error @ QueueError::Refused(_)) => {
                // No queue has such a group; it is kept, and that is all that can be done.
                tracing::error!(thread = %record.thread, %error, "the thread of a dead letter cannot be told");
                Ok(())
            }
            sent => Ok(sent?),
        }
    }

    async fn keep(&self, letter: &DeadLetter) -> Result<(), SliceError> {
        self.store.keep_dead_letter(letter).await?;
        tracing::error!(
            thread = %letter.thread,
            message_id = %letter.message_id,
            bytes = letter.body.len(),
            "a dead letter is kept; `dormouse redrive` lists and resends them"
        );
        Ok(())
    }
}
