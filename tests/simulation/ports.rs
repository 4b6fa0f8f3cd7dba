//! The runtime's ports over the world. Every call can be killed before and behind its effect.

use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use async_trait::async_trait;
use dormouse::message::{
    CallId, DedupId, Epoch, InputMessage, Item, MessageId, OutputMessage, RawJson, ThreadId,
};
use dormouse::queue::{DeadLetters, InputSender, OutputSender, QueueError, Redelivery};
use dormouse::slice::Clock;
use dormouse::store::{
    ChoiceRow, Commit, Committed, Compacted, CompactionCommit, ConversationStore, DeadLetter, Generation,
    GenerationId, Kinship, Loaded, Log, Meta, Span, StateStore, Stop, StoreError, Subscription,
    ThreadSummary,
};

use crate::ledger::gives_up;
use crate::queue::Window;
use crate::sent::Kind;
use crate::sim::World;

/// What the clock says when a world begins.
pub const EPOCH_MS: i64 = 1_700_000_000_000;

#[derive(Clone)]
pub struct Ports(pub World);

fn outage() -> StoreError {
    StoreError::Unavailable("the simulation says so".to_owned())
}

fn queue_outage() -> QueueError {
    QueueError::Unavailable("the simulation says so".to_owned())
}

impl Ports {
    /// A store operation that reads; it may be refused.
    async fn read(&self, what: &str) -> Result<dormouse::store::memory::MemoryStore, StoreError> {
        self.0.pause().await;
        match self.0.strikes(|plan| plan.store, what) {
            true => Err(outage()),
            false => Ok(self.0.with(|sim| sim.store.clone())),
        }
    }

    /// Writes, and takes note of it in the same breath: a kill right behind the write finds it noted.
    async fn write(&self, commit: Commit) -> Result<Committed, StoreError> {
        let store = self.0.with(|sim| sim.store.clone());
        let mut writing = pin!(store.commit(commit.clone()));
        poll_fn(|cx| {
            let before = store.commits();
            let result = writing.as_mut().poll(cx);
            if store.commits() > before {
                self.0.with(|sim| {
                    sim.stats.commits += 1;
                    sim.stats.given_up += u64::from(gives_up(&commit));
                    sim.note(|| told(&commit));
                    let taken = sim.ledger.take(sim.step, &commit, &sim.sent);
                    sim.hold(taken);
                });
            }
            self.0.with(|sim| sim.activity += 1);
            result
        })
        .await
    }
}

fn told(commit: &Commit) -> String {
    let items: Vec<String> =
        commit.items.iter().map(|item| format!("{}:{}", item.seq, item.body.kind())).collect();
    format!(
        "  commit {} [{}] dedup {:?} park {} release {} pending {} outbox {:?} open {:?} redelivered {:?}",
        commit.meta.thread,
        items.join(" "),
        commit.dedup.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>(),
        commit.park.len(),
        commit.release.len(),
        commit.meta.pending.len(),
        commit.meta.outbox.iter().map(|entry| (&entry.promise, &entry.cause)).collect::<Vec<_>>(),
        commit.meta.open,
        commit.meta.redelivered,
    )
}

#[async_trait]
impl ConversationStore for Ports {
    async fn load(&self, thread: &ThreadId, dedup: &[DedupId]) -> Result<Loaded, StoreError> {
        self.0.with(|sim| sim.stats.slices += 1);
        let loaded = self.read("load refused").await?.load(thread, dedup).await?;
        self.0.pause().await;
        Ok(loaded)
    }

    async fn load_for_request(&self, thread: &ThreadId, dedup: &[DedupId]) -> Result<Loaded, StoreError> {
        self.0.with(|sim| sim.stats.slices += 1);
        let loaded = self.read("load refused").await?.load_for_request(thread, dedup).await?;
        self.0.pause().await;
        Ok(loaded)
    }

    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        self.0.pause().await;
        if self.0.strikes(|plan| plan.store, "commit refused") {
            return Err(outage());
        }
        if self.0.strikes(|plan| plan.store, "commit said to have lost a race") {
            return Ok(Committed::LostRace);
        }
        let committed = self.write(commit).await?;
        self.0.pause().await;
        if self.0.strikes(|plan| plan.store, "the commit's answer is lost") {
            return Err(outage());
        }
        if committed == Committed::LostRace {
            self.0.with(|sim| sim.note(|| "  a race is lost".to_owned()));
        }
        Ok(committed)
    }

    async fn compact(&self, change: CompactionCommit) -> Result<Compacted, StoreError> {
        let thread = change.thread.clone();
        let made = change.generation.is_some();
        let compacted = self.read("compaction refused").await?.compact(change).await?;
        self.0.with(|sim| {
            sim.note(|| format!("  compaction of {thread}: {compacted:?}, a generation: {made}"));
            sim.stats.generations += u64::from(made && compacted == Compacted::Done);
            let held = sim.is_whole(&thread);
            sim.hold(held);
        });
        self.0.pause().await;
        match self.0.strikes(|plan| plan.store, "the compaction's answer is lost") {
            true => Err(outage()),
            false => Ok(compacted),
        }
    }

    async fn generation(&self, id: &GenerationId) -> Result<Option<Generation>, StoreError> {
        self.read("compaction refused").await?.generation(id).await
    }

    async fn read_span(&self, span: &Span) -> Result<Vec<Item>, StoreError> {
        self.read("compaction refused").await?.read_span(span).await
    }

    async fn log(&self, thread: &ThreadId, epoch: Epoch) -> Result<Log, StoreError> {
        self.read("log refused").await?.log(thread, epoch).await
    }

    async fn put_log(&self, snapshot: &ThreadId, items: &[Item]) -> Result<(), StoreError> {
        self.read("put refused").await?.put_log(snapshot, items).await
    }

    async fn is_message_processed(&self, thread: &ThreadId, dedup: &DedupId) -> Result<bool, StoreError> {
        self.read("look-up refused").await?.is_message_processed(thread, dedup).await
    }

    async fn meta(&self, thread: &ThreadId) -> Result<Option<Meta>, StoreError> {
        self.read("meta refused").await?.meta(thread).await
    }

    async fn claim_thread(&self, thread: &ThreadId, owner: &str, now_ms: i64) -> Result<String, StoreError> {
        self.read("names refused").await?.claim_thread(thread, owner, now_ms).await
    }

    async fn list_threads_of(&self, owner: &str, limit: usize) -> Result<Vec<ThreadSummary>, StoreError> {
        self.read("names refused").await?.list_threads_of(owner, limit).await
    }

    async fn list_threads(&self, limit: usize) -> Result<Vec<ThreadSummary>, StoreError> {
        self.read("list refused").await?.list_threads(limit).await
    }

    async fn raise_attempts(
        &self,
        thread: &ThreadId,
        dedup: &DedupId,
        cause: &MessageId,
    ) -> Result<u32, StoreError> {
        let attempts = self.read("attempt refused").await?.raise_attempts(thread, dedup, cause).await?;
        self.0.pause().await;
        match self.0.strikes(|plan| plan.store, "the attempt's answer is lost") {
            true => Err(outage()),
            false => Ok(attempts),
        }
    }

    async fn lower_attempts(&self, thread: &ThreadId, dedup: &DedupId) -> Result<(), StoreError> {
        self.read("attempt refused").await?.lower_attempts(thread, dedup).await
    }

    async fn failed_input(
        &self,
        thread: &ThreadId,
        cause: &MessageId,
    ) -> Result<Option<DedupId>, StoreError> {
        self.read("attempt refused").await?.failed_input(thread, cause).await
    }

    async fn put_claim(&self, body: &str) -> Result<String, StoreError> {
        self.read("claim refused").await?.put_claim(body).await
    }

    async fn claim(&self, digest: &str) -> Result<Option<String>, StoreError> {
        self.read("claim refused").await?.claim(digest).await
    }
}

#[async_trait]
impl StateStore for Ports {
    async fn metadata(&self, root: &ThreadId) -> Result<Option<RawJson>, StoreError> {
        self.read("metadata refused").await?.metadata(root).await
    }

    async fn subscription(
        &self,
        thread: &ThreadId,
        call: &CallId,
    ) -> Result<Option<Subscription>, StoreError> {
        self.read("subscription refused").await?.subscription(thread, call).await
    }

    async fn get_active_subscriptions(&self, thread: &ThreadId) -> Result<Vec<CallId>, StoreError> {
        self.read("subscriptions refused").await?.get_active_subscriptions(thread).await
    }

    async fn choice(&self, thread: &ThreadId, id: &CallId) -> Result<Option<ChoiceRow>, StoreError> {
        self.read("choice refused").await?.choice(thread, id).await
    }

    async fn open_choices(&self, thread: &ThreadId) -> Result<Vec<ChoiceRow>, StoreError> {
        self.read("state refused").await?.open_choices(thread).await
    }

    async fn request_stop(&self, thread: &ThreadId, stop: &Stop) -> Result<(), StoreError> {
        self.read("state refused").await?.request_stop(thread, stop).await
    }

    async fn stop(&self, _thread: &ThreadId) -> Result<Option<Stop>, StoreError> {
        // Nobody cancels here; looking must not change what a seed plays.
        Ok(None)
    }

    async fn put_view(&self, thread: &ThreadId, kind: &str, content: &RawJson) -> Result<(), StoreError> {
        self.read("view refused").await?.put_view(thread, kind, content).await
    }

    async fn views(&self, thread: &ThreadId) -> Result<Vec<(String, RawJson)>, StoreError> {
        self.read("views refused").await?.views(thread).await
    }

    async fn manifest(&self, server: &str) -> Result<Option<(String, i64)>, StoreError> {
        self.read("manifest refused").await?.manifest(server).await
    }

    async fn put_manifest(&self, server: &str, manifest: &str, now_ms: i64) -> Result<(), StoreError> {
        self.read("manifest refused").await?.put_manifest(server, manifest, now_ms).await
    }

    async fn relatives(
        &self,
        thread: &ThreadId,
        kinship: Kinship,
        after: Option<&ThreadId>,
        limit: usize,
    ) -> Result<Vec<ThreadId>, StoreError> {
        self.read("state refused").await?.relatives(thread, kinship, after, limit).await
    }

    async fn open_children(&self, root: &ThreadId) -> Result<u32, StoreError> {
        self.read("count refused").await?.open_children(root).await
    }

    async fn keep_dead_letter(&self, letter: &DeadLetter) -> Result<(), StoreError> {
        self.read("dead letter refused").await?.keep_dead_letter(letter).await
    }

    async fn dead_letter(&self, thread: &ThreadId, id: &MessageId) -> Result<Option<DeadLetter>, StoreError> {
        self.read("dead letter refused").await?.dead_letter(thread, id).await
    }

    async fn dead_letters(&self, limit: usize) -> Result<Vec<DeadLetter>, StoreError> {
        self.read("dead letter refused").await?.dead_letters(limit).await
    }

    async fn forget_dead_letter(&self, thread: &ThreadId, id: &MessageId) -> Result<(), StoreError> {
        self.read("dead letter refused").await?.forget_dead_letter(thread, id).await
    }
}

#[async_trait]
impl InputSender for Ports {
    async fn send(&self, message: &InputMessage, dedup: &DedupId) -> Result<(), QueueError> {
        self.0.pause().await;
        if self.0.strikes(|plan| plan.queues, "input queue refuses") {
            return Err(queue_outage());
        }
        self.0.with(|sim| sim.send(message, dedup, Kind::of(message), Window::Kept));
        self.0.pause().await;
        match self.0.strikes(|plan| plan.queues, "the input queue's answer is lost") {
            true => Err(queue_outage()),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl OutputSender for Ports {
    async fn send(&self, message: &OutputMessage) -> Result<(), QueueError> {
        self.0.pause().await;
        if self.0.strikes(|plan| plan.queues, "output queue refuses") {
            return Err(queue_outage());
        }
        self.0.with(|sim| sim.publish(message));
        self.0.pause().await;
        match self.0.strikes(|plan| plan.queues, "the output queue's answer is lost") {
            true => Err(queue_outage()),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl DeadLetters for Ports {
    async fn keep(&self, _: &ThreadId, id: &str, _: &str, reason: &str) -> Result<(), QueueError> {
        self.0.pause().await;
        if self.0.strikes(|plan| plan.queues, "dead-letter queue refuses") {
            return Err(queue_outage());
        }
        self.0.with(|sim| {
            sim.note(|| format!("  kept {id}: {reason}"));
            sim.kept.push(id.to_owned());
        });
        self.0.pause().await;
        Ok(())
    }
}

#[async_trait]
impl Redelivery for Ports {
    async fn come_back(&self, handle: &str, delay: Duration) {
        self.0.pause().await;
        if self.0.strikes(|plan| plan.queues, "the visibility is not set") {
            return;
        }
        self.0.with(|sim| {
            // The delay is jittered; rounded up to a power of two it is the same in every run of a seed.
            let mut seconds = 1;
            while Duration::from_secs(seconds) < delay {
                seconds *= 2;
            }
            sim.note(|| format!("  {handle} comes back in {seconds} s"));
            sim.queue.visible_at(handle, sim.now_s, sim.now_s + seconds);
        });
    }
}

impl Clock for Ports {
    fn now_ms(&self) -> i64 {
        EPOCH_MS + self.0.with(|sim| sim.now_s) as i64 * 1000
    }
}
