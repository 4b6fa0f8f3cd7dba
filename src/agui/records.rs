//! One message that a client kept, in either form: the protocol's own, or assistant-ui's with content parts (H3). Total: what
//! cannot be read is left out, and no bad record spoils another.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::wire::{text, user_part, user_parts};
use crate::message::{ContentPart, ImageData, is_blank};

/// The name of a call that nobody has named.
const UNNAMED_TOOL: &str = "tool";

/// What a record says.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Record {
    /// A person.
    User(Vec<ContentPart>),
    /// A model.
    Assistant(Vec<Part>),
    /// A tool: it belongs to the call that it answers.
    Tool(Call),
    /// Nothing that is imported: system, developer and activity records, and what is no record at all.
    Nothing,
}

/// A piece of what a model said.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Part {
    Reasoning(String),
    Text(String),
    Call(Call),
}

/// A call, with its result where there is one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Call {
    /// The client's id of it; may be empty.
    pub id: String,
    pub name: String,
    /// As text: they may be malformed.
    pub arguments: String,
    pub result: Option<CallResult>,
}

/// What a call returned.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CallResult {
    pub text: String,
    pub failed: bool,
}

impl Record {
    pub(super) fn read(message: &Map<String, Value>) -> Self {
        match text(message, &["role"]) {
            Some("user") => Self::User(said(message)),
            Some("assistant") => Self::Assistant(answered(message)),
            Some("reasoning") => {
                let mut parts = Vec::new();
                push(&mut parts, Part::Reasoning(text(message, &["content"]).unwrap_or_default().to_owned()));
                Self::Assistant(parts)
            }
            Some("tool") => tool(message).map_or(Self::Nothing, Self::Tool),
            Some(_) | None => Self::Nothing,
        }
    }
}

/// When a message was said, if it tells.
pub(super) fn created_at_ms(message: &Map<String, Value>) -> Option<i64> {
    let at = match message.get("createdAt")? {
        Value::Number(ms) => ms.as_i64()?,
        Value::String(time) => time.parse::<jiff::Timestamp>().ok()?.as_millisecond(),
        _ => return None,
    };
    (at >= 0).then_some(at)
}

/// Adds a part: blank ones are none, and texts that follow each other are one.
pub(super) fn push(parts: &mut Vec<Part>, part: Part) {
    match (parts.last_mut(), part) {
        (_, Part::Text(more) | Part::Reasoning(more)) if is_blank(&more) => {}
        (Some(Part::Text(before)), Part::Text(more))
        | (Some(Part::Reasoning(before)), Part::Reasoning(more)) => {
            before.push('\n');
            before.push_str(&more);
        }
        (_, part) => parts.push(part),
    }
}

fn said(message: &Map<String, Value>) -> Vec<ContentPart> {
    let attached = message.get("attachments").and_then(Value::as_array).into_iter().flatten();
    let attached = attached.filter_map(|attachment| attachment.get("content"));
    message.get("content").into_iter().chain(attached).flat_map(said_parts).collect()
}

fn said_parts(content: &Value) -> Vec<ContentPart> {
    match content {
        Value::Array(parts) => parts.iter().filter_map(|part| said_part(part.as_object()?)).collect(),
        other => user_parts(other),
    }
}

/// A part in assistant-ui's form, or in the protocol's.
fn said_part(part: &Map<String, Value>) -> Option<ContentPart> {
    let kind = text(part, &["type"])?;
    let data = match kind {
        "image" => text(part, &["image"]),
        "file" => text(part, &["data"]),
        _ => None,
    };
    let Some(data) = data else { return user_part(part) };
    let mime = text(part, &["mimeType"]).filter(|mime| mime.starts_with("image/"));
    let inline = data.strip_prefix("data:").and_then(|data| data.split_once(";base64,"));
    let (mime, image) = match inline {
        Some((mime, base64)) => (Some(mime), ImageData::Base64(base64.to_owned())),
        None if data.starts_with("https:") || data.starts_with("http:") => {
            (mime, ImageData::Url(data.to_owned()))
        }
        None => (mime, ImageData::Base64(data.to_owned())),
    };
    let subtype = mime.and_then(|mime| mime.strip_prefix("image/"));
    if kind == "image" || subtype.is_some() {
        return Some(ContentPart::Image { data: image, media_type: subtype.map(str::to_owned) });
    }
    let name = text(part, &["filename"]).unwrap_or("of unknown name");
    Some(ContentPart::text(format!("[{kind} {name} was left out]")))
}

fn answered(message: &Map<String, Value>) -> Vec<Part> {
    let mut parts = Vec::new();
    // A message has one call of an id.
    let mut ids = BTreeSet::new();
    let mut push_call = |parts: &mut Vec<Part>, call: Call| {
        if call.id.is_empty() || ids.insert(call.id.clone()) {
            parts.push(Part::Call(call));
        }
    };
    match message.get("content") {
        Some(Value::Array(content)) => {
            for part in content.iter().filter_map(Value::as_object) {
                let of = || text(part, &["text"]).unwrap_or_default().to_owned();
                match text(part, &["type"]) {
                    Some("text") => push(&mut parts, Part::Text(of())),
                    Some("reasoning") => push(&mut parts, Part::Reasoning(of())),
                    Some("tool-call") => push_call(&mut parts, call_part(part)),
                    Some(_) | None => {}
                }
            }
        }
        Some(Value::String(content)) => push(&mut parts, Part::Text(content.clone())),
        Some(_) | None => {}
    }
    let calls = ["toolCalls", "tool_calls"].iter().find_map(|name| message.get(*name)?.as_array());
    for call in calls.into_iter().flatten().filter_map(Value::as_object) {
        push_call(&mut parts, protocol_call(call));
    }
    parts
}

fn call_part(part: &Map<String, Value>) -> Call {
    let given =
        |value: &&Value| !value.is_null() && value.as_object().is_none_or(|object| !object.is_empty());
    let arguments = match text(part, &["argsText"]).filter(|text| !text.is_empty()) {
        Some(text) => text.to_owned(),
        None => part.get("args").filter(given).map(Value::to_string).unwrap_or_default(),
    };
    let failed = part.get("isError").and_then(Value::as_bool);
    // Null is absent, but where the part says how the call has ended: then it is what the tool returned.
    let result = part.get("result").filter(|result| !result.is_null() || failed.is_some());
    Call {
        id: text(part, &["toolCallId"]).unwrap_or_default().to_owned(),
        name: tool_name(text(part, &["toolName"])),
        arguments,
        result: result.map(|result| CallResult { text: plain(Some(result)), failed: failed == Some(true) }),
    }
}

fn protocol_call(call: &Map<String, Value>) -> Call {
    let function = call.get("function").and_then(Value::as_object);
    Call {
        id: text(call, &["id", "toolCallId", "tool_call_id"]).unwrap_or_default().to_owned(),
        name: tool_name(function.and_then(|function| text(function, &["name"]))),
        arguments: match function.and_then(|function| function.get("arguments")) {
            Some(Value::String(text)) => text.clone(),
            None | Some(Value::Null) => String::new(),
            Some(other) => other.to_string(),
        },
        result: None,
    }
}

/// What a tool record answers; none if it names no call.
fn tool(message: &Map<String, Value>) -> Option<Call> {
    let result = message.get("result").filter(|result| !result.is_null());
    let failed = text(message, &["error"]).is_some()
        || message.get("isError") == Some(&Value::Bool(true))
        || text(message, &["status"]) == Some("error");
    Some(Call {
        id: text(message, &["toolCallId", "tool_call_id"]).filter(|id| !id.is_empty())?.to_owned(),
        name: tool_name(text(message, &["toolName", "name"])),
        arguments: String::new(),
        result: Some(CallResult {
            text: match result.or_else(|| message.get("content")) {
                Some(parts @ Value::Array(_)) if result.is_none() => {
                    ContentPart::join_text(&user_parts(parts))
                }
                other => plain(other),
            },
            failed,
        }),
    })
}

fn tool_name(name: Option<&str>) -> String {
    name.filter(|name| !is_blank(name)).unwrap_or(UNNAMED_TOOL).to_owned()
}

/// A value as text.
fn plain(value: Option<&Value>) -> String {
    match value {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    }
}
