//! The summary of a thread's older part, as its manager has it: taken over when it is loaded, made, or fallen back to by a
//! rewind; and what lies behind it, looked up where it is still needed.

use super::HistoryManager;
use crate::history::Arrival;
use crate::message::{CallId, Compact, Item, ItemBody, ThreadId};
use crate::store::{
    Asked, Compacted, CompactionCommit, CompactionRun, CompactionState, ConversationStore, Generation,
    GenerationId, Meta, NamedWindow, NewThread, Pointer, Position, Promise, Span, StoreError, ThreadKind,
    behind, item_at,
};
use crate::thread::MAX_SPAWNS;

/// Older generations that a rewind or a fork looks through.
const MAX_GENERATIONS: usize = 1_000;

/// A thread's generations, newest first, as far as they can be read; at most a bounded number.
pub async fn generations(
    store: &dyn ConversationStore,
    newest: Option<&Pointer>,
) -> Result<Vec<Generation>, StoreError> {
    generations_from(store, newest, 0, MAX_GENERATIONS).await
}

/// The same without the newest `skip`, and at most `limit`.
pub async fn generations_from<S: ConversationStore + ?Sized>(
    store: &S,
    newest: Option<&Pointer>,
    skip: usize,
    limit: usize,
) -> Result<Vec<Generation>, StoreError> {
    let mut found: Vec<Generation> = Vec::new();
    let mut next = newest.map(|newest| newest.id.clone());
    let last = skip.saturating_add(limit).min(MAX_GENERATIONS);
    for at in 0..last {
        let Some(id) = next else { break };
        let Some(generation) = store.generation(&id).await? else { break };
        next = generation.parent.clone();
        if at >= skip {
            found.push(generation);
        }
    }
    Ok(found)
}

/// The newest generation of a chain that `spans` allow, and the opener that is shown with it.
pub async fn generation_within(
    store: &dyn ConversationStore,
    newest: Option<&Pointer>,
    spans: &[Span],
) -> Result<Option<(Generation, Option<Item>)>, StoreError> {
    let mut next: Option<GenerationId> = newest.map(|newest| newest.id.clone());
    for _ in 0..MAX_GENERATIONS {
        let Some(id) = next else { return Ok(None) };
        let Some(generation) = store.generation(&id).await? else { return Ok(None) };
        if behind(spans, &generation.at.through).is_some() {
            let opener = item_at(store, generation.at.opener.as_ref()).await?;
            return Ok(Some((generation, opener)));
        }
        next = generation.parent;
    }
    Ok(None)
}

impl HistoryManager {
    /// What the thread shows now is another view than its last request had: what the provider counted then does not count
    /// (C26), and what was thought then is not shown (C33).
    pub(super) fn adopt_view(&mut self) {
        let shown = self.history.pointer().map(|pointer| pointer.id.clone());
        if self.meta.shown != shown {
            self.meta.shown = shown;
            self.meta.usage = None;
            self.history.view_changed();
        }
    }

    /// Takes over a generation that is stored.
    pub async fn take_generation(&mut self, generation: Generation) -> Result<(), StoreError> {
        let opener = item_at(&*self.conversations, generation.at.opener.as_ref()).await?;
        self.meta.compaction.newest = Some(generation.at.clone());
        self.history.take_generation(generation, opener);
        self.adopt_view();
        Ok(())
    }

    /// The provider has said how large a model's window is, with the next commit.
    pub fn take_window(&mut self, model: &str, configured: Option<u64>, tokens: u64) {
        self.meta.window = Some(NamedWindow { model: model.to_owned(), tokens, configured });
    }

    /// Says by which route the next request goes: the checkpoint of the summary is sent on its own route alone, and not where
    /// its provider has refused it. What was thought behind the one does not go behind the other (C33).
    pub fn take_route(&mut self, route: Option<&str>) {
        let generation = self.history.generation();
        let native = generation.and_then(|generation| Some((&generation.at.id, generation.native.as_ref()?)));
        let sends = native.is_some_and(|(id, native)| {
            Some(native.route.as_str()) == route && self.meta.compaction.run.dead.as_ref() != Some(id)
        });
        self.history.send_checkpoint(sends);
        if self.meta.asked.checkpoint != sends {
            self.change_asked(|asked| asked.checkpoint = sends);
            self.meta.usage = None;
            self.history.view_changed();
        }
    }

    /// The provider does not take the checkpoint back that requests began with: from here on the summary is shown, in this
    /// slice and in every later one. False if none was sent.
    pub async fn bury_checkpoint(&mut self) -> Result<bool, StoreError> {
        if self.history.checkpoint_sent().is_none() {
            return Ok(false);
        }
        let Some(id) = self.history.pointer().map(|pointer| pointer.id.clone()) else { return Ok(false) };
        let run = CompactionRun { dead: Some(id), ..self.meta.compaction.run.clone() };
        let change = CompactionCommit {
            thread: self.history.thread().clone(),
            epoch: self.history.epoch(),
            last: self.meta.compaction.last,
            generation: None,
            run: run.clone(),
        };
        let written = self.conversations.compact(change).await?;
        tracing::warn!(thread = %self.history.thread(), ?written, "a checkpoint was refused: the summary is shown");
        if written == Compacted::Lost {
            // Somebody has compacted the thread since, or has changed it: whatever is there now counts.
            self.refresh_generation().await?;
        }
        self.meta.compaction.run.dead = run.dead;
        Ok(true)
    }

    /// What META says of compaction after it was written beside this slice.
    pub fn set_compaction(&mut self, last: u32, run: CompactionRun) {
        self.meta.compaction.last = last;
        self.meta.compaction.run = run;
    }

    /// Looks for a generation that somebody else has made since the thread was loaded, and takes it over.
    pub async fn refresh_generation(&mut self) -> Result<(), StoreError> {
        let Some(stored) = self.conversations.meta(self.history.thread()).await? else { return Ok(()) };
        if stored.epoch != self.history.epoch() {
            return Ok(());
        }
        self.meta.compaction = stored.compaction;
        let newest = self.meta.compaction.newest.clone();
        if let Some(pointer) = newest.filter(|newest| Some(newest) != self.history.pointer())
            && let Some(generation) = self.conversations.generation(&pointer.id).await?
        {
            self.take_generation(generation).await?;
        }
        Ok(())
    }

    /// After a rewind, in memory: the newest generation that is left counts.
    pub(super) async fn fall_back(&mut self) -> Result<(), StoreError> {
        let newest = self.meta.compaction.newest.as_ref();
        let found = generation_within(&*self.conversations, newest, &self.history.spans()).await?;
        let (generation, opener) =
            found.map_or((None, None), |(generation, opener)| (Some(generation), opener));
        self.history.fall_back(generation, opener);
        self.meta.shown = self.history.pointer().map(|pointer| pointer.id.clone());
        Ok(())
    }

    /// A thread that is made as a fork begins with this generation.
    pub fn inherit_generation(&mut self, newest: Option<Pointer>) {
        self.meta.compaction = CompactionState { newest, ..CompactionState::default() };
    }

    /// The generation that a thread with these spans inherits of this one.
    pub(super) fn inherited(&self, base: &[Span]) -> CompactionState {
        let newest = self.meta.compaction.newest.clone();
        let newest = newest.filter(|newest| behind(base, &newest.through).is_some());
        CompactionState { newest, ..CompactionState::default() }
    }

    /// Looks up a call that a summary stands for: its id says where it is.
    ///
    /// # Errors
    /// The store; a call that is not there is no error.
    pub async fn know_call(&mut self, call: &CallId) -> Result<(), StoreError> {
        if !self.history.has_unread() || self.history.call(call).is_some() {
            return Ok(());
        }
        let Some((epoch, seq)) = call.place() else { return Ok(()) };
        let holds = |span: &&Span| span.epoch == epoch && seq > span.from && seq <= span.to;
        for span in self.history.spans().iter().filter(holds) {
            let at = Position { thread: span.thread.clone(), epoch, seq };
            if let Some(Item { body: ItemBody::ToolCall(item), .. }) =
                item_at(&*self.conversations, Some(&at)).await?
                && &item.call_id == call
            {
                self.history.know_call(item);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Changes what was asked for of compaction, with the next commit. There is one even if it was asked for already: the
    /// message that asks again counts as processed.
    pub fn change_asked(&mut self, change: impl FnOnce(&mut Asked)) {
        change(&mut self.meta.asked);
        self.asked = true;
    }

    /// Makes a child that summarises what stands before the safe spawn point, with the next commit. It has no items: its
    /// state says what it is asked.
    pub fn spawn_compaction(&mut self, request: &Compact, arrival: &Arrival) -> Option<ThreadId> {
        if self.children.len() >= MAX_SPAWNS {
            return None;
        }
        let child = ThreadId::child(self.history.thread(), arrival.dedup.as_str());
        let context = crate::tools::SpawnContext::Inherit;
        let origin = CallId::new("");
        let born = self.new_child(child.clone(), ThreadKind::Compaction, origin, context, arrival.now_ms);
        let meta = Meta {
            origin: None,
            asked: Asked { due: Some(request.clone()), ..Asked::default() },
            compaction: CompactionState { last: self.meta.compaction.last, ..born.compaction.clone() },
            token: format!("born-{}", child.as_str()),
            ..born
        };
        self.children.push(NewThread { meta, items: Vec::new(), parked: None });
        self.promise(Promise::Wake { thread: child.clone() });
        Some(child)
    }
}
