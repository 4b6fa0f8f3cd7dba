//! The output queue's message. Existing consumers read `text` and `metadata`; dormouse adds `message_id`,
//! `thread_id` and a readable `text` on every kind, and never removes a field.

use serde::{Deserialize, Serialize};

use super::ids::{CallId, ThreadId};
use super::json::{self, RawJson};

/// One message of the output queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OutputMessage {
    /// Absent for plain text; see [`OutputKind`].
    #[serde(flatten)]
    pub kind: OutputKind,
    /// What a consumer that knows no kinds shows.
    pub text: String,
    /// The root thread's metadata, `{}` when it has none.
    pub metadata: RawJson,
    /// The same on every delivery of this message: a consumer drops what it has seen.
    pub message_id: String,
    /// The thread that speaks.
    pub thread_id: ThreadId,
}

/// What kind of output it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum OutputKind {
    /// With a `type`.
    Typed(TypedOutput),
    /// Plain text, without a `type`.
    Text {},
}

/// The kinds that carry a `type`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum TypedOutput {
    /// Something went wrong; `text` says what and what to do.
    Error,
    /// The user has to consent at `auth_url`.
    OauthRequired {
        /// Where.
        auth_url: String,
    },
    /// The user has to choose.
    UserChoiceRequired {
        /// The choice.
        id: CallId,
        /// The question.
        prompt: String,
        /// The answers.
        choices: Vec<String>,
        /// The answer on dismissal.
        default: usize,
    },
    /// A choice is over.
    UserChoiceComplete {
        /// The choice.
        choice_id: CallId,
    },
}

impl OutputKind {
    /// An error for the user.
    pub const ERROR: OutputKind = OutputKind::Typed(TypedOutput::Error);
    /// Plain text.
    pub const TEXT: OutputKind = OutputKind::Text {};

    /// Whether it reports an error.
    pub fn is_error(&self) -> bool {
        matches!(self, Self::Typed(TypedOutput::Error))
    }
}

impl OutputMessage {
    /// The queue body, within SQS's character set.
    pub fn to_body(&self) -> Result<String, serde_json::Error> {
        json::to_queue_body(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_has_no_type_and_every_kind_has_text_and_metadata() {
        let message = |kind| OutputMessage {
            kind,
            text: "hi".into(),
            metadata: RawJson::empty_object(),
            message_id: "m".into(),
            thread_id: ThreadId::from("t"),
        };
        let body = message(OutputKind::TEXT).to_body().unwrap();
        assert_eq!(body, r#"{"text":"hi","metadata":{},"message_id":"m","thread_id":"t"}"#);
        let body = message(OutputKind::ERROR).to_body().unwrap();
        assert!(body.starts_with(r#"{"type":"error","text":"hi""#), "{body}");
    }
}
