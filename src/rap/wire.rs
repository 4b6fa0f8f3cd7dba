//! RAP's messages: tolerant of what comes in, strict in what goes out.
//!
//! In: unknown members are ignored, an optional member that is null counts as absent, the last of two equal
//! members counts, and lone surrogates are mended. Out: exactly the members of the protocol. Source: RAP as
//! `rap-protocol` 0.2.0 speaks it; `tests/rap.rs` reads with each what the other writes.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::message::{CallId, ContentPart, ImageData, RawJson, ThreadId, json};

/// What the model reads where a tool's content has nothing that can be shown.
const UNSHOWABLE: &str = "(the tool returned content of a kind that cannot be shown)";
/// What the model reads in place of an image whose bytes are not base64.
const BAD_IMAGE: &str = "(the tool returned an image that cannot be read)";
/// Bytes of an address that is shown to the user or POSTed to; it stands in the thread's state.
const MAX_URL_BYTES: usize = 4_096;
/// Bytes of a choice's prompt and answers together; people have to read them.
const MAX_CHOICE_BYTES: usize = 64 * 1024;
/// Answers of one question.
const MAX_CHOICES: usize = 1_000;
/// Bytes of a view's type; it is part of a key.
const MAX_VIEW_TYPE_BYTES: usize = 128;

/// `GET {base}/.well-known/rap-toolset`. Its rules are checked in [`discovery`](super::discovery).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// The set's name, 1 to 128 characters.
    pub name: String,
    /// What the set is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Where invocations are POSTed.
    pub endpoint: String,
    /// At least one.
    pub tools: Vec<ManifestTool>,
    /// Whether the server keeps state that `/migrate` moves.
    #[serde(default, deserialize_with = "null_is_default")]
    pub needs_migration: bool,
}

/// A tool of a manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ManifestTool {
    /// Unique over all sets of an agent.
    pub name: String,
    /// For the model; untrusted.
    pub description: String,
    /// JSON Schema of the arguments, 2020-12 unless `$schema` says otherwise.
    pub input_schema: Value,
    /// Hints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<Annotations>,
    /// A script for display; never evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_script: Option<String>,
}

/// A tool's hints about itself; none of them is trusted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Annotations {
    /// What the user has to sign in to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requires_auth: Option<String>,
    /// Changes nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// May destroy something.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destructive: Option<bool>,
    /// May run twice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotent: Option<bool>,
    /// Takes its time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub long_running: Option<bool>,
    /// Everything else.
    #[serde(flatten)]
    pub other: serde_json::Map<String, Value>,
}

/// An invocation, POSTed to a set's endpoint.
#[derive(Debug, Serialize)]
pub struct InvocationBody<'a> {
    /// The tool.
    pub operation: &'a str,
    /// The arguments, byte for byte as the model wrote them (F37).
    pub arguments: &'a RawValue,
    /// dormouse's id of the call.
    pub id: &'a CallId,
    /// The provider's second id: dormouse has none to echo, published servers expect the member.
    pub call_id: Option<&'a str>,
    /// Where the result goes; opaque to the tool.
    pub callback_url: &'a str,
    /// The thread.
    pub group_id: &'a ThreadId,
    /// The principal, only where it is to be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_id: Option<&'a str>,
    /// Root first, parent last; null on a root.
    pub thread_ancestors: Option<&'a [ThreadId]>,
}

/// `POST {base}/close_thread`.
#[derive(Debug, Serialize)]
pub struct CloseThread<'a> {
    /// The thread that has closed.
    pub thread_id: &'a ThreadId,
}

/// `POST {base}/cancel_tool_call`.
#[derive(Debug, Serialize)]
pub struct CancelToolCall<'a> {
    /// The thread.
    pub thread_id: &'a ThreadId,
    /// The call that nobody waits for.
    pub tool_call_id: &'a CallId,
}

/// The answer to a choice, POSTed to its `response_url`.
#[derive(Debug, Serialize)]
pub struct ChoiceAnswer<'a> {
    /// The choice.
    pub id: &'a CallId,
    /// Index of the answer, from 0.
    pub selected: usize,
}

/// The kinds of callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallbackKind {
    /// `tool_result`
    ToolResult,
    /// `subscription_event`
    SubscriptionEvent,
    /// `oauth`
    OAuth,
    /// `user_choice`
    UserChoice,
    /// `view_update`
    ViewUpdate,
}

impl CallbackKind {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ToolResult => "tool_result",
            Self::SubscriptionEvent => "subscription_event",
            Self::OAuth => "oauth",
            Self::UserChoice => "user_choice",
            Self::ViewUpdate => "view_update",
        }
    }

    fn parse(name: &str) -> Option<Self> {
        [Self::ToolResult, Self::SubscriptionEvent, Self::OAuth, Self::UserChoice, Self::ViewUpdate]
            .into_iter()
            .find(|kind| kind.as_str() == name)
    }

    /// The member that names the call; a view belongs to a thread alone.
    fn call_field(self) -> Option<&'static str> {
        match self {
            Self::ToolResult | Self::OAuth | Self::UserChoice => Some("id"),
            Self::SubscriptionEvent => Some("tool_call_id"),
            Self::ViewUpdate => None,
        }
    }
}

/// A callback as far as it can be read without judging its content: what it is and whom it concerns.
#[derive(Clone, Debug)]
pub struct Callback {
    /// What it is.
    pub kind: CallbackKind,
    /// `group_id`.
    pub thread: ThreadId,
    /// The call, where the kind names one.
    pub call: Option<CallId>,
    members: BTreeMap<String, RawJson>,
}

/// Why a body is no callback at all: it cannot even be said whom it concerns.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// Not JSON, or not an object.
    #[error("the body is not a JSON object")]
    NotAnObject,
    /// `type` is missing or of no known kind.
    #[error("type is not one of tool_result, subscription_event, oauth, user_choice, view_update")]
    UnknownType,
    /// An id is missing or not a string.
    #[error("{0} is missing or not a string")]
    Id(&'static str),
}

/// Why a callback's content cannot be used. The text goes to the tool and to the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {problem}")]
pub struct PayloadError {
    /// The member.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: &'static str,
}

/// A callback's content.
#[derive(Clone, Debug, PartialEq)]
pub enum Payload {
    /// The one result of a call.
    ToolResult(ToolResult),
    /// An event of a subscription.
    Event(Event),
    /// The user has to consent. The address is an https one.
    OAuth {
        /// The provider's second id, echoed.
        call_id: Option<String>,
        /// Where.
        auth_url: String,
    },
    /// The user has to choose.
    Choice(Choice),
    /// A view of the thread has changed.
    View {
        /// Which.
        view_type: String,
        /// An object, never interpreted.
        content: RawJson,
    },
}

/// The content of a `tool_result`.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolResult {
    /// The provider's second id, echoed.
    pub call_id: Option<String>,
    /// At least one part: `content` beats `text`.
    pub parts: Vec<ContentPart>,
    /// Display segments as received, if they are an array.
    pub display_as: Option<RawJson>,
    /// Events will follow.
    pub subscription: bool,
}

/// The content of a `subscription_event`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub text: String,
    /// Belongs into the running conversation.
    pub associative: bool,
    /// The last one.
    pub r#final: bool,
}

/// The content of a `user_choice`: at least one choice, `default` within them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The provider's second id, echoed.
    pub call_id: Option<String>,
    /// The question.
    pub prompt: String,
    /// The answers.
    pub choices: Vec<String>,
    /// The answer on dismissal.
    pub default: usize,
    /// Where the answer goes; whether it may is for the reader to decide.
    pub response_url: String,
}

impl Callback {
    /// Reads the body of a callback as far as its ids.
    pub fn parse(body: &[u8]) -> Result<Self, EnvelopeError> {
        let text = json::mend(body);
        let members: BTreeMap<String, RawJson> =
            serde_json::from_str(&text).map_err(|_| EnvelopeError::NotAnObject)?;
        let text_member = |name: &str| members.get(name).and_then(read::<String>);
        let kind = text_member("type")
            .and_then(|name| CallbackKind::parse(&name))
            .ok_or(EnvelopeError::UnknownType)?;
        let thread = text_member("group_id").ok_or(EnvelopeError::Id("group_id"))?;
        let call = match kind.call_field() {
            Some(field) => Some(CallId::new(text_member(field).ok_or(EnvelopeError::Id(field))?)),
            None => None,
        };
        Ok(Self { kind, thread: ThreadId::new(thread), call, members })
    }

    /// Reads the content.
    pub fn payload(&self) -> Result<Payload, PayloadError> {
        Ok(match self.kind {
            CallbackKind::ToolResult => Payload::ToolResult(self.tool_result()?),
            CallbackKind::SubscriptionEvent => Payload::Event(Event {
                text: self.required("text", "is missing or not a string")?,
                associative: self.flag("associative")?,
                r#final: self.flag("final")?,
            }),
            CallbackKind::OAuth => Payload::OAuth {
                call_id: self.call_id()?,
                auth_url: self.url("auth_url", &["https"], "is not an https address")?,
            },
            CallbackKind::UserChoice => Payload::Choice(self.choice()?),
            CallbackKind::ViewUpdate => self.view()?,
        })
    }

    fn tool_result(&self) -> Result<ToolResult, PayloadError> {
        let text: Option<String> = self.optional("text", "is not a string")?;
        // Anything but an array of parts is no content; the text then counts.
        let content: Vec<RawJson> = self.member("content").and_then(read).unwrap_or_default();
        let mut parts: Vec<ContentPart> = content.iter().filter_map(content_part).collect();
        if parts.is_empty() {
            parts.push(match text {
                Some(text) => ContentPart::Text(text),
                None if content.is_empty() => {
                    return Err(PayloadError { field: "text", problem: "and content are both missing" });
                }
                None => ContentPart::text(UNSHOWABLE),
            });
        }
        Ok(ToolResult {
            call_id: self.call_id()?,
            parts,
            display_as: self.member("display_as").filter(|raw| read::<Vec<Value>>(raw).is_some()).cloned(),
            subscription: self.flag("subscription")?,
        })
    }

    fn choice(&self) -> Result<Choice, PayloadError> {
        let prompt: String = self.required("prompt", "is missing or not a string")?;
        let choices: Vec<String> = self.required("choices", "is missing or not a list of strings")?;
        let default = self.optional("default", "is not an index into choices")?.unwrap_or(0);
        let bytes = prompt.len() + choices.iter().map(String::len).sum::<usize>();
        if bytes > MAX_CHOICE_BYTES {
            return Err(PayloadError { field: "choices", problem: "and prompt are longer than 64 KiB" });
        }
        if choices.len() > MAX_CHOICES {
            return Err(PayloadError { field: "choices", problem: "has more than 1,000 answers" });
        }
        if choices.is_empty() {
            return Err(PayloadError { field: "choices", problem: "is empty" });
        }
        if default >= choices.len() {
            return Err(PayloadError { field: "default", problem: "is not an index into choices" });
        }
        let response_url = self.url("response_url", &["https", "http"], "is not an http or https address")?;
        Ok(Choice { call_id: self.call_id()?, prompt, choices, default, response_url })
    }

    fn view(&self) -> Result<Payload, PayloadError> {
        let view_type: String = self.required("view_type", "is missing or not a string")?;
        if view_type.is_empty() || view_type.len() > MAX_VIEW_TYPE_BYTES {
            return Err(PayloadError { field: "view_type", problem: "is not of 1 to 128 bytes" });
        }
        let content = self.member("content").filter(|raw| raw.get().starts_with('{'));
        let content = content.ok_or(PayloadError { field: "content", problem: "is not an object" })?;
        Ok(Payload::View { view_type, content: content.clone() })
    }

    fn call_id(&self) -> Result<Option<String>, PayloadError> {
        self.optional("call_id", "is not a string")
    }

    fn flag(&self, field: &'static str) -> Result<bool, PayloadError> {
        Ok(self.optional(field, "is not true or false")?.unwrap_or(false))
    }

    fn url(
        &self,
        field: &'static str,
        schemes: &[&str],
        problem: &'static str,
    ) -> Result<String, PayloadError> {
        let text: String = self.required(field, "is missing or not a string")?;
        let fits = text.len() <= MAX_URL_BYTES
            && url::Url::parse(&text).is_ok_and(|url| schemes.contains(&url.scheme()) && url.has_host());
        if fits { Ok(text) } else { Err(PayloadError { field, problem }) }
    }

    fn member(&self, field: &str) -> Option<&RawJson> {
        self.members.get(field).filter(|raw| raw.get() != "null")
    }

    fn optional<T: for<'de> Deserialize<'de>>(
        &self,
        field: &'static str,
        problem: &'static str,
    ) -> Result<Option<T>, PayloadError> {
        match self.member(field) {
            None => Ok(None),
            Some(raw) => read(raw).map(Some).ok_or(PayloadError { field, problem }),
        }
    }

    fn required<T: for<'de> Deserialize<'de>>(
        &self,
        field: &'static str,
        problem: &'static str,
    ) -> Result<T, PayloadError> {
        self.optional(field, problem)?.ok_or(PayloadError { field, problem })
    }
}

fn read<T: for<'de> Deserialize<'de>>(raw: &RawJson) -> Option<T> {
    serde_json::from_str(raw.get()).ok()
}

/// One item of `content`; none for what this version cannot show.
fn content_part(raw: &RawJson) -> Option<ContentPart> {
    #[derive(Deserialize)]
    #[serde(tag = "type", rename_all = "lowercase")]
    enum Item {
        Text {
            text: String,
        },
        Image {
            data: String,
            // MCP's spelling, which servers that wrap MCP tools pass on.
            #[serde(default, rename = "mediaType", alias = "mimeType")]
            media_type: Option<String>,
        },
    }
    Some(match read::<Item>(raw)? {
        Item::Text { text } => ContentPart::Text(text),
        // A provider refuses the whole request over one bad image, and would do so for ever (I7).
        Item::Image { data, .. } if data_encoding::BASE64.decode(data.as_bytes()).is_err() => {
            ContentPart::text(BAD_IMAGE)
        }
        Item::Image { data, media_type } => ContentPart::Image { data: ImageData::Base64(data), media_type },
    })
}

fn null_is_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}
