//! What a system is told: inputs under the ids that a queue would give them, and the queue inside the process through
//! which its threads speak to one another.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::message::{
    CallId, ContentPart, DedupId, InputContent, InputMessage, RawJson, ThreadId, UserChoiceAnswer,
};
use crate::queue::{DeadLetters, InputSender, QueueError, Redelivery};
use crate::slice::Clock;
use crate::slice::records::Record;
use crate::store::{DeadLetter, Store};

/// Messages between the threads of a process that nobody has taken yet.
const MAX_UNTAKEN: usize = 10_000;
/// Places of a sequence number, so that its text sorts as the number does.
const SEQUENCE_DIGITS: usize = 20;
/// What the clock is multiplied by: so many inputs have room in a millisecond.
const SEQUENCES_A_MS: u64 = 100_000;

/// One input of a thread.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentInput {
    /// What it says. Its thread is set by whoever takes it.
    pub message: InputMessage,
    /// The id under which it has effect once, however often it is given in.
    pub id: DedupId,
    /// How often it was given in, this time included.
    pub receives: u32,
}

impl AgentInput {
    /// A message under a new id.
    pub fn new(message: InputMessage) -> Self {
        Self { message, id: DedupId::new(format!("in-{}", Uuid::new_v4())), receives: 1 }
    }

    /// Content under a new id.
    pub fn content(content: InputContent) -> Self {
        Self::new(InputMessage::plain(ThreadId::new(""), content))
    }

    /// What a user says.
    pub fn user(text: impl Into<String>) -> Self {
        Self::content(InputContent::Text(text.into()))
    }

    /// The result of an asynchronous call, under an id that follows from the call: a second one has no effect.
    pub fn result(call: CallId, parts: Vec<ContentPart>) -> Self {
        let id = DedupId::derive("result", &[call.as_str()]);
        Self { id, ..Self::new(InputMessage::tool_result(ThreadId::new(""), call, parts)) }
    }

    /// The user's answer to an open question, by its place among the choices; none dismisses it.
    pub fn answer(choice: CallId, selected: Option<usize>) -> Self {
        Self::content(InputContent::UserChoiceAnswer(UserChoiceAnswer { id: choice, selected }))
    }

    /// Under this id.
    #[must_use]
    pub fn with_id(mut self, id: impl Into<String>) -> Self {
        self.id = DedupId::new(id);
        self
    }

    /// With metadata, which comes back on every output; `user_id` and `agent` in it count.
    #[must_use]
    pub fn with_metadata(mut self, metadata: RawJson) -> Self {
        self.message.metadata = Some(metadata);
        self
    }

    /// The same once more: what failed is done again, what is done has no effect.
    #[must_use]
    pub fn again(&self) -> Self {
        Self { receives: self.receives.saturating_add(1), ..self.clone() }
    }

    /// As a slice reads it from a queue.
    pub(super) fn record(&self, thread: &ThreadId, key: &str) -> Result<Record, serde_json::Error> {
        let body = self.body(thread)?;
        Ok(Record::local(thread.clone(), self.id.clone(), key.to_owned(), self.receives, body))
    }

    /// As it would stand on a queue.
    pub(super) fn body(&self, thread: &ThreadId) -> Result<String, serde_json::Error> {
        InputMessage { group_id: thread.clone(), ..self.message.clone() }.to_body()
    }

    /// Whether it is something that a person says: it ends a running response.
    pub(super) fn is_user_text(&self) -> bool {
        self.message.content.is_said() && self.message.synthetic.is_none()
    }
}

impl From<&str> for AgentInput {
    fn from(text: &str) -> Self {
        Self::user(text)
    }
}

impl From<String> for AgentInput {
    fn from(text: String) -> Self {
        Self::user(text)
    }
}

impl From<InputMessage> for AgentInput {
    fn from(message: InputMessage) -> Self {
        Self::new(message)
    }
}

impl From<&AgentInput> for AgentInput {
    fn from(input: &AgentInput) -> Self {
        input.clone()
    }
}

/// Sequence numbers, as SQS gives them: each is larger than all before it, also those of an earlier process.
#[derive(Debug, Default)]
pub(super) struct Sequence(AtomicU64);

impl Sequence {
    pub(super) fn next(&self, clock: &dyn Clock) -> String {
        let now = u64::try_from(clock.now_ms()).unwrap_or_default().saturating_mul(SEQUENCES_A_MS);
        let after = |last: u64| last.saturating_add(1).max(now);
        // The closure always gives a value, so that the update never fails.
        let last = match self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(after(last))) {
            Ok(last) | Err(last) => last,
        };
        format!("{:0SEQUENCE_DIGITS$}", after(last))
    }
}

/// The taking end of the queue inside the process.
pub(super) struct Inbox {
    pub(super) queue: mpsc::Receiver<AgentInput>,
    /// One that was taken and could not be done.
    pub(super) held: Option<AgentInput>,
}

/// The other end. It lasts as long as the process: what is lost with it is still in the outbox of the thread that sent it,
/// and goes out when that thread is next served.
pub(super) struct LocalInput(mpsc::Sender<AgentInput>);

impl LocalInput {
    pub(super) fn new() -> (Self, Inbox) {
        let (sender, queue) = mpsc::channel(MAX_UNTAKEN);
        (Self(sender), Inbox { queue, held: None })
    }
}

#[async_trait]
impl InputSender for LocalInput {
    async fn send(&self, message: &InputMessage, dedup: &DedupId) -> Result<(), QueueError> {
        let input = AgentInput { message: message.clone(), id: dedup.clone(), receives: 1 };
        // Never waits: whoever is to make room may be waiting for this very slice.
        self.0.try_send(input).map_err(|e| match e {
            mpsc::error::TrySendError::Full(_) => QueueError::Unavailable(format!(
                "{MAX_UNTAKEN} messages between threads wait; settle or start the system"
            )),
            mpsc::error::TrySendError::Closed(_) => {
                QueueError::Unavailable("the system is being stopped".to_owned())
            }
        })
    }
}

/// Nobody hands anything back to a queue.
pub(super) struct NoRedelivery;

#[async_trait]
impl Redelivery for NoRedelivery {
    async fn come_back(&self, _receipt_handle: &str, _delay: Duration) {}
}

/// Keeps what can never be processed in the table.
pub(super) struct StoredDeadLetters {
    pub(super) store: std::sync::Arc<dyn Store>,
    pub(super) clock: std::sync::Arc<dyn Clock>,
}

#[async_trait]
impl DeadLetters for StoredDeadLetters {
    async fn keep(
        &self,
        thread: &ThreadId,
        message_id: &str,
        body: &str,
        reason: &str,
    ) -> Result<(), QueueError> {
        let letter = DeadLetter {
            thread: thread.clone(),
            message_id: message_id.into(),
            reason: reason.to_owned(),
            body: body.to_owned(),
            kept_at_ms: self.clock.now_ms(),
        };
        let kept = self.store.keep_dead_letter(&letter).await;
        kept.map_err(|e| QueueError::Unavailable(e.to_string()))
    }
}
