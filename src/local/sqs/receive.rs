//! Receiving, deleting, visibility, and the move to the dead-letter queue.
//!
//! A client's receipt handle is `ticket.handle`: the journal's number of the message and `rustack-sqs`'s own handle.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::response::Response;
use rustack_sqs_core::message::{md5_of_body, md5_of_message_attributes};
use rustack_sqs_model::error::SqsError;
use rustack_sqs_model::input::{
    ChangeMessageVisibilityBatchInput, ChangeMessageVisibilityInput, DeleteMessageBatchInput,
    DeleteMessageInput, ReceiveMessageInput,
};
use rustack_sqs_model::output::{
    ChangeMessageVisibilityBatchOutput, ChangeMessageVisibilityOutput, DeleteMessageBatchOutput,
    DeleteMessageOutput, ReceiveMessageOutput,
};
use rustack_sqs_model::types::{
    ChangeMessageVisibilityBatchResultEntry, DeleteMessageBatchResultEntry, Message, MessageAttributeValue,
};
use tokio::time::Instant;

use super::queues::Queue;
use super::send::check_batch;
use super::wire::{self, ApiError};
use super::{Front, now_ms};
use crate::local::aws::ACCOUNT_ID;
use crate::local::journal::{Delivery, Seq, Stored};

/// Most messages of one receive.
const MAX_MESSAGES: i32 = 10;
/// Longest long poll.
const MAX_WAIT_SECONDS: i32 = 20;
/// Longest visibility: 12 hours.
const MAX_VISIBILITY_SECONDS: i32 = 12 * 60 * 60;
/// Rounds of one receive in which every ticket led nowhere (dead-lettered, deleted, expired) before it answers empty.
const MAX_EMPTY_ROUNDS: usize = 32;
/// While a message is being deleted it must not become visible.
const DELETING_VISIBILITY_SECONDS: i32 = 30;

pub(super) async fn receive(front: &Arc<Front>, body: &Bytes) -> Result<Response, ApiError> {
    let mut input: ReceiveMessageInput = wire::parse(body)?;
    let queue = front.queue(&input.queue_url)?;
    // `rustack-sqs` adds these to an `Instant` unchecked: a negative one would end the queue's actor.
    in_range("MaxNumberOfMessages", input.max_number_of_messages, 1..=MAX_MESSAGES)?;
    in_range("WaitTimeSeconds", input.wait_time_seconds, 0..=MAX_WAIT_SECONDS)?;
    in_range("VisibilityTimeout", input.visibility_timeout, 0..=MAX_VISIBILITY_SECONDS)?;
    let wanted = Arc::new(Wanted {
        system: [
            std::mem::take(&mut input.attribute_names),
            std::mem::take(&mut input.message_system_attribute_names),
        ]
        .concat(),
        user: std::mem::take(&mut input.message_attribute_names),
    });
    let started = Instant::now();
    let mut closing = front.closing.clone();
    for _ in 0..MAX_EMPTY_ROUNDS {
        let mut round = input.clone();
        round.wait_time_seconds = input.wait_time_seconds.map(|wait| remaining(wait, started));
        let received = tokio::select! {
            received = front.provider.receive_message(round) => received?,
            _ = closing.wait_for(|closing| *closing) => break,
        };
        if received.messages.is_empty() {
            break;
        }
        // Runs to its end even if the client hangs up now: see `sqs::answer`.
        let resolving =
            resolve(Arc::clone(front), Arc::clone(&queue), received.messages, Arc::clone(&wanted));
        let messages = tokio::spawn(resolving)
            .await
            .map_err(|error| ApiError::internal(format!("the receive's task ended: {error}")))??;
        if !messages.is_empty() {
            return wire::success(&ReceiveMessageOutput { messages });
        }
    }
    wire::success(&ReceiveMessageOutput::default())
}

fn remaining(wait_seconds: i32, started: Instant) -> i32 {
    let wait = Duration::from_secs(u64::try_from(wait_seconds).unwrap_or(0));
    i32::try_from(wait.saturating_sub(started.elapsed()).as_secs_f64().ceil() as i64).unwrap_or(0)
}

/// The attributes a receive asks for.
struct Wanted {
    system: Vec<String>,
    user: Vec<String>,
}

/// Turns tickets into messages.
async fn resolve(
    front: Arc<Front>,
    queue: Arc<Queue>,
    tickets: Vec<Message>,
    wanted: Arc<Wanted>,
) -> Result<Vec<Message>, ApiError> {
    let mut seqs = Vec::with_capacity(tickets.len());
    for ticket in &tickets {
        let seq = ticket.body.as_deref().and_then(Seq::from_ticket);
        seqs.push(seq.ok_or_else(|| ApiError::internal("the queue held something that is not a ticket"))?);
    }
    // A policy whose queue was deleted moves nothing: the message stays deliverable.
    let redrive = queue.settings().redrive.filter(|redrive| front.queue_named(&redrive.target).is_some());
    let target = redrive.as_ref().map(|redrive| redrive.target.clone());
    let name = queue.name.clone();
    let deliveries =
        front.journal(move |journal| journal.receive(&name, &seqs, redrive.as_ref(), now_ms())).await?;
    let mut messages = Vec::with_capacity(tickets.len());
    for (ticket, delivery) in tickets.into_iter().zip(deliveries) {
        let handle = ticket.receipt_handle.unwrap_or_default();
        match delivery {
            Delivery::Deliver(stored) => messages.push(message(*stored, &handle, &queue, &wanted)),
            Delivery::Gone => forget_ticket(&front, &queue, handle).await?,
            Delivery::DeadLettered { seq, group_id } => {
                tracing::warn!(queue = queue.name, %seq, "a message was received too often: it is a dead letter now");
                if let Some(target) = target.as_deref().and_then(|target| front.queue_named(target)) {
                    front.enqueue(&target, seq, group_id, 0).await?;
                }
                forget_ticket(&front, &queue, handle).await?;
            }
        }
    }
    Ok(messages)
}

/// Takes a ticket out of `rustack-sqs`, which lets the next one of its group through.
async fn forget_ticket(front: &Front, queue: &Queue, receipt_handle: String) -> Result<(), ApiError> {
    let input = DeleteMessageInput { queue_url: queue.url.clone(), receipt_handle };
    front.provider.delete_message(input).await?;
    Ok(())
}

fn message(stored: Stored, handle: &str, queue: &Queue, wanted: &Wanted) -> Message {
    let fifo = queue.is_fifo();
    let system = [
        ("SenderId", Some(ACCOUNT_ID.to_owned())),
        ("SentTimestamp", Some(stored.sent_ms.to_string())),
        ("ApproximateReceiveCount", Some(stored.receive_count.to_string())),
        ("ApproximateFirstReceiveTimestamp", stored.first_received_ms.map(|time| time.to_string())),
        ("SequenceNumber", fifo.then(|| stored.seq.sequence_number())),
        ("MessageGroupId", stored.group_id),
        ("MessageDeduplicationId", stored.dedup_id),
        ("DeadLetterQueueSourceArn", stored.dead_letter_source),
        ("AWSTraceHeader", stored.trace_header),
    ];
    let is_wanted = |name: &str| wanted.system.iter().any(|wanted| wanted == "All" || wanted == name);
    let attributes = system
        .into_iter()
        .filter(|(name, _)| is_wanted(name))
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect();
    let mut message_attributes: HashMap<String, MessageAttributeValue> =
        serde_json::from_str(&stored.attributes).unwrap_or_else(|_| {
            tracing::warn!(seq = %stored.seq, "a message's attributes do not parse; it is delivered without");
            HashMap::new()
        });
    message_attributes.retain(|name, _| wanted.user.iter().any(|wanted| matches(wanted, name)));
    Message {
        message_id: Some(stored.message_id),
        receipt_handle: Some(format!("{}.{handle}", stored.seq)),
        md5_of_body: Some(md5_of_body(&stored.body)),
        body: Some(stored.body),
        md5_of_message_attributes: md5_of_message_attributes(&message_attributes),
        message_attributes,
        attributes,
    }
}

/// `All`, a name, or a prefix as `prefix.*`.
fn matches(wanted: &str, name: &str) -> bool {
    wanted == "All"
        || wanted == name
        || wanted.strip_suffix(".*").is_some_and(|prefix| name.starts_with(prefix))
}

pub(super) async fn delete(front: &Front, body: &Bytes) -> Result<Response, ApiError> {
    let input: DeleteMessageInput = wire::parse(body)?;
    let queue = front.queue(&input.queue_url)?;
    let outcomes = delete_all(front, &queue, &[&input.receipt_handle]).await?;
    outcomes.into_iter().collect::<Result<(), _>>()?;
    wire::success(&DeleteMessageOutput {})
}

pub(super) async fn delete_batch(front: &Front, body: &Bytes) -> Result<Response, ApiError> {
    let input: DeleteMessageBatchInput = wire::parse(body)?;
    let queue = front.queue(&input.queue_url)?;
    check_batch(input.entries.iter().map(|entry| entry.id.as_str()))?;
    let handles: Vec<_> = input.entries.iter().map(|entry| entry.receipt_handle.as_str()).collect();
    let outcomes = delete_all(front, &queue, &handles).await?;
    let mut output = DeleteMessageBatchOutput::default();
    for (entry, outcome) in input.entries.into_iter().zip(outcomes) {
        match outcome {
            Ok(()) => output.successful.push(DeleteMessageBatchResultEntry { id: entry.id }),
            Err(error) => output.failed.push(error.into_entry(entry.id)),
        }
    }
    wire::success(&output)
}

/// Deletes messages; the outer error means that none was deleted.
///
/// `rustack-sqs` answers a delete with a stale handle as if it had worked. A visibility change does tell, and keeps
/// the message from becoming visible between the journal and the queue.
async fn delete_all(
    front: &Front,
    queue: &Queue,
    handles: &[&str],
) -> Result<Vec<Result<(), ApiError>>, ApiError> {
    let mut outcomes = Vec::with_capacity(handles.len());
    let mut seqs = Vec::new();
    let mut tickets = Vec::new();
    for handle in handles {
        let Some((seq, ticket)) = split(handle) else {
            outcomes.push(Err(SqsError::receipt_handle_is_invalid().into()));
            continue;
        };
        let held = set_visibility(front, queue, ticket, DELETING_VISIBILITY_SECONDS).await.is_ok();
        if !held && queue.is_fifo() {
            // On a FIFO queue somebody else may hold it now. Deleting what is gone is fine.
            let name = queue.name.clone();
            let still_there = front.journal(move |journal| journal.holds(&name, seq)).await?;
            outcomes.push(if still_there {
                Err(ApiError::invalid(
                    "Value for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.",
                ))
            } else {
                Ok(())
            });
            continue;
        }
        seqs.push(seq);
        tickets.push(ticket.to_owned());
        outcomes.push(Ok(()));
    }
    if !seqs.is_empty() {
        let name = queue.name.clone();
        front.journal(move |journal| journal.delete(&name, &seqs)).await?;
        for ticket in tickets {
            forget_ticket(front, queue, ticket).await?;
        }
    }
    Ok(outcomes)
}

pub(super) async fn change_visibility(front: &Front, body: &Bytes) -> Result<Response, ApiError> {
    let input: ChangeMessageVisibilityInput = wire::parse(body)?;
    let queue = front.queue(&input.queue_url)?;
    change_one(front, &queue, &input.receipt_handle, input.visibility_timeout).await?;
    wire::success(&ChangeMessageVisibilityOutput {})
}

pub(super) async fn change_visibility_batch(front: &Front, body: &Bytes) -> Result<Response, ApiError> {
    let input: ChangeMessageVisibilityBatchInput = wire::parse(body)?;
    let queue = front.queue(&input.queue_url)?;
    check_batch(input.entries.iter().map(|entry| entry.id.as_str()))?;
    let mut output = ChangeMessageVisibilityBatchOutput::default();
    for entry in input.entries {
        match change_one(front, &queue, &entry.receipt_handle, entry.visibility_timeout).await {
            Ok(()) => output.successful.push(ChangeMessageVisibilityBatchResultEntry { id: entry.id }),
            Err(error) => output.failed.push(error.into_entry(entry.id)),
        }
    }
    wire::success(&output)
}

async fn change_one(front: &Front, queue: &Queue, handle: &str, timeout: i32) -> Result<(), ApiError> {
    in_range("VisibilityTimeout", Some(timeout), 0..=MAX_VISIBILITY_SECONDS)?;
    let (_, ticket) = split(handle).ok_or_else(SqsError::receipt_handle_is_invalid)?;
    Ok(set_visibility(front, queue, ticket, timeout).await?)
}

async fn set_visibility(front: &Front, queue: &Queue, ticket: &str, timeout: i32) -> Result<(), SqsError> {
    let input = ChangeMessageVisibilityInput {
        queue_url: queue.url.clone(),
        receipt_handle: ticket.to_owned(),
        visibility_timeout: timeout,
    };
    front.provider.change_message_visibility(input).await?;
    Ok(())
}

fn split(handle: &str) -> Option<(Seq, &str)> {
    let (seq, ticket) = handle.split_once('.')?;
    Some((Seq::from_ticket(seq)?, ticket))
}

fn in_range(
    parameter: &str,
    value: Option<i32>,
    range: std::ops::RangeInclusive<i32>,
) -> Result<(), ApiError> {
    match value {
        Some(value) if !range.contains(&value) => Err(ApiError::invalid(format!(
            "Value {value} for parameter {parameter} is invalid. Reason: Must be between {} and {}.",
            range.start(),
            range.end()
        ))),
        _ => Ok(()),
    }
}
