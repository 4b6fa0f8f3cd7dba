//! What each provider streams for one response: its thoughts as it signs them, text, and calls.

use data_encoding::BASE64;
use serde_json::{Value, json};

use crate::provider_server::{Reply, event_stream};

/// One response: the `n`th of its provider.
pub struct Said<'a> {
    pub n: usize,
    pub text: &'a str,
    /// Tools called, in parallel.
    pub calls: &'a [&'a str],
}

impl Said<'_> {
    fn provider_id(&self, at: usize) -> String {
        format!("call_{at}")
    }

    /// Why it stops, in the provider's word for it.
    fn stop<'w>(&self, done: &'w str, calls: &'w str) -> &'w str {
        if self.calls.is_empty() { done } else { calls }
    }
}

/// What only this provider may ever see again: proof of its `n`th thought.
pub fn proof(provider: &str, n: usize) -> String {
    BASE64.encode(format!("{provider} has thought {n:06}.").as_bytes())
}

/// A second block of the same, which it keeps to itself whole.
pub fn sealed(provider: &str, n: usize) -> String {
    BASE64.encode(format!("{provider} has sealed {n:06}.").as_bytes())
}

/// The readable text of the thought.
pub fn thought(provider: &str, n: usize) -> String {
    format!("a thought of {provider}, number {n}")
}

pub fn reply(provider: &str, said: &Said<'_>) -> Reply {
    match provider {
        "openai" | "deepseek" => chat(provider, said),
        "openai_resp" => responses(provider, said),
        "anthropic" => anthropic(provider, said),
        "gemini" => gemini(provider, said),
        _ => bedrock(provider, said),
    }
}

fn data(value: Value) -> String {
    format!("data: {value}\n\n")
}

fn named(event: &str, mut value: Value) -> String {
    value["type"] = json!(event);
    format!("event: {event}\ndata: {value}\n\n")
}

fn chat(provider: &str, said: &Said<'_>) -> Reply {
    let delta = |delta: Value| data(json!({ "id": "x", "choices": [{ "index": 0, "delta": delta }] }));
    let mut frames = vec![
        delta(
            json!({ "role": "assistant", "content": null, "reasoning_content": thought(provider, said.n) }),
        ),
        delta(json!({ "content": said.text })),
    ];
    frames.extend(said.calls.iter().enumerate().map(|(at, name)| {
        delta(json!({ "tool_calls": [{ "index": at, "id": said.provider_id(at), "type": "function",
            "function": { "name": name, "arguments": "{\"text\":\"a\"}" } }] }))
    }));
    let reason = said.stop("stop", "tool_calls");
    frames
        .push(data(json!({ "id": "x", "choices": [{ "index": 0, "delta": {}, "finish_reason": reason }] })));
    frames.push("data: [DONE]\n\n".to_owned());
    Reply::sse(&frames)
}

fn responses(provider: &str, said: &Said<'_>) -> Reply {
    let done = |item: Value| named("response.output_item.done", json!({ "output_index": 0, "item": item }));
    let encrypted = proof(provider, said.n);
    let mut frames = vec![
        named("response.created", json!({ "response": {} })),
        done(json!({ "type": "reasoning", "id": "rs", "summary": [], "encrypted_content": encrypted })),
        named("response.output_text.delta", json!({ "delta": said.text })),
    ];
    frames.extend(said.calls.iter().enumerate().map(|(at, name)| {
        done(json!({ "type": "function_call", "call_id": said.provider_id(at), "name": name,
            "arguments": "{\"text\":\"a\"}" }))
    }));
    let end = json!({ "id": "r", "object": "response", "created_at": 1, "model": "m", "status": "completed",
        "output": [], "usage": { "input_tokens": 5, "output_tokens": 2, "total_tokens": 7 } });
    frames.push(named("response.completed", json!({ "response": end })));
    Reply::sse(&frames)
}

fn anthropic(provider: &str, said: &Said<'_>) -> Reply {
    let block = |index: usize, block: Value, deltas: &[Value]| {
        let mut frames =
            vec![named("content_block_start", json!({ "index": index, "content_block": block }))];
        let delta = |delta: &Value| named("content_block_delta", json!({ "index": index, "delta": delta }));
        frames.extend(deltas.iter().map(delta));
        frames.push(named("content_block_stop", json!({ "index": index })));
        frames
    };
    let start = json!({ "message": { "usage": { "input_tokens": 9, "output_tokens": 1 } } });
    let mut frames = vec![named("message_start", start)];
    frames.extend(block(
        0,
        json!({ "type": "thinking", "thinking": "", "signature": "" }),
        &[
            json!({ "type": "thinking_delta", "thinking": thought(provider, said.n) }),
            json!({ "type": "signature_delta", "signature": proof(provider, said.n) }),
        ],
    ));
    frames.extend(block(1, json!({ "type": "redacted_thinking", "data": sealed(provider, said.n) }), &[]));
    frames.extend(block(
        2,
        json!({ "type": "text", "text": "" }),
        &[json!({ "type": "text_delta", "text": said.text })],
    ));
    for (at, name) in said.calls.iter().enumerate() {
        let call = json!({ "type": "tool_use", "id": said.provider_id(at), "name": name, "input": {} });
        let arguments = json!({ "type": "input_json_delta", "partial_json": "{\"text\":\"a\"}" });
        frames.extend(block(3 + at, call, &[arguments]));
    }
    let reason = said.stop("end_turn", "tool_use");
    frames.push(named(
        "message_delta",
        json!({ "delta": { "stop_reason": reason }, "usage": { "output_tokens": 5 } }),
    ));
    frames.push(named("message_stop", json!({})));
    Reply::sse(&frames)
}

fn gemini(provider: &str, said: &Said<'_>) -> Reply {
    let mut parts =
        vec![json!({ "text": thought(provider, said.n), "thought": true }), json!({ "text": said.text })];
    // Of parallel calls it signs the first.
    parts.extend(said.calls.iter().enumerate().map(|(at, name)| {
        let mut part = json!({ "functionCall": { "name": name, "args": { "text": "a" } } });
        if at == 0 {
            part["thoughtSignature"] = json!(proof(provider, said.n));
        }
        part
    }));
    Reply::sse(&[data(json!({
        "candidates": [{ "content": { "role": "model", "parts": parts }, "finishReason": "STOP" }],
        "usageMetadata": { "promptTokenCount": 4, "candidatesTokenCount": 2 },
    }))])
}

fn bedrock(provider: &str, said: &Said<'_>) -> Reply {
    let delta = |index: usize, delta: Value| {
        event_stream("contentBlockDelta", &json!({ "contentBlockIndex": index, "delta": delta }))
    };
    let stop = |index: usize| event_stream("contentBlockStop", &json!({ "contentBlockIndex": index }));
    let mut frames = vec![
        event_stream("messageStart", &json!({ "role": "assistant" })),
        delta(0, json!({ "reasoningContent": { "text": thought(provider, said.n) } })),
        delta(0, json!({ "reasoningContent": { "signature": proof(provider, said.n) } })),
        stop(0),
        delta(1, json!({ "reasoningContent": { "redactedContent": sealed(provider, said.n) } })),
        stop(1),
        delta(2, json!({ "text": said.text })),
        stop(2),
    ];
    for (at, name) in said.calls.iter().enumerate() {
        let start = json!({ "toolUse": { "toolUseId": said.provider_id(at), "name": name } });
        frames
            .push(event_stream("contentBlockStart", &json!({ "contentBlockIndex": 3 + at, "start": start })));
        frames.push(delta(3 + at, json!({ "toolUse": { "input": "{\"text\":\"a\"}" } })));
        frames.push(stop(3 + at));
    }
    let reason = said.stop("end_turn", "tool_use");
    frames.push(event_stream("messageStop", &json!({ "stopReason": reason })));
    let usage = json!({ "inputTokens": 3, "outputTokens": 2, "totalTokens": 5 });
    frames.push(event_stream("metadata", &json!({ "usage": usage })));
    Reply::Stream(frames)
}
