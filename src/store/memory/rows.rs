//! The rows, and the conditions under which a commit or a compaction changes them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::CommitFault;
use crate::message::{CallId, DedupId, Epoch, Item, MessageId, RawJson, Seq, ThreadId};
use crate::store::{
    ChoiceRow, Commit, Committed, Compacted, CompactionCommit, DeadLetter, Expect, Generation, GenerationId,
    Meta, NewThread, ParkedInput, RunRow, Span, Stop, StoreError, SubscriptionChange, ThreadKind,
};

#[derive(Default)]
pub(super) struct State {
    pub(super) threads: BTreeMap<ThreadId, Thread>,
    pub(super) claims: BTreeMap<String, (String, i64)>,
    pub(super) manifests: BTreeMap<String, (String, i64)>,
    pub(super) dead_letters: BTreeMap<(ThreadId, MessageId), DeadLetter>,
    pub(super) now_ms: i64,
    pub(super) commit_faults: VecDeque<CommitFault>,
    pub(super) failing_loads: usize,
    pub(super) failing_look_ups: usize,
    pub(super) failing_run_changes: usize,
    pub(super) commits: usize,
}

#[derive(Default)]
pub(super) struct Thread {
    pub(super) meta: Option<Meta>,
    pub(super) logs: BTreeMap<(Epoch, Seq), Item>,
    pub(super) generations: BTreeMap<GenerationId, Generation>,
    /// What the logs that a rewind has left inherit.
    pub(super) bases: BTreeMap<Epoch, Vec<Span>>,
    /// Who inherits of these logs.
    pub(super) heirs: BTreeSet<ThreadId>,
    /// Whom it has made.
    pub(super) children: BTreeSet<ThreadId>,
    /// Nobody may begin to inherit of these logs.
    pub(super) closed_to_heirs: bool,
    /// Until when each counts, milliseconds; none: for ever.
    pub(super) dedup: BTreeMap<DedupId, Option<i64>>,
    pub(super) parked: BTreeMap<String, ParkedInput>,
    pub(super) attempts: BTreeMap<DedupId, u32>,
    pub(super) failed: BTreeMap<MessageId, DedupId>,
    pub(super) open_children: u32,
    pub(super) owner: Option<String>,
    pub(super) stop: Option<Stop>,
    pub(super) subscriptions: BTreeMap<CallId, bool>,
    pub(super) choices: BTreeMap<CallId, ChoiceRow>,
    pub(super) views: BTreeMap<String, RawJson>,
    pub(super) runs: BTreeMap<String, RunRow>,
    /// By run, slice and row.
    pub(super) run_events: BTreeMap<(String, u32, u32), String>,
    /// Only its name is left: it is in no list.
    pub(super) erased: bool,
}

impl Thread {
    pub(super) fn is_processed(&self, dedup: &DedupId, now_ms: i64) -> bool {
        self.dedup.get(dedup).is_some_and(|expiry| expiry.is_none_or(|expiry| expiry >= now_ms))
    }

    /// A generation that says something.
    pub(super) fn readable(&self, id: &GenerationId) -> Option<&Generation> {
        self.generations.get(id).filter(|generation| !generation.text.is_empty())
    }

    /// Its state, if it is a conversation that is there: what summarises another one is none.
    pub(super) fn listed(&self) -> Option<&Meta> {
        self.meta.as_ref().filter(|meta| !self.erased && meta.kind != ThreadKind::Compaction)
    }

    /// Whether every condition of `commit` but the token's holds.
    pub(super) fn allows(&self, commit: &Commit) -> bool {
        let stands = match (&commit.expect, &self.meta) {
            (Expect::Absent, None) => true,
            (Expect::At { epoch, head, token }, Some(meta)) => {
                (meta.epoch, meta.head) == (*epoch, *head) && meta.token == *token && !meta.closed
            }
            (Expect::Absent, Some(_)) | (Expect::At { .. }, None) => false,
        };
        stands
            && commit.dedup.iter().all(|(id, _)| !self.is_processed(id, commit.now_ms))
            && commit.release.iter().all(|key| self.parked.contains_key(key))
            && commit.items.iter().all(|item| !self.logs.contains_key(&(commit.meta.epoch, item.seq)))
    }

    pub(super) fn apply(&mut self, commit: Commit) {
        for change in commit.subscription_changes() {
            match change {
                SubscriptionChange::Start(call) => self.subscriptions.insert(call.clone(), true),
                SubscriptionChange::End(call) => self.subscriptions.insert(call.clone(), false),
            };
        }
        if let Some(owner) = commit.made_for() {
            self.owner.get_or_insert_with(|| owner.to_owned());
        }
        let sets_compaction = commit.sets_compaction();
        let Commit { mut meta, items, dedup, park, release, choices, closed_choices, left, now_ms, .. } =
            commit;
        if let Some(born) = &self.meta {
            // What a thread is was fixed when it was made.
            meta.root = born.root.clone();
            meta.parent = born.parent.clone();
            meta.ancestors = born.ancestors.clone();
            meta.origin = born.origin.clone();
            meta.kind = born.kind;
            meta.owner = born.owner.clone();
            meta.agent = born.agent.clone();
            meta.created_at_ms = born.created_at_ms;
            if !sets_compaction {
                meta.compaction = born.compaction.clone();
            }
        }
        self.bases.extend(left);
        self.logs.extend(items.into_iter().map(|item| ((meta.epoch, item.seq), item)));
        self.meta = Some(meta);
        self.dedup.extend(dedup.into_iter().map(|(id, life)| (id, life.expiry_ms(now_ms))));
        for key in release {
            self.parked.remove(&key);
        }
        self.parked.extend(park.into_iter().map(|parked| (parked.key.clone(), parked)));
        self.choices.retain(|id, _| !closed_choices.contains(id));
        self.choices.extend(choices.into_iter().map(|choice| (choice.id.clone(), choice)));
    }
}

impl State {
    /// The items of one log, positions `(from, to]`; all of them or the error.
    pub(super) fn span(
        &self,
        thread: &ThreadId,
        epoch: Epoch,
        from: Seq,
        to: Seq,
    ) -> Result<Vec<Item>, StoreError> {
        let logs = self.threads.get(thread).map(|thread| &thread.logs);
        (from.0.saturating_add(1)..=to.0)
            .map(|seq| {
                logs.and_then(|logs| logs.get(&(epoch, Seq(seq)))).cloned().ok_or_else(|| {
                    StoreError::Incomplete { thread: thread.clone(), epoch, missing: Seq(seq) }
                })
            })
            .collect()
    }

    pub(super) fn compact(&mut self, change: CompactionCommit) -> Compacted {
        let Some(rows) = self.threads.get_mut(&change.thread) else { return Compacted::Lost };
        let Some(meta) = rows.meta.as_mut() else { return Compacted::Lost };
        let stands = meta.epoch == change.epoch && meta.compaction.last == change.last && !meta.closed;
        let Some(generation) = change.generation else {
            if stands {
                meta.compaction.run = change.run;
            }
            return if stands { Compacted::Done } else { Compacted::Lost };
        };
        let id = &generation.at.id;
        if let Some(there) = rows.generations.get(id) {
            return if there.digest == generation.digest { Compacted::Done } else { Compacted::Lost };
        }
        if !stands {
            return Compacted::Lost;
        }
        meta.compaction.run = change.run;
        meta.compaction.last = id.number;
        meta.compaction.newest = Some(generation.at.clone());
        rows.generations.insert(id.clone(), generation);
        Compacted::Done
    }

    pub(super) fn write(&mut self, commit: Commit) -> Committed {
        let exists =
            |child: &NewThread| self.threads.get(&child.meta.thread).is_some_and(|rows| rows.meta.is_some());
        let closed = |of: &&ThreadId| self.threads.get(*of).is_some_and(|rows| rows.closed_to_heirs);
        let taken = commit.children.iter().any(exists) || commit.bequests().iter().any(closed);
        let thread = self.threads.entry(commit.meta.thread.clone()).or_default();
        if thread.meta.as_ref().is_some_and(|meta| meta.token == commit.meta.token) {
            return Committed::Done;
        }
        if taken || !thread.allows(&commit) {
            return Committed::LostRace;
        }
        self.now_ms = self.now_ms.max(commit.now_ms);
        self.commits += 1;
        let (children, more) = (commit.children.clone(), commit.open_children);
        let made = children.iter().map(|child| child.meta.thread.clone());
        self.threads.entry(commit.meta.thread.clone()).or_default().children.extend(made);
        let root = self.threads.entry(commit.meta.root.clone()).or_default();
        root.open_children = root.open_children.saturating_add_signed(more);
        for ancestor in commit.bequests() {
            let heirs = &mut self.threads.entry(ancestor.clone()).or_default().heirs;
            heirs.insert(commit.meta.thread.clone());
        }
        self.threads.entry(commit.meta.thread.clone()).or_default().apply(commit);
        for NewThread { meta, items, parked } in children {
            let rows = self.threads.entry(meta.thread.clone()).or_default();
            rows.logs.extend(items.into_iter().map(|item| ((meta.epoch, item.seq), item)));
            rows.parked.extend(parked.map(|parked| (parked.key.clone(), parked)));
            rows.meta = Some(meta);
        }
        Committed::Done
    }
}
