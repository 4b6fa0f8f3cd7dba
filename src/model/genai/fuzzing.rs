//! What a provider's server can send and what it is sent, without HTTP, for the targets in `fuzz/`.
#![deny(warnings, reason = "compiled by fuzz/ alone, where nobody reads warnings")]

use std::sync::{Arc, LazyLock};

use ::genai::Error as GenaiError;
use ::genai::chat::{ChatStreamEvent, StreamChunk};
use futures::StreamExt;
use futures::executor::block_on;
use futures::stream;
use reqwest::StatusCode;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use super::dialect::Dialect;
use super::frames::Frames;
use super::names::ToolNames;
use super::{GenaiModel, openai, request};
use crate::config::ModelConfig;
use crate::history::request::ModelRequest;
use crate::model::{ModelError, ModelEvent};

/// One provider of each dialect, in the order of [`DIALECTS`].
const PROVIDERS: [&str; DIALECTS] =
    ["openai", "openai_resp", "anthropic", "gemini", "bedrock_api", "deepseek"];
/// How many there are.
pub const DIALECTS: usize = 6;

static MODELS: LazyLock<Vec<GenaiModel>> = LazyLock::new(|| {
    let model = |provider| {
        let config = ModelConfig::from_spec(&format!("{provider}::m"));
        GenaiModel::new(&config, Some("key".to_owned())).expect("bug: a known provider")
    };
    PROVIDERS.map(model).into()
});

/// A piece of a response, as genai hands it on.
#[derive(Clone, Debug)]
pub enum Piece {
    /// A frame of the provider: its event's name and its data.
    Frame(Option<String>, String),
    /// Text that genai made of the frames before.
    Text(String),
    /// Reasoning that genai made of the frames before.
    Reasoning(String),
    /// The provider refused: a status, headers and a body.
    Refusal(u16, Vec<(String, String)>, String),
}

/// Reads a response to `request` as [`GenaiModel`] does: the same loop over the same frames.
pub fn read_response(
    dialect: usize,
    request: &ModelRequest,
    pieces: Vec<Piece>,
) -> Vec<Result<ModelEvent, ModelError>> {
    let model = &MODELS[dialect % DIALECTS];
    let frames = Arc::new(Frames::new(model.provider.dialect));
    let sink = frames.clone();
    let events = stream::iter(pieces).map(move |piece| match piece {
        Piece::Frame(event, data) => {
            sink.read(event.as_deref(), &data);
            Ok(ChatStreamEvent::Heartbeat)
        }
        Piece::Text(content) => Ok(ChatStreamEvent::Chunk(StreamChunk { content })),
        Piece::Reasoning(content) => Ok(ChatStreamEvent::ReasoningChunk(StreamChunk { content })),
        Piece::Refusal(status, headers, body) => Err(refusal(status, headers, body)),
    });
    block_on(model.translate(events.boxed(), frames, ToolNames::new(request)).collect())
}

fn refusal(status: u16, headers: Vec<(String, String)>, body: String) -> GenaiError {
    let header = |(name, value): (String, String)| {
        Some((name.parse::<HeaderName>().ok()?, value.parse::<HeaderValue>().ok()?))
    };
    GenaiError::HttpError {
        status: StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST),
        canonical_reason: String::new(),
        body,
        headers: Box::new(headers.into_iter().filter_map(header).collect::<HeaderMap>()),
    }
}

/// A tool's name as providers get it.
pub fn wire_name(name: &str) -> String {
    ToolNames::new(&ModelRequest::default()).encode(name).into_owned()
}

/// `messages` of Chat Completions and `input` of Responses; the other dialects' forms are genai's, and are made too.
pub fn bodies(request: &ModelRequest, images: bool) -> (Vec<Value>, Vec<Value>) {
    let names = ToolNames::new(request);
    for dialect in [Dialect::Anthropic, Dialect::Gemini, Dialect::Bedrock] {
        drop(request::translate(dialect, request, &names, images));
    }
    (openai::chat_messages(request, &names, images, true), openai::responses_input(request, &names, images))
}
