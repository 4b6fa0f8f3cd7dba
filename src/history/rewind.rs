//! Rewind: hiding the newest turns of a thread. The thread goes on in a new log (an epoch) whose base is what is left;
//! nothing is deleted, so the hidden branch can still be read, exported or forked.
//!
//! [`History::plan_rewind`] only looks: it is also the preview. [`History::rewind`] does it, in memory; the next commit
//! makes it durable, whole.

use std::collections::BTreeSet;

use super::snapshot::Snapshot;
use super::{Arrival, History, Waiting};
use crate::message::{
    CallId, ContentPart, Epoch, InputContent, Item, ItemBody, ItemId, Rewind, RewindTarget, SPAWN_TOOL, Seen,
    Seq, Synthetic, Then, ThreadId,
};
use crate::store::{Loaded, Meta, Position, Span, SubscriptionChange};

/// Inherited spans that a thread's state holds.
pub const MAX_SPANS: usize = 200;
/// Threads that a fork inherits from: each gets a note of it with the commit that makes the fork.
const MAX_ANCESTORS: usize = 64;
/// Subscriptions that end with one rewind. With the parked rows that it drops they fit one commit.
const MAX_ENDED: usize = 32;
/// Characters of a hidden turn's text in a preview.
const SHOWN_CHARS: usize = 80;

/// Why a thread cannot be rewound so. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RewindRefused {
    /// Nothing stands there.
    #[error("no turn of this thread begins there")]
    NoSuchTurn,
    /// The target is the end of the thread.
    #[error("there is nothing to rewind: the thread ends there")]
    Nothing,
    /// What the thread inherits is its parent's.
    #[error("that turn belongs to the parent thread: rewind there, or fork this thread")]
    Inherited,
    /// It is not as it was when the sender looked.
    #[error("the thread has moved since it was looked at: look again")]
    Moved,
    /// Its state has no room for another piece.
    #[error("the thread was rewound too often, at most {MAX_SPANS} pieces fit: fork it and go on there")]
    TooManySpans,
}

/// What a rewind would hide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RewindPlan {
    /// Items that stay, from the first one on.
    keep: usize,
    /// The index that the next turn gets.
    pub next_turn: u32,
    /// The turns that are hidden.
    pub turns: Vec<HiddenTurn>,
    /// Calls that have run or may have run outside: what they did is not undone. Tool and call.
    pub calls: Vec<(String, CallId)>,
    /// Calls that have made children, which are told to stop.
    pub children: Vec<CallId>,
}

/// A turn that is hidden.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HiddenTurn {
    /// Its index.
    pub turn: u32,
    /// How its opener begins; empty for what is no text.
    pub text: String,
}

/// What a fork inherits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForkPoint {
    base: Vec<Span>,
    next_turn: u32,
    turn_id: Option<ItemId>,
    state: Option<Position>,
}

impl ForkPoint {
    /// The pieces of logs.
    pub fn base(&self) -> &[Span] {
        &self.base
    }
}

/// Where an item is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Whose log.
    pub thread: ThreadId,
    /// Its id there.
    pub item: ItemId,
}

impl History {
    /// The pieces of logs that this history is made of, oldest first, its own log last.
    pub fn spans(&self) -> Vec<Span> {
        let to = Seq(self.head.0.saturating_sub(1));
        let own = Span { thread: self.thread.clone(), epoch: self.epoch, from: Seq(0), to };
        self.base.iter().cloned().chain([own]).collect()
    }

    /// The pieces that hold its first `items` items.
    pub fn spans_up_to(&self, items: usize) -> Vec<Span> {
        let mut left = items as u64;
        let mut kept: Vec<Span> = Vec::new();
        for mut span in self.spans() {
            let taken = span.to.0.saturating_sub(span.from.0).min(left);
            if taken == 0 {
                continue;
            }
            left -= taken;
            span.to = Seq(span.from.0.saturating_add(taken));
            match kept.last_mut() {
                Some(before)
                    if before.thread == span.thread
                        && before.epoch == span.epoch
                        && before.to == span.from =>
                {
                    before.to = span.to;
                }
                _ => kept.push(span),
            }
        }
        kept
    }

    /// Where the committed item at `index` is stored.
    pub fn place(&self, index: usize) -> Option<Place> {
        let item = self.committed.get(index)?;
        let span = self.spans_up_to(index.saturating_add(self.unread).saturating_add(1)).pop()?;
        Some(Place { thread: span.thread, item: ItemId::at(span.epoch, item.seq) })
    }

    /// Items in front that belong to the parent, or an ancestor of it.
    fn inherited_items(&self) -> usize {
        if !self.has_parent {
            return 0;
        }
        let foreign = self.base.iter().take_while(|span| span.thread != self.thread);
        let items: u64 = foreign.map(|span| span.to.0.saturating_sub(span.from.0)).sum();
        usize::try_from(items).unwrap_or(usize::MAX)
    }

    /// What a rewind to `target` would hide; with [`RewindKind::AnswerAgain`] the turn's own opener stays.
    ///
    /// # Errors
    /// A [`RewindRefused`] that says why it cannot be.
    pub fn plan_rewind(
        &self,
        target: &RewindTarget,
        seen: Option<Seen>,
        kind: RewindKind,
    ) -> Result<RewindPlan, RewindRefused> {
        if seen.is_some_and(|seen| seen != Seen { epoch: self.epoch, head: self.head }) {
            return Err(RewindRefused::Moved);
        }
        let opener = self.opener(target)?;
        let turn = self.committed[opener].facts.turn;
        let (keep, next_turn) = match kind {
            RewindKind::Hide => (opener, turn),
            RewindKind::AnswerAgain => (self.first_answer(opener), turn.saturating_add(1)),
        };
        self.plan_keep(keep, next_turn)
    }

    /// What going on behind the first `keep` items would hide.
    ///
    /// # Errors
    /// As [`plan_rewind`](Self::plan_rewind).
    pub fn plan_cut(&self, keep: usize) -> Result<RewindPlan, RewindRefused> {
        let last = keep.checked_sub(1).and_then(|last| self.committed.get(last));
        self.plan_keep(keep, last.map_or(0, |item| item.facts.turn.saturating_add(1)))
    }

    /// What going on behind the first `keep` items of another log would hide: all that this one does not share with it.
    ///
    /// # Errors
    /// As [`plan_rewind`](Self::plan_rewind).
    pub fn plan_branch(&self, keep: usize, branch: &Loaded) -> Result<RewindPlan, RewindRefused> {
        let shared = self.committed.iter().zip(&branch.items).take(keep);
        let shared = shared.take_while(|(own, other)| own.seq == other.seq && own.raw == other.raw).count();
        let next_turn = keep.checked_sub(1).and_then(|last| branch.items.get(last));
        let next_turn = next_turn.map_or(0, |item| item.facts.turn.saturating_add(1));
        match shared == self.committed.len() {
            // Nothing is hidden; what the branch has beyond it is shown again.
            true => {
                Ok(RewindPlan { keep, next_turn, turns: Vec::new(), calls: Vec::new(), children: Vec::new() })
            }
            false => Ok(RewindPlan { keep, ..self.plan_keep(shared, next_turn)? }),
        }
    }

    /// Goes on behind what `plan` keeps of another log. Results that come for calls of this one are not for it.
    pub fn branch(&mut self, plan: &RewindPlan, branch: Loaded, arrival: &Arrival) {
        let meta = branch.meta.unwrap_or_else(|| Meta::new_root(self.thread.clone(), "", None, 0));
        let other = Self {
            committed: branch.items,
            base: meta.base,
            epoch: meta.epoch,
            head: meta.head,
            ..self.clone()
        };
        let (base, state) = (other.spans_up_to(plan.keep), other.state_within(plan.keep));
        self.rewind(plan, arrival);
        self.committed = other.committed;
        self.committed.truncate(plan.keep);
        self.base = base;
        self.state = state;
        self.turn_id = self.committed.last().and_then(|item| item.facts.turn_id.clone());
    }

    fn plan_keep(&self, keep: usize, next_turn: u32) -> Result<RewindPlan, RewindRefused> {
        let Some(hidden) = self.committed.get(keep..).filter(|hidden| !hidden.is_empty()) else {
            return Err(RewindRefused::Nothing);
        };
        let inherited = self.inherited_items();
        // A child's first turn is what its parent has asked of it.
        if keep < inherited || (self.has_parent && keep == inherited) {
            return Err(RewindRefused::Inherited);
        }
        if self.spans_up_to(keep).len() > MAX_SPANS {
            return Err(RewindRefused::TooManySpans);
        }
        let calls = || hidden.iter().filter_map(|item| call_of(&item.body));
        let turns = hidden.iter().filter(|item| item.facts.opens_turn);
        Ok(RewindPlan {
            keep,
            next_turn,
            turns: turns
                .map(|item| HiddenTurn { turn: item.facts.turn, text: excerpt(&item.body) })
                .collect(),
            calls: calls().map(|(name, call)| (name.to_owned(), call.clone())).collect(),
            children: calls().filter(|(name, _)| *name == SPAWN_TOOL).map(|(_, call)| call.clone()).collect(),
        })
    }

    /// The index of the item that opens the target turn.
    fn opener(&self, target: &RewindTarget) -> Result<usize, RewindRefused> {
        let opens = |item: &Item| item.facts.opens_turn;
        let found = match target {
            RewindTarget::Turn(turn) => {
                if *turn >= self.next_turn {
                    return Err(RewindRefused::Nothing);
                }
                self.committed.iter().position(|item| opens(item) && item.facts.turn >= *turn)
            }
            RewindTarget::Item(id) => self.committed.iter().enumerate().position(|(index, item)| {
                // The place is looked up last: it walks the spans.
                opens(item)
                    && id.as_str().ends_with(&format!("-{}", item.seq))
                    && self.place(index).is_some_and(|place| &place.item == id)
            }),
            RewindTarget::LastPrompt => self.committed.iter().rposition(|item| {
                let typed = matches!(&item.body, ItemBody::User(user) if user.synthetic_reason.is_none());
                opens(item) && typed
            }),
        };
        found.ok_or(RewindRefused::NoSuchTurn)
    }

    /// The index of the first model output behind an opener.
    fn first_answer(&self, opener: usize) -> usize {
        let behind = self.committed.iter().skip(opener).position(|item| item.body.is_output());
        behind.map_or(self.committed.len(), |answer| opener + answer)
    }

    /// Hides what `plan` says. Calls that are out are cancelled: hidden ones without a trace, visible ones with a
    /// marker. What is parked for a hidden call is dropped with it; everything else that is parked is brought in.
    pub fn rewind(&mut self, plan: &RewindPlan, arrival: &Arrival) {
        let (base, state) = (self.spans_up_to(plan.keep), self.state_within(plan.keep));
        self.committed.truncate(plan.keep);
        self.base = base;
        self.state = state;
        self.epoch = Epoch(self.epoch.0.saturating_add(1));
        self.head = Seq::FIRST;
        self.next_turn = plan.next_turn;
        self.turn_id = self.committed.last().and_then(|item| item.facts.turn_id.clone());
        self.clamp_prune();
        self.clamp_images();
        self.moved = true;
        let (visible, hidden): (Vec<_>, Vec<_>) = std::mem::take(&mut self.open)
            .into_iter()
            .partition(|open| self.call(&open.pending.call).is_some());
        self.open = visible;
        for open in hidden {
            match open.arrived {
                Some(waiting) => self.drop_parked(waiting),
                None => self.interrupted.push(open.pending),
            }
        }
        for waiting in std::mem::take(&mut self.waiting) {
            match self.is_for_visible(&waiting) {
                true => self.waiting.push(waiting),
                false => self.drop_parked(waiting),
            }
        }
        self.interrupt_open_calls(arrival);
        self.release_waiting();
    }

    /// Ends those of the `active` subscriptions whose call is hidden.
    pub fn end_hidden_subscriptions(&mut self, active: Vec<CallId>) {
        let hidden = active.into_iter().filter(|call| self.call(call).is_none());
        let ended: Vec<_> = hidden.take(MAX_ENDED).map(SubscriptionChange::End).collect();
        self.ended = ended;
    }

    /// The thread's own calls that have made children, newest first.
    pub fn spawn_calls(&self) -> impl Iterator<Item = CallId> {
        let calls = self.committed.iter().skip(self.inherited_items()).rev();
        let spawns = calls.filter_map(|item| call_of(&item.body)).filter(|(name, _)| *name == SPAWN_TOOL);
        spawns.map(|(_, call)| call.clone())
    }

    /// What a fork inherits: everything up to the end of the turn `through`, or of the thread, and of the last turn
    /// only steps whose calls have their results.
    ///
    /// # Errors
    /// [`RewindRefused::NoSuchTurn`] if no turn has that index, [`RewindRefused::TooManySpans`].
    pub fn fork_point(&self, through: Option<u32>) -> Result<ForkPoint, RewindRefused> {
        if through.is_some_and(|turn| turn >= self.next_turn) {
            return Err(RewindRefused::NoSuchTurn);
        }
        let behind =
            |item: &Item| item.facts.opens_turn && through.is_some_and(|turn| item.facts.turn > turn);
        let end = self.committed.iter().position(behind).unwrap_or(self.committed.len());
        let is_open = |item: &Item| {
            call_of(&item.body)
                .is_some_and(|(_, call)| self.open.iter().any(|open| &open.pending.call == call))
        };
        let keep = match self.committed[..end].iter().position(is_open) {
            Some(open) => self.start_of_response(open),
            None => end,
        };
        let base = self.spans_up_to(keep);
        let ancestors: BTreeSet<&ThreadId> = base.iter().map(|span| &span.thread).collect();
        if base.len() > MAX_SPANS || ancestors.len() > MAX_ANCESTORS {
            return Err(RewindRefused::TooManySpans);
        }
        let last = self.committed[..keep].last();
        let next_turn = last.map_or(0, |item| item.facts.turn.saturating_add(1));
        let turn_id = last.and_then(|item| item.facts.turn_id.clone());
        Ok(ForkPoint { base, next_turn, turn_id, state: self.state_within(keep) })
    }

    /// The index at which the response that holds the item at `index` begins.
    fn start_of_response(&self, index: usize) -> usize {
        index - self.committed[..index].iter().rev().take_while(|item| item.body.is_output()).count()
    }

    /// Begins with what another thread has; its items are not in hand until it is loaded again.
    pub fn inherit(&mut self, point: ForkPoint) {
        self.base = point.base;
        self.next_turn = point.next_turn;
        self.turn_id = point.turn_id;
        self.state = point.state;
        self.moved = true;
    }

    /// Begins with items of a snapshot, in the log `epoch`. `items` are those of the snapshot's log.
    pub fn restore(&mut self, epoch: Epoch, base: Vec<Span>, snapshot: &Snapshot, items: &[Item]) {
        let count: u64 = base.iter().map(|span| span.to.0.saturating_sub(span.from.0)).sum();
        let is_shown = |item: &&Item| base.iter().any(|span| item.seq > span.from && item.seq <= span.to);
        let state = items.iter().filter(is_shown).rfind(|item| item.body.state().is_some());
        // All pieces are of the one log.
        let state = state.zip(base.last()).map(|(item, span)| Position {
            thread: span.thread.clone(),
            epoch: span.epoch,
            seq: item.seq,
        });
        let last = base.last().and_then(|span| items.iter().rfind(|item| item.seq == span.to));
        let turn_id = last.and_then(|item| item.facts.turn_id.clone());
        self.epoch = epoch;
        self.inherit(ForkPoint { base, next_turn: snapshot.next_turn, turn_id, state });
        self.prune = snapshot.prune;
        self.clamp_prune();
        self.images_out = snapshot.images_out.clone();
        self.images_out.before = self.images_out.before.min(count);
    }

    fn drop_parked(&mut self, waiting: Waiting) {
        if waiting.stored {
            self.dropped.push(waiting.parked.key);
        }
    }

    fn is_for_visible(&self, waiting: &Waiting) -> bool {
        match (&waiting.message.synthetic, &waiting.message.content) {
            // What a parent says to its child names a call of the parent.
            (Some(Synthetic::ParentMessage { .. }), _) => true,
            (
                Some(
                    Synthetic::SubscriptionEvent { tool_call_id, .. }
                    | Synthetic::SchedulerFired { tool_call_id, .. }
                    | Synthetic::ThreadReport { tool_call_id, .. },
                ),
                _,
            ) => self.call(tool_call_id).is_some(),
            (None, InputContent::ToolResult(result)) => self.call(&result.id).is_some(),
            (Some(Synthetic::Compaction | Synthetic::CompactionComplete) | None, _) => true,
        }
    }
}

/// What a rewind leaves of the target turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RewindKind {
    /// Nothing.
    Hide,
    /// Its opener, and what arrived with it.
    AnswerAgain,
}

impl From<&Rewind> for RewindKind {
    fn from(rewind: &Rewind) -> Self {
        match rewind.then {
            Some(Then::AnswerAgain) => Self::AnswerAgain,
            Some(Then::Say(_)) | None => Self::Hide,
        }
    }
}

fn call_of(body: &ItemBody) -> Option<(&str, &CallId)> {
    match body {
        ItemBody::ToolCall(call) => Some((&call.name, &call.call_id)),
        _ => None,
    }
}

fn excerpt(body: &ItemBody) -> String {
    let text = ContentPart::join_text(body.parts());
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(SHOWN_CHARS).collect()
}
