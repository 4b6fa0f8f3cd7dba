//! Sending: a message is checked, written down, queued, and only then answered.

use std::collections::HashMap;

use axum::body::Bytes;
use axum::response::Response;
use data_encoding::HEXLOWER;
use rustack_sqs_core::message::{md5_of_body, md5_of_message_attributes};
use rustack_sqs_model::error::{SqsError, SqsErrorCode};
use rustack_sqs_model::input::{SendMessageBatchInput, SendMessageInput};
use rustack_sqs_model::output::{SendMessageBatchOutput, SendMessageOutput};
use rustack_sqs_model::types::{
    MessageAttributeValue, SendMessageBatchRequestEntry, SendMessageBatchResultEntry,
};
use sha2::{Digest, Sha256};

use super::queues::{Queue, Settings};
use super::wire::{self, ApiError};
use super::{Front, MAX_MESSAGE_BYTES, now_ms};
use crate::local::journal::{Acceptance, NewMessage, Outcome};

/// Longest delay of a message: 15 minutes.
pub(super) const MAX_DELAY_SECONDS: u32 = 900;
/// Most attributes of a message.
const MAX_ATTRIBUTES: usize = 10;
/// Longest group id and deduplication id.
const MAX_ID_CHARS: usize = 128;
/// Most entries of a batch.
pub(super) const MAX_BATCH_ENTRIES: usize = 10;
/// The one system attribute a sender may set.
const TRACE_HEADER: &str = "AWSTraceHeader";

pub(super) async fn send(front: &Front, body: &Bytes) -> Result<Response, ApiError> {
    let input: SendMessageInput = wire::parse(body)?;
    let queue = front.queue(&input.queue_url)?;
    // One shape for both operations: a single send is an entry without an id.
    let entry = SendMessageBatchRequestEntry {
        id: String::new(),
        message_body: input.message_body,
        delay_seconds: input.delay_seconds,
        message_deduplication_id: input.message_deduplication_id,
        message_group_id: input.message_group_id,
        message_attributes: input.message_attributes,
        message_system_attributes: input.message_system_attributes,
    };
    let (message, digests) = check(&queue, &queue.settings(), entry)?;
    let accepted = accept(front, &queue, vec![message]).await?;
    let accepted =
        accepted.into_iter().next().ok_or_else(|| ApiError::internal("the journal took no message"))?;
    wire::success(&SendMessageOutput {
        sequence_number: queue.is_fifo().then(|| accepted.seq.sequence_number()),
        message_id: Some(accepted.message_id),
        md5_of_message_body: Some(digests.body),
        md5_of_message_attributes: digests.attributes,
        md5_of_message_system_attributes: None,
    })
}

pub(super) async fn send_batch(front: &Front, body: &Bytes) -> Result<Response, ApiError> {
    let input: SendMessageBatchInput = wire::parse(body)?;
    let queue = front.queue(&input.queue_url)?;
    check_batch(input.entries.iter().map(|entry| entry.id.as_str()))?;
    let total: usize =
        input.entries.iter().map(|entry| size(&entry.message_body, &entry.message_attributes)).sum();
    if total > MAX_MESSAGE_BYTES {
        return Err(SqsError::new(
            SqsErrorCode::BatchRequestTooLong,
            format!(
                "Batch requests cannot be longer than {MAX_MESSAGE_BYTES} bytes. You have sent {total} bytes."
            ),
        )
        .into());
    }
    let settings = queue.settings();
    let mut output = SendMessageBatchOutput::default();
    let mut good = Vec::new();
    let mut messages = Vec::new();
    for entry in input.entries {
        let id = entry.id.clone();
        match check(&queue, &settings, entry) {
            Ok((message, digests)) => {
                good.push((id, digests));
                messages.push(message);
            }
            Err(error) => output.failed.push(error.into_entry(id)),
        }
    }
    let accepted = accept(front, &queue, messages).await?;
    for ((id, digests), accepted) in good.into_iter().zip(accepted) {
        output.successful.push(SendMessageBatchResultEntry {
            id,
            sequence_number: queue.is_fifo().then(|| accepted.seq.sequence_number()),
            message_id: accepted.message_id,
            md5_of_message_body: digests.body,
            md5_of_message_attributes: digests.attributes,
        });
    }
    wire::success(&output)
}

/// Writes messages down and queues the new ones. The lock makes the two orders one: in a group, the order of the
/// sequence numbers is the order of delivery.
async fn accept(
    front: &Front,
    queue: &Queue,
    messages: Vec<NewMessage>,
) -> Result<Vec<Acceptance>, ApiError> {
    if messages.is_empty() {
        return Ok(Vec::new());
    }
    let tickets: Vec<_> =
        messages.iter().map(|message| (message.group_id.clone(), message.delay_seconds)).collect();
    let _in_order = queue.sending.lock().await;
    let (name, scope, now) = (queue.name.clone(), queue.settings().dedup_scope, now_ms());
    let accepted = front.journal(move |journal| journal.accept(&name, scope, &messages, now)).await?;
    for (acceptance, (group, delay)) in accepted.iter().zip(tickets) {
        match acceptance.outcome {
            Outcome::Duplicate => {}
            Outcome::Queued => front.enqueue(queue, acceptance.seq, group, delay).await?,
        }
    }
    Ok(accepted)
}

/// The digests a sender compares with its own.
struct Digests {
    body: String,
    attributes: Option<String>,
}

/// Checks a message as AWS does and makes it ready for the journal.
fn check(
    queue: &Queue,
    settings: &Settings,
    entry: SendMessageBatchRequestEntry,
) -> Result<(NewMessage, Digests), ApiError> {
    if entry.message_body.is_empty() {
        return Err(SqsError::missing_parameter("The request must contain the parameter MessageBody.").into());
    }
    if !entry.message_body.chars().all(is_allowed) {
        return Err(ApiError::invalid_contents());
    }
    if entry.message_attributes.len() > MAX_ATTRIBUTES {
        return Err(ApiError::invalid(format!("A message may have at most {MAX_ATTRIBUTES} attributes.")));
    }
    if size(&entry.message_body, &entry.message_attributes) > settings.max_message_bytes {
        return Err(ApiError::invalid(format!(
            "One or more parameters are invalid. Reason: Message must be shorter than {} bytes.",
            settings.max_message_bytes
        )));
    }
    for (parameter, id) in [
        ("MessageGroupId", &entry.message_group_id),
        ("MessageDeduplicationId", &entry.message_deduplication_id),
    ] {
        if id.as_deref().is_some_and(|id| !is_id(id)) {
            return Err(ApiError::invalid(format!(
                "{parameter} can only include alphanumeric and punctuation characters, 1 to {MAX_ID_CHARS} in length."
            )));
        }
    }
    let dedup_id = if queue.is_fifo() {
        Some(check_fifo(settings, &entry)?)
    } else if entry.message_deduplication_id.is_some() {
        return Err(ApiError::invalid("MessageDeduplicationId is not valid for a standard queue."));
    } else {
        None
    };
    let delay_seconds = match entry.delay_seconds {
        None if queue.is_fifo() => 0,
        None => settings.delay_seconds,
        Some(delay) => {
            u32::try_from(delay).ok().filter(|delay| *delay <= MAX_DELAY_SECONDS).ok_or_else(|| {
                ApiError::invalid(format!("DelaySeconds must be between 0 and {MAX_DELAY_SECONDS}."))
            })?
        }
    };
    let digests = Digests {
        body: md5_of_body(&entry.message_body),
        attributes: md5_of_message_attributes(&entry.message_attributes),
    };
    let attributes = serde_json::to_string(&entry.message_attributes)
        .map_err(|error| ApiError::internal(format!("the attributes do not serialize: {error}")))?;
    let trace_header =
        entry.message_system_attributes.get(TRACE_HEADER).and_then(|value| value.string_value.clone());
    let message = NewMessage {
        message_id: uuid::Uuid::new_v4().to_string(),
        group_id: entry.message_group_id,
        dedup_id,
        body: entry.message_body,
        attributes,
        trace_header,
        delay_seconds,
    };
    Ok((message, digests))
}

/// What a FIFO queue asks for; gives the deduplication id.
fn check_fifo(settings: &Settings, entry: &SendMessageBatchRequestEntry) -> Result<String, ApiError> {
    if entry.message_group_id.is_none() {
        return Err(
            SqsError::missing_parameter("The request must contain the parameter MessageGroupId.").into()
        );
    }
    if entry.delay_seconds.is_some_and(|delay| delay != 0) {
        return Err(ApiError::invalid("DelaySeconds of a message is not valid for a FIFO queue."));
    }
    match &entry.message_deduplication_id {
        Some(id) => Ok(id.clone()),
        None if settings.content_based_deduplication => {
            Ok(HEXLOWER.encode(&Sha256::digest(entry.message_body.as_bytes())))
        }
        None => Err(ApiError::invalid(
            "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided \
             explicitly.",
        )),
    }
}

/// Checks the ids of a batch's entries.
pub(super) fn check_batch<'a>(ids: impl Iterator<Item = &'a str>) -> Result<(), ApiError> {
    let ids: Vec<_> = ids.collect();
    if ids.is_empty() {
        return Err(SqsError::empty_batch_request().into());
    }
    if ids.len() > MAX_BATCH_ENTRIES {
        return Err(SqsError::too_many_entries_in_batch().into());
    }
    if ids.iter().enumerate().any(|(place, id)| ids[..place].contains(id)) {
        return Err(SqsError::batch_entry_ids_not_distinct().into());
    }
    Ok(())
}

/// What counts against the limits: the body, and names, types and values of the attributes.
fn size(body: &str, attributes: &HashMap<String, MessageAttributeValue>) -> usize {
    let attributes = attributes.iter().map(|(name, value)| {
        name.len()
            + value.data_type.len()
            + value.string_value.as_ref().map_or(0, String::len)
            + value.binary_value.as_ref().map_or(0, Vec::len)
    });
    body.len() + attributes.sum::<usize>()
}

/// The characters of XML 1.0, which is what SQS takes.
fn is_allowed(character: char) -> bool {
    matches!(character, '\t' | '\n' | '\r' | '\u{20}'..='\u{FFFD}' | '\u{10000}'..)
}

fn is_id(id: &str) -> bool {
    (1..=MAX_ID_CHARS).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
}
