//! Stores that are wrong in one way each. The simulation must find every one, or it proves nothing.

use std::sync::Arc;

use async_trait::async_trait;
use dormouse::message::{CallId, DedupId, Epoch, Item, MessageId, RawJson, ThreadId};
use dormouse::store::{
    ChoiceRow, Commit, Committed, Compacted, CompactionCommit, ConversationStore, DeadLetter, Expect,
    Generation, GenerationId, Kinship, Loaded, Log, Meta, Span, StateStore, Stop, Store, StoreError,
    Subscription, ThreadSummary,
};

use crate::ports::Ports;
use crate::sim::World;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Dedup rows are no part of the transaction: what dies before they are written is processed again.
    DedupApart,
    /// A commit is called durable before it is written, and now and then it never is.
    DoneBeforeWritten,
    /// The condition on the thread's place is left out: a stale writer appends behind the other's items.
    NoFence,
    /// Promises are forgotten as soon as they are written.
    NoOutbox,
    /// A summary is written on whatever another one has left in the meantime.
    NoCompactionFence,
}

pub struct Planted {
    bug: Bug,
    inner: Ports,
    world: World,
}

impl Planted {
    pub fn store(bug: Bug) -> impl FnOnce(Ports, World) -> Arc<dyn Store> {
        move |inner, world| Arc::new(Self { bug, inner, world })
    }

    /// The commit as it would be if it were made on what is there now.
    async fn rebase(&self, mut commit: Commit) -> Result<Commit, StoreError> {
        let store = self.world.with(|sim| sim.store.clone());
        let Some(now) = store.meta(&commit.meta.thread).await? else { return Ok(commit) };
        commit.expect = Expect::At { epoch: now.epoch, head: now.head, token: now.token };
        let items = std::mem::take(&mut commit.items);
        commit.meta.head = now.head.plus(items.len());
        commit.items =
            items.into_iter().enumerate().map(|(n, item)| Item { seq: now.head.plus(n), ..item }).collect();
        let mut fresh = Vec::new();
        for (dedup, life) in std::mem::take(&mut commit.dedup) {
            if !store.is_message_processed(&commit.meta.thread, &dedup).await? {
                fresh.push((dedup, life));
            }
        }
        commit.dedup = fresh;
        Ok(commit)
    }
}

#[async_trait]
impl ConversationStore for Planted {
    async fn commit(&self, mut commit: Commit) -> Result<Committed, StoreError> {
        match self.bug {
            Bug::DedupApart => commit.dedup.clear(),
            Bug::DoneBeforeWritten => {
                if self.world.with(|sim| !sim.calm && sim.rng.chance(20)) {
                    return Ok(Committed::Done);
                }
            }
            Bug::NoFence => commit = self.rebase(commit).await?,
            Bug::NoOutbox => commit.meta.outbox.clear(),
            Bug::NoCompactionFence => {}
        }
        self.inner.commit(commit).await
    }

    async fn load(&self, thread: &ThreadId, dedup: &[DedupId]) -> Result<Loaded, StoreError> {
        self.inner.load(thread, dedup).await
    }

    async fn load_for_request(&self, thread: &ThreadId, dedup: &[DedupId]) -> Result<Loaded, StoreError> {
        self.inner.load_for_request(thread, dedup).await
    }

    async fn compact(&self, mut change: CompactionCommit) -> Result<Compacted, StoreError> {
        if self.bug == Bug::NoCompactionFence
            && let Some(now) = self.inner.meta(&change.thread).await?
        {
            change.last = now.compaction.last;
            if let Some(generation) = &mut change.generation {
                generation.at.id.number = change.last + 1;
            }
        }
        self.inner.compact(change).await
    }

    async fn generation(&self, id: &GenerationId) -> Result<Option<Generation>, StoreError> {
        self.inner.generation(id).await
    }

    async fn read_span(&self, span: &Span) -> Result<Vec<Item>, StoreError> {
        self.inner.read_span(span).await
    }

    async fn log(&self, thread: &ThreadId, epoch: Epoch) -> Result<Log, StoreError> {
        self.inner.log(thread, epoch).await
    }

    async fn put_log(&self, snapshot: &ThreadId, items: &[Item]) -> Result<(), StoreError> {
        self.inner.put_log(snapshot, items).await
    }

    async fn is_message_processed(&self, thread: &ThreadId, dedup: &DedupId) -> Result<bool, StoreError> {
        self.inner.is_message_processed(thread, dedup).await
    }

    async fn meta(&self, thread: &ThreadId) -> Result<Option<Meta>, StoreError> {
        self.inner.meta(thread).await
    }

    async fn claim_thread(&self, thread: &ThreadId, owner: &str, now_ms: i64) -> Result<String, StoreError> {
        self.inner.claim_thread(thread, owner, now_ms).await
    }

    async fn list_threads_of(&self, owner: &str, limit: usize) -> Result<Vec<ThreadSummary>, StoreError> {
        self.inner.list_threads_of(owner, limit).await
    }

    async fn list_threads(&self, limit: usize) -> Result<Vec<ThreadSummary>, StoreError> {
        self.inner.list_threads(limit).await
    }

    async fn raise_attempts(
        &self,
        thread: &ThreadId,
        dedup: &DedupId,
        cause: &MessageId,
    ) -> Result<u32, StoreError> {
        self.inner.raise_attempts(thread, dedup, cause).await
    }

    async fn lower_attempts(&self, thread: &ThreadId, dedup: &DedupId) -> Result<(), StoreError> {
        self.inner.lower_attempts(thread, dedup).await
    }

    async fn failed_input(
        &self,
        thread: &ThreadId,
        cause: &MessageId,
    ) -> Result<Option<DedupId>, StoreError> {
        self.inner.failed_input(thread, cause).await
    }

    async fn put_claim(&self, body: &str) -> Result<String, StoreError> {
        self.inner.put_claim(body).await
    }

    async fn claim(&self, digest: &str) -> Result<Option<String>, StoreError> {
        self.inner.claim(digest).await
    }
}

#[async_trait]
impl StateStore for Planted {
    async fn metadata(&self, root: &ThreadId) -> Result<Option<RawJson>, StoreError> {
        self.inner.metadata(root).await
    }

    async fn subscription(
        &self,
        thread: &ThreadId,
        call: &CallId,
    ) -> Result<Option<Subscription>, StoreError> {
        self.inner.subscription(thread, call).await
    }

    async fn get_active_subscriptions(&self, thread: &ThreadId) -> Result<Vec<CallId>, StoreError> {
        self.inner.get_active_subscriptions(thread).await
    }

    async fn choice(&self, thread: &ThreadId, id: &CallId) -> Result<Option<ChoiceRow>, StoreError> {
        self.inner.choice(thread, id).await
    }

    async fn open_choices(&self, thread: &ThreadId) -> Result<Vec<ChoiceRow>, StoreError> {
        self.inner.open_choices(thread).await
    }

    async fn request_stop(&self, thread: &ThreadId, stop: &Stop) -> Result<(), StoreError> {
        self.inner.request_stop(thread, stop).await
    }

    async fn stop(&self, thread: &ThreadId) -> Result<Option<Stop>, StoreError> {
        self.inner.stop(thread).await
    }

    async fn put_view(&self, thread: &ThreadId, kind: &str, content: &RawJson) -> Result<(), StoreError> {
        self.inner.put_view(thread, kind, content).await
    }

    async fn views(&self, thread: &ThreadId) -> Result<Vec<(String, RawJson)>, StoreError> {
        self.inner.views(thread).await
    }

    async fn manifest(&self, server: &str) -> Result<Option<(String, i64)>, StoreError> {
        self.inner.manifest(server).await
    }

    async fn put_manifest(&self, server: &str, manifest: &str, now_ms: i64) -> Result<(), StoreError> {
        self.inner.put_manifest(server, manifest, now_ms).await
    }

    async fn relatives(
        &self,
        thread: &ThreadId,
        kinship: Kinship,
        after: Option<&ThreadId>,
        limit: usize,
    ) -> Result<Vec<ThreadId>, StoreError> {
        self.inner.relatives(thread, kinship, after, limit).await
    }

    async fn open_children(&self, root: &ThreadId) -> Result<u32, StoreError> {
        self.inner.open_children(root).await
    }

    async fn keep_dead_letter(&self, letter: &DeadLetter) -> Result<(), StoreError> {
        self.inner.keep_dead_letter(letter).await
    }

    async fn dead_letter(&self, thread: &ThreadId, id: &MessageId) -> Result<Option<DeadLetter>, StoreError> {
        self.inner.dead_letter(thread, id).await
    }

    async fn dead_letters(&self, limit: usize) -> Result<Vec<DeadLetter>, StoreError> {
        self.inner.dead_letters(limit).await
    }

    async fn forget_dead_letter(&self, thread: &ThreadId, id: &MessageId) -> Result<(), StoreError> {
        self.inner.forget_dead_letter(thread, id).await
    }
}
