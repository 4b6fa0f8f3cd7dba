//! [`HistoryManager`]: one thread's view of its conversation, loaded from the stores and committed to them.
//!
//! The rules of the conversation are in [`history`](crate::history); this room adds the I/O around them. A
//! manager belongs to one slice. After a failed commit it is dropped and loaded again, so memory never runs
//! ahead of the store (D16).

mod branches;
mod commit;
mod compaction;
mod deletion;
mod family;
mod known;
mod outbox;
mod redaction;
mod rewind;
mod runs;

use std::collections::BTreeSet;
use std::sync::Arc;

pub use branches::{Branch, Branches, MAX_BRANCH_ITEMS, load_branch, load_branches, store_snapshot};
pub use commit::Progress;
pub use compaction::{generation_within, generations, generations_from};
pub use deletion::{DeleteError, delete};
pub use family::MAX_SPAWNS;
pub use known::{Change, Follower, Known, Summary};
pub use redaction::{RedactError, Redaction, redact};

use crate::history::render::{RenderError, RenderOptions, Rendered};
use crate::history::{Accepted, Arrival, History, next_firing};
use crate::message::{
    CallId, DedupId, Epoch, InputMessage, ItemBody, MessageId, RawJson, Seq, Synthetic, ThreadId,
};
use crate::model::Usage;
use crate::store::{
    ChoiceRow, ConversationStore, DedupLife, Loaded, Meta, NewThread, OutboxEntry, Promise, Span, StateStore,
    StoreError, SubscriptionChange, item_at, sequence_order,
};

/// Subscriptions of a thread that built-in tools may add to (RAP 42).
pub const MAX_SUBSCRIPTIONS: usize = 32;

/// Questions that one commit opens and closes: each input of a batch is at most one.
const MAX_CHOICES: usize = 10;

/// Rounds in which images give way for one request.
const MAX_ROUNDS: usize = 16;

/// Why a thread cannot go on in this slice.
#[derive(Debug, thiserror::Error)]
pub enum ThreadError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Another slice moved the thread: this one's turn is discarded and done again.
    #[error("another slice has moved thread {0}; this one starts over")]
    LostRace(ThreadId),
    /// `sync` was called with a response still in the turn buffer, which would be lost.
    #[error("bug: thread {0} was synced with an unflushed response")]
    Unflushed(ThreadId),
}

/// What `handle_input` made of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled {
    /// The history took it, or not, by its own rules.
    Accepted(Accepted),
    /// It was processed by an earlier delivery, and finished.
    Processed,
    /// It was committed by an earlier delivery, but its slice did not finish: go on from there.
    Unfinished,
}

/// One thread's view. See the module.
pub struct HistoryManager {
    conversations: Arc<dyn ConversationStore>,
    states: Arc<dyn StateStore>,
    history: History,
    meta: Meta,
    exists: bool,
    root_metadata: Option<RawJson>,
    looked_up: BTreeSet<DedupId>,
    processed: BTreeSet<DedupId>,
    /// Causes that this slice works for.
    working: Vec<MessageId>,
    /// The largest sequence number among them.
    sequence: String,
    /// Promises of messages that are still to come again: neither sent nor dropped by this slice.
    kept: Vec<OutboxEntry>,
    /// Dedup rows of inputs that are no part of the history.
    bare: Vec<(Arrival, DedupLife)>,
    /// Inputs without effect: worth a row in a commit that is made anyway, never worth a commit.
    dropped: Vec<DedupId>,
    choices: Vec<ChoiceRow>,
    /// Questions that end with the next commit.
    closed_choices: Vec<CallId>,
    /// Questions that are open in the store.
    stored_choices: Vec<ChoiceRow>,
    /// The cancel request that was there when the thread was loaded.
    seen_stop: Option<String>,
    subscriptions: Vec<SubscriptionChange>,
    children: Vec<NewThread>,
    /// Logs beside the one that the thread begins in, with what they inherit.
    branches: Vec<(Epoch, Vec<Span>)>,
    /// The next commit closes the thread.
    closing: bool,
    /// Promises of the next commit.
    promises: Vec<OutboxEntry>,
    /// What was asked of compaction has changed since the last commit.
    asked: bool,
    /// Something was sent since the last commit.
    struck: bool,
    /// The head as loaded: calls before it were made by an earlier slice.
    loaded_head: Seq,
    /// A run has begun since the last commit: who asks what is under way is to be told.
    run_changed: bool,
    /// A run was under way when the thread was loaded.
    had_run: bool,
    /// Why a client's run cannot go on.
    trouble: Option<(&'static str, String)>,
    /// Who keeps a copy.
    follower: Option<Arc<dyn Follower>>,
}

impl HistoryManager {
    /// Loads a thread. Nothing is written.
    pub async fn new_with_history(
        conversations: Arc<dyn ConversationStore>,
        states: Arc<dyn StateStore>,
        thread: ThreadId,
    ) -> Result<Self, StoreError> {
        Self::load(conversations, states, thread, &[]).await
    }

    /// Loads a thread and looks up which of `dedup` it has processed, in the same round trip.
    pub async fn load(
        conversations: Arc<dyn ConversationStore>,
        states: Arc<dyn StateStore>,
        thread: ThreadId,
        dedup: &[DedupId],
    ) -> Result<Self, StoreError> {
        let loaded = conversations.load_for_request(&thread, dedup).await?;
        let mut manager = Self::from_loaded(conversations, states, thread, loaded, dedup);
        manager.adopt_view();
        Ok(manager)
    }

    /// As [`load`](Self::load), with what a summary stands for: what hides, copies or ends parts of a thread looks at all of
    /// it.
    pub async fn load_whole(
        conversations: Arc<dyn ConversationStore>,
        states: Arc<dyn StateStore>,
        thread: ThreadId,
        dedup: &[DedupId],
    ) -> Result<Self, StoreError> {
        let loaded = conversations.load(&thread, dedup).await?;
        let mut manager = Self::from_loaded(conversations, states, thread, loaded, dedup);
        manager.adopt_view();
        Ok(manager)
    }

    fn from_loaded(
        conversations: Arc<dyn ConversationStore>,
        states: Arc<dyn StateStore>,
        thread: ThreadId,
        loaded: Loaded,
        dedup: &[DedupId],
    ) -> Self {
        let exists = loaded.meta.is_some();
        let root_metadata = loaded.root_metadata.clone();
        let meta = loaded.meta.clone().unwrap_or_else(|| Meta::new_root(thread.clone(), "", None, 0));
        let stored_choices = loaded.choices.clone();
        let seen_stop = loaded.stop.as_ref().map(|stop| stop.id.clone());
        Self {
            processed: loaded.processed.clone(),
            history: History::new(thread, loaded),
            looked_up: dedup.iter().cloned().collect(),
            conversations,
            states,
            asked: false,
            struck: false,
            loaded_head: meta.head,
            had_run: meta.run.is_some(),
            meta,
            exists,
            root_metadata,
            working: Vec::new(),
            sequence: String::new(),
            kept: Vec::new(),
            bare: Vec::new(),
            dropped: Vec::new(),
            choices: Vec::new(),
            closed_choices: Vec::new(),
            stored_choices,
            seen_stop,
            subscriptions: Vec::new(),
            children: Vec::new(),
            branches: Vec::new(),
            closing: false,
            promises: Vec::new(),
            run_changed: false,
            trouble: None,
            follower: None,
        }
    }

    /// Loads a thread's state without its history, to give up on an input whatever the history holds. Such a
    /// manager can commit, but no request can be made of it.
    pub async fn load_state(
        conversations: Arc<dyn ConversationStore>,
        states: Arc<dyn StateStore>,
        thread: ThreadId,
    ) -> Result<Self, StoreError> {
        let meta = conversations.meta(&thread).await?;
        let root_metadata = match meta.as_ref().filter(|meta| meta.parent.is_some()) {
            Some(child) => states.metadata(&child.root).await?,
            None => None,
        };
        let loaded = Loaded { meta, root_metadata, ..Loaded::default() };
        Ok(Self::from_loaded(conversations, states, thread, loaded, &[]))
    }

    /// The thread's state as of the last commit.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// What every output carries: the root's metadata says where a reply belongs.
    pub fn metadata(&self) -> Option<&RawJson> {
        match self.meta.parent {
            Some(_) => self.root_metadata.as_ref(),
            None => self.meta.metadata.as_ref(),
        }
    }

    /// Whether the thread is in the store.
    pub fn exists(&self) -> bool {
        self.exists
    }

    /// The history's core.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// The history's core, for what the runtime mints.
    pub fn history_mut(&mut self) -> &mut History {
        &mut self.history
    }

    /// Makes the thread new: `agent` and `owner` are fixed from here on.
    pub fn found(&mut self, agent: String, owner: Option<String>, now_ms: i64) {
        if !self.exists && self.meta.agent.is_empty() {
            self.meta.agent = agent;
            self.meta.owner = owner;
            self.meta.created_at_ms = now_ms;
        }
    }

    /// Takes one input: the only place where dedup ids are checked and recorded.
    pub async fn handle_input(
        &mut self,
        message: &InputMessage,
        arrival: &Arrival,
    ) -> Result<Handled, StoreError> {
        if self.is_processed(&arrival.dedup).await? {
            return Ok(match self.meta.open.contains(&arrival.cause) {
                true => {
                    self.work_for(arrival);
                    // The messages of a batch that died come back one by one. Whoever goes on from what they
                    // committed together finishes the work of all of them: the next one is a duplicate then, and
                    // does not ask the model again.
                    for cause in &self.meta.open {
                        if !self.working.contains(cause) {
                            self.working.push(cause.clone());
                        }
                    }
                    Handled::Unfinished
                }
                false => Handled::Processed,
            });
        }
        let accepted = self.history.accept(message, arrival);
        if matches!(accepted, Accepted::Ready | Accepted::Parked | Accepted::Note) {
            self.work_for(arrival);
        }
        Ok(Handled::Accepted(accepted))
    }

    /// Whether an input was processed by an earlier delivery.
    pub async fn is_processed(&mut self, dedup: &DedupId) -> Result<bool, StoreError> {
        if self.looked_up.insert(dedup.clone())
            && self.conversations.is_message_processed(self.history.thread(), dedup).await?
        {
            self.processed.insert(dedup.clone());
        }
        Ok(self.processed.contains(dedup))
    }

    /// Whether another slice has processed an input since this one was loaded.
    pub async fn was_overtaken(&self, dedup: &DedupId) -> Result<bool, StoreError> {
        self.conversations.is_message_processed(self.history.thread(), dedup).await
    }

    /// Whether `call` was made by this slice, not by one that ended before.
    pub fn started_in_this_slice(&self, call: &CallId) -> bool {
        self.history.open_calls().any(|pending| &pending.call == call && pending.seq >= self.loaded_head)
    }

    /// Whether a committed part of an unfinished slice waits to be gone on with.
    pub fn is_open(&self, cause: &MessageId) -> bool {
        self.meta.open.contains(cause)
    }

    /// Whether META remembers the input of a message as committed.
    pub fn is_taken(&self, cause: &MessageId) -> bool {
        self.meta.recent.contains(cause)
    }

    /// Marks a message as one that may have died, with the next commit: what it owes is sent by whoever comes next.
    pub fn mark_redelivered(&mut self, cause: &MessageId) {
        if !self.meta.redelivered.contains(cause) {
            self.meta.redelivered.push(cause.clone());
        }
    }

    /// Records an input that is no part of the history together with what it promises.
    pub fn record(&mut self, arrival: &Arrival, promise: Promise, choice: Option<ChoiceRow>) {
        self.record_processed(arrival, DedupLife::Days);
        self.choices.extend(choice);
        self.promise(promise);
    }

    /// Records that an input has no effect though a later one might have given it one, with the next commit if
    /// there is one. A batch that is handed back after its commit comes again in pieces: what was refused must not
    /// be taken then.
    pub fn record_dropped(&mut self, arrival: &Arrival) {
        if self.processed.insert(arrival.dedup.clone()) {
            self.dropped.push(arrival.dedup.clone());
        }
    }

    /// Records an input as processed, with the next commit.
    pub fn record_processed(&mut self, arrival: &Arrival, life: DedupLife) {
        self.processed.insert(arrival.dedup.clone());
        self.bare.push((arrival.clone(), life));
        self.work_for(arrival);
    }

    /// Counts a message among those that this slice works for.
    pub fn work_for(&mut self, arrival: &Arrival) {
        if !self.working.contains(&arrival.cause) {
            self.working.push(arrival.cause.clone());
        }
        // The store has marked it as well, but not if the thread is only being made.
        if arrival.receives > 1 {
            self.mark_redelivered(&arrival.cause);
        }
        if self.sequence.is_empty() || sequence_order(&self.sequence, &arrival.key).is_lt() {
            self.sequence.clone_from(&arrival.key);
        }
    }

    /// The messages that this slice works for.
    pub fn causes(&self) -> &[MessageId] {
        &self.working
    }

    /// Replaces the metadata with the next commit.
    pub fn set_metadata(&mut self, metadata: RawJson) {
        self.meta.metadata = Some(metadata);
    }

    /// Records usage with the next commit.
    /// What was counted of a request that left something out is no measure of the next one.
    pub fn set_usage(&mut self, usage: Usage) {
        self.meta.usage = Some(usage).filter(|_| !self.history.omits());
    }

    /// Estimated tokens of the next request; `fixed` are those of the system prompt and the tools.
    pub fn request_size(&self, fixed: u64) -> u64 {
        self.history.size(self.meta.usage, fixed)
    }

    /// Clears every result before the current turn, after a request was too large; says whether there were any.
    pub fn prune_all(&mut self) -> bool {
        let pruned = self.history.prune_all();
        if pruned {
            self.meta.usage = None;
        }
        pruned
    }

    /// Moves the overlay of pruning if a turn begins and the window is half full; says whether it did.
    pub fn prune(&mut self, window: u64, fixed_tokens: u64) -> bool {
        let pruned = self.history.prune_at_turn_start(window, self.meta.usage, fixed_tokens);
        if pruned {
            // What the provider counted is another view.
            self.meta.usage = None;
        }
        pruned
    }

    /// Counts this slice as caused by the thread itself, or by an outside input.
    pub fn count_slice(&mut self, outside: bool) -> u32 {
        self.meta.self_caused = if outside { 0 } else { self.meta.self_caused.saturating_add(1) };
        self.meta.self_caused
    }

    /// Records that `call` opened a subscription, with the next commit.
    pub fn track_subscription(&mut self, call: CallId) {
        self.subscriptions.push(SubscriptionChange::Start(call));
    }

    /// Records that the subscription of `call` has ended, with the next commit.
    pub fn remove_subscription(&mut self, call: CallId) {
        self.subscriptions.push(SubscriptionChange::End(call));
    }

    /// Asks the user something with the next commit, if that has room for another question, and says whether it has.
    pub fn ask(&mut self, choice: ChoiceRow) -> bool {
        let fits = self.choices.len() + self.closed_choices.len() < MAX_CHOICES;
        if fits {
            self.promise(Promise::Choice { call: choice.id.clone() });
            self.choices.push(choice);
        }
        fits
    }

    /// An open question, by its id.
    pub fn open_choice(&self, call: &CallId) -> Option<&ChoiceRow> {
        let open = |choice: &&ChoiceRow| &choice.id == call && !self.closed_choices.contains(call);
        self.choices.iter().chain(&self.stored_choices).find(open)
    }

    /// Ends a question with the next commit; one that this slice has opened is then never written. A commit has room
    /// for ten: a row that stays behind is of a call that has its result, and so is no open question.
    pub fn close_choice(&mut self, call: &CallId) {
        let opened = self.choices.len();
        self.choices.retain(|choice| &choice.id != call);
        let known = self.choices.len() < opened || self.closed_choices.contains(call);
        if !known && self.choices.len() + self.closed_choices.len() < MAX_CHOICES {
            self.closed_choices.push(call.clone());
        }
    }

    /// Ends the questions of calls that have a result by now, or are not asked any more.
    pub fn close_stale_choices(&mut self) {
        let waits = |choice: &CallId| self.history.open_calls().any(|open| open.is_asked_by(choice));
        let stale = self.stored_choices.iter().map(|choice| &choice.id).filter(|call| !waits(call));
        for call in stale.cloned().collect::<Vec<_>>() {
            self.close_choice(&call);
        }
    }

    /// The cancel request that was there when the thread was loaded: it is not for this slice.
    pub fn seen_stop(&self) -> Option<&str> {
        self.seen_stop.as_deref()
    }

    /// Takes a firing of a schedule that is not shown to the model, with the next commit: the next one is promised, or
    /// the schedule ends.
    pub fn pass_over_firing(&mut self, message: &InputMessage, arrival: &Arrival) {
        self.record_processed(arrival, DedupLife::Days);
        match (next_firing(message, arrival.now_ms), &message.synthetic) {
            (Some(promise), _) => self.promise(promise),
            (None, Some(Synthetic::SchedulerFired { tool_call_id, .. })) => {
                self.remove_subscription(tool_call_id.clone());
            }
            (None, Some(_) | None) => {}
        }
    }

    /// What the user's application and the agent share, committed or not.
    ///
    /// # Errors
    /// The store's, where its item is not in hand.
    pub async fn state(&self) -> Result<Option<RawJson>, StoreError> {
        if let Some(state) = self.history.state_in_hand() {
            return Ok(Some(state.clone()));
        }
        let item = item_at(&*self.conversations, self.history.state_at()).await?;
        Ok(item.and_then(|item| item.body.state().cloned()))
    }

    /// Subscriptions that still take events, as stored.
    pub async fn get_active_subscriptions(&self) -> Result<Vec<CallId>, StoreError> {
        self.states.get_active_subscriptions(self.history.thread()).await
    }

    /// How many subscriptions take events once the next commit is made.
    pub async fn count_subscriptions(&self) -> Result<usize, StoreError> {
        let mut active: BTreeSet<CallId> = self.get_active_subscriptions().await?.into_iter().collect();
        for change in &self.subscriptions {
            match change {
                SubscriptionChange::Start(call) => active.insert(call.clone()),
                SubscriptionChange::End(call) => active.remove(call),
            };
        }
        Ok(active.len())
    }

    /// Whether events of `call` are taken.
    pub async fn is_subscribed(&self, call: &CallId) -> Result<bool, StoreError> {
        let stored = self.states.subscription(self.history.thread(), call).await?;
        Ok(stored.is_some_and(|subscription| subscription.active))
    }

    /// The request for the next response.
    pub fn render_history(&self, options: &RenderOptions) -> Result<Rendered, RenderError> {
        self.history.render_history(options)
    }

    /// The same, after old images have given way where it would be too large or hold more than `most_images`. The next
    /// commit makes that durable.
    pub fn render_with_room(
        &mut self,
        options: &RenderOptions,
        most_images: Option<usize>,
    ) -> Result<Rendered, RenderError> {
        let mut rendered = self.history.render_history(options)?;
        // Once does, but for a damaged history: of images that no request shows nothing is gained.
        for _ in 0..MAX_ROUNDS {
            if !self.history.make_room_for_images(&rendered.request, most_images) {
                break;
            }
            // What the provider counted is another view.
            self.meta.usage = None;
            let images_out = self.history.images_out();
            tracing::info!(thread = %self.history.thread(), ?images_out, "images give way");
            rendered = self.history.render_history(options)?;
        }
        Ok(rendered)
    }

    /// The provider's count of the last response is not of this view.
    pub fn forget_usage(&mut self) {
        self.meta.usage = None;
    }

    /// Committed history and drafts followed by the response being streamed.
    pub fn current_turn_view(&self, model: &str) -> Vec<ItemBody> {
        self.history.current_turn_view(model)
    }

    /// The seq up to which a child may inherit.
    pub fn safe_spawn_point(&self) -> Seq {
        self.history.safe_spawn_point()
    }
}
