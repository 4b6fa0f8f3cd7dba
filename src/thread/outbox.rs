//! What commits promise to send: how it is written down, whose turn it is to send it, and how it is struck (I4).

use super::{HistoryManager, Progress, ThreadError};
use crate::history::Arrival;
use crate::message::{DedupId, MessageId};
use crate::store::{OutboxEntry, Promise, sequence_order};

impl HistoryManager {
    /// Promises to send something after the next commit.
    pub fn promise(&mut self, promise: Promise) {
        let entry = self.entry(promise);
        self.promises.push(entry);
    }

    /// A promise as it is written down.
    pub(super) fn entry(&self, promise: Promise) -> OutboxEntry {
        let name = serde_json::to_string(&promise).expect("bug: a promise serialises");
        // A notice says nothing of where it belongs; everything else names its item or its call, so that its id
        // does not depend on how a batch was cut.
        let causes: Vec<&str> = match &promise {
            Promise::Notice { .. }
            | Promise::Release
            | Promise::Compact { .. }
            | Promise::Compacted { .. }
            | Promise::Unknown(_) => self.working.iter().map(MessageId::as_str).collect(),
            Promise::Call { .. }
            | Promise::Cancel { .. }
            | Promise::Reply { .. }
            | Promise::OAuth { .. }
            | Promise::Choice { .. }
            | Promise::Answer { .. }
            | Promise::Wake { .. }
            | Promise::Report { .. }
            | Promise::Message { .. }
            | Promise::Schedule { .. }
            | Promise::End { .. }
            | Promise::RunEnd { .. }
            | Promise::Closed => Vec::new(),
        };
        let epoch = self.history.epoch().to_string();
        let id = DedupId::derive("out", &[self.history.thread().as_str(), &epoch, &causes.join(" "), &name]);
        OutboxEntry {
            id: id.as_str().to_owned(),
            cause: self.working.clone(),
            sequence: self.sequence.clone(),
            promise,
        }
    }

    /// Sorts the outbox for a slice of the given messages. What was promised for one of them, or for a message that
    /// may have died, is owed. What was promised for a message that is still to come again stays. Everything else
    /// was sent: a FIFO queue delivers a later message of a thread only after the one before was acknowledged, that
    /// is, after its outbox was sent.
    pub fn resume_outbox<'a>(&mut self, batch: impl IntoIterator<Item = &'a Arrival>) {
        let batch: Vec<&Arrival> = batch.into_iter().collect();
        for entry in std::mem::take(&mut self.meta.outbox) {
            let caused_by = |cause: &MessageId| entry.cause.contains(cause);
            let owed = batch.iter().any(|arrival| caused_by(&arrival.cause))
                || self.meta.redelivered.iter().any(caused_by);
            let later = batch.iter().all(|arrival| sequence_order(&arrival.key, &entry.sequence).is_lt());
            if owed {
                self.meta.outbox.push(entry);
            } else if later && !entry.sequence.is_empty() {
                self.kept.push(entry);
            }
        }
    }

    /// What is committed and not yet sent.
    pub fn owed(&self) -> &[OutboxEntry] {
        &self.meta.outbox
    }

    /// Strikes what was sent; the next commit, if there is one, drops it.
    pub fn sent(&mut self, id: &str) {
        self.meta.outbox.retain(|entry| entry.id != id);
        self.struck = true;
    }

    /// Writes down that everything owed was sent, if the thread knows of redelivered messages: what is promised for
    /// one of those is otherwise sent again by the next slice, which cannot tell that it did not die. Nothing is lost
    /// if this fails.
    pub async fn close_redelivery(&mut self, now_ms: i64) -> Result<(), ThreadError> {
        let needed = self.struck && self.exists && !self.meta.closed && !self.meta.redelivered.is_empty();
        if !needed || self.must_sync(Progress::Last) {
            return Ok(());
        }
        let plan = self.history.plan();
        self.commit(plan, Progress::Last, now_ms).await
    }
}
