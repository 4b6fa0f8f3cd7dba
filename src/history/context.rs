//! How much of a model's window the next request fills.

use super::prune::Names;
use super::{Draft, History};
use crate::message::tokens;
use crate::model::Usage;

/// A number of tokens, and what it rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextTokens {
    /// The number.
    pub tokens: u64,
    /// How it was found.
    pub kind: EstimateKind,
}

/// What a number of tokens rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EstimateKind {
    /// The provider's count of the last response, and an estimate of what has come since.
    Provider,
    /// A quarter of all bytes.
    Bytes4,
}

impl EstimateKind {
    /// The word for it in logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Provider => "provider",
            Self::Bytes4 => "bytes4",
        }
    }
}

impl History {
    /// Tokens of the next request. `usage` is what the provider counted for the last response *of this view*: whoever
    /// changes the view forgets it. What that response said is in the count already; only what stands behind it is added.
    /// Without a count everything is estimated, and `fixed` are the tokens of the system prompt and the tools.
    pub fn context_tokens(&self, usage: Option<Usage>, fixed: u64) -> ContextTokens {
        let names = Names::of_calls(self);
        let committed = self.committed.iter().map(|item| (&item.body, self.cost(item, self.prune(), &names)));
        let drafts = self.safe.iter().chain(&self.unvalidated);
        let all: Vec<_> = committed.chain(drafts.map(|draft| (&draft.body, draft_tokens(draft)))).collect();
        let (from, counted, kind) = match usage {
            Some(usage) => {
                let last = all.iter().rposition(|(body, _)| body.is_output());
                let counted = usage.input.saturating_add(usage.output);
                (last.map_or(0, |last| last + 1), counted, EstimateKind::Provider)
            }
            None => (0, fixed, EstimateKind::Bytes4),
        };
        let tokens = all[from..].iter().fold(counted, |sum, (_, tokens)| sum.saturating_add(*tokens));
        ContextTokens { tokens, kind }
    }

    /// The number alone.
    pub fn size(&self, usage: Option<Usage>, fixed: u64) -> u64 {
        self.context_tokens(usage, fixed).tokens
    }
}

fn draft_tokens(draft: &Draft) -> u64 {
    tokens::of_item(&draft.body, draft.body.to_raw().len())
}
