//! OpenAI Chat Completions: <https://platform.openai.com/docs/api-reference/chat/create>. What strict copies of the API
//! refuse (Groq: unknown members of messages; Mistral, vLLM: a last message of the assistant) is refused here as well.

use serde_json::Value;

use super::{Names, Pairs, Verdict, ensure, https, list, members, picture, schema, string, text, word};

const IMAGES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];
const BODY: [&str; 8] = [
    "model",
    "messages",
    "tools",
    "tool_choice",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
];
/// "Expected an array with maximum length 128."
const MAX_TOOLS: usize = 128;

pub fn judge(body: &Value) -> Verdict {
    members(body, &BODY, "body")?;
    text(&body["model"], "model")?;
    let mut names = Names::default();
    if let Some(tools) = body.get("tools") {
        let tools = list(tools, "tools")?;
        ensure(tools.len() <= MAX_TOOLS, || format!("{} tools", tools.len()))?;
        for tool in tools {
            ensure(tool["type"] == "function", || "a tool that is no function".to_owned())?;
            let function = &tool["function"];
            members(function, &["name", "description", "parameters", "strict"], "a function")?;
            names.add(&function["name"])?;
            schema(&function["parameters"], "parameters")?;
            ensure(function["strict"] != true, || "nobody here writes strict schemas".to_owned())?;
            ensure(matches!(function["description"], Value::Null | Value::String(_)), || {
                "description".to_owned()
            })?;
        }
    }
    let messages = list(&body["messages"], "messages")?;
    let mut pairs = Pairs::default();
    for (at, each) in messages.iter().enumerate() {
        message(at, each, &mut pairs).map_err(|e| format!("message {at}: {e}"))?;
    }
    pairs.settled()?;
    let last = &messages[messages.len() - 1];
    ensure(last["role"] == "user" || last["role"] == "tool", || {
        "the last message is the assistant's".to_owned()
    })
}

fn message(at: usize, message: &Value, pairs: &mut Pairs) -> Verdict {
    let role = string(&message["role"], "role")?;
    // "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'."
    if role != "tool" {
        pairs.settled()?;
    }
    match role {
        "system" => {
            members(message, &["role", "content"], "a system message")?;
            ensure(at == 0, || "a system message that is not the first".to_owned())?;
            text(&message["content"], "content")
        }
        "user" => {
            members(message, &["role", "content"], "a user message")?;
            match &message["content"] {
                Value::String(_) => text(&message["content"], "content"),
                content => list(content, "content")?.iter().try_for_each(part),
            }
        }
        "assistant" => {
            members(message, &["role", "content", "tool_calls"], "an assistant message")?;
            match &message["content"] {
                Value::Null => ensure(message.get("tool_calls").is_some(), || "no content".to_owned())?,
                content => text(content, "content")?,
            }
            match message.get("tool_calls") {
                None => Ok(()),
                Some(calls) => list(calls, "tool_calls")?.iter().try_for_each(|each| call(each, pairs)),
            }
        }
        "tool" => {
            members(message, &["role", "tool_call_id", "content"], "a tool message")?;
            text(&message["content"], "content")?;
            pairs.result(string(&message["tool_call_id"], "tool_call_id")?)
        }
        odd => Err(format!("role {odd}")),
    }
}

fn call(call: &Value, pairs: &mut Pairs) -> Verdict {
    members(call, &["id", "type", "function"], "a call")?;
    ensure(call["type"] == "function", || "a call of no function".to_owned())?;
    // "Expected a string with maximum length 40."
    word(&call["id"], 40, "a call's id")?;
    members(&call["function"], &["name", "arguments"], "a function")?;
    word(&call["function"]["name"], 64, "a call's name")?;
    arguments(&call["function"]["arguments"])?;
    pairs.call(string(&call["id"], "id")?)
}

/// The text of a JSON object: servers that run other models parse it for their templates.
pub fn arguments(value: &Value) -> Verdict {
    let text = string(value, "arguments")?;
    let parsed: Result<Value, _> = serde_json::from_str(text);
    ensure(parsed.is_ok_and(|parsed| parsed.is_object()), || {
        format!("arguments that are no object: {text:?}")
    })
}

fn part(part: &Value) -> Verdict {
    match string(&part["type"], "type")? {
        "text" => {
            members(part, &["type", "text"], "a part")?;
            text(&part["text"], "text")
        }
        "image_url" => {
            members(part, &["type", "image_url"], "a part")?;
            members(&part["image_url"], &["url", "detail"], "image_url")?;
            image(string(&part["image_url"]["url"], "url")?)
        }
        odd => Err(format!("a part of type {odd}")),
    }
}

/// An https address, or `data:image/png;base64,…`.
pub fn image(url: &str) -> Verdict {
    let Some(data) = url.strip_prefix("data:") else { return https(url) };
    let (media_type, data) =
        data.split_once(";base64,").ok_or_else(|| format!("an image without base64: {url:?}"))?;
    picture(media_type, data, &IMAGES)
}
