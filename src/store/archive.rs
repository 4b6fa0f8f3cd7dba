//! What an operator does to stored texts: redaction and erasure, the two exceptions to "nothing is rewritten" (I8).
//! No slice has this port.

use async_trait::async_trait;

use super::{StoreError, ThreadSummary};
use crate::message::{Epoch, Seq, ThreadId};

/// What a stored text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextOf {
    /// An item of one of the thread's logs, as raw JSON text.
    Item(Epoch, Seq),
    /// A summary of one of its logs.
    Summary(Epoch),
    /// Something beside the history: a parked input, an open question, a view, a dead letter.
    State,
    /// What somebody else has given, in a form of their own.
    Opaque,
}

/// What becomes of a stored text; none: it stays as it is.
pub type Rewrite<'a> = dyn Fn(TextOf, &str) -> Option<String> + Send + Sync + 'a;

/// What an erasure leaves of a thread's logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logs {
    /// Nothing.
    Erase,
    /// All of them: other threads inherit their rows.
    Keep,
}

/// Changes to what is stored, by hand.
#[async_trait]
pub trait ArchiveStore: Send + Sync {
    /// Puts every text of a thread through `rewrite`, in all its logs and beside them, what META holds of somebody's
    /// words included, and returns how many have changed. What was written before is gone, excerpts and separate bodies
    /// included, also a body that no row names. A row that comes, changes or goes meanwhile is not an error; running it
    /// again finds what came, and goes on where it broke off.
    async fn rewrite_texts(&self, thread: &ThreadId, rewrite: &Rewrite<'_>) -> Result<usize, StoreError>;

    /// The forks and imports that inherit rows of this thread's logs, in the order of their names.
    async fn heirs(&self, thread: &ThreadId) -> Result<Vec<ThreadId>, StoreError>;

    /// The children that a thread has made, of every kind, in the order of their names.
    async fn children(&self, thread: &ThreadId) -> Result<Vec<ThreadId>, StoreError>;

    /// Says whether threads may begin to inherit of this one's logs. Forbidden before [`heirs`](Self::heirs) is asked, no
    /// heir comes between that and an erasure.
    async fn set_inheritable(&self, thread: &ThreadId, inheritable: bool) -> Result<(), StoreError>;

    /// Roots and children that were made from one time on and before another, oldest first, at most `limit`.
    async fn oldest_threads(
        &self,
        from_ms: i64,
        before_ms: i64,
        limit: usize,
    ) -> Result<Vec<ThreadSummary>, StoreError>;

    /// Erases a thread: what is beside its history, and its logs unless others inherit them. What is left is a META
    /// that says nothing but that there was such a thread and that it is closed, so that nothing makes it again. It
    /// inherits nothing any more. Running it again is harmless, also after it broke off.
    async fn erase(&self, thread: &ThreadId, logs: Logs) -> Result<(), StoreError>;
}
