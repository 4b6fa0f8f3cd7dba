//! Deleting a thread: its rows, its bodies and those of its children. What others inherit stays until they are deleted.

use crate::history::snapshot::is_snapshot_log;
use crate::message::{Epoch, ItemBody, SPAWN_TOOL, ThreadId};
use crate::store::{ArchiveStore, Logs, Store, StoreError};

use super::load_branch;

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
        // Who inherits of a child inherits of its parents as well, and is noted with each.
        let heirs = store.heirs(member).await?;
        let logs = if heirs.is_empty() { Logs::Erase } else { Logs::Keep };
        let snapshots = snapshots_of(store, member).await?;
        store.erase(member, logs).await?;
        match logs {
            Logs::Erase => deleted.erased.push(member.clone()),
            Logs::Keep => deleted.kept.push(member.clone()),
        }
        for log in snapshots {
            if store.heirs(&log).await?.is_empty() {
                store.erase(&log, Logs::Erase).await?;
            }
        }
    }
    Ok(deleted)
}

/// The thread and its descendants, parents first; all of them closed.
async fn family<S: Store + ?Sized>(store: &S, root: &ThreadId) -> Result<Vec<ThreadId>, DeleteError> {
    let mut family = vec![root.clone()];
    let mut next = 0;
    while let Some(thread) = family.get(next).cloned() {
        next += 1;
        let Some(meta) = store.meta(&thread).await? else { continue };
        if !meta.closed {
            return Err(DeleteError::Open(thread));
        }
        for epoch in 0..=meta.epoch.0 {
            for item in store.log(&thread, Epoch(epoch)).await?.items {
                let child = match &item.body {
                    ItemBody::ToolCall(call) if call.name == SPAWN_TOOL => {
                        ThreadId::child(&thread, call.call_id.as_str())
                    }
                    _ => continue,
                };
                // A child's own rows begin with its parent's call.
                if store.meta(&child).await?.is_some() && !family.contains(&child) {
                    family.push(child);
                }
            }
        }
        if family.len() > MAX_THREADS {
            return Err(DeleteError::TooMany);
        }
    }
    Ok(family)
}

/// The logs of snapshots that a thread inherits.
async fn snapshots_of<S: Store + ?Sized>(store: &S, thread: &ThreadId) -> Result<Vec<ThreadId>, StoreError> {
    let Some(meta) = store.meta(thread).await? else { return Ok(Vec::new()) };
    let first = load_branch(store, thread, Some(Epoch(0))).await?;
    let bases =
        first.and_then(|loaded| loaded.meta).map(|meta| meta.base).into_iter().flatten().chain(meta.base);
    let mut logs: Vec<ThreadId> = bases.map(|span| span.thread).filter(is_snapshot_log).collect();
    logs.sort();
    logs.dedup();
    Ok(logs)
}
