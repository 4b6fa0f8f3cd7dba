//! The stores as ports, and the shapes that cross them.
//!
//! A store keeps rows; it decides nothing about a conversation. Everything a slice changes goes through one
//! method, [`ConversationStore::commit`], which is atomic and conditional (I2, I3, I6). The adapters are
//! [`memory`] and [`dynamodb`]; one contract suite (`tests/store_contract.rs`) runs on both.

mod archive;
mod commit;
pub mod dynamodb;
mod generation;
mod lookup;
pub mod memory;
mod meta;
mod runs;

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;

use crate::message::{CallId, DedupId, Epoch, Item, MessageId, RawJson, Seq, ThreadId};

pub use archive::{ArchiveStore, Logs, Rewrite, TextOf};
pub use commit::{
    ChoiceRow, Commit, Committed, CompactionWrite, DedupLife, Expect, MAX_ACTIONS, MAX_COMMIT_BYTES,
    NewThread, SubscriptionChange,
};
pub use generation::{
    Compacted, CompactionCommit, CompactionRun, CompactionState, Generation, GenerationId, Native, Pointer,
    Position, behind, position,
};
pub use lookup::{item_at, shared_state};
pub use meta::{
    Asked, Due, Hold, ImagesOut, Meta, NamedWindow, OutboxEntry, PendingCall, Promise, Prune, ResultsOut,
    Span, Terms, ThreadKind,
};
pub use runs::{Cursor, EVENTS_LIFE_MS, RUN_LIFE_MS, RunChange, RunEvents, RunRow, RunState, RunStore};

/// Item text above this is kept in body rows, and the item row refers to it.
pub const INLINE_BYTES: usize = 8 * 1024;
/// Days that a dedup row outlives its message; SQS holds a message for at most 14.
pub const DEDUP_DAYS: i64 = 15;

/// What a slice reads at once: two parallel look-ups that make one round trip for a plain thread.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// The thread's state; none if there is no such thread.
    pub meta: Option<Meta>,
    /// Everything the thread inherits and its own log, in order, complete; without the first [`unread`](Self::unread).
    pub items: Vec<Item>,
    /// Items in front that `generation` stands for and that were not read.
    pub unread: usize,
    /// The newest summary, where it could be read.
    pub generation: Option<Generation>,
    /// The opener of the turn that the summary ends in, if it ends in one.
    pub opener: Option<Item>,
    /// Which of the asked dedup ids have a row that has not expired.
    pub processed: BTreeSet<DedupId>,
    /// Inputs kept aside, in arrival order.
    pub parked: Vec<ParkedInput>,
    /// Of a child: its root's metadata.
    pub root_metadata: Option<RawJson>,
    /// Questions that nobody has answered yet, by call.
    pub choices: Vec<ChoiceRow>,
    /// The last cancel request: it was for a slice before this one.
    pub stop: Option<Stop>,
}

/// One log of a thread.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Log {
    /// What it inherits, where that is known: of a log that was left by a rewind.
    pub base: Vec<Span>,
    /// Its own items, from the first one on without a gap.
    pub items: Vec<Item>,
}

/// A request to end a running response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    /// The log that was seen.
    pub epoch: Epoch,
    /// The head that was seen: a slice at another one is not meant.
    pub head: Seq,
    /// Unique: a slice tells by it a request that is older than itself.
    pub id: String,
}

/// An accepted input kept aside until the calls it waits for are settled.
#[derive(Clone, Debug, PartialEq)]
pub struct ParkedInput {
    /// Orders parked inputs: the SQS sequence number, or the dedup id where there is none.
    pub key: String,
    /// The dedup id it was accepted under.
    pub dedup: DedupId,
    /// The message that brought it.
    pub cause: MessageId,
    /// The `InputMessage` JSON; empty if its row was damaged, so that it can still be released.
    pub body: String,
}

impl ParkedInput {
    /// How parked inputs follow each other: sequence numbers by value (a queue may pad them or not), and
    /// what has none after them, by its text.
    pub fn arrival_order(&self, other: &Self) -> std::cmp::Ordering {
        sequence_order(&self.key, &other.key)
    }
}

/// The order of two sequence numbers, or of what stands for them: numbers by value (a queue may pad them or not), those of
/// one message that brought several inputs by what follows the point, anything else behind them, by its text.
pub fn sequence_order(a: &str, b: &str) -> std::cmp::Ordering {
    fn value(digits: &str) -> Option<(usize, &str)> {
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let digits = digits.trim_start_matches('0');
        is_number.then_some((digits.len(), digits))
    }
    fn rank(key: &str) -> (bool, (usize, &str), (usize, &str)) {
        let (number, nth) = key.split_once('.').unwrap_or((key, "0"));
        match value(number).zip(value(nth)) {
            Some((number, nth)) => (false, number, nth),
            None => (true, (0, key), (0, "")),
        }
    }
    rank(a).cmp(&rank(b)).then_with(|| a.cmp(b))
}

/// A subscription as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// The call that subscribed.
    pub call: CallId,
    /// Whether events are still taken.
    pub active: bool,
}

/// A message that the queue gave up on, or that can never be processed, kept until an operator decides.
#[derive(Clone, Debug, PartialEq)]
pub struct DeadLetter {
    /// Its message group.
    pub thread: ThreadId,
    /// Its SQS message id: the name it is kept under.
    pub message_id: MessageId,
    /// Why it is here, for an operator. It may quote the body.
    pub reason: String,
    /// The body as it was sent, a claim check already followed. Empty if it is lost.
    pub body: String,
    /// When it was kept, milliseconds since the epoch.
    pub kept_at_ms: i64,
}

/// A line of a thread list.
#[derive(Clone, Debug, PartialEq)]
pub struct ThreadSummary {
    /// The thread.
    pub thread: ThreadId,
    /// When it was made, milliseconds since the epoch.
    pub created_at_ms: i64,
    /// Its next free seq.
    pub head: Seq,
    /// Calls without a result.
    pub pending: usize,
    /// Whether it takes input.
    pub closed: bool,
    /// The agent that runs it.
    pub agent: String,
    /// What it is for.
    pub kind: ThreadKind,
    /// The root of its tree; itself for a root.
    pub root: ThreadId,
    /// Who spawned it.
    pub parent: Option<ThreadId>,
    /// The call that made it.
    pub origin: Option<CallId>,
    /// Of a fork: the thread that it began as a copy of.
    pub forked_from: Option<ThreadId>,
    /// The current log: how often it was rewound.
    pub epoch: Epoch,
}

/// How threads come of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kinship {
    /// It has made them, of whatever kind they are.
    Child,
    /// They are no children and inherit rows of its logs: its forks, and theirs.
    Heir,
}

impl DeadLetter {
    /// The order of a list of dead letters.
    pub fn newest_first(&self, other: &Self) -> std::cmp::Ordering {
        let order = other.kept_at_ms.cmp(&self.kept_at_ms);
        order.then_with(|| (&other.thread, &other.message_id).cmp(&(&self.thread, &self.message_id)))
    }
}

impl ThreadSummary {
    /// The order of a thread list.
    pub fn newest_first(&self, other: &Self) -> std::cmp::Ordering {
        other.created_at_ms.cmp(&self.created_at_ms).then_with(|| other.thread.cmp(&self.thread))
    }
}

impl From<&Meta> for ThreadSummary {
    fn from(meta: &Meta) -> Self {
        Self {
            thread: meta.thread.clone(),
            created_at_ms: meta.created_at_ms,
            head: meta.head,
            pending: meta.pending.len(),
            closed: meta.closed,
            agent: meta.agent.clone(),
            kind: meta.kind,
            root: meta.root.clone(),
            parent: meta.parent.clone(),
            origin: meta.origin.clone(),
            forked_from: meta.forked_from().cloned(),
            epoch: meta.epoch,
        }
    }
}

/// Why a store could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Throttled, in conflict or unreachable, also after repeats in place.
    #[error("the store is unavailable ({0}); the message will be delivered again")]
    Unavailable(String),
    /// The store answered in a way that does not pass with time: a missing table, a missing permission.
    #[error("the store refuses: {0}")]
    Refused(String),
    /// Rows that must be there are not, also after reading again.
    #[error("thread {thread}: the history is incomplete, seq {missing} of log {epoch} is missing")]
    Incomplete {
        /// The thread.
        thread: ThreadId,
        /// The log.
        epoch: Epoch,
        /// The first missing position.
        missing: Seq,
    },
    /// A row cannot be read at all.
    #[error("thread {thread}: row {row} cannot be read: {reason}")]
    Corrupt {
        /// The thread.
        thread: ThreadId,
        /// The row's sort key.
        row: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A bug of ours: the commit breaks a rule of the store.
    #[error("a commit of thread {thread} is invalid: {reason}")]
    Invalid {
        /// The thread.
        thread: ThreadId,
        /// The rule.
        reason: String,
    },
}

impl StoreError {
    /// Whether the same work may succeed later without anybody's doing.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Incomplete { .. })
    }
}

/// Conversations: histories, dedup ids, parked inputs, and the one commit.
#[async_trait]
pub trait ConversationStore: Send + Sync {
    /// Reads a thread, whole, and which of `dedup` were processed. Strongly consistent.
    ///
    /// Fails with [`StoreError::Incomplete`] after reading three times; an unreadable item is *not* an error
    /// but an item of unknown kind.
    async fn load(&self, thread: &ThreadId, dedup: &[DedupId]) -> Result<Loaded, StoreError>;

    /// As [`load`](Self::load), but perhaps without what requests do not hold: items that a summary stands for, and texts
    /// of results that they show shortened ([`Prune`]).
    async fn load_for_request(&self, thread: &ThreadId, dedup: &[DedupId]) -> Result<Loaded, StoreError> {
        self.load(thread, dedup).await
    }

    /// Writes everything of `commit` or nothing.
    ///
    /// Sent again, a commit that is the thread's last is [`Committed::Done`] and not applied twice. Fails with
    /// [`StoreError::Invalid`] if [`Commit::validate`] does; after [`StoreError::Unavailable`] it is unknown
    /// whether it took effect.
    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError>;

    /// Writes a generation with META's pointer to it, or attempts, or nothing of them. Sent again it is done once.
    async fn compact(&self, change: CompactionCommit) -> Result<Compacted, StoreError>;

    /// A generation; none if it is not there or cannot be read any more. Strongly consistent.
    async fn generation(&self, id: &GenerationId) -> Result<Option<Generation>, StoreError>;

    /// The items of a piece of a log, complete, whole. Strongly consistent.
    async fn read_span(&self, span: &Span) -> Result<Vec<Item>, StoreError>;

    /// Reads one log as it is stored, whether the thread still shows it or not; empty if there is none. Strongly
    /// consistent.
    async fn log(&self, thread: &ThreadId, epoch: Epoch) -> Result<Log, StoreError>;

    /// Writes the log of a snapshot, which is named by its content, so that writing it again changes nothing. It means
    /// nothing until a thread inherits it.
    async fn put_log(&self, snapshot: &ThreadId, items: &[Item]) -> Result<(), StoreError>;

    /// Whether an input was processed or parked. Strongly consistent.
    async fn is_message_processed(&self, thread: &ThreadId, dedup: &DedupId) -> Result<bool, StoreError>;

    /// A thread's state without its history. Strongly consistent.
    async fn meta(&self, thread: &ThreadId) -> Result<Option<Meta>, StoreError>;

    /// Reserves the name of a thread that may not exist yet for whoever asks first, and says who that is.
    async fn claim_thread(&self, thread: &ThreadId, owner: &str, now_ms: i64) -> Result<String, StoreError>;

    /// The newest threads of an owner first, at most `limit`. Not strongly consistent.
    async fn list_threads_of(&self, owner: &str, limit: usize) -> Result<Vec<ThreadSummary>, StoreError>;

    /// Newest threads first, at most `limit`. Not strongly consistent: one made just now may be missing.
    async fn list_threads(&self, limit: usize) -> Result<Vec<ThreadSummary>, StoreError>;

    /// Counts a failed attempt of an input that is received again, and marks its cause as redelivered in META, if
    /// the thread exists; returns the attempts counted so far. Before anything else of a redelivery: it may be
    /// the last one. A commit of a slice that was loaded before loses its race.
    async fn raise_attempts(
        &self,
        thread: &ThreadId,
        dedup: &DedupId,
        cause: &MessageId,
    ) -> Result<u32, StoreError>;

    /// Takes one attempt back: it failed by no fault of the input. Best effort.
    async fn lower_attempts(&self, thread: &ThreadId, dedup: &DedupId) -> Result<(), StoreError>;

    /// The dedup id under which a message was counted as received again; none if it never was, or too long ago.
    async fn failed_input(&self, thread: &ThreadId, cause: &MessageId)
    -> Result<Option<DedupId>, StoreError>;

    /// Keeps a queue body that is too large for the queue, under its digest; idempotent. Expires.
    async fn put_claim(&self, body: &str) -> Result<String, StoreError>;

    /// Reads a body kept by [`put_claim`](Self::put_claim).
    async fn claim(&self, digest: &str) -> Result<Option<String>, StoreError>;
}

/// State beside the history.
#[async_trait]
pub trait StateStore: Send + Sync {
    /// The rows of attached clients, where this store has them.
    fn runs(&self) -> Option<&dyn RunStore> {
        None
    }

    /// The metadata of a root thread.
    async fn metadata(&self, root: &ThreadId) -> Result<Option<RawJson>, StoreError>;

    /// The subscription that `call` opened in `thread`.
    async fn subscription(
        &self,
        thread: &ThreadId,
        call: &CallId,
    ) -> Result<Option<Subscription>, StoreError>;

    /// Subscriptions of a thread that still take events.
    async fn get_active_subscriptions(&self, thread: &ThreadId) -> Result<Vec<CallId>, StoreError>;

    /// An open choice's body.
    async fn choice(&self, thread: &ThreadId, id: &CallId) -> Result<Option<ChoiceRow>, StoreError>;

    /// Choices that nobody has answered yet, by call. Strongly consistent.
    async fn open_choices(&self, thread: &ThreadId) -> Result<Vec<ChoiceRow>, StoreError>;

    /// Asks the slice that stands where `stop` says to end its response. A later request replaces it.
    async fn request_stop(&self, thread: &ThreadId, stop: &Stop) -> Result<(), StoreError>;

    /// The last cancel request.
    async fn stop(&self, thread: &ThreadId) -> Result<Option<Stop>, StoreError>;

    /// Replaces the latest view of a type; `content` is never interpreted.
    async fn put_view(&self, thread: &ThreadId, view_type: &str, content: &RawJson)
    -> Result<(), StoreError>;

    /// The latest view of each type.
    async fn views(&self, thread: &ThreadId) -> Result<Vec<(String, RawJson)>, StoreError>;

    /// A cached toolset manifest: the last good copy and when it was stored (milliseconds).
    async fn manifest(&self, server: &str) -> Result<Option<(String, i64)>, StoreError>;

    /// Replaces a server's cached manifest.
    async fn put_manifest(&self, server: &str, manifest: &str, now_ms: i64) -> Result<(), StoreError>;

    /// Threads that come of this one: at most `limit`, in the order of their keys, behind `after`, which need not exist.
    /// Strongly consistent.
    async fn relatives(
        &self,
        thread: &ThreadId,
        kinship: Kinship,
        after: Option<&ThreadId>,
        limit: usize,
    ) -> Result<Vec<ThreadId>, StoreError>;

    /// Open children below `root`, at whatever depth. Strongly consistent.
    async fn open_children(&self, root: &ThreadId) -> Result<u32, StoreError>;

    /// Keeps a dead letter, body and all, without expiry. Kept again under the same id, the first one stays.
    async fn keep_dead_letter(&self, letter: &DeadLetter) -> Result<(), StoreError>;

    /// A dead letter that is still kept. Strongly consistent.
    async fn dead_letter(&self, thread: &ThreadId, id: &MessageId) -> Result<Option<DeadLetter>, StoreError>;

    /// The newest dead letters, at most `limit`, long bodies left empty. Not strongly consistent: one kept just now
    /// may be missing.
    async fn dead_letters(&self, limit: usize) -> Result<Vec<DeadLetter>, StoreError>;

    /// Forgets a dead letter: it was sent again, or nobody wants it.
    async fn forget_dead_letter(&self, thread: &ThreadId, id: &MessageId) -> Result<(), StoreError>;
}

/// Both stores in one, as the adapters are.
pub trait Store: ConversationStore + StateStore {}
impl<T: ConversationStore + StateStore> Store for T {}

/// The digest that names a body: base32 of its SHA-256.
pub fn body_digest(body: &str) -> String {
    use sha2::Digest;
    data_encoding::BASE32_NOPAD.encode(&sha2::Sha256::digest(body.as_bytes())).to_ascii_lowercase()
}

/// Milliseconds since the epoch at which a claim check expires, given now.
pub fn claim_expiry_ms(now_ms: i64) -> i64 {
    now_ms + DEDUP_DAYS * Duration::from_secs(86_400).as_millis() as i64
}

/// Fields of a row that this version does not know, kept so that they survive.
pub type Extra = serde_json::Map<String, Value>;
