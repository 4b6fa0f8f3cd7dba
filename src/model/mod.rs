//! Model providers as a port: one request in, a stream of normalised events out.
//!
//! An adapter never retries, never stores and never decides what a conversation means; it classifies its
//! errors and says when a response is complete. [`scripted`] plays scripts (tests, benches, the demo);
//! [`genai`] speaks to real providers over HTTP.

pub mod genai;
mod native;
pub mod scripted;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use serde::{Deserialize, Serialize};

use crate::config::ModelConfig;
use crate::history::request::ModelRequest;
use crate::message::RawJson;

pub use native::{Checkpoint, Mechanism, NativeRoute, NoCheckpoint};

/// What a model can do, as far as dormouse's decisions need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelInfo {
    /// Tokens of its window; none: unknown, and nothing is triggered by size.
    pub context_window: Option<u64>,
    /// Whether it takes images; else they become a text note in the request.
    pub image_input: bool,
    /// Images that one request may hold; none: as many as fit.
    pub max_images: Option<usize>,
    /// Whether a step may hold several calls.
    pub parallel_calls: bool,
}

impl Default for ModelInfo {
    fn default() -> Self {
        Self { context_window: None, image_input: false, max_images: None, parallel_calls: true }
    }
}

/// Tokens of one response, as the provider counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the request, cached ones included.
    #[serde(default)]
    pub input: u64,
    /// Tokens of the response, reasoning included.
    #[serde(default)]
    pub output: u64,
    /// Of `input`, those read from a cache.
    #[serde(default)]
    pub cached: u64,
}

/// Why a response ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The model was done.
    EndTurn,
    /// The model waits for its calls.
    ToolUse,
    /// The output limit cut it.
    MaxTokens,
    /// The provider or the model refused.
    Refusal,
    /// Another reason, as the provider spells it.
    Other(String),
}

impl StopReason {
    /// The stored spelling.
    pub fn as_str(&self) -> &str {
        match self {
            Self::EndTurn => "end_turn",
            Self::ToolUse => "tool_use",
            Self::MaxTokens => "max_tokens",
            Self::Refusal => "refusal",
            Self::Other(reason) => reason,
        }
    }
}

/// One event of a response.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelEvent {
    /// A piece of visible text.
    Text(String),
    /// A piece of readable reasoning.
    ReasoningText(String),
    /// The provider's own form of the reasoning so far: a signature or a whole block. Ends that reasoning.
    ReasoningBlock {
        /// Signature or encrypted content.
        signature: Option<String>,
        /// The block as received.
        provider: Option<RawJson>,
    },
    /// A complete tool call.
    ToolCall {
        /// The provider's id; may be empty or repeat.
        provider_id: String,
        /// The tool as the model spells it.
        name: String,
        /// The arguments as received; may be empty or malformed.
        arguments: String,
        /// The provider's signature of the call.
        signature: Option<String>,
    },
    /// The terminal event: nothing of the response counts without it.
    End {
        /// Why it ended.
        stop: StopReason,
        /// What it cost.
        usage: Option<Usage>,
    },
}

/// How a provider failed, as the slice acts on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// Too many requests; come back after the delay.
    Throttled {
        /// The provider's `retry-after`.
        retry_after: Option<Duration>,
    },
    /// Passes by itself: a cut stream, a 5xx, a timeout.
    Transient,
    /// The request does not fit the window.
    Overflow,
    /// The provider refuses this content; trying again will not help.
    Refused,
    /// The provider does not take the checkpoint back that it has made: without it the request may pass.
    Checkpoint,
    /// Configuration: a wrong key, a wrong model name. Somebody has to act.
    Fatal,
}

/// A provider's failure. `message` is safe to show and to log: no content, no key.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct ModelError {
    /// What to do about it.
    pub class: ErrorClass,
    /// What happened, for people.
    pub message: String,
    /// Of an overflow: the tokens of the window, where the provider says how many.
    pub limit: Option<u64>,
}

impl ModelError {
    /// An error of a class.
    pub fn new(class: ErrorClass, message: impl Into<String>) -> Self {
        Self { class, message: message.into(), limit: None }
    }
}

/// The stream of one response.
pub type ModelStream = BoxStream<'static, Result<ModelEvent, ModelError>>;

/// A model behind a provider's API.
#[async_trait]
pub trait ModelProvider: Send + Sync {
    /// What the model can do.
    fn info(&self) -> ModelInfo;

    /// The model's name as stored with what it wrote; reasoning goes back to this model only.
    fn model(&self) -> &str;

    /// Starts one response. No retries: every failure is returned, classified.
    async fn stream(&self, request: ModelRequest) -> Result<ModelStream, ModelError>;

    /// How it compacts a conversation itself; none: not at all, or not on this route.
    fn native(&self) -> Option<NativeRoute> {
        None
    }

    /// Has the provider make a checkpoint of everything in `request`. No retries.
    ///
    /// # Errors
    /// [`NoCheckpoint`], always where [`native`](Self::native) is none.
    async fn checkpoint(&self, request: ModelRequest) -> Result<Checkpoint, NoCheckpoint> {
        let _ = request;
        Err(ModelError::new(ErrorClass::Fatal, "this provider makes no checkpoints").into())
    }
}

/// The provider that `config.provider` names: `scripted` plays `config.script` (or the prompts), every other
/// name is genai's.
///
/// `api_key` is the key where the caller has it from a secret; else the environment variable that
/// [`genai::dialect::api_key_env`] names is read. Fails with [`ErrorClass::Fatal`] and a message that names the
/// field, the variable or the line of the script to mend.
pub fn provider(config: &ModelConfig, api_key: Option<String>) -> Result<Arc<dyn ModelProvider>, ModelError> {
    if config.provider != scripted::MODEL_NAME {
        return Ok(Arc::new(genai::GenaiModel::new(config, api_key)?));
    }
    let model = match &config.script {
        Some(file) => scripted::ScriptedModel::from_file(file)?,
        None => scripted::ScriptedModel::prompts(),
    };
    let info = ModelInfo {
        context_window: config.context_window,
        image_input: config.image_input,
        max_images: config.max_images,
        parallel_calls: true,
    };
    let name = if config.name.is_empty() { scripted::MODEL_NAME } else { &config.name };
    Ok(Arc::new(model.with_info(info).named(name)))
}
