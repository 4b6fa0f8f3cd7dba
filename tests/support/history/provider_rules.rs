//! What providers refuse, written from their documentation and not from `render`: a request is translated the
//! way an adapter would and then judged by the rules of Anthropic's Messages and OpenAI's Chat Completions.

use std::collections::BTreeSet;

use dormouse::history::request::{ModelRequest, RequestCall, RequestMessage, RequestResult};
use dormouse::message::{ContentPart, ImageData};

/// A block of an Anthropic message, as far as the rules look at it.
enum Block<'a> {
    Thinking { proven: bool },
    Text(&'a str),
    Image,
    ToolUse { id: &'a str, input: &'a str },
    ToolResult { id: &'a str, content: &'a [ContentPart] },
}

struct Message<'a> {
    user: bool,
    blocks: Vec<Block<'a>>,
}

/// Judges a request by both dialects.
pub fn judge(request: &ModelRequest) -> Result<(), String> {
    anthropic(request).map_err(|e| format!("Anthropic: {e}"))?;
    openai_chat(request).map_err(|e| format!("OpenAI Chat: {e}"))
}

fn blank(text: &str) -> bool {
    text.chars().all(char::is_whitespace)
}

fn is_object(text: &str) -> bool {
    matches!(serde_json::from_str(text), Ok(serde_json::Value::Object(_)))
}

/// `^[a-zA-Z0-9_-]{1,64}$`
fn check_id(id: &str) -> Result<(), String> {
    let fits =
        (1..=64).contains(&id.len()) && id.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if fits { Ok(()) } else { Err(format!("the id {id:?} is out of bounds")) }
}

/// "Could not process image": padded base64 of a PNG, JPEG, GIF or WebP picture, by the characters that these
/// begin with, at most 5 MiB.
fn check_picture(base64: &str) -> Result<(), String> {
    let alphabet = |c: char| c.is_ascii_alphanumeric() || c == '+' || c == '/';
    let body = base64.trim_end_matches('=');
    let whole =
        base64.len().is_multiple_of(4) && base64.len() - body.len() <= 2 && body.chars().all(alphabet);
    let known =
        ["iVBORw0KGg", "/9j/", "R0lGODdh", "R0lGODlh", "UklGR"].iter().any(|start| base64.starts_with(start));
    if whole && known && base64.len() <= 5 * 1024 * 1024 {
        Ok(())
    } else {
        Err(format!("an image of {} characters that is none", base64.len()))
    }
}

fn check_parts(parts: &[ContentPart]) -> Result<(), String> {
    if parts.is_empty() {
        return Err("empty content".to_owned());
    }
    for part in parts {
        match part {
            ContentPart::Text(text) if blank(text) => return Err("a text is blank".to_owned()),
            ContentPart::Text(_) => {}
            ContentPart::Image { data: ImageData::Base64(data), .. } => check_picture(data)?,
            ContentPart::Image { data: ImageData::Url(url), .. } => {
                // "Only HTTPS URLs are supported."
                if url.strip_prefix("https://").is_none_or(str::is_empty) {
                    return Err(format!("an image at {url:?}"));
                }
            }
            ContentPart::Unknown(_) => return Err("a content kind that no provider knows".to_owned()),
        }
    }
    Ok(())
}

fn blocks(parts: &[ContentPart]) -> Vec<Block<'_>> {
    fn block(part: &ContentPart) -> Block<'_> {
        match part {
            ContentPart::Text(text) => Block::Text(text),
            ContentPart::Image { .. } | ContentPart::Unknown(_) => Block::Image,
        }
    }
    parts.iter().map(block).collect()
}

fn anthropic(request: &ModelRequest) -> Result<(), String> {
    if request.system.as_deref().is_some_and(blank) {
        return Err("system: a text is blank".to_owned());
    }
    let mut messages: Vec<Message<'_>> = Vec::new();
    for message in &request.messages {
        let (user, blocks) = match message {
            RequestMessage::User(parts) => {
                check_parts(parts)?;
                (true, blocks(parts))
            }
            RequestMessage::ToolResults(results) => (true, results.iter().map(result_block).collect()),
            RequestMessage::Assistant(said) => {
                let mut blocks = Vec::new();
                for reasoning in &said.reasoning {
                    let signed = reasoning.signature.as_deref().is_some_and(|signature| !blank(signature));
                    blocks.push(Block::Thinking { proven: signed || reasoning.provider.is_some() });
                }
                blocks.extend(said.text.as_deref().map(Block::Text));
                blocks.extend(said.calls.iter().map(call_block));
                (false, blocks)
            }
        };
        match messages.last_mut() {
            // The API joins user turns that follow each other; results come before text in them.
            Some(before) if before.user && user => before.blocks.extend(blocks),
            Some(before) if before.user == user => return Err("two assistant messages in a row".to_owned()),
            _ => messages.push(Message { user, blocks }),
        }
    }
    if !messages.first().is_some_and(|message| message.user) {
        return Err("the first message is not user-role".to_owned());
    }
    if !messages.last().is_some_and(|message| message.user) {
        return Err("the last message is not user-role".to_owned());
    }
    let mut ids = BTreeSet::new();
    let mut owed: BTreeSet<&str> = BTreeSet::new();
    for message in &messages {
        let due = std::mem::take(&mut owed);
        let mut answered = BTreeSet::new();
        let mut other = false;
        for (at, block) in message.blocks.iter().enumerate() {
            match block {
                Block::Thinking { proven } => {
                    if !proven {
                        return Err("thinking without a signature".to_owned());
                    }
                    if at + 1 == message.blocks.len() {
                        return Err("an assistant message ends on thinking".to_owned());
                    }
                }
                Block::Text(text) if blank(text) => return Err("a text is blank".to_owned()),
                Block::Text(_) | Block::Image => other = true,
                Block::ToolUse { id, input } => {
                    check_id(id)?;
                    if !is_object(input) {
                        return Err(format!("tool_use {id}: input is no object: {input:?}"));
                    }
                    if !ids.insert(*id) {
                        return Err(format!("tool_use ids must be unique: {id}"));
                    }
                    owed.insert(id);
                }
                Block::ToolResult { id, content } => {
                    check_parts(content)?;
                    if other {
                        return Err(format!("tool_result {id} stands behind other content"));
                    }
                    if !due.contains(id) || !answered.insert(*id) {
                        return Err(format!("tool_result {id} answers no call of the message before"));
                    }
                }
            }
        }
        if message.blocks.is_empty() {
            return Err("a message is empty".to_owned());
        }
        if answered != due {
            return Err(format!("tool_use without tool_result right behind it: {due:?}"));
        }
    }
    Ok(())
}

fn result_block(result: &RequestResult) -> Block<'_> {
    Block::ToolResult { id: result.id.as_str(), content: &result.parts }
}

fn call_block(call: &RequestCall) -> Block<'_> {
    Block::ToolUse { id: call.id.as_str(), input: &call.arguments }
}

/// Chat Completions: `tool` messages follow the assistant message that owes them, one each, nothing between.
fn openai_chat(request: &ModelRequest) -> Result<(), String> {
    let mut owed: Vec<&str> = Vec::new();
    for message in &request.messages {
        match message {
            RequestMessage::ToolResults(results) => {
                if results.is_empty() {
                    return Err("no results".to_owned());
                }
                for result in results {
                    let Some(at) = owed.iter().position(|id| *id == result.id.as_str()) else {
                        return Err(format!("tool message {} answers no tool_calls", result.id));
                    };
                    owed.remove(at);
                    check_parts(&result.parts)?;
                }
            }
            _ if !owed.is_empty() => return Err(format!("tool_calls without tool messages: {owed:?}")),
            RequestMessage::User(parts) => check_parts(parts)?,
            RequestMessage::Assistant(said) => {
                let text = said.text.as_deref().unwrap_or_default();
                if blank(text) && (said.text.is_some() || said.calls.is_empty()) {
                    return Err("an assistant message without content".to_owned());
                }
                for call in &said.calls {
                    check_id(call.id.as_str())?;
                    if !is_object(&call.arguments) {
                        return Err(format!("arguments of {} are no object", call.id));
                    }
                }
                owed = said.calls.iter().map(|call| call.id.as_str()).collect();
            }
        }
    }
    if owed.is_empty() { Ok(()) } else { Err(format!("tool_calls without tool messages: {owed:?}")) }
}
