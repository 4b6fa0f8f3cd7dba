//! The pure core of a conversation: no I/O, no clock, no randomness.
//!
//! A [`History`] is one thread's view in four layers, in this order:
//!
//! 1. **committed** items, as loaded or synced;
//! 2. **known-safe** drafts: promoted inputs and model output, persisted by the next sync;
//! 3. **unvalidated** inputs: part of the next request, not persisted until the model streams any output, since
//!    one of them may be the message that overflows the window;
//! 4. the **turn buffer**: the response being streamed.
//!
//! `input` holds the rules for what arrives, [`render`] turns the layers into a valid request (I5),
//! `plan` says what the next commit writes. Loading and committing are the business of `thread`.

mod calls;
mod compacted;
pub mod context;
pub mod groups;
pub mod image;
pub mod image_room;
mod input;
mod leave_out;
mod plan;
mod prune;
pub mod render;
pub mod request;
pub mod rewind;
pub mod snapshot;
mod state;
mod turn;
mod wire;
pub mod wording;

use std::collections::{BTreeMap, BTreeSet};

use crate::message::{
    CallId, DedupId, Epoch, InputMessage, Item, ItemBody, ItemFacts, ItemId, LeftOut, MessageId, Seq,
    ThreadId, ToolCallItem,
};
use crate::model::ModelEvent;
use crate::store::{
    DedupLife, Generation, ImagesOut, Loaded, Meta, ParkedInput, PendingCall, Position, Promise, Prune,
    ResultsOut, Span, SubscriptionChange, behind,
};

pub use calls::Layer;
pub use compacted::standing_instructions;
pub(crate) use compacted::{Front, in_front};
pub use input::{Accepted, Arrival, DISPATCH_FAILED, SETTLED_BY_HAND, TIMED_OUT, next_firing};
pub use leave_out::LeftOutInput;
pub(crate) use leave_out::shown_item;
pub use plan::SyncPlan;
pub use turn::{TurnBuffer, TurnPart};

use calls::OpenCall;

/// Calls of one step; what is above is answered with an error.
pub const MAX_CALLS: usize = 32;
/// Events kept aside while a call is open; beyond it they interrupt.
pub const MAX_WAITING: usize = 12;

/// An entry that is not committed yet. Its seq is its place.
#[derive(Clone, Debug, PartialEq)]
struct Draft {
    body: ItemBody,
    /// The dedup row its commit writes.
    dedup: Option<(DedupId, DedupLife)>,
    /// The dedup id it arrived under, also where the row exists already (released inputs).
    arrived_as: Option<DedupId>,
    cause: Option<MessageId>,
    user: Option<String>,
    opens_turn: bool,
    created_at_ms: i64,
    /// The parked row that its commit deletes.
    release: Option<String>,
    subscription: Option<SubscriptionChange>,
    /// What its commit promises.
    promise: Option<Promise>,
    /// The calls that it settles: pending in the store until it is committed, so that a crash before that
    /// finds them open and settles them again.
    settles: Vec<PendingCall>,
    /// Its content stays out of requests.
    left_out: Option<LeftOut>,
    /// Belongs to the response that begins here or before: never committed apart from it.
    continues_response: bool,
}

impl Draft {
    fn minted(body: ItemBody, now_ms: i64) -> Self {
        Self {
            body,
            dedup: None,
            arrived_as: None,
            cause: None,
            user: None,
            opens_turn: false,
            created_at_ms: now_ms,
            release: None,
            subscription: None,
            promise: None,
            settles: Vec::new(),
            left_out: None,
            continues_response: false,
        }
    }

    /// Actions its commit spends on it.
    fn actions(&self) -> usize {
        1 + usize::from(self.dedup.is_some())
            + usize::from(self.release.is_some())
            + usize::from(self.subscription.is_some())
    }
}

/// An input kept aside, in memory or in the store.
#[derive(Clone, Debug, PartialEq)]
struct Waiting {
    parked: ParkedInput,
    message: InputMessage,
    /// What the commit that takes it promises.
    promise: Option<Promise>,
    /// It has a row: its release deletes it. Otherwise the next commit writes one, if it still waits.
    stored: bool,
}

/// One thread's view.
#[derive(Clone, Debug)]
pub struct History {
    thread: ThreadId,
    epoch: Epoch,
    /// Inherited pieces of logs, oldest first.
    base: Vec<Span>,
    has_parent: bool,
    prune: Prune,
    /// The summary that stands for the items in front.
    generation: Option<Generation>,
    /// The opener of the turn that it ends in.
    opener: Option<Item>,
    /// Items in front that were not read.
    unread: usize,
    /// Of the committed ones in hand, those in front that the summary stands for.
    covered: usize,
    /// Of the committed ones in hand, those in front that this slice leaves out of its requests, summary or not.
    omitted: usize,
    /// Requests begin with the checkpoint of the summary.
    sends_checkpoint: bool,
    /// Calls that were looked up because the items in hand do not hold them.
    known_calls: BTreeMap<CallId, ToolCallItem>,
    images_out: ImagesOut,
    results_out: ResultsOut,
    /// Digests of images that the provider may have refused: out of the requests of this slice.
    images_aside: BTreeSet<String>,
    committed: Vec<Item>,
    head: Seq,
    next_turn: u32,
    turn_id: Option<ItemId>,
    safe: Vec<Draft>,
    unvalidated: Vec<Draft>,
    turn: TurnBuffer,
    open: Vec<OpenCall>,
    waiting: Vec<Waiting>,
    handled: BTreeSet<DedupId>,
    interrupted: Vec<PendingCall>,
    /// Keys of parked rows whose inputs a rewind has hidden.
    dropped: Vec<String>,
    /// Subscriptions whose calls a rewind has hidden.
    ended: Vec<SubscriptionChange>,
    /// Where the newest committed state stands.
    state: Option<Position>,
    /// The thread is in another log than the store knows.
    moved: bool,
}

impl History {
    /// A history as loaded. Parked rows that do not parse stay parked and are counted by the caller.
    pub fn new(thread: ThreadId, loaded: Loaded) -> Self {
        let (generation, opener, unread) = (loaded.generation, loaded.opener, loaded.unread);
        let spans = loaded.meta.as_ref().map(Meta::spans).unwrap_or_default();
        let behind = generation.as_ref().and_then(|generation| behind(&spans, &generation.at.through));
        let covered = behind.map_or(0, |(covered, _)| covered).saturating_sub(unread).min(loaded.items.len());
        let meta = loaded.meta;
        let mut history = Self {
            generation,
            opener,
            unread,
            covered,
            omitted: 0,
            sends_checkpoint: false,
            known_calls: BTreeMap::new(),
            epoch: meta.as_ref().map_or(Epoch(0), |meta| meta.epoch),
            base: meta.as_ref().map(|meta| meta.base.clone()).unwrap_or_default(),
            prune: meta.as_ref().map(|meta| meta.prune).unwrap_or_default(),
            images_out: meta.as_ref().map(|meta| meta.images_out.clone()).unwrap_or_default(),
            results_out: meta.as_ref().map(|meta| meta.results_out.clone()).unwrap_or_default(),
            images_aside: BTreeSet::new(),
            has_parent: meta.as_ref().is_some_and(|meta| meta.parent.is_some()),
            head: meta.as_ref().map_or(Seq::FIRST, |meta| meta.head),
            next_turn: meta.as_ref().map_or(0, |meta| meta.next_turn),
            turn_id: meta.as_ref().and_then(|meta| meta.turn_id.clone()),
            state: meta
                .as_ref()
                .and_then(|meta| meta.state.clone())
                .filter(|at| crate::store::behind(&spans, at).is_some()),
            open: meta
                .map(|meta| meta.pending)
                .unwrap_or_default()
                .into_iter()
                .map(|pending| OpenCall { pending, arrived: None })
                .collect(),
            thread,
            committed: loaded.items,
            safe: Vec::new(),
            unvalidated: Vec::new(),
            turn: TurnBuffer::default(),
            waiting: Vec::new(),
            handled: BTreeSet::new(),
            interrupted: Vec::new(),
            dropped: Vec::new(),
            ended: Vec::new(),
            moved: false,
        };
        history.leave_out_stored();
        history.open.sort_by_key(|open| open.pending.seq);
        let unreadable: Vec<ParkedInput> =
            loaded.parked.into_iter().filter_map(|parked| history.readopt(parked)).collect();
        history.readopt_unreadable(unreadable);
        // A slice that died between two commits may have left a step that nothing else will close.
        history.close_answered_step();
        history
    }

    /// The thread.
    pub fn thread(&self) -> &ThreadId {
        &self.thread
    }

    /// The seq the next committed item gets.
    pub fn head(&self) -> Seq {
        self.head
    }

    /// The log.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Committed items, inherited ones first.
    pub fn committed(&self) -> &[Item] {
        &self.committed
    }

    /// Committed items of the thread's own log.
    pub fn own_items(&self) -> &[Item] {
        let own = usize::try_from(self.head.0.saturating_sub(1)).unwrap_or(usize::MAX);
        &self.committed[self.committed.len().saturating_sub(own)..]
    }

    /// Everything but the turn buffer, in order.
    fn bodies(&self) -> impl DoubleEndedIterator<Item = &ItemBody> {
        let drafts = self.safe.iter().chain(&self.unvalidated).map(|draft| &draft.body);
        self.committed.iter().map(|item| &item.body).chain(drafts)
    }

    /// Committed history and drafts followed by the response being streamed.
    pub fn current_turn_view(&self, model: &str) -> Vec<ItemBody> {
        self.bodies().cloned().chain(self.turn.view(model)).collect()
    }

    /// Whether there are inputs that no request has held yet.
    pub fn has_unvalidated(&self) -> bool {
        !self.unvalidated.is_empty()
    }

    /// The seq of what comes behind everything that is in.
    pub fn next_seq_after_inputs(&self) -> Seq {
        self.head.plus(self.safe.len() + self.unvalidated.len())
    }

    /// The index of the turn that the newest input belongs to.
    fn current_turn(&self) -> u32 {
        let openers = self.safe.iter().chain(&self.unvalidated).filter(|draft| draft.opens_turn).count();
        let openers = u32::try_from(openers).unwrap_or(u32::MAX);
        self.next_turn.saturating_add(openers).saturating_sub(1)
    }

    /// The principal on whose behalf the model is about to act: that of the newest input that names one.
    pub fn current_user(&self) -> Option<String> {
        let drafts = self.unvalidated.iter().rev().chain(self.safe.iter().rev()).map(|draft| &draft.user);
        let items = self.committed.iter().rev().map(|item| &item.facts.user);
        drafts.chain(items).find_map(Clone::clone)
    }

    /// Whether the committed history ends on a result that no response has followed.
    pub fn awaits_answer(&self) -> bool {
        let answered = |body: &ItemBody| match body {
            ItemBody::ToolResult(_) | ItemBody::Interrupt(_) | ItemBody::Event(_) => Some(true),
            ItemBody::User(user) => user.synthetic_reason.is_none().then_some(true),
            ItemBody::Assistant(_) | ItemBody::ToolCall(_) | ItemBody::BackendToolCall(_) => Some(false),
            ItemBody::System(_) | ItemBody::Reasoning(_) | ItemBody::State(_) | ItemBody::Unknown { .. } => {
                None
            }
        };
        self.open.is_empty() && self.bodies().rev().find_map(answered).unwrap_or(false)
    }

    /// Whether a sync would write anything.
    pub fn has_unsynced(&self) -> bool {
        let arrived = self.open.iter().filter_map(|open| open.arrived.as_ref());
        self.moved || !self.safe.is_empty() || arrived.chain(&self.waiting).any(|waiting| !waiting.stored)
    }

    /// Whether the store holds everything that is here, and nothing aside: no draft, no parked input.
    pub fn is_at_rest(&self) -> bool {
        let parked = self.waiting.is_empty() && self.open.iter().all(|open| open.arrived.is_none());
        let drafts = self.safe.len() + self.unvalidated.len();
        parked && drafts == 0 && self.turn.is_empty() && !self.moved && self.dropped.is_empty()
    }

    /// Parked inputs that nothing will release by itself any more.
    pub fn has_leftover_waiting(&self) -> bool {
        self.open.is_empty() && !self.waiting.is_empty()
    }

    /// The first model output proves that the request fit: unvalidated inputs become known-safe.
    pub fn mark_inputs_model_validated(&mut self) {
        self.safe.append(&mut self.unvalidated);
    }

    /// Buffers one event of the stream.
    pub fn buffer(&mut self, event: &ModelEvent) {
        self.turn.push(event);
    }

    /// The response being streamed.
    pub fn turn(&self) -> &TurnBuffer {
        &self.turn
    }

    /// Drops the response being streamed; a retry starts from clean history.
    pub fn discard_turn(&mut self) {
        self.turn.take();
    }

    /// Commits the buffer into the known-safe layer, without trailing reasoning, and returns its calls in
    /// order. Their ids are minted from their seqs; every one is open until it is settled.
    pub fn flush_turn_trimming_reasoning(
        &mut self,
        model: &str,
        stop: &str,
        user: Option<&str>,
        now_ms: i64,
    ) -> Vec<ToolCallItem> {
        self.turn.trim_trailing_reasoning();
        self.flush_turn(model, stop, user, now_ms)
    }

    /// As [`flush_turn_trimming_reasoning`](Self::flush_turn_trimming_reasoning), with everything buffered.
    pub fn flush_turn(
        &mut self,
        model: &str,
        stop: &str,
        user: Option<&str>,
        now_ms: i64,
    ) -> Vec<ToolCallItem> {
        // Model output is committed only after the inputs that it answers.
        self.mark_inputs_model_validated();
        let first = self.safe.len();
        let mut calls = Vec::new();
        for part in self.turn.take() {
            let body = match &part {
                TurnPart::Call { provider_id, name, arguments, signature } => {
                    let seq = self.head.plus(self.safe.len());
                    let call = ToolCallItem {
                        call_id: CallId::mint(&self.thread, self.epoch, seq),
                        provider_id: provider_id.clone(),
                        name: name.clone(),
                        arguments: arguments.clone(),
                        signature: signature.clone(),
                        model: model.to_owned(),
                    };
                    self.open.push(OpenCall {
                        pending: PendingCall {
                            call: call.call_id.clone(),
                            seq,
                            name: name.clone(),
                            passive: false,
                            synchronous: false,
                            server: None,
                            hold: None,
                            terms: Default::default(),
                            parked: false,
                            cause: Vec::new(),
                            user: user.map(str::to_owned),
                            extra: Default::default(),
                        },
                        arrived: None,
                    });
                    calls.push(call.clone());
                    Some(ItemBody::ToolCall(call))
                }
                TurnPart::Text(_) | TurnPart::Reasoning { .. } => turn::part_body(&part, model, Some(stop)),
            };
            if let Some(body) = body {
                let continues_response = self.safe.len() > first;
                let user = user.map(str::to_owned);
                self.safe.push(Draft { continues_response, user, ..Draft::minted(body, now_ms) });
            }
        }
        calls
    }
}

/// Facts of a draft at its final place.
fn facts(draft: &Draft, turn: u32, turn_id: Option<ItemId>) -> ItemFacts {
    ItemFacts {
        dedup: draft.arrived_as.clone(),
        cause: draft.cause.clone(),
        turn,
        turn_id,
        opens_turn: draft.opens_turn,
        user: draft.user.clone(),
        created_at_ms: draft.created_at_ms,
        est_tokens: 0,
        left_out: draft.left_out,
        excerpt_of: None,
        extra: Default::default(),
    }
}
