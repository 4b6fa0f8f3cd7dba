//! The input queue's message, as existing producers write it (`InputMessage`), and what dormouse adds to it.
//!
//! Source: the Infinity runtime's queue JSON. Variants are told apart by `type`; an optional field that is
//! null counts as absent; unknown fields are ignored.

use serde::{Deserialize, Serialize};

use super::content::{ContentPart, ImageData};
use super::ids::{CallId, MessageId, ThreadId};
use super::json::{self, RawJson};
use super::operation::{Compact, CompactionReport, Fork, Import, Rewind};
use super::recurrence::{Firing, Recurrence};
use super::run::RunRequest;

/// The newest queue schema this version reads. A message of a newer one is handed back untouched.
const SCHEMA: u32 = 1;
/// Bytes of a thread's metadata, which is an attribute of META.
pub const MAX_METADATA_BYTES: usize = 16 * 1024;
/// Bytes of a principal, which is copied to each item.
const MAX_USER_ID_BYTES: usize = 256;

/// One message of the input queue.
#[derive(Clone, Debug, PartialEq)]
pub struct InputMessage {
    /// What arrived.
    pub content: InputContent,
    /// The thread; equal to the SQS message group.
    pub group_id: ThreadId,
    /// Opaque to dormouse but for `user_id` and `agent`; belongs to the root thread, and comes back on output.
    pub metadata: Option<RawJson>,
    /// Set where no person and no pending call stands behind the content.
    pub synthetic: Option<Synthetic>,
    /// How a client may show a tool result, as received; never given to the model.
    pub display_as: Option<RawJson>,
    /// The result opens a subscription.
    pub subscription: bool,
}

/// What an input holds.
#[derive(Clone, Debug, PartialEq)]
pub enum InputContent {
    /// User text.
    Text(String),
    /// A user's image.
    Image {
        /// The bytes or their address.
        data: ImageData,
        /// The subtype, e.g. `png`.
        media_type: Option<String>,
    },
    /// What a user says in several parts (dormouse only).
    Parts(Vec<ContentPart>),
    /// A tool's result; spelled `toolresult` on the wire.
    ToolResult(ToolResultInput),
    /// A tool needs the user's consent at an address.
    OAuthRequired(OAuthRequired),
    /// A tool asks the user to choose.
    UserChoiceRequired(UserChoiceRequired),
    /// The user's answer to a choice (dormouse only).
    UserChoiceAnswer(UserChoiceAnswer),
    /// A body too large for the queue, kept in the table (dormouse only).
    ClaimCheck(ClaimCheck),
    /// Parked inputs are left over: release them (dormouse only).
    Release,
    /// Hide the newest turns (dormouse only).
    Rewind(Rewind),
    /// Begin as a copy of another thread (dormouse only).
    Fork(Fork),
    /// Begin as a snapshot says (dormouse only).
    Import(Import),
    /// End the thread (dormouse only).
    Close,
    /// Summarise the older part of the thread (dormouse only).
    Compact(Compact),
    /// A compaction beside the thread has ended (dormouse only).
    CompactionComplete(CompactionReport),
    /// Dispatch a pending call once more (dormouse only).
    Resend(Resend),
    /// An attached client's run (dormouse only).
    Run(RunRequest),
    /// A message of this thread went to the dead-letter queue (dormouse only).
    Undeliverable(Undeliverable),
}

impl InputContent {
    /// Whether it is asked of the thread itself: it is a slice of its own.
    pub fn is_operation(&self) -> bool {
        matches!(self, Self::Rewind(_) | Self::Fork(_) | Self::Import(_) | Self::Close | Self::Run(_))
    }

    /// Whether it is something that a person says.
    pub fn is_said(&self) -> bool {
        matches!(self, Self::Text(_) | Self::Image { .. } | Self::Parts(_))
    }
}

/// A tool's result on the queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolResultInput {
    /// The call it answers; empty or ignored where `synthetic` names it.
    pub id: CallId,
    /// The provider's second id, echoed by tools; data only.
    #[serde(default)]
    pub call_id: Option<String>,
    /// What the tool returned.
    pub content: Vec<ContentPart>,
}

/// `oauth_required` on the queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OAuthRequired {
    /// The pending call.
    pub id: CallId,
    /// The provider's second id.
    #[serde(default)]
    pub call_id: Option<String>,
    /// Where the user consents (https).
    pub auth_url: String,
}

/// `user_choice_required` on the queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UserChoiceRequired {
    /// The pending call; also the id of the choice.
    pub id: CallId,
    /// The provider's second id.
    #[serde(default)]
    pub call_id: Option<String>,
    /// The question.
    pub prompt: String,
    /// At least one answer.
    pub choices: Vec<String>,
    /// Index of the answer that counts on dismissal.
    #[serde(default)]
    pub default: usize,
    /// Where the answer is POSTed; empty: it is dormouse itself that asks.
    pub response_url: String,
}

/// `user_choice_answer` on the queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UserChoiceAnswer {
    /// The choice.
    pub id: CallId,
    /// Index of the chosen answer; absent: dismissed.
    #[serde(default)]
    pub selected: Option<usize>,
}

/// A reference to an input kept in the table because SQS would refuse it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimCheck {
    /// The digest that names the stored `InputMessage` JSON.
    pub digest: String,
}

/// Asks for a pending call to be sent to its tool again, under the same id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resend {
    /// The call.
    pub id: CallId,
}

/// A message that the queue gave up on. Its body is with the record that is kept of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Undeliverable {
    /// The message: the cause of whatever it brought about before it died. (SQS replaces the dedup id of a message
    /// that it moves to a dead-letter queue by this one.)
    pub message_id: MessageId,
}

/// Where an input comes from that no person typed and no pending call returned.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Synthetic {
    /// An event of a subscription.
    SubscriptionEvent {
        /// The call that subscribed.
        tool_call_id: CallId,
        /// Belongs into the running conversation rather than a child thread.
        associative: bool,
        /// Ends the subscription.
        r#final: bool,
    },
    /// A child reports to its parent.
    ThreadReport {
        /// The call that made the child.
        tool_call_id: CallId,
        /// The child.
        child_thread_id: ThreadId,
    },
    /// A parent writes to its child.
    ParentMessage {
        /// The call that made the child.
        tool_call_id: CallId,
    },
    /// A schedule has fired (dormouse only).
    SchedulerFired {
        /// The call that made it.
        tool_call_id: CallId,
        /// Which firing it is.
        firing: Firing,
        /// When the next ones are: a slice that gives up on this one has no history to look it up in.
        recurrence: Recurrence,
    },
    /// Asks for a compaction.
    Compaction,
    /// A compaction has finished.
    CompactionComplete,
}

/// Why a queue body is not an input.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The body is not a JSON object of the expected shape.
    #[error("the body is not an InputMessage: {0}")]
    Malformed(String),
    /// `content.type` is of no known kind.
    #[error(
        "content.type {0:?} is unknown; known are text, image, toolresult, oauth_required, user_choice_required, user_choice_answer"
    )]
    UnknownContent(String),
    /// Written by a newer version of dormouse: to be handed back, not judged.
    #[error("the message has schema {found}, this version reads up to {SCHEMA}; deploy the newer version")]
    NewerSchema {
        /// The message's schema.
        found: u32,
    },
}

#[derive(Deserialize)]
struct Wire {
    content: RawJson,
    group_id: ThreadId,
    #[serde(default)]
    metadata: Option<RawJson>,
    #[serde(default)]
    synthetic: Option<RawJson>,
    #[serde(default)]
    display_as: Option<RawJson>,
    #[serde(default)]
    subscription: Option<bool>,
}

#[derive(Deserialize)]
struct Tag {
    r#type: String,
}

#[derive(Serialize)]
struct WireOut<'a> {
    content: ContentOut<'a>,
    group_id: &'a ThreadId,
    metadata: &'a Option<RawJson>,
    synthetic: &'a Option<Synthetic>,
    display_as: &'a Option<RawJson>,
    subscription: bool,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ContentOut<'a> {
    Text {
        text: &'a str,
    },
    Image {
        data: &'a ImageData,
        media_type: &'a Option<String>,
    },
    Parts {
        parts: &'a [ContentPart],
    },
    #[serde(rename = "toolresult")]
    ToolResult(&'a ToolResultInput),
    #[serde(rename = "oauth_required")]
    OAuthRequired(&'a OAuthRequired),
    UserChoiceRequired(&'a UserChoiceRequired),
    UserChoiceAnswer(&'a UserChoiceAnswer),
    ClaimCheck(&'a ClaimCheck),
    Release,
    Rewind(&'a Rewind),
    Fork(&'a Fork),
    Import(&'a Import),
    Close,
    Compact(&'a Compact),
    CompactionComplete(&'a CompactionReport),
    Resend(&'a Resend),
    Run(&'a RunRequest),
    Undeliverable(&'a Undeliverable),
}

impl InputMessage {
    /// A user's text for a thread.
    pub fn user_text(thread: ThreadId, text: impl Into<String>) -> Self {
        Self::plain(thread, InputContent::Text(text.into()))
    }

    /// A tool's result for a thread.
    pub fn tool_result(thread: ThreadId, call: CallId, content: Vec<ContentPart>) -> Self {
        Self::plain(thread, InputContent::ToolResult(ToolResultInput { id: call, call_id: None, content }))
    }

    /// An input without metadata, flags or origin.
    pub fn plain(thread: ThreadId, content: InputContent) -> Self {
        Self {
            content,
            group_id: thread,
            metadata: None,
            synthetic: None,
            display_as: None,
            subscription: false,
        }
    }

    /// Reads a queue body. Lone surrogates and invalid UTF-8 become U+FFFD.
    pub fn parse(body: &[u8]) -> Result<Self, InputError> {
        let text = json::mend(body);
        let malformed = |e: serde_json::Error| InputError::Malformed(e.to_string());
        if let Ok(Schema { schema: Some(found) }) = serde_json::from_str(&text)
            && found > SCHEMA
        {
            return Err(InputError::NewerSchema { found });
        }
        let wire: Wire = serde_json::from_str(&text).map_err(malformed)?;
        if wire.group_id.as_str().is_empty() {
            return Err(InputError::Malformed("group_id is empty".to_owned()));
        }
        let metadata_bytes = wire.metadata.as_ref().map_or(0, |metadata| metadata.get().len());
        if metadata_bytes > MAX_METADATA_BYTES {
            return Err(InputError::Malformed(format!(
                "metadata has {metadata_bytes} bytes, at most {MAX_METADATA_BYTES} are kept with a thread"
            )));
        }
        let message = Self {
            content: parse_content(&wire.content)?,
            group_id: wire.group_id,
            metadata: wire.metadata,
            synthetic: wire.synthetic.as_ref().map(parse_synthetic).transpose()?,
            display_as: wire.display_as,
            subscription: wire.subscription.unwrap_or(false),
        };
        match message.user_id() {
            Some(user) if user.len() > MAX_USER_ID_BYTES => Err(InputError::Malformed(format!(
                "metadata.user_id has more than {MAX_USER_ID_BYTES} bytes"
            ))),
            Some(_) | None => Ok(message),
        }
    }

    /// The queue body, within SQS's character set.
    pub fn to_body(&self) -> Result<String, serde_json::Error> {
        let content = match &self.content {
            InputContent::Text(text) => ContentOut::Text { text },
            InputContent::Image { data, media_type } => ContentOut::Image { data, media_type },
            InputContent::Parts(parts) => ContentOut::Parts { parts },
            InputContent::ToolResult(result) => ContentOut::ToolResult(result),
            InputContent::OAuthRequired(oauth) => ContentOut::OAuthRequired(oauth),
            InputContent::UserChoiceRequired(choice) => ContentOut::UserChoiceRequired(choice),
            InputContent::UserChoiceAnswer(answer) => ContentOut::UserChoiceAnswer(answer),
            InputContent::ClaimCheck(claim) => ContentOut::ClaimCheck(claim),
            InputContent::Release => ContentOut::Release,
            InputContent::Rewind(rewind) => ContentOut::Rewind(rewind),
            InputContent::Fork(fork) => ContentOut::Fork(fork),
            InputContent::Import(import) => ContentOut::Import(import),
            InputContent::Close => ContentOut::Close,
            InputContent::Compact(compact) => ContentOut::Compact(compact),
            InputContent::CompactionComplete(report) => ContentOut::CompactionComplete(report),
            InputContent::Resend(resend) => ContentOut::Resend(resend),
            InputContent::Run(run) => ContentOut::Run(run),
            InputContent::Undeliverable(dead) => ContentOut::Undeliverable(dead),
        };
        json::to_queue_body(&WireOut {
            content,
            group_id: &self.group_id,
            metadata: &self.metadata,
            synthetic: &self.synthetic,
            display_as: &self.display_as,
            subscription: self.subscription,
        })
    }

    /// `metadata.user_id`, the principal the message speaks for.
    pub fn user_id(&self) -> Option<String> {
        self.metadata.as_ref().and_then(|metadata| metadata.str_field("user_id"))
    }

    /// `metadata.agent`, which agent a new thread gets.
    pub fn agent(&self) -> Option<String> {
        self.metadata.as_ref().and_then(|metadata| metadata.str_field("agent"))
    }
}

#[derive(Deserialize)]
struct Schema {
    #[serde(default)]
    schema: Option<u32>,
}

fn parse_content(raw: &RawJson) -> Result<InputContent, InputError> {
    #[derive(Deserialize)]
    struct Text {
        text: String,
    }
    #[derive(Deserialize)]
    struct Image {
        data: ImageData,
        #[serde(default)]
        media_type: Option<String>,
    }
    #[derive(Deserialize)]
    struct Parts {
        parts: Vec<ContentPart>,
    }
    let tag: Tag = read("content", raw)?;
    Ok(match tag.r#type.as_str() {
        "text" => InputContent::Text(read::<Text>("content", raw)?.text),
        "image" => {
            let Image { data, media_type } = read("content", raw)?;
            InputContent::Image { data, media_type }
        }
        "parts" => InputContent::Parts(read::<Parts>("content", raw)?.parts),
        "toolresult" => InputContent::ToolResult(read("content", raw)?),
        "oauth_required" => InputContent::OAuthRequired(read("content", raw)?),
        "user_choice_required" => InputContent::UserChoiceRequired(read("content", raw)?),
        "user_choice_answer" => InputContent::UserChoiceAnswer(read("content", raw)?),
        "claim_check" => InputContent::ClaimCheck(read("content", raw)?),
        "release" => InputContent::Release,
        "rewind" => InputContent::Rewind(read("content", raw)?),
        "fork" => InputContent::Fork(read("content", raw)?),
        "import" => InputContent::Import(read("content", raw)?),
        "close" => InputContent::Close,
        "compact" => InputContent::Compact(read("content", raw)?),
        "compaction_complete" => InputContent::CompactionComplete(read("content", raw)?),
        "resend" => InputContent::Resend(read("content", raw)?),
        "run" => InputContent::Run(read("content", raw)?),
        "undeliverable" => InputContent::Undeliverable(read("content", raw)?),
        other => return Err(InputError::UnknownContent(other.to_owned())),
    })
}

fn parse_synthetic(raw: &RawJson) -> Result<Synthetic, InputError> {
    #[derive(Deserialize)]
    struct Fields {
        r#type: String,
        #[serde(default)]
        tool_call_id: Option<CallId>,
        #[serde(default)]
        child_thread_id: Option<ThreadId>,
        #[serde(default)]
        associative: Option<bool>,
        #[serde(default)]
        r#final: Option<bool>,
        #[serde(default)]
        firing: Option<Firing>,
        #[serde(default)]
        recurrence: Option<Recurrence>,
    }
    // The old form: a bare string names the call that subscribed.
    if let Ok(call) = serde_json::from_str::<String>(raw.get()) {
        return Ok(Synthetic::SubscriptionEvent {
            tool_call_id: CallId::new(call),
            associative: false,
            r#final: false,
        });
    }
    let missing = |field: &str| InputError::Malformed(format!("synthetic.{field} is missing"));
    let fields: Fields = read("synthetic", raw)?;
    let call = || fields.tool_call_id.clone().ok_or_else(|| missing("tool_call_id"));
    Ok(match fields.r#type.as_str() {
        "subscription_event" => Synthetic::SubscriptionEvent {
            tool_call_id: call()?,
            associative: fields.associative.unwrap_or(false),
            r#final: fields.r#final.unwrap_or(false),
        },
        "thread_report" => Synthetic::ThreadReport {
            tool_call_id: call()?,
            child_thread_id: fields.child_thread_id.clone().ok_or_else(|| missing("child_thread_id"))?,
        },
        "parent_message" => Synthetic::ParentMessage { tool_call_id: call()? },
        "scheduler_fired" => Synthetic::SchedulerFired {
            tool_call_id: call()?,
            firing: fields.firing.ok_or_else(|| missing("firing"))?,
            recurrence: fields.recurrence.clone().ok_or_else(|| missing("recurrence"))?,
        },
        "compaction" => Synthetic::Compaction,
        "compaction_complete" => Synthetic::CompactionComplete,
        other => return Err(InputError::Malformed(format!("synthetic.type {other:?} is unknown"))),
    })
}

fn read<'a, T: Deserialize<'a>>(field: &str, raw: &'a RawJson) -> Result<T, InputError> {
    serde_json::from_str(raw.get()).map_err(|e| InputError::Malformed(format!("{field}: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn existing_producers_messages_with_explicit_nulls_are_read() {
        let body = br#"{"content":{"type":"toolresult","id":"c-1","call_id":null,"content":[{"type":"text","text":"ok"},{"type":"hologram","x":1}]},"group_id":"th-1","metadata":null,"synthetic":null,"display_as":null,"subscription":false,"later":1}"#;
        let message = InputMessage::parse(body).unwrap();
        let InputContent::ToolResult(result) = &message.content else { panic!("{message:?}") };
        assert_eq!(result.id, CallId::from("c-1"));
        assert_eq!(result.content[0], ContentPart::text("ok"));
        assert!(matches!(result.content[1], ContentPart::Unknown(_)));
        assert_eq!(message.metadata, None);
    }

    #[test]
    fn what_is_written_is_read_back_unchanged() {
        let thread = ThreadId::from("th-1");
        let mut message = InputMessage::user_text(thread, "x\u{FFFE}\u{0}y");
        message.metadata = Some(RawJson::parse(r#"{"n":1.0,"user_id":"u"}"#).unwrap());
        message.synthetic = Some(Synthetic::SubscriptionEvent {
            tool_call_id: CallId::from("c"),
            associative: true,
            r#final: true,
        });
        let body = message.to_body().unwrap();
        assert_eq!(InputMessage::parse(body.as_bytes()).unwrap(), message);
        assert_eq!(message.user_id().as_deref(), Some("u"));
    }

    #[test]
    fn bad_bodies_name_what_is_wrong() {
        let error = |body: &str| InputMessage::parse(body.as_bytes()).unwrap_err().to_string();
        assert!(error("not json").contains("not an InputMessage"));
        assert!(error(r#"{"content":{"type":"text","text":"x"}}"#).contains("group_id"));
        assert!(error(r#"{"content":{"type":"smell"},"group_id":"t"}"#).contains("\"smell\""));
        assert!(error(r#"{"schema":9,"new":true}"#).contains("schema 9"));
        assert!(error(r#"{"content":{"type":"text","text":"x"},"group_id":""}"#).contains("empty"));
    }
}
