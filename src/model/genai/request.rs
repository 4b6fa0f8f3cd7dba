//! Requests for Anthropic, Gemini and Bedrock in genai's types, and what every dialect shares.
//!
//! The request is already valid (I5); what is added here is only what a dialect asks for: results and the user
//! text behind them in one user message (Anthropic, Bedrock), no tool blocks where no tools are offered (F43),
//! notes where a part cannot be carried.

use ::genai::chat::{
    Binary, CacheControl, ChatMessage, ChatRequest, ContentPart as GenaiPart, CustomPart, MessageContent,
    Tool, ToolCall, ToolName, ToolResponse,
};
use serde_json::{Value, json};

use super::checkpoint;
use super::dialect::Dialect;
use super::names::ToolNames;
use super::schema::parameters;
use crate::history::image::media_type_of_base64;
use crate::history::request::{
    AssistantMessage, ModelRequest, RequestCall, RequestMessage, RequestReasoning, RequestResult,
};
use crate::message::{ContentPart, ImageData, is_blank};

/// Stands for an image where the model takes none.
pub(super) const IMAGE_OMITTED: &str = "[image omitted: this model takes no images]";
/// Stands for an image by address where the provider fetches none.
const IMAGE_URL_OMITTED: &str = "[image omitted: this provider takes no image addresses]";
/// Stands for an image of a type that Gemini takes none of.
const IMAGE_TYPE_OMITTED: &str = "[image omitted: this provider takes no images of its type]";
/// The types that Gemini takes.
const GEMINI_IMAGES: [&str; 5] = ["image/png", "image/jpeg", "image/webp", "image/heic", "image/heif"];
/// Stands for an image in a result, where the dialect has room for it only behind the results.
const IMAGE_BELOW: &str = "[image: see below]";
/// Stands for a part of an unknown kind.
pub(super) const UNKNOWN_OMITTED: &str = "[content of a kind that cannot be shown]";
/// Stands for a result without content (F29).
pub(super) const NO_OUTPUT: &str = "(no output)";

/// A request of genai that carries the tools only; the messages travel in the body's own form.
pub(super) struct ToolsOnly(ChatRequest);

pub(super) fn tools_only(dialect: Dialect, request: &ModelRequest, names: &ToolNames) -> ToolsOnly {
    ToolsOnly(ChatRequest { tools: tools(dialect, request, names), ..ChatRequest::default() })
}

impl ToolsOnly {
    pub fn with_system_of(mut self, request: &ModelRequest) -> Self {
        self.0.system = system(request);
        self
    }
}

impl From<ToolsOnly> for ChatRequest {
    fn from(request: ToolsOnly) -> Self {
        request.0
    }
}

fn system(request: &ModelRequest) -> Option<String> {
    visible(request.system.as_deref()).map(str::to_owned)
}

fn tools(dialect: Dialect, request: &ModelRequest, names: &ToolNames) -> Option<Vec<Tool>> {
    let tools = request.tools.iter().map(|tool| {
        let mut out = Tool::new(ToolName::Custom(names.encode(&tool.name).into_owned()))
            .with_schema(parameters(&tool.input_schema, dialect));
        if !is_blank(&tool.description) {
            out = out.with_description(tool.description.clone());
        }
        out
    });
    (!request.tools.is_empty()).then(|| tools.collect())
}

/// The whole request in genai's types.
pub(super) fn translate(
    dialect: Dialect,
    request: &ModelRequest,
    names: &ToolNames,
    images: bool,
) -> ToolsOnly {
    let flat;
    let messages = if request.tools.is_empty() && dialect != Dialect::Gemini {
        flat = flatten_calls(&request.messages);
        &flat
    } else {
        &request.messages
    };
    let builder = Builder { dialect, names, images };
    let mut out: Vec<ChatMessage> = Vec::new();
    for message in messages {
        let (is_user, parts) = match message {
            RequestMessage::User(parts) => (true, builder.user(parts)),
            RequestMessage::Assistant(said) => (false, builder.assistant(said)),
            RequestMessage::ToolResults(results) => (true, builder.results(results)),
        };
        if parts.is_empty() {
            continue;
        }
        match out.last_mut() {
            // The roles alternate on the wire. Gemini wants results in a turn of their own.
            Some(last)
                if is_user && last.role == ::genai::chat::ChatRole::User && dialect != Dialect::Gemini =>
            {
                last.content.extend(parts);
            }
            Some(_) | None => {
                let content = MessageContent::from_parts(parts);
                out.push(if is_user { ChatMessage::user(content) } else { ChatMessage::assistant(content) });
            }
        }
    }
    if dialect == Dialect::Anthropic {
        // It stands first, in a message of its own.
        let blocks: Vec<GenaiPart> =
            request.checkpoint.iter().filter_map(checkpoint::block).map(custom).collect();
        if !blocks.is_empty() {
            out.insert(0, ChatMessage::assistant(MessageContent::from_parts(blocks)));
        }
    }
    let mut chat = ChatRequest {
        system: system(request),
        messages: out,
        tools: tools(dialect, request, names),
        ..ChatRequest::default()
    };
    if dialect == Dialect::Anthropic {
        mark_stable_prefix(&mut chat);
    }
    ToolsOnly(chat)
}

/// Anthropic reads a prompt from its cache up to a mark, of which a request may have four: behind the tools, behind the
/// system entry, behind the message that the request before this one ended on, and behind the last one, which the next
/// request will begin with. The other providers find a stable prefix by themselves, but for Bedrock, whose `cachePoint`
/// genai 0.7.2 has no room for.
fn mark_stable_prefix(chat: &mut ChatRequest) {
    if let Some(tool) = chat.tools.as_mut().and_then(|tools| tools.last_mut()) {
        tool.cache_control = Some(CacheControl::Ephemeral);
    }
    let of_user = |message: &&mut ChatMessage| message.role == ::genai::chat::ChatRole::User;
    for message in chat.messages.iter_mut().rev().filter(of_user).take(2) {
        message.options = Some(CacheControl::Ephemeral.into());
    }
    // Only a message among the others can carry the mark; genai makes the system entry of it.
    if let Some(system) = chat.system.take() {
        chat.messages.insert(0, ChatMessage::system(system).with_options(CacheControl::Ephemeral));
    }
}

struct Builder<'a> {
    dialect: Dialect,
    names: &'a ToolNames,
    images: bool,
}

impl Builder<'_> {
    fn user(&self, parts: &[ContentPart]) -> Vec<GenaiPart> {
        parts.iter().filter(|part| !part.is_blank()).map(|part| self.user_part(part)).collect()
    }

    fn user_part(&self, part: &ContentPart) -> GenaiPart {
        match part {
            ContentPart::Text(text) => GenaiPart::Text(text.clone()),
            ContentPart::Image { .. } if !self.images => GenaiPart::Text(IMAGE_OMITTED.to_owned()),
            ContentPart::Image { data, media_type } => match (data, self.dialect) {
                // genai 0.7.2 drops addresses here, with a line in its log.
                (ImageData::Url(url), Dialect::Anthropic) => custom(anthropic_url_image(url)),
                (ImageData::Url(_), Dialect::Bedrock) => GenaiPart::Text(IMAGE_URL_OMITTED.to_owned()),
                (ImageData::Url(text) | ImageData::Base64(text), Dialect::Gemini)
                    if !GEMINI_IMAGES.contains(&mime(media_type.as_deref(), text).as_str()) =>
                {
                    GenaiPart::Text(IMAGE_TYPE_OMITTED.to_owned())
                }
                (ImageData::Url(url), Dialect::Gemini | Dialect::Chat | Dialect::Responses) => {
                    GenaiPart::Binary(Binary::from_url(mime(media_type.as_deref(), ""), url.clone(), None))
                }
                (ImageData::Base64(bytes), _) => {
                    let mime = mime(media_type.as_deref(), bytes);
                    GenaiPart::Binary(Binary::from_base64(mime, bytes.as_str(), None))
                }
            },
            ContentPart::Unknown(_) => GenaiPart::Text(UNKNOWN_OMITTED.to_owned()),
        }
    }

    fn assistant(&self, said: &AssistantMessage) -> Vec<GenaiPart> {
        // F40: whole, or not at all.
        let reasoning: Option<Vec<Vec<GenaiPart>>> =
            said.reasoning.iter().map(|reasoning| self.reasoning(reasoning)).collect();
        let mut parts = reasoning.unwrap_or_default().concat();
        parts.extend(visible(said.text.as_deref()).map(|text| GenaiPart::Text(text.to_owned())));
        parts.extend(said.calls.iter().map(|call| {
            GenaiPart::ToolCall(ToolCall {
                call_id: call.id.as_str().to_owned(),
                fn_name: self.names.encode(&call.name).into_owned(),
                fn_arguments: arguments_value(&call.arguments),
                // F42: Gemini signs the call itself; the others sign reasoning.
                thought_signatures: call.signature.clone().map(|signature| vec![signature]),
            })
        }));
        parts
    }

    /// None if this dialect does not take it: what is not signed (F38), and blocks of another dialect, which stand in
    /// the history of a thread that goes on with the same model over another route.
    fn reasoning(&self, reasoning: &RequestReasoning) -> Option<Vec<GenaiPart>> {
        let block = reasoning.provider.as_ref().and_then(|raw| serde_json::from_str::<Value>(raw.get()).ok());
        match (self.dialect, block, &reasoning.signature) {
            (Dialect::Anthropic, Some(block), _) => is_redacted_thinking(&block).then(|| vec![custom(block)]),
            (Dialect::Anthropic, None, Some(signature)) => Some(vec![custom(
                json!({ "type": "thinking", "thinking": reasoning.text, "signature": signature }),
            )]),
            // genai reads a signature without text behind it as redacted reasoning.
            (Dialect::Bedrock, Some(block), _) => {
                let redacted = block.get("redactedContent").and_then(Value::as_str)?;
                Some(vec![GenaiPart::ThoughtSignature(redacted.to_owned())])
            }
            (Dialect::Bedrock, None, Some(signature)) => Some(vec![
                GenaiPart::ThoughtSignature(signature.clone()),
                GenaiPart::ReasoningContent(reasoning.text.clone()),
            ]),
            // Gemini's signatures stand on calls.
            (Dialect::Gemini | Dialect::Chat | Dialect::Responses, _, _)
            | (Dialect::Anthropic | Dialect::Bedrock, None, None) => None,
        }
    }

    fn results(&self, results: &[RequestResult]) -> Vec<GenaiPart> {
        let mut parts = Vec::new();
        let mut below = Vec::new();
        for result in results {
            if self.dialect == Dialect::Anthropic {
                parts.push(custom(self.anthropic_result(result)));
                continue;
            }
            let text = result_text(result, self.images.then_some(IMAGE_BELOW));
            parts.push(GenaiPart::ToolResponse(
                ToolResponse::new(result.id.as_str(), text).with_fn_name(self.names.encode(&result.name)),
            ));
            if self.images {
                let images = result.parts.iter().filter(|part| matches!(part, ContentPart::Image { .. }));
                below.extend(images.map(|image| self.user_part(image)));
            }
        }
        parts.extend(below);
        parts
    }

    /// genai's tool response is a string; Anthropic takes images in it and wants to know of failures.
    fn anthropic_result(&self, result: &RequestResult) -> Value {
        let content: Vec<Value> = result
            .parts
            .iter()
            .filter(|part| !part.is_blank())
            .map(|part| match part {
                ContentPart::Text(text) => json!({ "type": "text", "text": text }),
                ContentPart::Image { .. } if !self.images => json!({ "type": "text", "text": IMAGE_OMITTED }),
                ContentPart::Image { data: ImageData::Url(url), .. } => anthropic_url_image(url),
                ContentPart::Image { data: ImageData::Base64(bytes), media_type } => json!({
                    "type": "image",
                    "source": {
                        "type": "base64",
                        "media_type": mime(media_type.as_deref(), bytes),
                        "data": bytes,
                    },
                }),
                ContentPart::Unknown(_) => json!({ "type": "text", "text": UNKNOWN_OMITTED }),
            })
            .collect();
        let content = if content.is_empty() { json!(NO_OUTPUT) } else { json!(content) };
        let mut block =
            json!({ "type": "tool_result", "tool_use_id": result.id.as_str(), "content": content });
        if result.is_error {
            block["is_error"] = json!(true);
        }
        block
    }
}

/// F43: tool blocks without a tool list are refused, so a request that offers none tells of the calls in text.
fn flatten_calls(messages: &[RequestMessage]) -> Vec<RequestMessage> {
    messages
        .iter()
        .map(|message| match message {
            RequestMessage::User(_) => message.clone(),
            RequestMessage::Assistant(said) => {
                let mut lines: Vec<String> = said.text.iter().cloned().collect();
                lines.extend(said.calls.iter().map(call_line));
                RequestMessage::Assistant(AssistantMessage {
                    // Signed reasoning is bound to the calls it led to.
                    reasoning: if said.calls.is_empty() { said.reasoning.clone() } else { Vec::new() },
                    text: (!lines.is_empty()).then(|| lines.join("\n\n")),
                    calls: Vec::new(),
                })
            }
            RequestMessage::ToolResults(results) => RequestMessage::User(
                results
                    .iter()
                    .flat_map(|result| {
                        let line = ContentPart::text(format!("[result of the tool {}:]", result.name));
                        std::iter::once(line).chain(result.parts.iter().cloned())
                    })
                    .collect(),
            ),
        })
        .collect()
}

fn call_line(call: &RequestCall) -> String {
    format!("[called the tool {} with {}]", call.name, call.arguments)
}

/// A result as text. `image_note` stands for images that are shown elsewhere; without it they are omitted.
pub(super) fn result_text(result: &RequestResult, image_note: Option<&str>) -> String {
    let texts: Vec<&str> = result
        .parts
        .iter()
        .filter(|part| !part.is_blank())
        .map(|part| match part {
            ContentPart::Text(text) => text.as_str(),
            ContentPart::Image { .. } => image_note.unwrap_or(IMAGE_OMITTED),
            ContentPart::Unknown(_) => UNKNOWN_OMITTED,
        })
        .collect();
    if texts.is_empty() { NO_OUTPUT.to_owned() } else { texts.join("\n") }
}

/// Text that is worth a block: nobody accepts a blank one (F27).
pub(super) fn visible(text: Option<&str>) -> Option<&str> {
    text.filter(|text| !is_blank(text))
}

/// Arguments as a value, always an object (F47): an empty text and what is no object read as `{}`.
fn arguments_value(arguments: &str) -> Value {
    serde_json::from_str(arguments).ok().filter(Value::is_object).unwrap_or_else(|| json!({}))
}

fn is_redacted_thinking(block: &Value) -> bool {
    block["type"] == "redacted_thinking" && visible(block["data"].as_str()).is_some()
}

fn custom(data: Value) -> GenaiPart {
    GenaiPart::Custom(CustomPart { model_iden: None, data })
}

fn anthropic_url_image(url: &str) -> Value {
    json!({ "type": "image", "source": { "type": "url", "url": url } })
}

/// The media type of an image, from how its bytes begin (providers refuse another one), else from what was said.
pub(super) fn mime(media_type: Option<&str>, base64: &str) -> String {
    if let Some(seen) = media_type_of_base64(base64) {
        return seen.to_owned();
    }
    match media_type.map(str::trim).filter(|said| !said.is_empty()) {
        Some(full) if full.contains('/') => full.to_ascii_lowercase(),
        Some(subtype) if subtype.eq_ignore_ascii_case("jpg") => "image/jpeg".to_owned(),
        Some(subtype) => format!("image/{}", subtype.to_ascii_lowercase()),
        None => "image/png".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_gets_a_full_media_type() {
        assert_eq!(mime(Some("png"), ""), "image/png");
        assert_eq!(mime(Some("jpg"), ""), "image/jpeg");
        assert_eq!(mime(Some("image/WEBP"), ""), "image/webp");
        assert_eq!(mime(None, "/9j/4AAQSkZJRgAB"), "image/jpeg");
        assert_eq!(mime(Some("jpeg"), "iVBORw0KGgo="), "image/png");
    }

    #[test]
    fn f47_arguments_are_always_an_object() {
        for odd in ["", "null", "[1]", "{", "\"x\""] {
            assert_eq!(arguments_value(odd), json!({}), "{odd}");
        }
        assert_eq!(arguments_value(r#"{"a":1}"#), json!({ "a": 1 }));
    }
}
