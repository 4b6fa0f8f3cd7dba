//! From memory to the store: what a sync writes, in as few commits as it fits in, and when a slice has to.

use tracing::Instrument;
use uuid::Uuid;

use super::{HistoryManager, ThreadError};
use crate::history::SyncPlan;
use crate::message::MessageId;
use crate::store::{Commit, Committed, CompactionState, DedupLife, Expect, OutboxEntry, StoreError};

/// Commits that one sync may need; a plan always makes progress, so this is never reached.
const MAX_COMMITS: usize = 64;

/// Open causes that META keeps: those of one batch, and some whose messages went to the dead-letter queue.
const MAX_OPEN_CAUSES: usize = 32;

/// Whether a commit is the slice's last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More follows: the causes are marked *open*, so that a redelivery goes on from here.
    More,
    /// Nothing follows: the causes are done, and with them what the thread had open.
    Last,
    /// Nothing follows, and the model was not asked: the causes are done, what others have open stays open.
    Aside,
}

impl HistoryManager {
    /// Whether something durable would be lost by ending the slice here.
    pub fn has_unsynced(&self) -> bool {
        self.must_sync(Progress::Last)
    }

    /// A dedup row of its own is no reason for a barrier: it goes with what its slice commits last.
    pub(super) fn must_sync(&self, progress: Progress) -> bool {
        self.history.has_unsynced()
            || (progress == Progress::Last && !self.bare.is_empty())
            || !self.promises.is_empty()
            || self.asked
            || !self.subscriptions.is_empty()
            || !self.children.is_empty()
            || self.run_changed
            || (self.closing && !self.meta.closed)
    }

    /// Writes the known-safe layer, parked inputs, dedup rows and promises, in as few commits as they fit in;
    /// without anything to write there is no write. Unvalidated inputs stay in memory.
    ///
    /// # Errors
    /// [`ThreadError::LostRace`] if another slice moved the thread: nothing of this manager counts any more.
    pub async fn sync(&mut self, progress: Progress, now_ms: i64) -> Result<(), ThreadError> {
        if !self.history.turn().is_empty() {
            return Err(ThreadError::Unflushed(self.history.thread().clone()));
        }
        for _ in 0..MAX_COMMITS {
            let closing =
                progress != Progress::More && self.working.iter().any(|cause| self.meta.open.contains(cause));
            if !self.must_sync(progress) && !closing {
                return Ok(());
            }
            let plan = self.history.plan();
            let more = plan.more;
            let progress = if more { Progress::More } else { progress };
            self.commit(plan, progress, now_ms).await?;
            if !more {
                return Ok(());
            }
        }
        Err(StoreError::Invalid {
            thread: self.history.thread().clone(),
            reason: format!("a sync needs more than {MAX_COMMITS} commits"),
        }
        .into())
    }

    pub(super) async fn commit(
        &mut self,
        mut plan: SyncPlan,
        progress: Progress,
        now_ms: i64,
    ) -> Result<(), ThreadError> {
        // What was parked has no time of its own: it counts from when it is in.
        for item in plan.items.iter_mut().filter(|item| item.facts.created_at_ms == 0) {
            item.facts.created_at_ms = now_ms;
        }
        let last_chunk = !plan.more;
        let mut meta = self.meta.clone();
        meta.prune = self.history.prune();
        if plan.epoch != meta.epoch {
            // A new log numbers its summaries anew, and begins with what the rewind has left.
            let newest = self.history.pointer().cloned();
            meta.compaction = CompactionState { newest, ..CompactionState::default() };
        }
        meta.images_out.clone_from(self.history.images_out());
        meta.results_out.clone_from(self.history.results_out());
        meta.epoch = plan.epoch;
        meta.base.clone_from(&plan.base);
        meta.head = plan.head;
        meta.next_turn = plan.next_turn;
        meta.turn_id.clone_from(&plan.turn_id);
        meta.state.clone_from(&plan.state);
        meta.pending.clone_from(&plan.pending);
        meta.token = Uuid::new_v4().to_string();
        // An input that is in is remembered, finished or not; one that an open slice has not taken in is not.
        let items = plan.items.iter().filter(|item| item.facts.dedup.is_some());
        let items = items.filter_map(|item| item.facts.cause.as_ref());
        let bare = self.bare.iter().filter(|_| last_chunk).map(|(arrival, _)| &arrival.cause);
        for cause in items.chain(plan.park.iter().map(|parked| &parked.cause)).chain(bare) {
            meta.remember(cause);
        }
        for cause in &self.working {
            match progress {
                Progress::More => {
                    meta.open.retain(|open| open != cause);
                    meta.open.push(cause.clone());
                }
                Progress::Last => {
                    // What the slice has finished is the thread's work, whichever message it was for: a batch
                    // that comes back in pieces must not ask the model again for each of them. But a synchronous
                    // call that is still open is somebody's unfinished slice.
                    let finished = !meta.pending.iter().any(|pending| pending.synchronous);
                    meta.open.retain(|open| !finished && open != cause);
                }
                Progress::Aside => meta.open.retain(|open| open != cause),
            }
        }
        // What died with its message stays behind here; it must not grow for ever.
        meta.open.drain(..meta.open.len().saturating_sub(MAX_OPEN_CAUSES));
        let promised: Vec<OutboxEntry> = plan.promises.drain(..).map(|promise| self.entry(promise)).collect();
        meta.outbox.extend(promised);
        if last_chunk {
            meta.outbox.extend(self.promises.iter().cloned());
            meta.closed |= self.closing;
        }
        let owed = meta.outbox.clone();
        meta.outbox.extend(self.kept.iter().cloned());
        // A cause that may have died matters as long as something is owed or open for it.
        let owed_for = |cause: &MessageId| {
            meta.open.contains(cause) || meta.outbox.iter().any(|entry| entry.cause.contains(cause))
        };
        let redelivered: Vec<MessageId> = meta.redelivered.iter().filter(|c| owed_for(c)).cloned().collect();
        meta.redelivered = redelivered;
        let expect = match self.exists {
            true => {
                Expect::At { epoch: self.meta.epoch, head: self.meta.head, token: self.meta.token.clone() }
            }
            false => Expect::Absent,
        };
        let mut commit = Commit {
            items: plan.items.clone(),
            dedup: plan.dedup.clone(),
            park: plan.park.clone(),
            release: plan.release.clone(),
            subscriptions: plan.subscriptions.clone(),
            ..Commit::new(expect, meta.clone(), now_ms)
        };
        commit.left = match self.exists {
            true if meta.epoch != self.meta.epoch => vec![(self.meta.epoch, self.meta.base.clone())],
            true => Vec::new(),
            false => self.branches.clone(),
        };
        if last_chunk {
            commit.children.clone_from(&self.children);
            commit.open_children = i32::try_from(self.children.len()).unwrap_or(i32::MAX);
            if self.closing && meta.parent.is_some() {
                commit.open_children -= 1;
            }
            let bare = self.bare.iter().map(|(arrival, life)| (arrival.dedup.clone(), *life));
            commit.dedup.extend(bare);
            commit.subscriptions.extend(self.subscriptions.iter().cloned());
            commit.choices.clone_from(&self.choices);
            commit.closed_choices.clone_from(&self.closed_choices);
        }
        commit.dedup.extend(self.dropped.iter().map(|dedup| (dedup.clone(), DedupLife::Days)));
        let span = tracing::info_span!(
            "commit",
            items = commit.items.len(),
            actions = commit.actions(),
            bytes = commit.bytes(),
            head = meta.head.0,
        );
        match self.conversations.commit(commit).instrument(span).await? {
            Committed::LostRace => return Err(ThreadError::LostRace(self.history.thread().clone())),
            Committed::Done => {}
        }
        // A rewind has hidden some of what a follower knows.
        let moved = (self.meta.epoch, &self.meta.base) != (meta.epoch, &meta.base);
        let kept = if moved { 0 } else { self.history.committed().len() };
        self.exists = true;
        self.struck = false;
        self.asked = false;
        self.run_changed = false;
        self.meta = meta;
        self.meta.outbox = owed;
        self.history.apply(plan);
        self.dropped.clear();
        if last_chunk {
            self.promises.clear();
            self.bare.clear();
            self.stored_choices.append(&mut self.choices);
            let closed = std::mem::take(&mut self.closed_choices);
            self.stored_choices.retain(|choice| !closed.contains(&choice.id));
            self.subscriptions.clear();
            self.children.clear();
        }
        if let Some(follower) = &self.follower {
            follower.changed(self.change_behind(kept));
        }
        Ok(())
    }
}
