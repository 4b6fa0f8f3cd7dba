//! What a provider will never take stays out of requests, and in the history (I7, I8): the item is stored as it
//! arrived, with the fact that a placeholder stands for it.

use std::borrow::Cow;

use super::compacted::Front;
use super::prune::Names;
use super::{History, wording};
use crate::message::{ContentPart, Item, ItemBody, LeftOut, Outcome, Seq, SyntheticReason};
use crate::store::ResultsOut;

/// Results that a thread's overlay names.
const MAX_RESULTS_OUT: usize = 32;

/// What was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftOutInput {
    /// A user's message: the user is to be told.
    User,
    /// A tool's result or an event: the model reads the placeholder and goes on.
    Result,
}

impl History {
    /// Leaves out the largest unvalidated input that is not left out yet, and says what it was. Interrupt markers
    /// have no content and always stay.
    pub fn leave_out_largest_input(&mut self, why: LeftOut) -> Option<LeftOutInput> {
        let candidates = self.unvalidated.iter_mut().filter(|draft| draft.left_out.is_none());
        let (draft, what) = candidates
            .filter_map(|draft| kind(&draft.body).map(|what| (draft, what)))
            .max_by_key(|(draft, _)| draft.body.to_raw().len())?;
        draft.left_out = Some(why);
        Some(what)
    }

    /// Leaves out the largest result or event that no response has answered yet; false if there is none. One that is
    /// committed already, because others of its step came later, is left out by an overlay (I8).
    pub fn leave_out_largest_result(&mut self, why: LeftOut) -> bool {
        let committed = self.unanswered_own().filter(|item| is_candidate(&item.body, item.facts.left_out));
        let committed = committed.map(|item| (item.raw.len(), item.seq)).max();
        let answered = self.safe.iter().rposition(|draft| draft.body.is_output()).map_or(0, |last| last + 1);
        let drafts = self.safe[answered..].iter_mut().chain(&mut self.unvalidated);
        let drafts = drafts.filter(|draft| is_candidate(&draft.body, draft.left_out));
        let draft = drafts.map(|draft| (draft.body.to_raw().len(), draft)).max_by_key(|(size, _)| *size);
        match (committed, draft) {
            (Some((size, seq)), draft) if draft.as_ref().is_none_or(|(other, _)| size > *other) => {
                let out = &mut self.results_out;
                if out.epoch != self.epoch {
                    *out = ResultsOut { epoch: self.epoch, seqs: Vec::new() };
                }
                out.seqs.push(seq);
                let excess = out.seqs.len().saturating_sub(MAX_RESULTS_OUT);
                out.seqs.drain(..excess);
                self.leave_out_stored();
                true
            }
            (_, Some((_, draft))) => {
                draft.left_out = Some(why);
                true
            }
            (_, None) => false,
        }
    }

    /// Results that requests do not hold, by overlay.
    pub fn results_out(&self) -> &ResultsOut {
        &self.results_out
    }

    /// Where the thread's own log begins among the committed items in hand.
    fn own_from(&self) -> usize {
        let own = usize::try_from(self.head.0.saturating_sub(Seq::FIRST.0)).unwrap_or(usize::MAX);
        self.committed.len().saturating_sub(own)
    }

    /// Committed items of the own log that no response has answered.
    fn unanswered_own(&self) -> impl Iterator<Item = &Item> {
        let last = self.committed.iter().rposition(|item| item.body.is_output());
        let answered = match self.safe.iter().any(|draft| draft.body.is_output()) {
            true => self.committed.len(),
            false => last.map_or(0, |last| last + 1),
        };
        self.committed[answered.max(self.own_from())..].iter()
    }

    /// Applies the overlay to the items in hand.
    pub(super) fn leave_out_stored(&mut self) {
        if self.results_out.epoch != self.epoch {
            return;
        }
        let from = self.own_from();
        for item in self.committed[from..].iter_mut().filter(|item| self.results_out.seqs.contains(&item.seq))
        {
            item.facts.left_out = Some(LeftOut::TooLarge);
        }
    }

    /// Everything but the turn buffer, in order, as a model is shown it.
    pub(super) fn shown(&self, front: Front) -> Vec<Cow<'_, ItemBody>> {
        let names = match self.prune.hard_before {
            0 => Names::default(),
            _ => Names::of_calls(self),
        };
        let first = self.first_shown();
        let committed = self.committed[first..].iter().map(|item| match item.facts.left_out {
            None => self.pruned(item, &names),
            Some(why) => Some(Cow::Owned(placeholder(&item.body, why))),
        });
        let drafts = self.safe.iter().chain(&self.unvalidated).map(|draft| match draft.left_out {
            None => Some(Cow::Borrowed(&draft.body)),
            Some(why) => Some(Cow::Owned(placeholder(&draft.body, why))),
        });
        let all = committed.chain(drafts).enumerate();
        let all = all.filter_map(|(at, body)| Some(self.without_images(self.position(first + at), body?)));
        self.shown_in_front(front).into_iter().chain(all).collect()
    }
}

/// An item as a model is shown it, no overlay applied but its own.
pub fn shown_item(item: &Item) -> Cow<'_, ItemBody> {
    match item.facts.left_out {
        None => Cow::Borrowed(&item.body),
        Some(why) => Cow::Owned(placeholder(&item.body, why)),
    }
}

/// Whether a placeholder can stand for it, and does not yet.
fn is_candidate(body: &ItemBody, left_out: Option<LeftOut>) -> bool {
    left_out.is_none() && kind(body) == Some(LeftOutInput::Result)
}

fn kind(body: &ItemBody) -> Option<LeftOutInput> {
    match body {
        ItemBody::User(user) if user.synthetic_reason.is_none() => Some(LeftOutInput::User),
        // What holds for the whole conversation is not what is new in it.
        ItemBody::User(user) if user.synthetic_reason == Some(SyntheticReason::ProjectInstructions) => None,
        ItemBody::User(_) | ItemBody::ToolResult(_) | ItemBody::Event(_) => Some(LeftOutInput::Result),
        ItemBody::System(_)
        | ItemBody::Assistant(_)
        | ItemBody::ToolCall(_)
        | ItemBody::BackendToolCall(_)
        | ItemBody::Reasoning(_)
        | ItemBody::Interrupt(_)
        | ItemBody::State(_)
        | ItemBody::Unknown { .. } => None,
    }
}

fn placeholder(body: &ItemBody, why: LeftOut) -> ItemBody {
    let text = match why {
        LeftOut::TooLarge => wording::TOO_LARGE,
        LeftOut::Refused => wording::REFUSED,
    };
    let mut body = body.clone();
    match &mut body {
        ItemBody::User(user) => user.parts = vec![ContentPart::text(text)],
        ItemBody::ToolResult(result) => {
            result.parts = vec![ContentPart::text(wording::RESULT_LEFT_OUT)];
            result.outcome = Outcome::Error;
        }
        ItemBody::Event(event) => event.parts = vec![ContentPart::text(wording::RESULT_LEFT_OUT)],
        ItemBody::System(_)
        | ItemBody::Assistant(_)
        | ItemBody::ToolCall(_)
        | ItemBody::BackendToolCall(_)
        | ItemBody::Reasoning(_)
        | ItemBody::Interrupt(_)
        | ItemBody::State(_)
        | ItemBody::Unknown { .. } => {}
    }
    body
}
