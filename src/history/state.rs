//! What the user's application and the agent share (R21). A state is an item like any other, so that a rewind, a fork or a
//! child has the one that stood there; none of it is in a request. META knows where the newest one stands, since a summary
//! may stand for it.

use super::{Draft, History};
use crate::message::{ItemBody, RawJson, StateItem};
use crate::store::{Position, Span, behind, position};

impl History {
    /// The state that counts, if its item is in hand.
    pub fn state_in_hand(&self) -> Option<&RawJson> {
        let mut drafts = self.safe.iter().chain(&self.unvalidated).rev();
        if let Some(state) = drafts.find_map(|draft| draft.body.state()) {
            return Some(state);
        }
        let newest = self.committed.iter().rev().find(|item| item.body.state().is_some());
        // Of one that was not read whole, nothing but that it is there.
        newest.filter(|item| item.facts.excerpt_of.is_none())?.body.state()
    }

    /// Where the newest committed state stands.
    pub fn state_at(&self) -> Option<&Position> {
        self.state.as_ref()
    }

    /// From here on this is the state, with the next commit.
    pub fn put_state(&mut self, state: RawJson, now_ms: i64) {
        let body = ItemBody::State(StateItem { state });
        self.safe.push(Draft::minted(body, now_ms));
    }

    /// Where the newest state of the first `items` committed ones in hand stands, and of what is in front of them.
    pub(super) fn state_within(&self, items: usize) -> Option<Position> {
        let found = self.committed.get(..items)?.iter().rposition(|item| item.body.state().is_some());
        let behind_summary = || {
            let spans = self.spans_up_to(self.unread);
            self.state.clone().filter(|at| behind(&spans, at).is_some())
        };
        match found {
            Some(index) => position(&self.spans(), index.saturating_add(self.unread)),
            None => behind_summary(),
        }
    }

    /// Where the state of a thread that inherits `spans` of this one stands.
    pub fn state_of_child(&self, spans: &[Span]) -> Option<Position> {
        let items: u64 = spans.iter().map(|span| span.to.0.saturating_sub(span.from.0)).sum();
        let in_hand = usize::try_from(items).unwrap_or(usize::MAX).saturating_sub(self.unread);
        self.state_within(in_hand.min(self.committed.len())).filter(|at| behind(spans, at).is_some())
    }
}
