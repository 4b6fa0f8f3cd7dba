//! A model that plays a script: tests, benches, the demo and the AG-UI drivers use it.
//!
//! [`ScriptedModel::prompts`] lets the last user text decide (see [`prompts`]); [`ScriptedModel::script`] and
//! [`ScriptedModel::from_file`] play fixed responses, one per model call, in the order of the calls;
//! [`ScriptedModel::from_fn`] asks a function. Nothing leaves the process, and no clock is read except for the
//! delays a response asks for.
//!
//! # Script files
//!
//! Either one JSON document, a list of responses, or JSON lines, one response a line (blank lines and lines that
//! begin with `#` are skipped). A response is a list of events, each an object with one member:
//!
//! | event | meaning |
//! |---|---|
//! | `{"text":"…"}` | a piece of visible text |
//! | `{"reasoning":"…"}` | a piece of readable reasoning |
//! | `{"signature":"…"}` | ends the reasoning before it and signs it |
//! | `{"call":{"id":"x","name":"f","arguments":"{…}"}}` | a complete tool call; `id` and `arguments` default to `""`, `signature` may be given |
//! | `{"usage":{"input":1,"output":2,"cached":0}}` | what the end will report |
//! | `{"end":"end_turn"}` | the terminal event: `end_turn`, `tool_use`, `max_tokens`, `refusal`, or another text |
//! | `{"cut":true}` | the stream ends here without a terminal event (F50) |
//! | `{"error":{"class":"throttled","retry_after_ms":7000,"message":"…"}}` | fails: `throttled`, `transient`, `overflow`, `refused` or `fatal`; as the first event the call itself fails, else the stream does |
//! | `{"delay_ms":50}` | waits |
//!
//! A response that ends with none of `end`, `cut` and `error` ends by itself: `tool_use` if it holds a call, else
//! `end_turn`; so `[]` is an empty answer with a normal stop (F27). Nothing may follow an ending event.

pub mod prompts;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use serde::{Deserialize, Serialize};

use super::{ErrorClass, ModelError, ModelEvent, ModelInfo, ModelProvider, ModelStream, StopReason, Usage};
use crate::history::request::ModelRequest;

/// How many of the newest requests are kept for [`ScriptedModel::requests`].
pub const MAX_RECORDED_REQUESTS: usize = 256;
/// The model name stored with what it wrote, unless [`ScriptedModel::named`] gives another.
pub const MODEL_NAME: &str = "scripted";

/// One response: its events in order.
pub type ScriptedResponse = Vec<ScriptedEvent>;

/// One event of a scripted response; the module's table says how each is spelled in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScriptedEvent {
    /// A piece of visible text.
    Text(String),
    /// A piece of readable reasoning.
    Reasoning(String),
    /// Ends the reasoning before it and signs it.
    Signature(String),
    /// A complete tool call.
    Call(ScriptedCall),
    /// What the end will report.
    Usage(Usage),
    /// The terminal event, as [`StopReason::as_str`] spells it.
    End(String),
    /// The stream ends without a terminal event; the value does not matter.
    Cut(bool),
    /// The call or the stream fails.
    Error(ScriptedError),
    /// Waits this many milliseconds.
    DelayMs(u64),
}

/// A tool call in a script.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptedCall {
    /// The provider's id; may be empty or repeat, as with real providers.
    #[serde(default)]
    pub id: String,
    /// The tool.
    pub name: String,
    /// The arguments as text; need not be JSON.
    #[serde(default)]
    pub arguments: String,
    /// The provider's signature of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
}

/// A failure in a script.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptedError {
    /// How the slice acts on it.
    pub class: ScriptedErrorClass,
    /// Only for `throttled`: the delay the provider asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// The message; absent: one that names the class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The classes of [`ErrorClass`] as a script spells them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScriptedErrorClass {
    /// [`ErrorClass::Throttled`]
    Throttled,
    /// [`ErrorClass::Transient`]
    Transient,
    /// [`ErrorClass::Overflow`]
    Overflow,
    /// [`ErrorClass::Refused`]
    Refused,
    /// [`ErrorClass::Fatal`]
    Fatal,
}

impl ScriptedEvent {
    /// A tool call without a signature.
    pub fn call(id: impl Into<String>, name: impl Into<String>, arguments: impl Into<String>) -> Self {
        Self::Call(ScriptedCall {
            id: id.into(),
            name: name.into(),
            arguments: arguments.into(),
            signature: None,
        })
    }

    /// A failure without a delay.
    pub fn error(class: ScriptedErrorClass, message: impl Into<String>) -> Self {
        Self::Error(ScriptedError { class, retry_after_ms: None, message: Some(message.into()) })
    }

    /// Whether nothing may follow it in a response.
    fn ends(&self) -> bool {
        match self {
            Self::End(_) | Self::Cut(_) | Self::Error(_) => true,
            Self::Text(_)
            | Self::Reasoning(_)
            | Self::Signature(_)
            | Self::Call(_)
            | Self::Usage(_)
            | Self::DelayMs(_) => false,
        }
    }
}

impl ScriptedError {
    fn into_error(self) -> ModelError {
        let (class, name) = match self.class {
            ScriptedErrorClass::Throttled => (
                ErrorClass::Throttled { retry_after: self.retry_after_ms.map(Duration::from_millis) },
                "throttled",
            ),
            ScriptedErrorClass::Transient => (ErrorClass::Transient, "transient"),
            ScriptedErrorClass::Overflow => (ErrorClass::Overflow, "overflow"),
            ScriptedErrorClass::Refused => (ErrorClass::Refused, "refused"),
            ScriptedErrorClass::Fatal => (ErrorClass::Fatal, "fatal"),
        };
        ModelError::new(class, self.message.unwrap_or_else(|| format!("scripted failure: {name}")))
    }
}

type Respond = dyn Fn(&ModelRequest) -> ScriptedResponse + Send + Sync;

enum Source {
    /// The request decides.
    Function(Box<Respond>),
    /// The number of the call decides.
    Script(Vec<ScriptedResponse>),
}

/// A [`ModelProvider`] that plays a script and remembers what it was asked.
pub struct ScriptedModel {
    source: Source,
    info: ModelInfo,
    name: String,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    calls: usize,
    requests: VecDeque<ModelRequest>,
}

impl ScriptedModel {
    /// The text of the last user message decides, as [`prompts`] documents.
    pub fn prompts() -> Self {
        Self::from_fn(prompts::respond)
    }

    /// A function of the request decides.
    pub fn from_fn(respond: impl Fn(&ModelRequest) -> ScriptedResponse + Send + Sync + 'static) -> Self {
        Self::new(Source::Function(Box::new(respond)))
    }

    /// Plays `responses`, one per model call, in order; a call beyond them fails and says so.
    pub fn script(responses: Vec<ScriptedResponse>) -> Self {
        Self::new(Source::Script(responses))
    }

    /// Plays the script in a file. An error names the file and the line.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, ModelError> {
        let path = path.as_ref();
        let problem = |what: String| {
            ModelError::new(ErrorClass::Fatal, format!("model script {}: {what}", path.display()))
        };
        let text = std::fs::read_to_string(path).map_err(|e| problem(e.to_string()))?;
        parse_script(&text).map(Self::script).map_err(problem)
    }

    fn new(source: Source) -> Self {
        Self { source, info: ModelInfo::default(), name: MODEL_NAME.to_owned(), seen: Mutex::default() }
    }

    /// With other abilities than the default's.
    #[must_use]
    pub fn with_info(mut self, info: ModelInfo) -> Self {
        self.info = info;
        self
    }

    /// Under another model name.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// The newest requests, oldest first; at most [`MAX_RECORDED_REQUESTS`].
    pub fn requests(&self) -> Vec<ModelRequest> {
        self.seen().requests.iter().cloned().collect()
    }

    /// How often it was asked.
    pub fn calls(&self) -> usize {
        self.seen().calls
    }

    /// A poisoned lock only means that another test thread panicked; what is recorded stays sound.
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the request and returns the number of this call, from 0.
    fn record(&self, request: ModelRequest) -> usize {
        let mut seen = self.seen();
        if seen.requests.len() == MAX_RECORDED_REQUESTS {
            seen.requests.pop_front();
        }
        seen.requests.push_back(request);
        seen.calls += 1;
        seen.calls - 1
    }
}

#[async_trait]
impl ModelProvider for ScriptedModel {
    fn info(&self) -> ModelInfo {
        self.info.clone()
    }

    fn model(&self) -> &str {
        &self.name
    }

    async fn stream(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        let response = match &self.source {
            Source::Function(respond) => {
                let response = respond(&request);
                self.record(request);
                response
            }
            Source::Script(responses) => {
                let number = self.record(request);
                responses.get(number).cloned().ok_or_else(|| {
                    ModelError::new(
                        ErrorClass::Fatal,
                        format!(
                            "the model script has {} responses; this is call {}",
                            responses.len(),
                            number + 1
                        ),
                    )
                })?
            }
        };
        play(response).await
    }
}

/// Plays one response. A failure before any output is the call's own, as with a real provider.
async fn play(response: ScriptedResponse) -> Result<ModelStream, ModelError> {
    let mut events: VecDeque<ScriptedEvent> = response.into();
    loop {
        match events.pop_front() {
            Some(ScriptedEvent::DelayMs(ms)) => tokio::time::sleep(Duration::from_millis(ms)).await,
            Some(ScriptedEvent::Error(error)) => return Err(error.into_error()),
            Some(other) => {
                events.push_front(other);
                break;
            }
            None => break,
        }
    }
    Ok(async_stream::stream! {
        let (mut usage, mut called) = (None, false);
        for event in events {
            match event {
                ScriptedEvent::Text(text) => yield Ok(ModelEvent::Text(text)),
                ScriptedEvent::Reasoning(text) => yield Ok(ModelEvent::ReasoningText(text)),
                ScriptedEvent::Signature(signature) => {
                    yield Ok(ModelEvent::ReasoningBlock { signature: Some(signature), provider: None });
                }
                ScriptedEvent::Call(call) => {
                    called = true;
                    yield Ok(ModelEvent::ToolCall {
                        provider_id: call.id,
                        name: call.name,
                        arguments: call.arguments,
                        signature: call.signature,
                    });
                }
                ScriptedEvent::Usage(given) => usage = Some(given),
                ScriptedEvent::End(reason) => {
                    yield Ok(ModelEvent::End { stop: stop_reason(reason), usage });
                    return;
                }
                ScriptedEvent::Cut(_) => return,
                ScriptedEvent::Error(error) => {
                    yield Err(error.into_error());
                    return;
                }
                ScriptedEvent::DelayMs(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
            }
        }
        let stop = if called { StopReason::ToolUse } else { StopReason::EndTurn };
        yield Ok(ModelEvent::End { stop, usage });
    }
    .boxed())
}

fn stop_reason(text: String) -> StopReason {
    [StopReason::EndTurn, StopReason::ToolUse, StopReason::MaxTokens, StopReason::Refusal]
        .into_iter()
        .find(|known| known.as_str() == text)
        .unwrap_or(StopReason::Other(text))
}

/// Reads a script in either of its two forms. The error names the line.
pub fn parse_script(text: &str) -> Result<Vec<ScriptedResponse>, String> {
    // A document is a list of lists; a line of the other form is a list of objects.
    let is_document =
        text.trim_start().strip_prefix('[').is_some_and(|rest| rest.trim_start().starts_with('['));
    let mut responses: Vec<ScriptedResponse> = Vec::new();
    if is_document {
        // serde_json's own message names line and column.
        responses = serde_json::from_str(text).map_err(|e| e.to_string())?;
        for (i, response) in responses.iter().enumerate() {
            check(response).map_err(|e| format!("response {}: {e}", i + 1))?;
        }
    } else {
        for (i, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.trim_start().starts_with('#') {
                continue;
            }
            let response: ScriptedResponse =
                serde_json::from_str(line).map_err(|e| format!("line {}: {}", i + 1, without_line(&e)))?;
            check(&response).map_err(|e| format!("line {}: {e}", i + 1))?;
            responses.push(response);
        }
    }
    Ok(responses)
}

/// The parser saw one line only, so its own "line 1" would mislead.
fn without_line(error: &serde_json::Error) -> String {
    error.to_string().replace(" at line 1 column ", " at column ")
}

fn check(response: &[ScriptedEvent]) -> Result<(), String> {
    match response.iter().position(ScriptedEvent::ends) {
        Some(at) if at + 1 < response.len() => {
            Err(format!("event {} ends the response, but {} more follow", at + 1, response.len() - at - 1))
        }
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn drain(model: &ScriptedModel) -> Vec<Result<ModelEvent, ModelError>> {
        match model.stream(ModelRequest::default()).await {
            Ok(stream) => stream.collect().await,
            Err(e) => vec![Err(e)],
        }
    }

    const LINES: &str = r#"
# two calls, then the answer
[{"reasoning":"hm"},{"signature":"s"},{"call":{"id":"x","name":"f","arguments":"{\"a\":1.0}"}},{"call":{"name":"g"}},{"usage":{"input":3,"output":4}},{"end":"tool_use"}]
[{"text":"a"},{"delay_ms":1},{"error":{"class":"throttled","retry_after_ms":7000}}]
[{"delay_ms":1},{"error":{"class":"overflow","message":"too long"}}]
[{"text":"cu"},{"cut":true}]
[]
"#;

    #[tokio::test]
    async fn a_script_plays_one_response_per_call_and_says_when_it_is_over() {
        let model = ScriptedModel::script(parse_script(LINES).unwrap());
        let first: Vec<_> = drain(&model).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(
            first,
            [
                ModelEvent::ReasoningText("hm".into()),
                ModelEvent::ReasoningBlock { signature: Some("s".into()), provider: None },
                ModelEvent::ToolCall {
                    provider_id: "x".into(),
                    name: "f".into(),
                    arguments: r#"{"a":1.0}"#.into(),
                    signature: None
                },
                ModelEvent::ToolCall {
                    provider_id: String::new(),
                    name: "g".into(),
                    arguments: String::new(),
                    signature: None
                },
                ModelEvent::End {
                    stop: StopReason::ToolUse,
                    usage: Some(Usage { input: 3, output: 4, cached: 0 })
                },
            ]
        );
        let second = drain(&model).await;
        assert_eq!(second.len(), 2, "the failure comes in mid stream");
        let failure = second[1].as_ref().unwrap_err();
        assert_eq!(failure.class, ErrorClass::Throttled { retry_after: Some(Duration::from_secs(7)) });
        let third = model.stream(ModelRequest::default()).await.err().unwrap();
        assert_eq!((third.class, third.message.as_str()), (ErrorClass::Overflow, "too long"));
        let cut: Vec<_> = drain(&model).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(cut, [ModelEvent::Text("cu".into())]);
        let empty: Vec<_> = drain(&model).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(empty, [ModelEvent::End { stop: StopReason::EndTurn, usage: None }]);
        let over = model.stream(ModelRequest::default()).await.err().unwrap();
        assert_eq!(over.message, "the model script has 5 responses; this is call 6");
        assert_eq!((model.calls(), model.requests().len()), (6, 6));
    }

    #[test]
    fn a_document_and_lines_read_the_same() {
        let lines = parse_script(LINES).unwrap();
        let document = serde_json::to_string_pretty(&lines).unwrap();
        assert_eq!(parse_script(&document).unwrap(), lines);
    }

    #[test]
    fn errors_name_the_line() {
        let error = parse_script("[]\n\n[{\"txet\":\"a\"}]").unwrap_err();
        assert!(error.starts_with("line 3: unknown variant `txet`"), "{error}");
        let error = parse_script("[\n[],\n[{\"call\":{}}]]").unwrap_err();
        assert!(error.contains("`name`") && error.contains("line 3"), "{error}");
        let error = parse_script("[{\"end\":\"end_turn\"},{\"text\":\"x\"}]").unwrap_err();
        assert!(error.starts_with("line 1: event 1 ends the response"), "{error}");
        let error = ScriptedModel::from_file("/nowhere/x.jsonl").err().unwrap();
        assert!(error.message.contains("/nowhere/x.jsonl"), "{error}");
    }

    #[tokio::test]
    async fn recorded_requests_are_bounded() {
        let model = ScriptedModel::from_fn(|_| vec![]);
        for _ in 0..MAX_RECORDED_REQUESTS + 3 {
            drain(&model).await;
        }
        assert_eq!(model.requests().len(), MAX_RECORDED_REQUESTS);
        assert_eq!(model.calls(), MAX_RECORDED_REQUESTS + 3);
    }
}
