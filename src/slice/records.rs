//! An SQS batch: several threads, concurrently, each thread's messages in order. Nothing is acknowledged that
//! was not done (I1); what fails is reported record by record.

use std::time::Duration;

use aws_lambda_events::event::sqs::{SqsBatchResponse, SqsEvent, SqsMessage};
use futures::future::join_all;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::poison::{GaveUp, bury, give_up};
use super::{DisplayEvent, Input, Running, Runtime, Seat, SliceError, process_seated};
use crate::history::Arrival;
use crate::message::{
    DedupId, InputContent, InputError, InputMessage, MessageId, OutputKind, OutputMessage, RawJson, ThreadId,
};

/// The first delay of a failed record; doubles with every receive.
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// The longest delay of a failed record.
const MAX_DELAY: Duration = Duration::from_secs(15 * 60);

/// One record, as far as dormouse reads it.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(super) message_id: String,
    receipt_handle: String,
    pub(super) thread: ThreadId,
    dedup: DedupId,
    key: String,
    receive_count: u32,
    pub(super) body: String,
    /// The queue that gave up on it, where that is how it came here.
    pub(super) died_in: Option<String>,
}

/// A record that is no input.
enum Unusable {
    /// It can never succeed: kept for an operator, acknowledged.
    Never(Refusal),
    /// A newer version or a later moment may read it: handed back.
    NotNow(String),
}

/// Why a record can never succeed.
struct Refusal {
    /// For the log, which never holds content (D35).
    class: &'static str,
    /// For the operator, who has the body beside it; what a parser says may quote the body.
    reason: String,
}

impl Refusal {
    fn unusable(class: &'static str, reason: String) -> Unusable {
        Unusable::Never(Self { class, reason })
    }
}

/// Processes a batch and says which records are to be delivered again. `deadline` is the invocation's.
pub async fn process_records(runtime: &Runtime, event: SqsEvent, deadline: Instant) -> SqsBatchResponse {
    process_records_among(runtime, event, deadline, &Running::default()).await
}

/// As [`process_records`], for a worker whose slices can be ended while they run.
pub async fn process_records_among(
    runtime: &Runtime,
    event: SqsEvent,
    deadline: Instant,
    running: &Running,
) -> SqsBatchResponse {
    let threads = by_thread(event);
    let runs =
        threads.iter().map(|(thread, records)| process_thread(runtime, thread, records, deadline, running));
    response(join_all(runs).await)
}

/// The records of each thread of a batch, in order.
pub(super) fn by_thread(event: SqsEvent) -> Vec<(ThreadId, Vec<Record>)> {
    let mut threads: Vec<(ThreadId, Vec<Record>)> = Vec::new();
    for message in event.records {
        let record = Record::from(message);
        match threads.iter_mut().find(|(thread, _)| *thread == record.thread) {
            Some((_, records)) => records.push(record),
            None => threads.push((record.thread.clone(), vec![record])),
        }
    }
    threads
}

/// The answer that names the failed records of every thread.
pub(super) fn response(failed: Vec<Vec<String>>) -> SqsBatchResponse {
    let mut response = SqsBatchResponse::default();
    response.set_failures(failed.into_iter().flatten().collect::<Vec<_>>());
    response
}

/// Processes the records of one thread, in order, and returns the ids of those to be delivered again: from the
/// first that failed on, so that their order holds. A record that is received again is a slice of its own: what
/// stood in a batch behind a failing one is not judged by it.
async fn process_thread(
    runtime: &Runtime,
    thread: &ThreadId,
    records: &[Record],
    deadline: Instant,
    running: &Running,
) -> Vec<String> {
    let mut at = 0;
    let mut after = None;
    while at < records.len() {
        let rest = &records[at..];
        let mut seat = running.seat(thread, rest.iter().map(|record| record.dedup.clone()));
        let (done, failure) = process_next(runtime, thread, rest, deadline, &mut seat).await;
        running.over(thread);
        at += done;
        if let Some(failure) = failure {
            tracing::warn!(%thread, reason = failure.reason, "records are handed back");
            after = failure.after;
            break;
        }
    }
    let failed = &records[at..];
    let delay = delay(failed, after);
    join_all(failed.iter().map(|record| runtime.redelivery.come_back(&record.receipt_handle, delay))).await;
    failed.iter().map(|record| record.message_id.clone()).collect()
}

/// One slice for the first of `records` and those behind it that go with it. Returns how many are done, from the first
/// on, and why the rest of them is handed back.
pub(crate) async fn process_next(
    runtime: &Runtime,
    thread: &ThreadId,
    records: &[Record],
    deadline: Instant,
    seat: &mut Seat,
) -> (usize, Option<Failure>) {
    let fresh = records.iter().take_while(|record| record.receive_count <= 1).count();
    match records.first() {
        Some(first) if fresh == 0 => process_again(runtime, thread, first, deadline, seat).await,
        Some(_) | None => process_together(runtime, thread, &records[..fresh], deadline, seat).await,
    }
}

/// Why records are handed back.
pub(crate) struct Failure {
    pub(crate) reason: String,
    pub(crate) after: Option<Duration>,
}

impl Failure {
    fn new(reason: impl ToString) -> Self {
        Self { reason: reason.to_string(), after: None }
    }

    fn of(error: &SliceError) -> Self {
        let after = error.is_blameless().then(|| error.retry_after().unwrap_or_default());
        Self { reason: error.to_string(), after }
    }
}

/// A record that was received before: its attempt is counted before anything is loaded or sent, and after too
/// many the slice gives up on it.
async fn process_again(
    runtime: &Runtime,
    thread: &ThreadId,
    record: &Record,
    deadline: Instant,
    seat: &mut Seat,
) -> (usize, Option<Failure>) {
    let cause = MessageId::new(&record.message_id);
    let attempts = match runtime.store.raise_attempts(thread, &record.dedup, &cause).await {
        Ok(attempts) => attempts,
        Err(e) => return (0, Some(Failure::new(e))),
    };
    if attempts >= runtime.limits.attempts
        && let Ok(message) = read(runtime, record).await
    {
        let arrival = record.arrival(runtime.clock.now_ms());
        let input = Input { message, arrival, bytes: record.body.len() };
        match give_up(runtime, thread, &input, deadline).await {
            Ok(GaveUp::Done) => return (1, None),
            Ok(GaveUp::NotOurs) => {}
            Err(e) => return (0, Some(Failure::new(e))),
        }
    }
    let (done, failure) =
        process_together(runtime, thread, std::slice::from_ref(record), deadline, seat).await;
    if failure.as_ref().is_some_and(|failure| failure.after.is_some())
        && let Err(e) = runtime.store.lower_attempts(thread, &record.dedup).await
    {
        tracing::warn!(%thread, error = %e, "an attempt could not be taken back");
    }
    (done, failure)
}

/// One slice for `records`. Returns how many are done, from the first on, and why the rest is handed back.
async fn process_together(
    runtime: &Runtime,
    thread: &ThreadId,
    records: &[Record],
    deadline: Instant,
    seat: &mut Seat,
) -> (usize, Option<Failure>) {
    let mut inputs = Vec::new();
    let mut taken = Vec::new();
    let mut stopped = None;
    for (at, record) in records.iter().enumerate() {
        match read(runtime, record).await {
            Ok(InputMessage { content: InputContent::Undeliverable(dead), .. }) => {
                // On its own, with META alone in hand: it may be the history that the other one died of.
                if at > 0 {
                    stopped = Some((at, None));
                    break;
                }
                let arrival = record.arrival(runtime.clock.now_ms());
                return match bury(runtime, thread, &arrival, &dead, deadline).await {
                    Ok(()) => (1, None),
                    Err(e) => (0, Some(Failure::of(&e))),
                };
            }
            // An operation is alone in its slice.
            Ok(message) if message.content.is_operation() && at > 0 => {
                stopped = Some((at, None));
                break;
            }
            Ok(message) => {
                let alone = message.content.is_operation();
                let arrival = record.arrival(runtime.clock.now_ms());
                inputs.push(Input { message, arrival, bytes: record.body.len() });
                taken.push(at);
                if alone {
                    stopped = Some((at + 1, None));
                    break;
                }
            }
            Err(Unusable::Never(refusal)) => {
                if let Err(e) = keep(runtime, record, &refusal).await {
                    stopped = Some((at, Some(Failure::new(e))));
                    break;
                }
            }
            Err(Unusable::NotNow(reason)) => {
                stopped = Some((at, Some(Failure::new(reason))));
                break;
            }
        }
    }
    let readable = stopped.as_ref().map_or(records.len(), |(at, _)| *at);
    let mut done = readable;
    let mut failure = stopped.and_then(|(_, failure)| failure);
    if !inputs.is_empty() {
        let processed = process_seated(runtime, thread, &inputs, deadline, seat).await;
        if let Some(e) = &processed.error {
            done = taken.get(processed.done).copied().unwrap_or(readable);
            failure = Some(Failure::of(e));
        }
        for (input, reason) in processed.refused.iter().filter(|(at, _)| *at < processed.done) {
            let refusal = Refusal { class: "refused by the slice", reason: reason.clone() };
            if let Err(e) = keep(runtime, &records[taken[*input]], &refusal).await {
                done = done.min(taken[*input]);
                failure = Some(Failure::new(e));
            }
        }
    }
    (done, failure)
}

/// When the failed records come back: all at the same time, so that their order holds.
fn delay(failed: &[Record], after: Option<Duration>) -> Duration {
    let receives = failed.iter().map(|record| record.receive_count).max().unwrap_or(1);
    backoff(receives, after)
}

/// When what was received so often comes back.
pub(crate) fn backoff(receives: u32, after: Option<Duration>) -> Duration {
    let backoff = FIRST_DELAY.saturating_mul(1 << receives.saturating_sub(1).min(10));
    let jittered = backoff.min(MAX_DELAY).mul_f64(rand::random_range(0.75..=1.0));
    jittered.max(after.unwrap_or_default()).min(MAX_DELAY)
}

/// Reads a record, following a claim check.
async fn read(runtime: &Runtime, record: &Record) -> Result<InputMessage, Unusable> {
    let message = parse(record, &record.body)?;
    let InputContent::ClaimCheck(claim) = &message.content else { return Ok(message) };
    match runtime.store.claim(&claim.digest).await {
        Ok(Some(body)) => parse(record, &body),
        Ok(None) => Err(Refusal::unusable(
            "its body is gone",
            format!("the body {} has expired or never was", claim.digest),
        )),
        Err(e) => Err(Unusable::NotNow(e.to_string())),
    }
}

fn parse(record: &Record, body: &str) -> Result<InputMessage, Unusable> {
    let message = InputMessage::parse(body.as_bytes()).map_err(|e| match e {
        InputError::NewerSchema { .. } => Unusable::NotNow(e.to_string()),
        InputError::Malformed(_) => Refusal::unusable("malformed", e.to_string()),
        InputError::UnknownContent(_) => Refusal::unusable("unknown content", e.to_string()),
    })?;
    if message.group_id != record.thread {
        let reason = format!(
            "group_id {:?} differs from the SQS message group {:?}; send both alike",
            message.group_id.as_str(),
            record.thread.as_str()
        );
        return Err(Refusal::unusable("another group than its body's", reason));
    }
    Ok(message)
}

/// Keeps a record that can never be processed, and tells its thread's user without content.
async fn keep(runtime: &Runtime, record: &Record, refusal: &Refusal) -> Result<(), SliceError> {
    let Refusal { class, reason } = refusal;
    runtime.dead_letters.keep(&record.thread, &record.message_id, &record.body, reason).await?;
    // The reason may quote the body: it stands in the dead letter alone.
    tracing::error!(
        thread = %record.thread,
        message_id = record.message_id,
        bytes = record.body.len(),
        class,
        "a message can never be processed and was put on the dead-letter queue, with its reason"
    );
    // It is kept: telling the user is worth a try, not another delivery.
    if let Err(e) = tell_unreadable(runtime, record).await {
        tracing::warn!(thread = %record.thread, error = %e, "the user could not be told of it");
    }
    Ok(())
}

async fn tell_unreadable(runtime: &Runtime, record: &Record) -> Result<(), SliceError> {
    if let Some(meta) = runtime.store.meta(&record.thread).await? {
        let text = "A message to this thread could not be read. It was put aside for an operator.".to_owned();
        runtime.observer.on_event(&record.thread, &DisplayEvent::Notice(text.clone()));
        let id = DedupId::derive("unreadable", &[record.thread.as_str(), &record.message_id]);
        let message = OutputMessage {
            kind: OutputKind::ERROR,
            text,
            metadata: meta.metadata.unwrap_or_else(RawJson::empty_object),
            message_id: id.as_str().to_owned(),
            thread_id: record.thread.clone(),
        };
        runtime.output.send(&message).await?;
    }
    Ok(())
}

impl Record {
    /// A message that never was on a queue: its dedup id is its message id as well, so that whoever knows the cause of
    /// something can tell what it was processed under.
    pub(crate) fn local(
        thread: ThreadId,
        dedup: DedupId,
        key: String,
        receive_count: u32,
        body: String,
    ) -> Self {
        let message_id = dedup.as_str().to_owned();
        let receipt_handle = String::new();
        Self { message_id, receipt_handle, thread, dedup, key, receive_count, body, died_in: None }
    }

    /// How often it was received.
    pub(crate) fn receives(&self) -> u32 {
        self.receive_count
    }

    fn arrival(&self, now_ms: i64) -> Arrival {
        Arrival {
            dedup: self.dedup.clone(),
            cause: MessageId::new(&self.message_id),
            key: self.key.clone(),
            receives: self.receive_count,
            now_ms,
        }
    }
}

impl From<SqsMessage> for Record {
    fn from(message: SqsMessage) -> Self {
        let attribute = |name: &str| message.attributes.get(name).cloned();
        let body = message.body.unwrap_or_default();
        let message_id = message.message_id.unwrap_or_default();
        // Content-based deduplication makes the id a hash of the body: then two equal texts would be one.
        let of_body = data_encoding::HEXLOWER.encode(&Sha256::digest(body.as_bytes()));
        let dedup = attribute("MessageDeduplicationId").filter(|id| *id != of_body);
        let dedup = DedupId::new(dedup.unwrap_or_else(|| message_id.clone()));
        // A standard queue has no groups: then the body alone names the thread.
        let group = attribute("MessageGroupId").or_else(|| {
            InputMessage::parse(body.as_bytes()).ok().map(|input| input.group_id.as_str().to_owned())
        });
        Self {
            thread: ThreadId::new(group.unwrap_or_default()),
            key: attribute("SequenceNumber").unwrap_or_else(|| dedup.as_str().to_owned()),
            receive_count: attribute("ApproximateReceiveCount").and_then(|n| n.parse().ok()).unwrap_or(1),
            receipt_handle: message.receipt_handle.unwrap_or_default(),
            died_in: attribute("DeadLetterQueueSourceArn"),
            dedup,
            message_id,
            body,
        }
    }
}
