//! Branches: a thread as it stands in any of its logs, also in one that a rewind has left.

use super::HistoryManager;
use crate::history::snapshot::Snapshot;
use crate::message::{Epoch, Import, Seq, ThreadId};
use crate::store::{ConversationStore, Loaded, Meta, StoreError};

/// Loads a thread as it stands in `epoch`; in its current log without one. None if there is no such branch. Of a branch
/// that was left, nothing is under way.
///
/// # Errors
/// The store's.
pub async fn load_branch<S: ConversationStore + ?Sized>(
    store: &S,
    thread: &ThreadId,
    epoch: Option<Epoch>,
) -> Result<Option<Loaded>, StoreError> {
    let Some(meta) = store.meta(thread).await? else { return Ok(None) };
    let epoch = match epoch {
        Some(epoch) if epoch > meta.epoch => return Ok(None),
        Some(epoch) if epoch < meta.epoch => epoch,
        Some(_) | None => return store.load(thread, &[]).await.map(Some),
    };
    let log = store.log(thread, epoch).await?;
    let mut items = Vec::new();
    for span in &log.base {
        let inherited = store.log(&span.thread, span.epoch).await?.items;
        let before = items.len();
        items.extend(inherited.into_iter().filter(|item| item.seq > span.from && item.seq <= span.to));
        let found = (items.len() - before) as u64;
        if found < span.to.0.saturating_sub(span.from.0) {
            let missing = Seq(span.from.0.saturating_add(found).saturating_add(1));
            return Err(StoreError::Incomplete { thread: span.thread.clone(), epoch: span.epoch, missing });
        }
    }
    let head = Seq::FIRST.plus(log.items.len());
    items.extend(log.items);
    let last = items.last();
    let left = Meta {
        owner: meta.owner.clone(),
        parent: meta.parent.clone(),
        root: meta.root.clone(),
        epoch,
        head,
        base: log.base,
        closed: meta.closed,
        next_turn: last.map_or(0, |item| item.facts.turn.saturating_add(1)),
        turn_id: last.and_then(|item| item.facts.turn_id.clone()),
        metadata: meta.metadata.clone(),
        extra: meta.extra.clone(),
        ..Meta::new_root(meta.thread, meta.agent, None, meta.created_at_ms)
    };
    Ok(Some(Loaded { meta: Some(left), items, ..Loaded::default() }))
}

/// Writes the items of a snapshot ahead, and says what makes a thread of them. Until then they mean nothing.
///
/// # Errors
/// The store's.
pub async fn store_snapshot<S: ConversationStore + ?Sized>(
    store: &S,
    snapshot: Snapshot,
) -> Result<Import, StoreError> {
    let (log, rows) = (snapshot.log(), snapshot.rows());
    store.put_log(&log, &rows).await?;
    let items = rows.len() as u64;
    Ok(Import { log, items, thread: snapshot.without_items() })
}

impl HistoryManager {
    /// Begins as a snapshot says, with the next commit; its items are not in hand until the thread is loaded again.
    pub fn restore(&mut self, snapshot: Snapshot, import: &Import) {
        self.history.restore(import.log.clone(), import.items, &snapshot);
        self.meta.usage = snapshot.usage;
        self.meta.extra = snapshot.extra;
    }
}
