//! The vocabulary of dormouse: ids, queue messages, content parts and items.
//!
//! Nothing here does I/O or decides anything about a conversation; that is `history`. The queue formats are
//! frozen (`tests/golden/`), since other people's producers and consumers speak them.

mod content;
mod excerpt;
mod ids;
mod input;
mod item;
pub mod json;
mod operation;
mod output;
mod recurrence;
mod run;
pub mod tokens;

pub use content::{ContentPart, ImageData, is_blank};
pub use excerpt::{excerpt, excerpt_of, text_chars};
pub use ids::{CallId, DedupId, Epoch, ItemId, MessageId, Seq, ThreadId};
pub use input::{
    ClaimCheck, InputContent, InputError, InputMessage, OAuthRequired, Resend, Synthetic, ToolResultInput,
    Undeliverable, UserChoiceAnswer, UserChoiceRequired,
};
pub use item::{
    AssistantItem, BackendToolCallItem, EditedCall, EventItem, InterruptItem, Item, ItemBody, ItemFacts,
    LeftOut, MAX_STATE_BYTES, MAX_STATE_DEPTH, Outcome, RESERVED_EVENT_TOOL, ReasoningItem, SPAWN_TOOL,
    SettledBy, StateItem, SyntheticReason, SystemItem, ToolCallItem, ToolResultItem, UserItem,
};
pub use json::RawJson;
pub use operation::{Compact, CompactionReport, Fork, Import, Piece, Rewind, RewindTarget, Seen, Then};
pub use output::{OutputKind, OutputMessage, TypedOutput};
pub use recurrence::{Firing, Recurrence, RecurrenceError, instant};
pub use run::{ResumeAnswer, RunRecord, RunRequest};
