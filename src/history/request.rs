//! The request a model gets: provider-neutral, already valid (I5). Adapters translate it and add nothing.

use serde_json::Value;

use crate::message::{CallId, ContentPart, ImageData, RawJson};

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
    /// What the provider itself has made of everything before the messages, as it gave it: goes first. Only ever of the
    /// route that the request takes.
    pub checkpoint: Vec<RawJson>,
    /// Nobody reads what the model thinks: it is not asked to show it.
    pub without_thoughts: bool,
}

/// What an adapter puts around one part, call or result, at most.
const PART_ENVELOPE: usize = 256;

impl ModelRequest {
    /// The images in it.
    pub fn images(&self) -> usize {
        let images = |parts: &[ContentPart]| {
            parts.iter().filter(|part| matches!(part, ContentPart::Image { .. })).count()
        };
        let of_message = |message: &RequestMessage| match message {
            RequestMessage::User(parts) => images(parts),
            RequestMessage::Assistant(_) => 0,
            RequestMessage::ToolResults(results) => results.iter().map(|result| images(&result.parts)).sum(),
        };
        self.messages.iter().map(of_message).sum()
    }

    /// Bytes of its body in any dialect, at most: every text as it is escaped in JSON, and what stands around it.
    pub fn bytes(&self) -> usize {
        let parts = |parts: &[ContentPart]| -> usize {
            let part = |part: &ContentPart| match part {
                ContentPart::Text(text) => json_bytes(text),
                // No character of base64 is escaped.
                ContentPart::Image { data: ImageData::Base64(text), .. } => text.len(),
                ContentPart::Image { data: ImageData::Url(url), .. } => json_bytes(url),
                ContentPart::Unknown(_) => 0,
            };
            parts.iter().map(|each| part(each) + PART_ENVELOPE).sum()
        };
        let message = |message: &RequestMessage| match message {
            RequestMessage::User(user) => parts(user),
            RequestMessage::Assistant(said) => {
                let reasoning = said.reasoning.iter().map(|reasoning| {
                    let signature = reasoning.signature.as_ref().map_or(0, |text| json_bytes(text));
                    let provider = reasoning.provider.as_ref().map_or(0, |block| block.get().len());
                    json_bytes(&reasoning.text) + signature + provider + PART_ENVELOPE
                });
                let calls = said.calls.iter().map(|call| {
                    let signature = call.signature.as_ref().map_or(0, |text| json_bytes(text));
                    // A text within a text, at OpenAI.
                    json_bytes(&call.arguments) + json_bytes(&call.name) + signature + PART_ENVELOPE
                });
                let text = said.text.as_ref().map_or(0, |text| json_bytes(text));
                text + reasoning.sum::<usize>() + calls.sum::<usize>() + PART_ENVELOPE
            }
            RequestMessage::ToolResults(results) => results
                .iter()
                .map(|result| parts(&result.parts) + json_bytes(&result.name) + PART_ENVELOPE)
                .sum(),
        };
        let tools = self.tools.iter().map(|tool| {
            let schema = tool.input_schema.to_string().len();
            json_bytes(&tool.name) + json_bytes(&tool.description) + schema + PART_ENVELOPE
        });
        let system = self.system.as_ref().map_or(0, |text| json_bytes(text));
        let messages: usize = self.messages.iter().map(message).sum();
        let checkpoint: usize = self.checkpoint.iter().map(|item| item.get().len() + PART_ENVELOPE).sum();
        system + messages + checkpoint + tools.sum::<usize>() + 2 * PART_ENVELOPE
    }
}

/// Bytes of a text as a JSON string, its quotes included.
fn json_bytes(text: &str) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // Counting does not fail.
    let _ = serde_json::to_writer(&mut count, text);
    count.0
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
