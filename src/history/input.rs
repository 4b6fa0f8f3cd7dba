//! What an arriving input does to a history: the rules of settling, interrupting, parking and releasing.

use std::collections::BTreeSet;

use super::calls::{OpenCall, Standing};
use super::{Draft, History, MAX_WAITING, Waiting, image, wording};
use crate::message::{
    CallId, ContentPart, DedupId, EventItem, InputContent, InputMessage, InterruptItem, ItemBody, MessageId,
    Outcome, SettledBy, Synthetic, SyntheticReason, ToolResultInput, ToolResultItem, UserItem, is_blank,
};
use crate::store::{DedupLife, ParkedInput, PendingCall, Promise, SubscriptionChange};

/// By convention a failing tool's text begins so; there are no error codes.
const ERROR_PREFIX: &str = "Error: ";

/// Kind of the dedup id of a result that the runtime sends in place of a tool that could not be reached.
pub const DISPATCH_FAILED: &str = "dispatch-failed";

/// Kind of the dedup id of a result that a person gives in place of a tool that will not.
pub const SETTLED_BY_HAND: &str = "settled-by-hand";

/// Kind of the dedup id of a result that stands for one that did not come in time.
pub const TIMED_OUT: &str = "timed-out";

/// Whether a result stands for one that the tool itself may still send.
fn is_by_runtime(dedup: &DedupId) -> bool {
    [DISPATCH_FAILED, SETTLED_BY_HAND, TIMED_OUT].iter().any(|kind| dedup.is_of_kind(kind))
}

/// How an input reached the thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Under which it is processed at most once.
    pub dedup: DedupId,
    /// The queue message.
    pub cause: MessageId,
    /// Orders parked inputs: the queue's sequence number.
    pub key: String,
    /// How often the queue has delivered it, this time included.
    pub receives: u32,
    /// Milliseconds since the epoch.
    pub now_ms: i64,
}

/// What became of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// It is part of the next request.
    Ready,
    /// It was handled before, or its call was answered by the tool before: no effect.
    Duplicate,
    /// It is kept aside; the next sync makes that durable.
    Parked,
    /// A result that came too late is kept as a note: to be synced, nothing to ask the model.
    Note,
    /// It answers a call that this thread does not know: no effect.
    Foreign,
    /// It holds nothing but white space and is refused.
    Blank,
    /// It is no part of a conversation (consent, a choice): the caller's business.
    NotConversational,
}

impl Waiting {
    pub(super) fn life(&self) -> DedupLife {
        dedup_life(&self.message)
    }

    /// What accepting it promises: of a schedule, the next firing.
    pub(super) fn promise(&self) -> Option<Promise> {
        self.promise.as_ref().filter(|_| !self.stored).cloned()
    }

    pub(super) fn subscription(&self) -> Option<SubscriptionChange> {
        match (&self.message.content, &self.message.synthetic) {
            (InputContent::ToolResult(result), None) if self.message.subscription => {
                Some(SubscriptionChange::Start(result.id.clone()))
            }
            _ => None,
        }
    }

    /// Whether its release leaves an event, which interrupts what only waits.
    fn is_event(&self) -> bool {
        self.message.synthetic.is_some()
    }
}

fn dedup_life(message: &InputMessage) -> DedupLife {
    match (&message.content, &message.synthetic) {
        (InputContent::ToolResult(_), None) => DedupLife::Forever,
        _ => DedupLife::Days,
    }
}

impl History {
    /// Takes one input. The caller has already looked its dedup id up in the store.
    pub fn accept(&mut self, message: &InputMessage, arrival: &Arrival) -> Accepted {
        if self.handled.contains(&arrival.dedup) {
            return Accepted::Duplicate;
        }
        let accepted = match (&message.content, &message.synthetic) {
            (InputContent::Text(text), None) if is_blank(text) => return Accepted::Blank,
            (InputContent::Text(text), None) => {
                self.user_input(vec![ContentPart::text(text)], message, arrival);
                Accepted::Ready
            }
            (InputContent::Image { data, media_type }, None) => {
                let part = ContentPart::Image { data: data.clone(), media_type: media_type.clone() };
                self.user_input(vec![part], message, arrival);
                Accepted::Ready
            }
            (InputContent::Parts(parts), None) if parts.iter().all(ContentPart::is_blank) => {
                return Accepted::Blank;
            }
            (InputContent::Parts(parts), None) => {
                self.user_input(parts.clone(), message, arrival);
                Accepted::Ready
            }
            (InputContent::ToolResult(result), None) => self.result_input(result, message, arrival),
            (InputContent::ToolResult(_), Some(synthetic)) => self.event_input(synthetic, message, arrival),
            _ => return Accepted::NotConversational,
        };
        match accepted {
            Accepted::Ready | Accepted::Parked | Accepted::Note => {
                self.handled.insert(arrival.dedup.clone());
            }
            Accepted::Duplicate | Accepted::Foreign | Accepted::Blank | Accepted::NotConversational => {}
        }
        accepted
    }

    /// Places standing instructions before the first thing that a model answers in this thread. They are placed once:
    /// one that has begun, or has inherited a beginning, stays as it is.
    pub fn begin_with_instructions(&mut self, text: &str, now_ms: i64) {
        let placed = |body: &ItemBody| match body {
            ItemBody::User(user) => user.synthetic_reason == Some(SyntheticReason::ProjectInstructions),
            body => body.is_output(),
        };
        let begun = !self.base.is_empty() || self.has_parent || self.generation.is_some();
        if is_blank(text) || begun || self.bodies().any(placed) {
            return;
        }
        let body = ItemBody::User(UserItem {
            parts: vec![ContentPart::text(text)],
            synthetic_reason: Some(SyntheticReason::ProjectInstructions),
            ..UserItem::default()
        });
        self.unvalidated.insert(0, Draft::minted(body, now_ms));
    }

    /// Takes a placeholder for an input that is given up on. It interrupts nothing and wakes nobody.
    pub fn accept_placeholder(&mut self, message: &InputMessage, arrival: &Arrival, opens_turn: bool) {
        self.handled.insert(arrival.dedup.clone());
        let body = ItemBody::User(UserItem {
            parts: vec![ContentPart::text(wording::GIVEN_UP)],
            synthetic_reason: Some(SyntheticReason::OmissionNote),
            ..UserItem::default()
        });
        let mut draft = arrived(body, message, arrival);
        draft.opens_turn = opens_turn;
        self.safe.push(draft);
    }

    /// Takes back a parked row of the store; hands one back that does not parse any more.
    pub(super) fn readopt(&mut self, parked: ParkedInput) -> Option<ParkedInput> {
        let Ok(message) = InputMessage::parse(parked.body.as_bytes()) else { return Some(parked) };
        let waiting = Waiting { parked, message, promise: None, stored: true };
        if let (InputContent::ToolResult(result), None) =
            (&waiting.message.content, &waiting.message.synthetic)
            && let Some(open) = self.open_call(&result.id)
            && open.arrived.is_none()
        {
            open.arrived = Some(waiting);
        } else {
            self.waiting.push(waiting);
        }
        None
    }

    fn open_call(&mut self, call: &CallId) -> Option<&mut OpenCall> {
        self.open.iter_mut().find(|open| &open.pending.call == call)
    }

    /// Parked rows that do not parse any more must not hold up what waits for them (I7): each stands for the result
    /// of a call whose result is parked but not in hand, or else is a note.
    pub(super) fn readopt_unreadable(&mut self, rows: Vec<ParkedInput>) {
        for parked in rows {
            let missing = self.open.iter_mut().find(|open| open.pending.parked && open.arrived.is_none());
            let thread = self.thread.clone();
            match missing {
                Some(open) => {
                    let parts = vec![ContentPart::text(wording::RESULT_GIVEN_UP)];
                    let message = InputMessage::tool_result(thread, open.pending.call.clone(), parts);
                    open.arrived = Some(Waiting { parked, message, promise: None, stored: true });
                }
                None => {
                    let message = InputMessage::user_text(thread, wording::GIVEN_UP);
                    self.waiting.push(Waiting { parked, message, promise: None, stored: true });
                }
            }
        }
    }

    /// User text first brings in what has arrived for the open step and marks every other call of it as
    /// interrupted; parked events follow the text.
    fn user_input(&mut self, parts: Vec<ContentPart>, message: &InputMessage, arrival: &Arrival) {
        self.interrupt_open_calls(arrival);
        let body = ItemBody::User(UserItem { parts: image::noted(parts), ..UserItem::default() });
        let mut draft = arrived(body, message, arrival);
        draft.opens_turn = true;
        self.unvalidated.push(draft);
        self.release_waiting();
    }

    pub(super) fn interrupt_open_calls(&mut self, arrival: &Arrival) {
        // A call at the tail is committed model output, so usually nothing unvalidated precedes the markers
        // and they are known-safe; in any other position order comes first and they stay unvalidated.
        let layer = if self.unvalidated.is_empty() { &mut self.safe } else { &mut self.unvalidated };
        for open in self.open.drain(..) {
            match result_draft(&open) {
                Some(draft) => layer.push(draft),
                None if open.pending.hold.is_some() => {
                    layer.push(unsent_draft(&open, arrival.now_ms));
                    self.interrupted.push(open.pending);
                }
                None => {
                    let body = ItemBody::Interrupt(InterruptItem { call_id: open.pending.call.clone() });
                    layer.push(Draft {
                        cause: Some(arrival.cause.clone()),
                        settles: vec![open.stored_state()],
                        ..Draft::minted(body, arrival.now_ms)
                    });
                    self.interrupted.push(open.pending);
                }
            }
        }
    }

    fn result_input(
        &mut self,
        result: &ToolResultInput,
        message: &InputMessage,
        arrival: &Arrival,
    ) -> Accepted {
        // That the time is up is news only for a call that still waits.
        let timed_out = arrival.dedup.is_of_kind(TIMED_OUT);
        match self.standing(&result.id) {
            Standing::Unknown => return Accepted::Foreign,
            Standing::SettledByTool => return Accepted::Duplicate,
            Standing::SettledByRuntime if timed_out => return Accepted::Duplicate,
            Standing::SettledByRuntime => {
                self.late_note(result, message, arrival);
                return Accepted::Note;
            }
            Standing::Open => {}
        }
        let waiting = self.set_aside(message, arrival);
        let Some(open) = self.open_call(&result.id) else { return Accepted::Foreign };
        if let Some(first) = &open.arrived {
            if timed_out || !is_by_runtime(&first.parked.dedup) {
                return Accepted::Duplicate;
            }
            // The runtime has answered in the tool's place, and that answer only waits for the step's others.
            self.late_note(result, message, arrival);
            return Accepted::Note;
        }
        open.arrived = Some(waiting);
        match self.close_answered_step() {
            true => Accepted::Ready,
            false => Accepted::Parked,
        }
    }

    /// An input as it waits: under a key of its own, since one message may bring several.
    fn set_aside(&self, message: &InputMessage, arrival: &Arrival) -> Waiting {
        Waiting {
            parked: ParkedInput {
                key: self.free_key(&arrival.key),
                dedup: arrival.dedup.clone(),
                cause: arrival.cause.clone(),
                // An InputMessage that was parsed serialises again.
                body: message.to_body().expect("bug: an input message serialises"),
            },
            message: message.clone(),
            promise: next_firing(message, arrival.now_ms),
            stored: false,
        }
    }

    /// The key of what waits next from the message that has `key`: that itself, else the first of `key.1`, `key.2`, … that
    /// no row has and none will have with the next commit.
    fn free_key(&self, key: &str) -> String {
        let arrived = self.open.iter().filter_map(|open| open.arrived.as_ref());
        let waiting = arrived.chain(&self.waiting).map(|waiting| waiting.parked.key.as_str());
        let released = self.safe.iter().chain(&self.unvalidated).filter_map(|draft| draft.release.as_deref());
        let dropped = self.dropped.iter().map(String::as_str);
        let taken: BTreeSet<&str> = waiting.chain(released).chain(dropped).collect();
        // Of one name more than there are taken ones, one is free.
        let numbered = (1..=taken.len()).map(|n| format!("{key}.{n}"));
        let mut names = std::iter::once(key.to_owned()).chain(numbered);
        names.find(|name| !taken.contains(name.as_str())).unwrap_or_else(|| key.to_owned())
    }

    /// Closes the open step if nothing of it is at work any more and either every call is answered or an
    /// event waits, which wakes the calls that only wait. Says whether it did.
    pub(super) fn close_answered_step(&mut self) -> bool {
        let answered = self.open.iter().all(|open| open.arrived.is_some());
        let event_waits = self.waiting.iter().any(Waiting::is_event);
        let at_work = self.open.iter().any(OpenCall::is_at_work);
        if self.open.is_empty() || at_work || !(answered || event_waits) {
            return false;
        }
        let interrupted = self.bring_in_results();
        let released = self.unvalidated.len();
        self.release_waiting();
        let mut released = self.unvalidated.iter_mut().skip(released);
        if let Some(event) = released.find(|draft| matches!(draft.body, ItemBody::Event(_))) {
            event.settles = interrupted;
        }
        true
    }

    /// Brings in the results that have arrived for the open step, in call order. What is left of it is
    /// returned: an event interrupts it.
    fn bring_in_results(&mut self) -> Vec<PendingCall> {
        let mut left = Vec::new();
        for open in std::mem::take(&mut self.open) {
            match result_draft(&open) {
                Some(draft) => self.unvalidated.push(draft),
                None if open.pending.hold.is_some() => {
                    self.unvalidated.push(unsent_draft(&open, 0));
                    self.interrupted.push(open.pending);
                }
                None => {
                    left.push(open.stored_state());
                    self.interrupted.push(open.pending);
                }
            }
        }
        left
    }

    /// The real result of a call that the runtime has settled: a note that opens no turn.
    fn late_note(&mut self, result: &ToolResultInput, message: &InputMessage, arrival: &Arrival) {
        let draft = self.late_draft(result, arrived(ItemBody::User(UserItem::default()), message, arrival));
        match self.unvalidated.is_empty() {
            true => self.safe.push(draft),
            false => self.unvalidated.push(draft),
        }
    }

    fn late_draft(&self, result: &ToolResultInput, mut draft: Draft) -> Draft {
        let tool = self.call(&result.id).map_or("a tool", |call| &call.name);
        let text = wording::late_result(tool, result.id.as_str(), &ContentPart::join_text(&result.content));
        let others = result.content.iter().filter(|part| !matches!(part, ContentPart::Text(_)));
        draft.body = ItemBody::User(UserItem {
            parts: image::noted(std::iter::once(ContentPart::Text(text)).chain(others.cloned()).collect()),
            synthetic_reason: Some(SyntheticReason::LateResult),
            ..UserItem::default()
        });
        draft
    }

    /// An event, a report or a parent's message. It waits while a call is at work; one whose result is in is
    /// not. A call that only waits is interrupted by it, without a marker: the event itself is the record.
    fn event_input(&mut self, synthetic: &Synthetic, message: &InputMessage, arrival: &Arrival) -> Accepted {
        let Some((origin, _)) = origin(synthetic) else { return Accepted::NotConversational };
        if self.call(origin).is_none() {
            return Accepted::Foreign;
        }
        let at_work = self.open.iter().any(OpenCall::is_at_work);
        if at_work && self.waiting.len() < MAX_WAITING {
            let waiting = self.set_aside(message, arrival);
            self.waiting.push(waiting);
            return Accepted::Parked;
        }
        let opens_turn = self.open.is_empty();
        let interrupted = self.bring_in_results();
        let mut draft = self.event_draft(&self.set_aside(message, arrival));
        draft.opens_turn = opens_turn;
        draft.settles = interrupted;
        self.unvalidated.push(draft);
        self.release_waiting();
        Accepted::Ready
    }

    /// Brings in everything that waited, in arrival order.
    pub fn release_waiting(&mut self) {
        for waiting in std::mem::take(&mut self.waiting) {
            let draft = match (&waiting.message.content, &waiting.message.synthetic) {
                (InputContent::ToolResult(result), None) => {
                    // Parked for a call that something else has settled since.
                    let draft = released(ItemBody::User(UserItem::default()), &waiting);
                    self.late_draft(result, draft)
                }
                _ => self.event_draft(&waiting),
            };
            self.unvalidated.push(draft);
        }
    }

    fn event_draft(&self, waiting: &Waiting) -> Draft {
        let origin = waiting.message.synthetic.as_ref().and_then(origin);
        let (call, reason) = match origin {
            Some((call, reason)) => (call.clone(), reason),
            None => (CallId::new(""), SyntheticReason::SystemReminder),
        };
        let original = self.call(&call);
        let delivery = DedupId::derive("ev", &[self.thread.as_str(), waiting.parked.dedup.as_str()]);
        let parts = match &waiting.message.content {
            InputContent::ToolResult(result) => result.content.clone(),
            InputContent::Text(text) => vec![ContentPart::text(text)],
            _ => Vec::new(),
        };
        let body = ItemBody::Event(EventItem {
            call_id: CallId::new(delivery.as_str()),
            reason,
            original_tool_name: original.map(|call| call.name.clone()).unwrap_or_default(),
            original_args: original.map(|call| call.arguments.clone()).unwrap_or_default(),
            original_tool_call_id: call.clone(),
            parts: image::noted(parts),
        });
        let mut draft = released(body, waiting);
        let last = match &waiting.message.synthetic {
            Some(Synthetic::SubscriptionEvent { r#final, .. }) => *r#final,
            Some(Synthetic::SchedulerFired { firing, recurrence, .. }) => recurrence.ends_with(*firing),
            Some(_) | None => false,
        };
        if last {
            draft.subscription = Some(SubscriptionChange::End(call));
        }
        draft
    }
}

/// What a firing that is taken now promises, if another one follows it.
pub fn next_firing(message: &InputMessage, now_ms: i64) -> Option<Promise> {
    match &message.synthetic {
        Some(Synthetic::SchedulerFired { tool_call_id, firing, recurrence }) => {
            let firing = recurrence.next(*firing, now_ms)?;
            Some(Promise::Schedule { call: tool_call_id.clone(), firing })
        }
        Some(_) | None => None,
    }
}

/// The call an inline input belongs to, and its reason.
fn origin(synthetic: &Synthetic) -> Option<(&CallId, SyntheticReason)> {
    match synthetic {
        Synthetic::SubscriptionEvent { tool_call_id, .. } => {
            Some((tool_call_id, SyntheticReason::SubscriptionEvent))
        }
        Synthetic::SchedulerFired { tool_call_id, .. } => {
            Some((tool_call_id, SyntheticReason::SchedulerFired))
        }
        Synthetic::ThreadReport { tool_call_id, .. } => Some((tool_call_id, SyntheticReason::ThreadReport)),
        Synthetic::ParentMessage { tool_call_id } => Some((tool_call_id, SyntheticReason::ParentMessage)),
        Synthetic::Compaction | Synthetic::CompactionComplete => None,
    }
}

/// A draft of what has just arrived.
fn arrived(body: ItemBody, message: &InputMessage, arrival: &Arrival) -> Draft {
    Draft {
        dedup: Some((arrival.dedup.clone(), dedup_life(message))),
        arrived_as: Some(arrival.dedup.clone()),
        cause: Some(arrival.cause.clone()),
        user: message.user_id(),
        ..Draft::minted(body, arrival.now_ms)
    }
}

/// A draft of what has waited: its dedup row is written once, now or when it was parked.
fn released(body: ItemBody, waiting: &Waiting) -> Draft {
    let parked = &waiting.parked;
    Draft {
        dedup: (!waiting.stored).then(|| (parked.dedup.clone(), waiting.life())),
        arrived_as: Some(parked.dedup.clone()),
        cause: Some(parked.cause.clone()),
        user: waiting.message.user_id(),
        promise: waiting.promise(),
        release: waiting.stored.then(|| parked.key.clone()),
        ..Draft::minted(body, 0)
    }
}

/// The result of a call that is interrupted before it was sent: it cannot have taken effect.
fn unsent_draft(open: &OpenCall, now_ms: i64) -> Draft {
    let (outcome, text) = match open.pending.needs_consent() {
        true => (Outcome::Refused, wording::refused(&open.pending.name, None)),
        false => (Outcome::Halted, wording::unsent(&open.pending.name)),
    };
    let body = ItemBody::ToolResult(ToolResultItem {
        call_id: open.pending.call.clone(),
        outcome,
        parts: vec![ContentPart::Text(text)],
        settled_by: SettledBy::Runtime,
        display_as: None,
    });
    Draft { settles: vec![open.stored_state()], ..Draft::minted(body, now_ms) }
}

/// The draft of the result that has arrived for an open call.
fn result_draft(open: &OpenCall) -> Option<Draft> {
    let waiting = open.arrived.as_ref()?;
    let parts = match &waiting.message.content {
        InputContent::ToolResult(result) => image::noted(result.content.clone()),
        _ => Vec::new(),
    };
    // The tool may have got the call all the same: its own result is then a late one, not a duplicate.
    let by_runtime = is_by_runtime(&waiting.parked.dedup);
    let settled_by = if by_runtime { SettledBy::Runtime } else { SettledBy::Tool };
    let failed = matches!(parts.first(), Some(ContentPart::Text(text)) if text.starts_with(ERROR_PREFIX));
    let outcome = match failed {
        _ if waiting.parked.dedup.is_of_kind(TIMED_OUT) => Outcome::TimedOut,
        true => Outcome::Error,
        false => Outcome::Ok,
    };
    let body = ItemBody::ToolResult(ToolResultItem {
        call_id: open.pending.call.clone(),
        outcome,
        parts,
        settled_by,
        display_as: waiting.message.display_as.clone(),
    });
    let mut draft = Draft { settles: vec![open.stored_state()], ..released(body, waiting) };
    // Parking has already recorded the subscription of a stored result.
    if !waiting.stored {
        draft.subscription = waiting.subscription();
    }
    Some(draft)
}
