//! One call of a summariser: its request, its deadline, and whether its answer is complete. Storage is not touched, and
//! nobody re-classifies what is decided here.

use std::time::Duration;

use futures::StreamExt;
use tokio::time::{Instant, timeout_at};

use crate::history::request::{ModelRequest, RequestMessage};
use crate::history::wording;
use crate::message::ContentPart;
use crate::model::{ErrorClass, ModelEvent, ModelProvider, StopReason, Usage};

/// Bytes of an answer that are read; a provider that sends more has lost its bound.
const MAX_ANSWER: usize = 1024 * 1024;

/// How a call failed, as its repeat acts on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallFailure {
    /// It took too long: a smaller input may be faster.
    TimedOut,
    /// The input does not fit.
    TooLong,
    /// The output limit cut the answer (C5).
    Cut,
    /// Passes by itself.
    Transient,
    /// The provider wants to be left alone for a while.
    Throttled(Option<Duration>),
    /// No repeat of the same will do: refused, incomplete, or wrongly configured.
    Final(&'static str),
}

impl CallFailure {
    /// For logs and attempts; no content.
    pub fn name(&self) -> &'static str {
        match self {
            Self::TimedOut => "timeout",
            Self::TooLong => "input too long",
            Self::Cut => "output limit",
            Self::Transient => "provider unavailable",
            Self::Throttled(_) => "throttled",
            Self::Final(name) => name,
        }
    }
}

/// An answer, complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The text.
    pub text: String,
    /// What it cost.
    pub usage: Option<Usage>,
}

/// The request for a summary (C1, C4): instructions alone in the system message, no tools.
pub fn request(input: &str, output: u64, target: u64) -> ModelRequest {
    ModelRequest {
        system: Some(wording::summary_instructions(target)),
        messages: vec![RequestMessage::User(vec![ContentPart::text(input)])],
        tools: Vec::new(),
        max_output_tokens: Some(u32::try_from(output).unwrap_or(u32::MAX)),
        checkpoint: Vec::new(),
        without_thoughts: true,
    }
}

/// Asks once, until `deadline`; dropping the future ends it (C8).
///
/// # Errors
/// A [`CallFailure`]: no text of an answer that is not complete gets out (C5).
pub async fn ask(
    model: &dyn ModelProvider,
    request: ModelRequest,
    deadline: Instant,
) -> Result<Answer, CallFailure> {
    let answer = async {
        let mut stream = model.stream(request).await.map_err(|e| class(e.class))?;
        let mut text = String::new();
        while let Some(event) = stream.next().await {
            match event.map_err(|e| class(e.class))? {
                ModelEvent::Text(piece) => text.push_str(&piece),
                ModelEvent::ReasoningText(_) | ModelEvent::ReasoningBlock { .. } => {}
                ModelEvent::ToolCall { .. } => return Err(CallFailure::Final("it called a tool")),
                ModelEvent::End { stop: StopReason::EndTurn, usage } => return Ok(Answer { text, usage }),
                ModelEvent::End { stop: StopReason::MaxTokens, .. } => return Err(CallFailure::Cut),
                ModelEvent::End { stop: StopReason::Refusal, .. } => {
                    return Err(CallFailure::Final("refused"));
                }
                ModelEvent::End { stop: StopReason::ToolUse | StopReason::Other(_), .. } => {
                    return Err(CallFailure::Final("it stopped in the middle"));
                }
            }
            if text.len() > MAX_ANSWER {
                return Err(CallFailure::Cut);
            }
        }
        Err(CallFailure::Transient)
    };
    timeout_at(deadline, answer).await.unwrap_or(Err(CallFailure::TimedOut))
}

fn class(class: ErrorClass) -> CallFailure {
    match class {
        ErrorClass::Throttled { retry_after } => CallFailure::Throttled(retry_after),
        ErrorClass::Transient => CallFailure::Transient,
        ErrorClass::Overflow => CallFailure::TooLong,
        ErrorClass::Refused | ErrorClass::Checkpoint => CallFailure::Final("refused"),
        ErrorClass::Fatal => CallFailure::Final("the summarising model is not usable"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::scripted::{ScriptedErrorClass, ScriptedEvent, ScriptedModel};

    async fn asked(response: Vec<ScriptedEvent>) -> Result<String, CallFailure> {
        let model = ScriptedModel::script(vec![response]);
        let deadline = Instant::now() + Duration::from_millis(200);
        let answer = ask(&model, request("in", 100, 50), deadline).await;
        assert_eq!(model.calls(), 1, "C7: one request for one call");
        answer.map(|answer| answer.text)
    }

    #[tokio::test]
    async fn c5_21_22_only_a_complete_answer_gets_out() {
        let text = || ScriptedEvent::Text("sum".into());
        let end = |stop: &str| vec![text(), ScriptedEvent::End(stop.into())];
        assert_eq!(asked(end("end_turn")).await, Ok("sum".into()));
        assert_eq!(asked(end("max_tokens")).await, Err(CallFailure::Cut));
        assert_eq!(asked(end("refusal")).await, Err(CallFailure::Final("refused")));
        assert!(matches!(asked(end("pause_turn")).await, Err(CallFailure::Final(_))));
        assert!(matches!(
            asked(vec![text(), ScriptedEvent::call("", "f", "{}")]).await,
            Err(CallFailure::Final(_))
        ));
        assert_eq!(asked(vec![text(), ScriptedEvent::Cut(true)]).await, Err(CallFailure::Transient));
        let error = |class| vec![ScriptedEvent::error(class, "x")];
        assert_eq!(asked(error(ScriptedErrorClass::Overflow)).await, Err(CallFailure::TooLong));
        assert_eq!(asked(error(ScriptedErrorClass::Transient)).await, Err(CallFailure::Transient));
        assert_eq!(asked(vec![ScriptedEvent::DelayMs(5_000), text()]).await, Err(CallFailure::TimedOut));
    }

    #[test]
    fn c1_c4_15_instructions_are_alone_in_the_system_message_and_there_are_no_tools() {
        let request = request("the input", 8_192, 4_096);
        assert!(request.system.as_ref().unwrap().contains("4096 tokens"));
        assert!(!request.system.unwrap().contains("the input"));
        assert_eq!(request.messages, [RequestMessage::User(vec![ContentPart::text("the input")])]);
        assert!(request.tools.is_empty());
        assert_eq!(request.max_output_tokens, Some(8_192));
    }
}
