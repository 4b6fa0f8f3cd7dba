//! What becomes of an actor's inputs: of those that are done, of those that have failed, and of those that whoever served
//! the thread before has left.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::AgentInput;
use super::actor::{Queued, Start, ThreadActor};
use super::handle::{Pushed, WriteOutcome};
use crate::message::{DedupId, InputContent, MessageId, ThreadId, Undeliverable};
use crate::slice::Runtime;
use crate::slice::records::{Failure, backoff};
use crate::store::{DeadLetter, StoreError};

/// Looks at whether an input that failed is in the store after all.
const OUTCOME_LOOKS: u32 = 3;
/// Between two of them.
const OUTCOME_PAUSE: Duration = Duration::from_millis(100);
/// Why an input is a dead letter.
const DIED: &str = "it failed too often";

impl ThreadActor {
    /// Settles the first inputs of the queue: so many of `tried` are done, and why the rest is not.
    pub(super) async fn settle(&mut self, tried: usize, done: usize, failure: Option<Failure>) {
        for queued in self.queue.drain(..done.min(self.queue.len())) {
            self.done += 1;
            if let Some(ack) = queued.pushed.ack {
                let _ = ack.send(WriteOutcome::Committed);
            }
        }
        if let Some(failure) = failure {
            tracing::warn!(thread = %self.thread, reason = failure.reason, "inputs are tried again");
            let tried = tried.saturating_sub(done).min(self.queue.len());
            let mut failed: VecDeque<Queued> = self.queue.drain(..tried).collect();
            for mut queued in std::mem::take(&mut failed) {
                if self.keeps(&mut queued, &failure).await {
                    queued.pushed.input.receives = queued.pushed.input.receives.saturating_add(1);
                    failed.push_back(queued);
                } else {
                    self.done += 1;
                }
            }
            let receives = failed.iter().map(|queued| queued.pushed.input.receives).max();
            if let Some(receives) = receives {
                let delay = backoff(receives.saturating_sub(1), failure.after);
                self.not_before = Some(Instant::now() + delay);
            }
            failed.append(&mut self.queue);
            self.queue = failed;
        } else {
            self.not_before = None;
        }
        self.answer_flushes();
    }

    /// Whether an input that has failed stays in the queue. One whose sender waits is answered, once the store has said
    /// whether it is in, and is the sender's again if it is not.
    async fn keeps(&mut self, queued: &mut Queued, failure: &Failure) -> bool {
        let Some(ack) = queued.pushed.ack.take() else { return true };
        let (outcome, keeps) = match self.is_in(&queued.pushed.input.id).await {
            Ok(true) => (WriteOutcome::Committed, true),
            Ok(false) => {
                keep_owed(&self.runtime, &self.thread, &queued.pushed.input.id).await;
                let (why, after) = (failure.reason.clone(), failure.after);
                (WriteOutcome::NotCommitted { why, after }, false)
            }
            Err(e) => (WriteOutcome::Indeterminate { why: e.to_string() }, true),
        };
        let _ = ack.send(outcome);
        keeps
    }

    async fn is_in(&mut self, id: &DedupId) -> Result<bool, StoreError> {
        let mut look = 1;
        loop {
            match self.runtime.store.is_message_processed(&self.thread, id).await {
                Err(e) if look >= OUTCOME_LOOKS || !e.is_transient() => return Err(e),
                Err(_) => sleep(OUTCOME_PAUSE).await,
                Ok(is_in) => return Ok(is_in),
            }
            look += 1;
        }
    }

    /// Takes up what whoever served the thread before may have left, as if its messages came again: the thread's state
    /// names them.
    pub(super) async fn resume(&mut self) -> Result<(), StoreError> {
        if self.start == Start::Fresh {
            return Ok(());
        }
        let left = left_behind(&self.runtime, &self.thread).await?;
        let more = left.len() as u64;
        for (key, input) in left.into_iter().rev() {
            self.queue.push_front(Queued { pushed: Pushed { input, ack: None, _place: None }, key });
        }
        // It comes before what was pushed meanwhile, and a flush waits for that.
        self.taken += more;
        self.flushes.iter_mut().for_each(|(upto, _)| *upto += more);
        self.start = Start::Fresh;
        Ok(())
    }

    /// Puts the first input aside for an operator, and has its thread told.
    pub(super) async fn bury(&mut self) -> Result<(), StoreError> {
        let Some(first) = self.queue.front_mut() else { return Ok(()) };
        let input = &first.pushed.input;
        let message_id = MessageId::new(input.id.as_str());
        let letter = DeadLetter {
            thread: self.thread.clone(),
            message_id: message_id.clone(),
            reason: DIED.to_owned(),
            body: input.body(&self.thread).unwrap_or_default(),
            kept_at_ms: self.runtime.clock.now_ms(),
        };
        self.runtime.store.keep_dead_letter(&letter).await?;
        tracing::error!(thread = %self.thread, message_id = %letter.message_id, "an input is kept as a dead letter");
        if matches!(input.message.content, InputContent::Undeliverable(_)) {
            // Whoever was to be told of a death has died of it.
            self.queue.pop_front();
            self.done += 1;
            return Ok(());
        }
        let id = DedupId::derive("undeliverable", &[input.id.as_str()]);
        let dead = InputContent::Undeliverable(Undeliverable { message_id });
        first.pushed.input = AgentInput::content(dead).with_id(id.as_str());
        Ok(())
    }
}

/// What whoever served a thread before has left, as messages that come again: the thread's state names them, each with the
/// sequence number that it had.
pub(super) async fn left_behind(
    runtime: &Runtime,
    thread: &ThreadId,
) -> Result<Vec<(String, AgentInput)>, StoreError> {
    let Some(meta) = runtime.store.meta(thread).await? else { return Ok(Vec::new()) };
    let owed = meta
        .outbox
        .iter()
        .flat_map(|entry| entry.cause.iter().map(|cause| (entry.sequence.clone(), cause.clone())));
    let open = meta.open.iter().map(|cause| (String::new(), cause.clone()));
    let mut seen = BTreeSet::new();
    let left = owed.chain(open).filter(|(_, cause)| seen.insert(cause.clone()));
    // Of what is in the store only the ids count; a word that has no effect of its own carries them.
    let word = |cause: MessageId| AgentInput::content(InputContent::Release).with_id(cause.as_str()).again();
    Ok(left.map(|(key, cause)| (key, word(cause))).collect())
}

/// An input has failed and may never be given in again: what its slice has committed and not sent must not count as sent
/// because another input comes first. Its attempt is not counted. Best effort; a store that is down has more to forgive.
pub(super) async fn keep_owed(runtime: &Runtime, thread: &ThreadId, id: &DedupId) {
    let marked = runtime.store.raise_attempts(thread, id, &MessageId::new(id.as_str())).await;
    let kept = match marked {
        Ok(_) => runtime.store.lower_attempts(thread, id).await,
        Err(e) => Err(e),
    };
    if let Err(error) = kept {
        tracing::warn!(%thread, %error, "what a failed input owes may be taken for sent");
    }
}
