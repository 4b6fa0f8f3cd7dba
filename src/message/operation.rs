//! What somebody asks of a thread itself, beside the conversation. Operations reach a thread as queue messages, like
//! everything that changes it (I6).

use serde::{Deserialize, Serialize};

use super::content::ContentPart;
use super::ids::{Epoch, ItemId, Seq, ThreadId};
use super::json::RawJson;

/// Hides everything from a turn on. Nothing is deleted: the thread goes on in a new log that inherits what is left.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rewind {
    /// From where on.
    pub target: RewindTarget,
    /// What the sender saw: a thread that has moved since is left alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<Seen>,
    /// What happens then; absent: nothing, the thread waits for its next input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<Then>,
}

/// A turn of a thread: `{"turn":3}`, `{"item":"i0-7"}` or `"last_prompt"`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RewindTarget {
    /// The turn with this index, or the first one behind it. 0 is the first turn.
    Turn(u32),
    /// The turn that this item opens.
    Item(ItemId),
    /// The turn of the last message that a person has written.
    LastPrompt,
}

/// Where a thread stood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Its log.
    pub epoch: Epoch,
    /// The seq its next item would have got.
    pub head: Seq,
}

/// What follows a rewind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Then {
    /// The user says this in place of what is hidden (an edit).
    Say(Vec<ContentPart>),
    /// The turn's own opener stays, and the model answers it again (a reload).
    AnswerAgain,
}

/// Makes the thread that it reaches: it inherits another one's conversation by reference, and goes its own way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fork {
    /// Whose conversation.
    pub source: ThreadId,
    /// The last turn that is inherited; absent: all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<u32>,
    /// Which of its logs; absent: the one it stands in. An earlier one is a branch that a rewind has hidden.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
}

/// Makes the thread that it reaches of a snapshot, whose items are stored already.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Import {
    /// The log that holds the items.
    pub log: ThreadId,
    /// How many there are.
    pub items: u64,
    /// What the snapshot says of the thread, its items apart.
    pub thread: RawJson,
    /// Branches, each as the pieces of the log that it is made of; the one to go on in last. Empty: all of it is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub branches: Vec<Vec<Piece>>,
    /// The epoch of the first branch.
    #[serde(default, skip_serializing_if = "Epoch::is_first")]
    pub first: Epoch,
}

/// A piece of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Behind this seq.
    pub from: Seq,
    /// Up to this one.
    pub to: Seq,
}

/// Asks for the older part of a thread to be summarised.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compact {
    /// A person asks: whatever has failed before is tried again, and the answer is told.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub manual: bool,
    /// What to keep more of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub focus: Option<String>,
}

/// How a compaction beside a thread has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompactionReport {
    /// Summaries that were made.
    #[serde(default)]
    pub chunks: u32,
    /// Why there are no more; no content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// It was asked for by a person.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub manual: bool,
    /// Nothing more is tried by itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gave_up: bool,
}
