//! Bedrock Converse: <https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html>, its types, and
//! what Claude behind it refuses.

use serde_json::Value;

use super::{
    Names, Pairs, Verdict, base64, ensure, list, members, object, picture, property_names, schema, string,
    text, word,
};

const BODY: [&str; 5] =
    ["system", "messages", "toolConfig", "inferenceConfig", "additionalModelRequestFields"];
/// "You can include up to 20 images."
const MAX_IMAGES: usize = 20;

pub fn judge(body: &Value) -> Verdict {
    members(body, &BODY, "body")?;
    if let Some(system) = body.get("system") {
        for block in list(system, "system")? {
            members(block, &["text"], "system")?;
            text(&block["text"], "system")?;
        }
    }
    let mut names = Names::default();
    if let Some(config) = body.get("toolConfig") {
        members(config, &["tools", "toolChoice"], "toolConfig")?;
        for tool in list(&config["tools"], "tools")? {
            members(tool, &["toolSpec"], "a tool")?;
            let spec = &tool["toolSpec"];
            members(spec, &["name", "description", "inputSchema"], "toolSpec")?;
            names.add(&spec["name"])?;
            if let Some(description) = spec.get("description") {
                text(description, "a description")?;
            }
            schema(&spec["inputSchema"]["json"], "inputSchema")?;
            property_names(&spec["inputSchema"]["json"])?;
        }
    }
    let messages = list(&body["messages"], "messages")?;
    let mut pairs = Pairs::default();
    let mut uses_tools = false;
    for (at, message) in messages.iter().enumerate() {
        let what = |e| format!("message {at}: {e}");
        members(message, &["role", "content"], "a message").map_err(what)?;
        // "A conversation must alternate between user and assistant roles", and "must start with a user message".
        let due = if at % 2 == 0 { "user" } else { "assistant" };
        ensure(message["role"] == due, || format!("message {at} is not the {due}'s"))?;
        let blocks = list(&message["content"], "content").map_err(what)?;
        match due {
            "user" => user(blocks, &mut pairs).map_err(what)?,
            _ => assistant(blocks, &mut pairs).map_err(what)?,
        }
        uses_tools |= blocks.iter().any(|b| b.get("toolUse").is_some() || b.get("toolResult").is_some());
    }
    pairs.settled()?;
    // "The model does not support assistant message prefill."
    ensure(messages.len() % 2 == 1, || "the last message is not the user's".to_owned())?;
    // "The toolConfig field must be defined when using toolUse and toolResult content blocks."
    ensure(!uses_tools || body.get("toolConfig").is_some(), || "tool blocks without toolConfig".to_owned())
}

/// The one kind of a block.
fn kind(block: &Value) -> Result<&str, String> {
    let block = object(block, "a block")?;
    let mut kinds = block.keys();
    match (kinds.next(), kinds.next()) {
        (Some(kind), None) => Ok(kind),
        _ => Err(format!("a block of {} kinds", block.len())),
    }
}

fn user(blocks: &[Value], pairs: &mut Pairs) -> Verdict {
    let images = blocks.iter().filter(|block| block.get("image").is_some()).count();
    ensure(images <= MAX_IMAGES, || format!("{images} images"))?;
    // As Claude wants it: results first.
    let results = blocks.iter().take_while(|block| block.get("toolResult").is_some()).count();
    for block in &blocks[..results] {
        kind(block)?;
        let result = &block["toolResult"];
        members(result, &["toolUseId", "content", "status"], "toolResult")?;
        word(&result["toolUseId"], 64, "toolUseId")?;
        pairs.result(string(&result["toolUseId"], "toolUseId")?)?;
        let status = result["status"].as_str().unwrap_or("success");
        ensure(matches!(status, "success" | "error"), || format!("status {status}"))?;
        for part in list(&result["content"], "the content of a result")? {
            match kind(part)? {
                "json" => object(&part["json"], "json").map(|_| ())?,
                "text" | "image" => shown(part)?,
                odd => return Err(format!("{odd} in a result")),
            }
        }
    }
    pairs.settled()?;
    blocks[results..].iter().try_for_each(shown)
}

/// Text or an image.
fn shown(block: &Value) -> Verdict {
    match kind(block)? {
        "text" => text(&block["text"], "text"),
        "image" => {
            let image = &block["image"];
            members(image, &["format", "source"], "image")?;
            members(&image["source"], &["bytes"], "source")?;
            let format = string(&image["format"], "format")?;
            let known = ["image/png", "image/jpeg", "image/gif", "image/webp"];
            picture(&format!("image/{format}"), string(&image["source"]["bytes"], "bytes")?, &known)
        }
        odd => Err(format!("{odd} in a user message")),
    }
}

fn assistant(blocks: &[Value], pairs: &mut Pairs) -> Verdict {
    pairs.settled()?;
    let mut others = false;
    for block in blocks {
        match kind(block)? {
            "text" => {
                text(&block["text"], "text")?;
                others = true;
            }
            "toolUse" => {
                let call = &block["toolUse"];
                members(call, &["toolUseId", "name", "input"], "toolUse")?;
                word(&call["toolUseId"], 64, "toolUseId")?;
                word(&call["name"], 64, "a call's name")?;
                object(&call["input"], "input")?;
                pairs.call(string(&call["toolUseId"], "toolUseId")?)?;
                others = true;
            }
            "reasoningContent" => {
                ensure(!others, || "reasoning behind other content".to_owned())?;
                let reasoning = &block["reasoningContent"];
                match kind(reasoning)? {
                    "reasoningText" => {
                        let proven = &reasoning["reasoningText"];
                        members(proven, &["text", "signature"], "reasoningText")?;
                        string(&proven["text"], "the text of a reasoning")?;
                        text(&proven["signature"], "a signature")?;
                    }
                    "redactedContent" => {
                        let redacted = string(&reasoning["redactedContent"], "redactedContent")?;
                        base64(redacted, false, "redactedContent")?;
                    }
                    odd => return Err(format!("a reasoning of kind {odd}")),
                }
            }
            odd => return Err(format!("{odd} in an assistant message")),
        }
    }
    ensure(others, || "an assistant message of reasoning alone".to_owned())
}
