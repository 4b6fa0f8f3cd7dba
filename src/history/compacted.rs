//! The part of a history that a summary stands for: how it is shown, and how a new one is taken over. The items behind it
//! are as they were (I8); most are not even read.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::prune::Names;
use super::{History, groups, wording};
use crate::message::{
    CallId, ContentPart, Item, ItemBody, RawJson, SyntheticReason, SystemItem, ToolCallItem, UserItem, tokens,
};
use crate::store::{Generation, Pointer, Span, behind};

/// The text of standing instructions, which no summary replaces.
pub fn standing_instructions(body: &ItemBody) -> Option<String> {
    match body {
        ItemBody::User(user) if user.synthetic_reason == Some(SyntheticReason::ProjectInstructions) => {
            Some(ContentPart::join_text(&user.parts))
        }
        _ => None,
    }
}

/// What stands in front for the older part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    /// The summary.
    Summary,
    /// Its provider's checkpoint, which is no item and goes first: the rest follows it.
    Checkpoint,
}

/// What stands for the part that a generation covers, but for the opener of a turn that goes on.
pub fn in_front(generation: &Generation, with: Front) -> Vec<ItemBody> {
    let system = generation.system.iter();
    let mut front: Vec<ItemBody> =
        system.map(|text| ItemBody::System(SystemItem { text: text.clone() })).collect();
    let standing = generation.instructions.iter().cloned();
    front.extend(standing.map(|text| note(text, SyntheticReason::ProjectInstructions)));
    if with == Front::Summary {
        front.push(note(wording::summary(&generation.text), SyntheticReason::CompactionMeta));
    }
    front
}

fn note(text: String, reason: SyntheticReason) -> ItemBody {
    ItemBody::User(UserItem {
        parts: vec![ContentPart::Text(text)],
        synthetic_reason: Some(reason),
        ..UserItem::default()
    })
}

impl History {
    /// Says whether requests begin with the checkpoint of the summary, if it has one: only on its own route.
    pub fn send_checkpoint(&mut self, sends: bool) {
        self.sends_checkpoint = sends;
    }

    /// The checkpoint that requests begin with.
    pub fn checkpoint_sent(&self) -> Option<&[RawJson]> {
        let native = self.generation.as_ref()?.native.as_ref()?;
        self.sends_checkpoint.then_some(native.items.as_slice())
    }

    /// The summary that stands for the older part.
    pub fn generation(&self) -> Option<&Generation> {
        self.generation.as_ref()
    }

    /// The items behind the summary.
    pub fn uncovered(&self) -> &[Item] {
        &self.committed[self.covered..]
    }

    /// The pieces of logs behind the summary.
    pub fn uncovered_spans(&self) -> Vec<Span> {
        let spans = self.spans();
        let through = self.generation.as_ref().map(|generation| &generation.at.through);
        match through.and_then(|through| behind(&spans, through)) {
            Some((_, rest)) => rest,
            None => spans,
        }
    }

    /// Where the items behind the summary can be cut; what has arrived since is part of the list, and no cut lies in it.
    pub fn uncovered_cuts(&self) -> Vec<usize> {
        let uncovered = self.uncovered();
        let drafts = self.safe.iter().chain(&self.unvalidated).map(|draft| &draft.body);
        let bodies: Vec<&ItemBody> = uncovered.iter().map(|item| &item.body).chain(drafts).collect();
        let pending: BTreeSet<&CallId> = self.open.iter().map(|open| &open.pending.call).collect();
        let mut cuts = groups::cuts(&bodies, &pending);
        cuts.retain(|cut| *cut < uncovered.len());
        cuts
    }

    /// Takes a new summary over: what it stands for is not shown from here on, and reasoning that followed it is bound to
    /// another view (C33). Without effect if it is none of this view.
    pub fn take_generation(&mut self, generation: Generation, opener: Option<Item>) {
        let Some((covered, _)) = behind(&self.spans(), &generation.at.through) else { return };
        self.covered = covered.saturating_sub(self.unread).min(self.committed.len());
        self.omitted = 0;
        self.generation = Some(generation);
        self.opener = opener;
        self.view_changed();
    }

    /// What has been thought up to here was thought of another view.
    pub fn view_changed(&mut self) {
        self.prune.since_turn = self.prune.since_turn.max(self.next_turn);
    }

    /// After a rewind: `generation` is the newest one that is left.
    pub fn fall_back(&mut self, generation: Option<Generation>, opener: Option<Item>) {
        let spans = self.spans();
        let through = generation.as_ref().and_then(|generation| behind(&spans, &generation.at.through));
        self.covered = through.map_or(0, |(covered, _)| covered).saturating_sub(self.unread);
        self.covered = self.covered.min(self.committed.len());
        self.omitted = 0;
        if self.generation.as_ref().map(|it| &it.at) != generation.as_ref().map(|it| &it.at) {
            self.view_changed();
        }
        self.generation = generation;
        self.opener = opener;
    }

    /// Leaves the oldest groups out of this slice's requests until what is left of the history has at most `budget`
    /// tokens, the summary and what has just arrived included. False if nothing is left that fits; then nothing changes.
    pub fn omit_to_fit(&mut self, budget: u64) -> bool {
        let names = Names::of_calls(self);
        let arrived = self.draft_tokens().saturating_add(self.summary_tokens());
        let Some(room) = budget.checked_sub(arrived.saturating_add(tokens::of_bytes(wording::OMITTED.len())))
        else {
            return false;
        };
        let costs: Vec<u64> =
            self.uncovered().iter().map(|item| self.cost(item, self.prune, &names)).collect();
        let mut left: u64 = costs.iter().sum();
        let cuts = self.uncovered_cuts();
        let everything = self.droppable();
        let mut dropped = 0;
        let fits = std::iter::once(0).chain(cuts).chain(everything).find(|cut| {
            left = left.saturating_sub(costs[dropped..*cut].iter().sum());
            dropped = *cut;
            left <= room
        });
        let Some(cut) = fits else { return false };
        self.omit(cut);
        true
    }

    /// Leaves everything out that can go without what has just arrived.
    pub fn omit_all(&mut self) {
        if let Some(cut) = self.droppable().or_else(|| self.uncovered_cuts().pop()) {
            self.omit(cut);
        }
    }

    fn omit(&mut self, cut: usize) {
        if self.covered + cut > self.first_shown() {
            self.omitted = self.covered + cut;
            self.view_changed();
        }
    }

    /// All that is behind the summary, if what has just arrived can stand alone.
    fn droppable(&self) -> Option<usize> {
        (self.draft_count() > 0 && self.open_into_drafts().is_none()).then_some(self.uncovered().len())
    }

    /// Items in front that requests of this slice do not hold.
    pub fn omitted(&self) -> usize {
        self.first_shown()
    }

    /// Whether requests of this slice leave something out that no summary stands for.
    pub fn omits(&self) -> bool {
        self.omitted > self.covered
    }

    /// The first call whose result has only just arrived.
    fn open_into_drafts(&self) -> Option<&CallId> {
        self.safe
            .iter()
            .chain(&self.unvalidated)
            .flat_map(|draft| &draft.settles)
            .map(|call| &call.call)
            .next()
    }

    /// What is shown in front of the items in hand.
    pub(super) fn shown_in_front(&self, with: Front) -> Vec<Cow<'_, ItemBody>> {
        let mut front = Vec::new();
        if let Some(generation) = &self.generation {
            front.extend(in_front(generation, with).into_iter().map(Cow::Owned));
            front.extend(self.opener.as_ref().map(|opener| Cow::Borrowed(&opener.body)));
        }
        if self.omits() {
            let omitted = self.committed[self.covered..self.omitted].iter();
            let standing = omitted.filter_map(|item| standing_instructions(&item.body));
            let standing = standing.map(|text| note(text, SyntheticReason::ProjectInstructions));
            front.extend(standing.map(Cow::Owned));
            front.push(Cow::Owned(note(wording::OMITTED.to_owned(), SyntheticReason::OmissionNote)));
            // Of the running turn the opener stays in any case.
            let opens = |item: &&Item| item.facts.opens_turn;
            let shown = self.committed[self.omitted..].iter().any(|item| item.facts.opens_turn);
            let arrived = self.safe.iter().chain(&self.unvalidated).any(|draft| draft.opens_turn);
            let opener = self.committed[self.covered..self.omitted].iter().rfind(opens);
            front.extend(opener.filter(|_| !shown && !arrived).map(|item| Cow::Borrowed(&item.body)));
        }
        front
    }

    /// The first committed item in hand that is shown.
    pub(super) fn first_shown(&self) -> usize {
        self.covered.max(self.omitted)
    }

    /// Estimated tokens of what stands for the older part.
    pub(super) fn summary_tokens(&self) -> u64 {
        let Some(generation) = &self.generation else { return 0 };
        let kept = generation.system.iter().chain(&generation.instructions);
        let system: usize = kept.map(String::len).sum();
        let opener = self.opener.as_ref().map_or(0, |opener| tokens::of_item(&opener.body, opener.raw.len()));
        let summary = match self.checkpoint_sent() {
            Some(items) => items.iter().map(|item| item.get().len()).sum(),
            None => wording::summary(&generation.text).len(),
        };
        tokens::of_bytes(summary + system).saturating_add(opener)
    }

    /// The same, for people.
    pub fn summary_size(&self) -> u64 {
        self.summary_tokens()
    }

    /// Estimated tokens of what has just arrived.
    pub fn arrived_tokens(&self) -> u64 {
        self.draft_tokens()
    }

    /// What is not committed yet costs.
    fn draft_tokens(&self) -> u64 {
        self.safe.iter().chain(&self.unvalidated).map(super::context::draft_tokens).sum()
    }

    /// How much is not committed yet.
    fn draft_count(&self) -> usize {
        self.safe.len() + self.unvalidated.len()
    }

    /// Takes in a call that the items in hand do not hold.
    pub fn know_call(&mut self, call: ToolCallItem) {
        self.known_calls.insert(call.call_id.clone(), call);
    }

    /// Whether there are items that were not read.
    pub fn has_unread(&self) -> bool {
        self.unread > 0
    }

    /// How many.
    pub fn unread(&self) -> usize {
        self.unread
    }

    /// The opener of the turn that the summary ends in.
    pub fn covered_opener(&self) -> Option<&Item> {
        self.opener.as_ref()
    }

    /// What the summary is, for META.
    pub fn pointer(&self) -> Option<&Pointer> {
        self.generation.as_ref().map(|generation| &generation.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::render::RenderOptions;
    use crate::history::request::RequestMessage;
    use crate::message::{Epoch, Seq, ThreadId};
    use crate::model::Mechanism;
    use crate::store::{GenerationId, Loaded, Meta, Native, Position};

    #[test]
    fn f22_f23_90_a_summary_alone_ends_on_a_users_message_behind_one_system_entry() {
        let thread = ThreadId::from("t");
        let block = RawJson::parse(r#"{"type":"compaction"}"#).unwrap();
        let through = Position { thread: thread.clone(), epoch: Epoch(0), seq: Seq(4) };
        let id = GenerationId { thread: thread.clone(), epoch: Epoch(0), number: 1 };
        let generation = Generation {
            at: Pointer { id, through, opener: None },
            text: "all of it".into(),
            digest: String::new(),
            parent: None,
            system: vec!["be kind".into()],
            instructions: Vec::new(),
            model: "m".into(),
            partial: false,
            source_tokens: 9,
            created_at_ms: 0,
            native: Some(Native::new(
                Mechanism::AnthropicOnDemand,
                "r".into(),
                None,
                "all of it",
                vec![block],
            )),
        };
        let meta = Meta { head: Seq(5), ..Meta::new_root(thread.clone(), "a", None, 0) };
        let loaded =
            Loaded { meta: Some(meta), generation: Some(generation), unread: 4, ..Loaded::default() };
        let mut history = History::new(thread, loaded);
        let options = RenderOptions { system: Some("be brief".into()), ..RenderOptions::default() };
        // A checkpoint with nothing behind it would be a request without a message: the summary is shown.
        for sends in [false, true] {
            history.send_checkpoint(sends);
            let request = history.render_history(&options).unwrap().request;
            assert_eq!(request.system.as_deref(), Some("be brief\n\nbe kind"));
            let [RequestMessage::User(parts)] = &request.messages[..] else { panic!("{request:?}") };
            assert_eq!(ContentPart::join_text(parts), wording::summary("all of it"));
            assert!(request.checkpoint.is_empty());
        }
    }
}
