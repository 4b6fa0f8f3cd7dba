//! The turn buffer: the response being streamed, not yet part of the history.
//!
//! Consecutive pieces of text merge, also pieces of reasoning. What follows a call is dropped, other calls
//! excepted: a response that goes on after its calls answers results it has not seen.

use crate::message::{AssistantItem, ItemBody, RawJson, ReasoningItem, is_blank};
use crate::model::ModelEvent;

/// Parts of one response beside its calls; more merge into the last one. Keeps a step within one commit.
pub const MAX_PARTS: usize = 10;

/// Calls that are taken of one response: those that a step may hold and a few that are answered with an
/// error, so that the model learns the bound. What a model calls beyond them is dropped: a response without
/// end would not fit one commit, and its thread would never come to rest.
pub const MAX_BUFFERED_CALLS: usize = super::MAX_CALLS + 2;

/// A part of the response so far.
#[derive(Clone, Debug, PartialEq)]
pub enum TurnPart {
    /// Visible text.
    Text(String),
    /// Reasoning; `sealed` once the provider's own form of it arrived.
    Reasoning {
        /// Readable text.
        text: String,
        /// Signature or encrypted content.
        signature: Option<String>,
        /// The provider's block.
        provider: Option<RawJson>,
        /// Whether more text would begin another reasoning.
        sealed: bool,
    },
    /// A call.
    Call {
        /// The provider's id.
        provider_id: String,
        /// The tool.
        name: String,
        /// The arguments as received.
        arguments: String,
        /// The provider's signature.
        signature: Option<String>,
    },
}

/// The response so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TurnBuffer {
    parts: Vec<TurnPart>,
}

impl TurnBuffer {
    /// Takes one event of the stream; the terminal event changes nothing here.
    pub fn push(&mut self, event: &ModelEvent) {
        match event {
            ModelEvent::Text(text) => self.text(text),
            ModelEvent::ReasoningText(text) => self.reasoning(text),
            ModelEvent::ReasoningBlock { signature, provider } => self.seal(signature, provider),
            ModelEvent::ToolCall { .. } if self.calls() >= MAX_BUFFERED_CALLS => {}
            ModelEvent::ToolCall { provider_id, name, arguments, signature } => {
                self.parts.push(TurnPart::Call {
                    provider_id: provider_id.clone(),
                    name: name.clone(),
                    arguments: arguments.clone(),
                    signature: signature.clone(),
                });
            }
            ModelEvent::End { .. } => {}
        }
    }

    fn calls(&self) -> usize {
        self.parts.iter().filter(|part| matches!(part, TurnPart::Call { .. })).count()
    }

    fn has_call(&self) -> bool {
        self.calls() > 0
    }

    fn text(&mut self, more: &str) {
        if self.has_call() || more.is_empty() {
            return;
        }
        let length = self.parts.len();
        let full = length >= MAX_PARTS;
        let last_text = self.parts.iter_mut().enumerate().rev().find_map(|(at, part)| match part {
            TurnPart::Text(text) => Some((at, text)),
            TurnPart::Reasoning { .. } | TurnPart::Call { .. } => None,
        });
        match last_text {
            Some((at, text)) if full || at + 1 == length => text.push_str(more),
            Some(_) | None => self.parts.push(TurnPart::Text(more.to_owned())),
        }
    }

    fn reasoning(&mut self, more: &str) {
        if self.has_call() || more.is_empty() {
            return;
        }
        if let Some(TurnPart::Reasoning { text, sealed: false, .. }) = self.parts.last_mut() {
            text.push_str(more);
        } else if self.parts.len() < MAX_PARTS {
            self.parts.push(TurnPart::Reasoning {
                text: more.to_owned(),
                signature: None,
                provider: None,
                sealed: false,
            });
        }
    }

    fn seal(&mut self, new_signature: &Option<String>, new_provider: &Option<RawJson>) {
        // A signature may come at the end of the stream, behind text and calls: it belongs to the last
        // reasoning that has none.
        let unsealed = self.parts.iter_mut().rev().find_map(|part| match part {
            TurnPart::Reasoning { signature, provider, sealed, .. } if !*sealed => {
                Some((signature, provider, sealed))
            }
            TurnPart::Reasoning { .. } | TurnPart::Text(_) | TurnPart::Call { .. } => None,
        });
        if let Some((signature, provider, sealed)) = unsealed {
            signature.clone_from(new_signature);
            provider.clone_from(new_provider);
            *sealed = true;
        } else if !self.has_call() && self.parts.len() < MAX_PARTS {
            self.parts.push(TurnPart::Reasoning {
                text: String::new(),
                signature: new_signature.clone(),
                provider: new_provider.clone(),
                sealed: true,
            });
        }
    }

    /// Whether nothing was streamed.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The parts so far.
    pub fn parts(&self) -> &[TurnPart] {
        &self.parts
    }

    /// Drops trailing reasoning and blank text: what is committed never ends on reasoning.
    pub fn trim_trailing_reasoning(&mut self) {
        while let Some(part) = self.parts.last() {
            match part {
                TurnPart::Reasoning { .. } => {}
                TurnPart::Text(text) if is_blank(text) => {}
                TurnPart::Text(_) | TurnPart::Call { .. } => return,
            }
            self.parts.pop();
        }
    }

    /// Takes all parts out.
    pub fn take(&mut self) -> Vec<TurnPart> {
        std::mem::take(&mut self.parts)
    }

    /// Text and reasoning as item bodies, for a client that attaches in mid-stream.
    pub fn view(&self, model: &str) -> Vec<ItemBody> {
        self.parts.iter().filter_map(|part| part_body(part, model, None)).collect()
    }
}

/// A part beside the calls as an item body; blank text is none (F27).
pub(super) fn part_body(part: &TurnPart, model: &str, stop_reason: Option<&str>) -> Option<ItemBody> {
    match part {
        TurnPart::Text(text) if is_blank(text) => None,
        TurnPart::Text(text) => Some(ItemBody::Assistant(AssistantItem {
            text: text.clone(),
            model: model.to_owned(),
            stop_reason: stop_reason.map(str::to_owned),
        })),
        TurnPart::Reasoning { text, signature, provider, .. } => Some(ItemBody::Reasoning(ReasoningItem {
            model: model.to_owned(),
            text: text.clone(),
            signature: signature.clone(),
            provider: provider.clone(),
        })),
        TurnPart::Call { .. } => None,
    }
}
