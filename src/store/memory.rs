//! The store as maps in this process, for tests, the simulation and embedding.
//!
//! It keeps every condition that the DynamoDB adapter keeps, and it can be told to fail ([`CommitFault`]): what
//! a slice does about a lost race or an answer that never came can only be tested where both can be ordered.
//! It reads no clock: time stands where the last commit, or [`MemoryStore::advance_to`], put it.

mod archive;
mod rows;
mod runs;
mod state;

use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;

use super::{
    Commit, Committed, Compacted, CompactionCommit, ConversationStore, Generation, GenerationId, Loaded, Log,
    Meta, ParkedInput, Span, StoreError, ThreadSummary, behind, body_digest, claim_expiry_ms,
};
use crate::message::{DedupId, Epoch, Item, MessageId, Seq, ThreadId};
use rows::{State, Thread};

/// What goes wrong with the next commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitFault {
    /// It fails with [`StoreError::Unavailable`] and nothing is written.
    Unavailable,
    /// Everything is written, and the caller is told [`StoreError::Unavailable`]. The same commit sent again is
    /// known by its token and answered [`Committed::Done`].
    AnswerLost,
    /// Nothing is written and the caller is told [`Committed::LostRace`].
    LostRace,
}

/// A [`super::Store`] in memory. Clones share their rows.
#[derive(Clone, Default)]
pub struct MemoryStore {
    state: Arc<Mutex<State>>,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Orders what goes wrong with the next commits, one fault each, after those ordered before.
    pub fn fail_commits(&self, faults: impl IntoIterator<Item = CommitFault>) {
        self.lock().commit_faults.extend(faults);
    }

    /// The next `n` loads fail with [`StoreError::Unavailable`].
    pub fn fail_loads(&self, n: usize) {
        self.lock().failing_loads = n;
    }

    /// The next `n` look-ups of whether an input was processed fail with [`StoreError::Unavailable`].
    pub fn fail_look_ups(&self, n: usize) {
        self.lock().failing_look_ups = n;
    }

    /// The next `n` changes of a client's run fail with [`StoreError::Unavailable`].
    pub fn fail_run_changes(&self, n: usize) {
        self.lock().failing_run_changes = n;
    }

    /// Moves the store's clock on; it never goes back.
    pub fn advance_to(&self, now_ms: i64) {
        let mut state = self.lock();
        state.now_ms = state.now_ms.max(now_ms);
    }

    /// Commits applied so far: refused, lost and repeated ones do not count.
    pub fn commits(&self) -> usize {
        self.lock().commits
    }

    async fn read(
        &self,
        thread: &ThreadId,
        dedup: &[DedupId],
        for_request: bool,
    ) -> Result<Loaded, StoreError> {
        tokio::task::yield_now().await;
        let mut state = self.lock();
        if state.failing_loads > 0 {
            state.failing_loads -= 1;
            return Err(ordered_outage());
        }
        let Some(rows) = state.threads.get(thread) else {
            return Ok(Loaded::default());
        };
        let mut loaded = Loaded { meta: rows.meta.clone(), ..Loaded::default() };
        if let Some(meta) = &rows.meta {
            let mut spans = meta.spans();
            if let Some(newest) = &meta.compaction.newest
                && let Some(generation) =
                    state.threads.get(&newest.id.thread).and_then(|rows| rows.readable(&newest.id))
                && let Some((covered, rest)) = behind(&spans, &newest.through)
            {
                loaded.generation = Some(generation.clone());
                if let Some(at) = &newest.opener {
                    let rows = state.threads.get(&at.thread);
                    loaded.opener = rows.and_then(|rows| rows.logs.get(&(at.epoch, at.seq))).cloned();
                }
                if for_request {
                    (loaded.unread, spans) = (covered, rest);
                }
            }
            for span in &spans {
                loaded.items.extend(state.span(&span.thread, span.epoch, span.from, span.to)?);
            }
        }
        loaded.parked = rows.parked.values().cloned().collect();
        loaded.parked.sort_by(ParkedInput::arrival_order);
        loaded.processed = dedup.iter().filter(|id| rows.is_processed(id, state.now_ms)).cloned().collect();
        let root = rows.meta.as_ref().filter(|meta| meta.parent.is_some()).map(|meta| &meta.root);
        let root = root.and_then(|root| state.threads.get(root)?.meta.as_ref());
        loaded.root_metadata = root.and_then(|meta| meta.metadata.clone());
        loaded.choices = rows.choices.values().cloned().collect();
        loaded.stop.clone_from(&rows.stop);
        Ok(loaded)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic of another test thread while it held the lock says nothing about the rows.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn of_thread<T: Default>(&self, thread: &ThreadId, read: impl FnOnce(&Thread) -> T) -> T {
        self.lock().threads.get(thread).map(read).unwrap_or_default()
    }
}

fn ordered_outage() -> StoreError {
    StoreError::Unavailable("an outage that a test ordered".to_owned())
}

#[async_trait]
impl ConversationStore for MemoryStore {
    async fn load(&self, thread: &ThreadId, dedup: &[DedupId]) -> Result<Loaded, StoreError> {
        self.read(thread, dedup, false).await
    }

    async fn load_for_request(&self, thread: &ThreadId, dedup: &[DedupId]) -> Result<Loaded, StoreError> {
        self.read(thread, dedup, true).await
    }

    async fn compact(&self, change: CompactionCommit) -> Result<Compacted, StoreError> {
        tokio::task::yield_now().await;
        let result = {
            let mut state = self.lock();
            match state.commit_faults.pop_front() {
                Some(CommitFault::Unavailable) => Err(ordered_outage()),
                Some(CommitFault::LostRace) => Ok(Compacted::Lost),
                Some(CommitFault::AnswerLost) => {
                    state.compact(change);
                    Err(ordered_outage())
                }
                None => Ok(state.compact(change)),
            }
        };
        tokio::task::yield_now().await;
        result
    }

    async fn generation(&self, id: &GenerationId) -> Result<Option<Generation>, StoreError> {
        Ok(self.of_thread(&id.thread, |rows| rows.readable(id).cloned()))
    }

    async fn read_span(&self, span: &Span) -> Result<Vec<Item>, StoreError> {
        self.lock().span(&span.thread, span.epoch, span.from, span.to)
    }

    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        commit.validate()?;
        // A point where a simulated crash finds nothing written; below is one where everything is.
        tokio::task::yield_now().await;
        let result = {
            let mut state = self.lock();
            match state.commit_faults.pop_front() {
                Some(CommitFault::Unavailable) => Err(ordered_outage()),
                Some(CommitFault::LostRace) => Ok(Committed::LostRace),
                Some(CommitFault::AnswerLost) => {
                    state.write(commit);
                    Err(ordered_outage())
                }
                None => Ok(state.write(commit)),
            }
        };
        tokio::task::yield_now().await;
        result
    }

    async fn log(&self, thread: &ThreadId, epoch: Epoch) -> Result<Log, StoreError> {
        Ok(self.of_thread(thread, |rows| Log {
            base: rows.bases.get(&epoch).cloned().unwrap_or_default(),
            items: rows
                .logs
                .range((epoch, Seq(0))..=(epoch, Seq(u64::MAX)))
                .map(|(_, item)| item.clone())
                .collect(),
        }))
    }

    async fn put_log(&self, snapshot: &ThreadId, items: &[Item]) -> Result<(), StoreError> {
        let mut state = self.lock();
        let rows = state.threads.entry(snapshot.clone()).or_default();
        for item in items {
            // What is there stays: it may have been redacted since.
            rows.logs.entry((Epoch(0), item.seq)).or_insert_with(|| item.clone());
        }
        rows.closed_to_heirs = false;
        Ok(())
    }

    async fn is_message_processed(&self, thread: &ThreadId, dedup: &DedupId) -> Result<bool, StoreError> {
        let mut state = self.lock();
        if state.failing_look_ups > 0 {
            state.failing_look_ups -= 1;
            return Err(ordered_outage());
        }
        Ok(state.threads.get(thread).is_some_and(|rows| rows.is_processed(dedup, state.now_ms)))
    }

    async fn meta(&self, thread: &ThreadId) -> Result<Option<Meta>, StoreError> {
        Ok(self.of_thread(thread, |rows| rows.meta.clone()))
    }

    async fn claim_thread(&self, thread: &ThreadId, owner: &str, _now_ms: i64) -> Result<String, StoreError> {
        let mut state = self.lock();
        let rows = state.threads.entry(thread.clone()).or_default();
        Ok(rows.owner.get_or_insert_with(|| owner.to_owned()).clone())
    }

    async fn list_threads_of(&self, owner: &str, limit: usize) -> Result<Vec<ThreadSummary>, StoreError> {
        let state = self.lock();
        let theirs = state.threads.values().filter(|rows| rows.owner.as_deref() == Some(owner));
        let metas = theirs.filter_map(Thread::listed);
        let mut threads: Vec<ThreadSummary> =
            metas.filter(|meta| meta.owner.as_deref() == Some(owner)).map(ThreadSummary::from).collect();
        threads.sort_by(ThreadSummary::newest_first);
        threads.truncate(limit);
        Ok(threads)
    }

    async fn list_threads(&self, limit: usize) -> Result<Vec<ThreadSummary>, StoreError> {
        let state = self.lock();
        let metas = state.threads.values().filter_map(Thread::listed);
        let mut threads: Vec<ThreadSummary> = metas.map(ThreadSummary::from).collect();
        threads.sort_by(ThreadSummary::newest_first);
        threads.truncate(limit);
        Ok(threads)
    }

    async fn raise_attempts(
        &self,
        thread: &ThreadId,
        dedup: &DedupId,
        cause: &MessageId,
    ) -> Result<u32, StoreError> {
        let mut state = self.lock();
        let rows = state.threads.entry(thread.clone()).or_default();
        if let Some(meta) = &mut rows.meta {
            if !meta.redelivered.contains(cause) {
                meta.redelivered.push(cause.clone());
            }
            // A slice that was loaded before would write its own list over this one.
            meta.token = uuid::Uuid::new_v4().to_string();
        }
        rows.failed.insert(cause.clone(), dedup.clone());
        let attempts = rows.attempts.entry(dedup.clone()).or_default();
        *attempts += 1;
        Ok(*attempts)
    }

    async fn failed_input(
        &self,
        thread: &ThreadId,
        cause: &MessageId,
    ) -> Result<Option<DedupId>, StoreError> {
        Ok(self.of_thread(thread, |rows| rows.failed.get(cause).cloned()))
    }

    async fn lower_attempts(&self, thread: &ThreadId, dedup: &DedupId) -> Result<(), StoreError> {
        let mut state = self.lock();
        let rows = state.threads.entry(thread.clone()).or_default();
        let attempts = rows.attempts.entry(dedup.clone()).or_default();
        *attempts = attempts.saturating_sub(1);
        Ok(())
    }

    async fn put_claim(&self, body: &str) -> Result<String, StoreError> {
        let digest = body_digest(body);
        let mut state = self.lock();
        let expiry = claim_expiry_ms(state.now_ms);
        state.claims.insert(digest.clone(), (body.to_owned(), expiry));
        Ok(digest)
    }

    async fn claim(&self, digest: &str) -> Result<Option<String>, StoreError> {
        let state = self.lock();
        let live = state.claims.get(digest).filter(|(_, expiry)| *expiry >= state.now_ms);
        Ok(live.map(|(body, _)| body.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{ItemBody, ItemFacts, SystemItem};
    use crate::store::Expect;

    fn create(token: &str) -> Commit {
        let mut meta = Meta::new_root(ThreadId::from("t"), "agent", None, 0);
        let body = ItemBody::System(SystemItem { text: "a".into() });
        meta.head = Seq(2);
        meta.token = token.to_owned();
        Commit {
            items: vec![Item::fresh(Seq(1), body, ItemFacts::default())],
            ..Commit::new(Expect::Absent, meta, 0)
        }
    }

    #[tokio::test]
    async fn i2_faults_come_in_the_order_given_and_a_lost_answer_is_known_by_its_token() {
        let store = MemoryStore::new();
        let thread = ThreadId::from("t");
        store.fail_commits([CommitFault::Unavailable, CommitFault::LostRace, CommitFault::AnswerLost]);
        assert!(store.commit(create("ours")).await.is_err());
        assert_eq!(store.commit(create("ours")).await.unwrap(), Committed::LostRace);
        assert_eq!((store.meta(&thread).await.unwrap(), store.commits()), (None, 0));
        assert!(store.commit(create("ours")).await.unwrap_err().is_transient());
        assert_eq!(store.commits(), 1);
        assert_eq!(store.commit(create("ours")).await.unwrap(), Committed::Done);
        assert_eq!(store.commit(create("theirs")).await.unwrap(), Committed::LostRace);
        assert_eq!(store.commits(), 1);
        store.fail_loads(1);
        assert!(store.load(&thread, &[]).await.is_err());
        assert_eq!(store.load(&thread, &[]).await.unwrap().items.len(), 1);
    }
}
