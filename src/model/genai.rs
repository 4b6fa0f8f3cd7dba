//! The adapter on the `genai` crate (0.7.2): real providers over HTTP.
//!
//! genai brings the transport: addresses, keys, SigV4, SSE and AWS event-stream framing, the dialects' text and
//! reasoning deltas. What must be exact stays here, one file each:
//!
//! | file | job |
//! |---|---|
//! | [`dialect`] | provider names, keys, which wire format a provider speaks |
//! | `names` | tool names within a dialect's alphabet and length, and back (F44) |
//! | `openai` | messages for OpenAI Chat and Responses, arguments byte for byte |
//! | `request` | messages for Anthropic, Gemini and Bedrock, and what all dialects share |
//! | `frames` | reads calls, signatures and the stop reason from the provider's own frames |
//! | `schema` | schemas of tools as every provider takes them |
//! | `checkpoint` | what a provider makes of a conversation itself, and how it goes back |
//! | `classify` | errors by status, header and typed code |
//! | `overflow` | what an error's text says of the window |
//!
//! Nothing is retried and nothing is logged here. genai itself logs at `warn` and `error`, in places with the
//! body of a provider's error: the process should filter the target `genai` out.

mod checkpoint;
mod classify;
pub mod dialect;
mod frames;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod names;
mod openai;
mod overflow;
mod request;
mod schema;

use std::sync::Arc;
use std::time::Duration;

use ::genai::chat::{ChatOptions, ChatStreamEvent, ReasoningEffort, StreamEnd};
use ::genai::resolver::{Endpoint, ProviderConfig};
use ::genai::{Client, ModelIden, WebConfig};
use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::{self, BoxStream};

use self::classify::Classifier;
use self::dialect::{Dialect, Provider};
use self::frames::Frames;
use self::names::ToolNames;
use super::{
    Checkpoint, ErrorClass, ModelError, ModelEvent, ModelInfo, ModelProvider, ModelStream, NativeRoute,
    NoCheckpoint, StopReason, Usage,
};
use crate::config::ModelConfig;
use crate::history::request::ModelRequest;

/// Until the response's headers are here.
pub const REQUEST_START_TIMEOUT: Duration = Duration::from_secs(60);
/// Between two pieces of a response. Keep-alive comments and pings count as pieces: what they cannot hide is
/// bounded by the slice's deadline.
pub const STREAM_SILENCE_TIMEOUT: Duration = Duration::from_secs(120);

/// How requests introduce themselves.
const USER_AGENT: &str = concat!("dormouse/", env!("CARGO_PKG_VERSION"));

/// A model behind a provider that genai speaks to.
pub struct GenaiModel {
    client: Client,
    target: ModelIden,
    provider: Provider,
    /// How the provider compacts on this route, if it can.
    native: Option<checkpoint::Native>,
    info: ModelInfo,
    name: String,
    classifier: Classifier,
    start_timeout: Duration,
    silence_timeout: Duration,
}

impl GenaiModel {
    /// The model that `config` describes. `api_key` wins over the environment variable that
    /// [`dialect::api_key_env`] names; a server under a `base_url` of one's own needs none.
    ///
    /// Fails with [`ErrorClass::Fatal`] for an unknown provider, a malformed address and a missing key; the
    /// message names the field or the variable.
    pub fn new(config: &ModelConfig, api_key: Option<String>) -> Result<Self, ModelError> {
        let provider = Provider::find(&config.provider)?;
        let auth = provider.auth(config, api_key)?;
        let auth_value = auth.single_key_value().unwrap_or_default();
        let endpoint = provider.endpoint(config)?;
        let settings = ProviderConfig { endpoint: endpoint.map(Endpoint::from_owned), auth: Some(auth) };
        let unusable = || ModelError::new(ErrorClass::Fatal, "the HTTP client cannot be built");
        // A redirect would carry the key, in a header that only its provider knows as one, to another host.
        let http = WebConfig::default()
            .apply_to_builder(reqwest::Client::builder())
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(USER_AGENT)
            .build()
            .map_err(|_| unusable())?;
        let native = checkpoint::Native::find(&provider, config, &auth_value, http.clone());
        let client = Client::builder()
            .with_reqwest(http)
            .append_provider_config(provider.kind, settings)
            .build()
            .map_err(|_| unusable())?;
        Ok(Self {
            client,
            target: ModelIden::new(provider.kind, config.name.clone()),
            info: ModelInfo {
                context_window: config.context_window,
                image_input: config.image_input,
                max_images: config.max_images.or(provider.dialect.max_images()),
                parallel_calls: true,
            },
            name: config.name.clone(),
            classifier: Classifier::new(config),
            native,
            provider,
            start_timeout: REQUEST_START_TIMEOUT,
            silence_timeout: STREAM_SILENCE_TIMEOUT,
        })
    }

    /// With other limits on the wait for headers and on the silence between two pieces; for tests.
    #[must_use]
    pub fn with_timeouts(mut self, start: Duration, silence: Duration) -> Self {
        (self.start_timeout, self.silence_timeout) = (start, silence);
        self
    }

    fn options(&self, request: &ModelRequest, frames: &Arc<Frames>) -> ChatOptions {
        // What genai captures for the end of a stream is not used (`frames` is exact), so only the switches
        // that change the request are on. With `capture_tool_calls`, genai 0.7.2 also sizes a vector by the
        // index an OpenAI-style server names, which is an allocation the server controls.
        let mut options = ChatOptions::default()
            .with_capture_usage(true)
            .with_stream_header_timeout(self.start_timeout)
            .with_stream_read_timeout(self.silence_timeout)
            .with_raw_frame_sink_arc(frames.clone());
        options.max_tokens = request.max_output_tokens;
        if !request.checkpoint.is_empty() && self.provider.dialect == Dialect::Anthropic {
            options.extra_headers = Some(checkpoint::beta_header());
        }
        if !request.without_thoughts && self.provider.wants_readable_reasoning(&self.name) {
            options = options.with_capture_reasoning_content(true);
        }
        // genai 0.7.2 takes a last `-max`, `-high`, `-medium`, … of a model's name for a reasoning effort and
        // cuts it off (`qwen-max` becomes `qwen`). A budget switches that off, and the OpenAI dialects send
        // nothing for it.
        if self.provider.dialect.is_openai() && ReasoningEffort::from_model_name(&self.name).0.is_some() {
            options = options.with_reasoning_effort(ReasoningEffort::Budget(0));
        }
        options
    }
}

#[async_trait]
impl ModelProvider for GenaiModel {
    fn info(&self) -> ModelInfo {
        self.info.clone()
    }

    fn model(&self) -> &str {
        &self.name
    }

    async fn stream(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        self.provider.check_runtime()?;
        let names = ToolNames::new(&request);
        let frames = Arc::new(Frames::new(self.provider.dialect));
        let mut options = self.options(&request, &frames);
        let images = self.info.image_input;
        let chat = match self.provider.dialect {
            Dialect::Chat => {
                let echoes = self.provider.echoes_plain_reasoning();
                let messages = openai::chat_messages(&request, &names, images, echoes);
                options.extra_body = Some(serde_json::json!({ "messages": messages }));
                request::tools_only(Dialect::Chat, &request, &names)
            }
            Dialect::Responses => {
                let mut body =
                    serde_json::json!({ "input": openai::responses_input(&request, &names, images) });
                if dialect::is_openai_reasoning_model(&self.name) {
                    body["include"] = serde_json::json!(["reasoning.encrypted_content"]);
                }
                options.extra_body = Some(body);
                request::tools_only(Dialect::Responses, &request, &names).with_system_of(&request)
            }
            Dialect::Anthropic | Dialect::Gemini | Dialect::Bedrock => {
                request::translate(self.provider.dialect, &request, &names, images)
            }
        };
        let response = self
            .client
            .exec_chat_stream(self.target.clone(), chat.into(), Some(&options))
            .await
            .map_err(|e| self.classifier.classify(&e, None))?;
        let mut events = self.translate(response.stream.boxed(), frames, names).boxed();
        // genai sends the request when the stream is first polled, so a refused request is found only here.
        match events.next().await {
            Some(Ok(first)) => Ok(stream::once(async { Ok(first) }).chain(events).boxed()),
            Some(Err(error)) => Err(error),
            None => Err(self.classifier.cut()),
        }
    }

    fn native(&self) -> Option<NativeRoute> {
        self.native.as_ref().map(checkpoint::Native::route)
    }

    async fn checkpoint(&self, request: ModelRequest) -> Result<Checkpoint, NoCheckpoint> {
        self.make_checkpoint(request).await
    }
}

type GenaiEvents = BoxStream<'static, ::genai::Result<ChatStreamEvent>>;

impl GenaiModel {
    /// Text and reasoning come from genai's events; calls, signatures and the end from the frames behind them.
    fn translate(
        &self,
        mut events: GenaiEvents,
        frames: Arc<Frames>,
        names: ToolNames,
    ) -> impl futures::Stream<Item = Result<ModelEvent, ModelError>> + Send + use<> {
        let classifier = self.classifier.clone();
        let echoes = self.provider.echoes_plain_reasoning();
        async_stream::stream! {
            let (mut called, mut reasons) = (false, false);
            let end = loop {
                let event = events.next().await;
                // What earlier frames completed stands before what this event brings.
                for ready in frames.take_ready() {
                    yield Ok(names.decode(ready, &mut called));
                }
                match event {
                    Some(Ok(ChatStreamEvent::Chunk(chunk))) if !chunk.content.is_empty() => {
                        if std::mem::take(&mut reasons) {
                            yield Ok(openai::plain_reasoning_block());
                        }
                        yield Ok(ModelEvent::Text(chunk.content));
                    }
                    Some(Ok(ChatStreamEvent::ReasoningChunk(chunk))) if !chunk.content.is_empty() => {
                        reasons = echoes;
                        yield Ok(ModelEvent::ReasoningText(chunk.content));
                    }
                    Some(Ok(ChatStreamEvent::End(end))) => break Some(end),
                    Some(Ok(_)) => {}
                    // The server closed after the last thing it had to say: `[DONE]` is a courtesy.
                    Some(Err(_)) | None if frames.is_complete() => break None,
                    Some(Err(error)) => {
                        yield Err(classifier.classify_response(&error, frames.failure().as_ref()));
                        return;
                    }
                    None => break None,
                }
            };
            let usage = end.as_ref().and_then(usage).or_else(|| frames.usage());
            let Some((held, stop)) = frames.finish() else {
                // genai 0.7.2 skips a `response.failed` that lacks a member which it wants.
                yield Err(match frames.failure() {
                    Some(failure) => classifier.of_failure(&failure),
                    None => classifier.cut(),
                });
                return;
            };
            if reasons {
                yield Ok(openai::plain_reasoning_block());
            }
            for call in held {
                yield Ok(names.decode(call, &mut called));
            }
            match stop_reason(&stop, called) {
                Some(stop) => yield Ok(ModelEvent::End { stop, usage }),
                None => yield Err(classifier.failed_in_stream(&stop)),
            }
        }
    }
}

/// The stop reason that a provider's spelling means; none for spellings that report a failure.
fn stop_reason(raw: &str, called: bool) -> Option<StopReason> {
    use ::genai::chat::StopReason as Genai;
    let stop = match raw {
        // Not known to genai 0.7.2.
        "max_output_tokens" => StopReason::MaxTokens,
        "guardrail_intervened" | "content_filtered" => StopReason::Refusal,
        // OpenRouter's and DeepSeek's way to say that the provider behind them failed.
        "error" | "insufficient_system_resource" => return None,
        _ => match Genai::from(raw.to_owned()) {
            Genai::Completed(_) | Genai::StopSequence(_) => StopReason::EndTurn,
            Genai::MaxTokens(_) => StopReason::MaxTokens,
            Genai::ToolCall(_) => StopReason::ToolUse,
            Genai::ContentFilter(_) => StopReason::Refusal,
            Genai::Other(raw) => StopReason::Other(raw),
        },
    };
    // Several servers end a step with calls as a plain stop, and some say `tool_calls` without any.
    Some(match stop {
        StopReason::EndTurn if called => StopReason::ToolUse,
        StopReason::ToolUse if !called => StopReason::EndTurn,
        other => other,
    })
}

fn usage(end: &StreamEnd) -> Option<Usage> {
    let usage = end.captured_usage.as_ref()?;
    let count = |tokens: Option<i32>| u64::try_from(tokens.unwrap_or(0)).unwrap_or(0);
    let input = count(usage.prompt_tokens);
    let output = count(usage.completion_tokens);
    let details = usage.prompt_tokens_details.as_ref();
    let cached = details.map_or(0, |details| count(details.cached_tokens));
    if input == 0 && output == 0 {
        return None;
    }
    // Bedrock counts cached tokens beside its input, not in it; the total holds them.
    let input = if cached > input { input + cached } else { input };
    Some(Usage { input, output, cached })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_reasons_mean_the_same_in_every_dialect() {
        for raw in ["stop", "end_turn", "STOP", "completed", "stop_sequence"] {
            assert_eq!(stop_reason(raw, false), Some(StopReason::EndTurn), "{raw}");
            assert_eq!(stop_reason(raw, true), Some(StopReason::ToolUse), "{raw}");
        }
        for raw in
            ["length", "max_tokens", "MAX_TOKENS", "max_output_tokens", "model_context_window_exceeded"]
        {
            assert_eq!(stop_reason(raw, true), Some(StopReason::MaxTokens), "{raw}");
        }
        for raw in ["content_filter", "refusal", "SAFETY", "guardrail_intervened"] {
            assert_eq!(stop_reason(raw, false), Some(StopReason::Refusal), "{raw}");
        }
        assert_eq!(stop_reason("tool_calls", false), Some(StopReason::EndTurn));
        assert_eq!(stop_reason("pause_turn", false), Some(StopReason::Other("pause_turn".into())));
        assert_eq!(stop_reason("error", false), None);
    }

    #[test]
    fn a_missing_key_names_the_variable_and_an_unknown_provider_the_field() {
        let config = |provider: &str| ModelConfig {
            api_key_env: Some("DORMOUSE_TEST_NO_SUCH_KEY".into()),
            ..ModelConfig::from_spec(&format!("{provider}::m"))
        };
        let error = GenaiModel::new(&config("anthropic"), None).err().unwrap();
        assert_eq!(error.class, ErrorClass::Fatal);
        assert!(error.message.contains("DORMOUSE_TEST_NO_SUCH_KEY"), "{error}");
        let error = GenaiModel::new(&config("opnai"), None).err().unwrap();
        assert!(error.message.contains("`provider`") && error.message.contains("openai_resp"), "{error}");
        let bad = ModelConfig { base_url: Some("no url".into()), ..config("openai") };
        let error = GenaiModel::new(&bad, Some("k".into())).err().unwrap();
        assert!(error.message.contains("`base_url`"), "{error}");
        for provider in
            ["openai", "openai_resp", "anthropic", "gemini", "groq", "ollama", "bedrock", "mistral"]
        {
            assert!(GenaiModel::new(&config(provider), Some("k".into())).is_ok(), "{provider}");
        }
    }
}
