//! Branches: a thread as it stands in any of its logs, also in one that a rewind has left.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::HistoryManager;
use crate::history::snapshot::Snapshot;
use crate::message::{Epoch, Import, Item, Piece, Seq, ThreadId};
use crate::store::{ConversationStore, Loaded, Meta, Span, StoreError};

/// The newest logs of a thread that its clients are shown as branches, and are looked for in. An older one can be forked.
const MAX_BRANCHES: u32 = 64;
/// Items that are read for these, after which no further branch is: a request costs no more, however often its thread was
/// edited.
pub const MAX_BRANCH_ITEMS: usize = 20_000;

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
        // Not the whole log: branches of an import have all of their pieces in one.
        items.extend(store.read_span(span).await?);
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

/// What rewinds have left of a thread. Each log is read once, however many branches inherit of it.
#[derive(Debug, Default)]
pub struct Branches {
    thread: Option<ThreadId>,
    /// Of each branch what it inherits, the oldest first.
    bases: BTreeMap<Epoch, Vec<Span>>,
    logs: BTreeMap<(ThreadId, Epoch), Vec<Item>>,
}

/// One of them.
#[derive(Debug)]
pub struct Branch<'a> {
    /// Its own log.
    pub epoch: Epoch,
    /// The log of each item.
    pub logs: Vec<(&'a ThreadId, Epoch)>,
    /// What was said in it, from the beginning.
    pub items: Vec<&'a Item>,
}

/// Loads the branches of a thread besides the current one: the newest ones, and none further once `max_items` are read.
///
/// # Errors
/// The store's.
pub async fn load_branches<S: ConversationStore + ?Sized>(
    store: &S,
    meta: &Meta,
    max_items: usize,
) -> Result<Branches, StoreError> {
    let mut branches = Branches { thread: Some(meta.thread.clone()), ..Branches::default() };
    let mut read = 0;
    for epoch in (meta.epoch.0.saturating_sub(MAX_BRANCHES)..meta.epoch.0).rev().map(Epoch) {
        if read >= max_items {
            tracing::info!(thread = %meta.thread, %epoch, read, "older branches are not looked at");
            break;
        }
        let log = store.log(&meta.thread, epoch).await?;
        if log.items.is_empty() && log.base.is_empty() {
            // An import may begin with a later one.
            continue;
        }
        read += log.items.len();
        branches.logs.insert((meta.thread.clone(), epoch), log.items);
        for span in &log.base {
            if let Entry::Vacant(unread) = branches.logs.entry((span.thread.clone(), span.epoch)) {
                let inherited = store.log(&span.thread, span.epoch).await?.items;
                read += inherited.len();
                unread.insert(inherited);
            }
            branches.check(span)?;
        }
        branches.bases.insert(epoch, log.base);
    }
    Ok(branches)
}

impl Branches {
    /// The branches, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = Branch<'_>> {
        self.bases.iter().filter_map(|(epoch, base)| {
            let thread = self.thread.as_ref()?;
            let own = self.logs.get(&(thread.clone(), *epoch))?;
            let inherited = base.iter().flat_map(|span| self.span(span).map(move |item| (span, item)));
            let inherited = inherited.map(|(span, item)| ((&span.thread, span.epoch), item));
            let (logs, items): (Vec<_>, Vec<_>) =
                inherited.chain(own.iter().map(|item| ((thread, *epoch), item))).unzip();
            Some(Branch { epoch: *epoch, logs, items })
        })
    }

    fn span(&self, span: &Span) -> impl Iterator<Item = &Item> {
        let log = self.logs.get(&(span.thread.clone(), span.epoch)).map(Vec::as_slice).unwrap_or_default();
        let (from, to) = (span.from, span.to);
        log.iter().filter(move |item| item.seq > from && item.seq <= to)
    }

    fn check(&self, span: &Span) -> Result<(), StoreError> {
        let found = self.span(span).count() as u64;
        if found < span.to.0.saturating_sub(span.from.0) {
            return Err(incomplete(span, found));
        }
        Ok(())
    }
}

fn incomplete(span: &Span, found: u64) -> StoreError {
    let missing = Seq(span.from.0.saturating_add(found).saturating_add(1));
    StoreError::Incomplete { thread: span.thread.clone(), epoch: span.epoch, missing }
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
    Ok(Import { log, items, thread: snapshot.without_items(), branches: Vec::new(), first: Epoch(0) })
}

impl HistoryManager {
    /// Begins as a snapshot says, with the next commit; its items are not in hand until the thread is loaded again. Each
    /// branch is a log of its own that only inherits, as a rewind leaves it; the last one is the thread's. `items` are
    /// those of the snapshot's log.
    pub fn restore(&mut self, snapshot: Snapshot, import: &Import, items: &[Item]) {
        let whole = [vec![Piece { from: Seq(0), to: Seq(import.items) }]];
        let branches = if import.branches.is_empty() { &whole[..] } else { &import.branches };
        let span = |piece: &Piece| Span {
            thread: import.log.clone(),
            epoch: Epoch(0),
            from: piece.from,
            to: piece.to,
        };
        let bases = branches
            .iter()
            .map(|pieces| pieces.iter().filter(|piece| piece.from < piece.to).map(span).collect());
        self.branches = (import.first.0..).map(Epoch).zip(bases).collect();
        let (epoch, base) = self.branches.pop().unwrap_or_default();
        self.history.restore(epoch, base, &snapshot, items);
        self.meta.usage = snapshot.usage;
        self.meta.extra = snapshot.extra;
    }
}
