//! What was sent to the input queue, by whom, and what may become of it.

use std::collections::{BTreeMap, BTreeSet};

use dormouse::message::{CallId, DedupId, InputContent, InputMessage, Synthetic, ThreadId};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A person's text or image.
    Text {
        order: usize,
        token: String,
        /// To be refused where the user sees it: it is blank, or names an agent that does not exist.
        refusable: bool,
    },
    Result {
        call: CallId,
    },
    Event {
        call: CallId,
    },
    Consent {
        call: CallId,
    },
    Choice {
        call: CallId,
    },
    Release,
    /// Asks for a compaction.
    Compact,
    /// Says that a compaction has ended.
    Compacted,
    /// The drain's word of a message that died.
    Undeliverable,
    /// A body that nobody can read.
    Junk,
}

impl Kind {
    /// Of a message that a slice or a tool sends.
    pub fn of(message: &InputMessage) -> Self {
        match (&message.content, &message.synthetic) {
            (InputContent::ToolResult(result), None) => Self::Result { call: result.id.clone() },
            (_, Some(Synthetic::SubscriptionEvent { tool_call_id, .. })) => {
                Self::Event { call: tool_call_id.clone() }
            }
            (InputContent::OAuthRequired(oauth), _) => Self::Consent { call: oauth.id.clone() },
            (InputContent::UserChoiceRequired(choice), _) => Self::Choice { call: choice.id.clone() },
            (InputContent::Release, _) => Self::Release,
            (InputContent::Compact(_), _) => Self::Compact,
            (InputContent::CompactionComplete(_), _) => Self::Compacted,
            (InputContent::Undeliverable(_), _) => Self::Undeliverable,
            _ => Self::Junk,
        }
    }
}

#[derive(Default)]
pub struct Sent {
    inputs: BTreeMap<(ThreadId, DedupId), (Kind, String)>,
    /// Of these a message went to the dead-letter queue; another one may have been sent under the same id.
    died: BTreeSet<(ThreadId, DedupId)>,
}

impl Sent {
    pub fn add(&mut self, group: &ThreadId, dedup: &DedupId, kind: Kind, body: String) {
        self.inputs.entry((group.clone(), dedup.clone())).or_insert((kind, body));
    }

    pub fn dies(&mut self, group: &ThreadId, dedup: &DedupId) {
        self.died.insert((group.clone(), dedup.clone()));
    }

    pub fn has_died(&self, group: &ThreadId, dedup: &DedupId) -> bool {
        self.died.contains(&(group.clone(), dedup.clone()))
    }

    pub fn get(&self, group: &ThreadId, dedup: &DedupId) -> Option<&Kind> {
        self.inputs.get(&(group.clone(), dedup.clone())).map(|(kind, _)| kind)
    }

    pub fn nth(&self, n: usize) -> Option<(&ThreadId, &DedupId, &str)> {
        self.inputs.iter().nth(n).map(|((group, dedup), (_, body))| (group, dedup, body.as_str()))
    }

    pub fn len(&self) -> usize {
        self.inputs.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&ThreadId, &DedupId, &Kind)> {
        self.inputs.iter().map(|((group, dedup), (kind, _))| (group, dedup, kind))
    }
}
