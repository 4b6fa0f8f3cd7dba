//! What genai's events do not carry exactly, read from the provider's own frames.
//!
//! genai hands every frame to a sink before it yields what it made of it. From there come: calls with their
//! arguments as received (genai respells them, Bedrock's broken ones become `{}`, F37, F47), calls that share an
//! id or an index (F06), signatures block by block (F40), whether the response reached its terminal event
//! (F50), and why it stopped (OpenAI Responses says only "incomplete", F49).

mod wire;

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ::genai::chat::{ChatFrameSink, FrameCtx, RawFrameRef};
use serde_json::Value;
use serde_json::value::RawValue;

use self::wire::{
    AnthropicBlock, AnthropicFrame, ChatCallDelta, ChatChunk, GeminiFrame, ResponsesFrame, ResponsesItem,
    text_of,
};
use super::dialect::Dialect;
use crate::message::RawJson;
use crate::model::{ModelEvent, Usage};

/// The most calls kept of one response; a step may hold 32, so what is beyond is only a server gone wrong.
const MAX_CALLS: usize = 256;

/// The sink of one response.
pub(super) struct Frames {
    dialect: Dialect,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Complete, in the order of the stream.
    ready: VecDeque<ModelEvent>,
    /// Calls whose place is behind the text of the same frame, or that are complete only at the end.
    calls: Vec<Call>,
    /// The content block that is open (Anthropic, Bedrock).
    open: Option<Open>,
    stop: Option<String>,
    complete: bool,
    usage: Option<Usage>,
    failure: Option<Value>,
    /// The block that a provider was asked to make of the conversation.
    checkpoint: Option<RawJson>,
}

#[derive(Default)]
struct Call {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
    signature: Option<String>,
}

enum Open {
    Call(Call),
    Reasoning { signature: String, redacted: String },
}

impl Frames {
    pub fn new(dialect: Dialect) -> Self {
        Self { dialect, state: Mutex::default() }
    }

    /// Nothing in here panics while it holds the lock.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has become complete since the last time.
    pub fn take_ready(&self) -> Vec<ModelEvent> {
        self.state().ready.drain(..).collect()
    }

    /// Whether the provider has said all it has to say.
    pub fn is_complete(&self) -> bool {
        self.state().complete
    }

    /// The held calls and the stop reason as spelled; none if there was no terminal event.
    pub fn finish(&self) -> Option<(Vec<ModelEvent>, String)> {
        let mut state = self.state();
        let stop = state.complete.then(|| state.stop.take()).flatten()?;
        // A call that the output limit cut has no end of its own (F49).
        if let Some(Open::Call(call)) = state.open.take() {
            state.calls.push(call);
        }
        Some((state.calls.drain(..).map(Call::into_event).collect(), stop))
    }

    /// Usage that genai had no terminal event for.
    pub fn usage(&self) -> Option<Usage> {
        self.state().usage
    }

    /// The block that a compaction has made.
    pub fn checkpoint(&self) -> Option<RawJson> {
        self.state().checkpoint.take()
    }

    /// The provider's error object, where genai passes on its text only.
    pub fn failure(&self) -> Option<Value> {
        self.state().failure.clone()
    }
}

impl ChatFrameSink for Frames {
    fn on_frame(&self, _ctx: &FrameCtx, frame: RawFrameRef<'_>) {
        self.read(frame.event, frame.data);
    }
}

impl Frames {
    /// Reads one frame. What cannot be read here is genai's to report.
    pub(super) fn read(&self, event: Option<&str>, data: &str) {
        let mut state = self.state();
        let _ = match self.dialect {
            Dialect::Chat => state.chat(data),
            Dialect::Responses => state.responses(data),
            Dialect::Anthropic => state.anthropic(data),
            Dialect::Gemini => state.gemini(data),
            Dialect::Bedrock => state.bedrock(event.unwrap_or_default(), data),
        };
    }
}

impl Call {
    fn into_event(self) -> ModelEvent {
        ModelEvent::ToolCall {
            provider_id: self.id,
            name: self.name,
            arguments: self.arguments,
            signature: self.signature,
        }
    }
}

impl State {
    fn hold(&mut self, call: Call) {
        if self.calls.len() < MAX_CALLS {
            self.calls.push(call);
        }
    }

    fn chat(&mut self, data: &str) -> Option<()> {
        let chunk: ChatChunk<'_> = serde_json::from_str(data).ok()?;
        if let Some(usage) = chunk.usage {
            let count = |pointer| usage.pointer(pointer).and_then(Value::as_u64);
            if let (Some(input), Some(output)) = (count("/prompt_tokens"), count("/completion_tokens")) {
                let cached = count("/prompt_tokens_details/cached_tokens").unwrap_or(0);
                self.usage = Some(Usage { input, output, cached });
            }
        }
        let choice = chunk.choices?.into_iter().next()?;
        if let Some(delta) = choice.delta {
            for call in delta.tool_calls.into_iter().flatten() {
                self.chat_call(call);
            }
            if let Some(refusal) = delta.refusal.filter(|text| !text.is_empty()) {
                self.ready.push_back(ModelEvent::Text(refusal));
            }
        }
        if let Some(reason) = choice.finish_reason.filter(|reason| !reason.is_empty()) {
            self.stop = Some(reason);
            self.complete = true;
        }
        Some(())
    }

    /// A piece of a call belongs to the newest call of its index. A server that names no index means the newest
    /// call; one that puts all calls under one index tells them apart by id.
    fn chat_call(&mut self, delta: ChatCallDelta<'_>) {
        let id = delta.id.unwrap_or_default();
        let (name, arguments) = match delta.function {
            Some(function) => (function.name.unwrap_or_default(), text_of(function.arguments)),
            None => (String::new(), String::new()),
        };
        let known = match delta.index {
            Some(index) => self.calls.iter_mut().rev().find(|call| call.index == Some(index)),
            None if name.is_empty() => self.calls.last_mut(),
            None => None,
        };
        match known {
            Some(call) if name.is_empty() || id.is_empty() || call.id == id || call.id.is_empty() => {
                call.arguments.push_str(&arguments);
                if call.name.is_empty() {
                    call.name = name;
                }
                if call.id.is_empty() {
                    call.id = id;
                }
            }
            Some(_) | None => self.hold(Call { index: delta.index, id, name, arguments, signature: None }),
        }
    }

    fn responses(&mut self, data: &str) -> Option<()> {
        let frame: ResponsesFrame<'_> = serde_json::from_str(data).ok()?;
        match frame.r#type.as_str() {
            "response.output_item.done" => self.responses_item(frame.item?),
            "response.refusal.delta" => {
                let text = frame.delta?.as_str()?.to_owned();
                self.ready.push_back(ModelEvent::Text(text));
                self.stop = Some("refusal".to_owned());
            }
            "response.completed" | "response.incomplete" => {
                let end = frame.response?;
                if self.calls.is_empty() {
                    // Some servers send the items at the end only.
                    for item in end.output.into_iter().flatten().filter(|item| item.r#type == "function_call")
                    {
                        self.responses_item(item);
                    }
                }
                let detail =
                    end.incomplete_details.and_then(|details| Some(details["reason"].as_str()?.to_owned()));
                self.stop = self.stop.take().or(detail).or(end.status);
                self.complete = true;
            }
            "response.failed" => self.failure = frame.response?.error,
            _ => {}
        }
        Some(())
    }

    fn responses_item(&mut self, item: ResponsesItem<'_>) {
        match item.r#type.as_str() {
            "function_call" => self.hold(Call {
                id: item.call_id.unwrap_or_default(),
                name: item.name.unwrap_or_default(),
                arguments: text_of(item.arguments),
                ..Call::default()
            }),
            "reasoning" => {
                if let Some(encrypted) = item.encrypted_content.filter(|text| !text.is_empty()) {
                    self.ready
                        .push_back(ModelEvent::ReasoningBlock { signature: Some(encrypted), provider: None });
                }
            }
            _ => {}
        }
    }

    fn anthropic(&mut self, data: &str) -> Option<()> {
        let frame: AnthropicFrame<'_> = serde_json::from_str(data).ok()?;
        match frame.r#type.as_str() {
            "content_block_start" => {
                let raw = frame.content_block?.get();
                let block: AnthropicBlock<'_> = serde_json::from_str(raw).ok()?;
                self.close();
                match block.r#type.as_str() {
                    "tool_use" => {
                        // Some servers send the whole input at the start instead of deltas.
                        let input =
                            block.input.map(RawValue::get).filter(|input| !matches!(*input, "{}" | "null"));
                        self.open = Some(Open::Call(Call {
                            id: block.id.unwrap_or_default(),
                            name: block.name.unwrap_or_default(),
                            arguments: input.unwrap_or_default().to_owned(),
                            ..Call::default()
                        }));
                    }
                    "thinking" => {
                        let signature = block.signature.unwrap_or_default();
                        self.open = Some(Open::Reasoning { signature, redacted: String::new() });
                    }
                    "redacted_thinking" => {
                        let provider = RawJson::parse(raw).ok();
                        self.ready.push_back(ModelEvent::ReasoningBlock { signature: None, provider });
                    }
                    // It comes whole.
                    "compaction" => self.checkpoint = RawJson::parse(raw).ok(),
                    _ => {}
                }
            }
            "content_block_delta" => {
                let delta = frame.delta?;
                match &mut self.open {
                    Some(Open::Call(call)) => {
                        call.arguments.push_str(&delta.partial_json.unwrap_or_default())
                    }
                    Some(Open::Reasoning { signature, .. }) => {
                        signature.push_str(&delta.signature.unwrap_or_default());
                    }
                    None => {}
                }
            }
            "content_block_stop" => self.close(),
            "message_delta" => {
                // What a compaction costs is in its iterations; the counts above them are zero.
                if let Some(iterations) =
                    frame.usage.as_ref().and_then(|usage| usage["iterations"].as_array())
                {
                    let sum = |name| iterations.iter().filter_map(|each| each[name].as_u64()).sum();
                    let input: u64 = sum("input_tokens");
                    let cached: u64 = sum("cache_read_input_tokens");
                    let written: u64 = sum("cache_creation_input_tokens");
                    let input = input.saturating_add(cached).saturating_add(written);
                    self.usage = Some(Usage { input, output: sum("output_tokens"), cached });
                }
                let reason = text_of(frame.delta?.stop_reason);
                if !reason.is_empty() {
                    self.stop = Some(reason);
                }
            }
            "message_stop" => self.complete = true,
            _ => {}
        }
        Some(())
    }

    /// The open block is complete.
    fn close(&mut self) {
        match self.open.take() {
            Some(Open::Call(call)) => self.ready.push_back(call.into_event()),
            Some(Open::Reasoning { signature, redacted }) => {
                let provider = (!redacted.is_empty())
                    .then(|| {
                        RawJson::parse(&serde_json::json!({ "redactedContent": redacted }).to_string()).ok()
                    })
                    .flatten();
                let signature = Some(signature).filter(|signature| !signature.is_empty());
                if signature.is_some() || provider.is_some() {
                    self.ready.push_back(ModelEvent::ReasoningBlock { signature, provider });
                }
            }
            None => {}
        }
    }

    fn gemini(&mut self, data: &str) -> Option<()> {
        let frame: GeminiFrame<'_> = serde_json::from_str(data).ok()?;
        if let Some(feedback) = frame.prompt_feedback
            && feedback.get("blockReason").is_some_and(Value::is_string)
        {
            // Nothing else comes; genai 0.7.2 reports it as an error without a type.
            self.stop = Some("content_filter".to_owned());
            self.complete = true;
        }
        let candidate = frame.candidates?.into_iter().next()?;
        for part in candidate.content.and_then(|content| content.parts).into_iter().flatten() {
            let Some(call) = part.function_call else { continue };
            self.hold(Call {
                id: call.id.unwrap_or_default(),
                name: call.name,
                arguments: text_of(call.args),
                signature: part.thought_signature,
                ..Call::default()
            });
        }
        if let Some(reason) = candidate.finish_reason {
            self.stop = Some(reason);
            self.complete = true;
        }
        Some(())
    }

    fn bedrock(&mut self, event: &str, data: &str) -> Option<()> {
        let frame: Value = serde_json::from_str(data).ok()?;
        let text =
            |pointer: &str| frame.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        match event {
            "contentBlockStart" => {
                self.close();
                if frame.pointer("/start/toolUse").is_some() {
                    self.open = Some(Open::Call(Call {
                        id: text("/start/toolUse/toolUseId"),
                        name: text("/start/toolUse/name"),
                        ..Call::default()
                    }));
                }
            }
            "contentBlockDelta" => {
                let reasons = frame.pointer("/delta/reasoningContent").is_some();
                if reasons && self.open.is_none() {
                    // Reasoning blocks have no start.
                    self.open = Some(Open::Reasoning { signature: String::new(), redacted: String::new() });
                }
                match &mut self.open {
                    Some(Open::Call(call)) => call.arguments.push_str(&text("/delta/toolUse/input")),
                    Some(Open::Reasoning { signature, redacted }) => {
                        signature.push_str(&text("/delta/reasoningContent/signature"));
                        redacted.push_str(&text("/delta/reasoningContent/redactedContent"));
                    }
                    None => {}
                }
            }
            "contentBlockStop" => self.close(),
            "messageStop" => {
                self.stop = Some(text("/stopReason"));
                self.complete = true;
            }
            _ => {}
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_frames_never_panic_and_complete_nothing() {
        let frames = [
            r#"{"choices":[{"delta":{"tool_calls":[{"index":18446744073709551615,"function":{"arguments":{"é":1}}}]}}]}"#,
            r#"{"choices":[null,{"delta":7,"finish_reason":{}}],"usage":{"prompt_tokens":-1}}"#,
            r#"{"choices":[],"usage":[]}"#,
            r#"{"type":"content_block_start","content_block":{"type":"tool_use","id":null,"input":[1]}}"#,
            r#"{"type":"content_block_start","content_block":{"type":"redacted_thinking","data":"\ud83d"}}"#,
            r#"{"type":"content_block_delta","delta":{"partial_json":null,"signature":"s","stop_reason":3}}"#,
            r#"{"type":"content_block_stop","index":"x"}"#,
            r#"{"type":"response.output_item.done","item":{"type":"function_call","arguments":7}}"#,
            r#"{"type":"response.incomplete","response":null}"#,
            r#"{"candidates":[{"content":{"parts":[{"functionCall":{"args":null}},{}]},"finishReason":null}]}"#,
            r#"{"start":{"toolUse":[]},"delta":{"reasoningContent":7,"toolUse":{"input":{}}}}"#,
            "[]",
            "null",
            "",
        ];
        let dialects =
            [Dialect::Chat, Dialect::Responses, Dialect::Anthropic, Dialect::Gemini, Dialect::Bedrock];
        for dialect in dialects {
            let mut state = State::default();
            for frame in frames {
                for end in (0..=frame.len()).filter(|end| frame.is_char_boundary(*end)) {
                    let data = &frame[..end];
                    let _ = match dialect {
                        Dialect::Chat => state.chat(data),
                        Dialect::Responses => state.responses(data),
                        Dialect::Anthropic => state.anthropic(data),
                        Dialect::Gemini => state.gemini(data),
                        Dialect::Bedrock => {
                            ["contentBlockStart", "contentBlockDelta", "contentBlockStop", "?"]
                                .into_iter()
                                .find_map(|event| state.bedrock(event, data))
                        }
                    };
                }
            }
            assert!(!state.complete, "{dialect:?}");
        }
    }
}
