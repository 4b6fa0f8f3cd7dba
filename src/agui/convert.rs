//! Items to messages, and messages to those that assistant-ui keeps (H3, H4). Messages of a client never become items but
//! for what is new in a request.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::emit::{reasoning_id, result_id};
use super::wire::{Function, Message, Source, ToolCall, UserContent, UserPart};
use crate::message::{
    CallId, ContentPart, DedupId, Epoch, ImageData, Item, ItemBody, ItemId, Outcome, SettledBy, ThreadId,
};

/// Begins the dedup id of what a client's user said: then the epoch it was said in, then the client's own id.
const SAID: &str = "agui:";

/// What a message of a client is known under: its own id, in the log it was said in. After an edit the client may say it
/// once more, in another log.
pub fn said(epoch: Epoch, id: &str) -> DedupId {
    DedupId::new(format!("{SAID}{epoch}:{id}"))
}

/// The client's own id of an item, if a client has said it.
pub fn client_id(item: &Item) -> Option<&str> {
    let dedup = item.facts.dedup.as_ref()?.as_str();
    Some(dedup.strip_prefix(SAID)?.split_once(':')?.1)
}

/// An item of a view, and where it is stored.
#[derive(Clone, Copy, Debug)]
pub struct Placed<'a> {
    /// The log.
    pub epoch: Epoch,
    /// The item.
    pub item: &'a Item,
    /// Of an item that another thread has: which of those that this one inherits from, from 1; else 0.
    pub ancestor: usize,
}

/// Items of a view of `own` with their places: `logs` says where each is stored.
pub fn place<'a, 'b>(
    own: &ThreadId,
    logs: impl Iterator<Item = (&'b ThreadId, Epoch)>,
    items: impl IntoIterator<Item = &'a Item>,
) -> Vec<Placed<'a>> {
    let mut ancestors: Vec<&ThreadId> = Vec::new();
    let mut placed = Vec::new();
    for ((thread, epoch), item) in logs.zip(items) {
        let ancestor = match thread == own {
            true => 0,
            false => {
                let known = ancestors.iter().position(|known| *known == thread);
                1 + known.unwrap_or_else(|| {
                    ancestors.push(thread);
                    ancestors.len() - 1
                })
            }
        };
        placed.push(Placed { epoch, item, ancestor });
    }
    placed
}

impl Placed<'_> {
    /// Its id for clients: the one it was given by its own client, else that of its place. One that was imported with the
    /// id of an inherited place has that of its own place as well: in this thread that id may be another item's.
    pub fn id(&self) -> String {
        match client_id(self.item) {
            Some(id) if self.ancestor == 0 || !is_inherited_place(id) => id.to_owned(),
            Some(_) | None => self.place_id(),
        }
    }

    /// Whether a client may mean it by `id`: also by the one under which it was imported.
    pub fn is_known_as(&self, id: &str) -> bool {
        client_id(self.item) == Some(id) || self.id() == id
    }

    /// Its id by its place, which is what model output goes by: no two items of a view share one.
    pub fn place_id(&self) -> String {
        let id = ItemId::at(self.epoch, self.item.seq);
        match self.ancestor {
            0 => id.as_str().to_owned(),
            ancestor => format!("f{ancestor}-{id}"),
        }
    }

    /// Whether it is what a person said.
    pub fn is_said(&self) -> bool {
        matches!(&self.item.body, ItemBody::User(user) if user.synthetic_reason.is_none())
    }
}

/// The epoch in an id that dormouse has made of a place, in whatever thread: `i0-3`, also with what else there is at a
/// place behind it, such as its reasoning.
pub(super) fn place_epoch(id: &str) -> Option<u32> {
    let (epoch, seq) = id.strip_prefix('i')?.split_once('-')?;
    let is_number = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    (is_number(epoch) && is_number(seq)).then(|| epoch.parse().ok()).flatten()
}

/// Whether an id is as those of inherited places are: `f1-i0-3`.
fn is_inherited_place(id: &str) -> bool {
    let place = id.strip_prefix('f').and_then(|id| id.split_once('-'));
    place.is_some_and(|(ancestor, place)| ancestor.parse::<usize>().is_ok() && place_epoch(place).is_some())
}

/// For each item, the index at which its response begins, if it is of one. A response is a run of model output.
pub fn responses(items: &[Placed<'_>]) -> Vec<Option<usize>> {
    let mut first = None;
    items
        .iter()
        .enumerate()
        .map(|(at, placed)| {
            first = placed.item.body.is_output().then(|| first.unwrap_or(at));
            first
        })
        .collect()
}

/// The text of a result, for a client.
pub fn result_text(parts: &[ContentPart]) -> String {
    ContentPart::join_text(parts)
}

/// A view as messages: one for each response, its results right behind it. What the runtime wrote for the model alone is
/// left out.
pub fn messages(items: &[Placed<'_>]) -> Vec<Message> {
    let mut results: BTreeMap<&CallId, (String, bool)> = BTreeMap::new();
    for placed in items {
        let (call, text, failed) = match &placed.item.body {
            ItemBody::ToolResult(result) => (&result.call_id, result_text(&result.parts), is_failure(result)),
            ItemBody::Interrupt(interrupt) => (&interrupt.call_id, INTERRUPTED.to_owned(), true),
            ItemBody::System(_)
            | ItemBody::User(_)
            | ItemBody::Assistant(_)
            | ItemBody::ToolCall(_)
            | ItemBody::BackendToolCall(_)
            | ItemBody::Reasoning(_)
            | ItemBody::Event(_)
            | ItemBody::State(_)
            | ItemBody::Unknown { .. } => continue,
        };
        // The first one counts.
        results.entry(call).or_insert((text, failed));
    }
    let firsts = responses(items);
    let mut messages = Vec::new();
    let mut at = 0;
    while let Some(placed) = items.get(at) {
        let Some(first) = firsts[at] else {
            if let (true, ItemBody::User(user)) = (placed.is_said(), &placed.item.body) {
                messages.push(Message::User { id: placed.id(), content: user_content(&user.parts) });
            }
            at += 1;
            continue;
        };
        let end = firsts.iter().skip(at).position(|of| *of != Some(first)).map_or(items.len(), |n| at + n);
        response(&items[at..end], &mut results, &mut messages);
        at = end;
    }
    messages
}

/// What a call that user text has cut short is shown to have returned.
pub(crate) const INTERRUPTED: &str = "Tool call cancelled by user";

fn is_failure(result: &crate::message::ToolResultItem) -> bool {
    match result.outcome {
        Outcome::Ok => result
            .parts
            .first()
            .is_some_and(|part| matches!(part, ContentPart::Text(text) if text.starts_with("Error: "))),
        _ => result.settled_by == SettledBy::Runtime || result.outcome == Outcome::Error,
    }
}

fn response(
    items: &[Placed<'_>],
    results: &mut BTreeMap<&CallId, (String, bool)>,
    messages: &mut Vec<Message>,
) {
    let Some(first) = items.first() else { return };
    let id = first.id();
    let (mut reasoning, mut text, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    for placed in items {
        match &placed.item.body {
            ItemBody::Reasoning(item) if !item.text.is_empty() => reasoning.push(item.text.as_str()),
            ItemBody::Assistant(item) => text.push(item.text.as_str()),
            ItemBody::ToolCall(call) => calls.push(call),
            ItemBody::System(_)
            | ItemBody::User(_)
            | ItemBody::ToolResult(_)
            | ItemBody::BackendToolCall(_)
            | ItemBody::Reasoning(_)
            | ItemBody::Interrupt(_)
            | ItemBody::Event(_)
            | ItemBody::State(_)
            | ItemBody::Unknown { .. } => {}
        }
    }
    if !reasoning.is_empty() {
        messages.push(Message::Reasoning { id: reasoning_id(&id), content: reasoning.concat() });
    }
    if text.is_empty() && calls.is_empty() {
        return;
    }
    messages.push(Message::Assistant {
        id,
        content: (!text.is_empty()).then(|| text.concat()),
        tool_calls: calls
            .iter()
            .map(|call| ToolCall {
                id: call.call_id.as_str().to_owned(),
                r#type: "function",
                function: Function { name: call.name.clone(), arguments: call.arguments.clone() },
            })
            .collect(),
        metadata: None,
    });
    for call in calls {
        let Some((content, failed)) = results.remove(&call.call_id) else { continue };
        messages.push(Message::Tool {
            id: result_id(call.call_id.as_str()),
            tool_call_id: call.call_id.as_str().to_owned(),
            error: failed.then(|| content.clone()),
            content,
        });
    }
}

fn user_content(parts: &[ContentPart]) -> UserContent {
    let part = |part: &ContentPart| match part {
        ContentPart::Text(text) => Some(UserPart::Text { text: text.clone() }),
        ContentPart::Image { data, media_type } => {
            let mime = media_type.as_ref().map(|subtype| format!("image/{subtype}"));
            Some(UserPart::Image {
                source: match data {
                    ImageData::Base64(value) => Source::Data {
                        value: value.clone(),
                        mime_type: mime.unwrap_or_else(|| "image/png".to_owned()),
                    },
                    ImageData::Url(value) => Source::Url { value: value.clone(), mime_type: mime },
                },
            })
        }
        ContentPart::Unknown(_) => None,
    };
    if parts.iter().all(|part| matches!(part, ContentPart::Text(_))) {
        return UserContent::Text(ContentPart::join_text(parts));
    }
    UserContent::Parts(parts.iter().filter_map(part).collect())
}

/// A message in the form that assistant-ui keeps, for its history adapter. Tool records fold into the call they answer.
pub fn thread_messages(messages: &[Message]) -> Vec<Value> {
    let mut thread: Vec<Value> = Vec::new();
    for message in messages {
        match message {
            Message::User { id, content } => thread.push(json!({
                "id": id, "role": "user", "content": user_parts(content), "attachments": [], "metadata": { "custom": {} },
            })),
            Message::Reasoning { id, content } => {
                thread.push(assistant(id, vec![json!({ "type": "reasoning", "text": content })], None));
            }
            Message::Assistant { id, content, tool_calls, metadata } => {
                let text = content.iter().filter(|text| !text.is_empty());
                let text = text.map(|text| json!({ "type": "text", "text": text }));
                thread.push(assistant(id, text.chain(tool_calls.iter().map(call_part)).collect(), metadata.as_ref()));
            }
            Message::Tool { id, tool_call_id, content, error } => {
                answer(&mut thread, id, tool_call_id, content, error.is_some());
            }
        }
    }
    for message in &mut thread {
        if message["role"] == "assistant" {
            message["status"] = status(message);
        }
    }
    thread
}

fn user_parts(content: &UserContent) -> Vec<Value> {
    match content {
        UserContent::Text(text) => vec![json!({ "type": "text", "text": text })],
        UserContent::Parts(parts) => parts
            .iter()
            .map(|part| match part {
                UserPart::Text { text } => json!({ "type": "text", "text": text }),
                UserPart::Image { source: Source::Url { value, .. } } => {
                    json!({ "type": "image", "image": value })
                }
                UserPart::Image { source: Source::Data { value, mime_type } } => {
                    json!({ "type": "image", "image": format!("data:{mime_type};base64,{value}") })
                }
            })
            .collect(),
    }
}

fn assistant(id: &str, content: Vec<Value>, metadata: Option<&Value>) -> Value {
    let metadata = metadata.cloned().unwrap_or_else(|| json!({ "custom": {} }));
    json!({ "id": id, "role": "assistant", "content": content, "metadata": metadata })
}

fn call_part(call: &ToolCall) -> Value {
    let mut part = json!({
        "type": "tool-call",
        "toolCallId": call.id,
        "toolName": call.function.name,
        "argsText": call.function.arguments,
    });
    if let Ok(args @ Value::Object(_)) = serde_json::from_str::<Value>(&call.function.arguments) {
        part["args"] = args;
    }
    part
}

/// Puts a result into the newest part that has its call; one without an owner stands for itself.
fn answer(thread: &mut Vec<Value>, id: &str, call: &str, content: &str, failed: bool) {
    let result = serde_json::from_str::<Value>(content).unwrap_or_else(|_| Value::from(content));
    let parts = thread.iter_mut().rev().filter_map(|message| message["content"].as_array_mut());
    let owner = parts.flat_map(|parts| parts.iter_mut().rev()).find(|part| part["toolCallId"] == call);
    match owner {
        Some(part) => {
            part["result"] = result;
            part["isError"] = Value::from(failed);
        }
        None => {
            let name = match id.is_empty() {
                true => call,
                false => id,
            };
            let part = json!({
                "type": "tool-call", "toolCallId": call, "toolName": "tool", "argsText": "", "args": {},
                "result": result, "isError": failed,
            });
            thread.push(assistant(&format!("{name}:assistant"), vec![part], None));
        }
    }
}

/// What assistant-ui shows a message to be: paused by persisted interrupts, waiting for a call, or complete.
fn status(message: &Value) -> Value {
    let interrupts = &message["metadata"]["custom"]["agui"]["interrupts"];
    if interrupts.as_array().is_some_and(|interrupts| !interrupts.is_empty()) {
        return json!({ "type": "requires-action", "reason": "interrupt" });
    }
    let parts = message["content"].as_array();
    let waits = |part: &Value| part["type"] == "tool-call" && part.get("result").is_none();
    match parts.is_some_and(|parts| parts.iter().any(waits)) {
        true => json!({ "type": "requires-action", "reason": "tool-calls" }),
        false => json!({ "type": "complete", "reason": "unknown" }),
    }
}

/// What an answer to whether a call may run looks like: the form for which clients have buttons, and nothing besides where
/// its arguments are not to be edited.
pub fn approval(editable: bool) -> Value {
    let mut schema = json!({
        "type": "object",
        "properties": { "approved": { "type": "boolean" }, "reason": { "type": "string" } },
        "required": ["approved"],
    });
    if editable {
        schema["properties"]["editedArgs"] = json!({ "type": "object" });
    }
    schema
}

/// What an answer looks like that is one of `answers`, no two of which are equal.
pub fn selection(answers: &[String], default: Option<&str>) -> Value {
    let mut selected = json!({ "type": "string", "enum": answers });
    if let Some(default) = default {
        selected["default"] = Value::from(default);
    }
    json!({ "type": "object", "properties": { "selected": selected }, "required": ["selected"] })
}

/// The views of a thread's logs, oldest first, as a repository (H4): a message's parent is its predecessor in the view where
/// it first appears, and what the last view says of it counts.
pub fn repository(views: &[Vec<Message>]) -> Value {
    let mut order: Vec<String> = Vec::new();
    let mut known: BTreeMap<String, (Option<String>, Value)> = BTreeMap::new();
    let mut head = None;
    for (at, view) in views.iter().enumerate() {
        let mut parent: Option<String> = None;
        for message in thread_messages(view) {
            let id = message["id"].as_str().unwrap_or_default().to_owned();
            match known.get_mut(&id) {
                None => {
                    order.push(id.clone());
                    known.insert(id.clone(), (parent.clone(), message));
                }
                Some((_, content)) if at + 1 == views.len() => *content = message,
                Some(_) => {}
            }
            parent = Some(id);
        }
        head = parent;
    }
    let messages: Vec<Value> = order
        .iter()
        .filter_map(|id| known.get(id))
        .map(|(parent, message)| json!({ "parentId": parent, "message": message }))
        .collect();
    json!({ "headId": head, "messages": messages })
}
