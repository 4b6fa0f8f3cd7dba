//! The vocabulary of dormouse: ids, queue messages, content parts and items.
//!
//! Nothing here does I/O or decides anything about a conversation; that is `history`. The queue formats are
//! frozen (`tests/golden/`), since other people's producers and consumers speak them.

mod content;
mod ids;
mod input;
mod item;
pub mod json;
mod output;

pub use content::{ContentPart, ImageData, is_blank};
pub use ids::{CallId, DedupId, Epoch, ItemId, MessageId, Seq, ThreadId};
pub use input::{
    ClaimCheck, InputContent, InputError, InputMessage, OAuthRequired, Synthetic, ToolResultInput,
    Undeliverable, UserChoiceAnswer, UserChoiceRequired,
};
pub use item::{
    AssistantItem, BackendToolCallItem, EventItem, InterruptItem, Item, ItemBody, ItemFacts, LeftOut,
    Outcome, RESERVED_EVENT_TOOL, ReasoningItem, SPAWN_TOOL, SettledBy, SyntheticReason, SystemItem,
    ToolCallItem, ToolResultItem, UserItem,
};
pub use json::RawJson;
pub use output::{OutputKind, OutputMessage, TypedOutput};
