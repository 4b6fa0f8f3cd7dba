//! The store on one DynamoDB table (design part 3).
//!
//! | file | what it holds |
//! |---|---|
//! | `keys` | every key of the table |
//! | `codec`, `meta_row` | rows to and from our types; META apart |
//! | `reads`, `bodies` | rows by key and by range; large texts in parts |
//! | `load` | a thread, complete, in as few round trips as there can be |
//! | `commit` | the one transaction and what its failures mean |
//! | `compact` | the transaction of a summary, beside it |
//! | `archive` | redaction and erasure |
//! | `state` | what is not history, and the list of threads |
//! | `runs` | runs of attached clients, and what is shown of them |
//! | `calls` | one request, repeated in place: the only retries there are |
//! | `round_trips` | a count of them |
//! | `table` | making the table |
//!
//! Nothing here logs or reports content; errors name codes, keys' owners and attributes.

mod archive;
mod attempts;
mod bodies;
mod calls;
mod codec;
mod commit;
mod compact;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod keys;
mod load;
mod meta_row;
mod owners;
mod reads;
mod round_trips;
mod runs;
mod state;
mod table;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::config::timeout::TimeoutConfig;

use super::{
    Commit, Committed, Compacted, CompactionCommit, ConversationStore, Generation, GenerationId, Loaded, Log,
    Meta, Span, StoreError, ThreadSummary, claim_expiry_ms,
};
use crate::message::{DedupId, Epoch, Item, MessageId, ThreadId};

pub use round_trips::RoundTrips;
pub use table::create_table;

/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long one try of a request may take; DynamoDB answers in milliseconds, a large page in less than a second.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// A [`super::Store`] on a DynamoDB table. Clones share the client.
#[derive(Clone)]
pub struct DynamoStore {
    client: Client,
    table: Arc<str>,
    round_trips: Option<RoundTrips>,
    clock: Arc<dyn Fn() -> i64 + Send + Sync>,
}

impl DynamoStore {
    /// A store on `table`. The SDK's own retries are switched off, whatever `client` says, so that a request is
    /// repeated in one place; each try gets a timeout, without which a dead connection would use up a slice.
    pub fn new(client: Client, table: String) -> Self {
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .operation_attempt_timeout(ATTEMPT_TIMEOUT)
            .build();
        let config = client.config().to_builder();
        let config = config.retry_config(RetryConfig::disabled()).timeout_config(timeouts).build();
        Self {
            client: Client::from_conf(config),
            table: table.into(),
            round_trips: None,
            clock: Arc::new(|| jiff::Timestamp::now().as_millisecond()),
        }
    }

    /// Counts this store's requests.
    pub fn with_round_trips(mut self, round_trips: RoundTrips) -> Self {
        self.round_trips = Some(round_trips);
        self
    }

    /// Takes the time, in milliseconds since the epoch, from `clock`: it decides which dedup rows a read still
    /// counts and when a claim check expires. Commits bring their own.
    pub fn with_clock(mut self, clock: impl Fn() -> i64 + Send + Sync + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    fn now_ms(&self) -> i64 {
        (self.clock)()
    }
}

#[async_trait]
impl ConversationStore for DynamoStore {
    async fn load(&self, thread: &ThreadId, dedup: &[DedupId]) -> Result<Loaded, StoreError> {
        self.load_thread(thread, dedup, load::Depth::Whole).await
    }

    async fn load_for_request(&self, thread: &ThreadId, dedup: &[DedupId]) -> Result<Loaded, StoreError> {
        self.load_thread(thread, dedup, load::Depth::Request).await
    }

    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        self.write_commit(commit).await
    }

    async fn compact(&self, change: CompactionCommit) -> Result<Compacted, StoreError> {
        self.write_compaction(change).await
    }

    async fn generation(&self, id: &GenerationId) -> Result<Option<Generation>, StoreError> {
        self.read_generation(id).await
    }

    async fn read_span(&self, span: &Span) -> Result<Vec<Item>, StoreError> {
        self.whole_span(span).await
    }

    async fn log(&self, thread: &ThreadId, epoch: Epoch) -> Result<Log, StoreError> {
        self.read_log(thread, epoch).await
    }

    async fn put_log(&self, snapshot: &ThreadId, items: &[Item]) -> Result<(), StoreError> {
        self.write_log(snapshot, items).await
    }

    async fn is_message_processed(&self, thread: &ThreadId, dedup: &DedupId) -> Result<bool, StoreError> {
        let row = self.get(&keys::dedup(thread, dedup)).await?;
        Ok(row.is_some_and(|row| codec::is_live(&row, self.now_ms())))
    }

    async fn meta(&self, thread: &ThreadId) -> Result<Option<Meta>, StoreError> {
        self.get(&keys::meta(thread)).await?.as_ref().map(meta_row::read).transpose()
    }

    async fn claim_thread(&self, thread: &ThreadId, owner: &str, now_ms: i64) -> Result<String, StoreError> {
        self.claim_name(thread, owner, now_ms).await
    }

    async fn list_threads_of(&self, owner: &str, limit: usize) -> Result<Vec<ThreadSummary>, StoreError> {
        self.newest_threads_of(owner, limit).await
    }

    async fn list_threads(&self, limit: usize) -> Result<Vec<ThreadSummary>, StoreError> {
        self.newest_threads(limit).await
    }

    async fn raise_attempts(
        &self,
        thread: &ThreadId,
        dedup: &DedupId,
        cause: &MessageId,
    ) -> Result<u32, StoreError> {
        let (attempts, ()) = tokio::try_join!(
            self.add_attempts(thread, dedup, Some(cause), 1),
            self.mark_redelivered(thread, cause)
        )?;
        Ok(attempts)
    }

    async fn lower_attempts(&self, thread: &ThreadId, dedup: &DedupId) -> Result<(), StoreError> {
        self.add_attempts(thread, dedup, None, -1).await.map(drop)
    }

    async fn failed_input(
        &self,
        thread: &ThreadId,
        cause: &MessageId,
    ) -> Result<Option<DedupId>, StoreError> {
        self.failed_under(thread, cause).await
    }

    async fn put_claim(&self, body: &str) -> Result<String, StoreError> {
        self.put_claim_body(body, claim_expiry_ms(self.now_ms())).await
    }

    async fn claim(&self, digest: &str) -> Result<Option<String>, StoreError> {
        self.claim_body(digest).await
    }
}
