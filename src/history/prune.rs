//! Pruning: old tool results are shown short, and very old ones as a placeholder that says how to read them again.
//! Nothing stored changes (I8): the prune is an overlay of two boundaries that only move forward, in batches at the
//! start of a turn, so that between two batches every request begins with the same bytes.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::{History, wording};
use crate::message::{
    CallId, ContentPart, Item, ItemBody, Outcome, ToolResultItem, excerpt, text_chars, tokens,
};
use crate::model::Usage;
use crate::store::Prune;

/// Turns that are never touched: the current one and the two before it.
const KEEP_TURNS: u32 = 3;
/// The age, in turns, from which a result is cleared.
const CLEAR_AGE: u32 = 10;
/// The least that a batch frees, in tokens.
const MIN_FREED: u64 = 4_000;

/// Characters that stay of a failure.
const KEPT_CHARS: usize = 200;

impl History {
    /// What a model is shown of a committed item: shortened, cleared, or, for reasoning from before the last change of
    /// the view, nothing.
    pub(super) fn pruned<'a>(&self, item: &'a Item, names: &Names<'_>) -> Option<Cow<'a, ItemBody>> {
        let turn = item.facts.turn;
        match &item.body {
            ItemBody::ToolResult(result) if turn < self.prune.hard_before => {
                let chars = item.facts.excerpt_of.unwrap_or_else(|| text_chars(&result.parts));
                Some(Cow::Owned(cleared(result, names.of(&result.call_id), chars)))
            }
            ItemBody::ToolResult(result) if turn < self.prune.soft_before => {
                Some(match excerpt(&result.parts) {
                    Some(parts) => Cow::Owned(ItemBody::ToolResult(ToolResultItem {
                        parts,
                        display_as: None,
                        ..result.clone()
                    })),
                    None => Cow::Borrowed(&item.body),
                })
            }
            // It is bound to what it followed (C33).
            ItemBody::Reasoning(_) if turn < self.prune.since_turn => None,
            body => Some(Cow::Borrowed(body)),
        }
    }

    /// The overlay, as the next commit writes it.
    pub fn prune(&self) -> Prune {
        self.prune
    }

    /// Moves the boundaries if a turn begins, the request is above half of the `window`, and that frees enough; says
    /// whether it did. `usage` is what the provider counted for the last response, `fixed` the tokens of the system
    /// prompt and the tools.
    pub fn prune_at_turn_start(&mut self, window: u64, usage: Option<Usage>, fixed: u64) -> bool {
        let begins = self.safe.iter().chain(&self.unvalidated).any(|draft| draft.opens_turn);
        if !begins || window == 0 {
            return false;
        }
        let current = self.current_turn();
        let size = self.context_tokens(usage, fixed).tokens;
        if size <= window / 2 {
            return false;
        }
        let names = Names::of_calls(self);
        let whole = Prune {
            soft_before: current.saturating_sub(KEEP_TURNS - 1).max(self.prune.soft_before),
            hard_before: current.saturating_sub(CLEAR_AGE - 1).max(self.prune.hard_before),
            since_turn: current,
        };
        // What each turn gives, once: a long thread is not looked through for each of its turns.
        let mut by_turn: BTreeMap<u32, u64> = BTreeMap::new();
        for item in &self.committed {
            let gain = self.cost(item, self.prune, &names).saturating_sub(self.cost(item, whole, &names));
            // Reasoning goes with the change itself, however far that reaches.
            let turn = if matches!(item.body, ItemBody::Reasoning(_)) { 0 } else { item.facts.turn };
            *by_turn.entry(turn).or_default() += gain;
        }
        if by_turn.values().sum::<u64>() < MIN_FREED.max(window / 20) {
            return false;
        }
        // Oldest first, no further than needed.
        let enough = size.saturating_sub(window / 5 * 2);
        let mut freed: u64 = 0;
        let reached = by_turn.into_iter().find(|(_, gain)| {
            freed = freed.saturating_add(*gain);
            freed >= enough
        });
        let before = reached.map_or(u32::MAX, |(turn, _)| turn.saturating_add(1));
        self.prune = Prune {
            soft_before: before.clamp(self.prune.soft_before, whole.soft_before),
            hard_before: before.clamp(self.prune.hard_before, whole.hard_before),
            since_turn: current,
        };
        true
    }

    /// After a rewind nothing is pruned that is no longer there.
    pub(super) fn clamp_prune(&mut self) {
        let Prune { soft_before, hard_before, since_turn } = self.prune;
        self.prune = Prune {
            soft_before: soft_before.min(self.next_turn),
            hard_before: hard_before.min(self.next_turn),
            since_turn: since_turn.min(self.next_turn),
        };
    }

    /// What the item costs under an overlay.
    pub(super) fn cost(&self, item: &Item, prune: Prune, names: &Names<'_>) -> u64 {
        let turn = item.facts.turn;
        let whole = || match item.facts.est_tokens {
            0 => tokens::of_item(&item.body, item.raw.len()),
            estimate => u64::from(estimate),
        };
        match &item.body {
            ItemBody::ToolResult(result) if turn < prune.hard_before => {
                let placeholder = cleared(result, names.of(&result.call_id), text_chars(&result.parts));
                tokens::of_bytes(placeholder.to_raw().len()).min(whole())
            }
            ItemBody::ToolResult(result) if turn < prune.soft_before => match excerpt(&result.parts) {
                Some(parts) => tokens::of_bytes(
                    parts.iter().map(|part| ContentPart::join_text(std::slice::from_ref(part)).len()).sum(),
                )
                .min(whole()),
                None if item.facts.excerpt_of.is_some() => tokens::of_bytes(item.raw.len()),
                None => whole(),
            },
            ItemBody::Reasoning(_) if turn < prune.since_turn => 0,
            _ => whole(),
        }
    }
}

/// The tools of calls, for placeholders.
#[derive(Default)]
pub(super) struct Names<'a>(BTreeMap<&'a CallId, &'a str>);

impl<'a> Names<'a> {
    /// Of a history whose overlay clears anything, or is about to.
    pub(super) fn of_calls(history: &'a History) -> Self {
        let calls = history.committed.iter().filter_map(|item| match &item.body {
            ItemBody::ToolCall(call) => Some((&call.call_id, call.name.as_str())),
            _ => None,
        });
        Self(calls.collect())
    }

    fn of(&self, call: &CallId) -> &'a str {
        self.0.get(call).copied().unwrap_or("a tool")
    }
}

/// The placeholder of a result; a failure keeps its first line.
fn cleared(result: &ToolResultItem, tool: &str, chars: usize) -> ItemBody {
    let first_line: Option<String> = match &result.outcome {
        Outcome::Ok | Outcome::Unknown(_) => None,
        Outcome::Error
        | Outcome::Interrupted
        | Outcome::Halted
        | Outcome::Lost
        | Outcome::Refused
        | Outcome::TimedOut
        | Outcome::Truncated => {
            let text = ContentPart::join_text(&result.parts);
            // No longer than an excerpt has it.
            text.lines().next().map(|line| line.chars().take(KEPT_CHARS).collect())
        }
    };
    let text = wording::cleared(tool, result.call_id.as_str(), chars, first_line.as_deref());
    ItemBody::ToolResult(ToolResultItem {
        parts: vec![ContentPart::Text(text)],
        display_as: None,
        ..result.clone()
    })
}
