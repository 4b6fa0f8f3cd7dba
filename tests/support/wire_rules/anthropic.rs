//! Anthropic Messages: <https://platform.claude.com/docs/en/api/messages>, and its pages on tool use and thinking.

use serde_json::Value;

use super::{
    Names, Pairs, Verdict, ensure, https, list, members, object, picture, property_names, schema, string,
    text, word,
};

const IMAGES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];
const BODY: [&str; 11] = [
    "model",
    "max_tokens",
    "messages",
    "system",
    "tools",
    "tool_choice",
    "stream",
    "metadata",
    "stop_sequences",
    "thinking",
    "output_config",
];

/// "A maximum of 4 blocks with cache_control may be provided."
const MAX_CACHE_MARKS: usize = 4;

pub fn judge(body: &Value) -> Verdict {
    let body = &without_cache_marks(body)?;
    members(body, &BODY, "body")?;
    text(&body["model"], "model")?;
    ensure(body["max_tokens"].as_u64().is_some_and(|most| most > 0), || "no max_tokens".to_owned())?;
    match &body["system"] {
        Value::Null => {}
        Value::String(_) => text(&body["system"], "system")?,
        blocks => list(blocks, "system")?.iter().try_for_each(|block| text(&block["text"], "system"))?,
    }
    let mut names = Names::default();
    if let Some(tools) = body.get("tools") {
        for tool in list(tools, "tools")? {
            members(tool, &["name", "description", "input_schema"], "a tool")?;
            names.add(&tool["name"])?;
            if let Some(description) = tool.get("description") {
                text(description, "a description")?;
            }
            schema(&tool["input_schema"], "input_schema")?;
            property_names(&tool["input_schema"])?;
        }
    }
    let mut pairs = Pairs::default();
    let mut uses_tools = false;
    let messages = joined(list(&body["messages"], "messages")?)?;
    for (at, (role, blocks)) in messages.iter().enumerate() {
        let what = |e| format!("message {at}: {e}");
        match role.as_str() {
            "user" => user(blocks, &mut pairs).map_err(what)?,
            _ => assistant(blocks, &mut pairs).map_err(what)?,
        }
        uses_tools |=
            blocks.iter().any(|block| block["type"] == "tool_use" || block["type"] == "tool_result");
    }
    pairs.settled()?;
    ensure(messages[0].0 == "user", || "the first message is not user-role".to_owned())?;
    // "This model does not support assistant message prefill. The conversation must end with a user message."
    ensure(messages[messages.len() - 1].0 == "user", || "the last message is not user-role".to_owned())?;
    ensure(!uses_tools || body.get("tools").is_some(), || "tool blocks without tools".to_owned())
}

/// Judges the marks of prompt caching, and takes them away: they may stand on tools, on blocks of the system entry and on
/// blocks of messages, but "thinking blocks cannot be directly cached with cache_control", nor blank text.
fn without_cache_marks(body: &Value) -> Result<Value, String> {
    let mut body = body.clone();
    let blocks = |member: &str| -> Vec<String> {
        let count = body[member].as_array().map_or(0, Vec::len);
        (0..count).map(|at| format!("/{member}/{at}")).collect()
    };
    let mut places = [blocks("tools"), blocks("system")].concat();
    for message in blocks("messages") {
        let count =
            body.pointer(&message).and_then(|message| message["content"].as_array()).map_or(0, Vec::len);
        places.extend((0..count).map(|at| format!("{message}/content/{at}")));
    }
    let mut marks = 0;
    for place in places {
        let Some(block) = body.pointer_mut(&place).and_then(Value::as_object_mut) else { continue };
        let Some(mark) = block.remove("cache_control") else { continue };
        members(&mark, &["type", "ttl"], "cache_control")?;
        ensure(mark["type"] == "ephemeral", || format!("cache_control of type {}", mark["type"]))?;
        ensure(matches!(mark["ttl"].as_str().unwrap_or("5m"), "5m" | "1h"), || "ttl".to_owned())?;
        let kind = block.get("type").and_then(Value::as_str).unwrap_or_default();
        ensure(!kind.ends_with("thinking"), || format!("{place}: cache_control on {kind}"))?;
        marks += 1;
    }
    ensure(marks <= MAX_CACHE_MARKS, || format!("{marks} blocks with cache_control"))?;
    Ok(body)
}

/// "Consecutive user or assistant turns in your request will be combined into a single turn."
fn joined(messages: &[Value]) -> Result<Vec<(String, Vec<Value>)>, String> {
    let mut joined: Vec<(String, Vec<Value>)> = Vec::new();
    for message in messages {
        members(message, &["role", "content"], "a message")?;
        let role = string(&message["role"], "role")?.to_owned();
        ensure(role == "user" || role == "assistant", || format!("role {role}"))?;
        let blocks = match &message["content"] {
            Value::String(text) => vec![serde_json::json!({ "type": "text", "text": text })],
            content => list(content, "content")?.to_vec(),
        };
        match joined.last_mut() {
            Some((before, all)) if *before == role => all.extend(blocks),
            _ => joined.push((role, blocks)),
        }
    }
    Ok(joined)
}

fn user(blocks: &[Value], pairs: &mut Pairs) -> Verdict {
    // "tool_result blocks come first in the content array; any text must come after all tool results."
    let results = blocks.iter().take_while(|block| block["type"] == "tool_result").count();
    for block in &blocks[..results] {
        members(block, &["type", "tool_use_id", "content", "is_error"], "tool_result")?;
        word(&block["tool_use_id"], 64, "tool_use_id")?;
        pairs.result(string(&block["tool_use_id"], "tool_use_id")?)?;
        ensure(matches!(block["is_error"], Value::Null | Value::Bool(_)), || "is_error".to_owned())?;
        match &block["content"] {
            Value::String(_) => text(&block["content"], "the content of a result")?,
            content => list(content, "the content of a result")?.iter().try_for_each(shown)?,
        }
    }
    pairs.settled()?;
    blocks[results..].iter().try_for_each(shown)
}

/// Text or an image.
fn shown(block: &Value) -> Verdict {
    match string(&block["type"], "type")? {
        "text" => {
            members(block, &["type", "text"], "text")?;
            text(&block["text"], "text")
        }
        "image" => {
            members(block, &["type", "source"], "image")?;
            let source = &block["source"];
            match string(&source["type"], "the type of a source")? {
                "base64" => {
                    members(source, &["type", "media_type", "data"], "source")?;
                    picture(
                        string(&source["media_type"], "media_type")?,
                        string(&source["data"], "data")?,
                        &IMAGES,
                    )
                }
                "url" => https(string(&source["url"], "url")?),
                odd => Err(format!("an image from {odd}")),
            }
        }
        odd => Err(format!("a block of type {odd} in a user message")),
    }
}

fn assistant(blocks: &[Value], pairs: &mut Pairs) -> Verdict {
    pairs.settled()?;
    let mut others = false;
    for block in blocks {
        match string(&block["type"], "type")? {
            "thinking" => {
                members(block, &["type", "thinking", "signature"], "thinking")?;
                string(&block["thinking"], "thinking")?;
                text(&block["signature"], "a signature")?;
                ensure(!others, || "thinking behind other content".to_owned())?;
            }
            "redacted_thinking" => {
                members(block, &["type", "data"], "redacted_thinking")?;
                text(&block["data"], "redacted_thinking")?;
                ensure(!others, || "thinking behind other content".to_owned())?;
            }
            "text" => {
                members(block, &["type", "text"], "text")?;
                text(&block["text"], "text")?;
                others = true;
            }
            "tool_use" => {
                members(block, &["type", "id", "name", "input"], "tool_use")?;
                word(&block["id"], 64, "a call's id")?;
                word(&block["name"], 64, "a call's name")?;
                object(&block["input"], "input")?;
                pairs.call(string(&block["id"], "id")?)?;
                others = true;
            }
            odd => return Err(format!("a block of type {odd} in an assistant message")),
        }
    }
    // "The final block in an assistant message cannot be `thinking`."
    ensure(others, || "an assistant message of thinking alone".to_owned())
}
