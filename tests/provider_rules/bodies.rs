//! A good body in each dialect, and changes that each break one rule: a judge that takes them judges nothing.

use serde_json::{Value, json};

/// `body` with one value put at a pointer; `null` takes a member away.
pub fn with(body: &Value, at: &str, value: Value) -> Value {
    let mut body = body.clone();
    let (parent, last) = at.rsplit_once('/').unwrap();
    let parent = body.pointer_mut(parent).unwrap_or_else(|| panic!("{at}"));
    match parent {
        Value::Object(members) if value.is_null() => drop(members.remove(last)),
        Value::Object(members) => drop(members.insert(last.to_owned(), value)),
        Value::Array(list) => list[last.parse::<usize>().unwrap()] = value,
        _ => panic!("{at}"),
    }
    body
}

const PNG: &str = "iVBORw0KGgo=";

pub fn good(dialect: &str) -> Value {
    let schema = json!({ "type": "object", "properties": { "q": {} } });
    match dialect {
        "anthropic" => json!({
            "model": "m", "max_tokens": 9, "stream": true,
            "system": [{ "type": "text", "text": "s", "cache_control": { "type": "ephemeral" } }],
            "tools": [
                { "name": "f", "description": "d", "input_schema": schema },
                { "name": "g", "input_schema": schema, "cache_control": { "type": "ephemeral", "ttl": "1h" } },
            ],
            "messages": [
                { "role": "user", "content": [{ "type": "text", "text": "hi", "cache_control": { "type": "ephemeral" } }] },
                { "role": "assistant", "content": [
                    { "type": "thinking", "thinking": "", "signature": "s" },
                    { "type": "redacted_thinking", "data": "d" },
                    { "type": "text", "text": "so" },
                    { "type": "tool_use", "id": "a", "name": "f", "input": {} },
                    { "type": "tool_use", "id": "b", "name": "f", "input": {} },
                ] },
                { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "b", "content": "1" }] },
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "a", "content": [{ "type": "text", "text": "1" }], "is_error": true },
                    { "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": PNG } },
                    { "type": "image", "source": { "type": "url", "url": "https://x/y" },
                      "cache_control": { "type": "ephemeral" } },
                ] },
            ],
        }),
        "openai" => json!({
            "model": "m", "stream": true, "stream_options": { "include_usage": true }, "max_tokens": 9,
            "tools": [
                { "type": "function", "function": { "name": "f", "parameters": schema } },
                { "type": "function", "function": { "name": "g", "parameters": schema } },
            ],
            "messages": [
                { "role": "system", "content": "s" },
                { "role": "user", "content": [
                    { "type": "text", "text": "hi" },
                    { "type": "image_url", "image_url": { "url": format!("data:image/png;base64,{PNG}") } },
                ] },
                { "role": "assistant", "content": null, "tool_calls": [
                    { "id": "a", "type": "function", "function": { "name": "f", "arguments": "{}" } },
                    { "id": "b", "type": "function", "function": { "name": "f", "arguments": "{}" } },
                ] },
                { "role": "tool", "tool_call_id": "b", "content": "1" },
                { "role": "tool", "tool_call_id": "a", "content": "1" },
                { "role": "assistant", "content": "so" },
                { "role": "user", "content": "hi" },
            ],
        }),
        "openai_resp" => json!({
            "model": "m", "instructions": "s", "stream": true, "include": ["reasoning.encrypted_content"],
            "tools": [
                { "type": "function", "name": "f", "parameters": schema },
                { "type": "function", "name": "g", "parameters": schema },
            ],
            "input": [
                { "role": "user", "content": [
                    { "type": "input_text", "text": "hi" },
                    { "type": "input_image", "detail": "auto", "image_url": "https://x/y" },
                ] },
                { "type": "reasoning", "summary": [], "encrypted_content": "e" },
                { "type": "function_call", "call_id": "a", "name": "f", "arguments": "{}" },
                { "type": "function_call", "call_id": "b", "name": "f", "arguments": "{}" },
                { "type": "function_call_output", "call_id": "b", "output": "1" },
                { "type": "function_call_output", "call_id": "a", "output": [{ "type": "input_text", "text": "1" }] },
                { "role": "assistant", "content": "so" },
                { "role": "user", "content": "hi" },
            ],
        }),
        "gemini" => json!({
            "systemInstruction": { "parts": [{ "text": "s" }] },
            "tools": [{ "functionDeclarations": [
                { "name": "f", "description": null, "parametersJsonSchema": schema },
                { "name": "g", "parametersJsonSchema": schema },
            ] }],
            "contents": [
                { "role": "user", "parts": [
                    { "text": "hi" },
                    { "inline_data": { "mime_type": "image/png", "data": PNG } },
                    { "fileData": { "mimeType": "image/png", "fileUri": "https://x/y" } },
                ] },
                { "role": "model", "parts": [
                    { "text": "so" },
                    { "functionCall": { "id": "a", "name": "f", "args": {} }, "thoughtSignature": "c2ln" },
                    { "functionCall": { "id": "b", "name": "g", "args": {} } },
                ] },
                { "role": "user", "parts": [
                    { "functionResponse": { "id": "a", "name": "f", "response": { "content": "1" } } },
                    { "functionResponse": { "id": "b", "name": "g", "response": { "content": "1" } } },
                ] },
            ],
        }),
        "bedrock_api" => json!({
            "system": [{ "text": "s" }], "inferenceConfig": { "maxTokens": 9 },
            "toolConfig": { "tools": [
                { "toolSpec": { "name": "f", "description": "d", "inputSchema": { "json": schema } } },
                { "toolSpec": { "name": "g", "inputSchema": { "json": schema } } },
            ] },
            "messages": [
                { "role": "user", "content": [
                    { "text": "hi" },
                    { "image": { "format": "png", "source": { "bytes": PNG } } },
                ] },
                { "role": "assistant", "content": [
                    { "reasoningContent": { "reasoningText": { "text": "hm", "signature": "s" } } },
                    { "reasoningContent": { "redactedContent": "YWJj" } },
                    { "text": "so" },
                    { "toolUse": { "toolUseId": "a", "name": "f", "input": {} } },
                    { "toolUse": { "toolUseId": "b", "name": "f", "input": {} } },
                ] },
                { "role": "user", "content": [
                    { "toolResult": { "toolUseId": "b", "content": [{ "text": "1" }], "status": "error" } },
                    { "toolResult": { "toolUseId": "a", "content": [{ "json": {} }] } },
                    { "text": "and" },
                ] },
            ],
        }),
        odd => panic!("{odd}"),
    }
}

pub fn bad(dialect: &str) -> Vec<(&'static str, Value)> {
    let long = "x".repeat(65);
    match dialect {
        "anthropic" => vec![
            ("/max_tokens", json!(null)),
            ("/surprise", json!(1)),
            ("/system", json!(" \u{1c}")),
            ("/tools/0/cache_control", json!({ "type": "ephemeral" })),
            ("/system/0/cache_control/type", json!("persistent")),
            ("/system/0/cache_control/ttl", json!("1d")),
            (
                "/messages/1/content/0",
                json!({ "type": "thinking", "thinking": "", "signature": "s", "cache_control": { "type": "ephemeral" } }),
            ),
            ("/tools", json!(null)),
            ("/tools", json!([])),
            ("/tools/1/name", json!("f")),
            ("/tools/0/name", json!("a.b")),
            ("/tools/0/description", json!("")),
            ("/tools/0/input_schema/type", json!(null)),
            ("/tools/0/input_schema/anyOf", json!([{}])),
            ("/tools/0/input_schema/properties", json!({ "ü": {} })),
            ("/messages/0/content", json!("\u{feff}")),
            ("/messages/0/role", json!("system")),
            ("/messages/0/role", json!("assistant")),
            ("/messages/1/content/0/signature", json!("")),
            ("/messages/1/content/0/signature", json!(null)),
            ("/messages/1/content/1", json!({ "n": 1.0 })),
            ("/messages/1/content/1/data", json!(null)),
            ("/messages/1/content/2", json!({ "type": "text", "text": "" })),
            ("/messages/1/content/4", json!({ "type": "thinking", "thinking": "x", "signature": "s" })),
            ("/messages/1/content/4/id", json!("a")),
            ("/messages/1/content/4/id", json!("ä")),
            ("/messages/1/content/4/name", json!(long)),
            ("/messages/1/content/4/input", json!("{}")),
            ("/messages/2/content/0/tool_use_id", json!("c")),
            ("/messages/2/content/0/content", json!("")),
            ("/messages/2/content/0/content", json!([])),
            ("/messages/2/content/0", json!({ "type": "text", "text": "before the results" })),
            ("/messages/3/content/0/tool_use_id", json!("b")),
            ("/messages/3/content/1/source/media_type", json!("image/jpeg")),
            ("/messages/3/content/1/source/data", json!("iVBORw0KGgo")),
            ("/messages/3/content/2/source/url", json!("http://x/y")),
            ("/messages/3", json!({ "role": "assistant", "content": "x" })),
        ],
        "openai" => vec![
            ("/model", json!("")),
            ("/input", json!([])),
            ("/tools/1/function/name", json!("f")),
            ("/tools/0/function/name", json!("ä")),
            ("/tools/0/function/parameters", json!({ "type": "object" })),
            ("/tools/0/function/parameters/not", json!({})),
            ("/tools/0/function/strict", json!(true)),
            ("/messages/0/content", json!(" ")),
            ("/messages/1/role", json!("system")),
            ("/messages/1/content", json!([])),
            ("/messages/1/content/0/text", json!("\n")),
            ("/messages/1/content/1/image_url/url", json!("data:image/png;base64,/9j/")),
            ("/messages/1/content/1/image_url/url", json!("data:image/bmp;base64,Qk0=")),
            ("/messages/2/tool_calls", json!(null)),
            ("/messages/2/tool_calls", json!([])),
            ("/messages/2/reasoning_content", json!("x")),
            ("/messages/2/content", json!("")),
            ("/messages/2/tool_calls/0/id", json!("b")),
            ("/messages/2/tool_calls/0/id", json!("x".repeat(41))),
            ("/messages/2/tool_calls/0/function/name", json!(long)),
            ("/messages/2/tool_calls/0/function/arguments", json!("")),
            ("/messages/2/tool_calls/0/function/arguments", json!({})),
            ("/messages/3/content", json!("")),
            ("/messages/3/tool_call_id", json!("a")),
            ("/messages/4", json!({ "role": "user", "content": "between" })),
            ("/messages/5/content", json!(null)),
            ("/messages/6", json!({ "role": "assistant", "content": "x" })),
        ],
        "openai_resp" => vec![
            ("/messages", json!([])),
            ("/instructions", json!("")),
            ("/tools/1/name", json!("f")),
            ("/tools/0/parameters/oneOf", json!([{}])),
            ("/tools/0/type", json!("web_search")),
            ("/input", json!([])),
            ("/input/0/role", json!("system")),
            ("/input/0/content/0/text", json!("")),
            ("/input/0/content/1/detail", json!(null)),
            ("/input/1/encrypted_content", json!(null)),
            ("/input/1/id", json!("rs_1")),
            ("/input/2/call_id", json!("b")),
            ("/input/2/call_id", json!(long)),
            ("/input/2/arguments", json!("[]")),
            ("/input/3", json!({ "role": "user", "content": "between" })),
            ("/input/4/call_id", json!("c")),
            ("/input/4/output", json!(" ")),
            ("/input/5/call_id", json!("b")),
            ("/input/5", json!({ "type": "reasoning", "summary": [], "encrypted_content": "e" })),
            ("/input/6", json!({ "type": "reasoning", "summary": [], "encrypted_content": "e" })),
            ("/input/6/content", json!([{ "type": "input_text", "text": "x" }])),
            ("/input/7", json!({ "role": "assistant", "content": "x" })),
        ],
        "gemini" => vec![
            ("/messages", json!([])),
            ("/systemInstruction/parts/0/text", json!("")),
            ("/tools", json!([])),
            ("/tools/0/functionDeclarations/1/name", json!("f")),
            ("/tools/0/functionDeclarations/1/name", json!("7up")),
            ("/tools/0/functionDeclarations/1/parametersJsonSchema", json!({})),
            ("/contents/0/role", json!("model")),
            ("/contents/0/parts", json!([])),
            ("/contents/0/parts/0/text", json!("")),
            ("/contents/0/parts/1/inline_data/mime_type", json!("image/gif")),
            ("/contents/0/parts/2/fileData/mimeType", json!("image/svg+xml")),
            ("/contents/0/parts/2/text", json!("two kinds")),
            ("/contents/1/role", json!("assistant")),
            (
                "/contents/1/parts/0",
                json!({ "functionCall": { "name": "f", "args": {} }, "thoughtSignature": "c2ln" }),
            ),
            ("/contents/1/parts/1/thoughtSignature", json!(null)),
            ("/contents/1/parts/1/thoughtSignature", json!("")),
            ("/contents/1/parts/1/functionCall/args", json!("{}")),
            ("/contents/1/parts/1/functionCall/name", json!("")),
            ("/contents/2/parts/0/functionResponse/id", json!("b")),
            ("/contents/2/parts/0/functionResponse/name", json!("g")),
            ("/contents/2/parts/0/functionResponse/response", json!("1")),
            ("/contents/2/parts/1", json!({ "text": "one response too few" })),
            ("/contents/2", json!({ "role": "user", "parts": [{ "text": "no responses" }] })),
            ("/contents/2", json!({ "role": "model", "parts": [{ "text": "x" }] })),
        ],
        _ => vec![
            ("/model", json!("m")),
            ("/system/0/text", json!(" ")),
            ("/toolConfig", json!(null)),
            ("/toolConfig/tools", json!([])),
            ("/toolConfig/tools/1/toolSpec/name", json!("f")),
            ("/toolConfig/tools/0/toolSpec/description", json!("")),
            ("/toolConfig/tools/0/toolSpec/inputSchema/json/allOf", json!([{}])),
            ("/messages/0/role", json!("assistant")),
            ("/messages/0/content", json!([])),
            ("/messages/0/content/0/text", json!("")),
            ("/messages/0/content/1/image/format", json!("jpg")),
            ("/messages/0/content/1/image/source", json!({ "url": "https://x/y" })),
            ("/messages/1/role", json!("user")),
            ("/messages/1/content/0/reasoningContent/reasoningText/signature", json!(null)),
            ("/messages/1/content/1/reasoningContent/redactedContent", json!("s")),
            ("/messages/1/content/2", json!({ "text": "a", "toolUse": {} })),
            ("/messages/1/content/4/toolUse/toolUseId", json!("a")),
            ("/messages/1/content/4/toolUse/name", json!("ä")),
            ("/messages/1/content/4/toolUse/input", json!(null)),
            ("/messages/2/content/0/toolResult/content", json!([])),
            ("/messages/2/content/0/toolResult/content/0/text", json!("")),
            ("/messages/2/content/0/toolResult/toolUseId", json!("a")),
            ("/messages/2/content/0/toolResult/status", json!("ok")),
            ("/messages/2/content/1", json!({ "text": "one result too few" })),
            ("/messages/2/content/0", json!({ "text": "before the results" })),
            ("/messages/2", json!({ "role": "assistant", "content": [{ "text": "x" }] })),
        ],
    }
}
