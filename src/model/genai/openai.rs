//! Messages for OpenAI's two dialects in their own form.
//!
//! genai 0.7.2 sends arguments through `Value`, which respells numbers (F37), and gives an assistant message
//! that only calls an empty text. Its `extra_body` replaces whole members of the body, so the messages are
//! written here. To be reconsidered when genai keeps arguments as text and sends `null` content.

use serde_json::{Value, json};

use super::names::ToolNames;
use super::request::{IMAGE_OMITTED, NO_OUTPUT, UNKNOWN_OMITTED, mime, result_text, visible};
use crate::history::request::{ModelRequest, RequestCall, RequestMessage, RequestReasoning, RequestResult};
use crate::message::{ContentPart, ImageData, RawJson};
use crate::model::ModelEvent;

/// Stands for an image in a result: Chat has room for images in user messages only.
const IMAGE_BELOW: &str = "[image: in the next message]";

/// The member of a message, and the type of the block, for reasoning that a provider wants back unsigned.
const PLAIN_REASONING: &str = "reasoning_content";

/// Ends a reasoning whose text is all there is to send back (DeepSeek, Kimi).
pub(super) fn plain_reasoning_block() -> ModelEvent {
    let block = json!({ "type": PLAIN_REASONING }).to_string();
    ModelEvent::ReasoningBlock { signature: None, provider: RawJson::parse(&block).ok() }
}

fn plain_reasoning(reasoning: &RequestReasoning) -> Option<&str> {
    let block = reasoning.provider.as_ref()?.str_field("type")?;
    (block == PLAIN_REASONING).then_some(reasoning.text.as_str())
}

/// `messages` of a Chat Completions request, the system entry first.
///
/// `echoes`: the provider takes unsigned reasoning back. Others refuse the very member.
pub(super) fn chat_messages(
    request: &ModelRequest,
    names: &ToolNames,
    images: bool,
    echoes: bool,
) -> Vec<Value> {
    let mut out = Vec::new();
    out.extend(visible(request.system.as_deref()).map(|text| json!({ "role": "system", "content": text })));
    for message in &request.messages {
        match message {
            RequestMessage::User(parts) => {
                out.extend(user_content(parts, images, Form::Chat).map(user_message));
            }
            RequestMessage::Assistant(said) => {
                let text = visible(said.text.as_deref());
                let calls: Vec<Value> = said.calls.iter().map(|call| chat_call(call, names)).collect();
                if text.is_none() && calls.is_empty() {
                    continue;
                }
                // Null, not "": several servers refuse a blank text.
                let mut message = json!({ "role": "assistant", "content": text });
                if !calls.is_empty() {
                    message["tool_calls"] = json!(calls);
                }
                let reasoning: Option<Vec<&str>> = said.reasoning.iter().map(plain_reasoning).collect();
                if let Some(reasoning) = reasoning.filter(|reasoning| echoes && !reasoning.is_empty()) {
                    message[PLAIN_REASONING] = json!(reasoning.concat());
                }
                out.push(message);
            }
            RequestMessage::ToolResults(results) => {
                out.extend(results.iter().map(|result| {
                    json!({
                        "role": "tool",
                        "tool_call_id": result.id.as_str(),
                        "content": result_text(result, images.then_some(IMAGE_BELOW)),
                    })
                }));
                out.extend(images.then(|| images_of(results)).flatten().map(user_message));
            }
        }
    }
    out
}

/// `input` of a Responses request; the system entry is its `instructions`.
pub(super) fn responses_input(request: &ModelRequest, names: &ToolNames, images: bool) -> Vec<Value> {
    // What the provider has made of everything before: as it gave it.
    let before = request.checkpoint.iter();
    let mut out: Vec<Value> = before.filter_map(|item| serde_json::from_str(item.get()).ok()).collect();
    for message in &request.messages {
        match message {
            RequestMessage::User(parts) => {
                out.extend(user_content(parts, images, Form::Responses).map(user_message));
            }
            RequestMessage::Assistant(said) => {
                // Without its id: with one, the API looks for the very item that followed it.
                let encrypted: Option<Vec<&String>> =
                    said.reasoning.iter().map(|reasoning| reasoning.signature.as_ref()).collect();
                out.extend(encrypted.into_iter().flatten().map(
                    |encrypted| json!({ "type": "reasoning", "summary": [], "encrypted_content": encrypted }),
                ));
                out.extend(
                    visible(said.text.as_deref()).map(|text| json!({ "role": "assistant", "content": text })),
                );
                out.extend(said.calls.iter().map(|call| {
                    json!({
                        "type": "function_call",
                        "call_id": call.id.as_str(),
                        "name": names.encode(&call.name),
                        "arguments": arguments_text(call),
                    })
                }));
            }
            RequestMessage::ToolResults(results) => out.extend(results.iter().map(|result| {
                let output = user_content(&result.parts, images, Form::Responses).unwrap_or(json!(NO_OUTPUT));
                json!({ "type": "function_call_output", "call_id": result.id.as_str(), "output": output })
            })),
        }
    }
    out
}

fn chat_call(call: &RequestCall, names: &ToolNames) -> Value {
    json!({
        "id": call.id.as_str(),
        "type": "function",
        "function": { "name": names.encode(&call.name), "arguments": arguments_text(call) },
    })
}

/// F47: an old stored "" reads as `{}`; everything else goes out as it is.
fn arguments_text(call: &RequestCall) -> &str {
    visible(Some(&call.arguments)).unwrap_or("{}")
}

fn user_message(content: Value) -> Value {
    json!({ "role": "user", "content": content })
}

/// The images in results, for the message behind them.
fn images_of(results: &[RequestResult]) -> Option<Value> {
    let parts: Vec<ContentPart> = results
        .iter()
        .flat_map(|result| {
            let images: Vec<ContentPart> = result
                .parts
                .iter()
                .filter(|part| matches!(part, ContentPart::Image { .. }))
                .cloned()
                .collect();
            let label = ContentPart::text(format!("[images of the result of {}]", result.name));
            (!images.is_empty()).then(|| std::iter::once(label).chain(images)).into_iter().flatten()
        })
        .collect();
    user_content(&parts, true, Form::Chat)
}

#[derive(Clone, Copy)]
enum Form {
    Chat,
    Responses,
}

/// Text alone as a string, anything else as a list of parts; none if nothing is left.
fn user_content(parts: &[ContentPart], images: bool, form: Form) -> Option<Value> {
    let parts: Vec<&ContentPart> = parts.iter().filter(|part| !part.is_blank()).collect();
    let shows_image = images && parts.iter().any(|part| matches!(part, ContentPart::Image { .. }));
    if !shows_image {
        let texts: Vec<&str> = parts
            .into_iter()
            .map(|part| match part {
                ContentPart::Text(text) => text.as_str(),
                ContentPart::Image { .. } => IMAGE_OMITTED,
                ContentPart::Unknown(_) => UNKNOWN_OMITTED,
            })
            .collect();
        return (!texts.is_empty()).then(|| json!(texts.join("\n\n")));
    }
    let text_part = |text: &str| match form {
        Form::Chat => json!({ "type": "text", "text": text }),
        Form::Responses => json!({ "type": "input_text", "text": text }),
    };
    let values: Vec<Value> = parts
        .into_iter()
        .map(|part| match part {
            ContentPart::Text(text) => text_part(text),
            ContentPart::Unknown(_) => text_part(UNKNOWN_OMITTED),
            ContentPart::Image { data, media_type } => {
                let url = match data {
                    ImageData::Url(url) => url.clone(),
                    ImageData::Base64(bytes) => {
                        format!("data:{};base64,{bytes}", mime(media_type.as_deref(), bytes))
                    }
                };
                match form {
                    Form::Chat => json!({ "type": "image_url", "image_url": { "url": url } }),
                    Form::Responses => json!({ "type": "input_image", "detail": "auto", "image_url": url }),
                }
            }
        })
        .collect();
    Some(json!(values))
}
