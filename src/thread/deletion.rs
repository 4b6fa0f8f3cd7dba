//! Deleting a thread: its rows, its bodies and those of its children. What others inherit stays until they are deleted.

use crate::history::snapshot::is_snapshot_log;
use crate::message::{Epoch, ThreadId};
use crate::store::{ArchiveStore, Logs, Meta, Store, StoreError};

/// Threads that one deletion reaches, itself and its descendants.
const MAX_THREADS: usize = 1_000;

/// Why a thread was not deleted.
#[derive(Debug, thiserror::Error)]
pub enum DeleteError {
    /// The store's. What was erased until then is gone; running it again does the rest.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no such thread.
    #[error("there is no thread {0}")]
    NoThread(ThreadId),
    /// It, or a child of it, still takes input.
    #[error("thread {0} is open; close it first, so that its tools and its parent are told")]
    Open(ThreadId),
    /// It belongs to another one.
    #[error("thread {0} is a child; delete its root {1}")]
    Child(ThreadId, ThreadId),
    /// It has too many descendants.
    #[error("it has more than {MAX_THREADS} descendants; delete the deepest ones first")]
    TooMany,
}

/// What was deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    /// Threads that are gone, the deepest first.
    pub erased: Vec<ThreadId>,
    /// Threads whose history stays, since forks inherit it.
    pub kept: Vec<ThreadId>,
}

/// Deletes a closed root with all of its children. A name that was used stays used: nothing makes the thread again.
///
/// # Errors
/// A [`DeleteError`]; nothing was changed unless it is the store's.
pub async fn delete<S>(store: &S, thread: &ThreadId) -> Result<Deleted, DeleteError>
where
    S: Store + ArchiveStore + ?Sized,
{
    let meta = store.meta(thread).await?.ok_or_else(|| DeleteError::NoThread(thread.clone()))?;
    if meta.parent.is_some() {
        return Err(DeleteError::Child(thread.clone(), meta.root));
    }
    let family = family(store, thread).await?;
    let mut deleted = Deleted::default();
    for member in family.iter().rev() {
        // While META names them: a deletion that breaks off finds them again.
        if let Some(meta) = store.meta(member).await? {
            for log in snapshots_of(store, &meta).await? {
                erase_snapshot(store, &log, member).await?;
            }
        }
        // Who inherits of a child inherits of its parents as well, and is noted with each. Nobody begins to from here on.
        store.set_inheritable(member, false).await?;
        let logs = if store.heirs(member).await?.is_empty() { Logs::Erase } else { Logs::Keep };
        store.erase(member, logs).await?;
        match logs {
            Logs::Erase => deleted.erased.push(member.clone()),
            Logs::Keep => deleted.kept.push(member.clone()),
        }
    }
    Ok(deleted)
}

/// Erases the log of a snapshot unless somebody else than `heir` inherits it.
async fn erase_snapshot<S>(store: &S, log: &ThreadId, heir: &ThreadId) -> Result<(), StoreError>
where
    S: Store + ArchiveStore + ?Sized,
{
    store.set_inheritable(log, false).await?;
    match store.heirs(log).await?.iter().all(|one| one == heir) {
        true => store.erase(log, Logs::Erase).await,
        false => store.set_inheritable(log, true).await,
    }
}

/// The thread and its descendants, parents first; all of them closed.
async fn family<S>(store: &S, root: &ThreadId) -> Result<Vec<ThreadId>, DeleteError>
where
    S: Store + ArchiveStore + ?Sized,
{
    let mut family = vec![root.clone()];
    let mut next = 0;
    while let Some(thread) = family.get(next).cloned() {
        next += 1;
        let Some(meta) = store.meta(&thread).await? else { continue };
        if !meta.closed {
            return Err(DeleteError::Open(thread));
        }
        for child in store.children(&thread).await? {
            if !family.contains(&child) {
                family.push(child);
            }
        }
        if family.len() > MAX_THREADS {
            return Err(DeleteError::TooMany);
        }
    }
    Ok(family)
}

/// The logs of snapshots that a thread inherits, in any of its own.
pub(super) async fn snapshots_of<S: Store + ?Sized>(
    store: &S,
    meta: &Meta,
) -> Result<Vec<ThreadId>, StoreError> {
    let mut logs: Vec<ThreadId> = meta.base.iter().map(|span| span.thread.clone()).collect();
    for epoch in 0..meta.epoch.0 {
        let left = store.log(&meta.thread, Epoch(epoch)).await?;
        logs.extend(left.base.into_iter().map(|span| span.thread));
    }
    logs.retain(is_snapshot_log);
    logs.sort();
    logs.dedup();
    Ok(logs)
}
