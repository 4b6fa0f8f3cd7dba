//! Calls: which are open, whose turn it is, and how each gets its one result.

use std::collections::BTreeSet;

use super::{Draft, History, Waiting, image, wording};
use crate::message::{
    CallId, ContentPart, EditedCall, ItemBody, Outcome, Seq, SettledBy, Synthetic, SyntheticReason,
    ToolCallItem, ToolResultItem, UserItem,
};
use crate::store::{Hold, PendingCall, SubscriptionChange};

/// Characters of a person's arguments that a model is shown. The call itself has all of them.
const SHOWN_EDIT: usize = 4_000;

/// A call without a result in the history.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OpenCall {
    pub(super) pending: PendingCall,
    /// Its result is in and waits for the step's others.
    pub(super) arrived: Option<Waiting>,
}

impl OpenCall {
    /// Somebody works on it, rather than that it only waits.
    pub(super) fn is_at_work(&self) -> bool {
        self.arrived.is_none() && !self.pending.passive
    }

    /// What the store knows of it.
    pub(super) fn stored_state(&self) -> PendingCall {
        let parked = self.arrived.as_ref().is_some_and(|waiting| waiting.stored);
        PendingCall { parked, ..self.pending.clone() }
    }
}

/// How a call of this history stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Open,
    SettledByTool,
    SettledByRuntime,
    Unknown,
}

impl History {
    /// Calls without a result, parked results included, in call order.
    pub fn open_calls(&self) -> impl Iterator<Item = &PendingCall> {
        self.open.iter().map(|open| &open.pending)
    }

    /// Whether the model can be asked: no call is open.
    pub fn is_settled(&self) -> bool {
        self.open.is_empty()
    }

    /// Whether the result of an open call is in, and only waits for the step's others.
    pub fn has_arrived(&self, call: &CallId) -> bool {
        self.open.iter().any(|open| &open.pending.call == call && open.arrived.is_some())
    }

    /// Whether a result that is in, but not committed yet, opens the subscription of `call`.
    pub fn opens_subscription(&self, call: &CallId) -> bool {
        let start = SubscriptionChange::Start(call.clone());
        self.safe.iter().chain(&self.unvalidated).any(|draft| draft.subscription.as_ref() == Some(&start))
            || self
                .open
                .iter()
                .any(|open| open.arrived.as_ref().and_then(Waiting::subscription).as_ref() == Some(&start))
    }

    /// Lets go the calls whose turn it is, and names them: of each tool server the first one that waits for it, unless
    /// another call is out there.
    pub fn take_turns(&mut self) -> Vec<CallId> {
        let unanswered = |open: &&mut OpenCall| open.arrived.is_none() && !open.pending.synchronous;
        let out = self.open.iter_mut().filter(unanswered).filter(|open| open.pending.hold.is_none());
        let mut busy: BTreeSet<Option<String>> = out.map(|open| open.pending.server.clone()).collect();
        let mut due = Vec::new();
        for open in self.open.iter_mut().filter(unanswered) {
            if open.pending.hold == Some(Hold::Turn) && busy.insert(open.pending.server.clone()) {
                open.pending.hold = None;
                due.push(open.pending.call.clone());
            }
        }
        due
    }

    /// Calls that must not run before the user has said so, and have no result otherwise.
    pub fn calls_to_permit(&self) -> impl Iterator<Item = &PendingCall> {
        let open = self.open.iter().filter(|open| open.arrived.is_none() && open.pending.needs_consent());
        open.map(|open| &open.pending)
    }

    /// Whether a firing of the schedule of `call` is parked.
    pub fn has_waiting_firing(&self, call: &CallId) -> bool {
        self.waiting.iter().any(|waiting| {
            matches!(&waiting.message.synthetic,
                Some(Synthetic::SchedulerFired { tool_call_id, .. }) if tool_call_id == call)
        })
    }

    /// Changes what is known of an open call.
    pub fn describe_call(&mut self, call: &CallId, describe: impl FnOnce(&mut PendingCall)) {
        if let Some(open) = self.open.iter_mut().find(|open| &open.pending.call == call) {
            describe(&mut open.pending);
        }
    }

    /// The committed or drafted call.
    pub fn call(&self, call: &CallId) -> Option<&ToolCallItem> {
        self.bodies()
            .rev()
            .find_map(|body| {
                if let ItemBody::ToolCall(item) = body
                    && &item.call_id == call
                {
                    return Some(item);
                }
                None
            })
            .or_else(|| self.known_calls.get(call))
    }

    /// Notes the arguments with which an open call goes out, in place of the model's own: these stay as they were said.
    pub fn edit_call(&mut self, call: &CallId, tool: &str, arguments: String, now_ms: i64) {
        let mut shown: String = arguments.chars().take(SHOWN_EDIT).collect();
        if shown.len() < arguments.len() {
            shown.push('…');
        }
        let note = ContentPart::Text(wording::edited(tool, call.as_str(), &shown));
        let body = ItemBody::User(UserItem {
            parts: vec![note],
            synthetic_reason: Some(SyntheticReason::EditedCall),
            edited: Some(EditedCall { call_id: call.clone(), arguments }),
            ..UserItem::default()
        });
        // Behind what is in, which its commit takes as well.
        self.mark_inputs_model_validated();
        self.safe.push(Draft::minted(body, now_ms));
    }

    /// The arguments that a person has given a call in place of the model's own.
    pub fn edited_arguments(&self, call: &CallId) -> Option<&str> {
        // Its note stands behind it.
        let behind = self.bodies().rev().take_while(|body| match body {
            ItemBody::ToolCall(item) => &item.call_id != call,
            _ => true,
        });
        let mut edits = behind.filter_map(|body| match body {
            ItemBody::User(user) => user.edited.as_ref(),
            _ => None,
        });
        edits.find(|edited| &edited.call_id == call).map(|edited| edited.arguments.as_str())
    }

    /// Gives an open call its one result, minted by the runtime or by a tool that ran inside the slice.
    /// Without an open call, or where its result has arrived already, there is no effect: the first one wins.
    pub fn settle(
        &mut self,
        call: &CallId,
        outcome: Outcome,
        parts: Vec<ContentPart>,
        settled_by: SettledBy,
        layer: Layer,
        now_ms: i64,
    ) {
        let unanswered = |open: &OpenCall| &open.pending.call == call && open.arrived.is_none();
        let Some(at) = self.open.iter().position(unanswered) else { return };
        let settled = self.open.remove(at);
        let body = ItemBody::ToolResult(ToolResultItem {
            call_id: call.clone(),
            outcome,
            parts: image::noted(parts),
            settled_by,
            display_as: None,
        });
        let mut draft = Draft { settles: vec![settled.stored_state()], ..Draft::minted(body, now_ms) };
        match layer {
            Layer::WithResponse => {
                // The other calls of the response may not be described yet: nothing is closed here.
                draft.continues_response = true;
                self.safe.push(draft);
                return;
            }
            Layer::Safe if self.unvalidated.is_empty() => self.safe.push(draft),
            // Known-safe always precedes unvalidated.
            Layer::Safe | Layer::Unvalidated => self.unvalidated.push(draft),
        }
        self.close_answered_step();
    }

    /// The seq up to which a child may inherit: committed rows before the oldest step that has a call without
    /// a committed result. Its answered calls stay out as well, or their results would be cut off.
    pub fn safe_spawn_point(&self) -> Seq {
        let drafts = self.safe.iter().chain(&self.unvalidated).flat_map(|draft| &draft.settles);
        let unsettled = drafts.chain(self.open.iter().map(|open| &open.pending)).map(|pending| pending.seq);
        let oldest = unsettled.min().unwrap_or(self.head).min(self.head);
        let before = self.own_items().iter().rev().skip_while(|item| item.seq >= oldest);
        let calls = before.take_while(|item| matches!(item.body, ItemBody::ToolCall(_)));
        let step = match oldest < self.head {
            true => calls.last().map_or(oldest, |item| item.seq),
            false => oldest,
        };
        Seq(step.0.saturating_sub(1))
    }

    /// Calls that user text has interrupted since the last time, for notices to their servers.
    pub fn take_interrupted_tool_calls(&mut self) -> Vec<PendingCall> {
        std::mem::take(&mut self.interrupted)
    }

    pub(super) fn standing(&self, call: &CallId) -> Standing {
        if self.open.iter().any(|open| &open.pending.call == call) {
            return Standing::Open;
        }
        let mut seen = false;
        for body in self.bodies() {
            if let ItemBody::ToolCall(item) = body {
                seen |= &item.call_id == call;
            } else if let ItemBody::ToolResult(item) = body
                && &item.call_id == call
            {
                return match item.settled_by {
                    SettledBy::Tool => Standing::SettledByTool,
                    SettledBy::Runtime => Standing::SettledByRuntime,
                };
            }
        }
        // Neither open nor answered by a result: a marker or an event settled it, or its result was lost. What a summary
        // stands for is settled; a duplicate of its result has a dedup row.
        if seen || self.known_calls.contains_key(call) {
            Standing::SettledByRuntime
        } else {
            Standing::Unknown
        }
    }
}

/// Where a minted result goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// Into the same commit as the response whose call it settles.
    WithResponse,
    /// Persisted by the next sync.
    Safe,
    /// Persisted once the model has seen it: it may overflow the window.
    Unvalidated,
}
