//! The request a model gets: provider-neutral, already valid (I5). Adapters translate it and add nothing.

use serde_json::Value;

use crate::message::{CallId, ContentPart, RawJson};

/// One request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelRequest {
    /// The one system entry.
    pub system: Option<String>,
    /// Alternating messages; the last one is user-role.
    pub messages: Vec<RequestMessage>,
    /// What the model may call.
    pub tools: Vec<ToolDefinition>,
    /// A bound on the response.
    pub max_output_tokens: Option<u32>,
}

/// One message of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestMessage {
    /// User-role content, never blank.
    User(Vec<ContentPart>),
    /// The model's own earlier output. With calls, the next message is their results.
    Assistant(AssistantMessage),
    /// Results of the calls of the message before, each once, in call order.
    ToolResults(Vec<RequestResult>),
}

/// The model's own earlier output.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AssistantMessage {
    /// Reasoning of the same model, whole.
    pub reasoning: Vec<RequestReasoning>,
    /// Visible text, never blank.
    pub text: Option<String>,
    /// Tool calls.
    pub calls: Vec<RequestCall>,
}

/// Reasoning that goes back byte for byte.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestReasoning {
    /// Readable text.
    pub text: String,
    /// Signature or encrypted content.
    pub signature: Option<String>,
    /// The provider's block.
    pub provider: Option<RawJson>,
}

/// A call in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestCall {
    /// The id, unique within the request.
    pub id: CallId,
    /// The tool.
    pub name: String,
    /// The arguments: always the text of a JSON object.
    pub arguments: String,
    /// The provider's signature of the call.
    pub signature: Option<String>,
}

/// A result in a request.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestResult {
    /// The call's id in this request.
    pub id: CallId,
    /// The tool.
    pub name: String,
    /// What the model is shown, never blank.
    pub parts: Vec<ContentPart>,
    /// Whether it reports a failure.
    pub is_error: bool,
}

/// A tool as the model sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolDefinition {
    /// 1 to 128 of `[A-Za-z0-9_-]`.
    pub name: String,
    /// What it does, untrusted text.
    pub description: String,
    /// JSON Schema of its arguments.
    pub input_schema: Value,
}
