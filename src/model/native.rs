//! What a provider makes of a conversation itself: a checkpoint, which goes back to it in place of what it stands for.

use serde::{Deserialize, Serialize};

use super::{ModelError, StopReason, Usage};
use crate::message::RawJson;

/// How a checkpoint is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mechanism {
    /// Anthropic, on demand: a signed block whose text is the summary.
    AnthropicOnDemand,
    /// OpenAI, `/responses/compact`: the user's messages and an encrypted item, which nobody else can read.
    OpenaiCompact,
    /// One that a newer version knows.
    #[serde(other)]
    Unknown,
}

impl Mechanism {
    /// Whether the checkpoint says in words what it stands for. One that does not needs a summary beside it.
    pub fn is_readable(self) -> bool {
        match self {
            Self::AnthropicOnDemand => true,
            Self::OpenaiCompact | Self::Unknown => false,
        }
    }
}

/// How a provider compacts a conversation itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeRoute {
    /// How.
    pub mechanism: Mechanism,
    /// Provider, address, model and credentials, as one name: a checkpoint goes back on the same route only.
    pub route: String,
}

/// A provider's checkpoint of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// What it says, if it can be read.
    pub text: Option<String>,
    /// What goes back, as it came.
    pub items: Vec<RawJson>,
    /// What it cost.
    pub usage: Option<Usage>,
}

/// Why there is no checkpoint.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NoCheckpoint {
    /// The call failed.
    #[error(transparent)]
    Failed(#[from] ModelError),
    /// It ended without one.
    #[error("the response ended with {}", .0.as_str())]
    Stopped(StopReason),
}
