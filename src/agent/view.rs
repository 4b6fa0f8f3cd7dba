//! What a reader sees of a resident thread: what is committed, and what is being streamed.

use std::sync::Arc;

use crate::history::TurnBuffer;
use crate::message::{
    ContentPart, DedupId, Epoch, InputMessage, Item, ItemBody, RawJson, Seq, ThreadId, UserChoiceRequired,
};
use crate::model::ModelEvent;
use crate::slice::DisplayEvent;
use crate::store::{Meta, PendingCall};
use crate::thread::Known;

/// The response being streamed, as it was shown.
#[derive(Debug, Default)]
pub(super) struct Partial {
    model: String,
    turn: TurnBuffer,
}

impl Partial {
    /// Goes along with what is shown.
    pub(super) fn show(&mut self, event: DisplayEvent) {
        match event {
            DisplayEvent::Asking { model } => *self = Self { model, turn: TurnBuffer::default() },
            DisplayEvent::Text(text) => self.turn.push(&ModelEvent::Text(text)),
            DisplayEvent::Reasoning(text) => self.turn.push(&ModelEvent::ReasoningText(text)),
            DisplayEvent::Discarded { .. } | DisplayEvent::Done | DisplayEvent::Retrying { .. } => self.end(),
            DisplayEvent::Call { .. }
            | DisplayEvent::Result { .. }
            | DisplayEvent::Consent { .. }
            | DisplayEvent::Choice { .. }
            | DisplayEvent::Notice(_)
            | DisplayEvent::Sleeping { .. } => {}
        }
    }

    /// It is committed, or does not count.
    pub(super) fn end(&mut self) {
        self.turn = TurnBuffer::default();
    }
}

/// What the actor lets a read see.
pub(super) struct View<'a> {
    pub(super) thread: &'a ThreadId,
    pub(super) known: &'a Known,
    pub(super) partial: &'a Partial,
    pub(super) running: Running,
    pub(super) accepted: Vec<(DedupId, InputMessage)>,
}

/// Whether a slice runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Running {
    /// One does.
    Slice,
    /// None does.
    Nothing,
}

impl View<'_> {
    pub(super) fn meta(&self) -> Option<&Meta> {
        self.known.meta.as_ref()
    }

    pub(super) fn snapshot(&self) -> ReplaySnapshot {
        let choices = self.known.choices.iter();
        ReplaySnapshot {
            thread: self.thread.clone(),
            exists: self.known.meta.is_some(),
            epoch: self.meta().map_or(Epoch(0), |meta| meta.epoch),
            head: self.meta().map_or(Seq::FIRST, |meta| meta.head),
            closed: self.meta().is_some_and(|meta| meta.closed),
            items: self.known.items.clone(),
            partial: self.partial.turn.view(&self.partial.model),
            pending: self.meta().map(|meta| meta.pending.clone()).unwrap_or_default(),
            choices: choices.filter_map(|row| serde_json::from_str(&row.body).ok()).collect(),
            accepted: self.accepted.clone(),
            running: self.running,
            views: Vec::new(),
        }
    }
}

/// All that a client needs that attaches to a thread, also in mid-stream: it replays this, and then follows the events.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplaySnapshot {
    /// The thread.
    pub thread: ThreadId,
    /// Whether it is in the store.
    pub exists: bool,
    /// Its log.
    pub epoch: Epoch,
    /// The seq its next item gets.
    pub head: Seq,
    /// Whether it takes no input any more.
    pub closed: bool,
    /// Committed items, inherited ones first. An old result may be an excerpt, as
    /// [`ItemFacts::excerpt_of`](crate::message::ItemFacts::excerpt_of) then says.
    pub items: Arc<Vec<Item>>,
    /// The response being streamed: text and reasoning so far. It is not committed, and may yet be discarded.
    pub partial: Vec<ItemBody>,
    /// Calls without a result.
    pub pending: Vec<PendingCall>,
    /// Questions that nobody has answered.
    pub choices: Vec<UserChoiceRequired>,
    /// Inputs that the actor has taken and not done yet, those that the running slice works for first.
    pub accepted: Vec<(DedupId, InputMessage)>,
    /// Whether a slice runs.
    pub running: Running,
    /// The latest view of each type, as tools have sent them.
    pub views: Vec<(String, RawJson)>,
}

impl ReplaySnapshot {
    /// Committed items followed by the response being streamed.
    pub fn bodies(&self) -> impl Iterator<Item = &ItemBody> {
        self.items.iter().map(|item| &item.body).chain(&self.partial)
    }

    /// The text being streamed.
    pub fn partial_text(&self) -> String {
        let text = |body: &ItemBody| match body {
            ItemBody::Assistant(item) => Some(item.text.clone()),
            _ => None,
        };
        self.partial.iter().filter_map(text).collect::<Vec<_>>().join("\n")
    }
}

/// The text of an item, where it has one for people.
pub(super) fn text_of(body: &ItemBody) -> Option<String> {
    match body {
        ItemBody::User(item) => Some(ContentPart::join_text(&item.parts)),
        ItemBody::Assistant(item) => Some(item.text.clone()),
        ItemBody::System(_)
        | ItemBody::ToolCall(_)
        | ItemBody::ToolResult(_)
        | ItemBody::BackendToolCall(_)
        | ItemBody::Reasoning(_)
        | ItemBody::Interrupt(_)
        | ItemBody::Event(_)
        | ItemBody::State(_)
        | ItemBody::Unknown { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_discarded_committed_or_asked_again_is_no_part_of_the_response() {
        let mut partial = Partial::default();
        let shown = |partial: &Partial| partial.turn.view(&partial.model).len();
        let over: [fn(&mut Partial); 4] = [
            |partial| partial.show(DisplayEvent::Discarded { why: "cut".into() }),
            |partial| partial.show(DisplayEvent::Asking { model: "m".into() }),
            |partial| partial.show(DisplayEvent::Retrying { why: "x".into() }),
            Partial::end,
        ];
        for end in over {
            partial.show(DisplayEvent::Reasoning("hm".into()));
            partial.show(DisplayEvent::Text("a".into()));
            partial.show(DisplayEvent::Text("b".into()));
            partial.show(DisplayEvent::Notice("beside it".into()));
            assert_eq!(shown(&partial), 2, "pieces of one text are one");
            end(&mut partial);
            assert_eq!(shown(&partial), 0);
        }
    }
}
