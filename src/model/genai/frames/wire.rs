//! The frames of the dialects, as far as they are read. Every member may be missing: what a server leaves out
//! or spells in its own way must not hide the rest.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// A member that some servers send as a string and some as the value itself.
pub(super) fn text_of(raw: Option<&RawValue>) -> String {
    match raw.map(RawValue::get) {
        None | Some("null") => String::new(),
        Some(text) => serde_json::from_str::<String>(text).unwrap_or_else(|_| text.to_owned()),
    }
}

#[derive(Deserialize)]
pub(super) struct ChatChunk<'a> {
    #[serde(borrow, default)]
    pub choices: Option<Vec<ChatChoice<'a>>>,
    #[serde(default)]
    pub usage: Option<Value>,
}

#[derive(Deserialize)]
pub(super) struct ChatChoice<'a> {
    #[serde(borrow, default)]
    pub delta: Option<ChatDelta<'a>>,
    #[serde(default)]
    pub finish_reason: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct ChatDelta<'a> {
    #[serde(borrow, default)]
    pub tool_calls: Option<Vec<ChatCallDelta<'a>>>,
    #[serde(default)]
    pub refusal: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct ChatCallDelta<'a> {
    #[serde(default)]
    pub index: Option<u64>,
    #[serde(default)]
    pub id: Option<String>,
    #[serde(borrow, default)]
    pub function: Option<ChatFunction<'a>>,
}

#[derive(Deserialize)]
pub(super) struct ChatFunction<'a> {
    #[serde(default)]
    pub name: Option<String>,
    #[serde(borrow, default)]
    pub arguments: Option<&'a RawValue>,
}

#[derive(Deserialize)]
pub(super) struct AnthropicFrame<'a> {
    pub r#type: String,
    #[serde(borrow, default)]
    pub content_block: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub delta: Option<AnthropicDelta<'a>>,
    #[serde(default)]
    pub usage: Option<Value>,
}

#[derive(Deserialize)]
pub(super) struct AnthropicBlock<'a> {
    pub r#type: String,
    #[serde(default)]
    pub id: Option<String>,
    #[serde(default)]
    pub name: Option<String>,
    #[serde(borrow, default)]
    pub input: Option<&'a RawValue>,
    #[serde(default)]
    pub signature: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct AnthropicDelta<'a> {
    #[serde(default)]
    pub partial_json: Option<String>,
    #[serde(default)]
    pub signature: Option<String>,
    #[serde(borrow, default)]
    pub stop_reason: Option<&'a RawValue>,
}

#[derive(Deserialize)]
pub(super) struct ResponsesFrame<'a> {
    pub r#type: String,
    #[serde(default)]
    pub delta: Option<Value>,
    #[serde(borrow, default)]
    pub item: Option<ResponsesItem<'a>>,
    #[serde(borrow, default)]
    pub response: Option<ResponsesEnd<'a>>,
}

#[derive(Deserialize)]
pub(super) struct ResponsesItem<'a> {
    pub r#type: String,
    #[serde(default)]
    pub call_id: Option<String>,
    #[serde(default)]
    pub name: Option<String>,
    #[serde(borrow, default)]
    pub arguments: Option<&'a RawValue>,
    #[serde(default)]
    pub encrypted_content: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct ResponsesEnd<'a> {
    #[serde(default)]
    pub status: Option<String>,
    #[serde(default)]
    pub incomplete_details: Option<Value>,
    #[serde(default)]
    pub error: Option<Value>,
    #[serde(borrow, default)]
    pub output: Option<Vec<ResponsesItem<'a>>>,
}

#[derive(Deserialize)]
pub(super) struct GeminiFrame<'a> {
    #[serde(borrow, default)]
    pub candidates: Option<Vec<GeminiCandidate<'a>>>,
    #[serde(default, rename = "promptFeedback")]
    pub prompt_feedback: Option<Value>,
}

#[derive(Deserialize)]
pub(super) struct GeminiCandidate<'a> {
    #[serde(borrow, default)]
    pub content: Option<GeminiContent<'a>>,
    #[serde(default, rename = "finishReason")]
    pub finish_reason: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct GeminiContent<'a> {
    #[serde(borrow, default)]
    pub parts: Option<Vec<GeminiPart<'a>>>,
}

#[derive(Deserialize)]
pub(super) struct GeminiPart<'a> {
    #[serde(borrow, default, rename = "functionCall")]
    pub function_call: Option<GeminiCall<'a>>,
    #[serde(default, rename = "thoughtSignature")]
    pub thought_signature: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct GeminiCall<'a> {
    #[serde(default)]
    pub id: Option<String>,
    #[serde(default)]
    pub name: String,
    #[serde(borrow, default)]
    pub args: Option<&'a RawValue>,
}
