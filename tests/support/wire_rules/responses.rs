//! OpenAI Responses: <https://platform.openai.com/docs/api-reference/responses/create>. DeepSeek's and others' copies of
//! the API want a call's output right behind the calls, so that is the rule here.

use serde_json::Value;

use super::chat::{arguments, image};
use super::{Names, Pairs, Verdict, ensure, list, members, schema, string, text, word};

const BODY: [&str; 9] = [
    "model",
    "input",
    "instructions",
    "tools",
    "tool_choice",
    "stream",
    "include",
    "store",
    "max_output_tokens",
];
/// "Expected an array with maximum length 128."
const MAX_TOOLS: usize = 128;

pub fn judge(body: &Value) -> Verdict {
    members(body, &BODY, "body")?;
    text(&body["model"], "model")?;
    if let Some(instructions) = body.get("instructions") {
        text(instructions, "instructions")?;
    }
    let mut names = Names::default();
    if let Some(tools) = body.get("tools") {
        let tools = list(tools, "tools")?;
        ensure(tools.len() <= MAX_TOOLS, || format!("{} tools", tools.len()))?;
        for tool in tools {
            members(tool, &["type", "name", "description", "parameters", "strict"], "a tool")?;
            ensure(tool["type"] == "function", || "a tool that is no function".to_owned())?;
            names.add(&tool["name"])?;
            schema(&tool["parameters"], "parameters")?;
            ensure(tool["strict"] != true, || "nobody here writes strict schemas".to_owned())?;
        }
    }
    let input = list(&body["input"], "input")?;
    let mut pairs = Pairs::default();
    // Reasoning that waits for its item, and whether outputs have begun behind the calls.
    let (mut reasons, mut answering) = (false, false);
    for (at, item) in input.iter().enumerate() {
        let what = |e| format!("item {at}: {e}");
        let kind = item.get("type").map_or(Ok("message"), |kind| string(kind, "type"))?;
        match kind {
            "function_call" => {
                if answering {
                    pairs.settled().map_err(what)?;
                }
                answering = false;
                call(item, &mut pairs).map_err(what)?;
            }
            "function_call_output" => {
                output(item, &mut pairs).map_err(what)?;
                answering = true;
            }
            "reasoning" => {
                pairs.settled().map_err(what)?;
                reasoning(item).map_err(what)?;
            }
            "message" => {
                pairs.settled().map_err(what)?;
                message(item).map_err(what)?;
            }
            odd => return Err(format!("an item of type {odd}")),
        }
        // "Item of type 'reasoning' was provided without its required following item."
        let follows = kind == "reasoning" || kind == "function_call" || item["role"] == "assistant";
        ensure(!reasons || follows, || what("reasoning without its following item".to_owned()))?;
        reasons = kind == "reasoning";
    }
    pairs.settled()?;
    let last = &input[input.len() - 1];
    let answers = last["type"] == "function_call_output" || last["role"] == "user";
    ensure(answers, || "the last item is the model's own".to_owned())
}

fn message(item: &Value) -> Verdict {
    members(item, &["type", "role", "content"], "a message")?;
    let role = string(&item["role"], "role")?;
    ensure(matches!(role, "user" | "assistant"), || {
        format!("role {role}: the system entry is `instructions`")
    })?;
    match &item["content"] {
        Value::String(_) => text(&item["content"], "content"),
        content => {
            ensure(role == "user", || "parts of an assistant are output_text with annotations".to_owned())?;
            list(content, "content")?.iter().try_for_each(part)
        }
    }
}

fn part(part: &Value) -> Verdict {
    match string(&part["type"], "type")? {
        "input_text" => {
            members(part, &["type", "text"], "a part")?;
            text(&part["text"], "text")
        }
        "input_image" => {
            members(part, &["type", "detail", "image_url"], "a part")?;
            ensure(matches!(part["detail"].as_str(), Some("auto" | "low" | "high")), || {
                "no detail".to_owned()
            })?;
            image(string(&part["image_url"], "image_url")?)
        }
        odd => Err(format!("a part of type {odd}")),
    }
}

fn call(item: &Value, pairs: &mut Pairs) -> Verdict {
    members(item, &["type", "call_id", "name", "arguments"], "function_call")?;
    word(&item["call_id"], 64, "call_id")?;
    word(&item["name"], 64, "a call's name")?;
    arguments(&item["arguments"])?;
    pairs.call(string(&item["call_id"], "call_id")?)
}

fn output(item: &Value, pairs: &mut Pairs) -> Verdict {
    members(item, &["type", "call_id", "output"], "function_call_output")?;
    match &item["output"] {
        Value::String(_) => text(&item["output"], "output")?,
        output => list(output, "output")?.iter().try_for_each(part)?,
    }
    pairs.result(string(&item["call_id"], "call_id")?)
}

fn reasoning(item: &Value) -> Verdict {
    // With an id, the API would look for the stored item, and for the very one that followed it.
    members(item, &["type", "summary", "encrypted_content"], "reasoning")?;
    ensure(item["summary"].is_array(), || "reasoning without a summary".to_owned())?;
    text(&item["encrypted_content"], "encrypted_content")
}
