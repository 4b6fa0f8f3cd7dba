//! The protocol's types. What comes in is read leniently: null is absent, unknown keys are ignored, one bad record does not
//! spoil the rest. What goes out has no null and no field that one of the supported client versions refuses.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::message::{
    ContentPart, ImageData, MAX_STATE_BYTES, MAX_STATE_DEPTH, RawJson, ResumeAnswer, RunRecord, RunRequest,
    json,
};

/// Messages of one request: a bound on what is looked at, far above any conversation a browser holds.
const MAX_MESSAGES: usize = 20_000;
/// Tools of one request.
const MAX_TOOLS: usize = 128;
/// Characters of an id that a client may choose.
pub const MAX_ID_CHARS: usize = 1_024;
/// Begins the ids of messages that a client has not sent yet: never taken, never handed out.
pub const OPTIMISTIC: &str = "__optimistic__";

/// Why a request is no run. Each is a 400.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The body is not a JSON object.
    #[error("the body is no JSON object: {0}")]
    NotJson(String),
    /// A required field is missing or of another type.
    #[error("`{0}` is missing or not {1}")]
    Missing(&'static str, &'static str),
    /// Something is larger than anybody needs.
    #[error("`{0}` has more than {1}")]
    TooMany(&'static str, usize),
    /// The state is larger than a thread keeps.
    #[error("`state` has {0} bytes, at most {MAX_STATE_BYTES} are kept")]
    StateTooLarge(usize),
    /// The state is deeper than it can be read from everywhere.
    #[error("`state` is deeper than {MAX_STATE_DEPTH} levels")]
    StateTooDeep,
}

/// A RunAgentInput, as far as it counts.
#[derive(Clone, Debug, PartialEq)]
pub struct RunInput {
    /// The client's name of the thread, echoed.
    pub thread_id: String,
    /// The client's name of the run, echoed.
    pub run_id: String,
    /// What the thread is asked.
    pub request: RunRequest,
    /// The client's own tools and what it says about itself.
    pub config: RunConfig,
}

/// What a client brings to a run, kept with it: later slices of the run need it too.
#[derive(Clone, Debug, Default, PartialEq, Serialize, serde::Deserialize)]
pub struct RunConfig {
    /// Tools that run in the client.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ClientTool>,
    /// What the model is told besides the agent's own prompt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub context: Vec<Context>,
}

/// A tool that runs in the client.
#[derive(Clone, Debug, PartialEq, Serialize, serde::Deserialize)]
pub struct ClientTool {
    /// Its name.
    pub name: String,
    /// What the model is told of it.
    pub description: String,
    /// The JSON schema of its arguments.
    pub parameters: Value,
}

/// Something a client says about itself.
#[derive(Clone, Debug, PartialEq, Serialize, serde::Deserialize)]
pub struct Context {
    /// What it is about.
    pub description: String,
    /// What.
    pub value: String,
}

impl RunInput {
    /// Reads the body of a run request.
    ///
    /// # Errors
    /// [`WireError`] for what keeps it from being a run at all.
    pub fn parse(body: &[u8]) -> Result<Self, WireError> {
        let text_of_body = json::mend(body);
        let value: Value =
            serde_json::from_str(&text_of_body).map_err(|e| WireError::NotJson(e.to_string()))?;
        let Value::Object(input) = value else {
            return Err(WireError::NotJson("it is another value".to_owned()));
        };
        let required = |name: &'static str| {
            let text = text(&input, &[name]).ok_or(WireError::Missing(name, "a string"))?;
            match text.chars().count() > MAX_ID_CHARS {
                true => Err(WireError::TooMany(name, MAX_ID_CHARS)),
                false => Ok(text.to_owned()),
            }
        };
        let (thread_id, run_id) = (required("threadId")?, required("runId")?);
        let messages = input.get("messages").and_then(Value::as_array);
        let messages = messages.ok_or(WireError::Missing("messages", "an array"))?;
        if messages.len() > MAX_MESSAGES {
            return Err(WireError::TooMany("messages", MAX_MESSAGES));
        }
        let list = |name: &str| input.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        if list("tools").len() > MAX_TOOLS {
            return Err(WireError::TooMany("tools", MAX_TOOLS));
        }
        let append = input
            .get("forwardedProps")
            .and_then(|props| props.get("dormouse"))
            .and_then(|ours| ours.get("mode"))
            .is_some_and(|mode| mode == "append");
        let resume = input.get("resume").and_then(Value::as_array);
        let resume = resume.map(|answers| answers.iter().map(resume_answer).collect());
        let records = messages.iter().filter_map(record).collect();
        let state = state(&text_of_body, input.get("state"))?;
        let request = RunRequest { run: run_id.clone(), records, append, resume, state };
        let config = RunConfig {
            tools: list("tools").iter().filter_map(client_tool).collect(),
            context: list("context").iter().filter_map(context).collect(),
        };
        Ok(Self { thread_id, run_id, request, config })
    }
}

/// Whether a client's state replaces the one that the thread has: an empty object and nothing keep it (R21).
fn says_something(state: Option<&Value>) -> bool {
    match state {
        None | Some(Value::Null) => false,
        Some(Value::Object(fields)) => !fields.is_empty(),
        Some(_) => true,
    }
}

/// The state in a body, which was `read` already, as it was sent: numbers keep their spelling.
pub(super) fn state(body: &str, read: Option<&Value>) -> Result<Option<RawJson>, WireError> {
    #[derive(serde::Deserialize)]
    struct Shared {
        state: RawJson,
    }
    if !says_something(read) {
        return Ok(None);
    }
    if read.is_some_and(|state| json::is_deeper(state, MAX_STATE_DEPTH)) {
        return Err(WireError::StateTooDeep);
    }
    let Shared { state } = serde_json::from_str(body).map_err(|e| WireError::NotJson(e.to_string()))?;
    match state.get().len() {
        bytes if bytes > MAX_STATE_BYTES => Err(WireError::StateTooLarge(bytes)),
        _ => Ok(Some(state)),
    }
}

/// The first of some spellings of a field, if it is text.
pub(super) fn text<'a>(object: &'a Map<String, Value>, names: &[&str]) -> Option<&'a str> {
    names.iter().find_map(|name| object.get(*name)?.as_str())
}

fn client_tool(value: &Value) -> Option<ClientTool> {
    let tool = value.as_object()?;
    let parameters = tool.get("parameters").filter(|schema| schema.is_object()).cloned();
    Some(ClientTool {
        name: text(tool, &["name"]).filter(|name| !name.is_empty())?.to_owned(),
        description: text(tool, &["description"]).unwrap_or_default().to_owned(),
        parameters: parameters.unwrap_or_else(crate::tools::no_arguments),
    })
}

fn context(value: &Value) -> Option<Context> {
    let object = value.as_object()?;
    let value = match object.get("value")? {
        Value::String(text) => text.clone(),
        Value::Null => return None,
        other => other.to_string(),
    };
    let description = text(object, &["description"]).unwrap_or_default().to_owned();
    Some(Context { description, value })
}

fn resume_answer(value: &Value) -> ResumeAnswer {
    let of = |name: &str| value.get(name).filter(|found| !found.is_null());
    let status = of("status").and_then(Value::as_str);
    // An empty id is one that no interrupt has: the batch is refused for its shape.
    let interrupt = match status {
        Some("resolved" | "cancelled") => of("interruptId").and_then(Value::as_str).unwrap_or_default(),
        Some(_) | None => "",
    };
    ResumeAnswer {
        interrupt: interrupt.to_owned(),
        resolved: status == Some("resolved"),
        payload: of("payload").cloned(),
    }
}

/// A message of the client's list; none for what never counts: system, developer, activity and reasoning records, what has
/// no id, and what the client itself has not sent yet.
fn record(value: &Value) -> Option<RunRecord> {
    let message = value.as_object()?;
    let id = text(message, &["id"]).unwrap_or_default();
    if id.starts_with(OPTIMISTIC) {
        return None;
    }
    match text(message, &["role"])? {
        "user" if !id.is_empty() => {
            Some(RunRecord::User { id: id.to_owned(), parts: user_parts(message.get("content")?) })
        }
        "assistant" => {
            let calls = ["toolCalls", "tool_calls"].iter().find_map(|name| message.get(*name)?.as_array());
            let calls = calls.into_iter().flatten().filter_map(|call| call.get("id")?.as_str());
            Some(RunRecord::Assistant { id: id.to_owned(), calls: calls.map(str::to_owned).collect() })
        }
        "tool" => Some(RunRecord::Tool {
            call: text(message, &["toolCallId", "tool_call_id"])?.to_owned(),
            text: match message.get("content") {
                Some(Value::String(text)) => text.clone(),
                Some(parts @ Value::Array(_)) => ContentPart::join_text(&user_parts(parts)),
                None | Some(Value::Null) => String::new(),
                Some(other) => other.to_string(),
            },
            failed: text(message, &["error"]).is_some(),
        }),
        _ => None,
    }
}

/// What a user said: text, and of media what a model can be shown. The rest is named in words, so that it is not lost
/// without a trace.
pub(super) fn user_parts(content: &Value) -> Vec<ContentPart> {
    match content {
        Value::String(text) => vec![ContentPart::text(text)],
        Value::Array(parts) => parts.iter().filter_map(|part| user_part(part.as_object()?)).collect(),
        _ => Vec::new(),
    }
}

pub(super) fn user_part(part: &Map<String, Value>) -> Option<ContentPart> {
    let kind = text(part, &["type"])?;
    let (data, mime) = match kind {
        "text" => return text(part, &["text"]).map(ContentPart::text),
        // The legacy form: data counts before an address, an id alone is of no use.
        "binary" => (
            text(part, &["data"])
                .map(|data| ImageData::Base64(data.to_owned()))
                .or_else(|| text(part, &["url"]).map(|url| ImageData::Url(url.to_owned()))),
            text(part, &["mimeType"]),
        ),
        "image" | "audio" | "video" | "document" => {
            let source = part.get("source")?.as_object()?;
            let value = text(source, &["value"]).map(str::to_owned);
            let data = match text(source, &["type"]) {
                Some("data") => value.map(ImageData::Base64),
                Some("url") => value.map(ImageData::Url),
                _ => None,
            };
            (data, text(source, &["mimeType"]))
        }
        _ => (None, None),
    };
    let subtype = mime.and_then(|mime| mime.strip_prefix("image/"));
    match data {
        Some(data) if kind == "image" || subtype.is_some() => {
            Some(ContentPart::Image { data, media_type: subtype.map(str::to_owned) })
        }
        Some(ImageData::Url(url)) => Some(ContentPart::text(format!("[{kind}: {url}]"))),
        Some(ImageData::Base64(_)) | None => {
            Some(ContentPart::text(format!("[{kind} {} was left out]", mime.unwrap_or("of unknown type"))))
        }
    }
}

/// An event, as dormouse sends it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "SCREAMING_SNAKE_CASE", rename_all_fields = "camelCase")]
#[expect(missing_docs, reason = "the protocol's own names; its description is the reference")]
pub enum Event {
    RunStarted {
        thread_id: String,
        run_id: String,
    },
    RunFinished {
        thread_id: String,
        run_id: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        outcome: Option<Outcome>,
    },
    RunError {
        message: String,
        code: String,
    },
    TextMessageStart {
        message_id: String,
        role: &'static str,
    },
    TextMessageContent {
        message_id: String,
        delta: String,
    },
    TextMessageEnd {
        message_id: String,
    },
    ToolCallStart {
        tool_call_id: String,
        tool_call_name: String,
        parent_message_id: String,
    },
    ToolCallArgs {
        tool_call_id: String,
        delta: String,
    },
    ToolCallEnd {
        tool_call_id: String,
    },
    ToolCallResult {
        message_id: String,
        tool_call_id: String,
        content: String,
        role: &'static str,
    },
    StateSnapshot {
        snapshot: RawJson,
    },
    StateDelta {
        delta: Value,
    },
    MessagesSnapshot {
        messages: Vec<Message>,
    },
    Custom {
        name: &'static str,
        /// JSON without line breaks: it goes out as it stands.
        value: RawJson,
    },
    ReasoningStart {
        message_id: String,
    },
    ReasoningMessageStart {
        message_id: String,
        role: &'static str,
    },
    ReasoningMessageContent {
        message_id: String,
        delta: String,
    },
    ReasoningMessageEnd {
        message_id: String,
    },
    ReasoningEnd {
        message_id: String,
    },
}

/// How a run ended that did not simply end. Anything but the list of interrupts is refused by some client version.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Outcome {
    /// It waits for answers; never an empty list.
    Interrupt {
        /// What is asked.
        interrupts: Vec<Interrupt>,
    },
}

/// Something that a run waits for.
#[derive(Clone, Debug, PartialEq, Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Interrupt {
    /// Its name.
    pub id: String,
    /// `tool_call`, `input_required`, `confirmation` or `dormouse:…`.
    pub reason: String,
    /// What a person is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The call that waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// What an answer looks like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_schema: Option<Value>,
    /// Until when an answer is taken, ISO 8601.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// What else there is to know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
}

/// A message, as dormouse sends it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "role", rename_all = "lowercase", rename_all_fields = "camelCase")]
#[expect(missing_docs, reason = "the protocol's own names; its description is the reference")]
pub enum Message {
    User {
        id: String,
        content: UserContent,
    },
    Assistant {
        id: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        content: Option<String>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ToolCall>,
        #[serde(skip_serializing_if = "Option::is_none")]
        metadata: Option<Value>,
    },
    Tool {
        id: String,
        tool_call_id: String,
        content: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    Reasoning {
        id: String,
        content: String,
    },
}

impl Message {
    /// Its id.
    pub fn id(&self) -> &str {
        match self {
            Self::User { id, .. }
            | Self::Assistant { id, .. }
            | Self::Tool { id, .. }
            | Self::Reasoning { id, .. } => id,
        }
    }
}

/// What a user said, as it is sent: a string where all of it is text.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
#[expect(missing_docs, reason = "the two forms of the protocol")]
pub enum UserContent {
    Text(String),
    Parts(Vec<UserPart>),
}

/// A part of what a user said.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
#[expect(missing_docs, reason = "the protocol's own names")]
pub enum UserPart {
    Text { text: String },
    Image { source: Source },
}

/// Where a medium is.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase", rename_all_fields = "camelCase")]
#[expect(missing_docs, reason = "the protocol's own names")]
pub enum Source {
    Data {
        value: String,
        mime_type: String,
    },
    Url {
        value: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        mime_type: Option<String>,
    },
}

/// A call within a message.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ToolCall {
    /// Its id.
    pub id: String,
    /// `function`.
    pub r#type: &'static str,
    /// What is called.
    pub function: Function,
}

/// What is called.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Function {
    /// The tool.
    pub name: String,
    /// Its arguments, as text: they may be empty or malformed.
    pub arguments: String,
}

impl Event {
    /// One frame of the stream: never a carriage return, since clients split on two line feeds alone; JSON escapes the
    /// line breaks inside.
    pub fn frame(&self) -> String {
        // Our own types: string keys and finite numbers.
        let json = serde_json::to_string(self).expect("bug: an event serialises");
        format!("data: {json}\n\n")
    }

    /// Whether it is the last one of a stream.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::RunFinished { .. } | Self::RunError { .. })
    }
}
