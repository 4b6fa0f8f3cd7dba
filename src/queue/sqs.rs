//! The queues over SQS.
//!
//! FIFO group = thread. The SDK repeats a request in place, three attempts at most: within the queue's five
//! minutes a repeated FIFO send of one dedup id is one message, and output is at least once anyway. What is too
//! large for a message is kept in the table and named by its digest.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::retry::RetryConfig;
use aws_sdk_sqs::config::timeout::TimeoutConfig;
use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};

use super::{DeadLetters, InputSender, MAX_INLINE_INPUT, OutputSender, Quarantined, QueueError, Redelivery};
use crate::message::{
    ClaimCheck, DedupId, InputContent, InputMessage, MessageId, OutputMessage, ThreadId, json,
};
use crate::store::{ConversationStore, StoreError};

/// Bytes of a message that is not an input, below the 1 MiB of SQS.
pub const MAX_BODY_BYTES: usize = 900_000;
/// SQS's bound on group and dedup ids.
const MAX_ID_CHARS: usize = 128;
/// What ends an output text that was cut.
const CUT_NOTE: &str = "\n[cut: the text is longer than a message can be]";
/// Characters of a body that a dead letter shows when the body itself is kept in the table.
const EXCERPT_CHARS: usize = 1_000;
/// Attempts of one request.
const ATTEMPTS: u32 = 3;
/// One attempt.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(4);
/// All attempts.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(10);
/// Error codes that pass by themselves, beside every 5xx.
const THROTTLES: [&str; 5] =
    ["RequestThrottled", "ThrottlingException", "Throttling", "OverLimit", "ServiceUnavailable"];

/// An SQS client with the retries and time limits that these adapters count on.
pub fn client(shared: &aws_config::SdkConfig) -> Client {
    let timeouts = TimeoutConfig::builder()
        .operation_attempt_timeout(ATTEMPT_TIMEOUT)
        .operation_timeout(OPERATION_TIMEOUT)
        .build();
    Client::from_conf(
        aws_sdk_sqs::config::Builder::from(shared)
            .retry_config(RetryConfig::standard().with_max_attempts(ATTEMPTS))
            .timeout_config(timeouts)
            .build(),
    )
}

/// The FIFO input queue.
#[derive(Clone)]
pub struct SqsInput {
    queue: Queue,
    claims: Arc<dyn ConversationStore>,
}

/// The standard output queue.
#[derive(Clone)]
pub struct SqsOutput {
    queue: Queue,
}

/// The FIFO dead-letter queue.
#[derive(Clone)]
pub struct SqsDeadLetters {
    queue: Queue,
    claims: Arc<dyn ConversationStore>,
}

#[derive(Clone)]
pub(super) struct Queue {
    pub(super) client: Client,
    pub(super) url: String,
}

impl SqsInput {
    /// Sends to the queue at `url`; `claims` keeps what is too large for it.
    pub fn new(client: Client, url: impl Into<String>, claims: Arc<dyn ConversationStore>) -> Self {
        Self { queue: Queue { client, url: url.into() }, claims }
    }
}

impl SqsOutput {
    /// Sends to the queue at `url`.
    pub fn new(client: Client, url: impl Into<String>) -> Self {
        Self { queue: Queue { client, url: url.into() } }
    }
}

impl SqsDeadLetters {
    /// Sends to the queue at `url`; `claims` keeps what is too large for it.
    pub fn new(client: Client, url: impl Into<String>, claims: Arc<dyn ConversationStore>) -> Self {
        Self { queue: Queue { client, url: url.into() }, claims }
    }
}

/// The input queue, as the worker that hands records back sees it.
#[derive(Clone)]
pub struct SqsRedelivery {
    queue: Queue,
}

impl SqsRedelivery {
    /// For records of the queue at `url`.
    pub fn new(client: Client, url: impl Into<String>) -> Self {
        Self { queue: Queue { client, url: url.into() } }
    }
}

#[async_trait]
impl Redelivery for SqsRedelivery {
    async fn come_back(&self, receipt_handle: &str, delay: Duration) {
        // Rounded up: a delay of less than a second would be none.
        let seconds = delay.as_secs() + u64::from(delay.subsec_nanos() > 0);
        let seconds = i32::try_from(seconds).unwrap_or(i32::MAX);
        let Queue { client, url } = &self.queue;
        let request = client.change_message_visibility().queue_url(url).receipt_handle(receipt_handle);
        if let Err(e) = request.visibility_timeout(seconds).send().await {
            // The record comes back all the same, only later.
            tracing::warn!(
                code = e.code(),
                "a record's visibility could not be set; it waits the queue's own"
            );
        }
    }
}

#[async_trait]
impl InputSender for SqsInput {
    async fn send(&self, message: &InputMessage, dedup: &DedupId) -> Result<(), QueueError> {
        let mut body = message.to_body().map_err(unwritable)?;
        if body.len() > MAX_INLINE_INPUT {
            let digest = self.claims.put_claim(&body).await.map_err(claiming)?;
            let claim = InputContent::ClaimCheck(ClaimCheck { digest });
            body = InputMessage::plain(message.group_id.clone(), claim).to_body().map_err(unwritable)?;
        }
        self.queue.send_fifo(body, &message.group_id, dedup).await
    }
}

#[async_trait]
impl OutputSender for SqsOutput {
    async fn send(&self, message: &OutputMessage) -> Result<(), QueueError> {
        let mut body = message.to_body().map_err(unwritable)?;
        if body.len() > MAX_BODY_BYTES {
            body = cut(message, body.len()).to_body().map_err(unwritable)?;
        }
        self.queue.send(body, None).await
    }
}

#[async_trait]
impl DeadLetters for SqsDeadLetters {
    async fn keep(
        &self,
        thread: &ThreadId,
        message_id: &str,
        body: &str,
        reason: &str,
    ) -> Result<(), QueueError> {
        let letter = Quarantined {
            reason: reason.to_owned(),
            message_id: MessageId::new(message_id),
            thread: thread.clone(),
            body: body.to_owned(),
            claim: None,
        };
        let mut text = json::to_queue_body(&letter).map_err(unwritable)?;
        if text.len() > MAX_BODY_BYTES {
            let claim = Some(self.claims.put_claim(body).await.map_err(claiming)?);
            let excerpt: String = body.chars().take(EXCERPT_CHARS).collect();
            let letter = Quarantined { body: excerpt, claim, ..letter };
            text = json::to_queue_body(&letter).map_err(unwritable)?;
        }
        self.queue.send_fifo(text, thread, &DedupId::derive("dead-letter", &[message_id])).await
    }
}

impl Queue {
    async fn send_fifo(&self, body: String, group: &ThreadId, dedup: &DedupId) -> Result<(), QueueError> {
        check_id("thread id", group.as_str())?;
        check_id("dedup id", dedup.as_str())?;
        self.send(body, Some((group.as_str(), dedup.as_str()))).await
    }

    /// To a standard queue, invisible for `seconds`.
    pub(super) async fn send_delayed(&self, body: String, seconds: i32) -> Result<(), QueueError> {
        let request = self.client.send_message().queue_url(&self.url).message_body(body);
        request.delay_seconds(seconds).send().await.map(drop).map_err(classify)
    }

    async fn send(&self, body: String, fifo: Option<(&str, &str)>) -> Result<(), QueueError> {
        let mut request = self.client.send_message().queue_url(&self.url).message_body(body);
        if let Some((group, dedup)) = fifo {
            request = request.message_group_id(group).message_deduplication_id(dedup);
        }
        request.send().await.map(drop).map_err(classify)
    }
}

/// SQS takes ids of 1 to 128 alphanumerics and punctuation. Any other thread id did not come from SQS.
pub(super) fn check_id(what: &str, id: &str) -> Result<(), QueueError> {
    if (1..=MAX_ID_CHARS).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic()) {
        return Ok(());
    }
    let shown: String = id.chars().take(MAX_ID_CHARS).collect();
    Err(QueueError::Refused(format!(
        "the {what} {shown:?} is not of 1 to {MAX_ID_CHARS} ASCII letters, digits and punctuation"
    )))
}

pub(super) fn classify<E: ProvideErrorMetadata>(error: SdkError<E>) -> QueueError {
    match &error {
        SdkError::ConstructionFailure(_) => QueueError::Refused("the request could not be built".to_owned()),
        SdkError::TimeoutError(_) => QueueError::Unavailable("it did not answer in time".to_owned()),
        SdkError::DispatchFailure(_) => QueueError::Unavailable("no connection".to_owned()),
        SdkError::ResponseError(_) => QueueError::Unavailable("its answer cannot be read".to_owned()),
        SdkError::ServiceError(service) => {
            let status = service.raw().status().as_u16();
            let code = service.err().code().unwrap_or("no code");
            let text = format!("{code}: {}", service.err().message().unwrap_or("no message"));
            if status >= 500 || status == 429 || THROTTLES.iter().any(|throttle| code.ends_with(throttle)) {
                QueueError::Unavailable(text)
            } else {
                QueueError::Refused(text)
            }
        }
        // The SDK's enum is open: an error of a kind it did not have yet.
        _ => QueueError::Unavailable("unknown failure".to_owned()),
    }
}

pub(super) fn unwritable(error: serde_json::Error) -> QueueError {
    QueueError::Refused(format!("the message cannot be written: {error}"))
}

fn claiming(error: StoreError) -> QueueError {
    if error.is_transient() {
        QueueError::Unavailable(error.to_string())
    } else {
        QueueError::Refused(error.to_string())
    }
}

/// The message with as much of its text as fits, and a note.
fn cut(message: &OutputMessage, body_bytes: usize) -> OutputMessage {
    let beside_text = body_bytes - message.text.chars().map(written_bytes).sum::<usize>();
    let mut room = MAX_BODY_BYTES.saturating_sub(beside_text + CUT_NOTE.len() + 1);
    let mut text = String::new();
    for c in message.text.chars() {
        match room.checked_sub(written_bytes(c)) {
            Some(left) => room = left,
            None => break,
        }
        text.push(c);
    }
    text.push_str(CUT_NOTE);
    OutputMessage { text, ..message.clone() }
}

/// Bytes of a character inside a JSON string, as [`json::to_queue_body`] writes it.
fn written_bytes(c: char) -> usize {
    match c {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\u{0}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => 6,
        other => other.len_utf8(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{OutputKind, RawJson};

    #[test]
    fn an_output_text_above_the_limit_is_cut_at_a_character_and_says_so() {
        for piece in ["a", "é", "😀", "\"", "\u{7}", "\u{ffff}", "line\n"] {
            let message = OutputMessage {
                kind: OutputKind::TEXT,
                text: piece.repeat(2_000_000 / piece.len()),
                metadata: RawJson::empty_object(),
                message_id: "m".into(),
                thread_id: ThreadId::from("t"),
            };
            let body = message.to_body().unwrap();
            let cut = cut(&message, body.len());
            let cut_body = cut.to_body().unwrap();
            assert!(cut_body.len() <= MAX_BODY_BYTES, "{piece:?}: {}", cut_body.len());
            assert!(cut_body.len() > MAX_BODY_BYTES - 100, "{piece:?}: {}", cut_body.len());
            assert!(cut.text.ends_with(CUT_NOTE));
        }
    }

    #[test]
    fn ids_that_sqs_cannot_carry_are_refused_before_they_are_sent() {
        for good in ["t", "a/b:c_(d)~", &"x".repeat(128)] {
            assert!(check_id("thread id", good).is_ok(), "{good}");
        }
        for bad in ["", "a b", "größe", "a\u{0}", &"x".repeat(129)] {
            assert!(matches!(check_id("thread id", bad), Err(QueueError::Refused(_))), "{bad}");
        }
    }
}
