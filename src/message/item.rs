//! Items: the entries of a thread's flat history.
//!
//! An item is stored as raw JSON text with a `kind`; the typed view beside it is read from that text and never
//! written back over it, so unknown fields and kinds of a newer version survive (I8).

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::content::ContentPart;
use super::ids::{CallId, DedupId, ItemId, MessageId, Seq};
use super::json::RawJson;
use super::tokens;

/// The tool that makes a child; a child's rows begin with a call of it.
pub const SPAWN_TOOL: &str = "spawn_thread";
/// The call that stands for an incoming event; only the runtime writes it.
pub const RESERVED_EVENT_TOOL: &str = "receive_event__injected";

/// One entry of a history: its position, its typed body, its stored text and the facts about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// Position in its log.
    pub seq: Seq,
    /// The typed view.
    pub body: ItemBody,
    /// The stored text, byte for byte.
    pub raw: Arc<str>,
    /// What is known about it beside its content.
    pub facts: ItemFacts,
}

/// Facts stored beside an item.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ItemFacts {
    /// The dedup id it arrived under; none for what the runtime minted.
    pub dedup: Option<DedupId>,
    /// The queue message that brought it about.
    pub cause: Option<MessageId>,
    /// Turn index, the rewind coordinate.
    pub turn: u32,
    /// The opener of its turn.
    pub turn_id: Option<ItemId>,
    /// Whether it opens a turn.
    pub opens_turn: bool,
    /// The principal on whose behalf it was written.
    pub user: Option<String>,
    /// Milliseconds since the epoch; shown, never used to order.
    pub created_at_ms: i64,
    /// Estimated tokens: bytes / 4, rounded up.
    pub est_tokens: u32,
    /// Its content is stored but never shown to a model: requests hold a placeholder.
    pub left_out: Option<LeftOut>,
    /// What is in hand is an excerpt, of a text of so many characters.
    pub excerpt_of: Option<usize>,
    /// Facts of a newer version; only where a whole history was read.
    pub extra: serde_json::Map<String, Value>,
}

/// Why an item's content is left out of every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftOut {
    /// It does not fit the model's window.
    TooLarge,
    /// The model's provider refuses it.
    Refused,
}

impl LeftOut {
    /// The stored tag.
    pub fn tag(self) -> &'static str {
        match self {
            Self::TooLarge => "too_large",
            Self::Refused => "refused",
        }
    }

    /// Reads a stored tag; one of a newer version hides the content as well.
    pub fn from_tag(tag: &str) -> Self {
        match tag {
            "too_large" => Self::TooLarge,
            _ => Self::Refused,
        }
    }
}

/// What an item is.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ItemBody {
    /// A system entry.
    System(SystemItem),
    /// User-role content, typed by a person or synthetic.
    User(UserItem),
    /// Text of the model.
    Assistant(AssistantItem),
    /// A tool call of the model.
    ToolCall(ToolCallItem),
    /// The one result of a call.
    ToolResult(ToolResultItem),
    /// A tool that the provider ran itself.
    BackendToolCall(BackendToolCallItem),
    /// Reasoning of the model, before its assistant item or calls.
    Reasoning(ReasoningItem),
    /// A call was settled by user text.
    Interrupt(InterruptItem),
    /// An injected call with its result: an event, a report, a parent's message.
    Event(EventItem),
    /// What the user's application and the agent share from here on; no part of any request.
    State(StateItem),
    /// A kind of a newer version, or a row that does not parse: kept, never sent.
    #[serde(untagged)]
    Unknown {
        /// The `kind`, or why the row was not read.
        kind: String,
    },
}

/// A system entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SystemItem {
    /// The text.
    pub text: String,
}

/// User-role content.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UserItem {
    /// Text and images.
    pub parts: Vec<ContentPart>,
    /// Why the runtime wrote it; none for a person's message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synthetic_reason: Option<SyntheticReason>,
    /// How the turn before was cut short by a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prior_turn_interrupt: Option<String>,
    /// Who speaks, where several people share a thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// What a person has changed of a call; its note is among the parts.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub edited: Option<EditedCall>,
}

/// Arguments with which a call goes out in place of the model's own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EditedCall {
    /// The call.
    pub call_id: CallId,
    /// The text of a JSON object.
    pub arguments: String,
}

/// Text of the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AssistantItem {
    /// The text, never blank.
    pub text: String,
    /// The model that wrote it.
    pub model: String,
    /// Why it stopped.
    #[serde(default)]
    pub stop_reason: Option<String>,
}

/// A tool call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCallItem {
    /// dormouse's id of the call.
    pub call_id: CallId,
    /// The provider's spelling; may repeat, may be empty.
    #[serde(default)]
    pub provider_id: String,
    /// The tool.
    pub name: String,
    /// The arguments as received, as text: they may be malformed.
    pub arguments: String,
    /// The provider's signature of the call itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
    /// The model that called.
    #[serde(default)]
    pub model: String,
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The tool answered.
    Ok,
    /// The tool, or the way to it, failed.
    Error,
    /// Settled by an input that arrived in between.
    Interrupted,
    /// The runtime stopped: deadline, budget, closed.
    Halted,
    /// Unknown whether it ran.
    Lost,
    /// Not permitted; it did not run.
    Refused,
    /// No answer in time; it may still finish.
    TimedOut,
    /// The model's output stopped inside the step; it did not run.
    Truncated,
    /// An outcome of a newer version.
    #[serde(untagged)]
    Unknown(String),
}

/// Who gave a call its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SettledBy {
    /// The tool.
    Tool,
    /// dormouse: a later real result is *late*.
    Runtime,
}

/// The one result of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolResultItem {
    /// The call.
    pub call_id: CallId,
    /// How it ended.
    pub outcome: Outcome,
    /// What the model is shown; may be blank.
    pub parts: Vec<ContentPart>,
    /// Who settled it.
    pub settled_by: SettledBy,
    /// How a client may show it, as received; never given to the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_as: Option<RawJson>,
}

/// A tool that the provider ran itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BackendToolCallItem {
    /// The provider's tool type.
    pub tool_type: String,
    /// The provider's block, as received.
    pub provider: RawJson,
    /// One line for dialects that have no such type.
    pub summary: String,
}

/// Reasoning of the model: sent back byte for byte to the model that made it, or not at all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReasoningItem {
    /// The model that made it.
    pub model: String,
    /// Readable text, shown to people.
    #[serde(default)]
    pub text: String,
    /// The provider's signature or encrypted content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
    /// The provider's block, as received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<RawJson>,
}

/// A call was settled by user text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InterruptItem {
    /// The call.
    pub call_id: CallId,
}

/// An injected call with its result, in one entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventItem {
    /// The injected call's id, derived from the delivery.
    pub call_id: CallId,
    /// Why.
    pub reason: SyntheticReason,
    /// The tool that subscribed or spawned.
    pub original_tool_name: String,
    /// Its call.
    pub original_tool_call_id: CallId,
    /// Its arguments.
    pub original_args: String,
    /// What arrived.
    pub parts: Vec<ContentPart>,
}

/// Bytes of what an application and an agent share.
pub const MAX_STATE_BYTES: usize = 128 * 1024;
/// Levels of it: it is read inside of other JSON, which has its own bound.
pub const MAX_STATE_DEPTH: usize = 100;

/// What the user's application and the agent share, from here on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateItem {
    /// Any JSON, as it was received.
    pub state: RawJson,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident => $tag:literal, $opens:literal;)*) => {
        /// Why the runtime, not a person, wrote a user-role item.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum SyntheticReason {
            $($(#[$doc])* $name,)*
            /// A tag of a newer version, kept verbatim; a turn boundary, so that no turns merge.
            Unknown(String),
        }

        impl SyntheticReason {
            /// Whether an item with this reason opens a turn, where the stored fact does not say.
            pub fn starts_turn(&self) -> bool {
                match self {
                    $(Self::$name => $opens,)*
                    Self::Unknown(_) => true,
                }
            }

            /// The stored tag.
            pub fn tag(&self) -> &str {
                match self {
                    $(Self::$name => $tag,)*
                    Self::Unknown(tag) => tag,
                }
            }

            /// Reads a stored tag.
            pub fn from_tag(tag: &str) -> Self {
                match tag {
                    $($tag => Self::$name,)*
                    "parent_agent_message" => Self::AgentMessage,
                    other => Self::Unknown(other.to_owned()),
                }
            }
        }
    };
}

reasons! {
    /// A compaction summary and its companions.
    CompactionMeta => "compaction_meta", false;
    /// A runtime note.
    SystemReminder => "system_reminder", false;
    /// Standing instructions of a project.
    ProjectInstructions => "project_instructions", false;
    /// A person's message steered into a running turn.
    Interjection => "interjection", false;
    /// The real result of a call already settled.
    LateResult => "late_result", false;
    /// A person has changed the arguments of a call.
    EditedCall => "edited_call", false;
    /// Something was left out of the view.
    OmissionNote => "omission_note", false;
    /// Text by another agent.
    AgentMessage => "agent_message", true;
    /// A parent's message to its child.
    ParentMessage => "parent_message", true;
    /// A child's report.
    ThreadReport => "thread_report", true;
    /// An outside event.
    SubscriptionEvent => "subscription_event", true;
    /// A timer came due.
    SchedulerFired => "scheduler_fired", true;
}

impl Serialize for SyntheticReason {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.tag())
    }
}

impl<'de> Deserialize<'de> for SyntheticReason {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from_tag(&String::deserialize(deserializer)?))
    }
}

impl ItemBody {
    /// Reads a stored item. Total: what is no known, whole item is [`ItemBody::Unknown`] (I7, I9).
    pub fn parse(raw: &str) -> Self {
        #[derive(Deserialize)]
        struct Tag {
            kind: String,
        }
        fn read<'a, T: Deserialize<'a>>(raw: &'a str, wrap: fn(T) -> ItemBody) -> ItemBody {
            match serde_json::from_str(raw) {
                Ok(item) => wrap(item),
                Err(e) => ItemBody::Unknown { kind: format!("unreadable: {e}") },
            }
        }
        let Ok(Tag { kind }) = serde_json::from_str(raw) else {
            return Self::Unknown { kind: "unreadable: no kind".to_owned() };
        };
        match kind.as_str() {
            "system" => read(raw, Self::System),
            "user" => read(raw, Self::User),
            "assistant" => read(raw, Self::Assistant),
            "tool_call" => read(raw, Self::ToolCall),
            "tool_result" => read(raw, Self::ToolResult),
            "backend_tool_call" => read(raw, Self::BackendToolCall),
            "reasoning" => read(raw, Self::Reasoning),
            "interrupt" => read(raw, Self::Interrupt),
            "event" => read(raw, Self::Event),
            "state" => read(raw, Self::State),
            _ => Self::Unknown { kind },
        }
    }

    /// The text to store.
    pub fn to_raw(&self) -> String {
        // Our own types serialise: their maps have string keys and RawJson holds valid JSON.
        serde_json::to_string(self).expect("bug: an item body serialises")
    }

    /// The stored `kind`.
    pub fn kind(&self) -> &str {
        match self {
            Self::System(_) => "system",
            Self::User(_) => "user",
            Self::Assistant(_) => "assistant",
            Self::ToolCall(_) => "tool_call",
            Self::ToolResult(_) => "tool_result",
            Self::BackendToolCall(_) => "backend_tool_call",
            Self::Reasoning(_) => "reasoning",
            Self::Interrupt(_) => "interrupt",
            Self::Event(_) => "event",
            Self::State(_) => "state",
            Self::Unknown { kind } => kind,
        }
    }

    /// Its content parts; none for what has no room for images.
    pub fn parts(&self) -> &[ContentPart] {
        match self {
            Self::User(user) => &user.parts,
            Self::ToolResult(result) => &result.parts,
            Self::Event(event) => &event.parts,
            Self::System(_)
            | Self::Assistant(_)
            | Self::ToolCall(_)
            | Self::BackendToolCall(_)
            | Self::Reasoning(_)
            | Self::Interrupt(_)
            | Self::State(_)
            | Self::Unknown { .. } => &[],
        }
    }

    /// The same with other content parts, where it has any.
    #[must_use]
    pub fn with_parts(mut self, parts: Vec<ContentPart>) -> Self {
        match &mut self {
            Self::User(user) => user.parts = parts,
            Self::ToolResult(result) => result.parts = parts,
            Self::Event(event) => event.parts = parts,
            Self::System(_)
            | Self::Assistant(_)
            | Self::ToolCall(_)
            | Self::BackendToolCall(_)
            | Self::Reasoning(_)
            | Self::Interrupt(_)
            | Self::State(_)
            | Self::Unknown { .. } => {}
        }
        self
    }

    /// What the user's application and the agent share from here on, if it says so.
    pub fn state(&self) -> Option<&RawJson> {
        match self {
            Self::State(item) => Some(&item.state),
            _ => None,
        }
    }

    /// Whether a model said it.
    pub fn is_output(&self) -> bool {
        match self {
            Self::Assistant(_) | Self::ToolCall(_) | Self::BackendToolCall(_) | Self::Reasoning(_) => true,
            Self::System(_)
            | Self::User(_)
            | Self::ToolResult(_)
            | Self::Interrupt(_)
            | Self::Event(_)
            | Self::State(_)
            | Self::Unknown { .. } => false,
        }
    }

    /// Whether it opens a turn, where the stored fact does not say.
    pub fn starts_turn(&self) -> bool {
        match self {
            Self::User(user) => user.synthetic_reason.as_ref().is_none_or(SyntheticReason::starts_turn),
            Self::Event(event) => event.reason.starts_turn(),
            Self::System(_)
            | Self::Assistant(_)
            | Self::ToolCall(_)
            | Self::ToolResult(_)
            | Self::BackendToolCall(_)
            | Self::Reasoning(_)
            | Self::Interrupt(_)
            | Self::State(_)
            | Self::Unknown { .. } => false,
        }
    }
}

impl Item {
    /// An item as read from its stored text.
    pub fn stored(seq: Seq, raw: impl Into<Arc<str>>, facts: ItemFacts) -> Self {
        let raw = raw.into();
        Self { seq, body: ItemBody::parse(&raw), raw, facts }
    }

    /// An item about to be stored. Estimates its tokens.
    pub fn fresh(seq: Seq, body: ItemBody, mut facts: ItemFacts) -> Self {
        let raw: Arc<str> = body.to_raw().into();
        facts.est_tokens = u32::try_from(tokens::of_item(&body, raw.len())).unwrap_or(u32::MAX);
        Self { seq, body, raw, facts }
    }
}

/// Reads a stored value that may be of a newer version as the JSON it is.
impl From<&Item> for Value {
    fn from(item: &Item) -> Self {
        serde_json::from_str(&item.raw).unwrap_or(Value::Null)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_kinds_fields_and_outcomes_survive_reading() {
        let raw = r#"{"kind":"dream","x":1.0}"#;
        let item = Item::stored(Seq(1), raw, ItemFacts::default());
        assert_eq!(item.body, ItemBody::Unknown { kind: "dream".into() });
        assert_eq!(&*item.raw, raw);
        let body = ItemBody::parse(
            r#"{"kind":"tool_result","call_id":"c","outcome":"vanished","parts":[],"settled_by":"tool","new":1}"#,
        );
        let ItemBody::ToolResult(result) = body else { panic!("{body:?}") };
        assert_eq!(result.outcome, Outcome::Unknown("vanished".into()));
    }

    #[test]
    fn rows_that_do_not_parse_are_unknown_and_never_panic() {
        for raw in ["", "nope", "[]", "{}", r#"{"kind":7}"#, r#"{"kind":"user"}"#, r#"{"kind":"tool_call"}"#]
        {
            assert!(matches!(ItemBody::parse(raw), ItemBody::Unknown { .. }), "{raw}");
        }
    }

    #[test]
    fn every_reason_round_trips_and_unknown_ones_keep_their_tag() {
        let opens = |tag: &str| {
            let reason = SyntheticReason::from_tag(tag);
            assert_eq!(reason.tag(), tag);
            assert!(!matches!(reason, SyntheticReason::Unknown(_)), "{tag}");
            reason.starts_turn()
        };
        for tag in [
            "compaction_meta",
            "system_reminder",
            "project_instructions",
            "interjection",
            "late_result",
            "omission_note",
        ] {
            assert!(!opens(tag), "{tag}");
        }
        for tag in
            ["agent_message", "parent_message", "thread_report", "subscription_event", "scheduler_fired"]
        {
            assert!(opens(tag), "{tag}");
        }
        // Tags of the future, and those that were removed.
        for tag in ["from_the_future", "auto_continue", ""] {
            assert_eq!(SyntheticReason::from_tag(tag).tag(), tag);
        }
        assert!(SyntheticReason::from_tag("from_the_future").starts_turn());
        assert_eq!(SyntheticReason::from_tag("parent_agent_message"), SyntheticReason::AgentMessage);
    }

    #[test]
    fn old_rows_without_optional_keys_read_as_none_and_write_back_identical_bytes() {
        for raw in [
            r#"{"kind":"user","parts":[{"type":"text","text":"hi"}]}"#,
            r#"{"kind":"user","parts":[],"prior_turn_interrupt":"of_the_future"}"#,
            r#"{"kind":"tool_call","call_id":"c","provider_id":"","name":"f","arguments":"{\"a\":1,\"a\":2.0}","model":"m"}"#,
            r#"{"kind":"tool_result","call_id":"c","outcome":"ok","parts":[],"settled_by":"tool"}"#,
            r#"{"kind":"reasoning","model":"m","text":""}"#,
            r#"{"kind":"assistant","text":"x","model":"m","stop_reason":null}"#,
            r#"{"kind":"state","state":{"b":1.0,"a":null,"a":12345678901234567890123}}"#,
        ] {
            let body = ItemBody::parse(raw);
            assert_eq!(body.to_raw(), raw);
            let none = match &body {
                ItemBody::User(user) => user.synthetic_reason.is_none() && user.author.is_none(),
                ItemBody::ToolCall(call) => call.signature.is_none(),
                ItemBody::ToolResult(result) => result.display_as.is_none(),
                ItemBody::Reasoning(reasoning) => {
                    reasoning.signature.is_none() && reasoning.provider.is_none()
                }
                body => matches!(body, ItemBody::Assistant(_) | ItemBody::State(_)),
            };
            assert!(none, "{raw}");
        }
    }

    #[test]
    fn what_is_stored_reads_back_as_the_same_body() {
        let body = ItemBody::ToolCall(ToolCallItem {
            call_id: CallId::from("c0-2-x"),
            provider_id: "call_0".into(),
            name: "f".into(),
            arguments: r#"{"a":1.0,"c":12345678901234567890123,"z":1,"y":2}"#.into(),
            signature: None,
            model: "m".into(),
        });
        assert_eq!(ItemBody::parse(&body.to_raw()), body);
    }
}
