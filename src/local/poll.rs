//! What Lambda's event source mapping does, on one machine: receive, call the handler, delete what did not fail.
//!
//! The handler is the worker's, and gets the very event Lambda would send. This loop decides nothing about messages:
//! it never changes their visibility (the handler does) and never looks into them.

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use aws_lambda_events::encodings::Base64Data;
use aws_lambda_events::event::sqs::{SqsBatchResponse, SqsEvent, SqsMessage, SqsMessageAttribute};
use aws_sdk_sqs::Client;
use aws_sdk_sqs::error::DisplayErrorContext;
use aws_sdk_sqs::types::{
    DeleteMessageBatchRequestEntry, Message, MessageAttributeValue, MessageSystemAttributeName,
};
use tokio::task::{JoinError, JoinSet};

/// Batches handled at once, so that one slow thread does not hold the others up.
pub const MAX_CONCURRENT_BATCHES: usize = 8;
/// Messages asked for at once: SQS's maximum.
const MAX_MESSAGES: i32 = 10;
/// Length of a long poll: SQS's maximum.
const WAIT_SECONDS: i32 = 20;
/// Pause after a receive that failed.
const RECEIVE_PAUSE: Duration = Duration::from_secs(1);
/// How long running batches may take to finish after a stop. Then they are dropped, as a crash would drop them: their
/// messages come back.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// Feeds a queue to `handler` until `stop` resolves, then lets running batches finish.
///
/// Each call gets one batch of at most ten records. A record is deleted unless the response names its message id; if
/// the response names an id the batch does not have, or an empty one, or the handler panics, all of the batch counts
/// as failed, as on Lambda. Failed records stay invisible for as long as the handler or the queue said.
///
/// Up to [`MAX_CONCURRENT_BATCHES`] batches run at once; the queue keeps two batches of one group apart.
pub async fn poll_queue<Handler, Handling>(
    client: Client,
    queue_url: String,
    handler: Handler,
    stop: impl Future<Output = ()>,
) where
    Handler: Fn(SqsEvent) -> Handling + Send + Sync + 'static,
    Handling: Future<Output = SqsBatchResponse> + Send + 'static,
{
    let source = Arc::new(EventSource::new(&client, queue_url));
    let handler = Arc::new(handler);
    let mut batches = JoinSet::new();
    let mut stop = pin!(stop);
    loop {
        while let Some(ended) = batches.try_join_next() {
            log_panic(ended);
        }
        let received = tokio::select! {
            biased;
            () = &mut stop => break,
            Some(ended) = batches.join_next(), if batches.len() >= MAX_CONCURRENT_BATCHES => {
                log_panic(ended);
                continue;
            }
            received = receive(&client, &source.queue_url), if batches.len() < MAX_CONCURRENT_BATCHES => received,
        };
        if received.is_empty() {
            continue;
        }
        let (client, source, handler) = (client.clone(), Arc::clone(&source), Arc::clone(&handler));
        // A panic ends this task before anything is deleted: all records count as failed.
        batches.spawn(async move {
            let handles = Handles::of(&received);
            let response = handler(source.event(received)).await;
            delete(&client, &source.queue_url, handles.without(&response)).await;
        });
    }
    let finishing = async {
        while let Some(ended) = batches.join_next().await {
            log_panic(ended);
        }
    };
    if tokio::time::timeout(STOP_GRACE, finishing).await.is_err() {
        tracing::warn!(
            batches = batches.len(),
            "dropped batches that were still running; their messages come back"
        );
        batches.shutdown().await;
    }
}

fn log_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!("the handler panicked; its batch counts as failed");
    }
}

/// One long poll. An error is logged, waited out, and looks like an empty answer.
async fn receive(client: &Client, queue_url: &str) -> Vec<Message> {
    let received = client
        .receive_message()
        .queue_url(queue_url)
        .max_number_of_messages(MAX_MESSAGES)
        .wait_time_seconds(WAIT_SECONDS)
        .message_system_attribute_names(MessageSystemAttributeName::All)
        .message_attribute_names("All")
        .send()
        .await;
    match received {
        Ok(received) => received.messages.unwrap_or_default(),
        Err(error) => {
            tracing::warn!(queue_url, error = %DisplayErrorContext(&error), "receiving failed");
            tokio::time::sleep(RECEIVE_PAUSE).await;
            Vec::new()
        }
    }
}

/// Message ids and receipt handles of a batch.
struct Handles(Vec<(String, String)>);

impl Handles {
    fn of(messages: &[Message]) -> Self {
        let handle = |message: &Message| Some((message.message_id.clone()?, message.receipt_handle.clone()?));
        Self(messages.iter().filter_map(handle).collect())
    }

    /// The receipt handles to delete: none if the response does not make sense.
    fn without(self, response: &SqsBatchResponse) -> Vec<String> {
        let failed: Vec<_> =
            response.batch_item_failures.iter().map(|failure| failure.item_identifier.as_str()).collect();
        let is_known = |failed: &&str| self.0.iter().any(|(id, _)| id == failed);
        if !failed.iter().all(is_known) {
            tracing::error!(
                "the handler reported a failure that is not in its batch; all of the batch counts as failed"
            );
            return Vec::new();
        }
        self.0
            .into_iter()
            .filter(|(id, _)| !failed.contains(&id.as_str()))
            .map(|(_, handle)| handle)
            .collect()
    }
}

/// Deletes messages of one batch. What cannot be deleted is delivered again, and known as a duplicate then.
async fn delete(client: &Client, queue_url: &str, receipt_handles: Vec<String>) {
    if receipt_handles.is_empty() {
        return;
    }
    let entries = receipt_handles.into_iter().enumerate().map(|(place, receipt_handle)| {
        DeleteMessageBatchRequestEntry::builder()
            .id(place.to_string())
            .receipt_handle(receipt_handle)
            .build()
            .expect("bug: both fields are set")
    });
    match client.delete_message_batch().queue_url(queue_url).set_entries(Some(entries.collect())).send().await
    {
        Ok(deleted) => {
            for failed in deleted.failed() {
                tracing::warn!(
                    queue_url,
                    code = failed.code(),
                    "a handled message was not deleted; it comes again"
                );
            }
        }
        Err(error) => {
            tracing::warn!(queue_url, error = %DisplayErrorContext(&error), "handled messages come again");
        }
    }
}

/// Where the records of a loop come from, as Lambda puts it into each.
struct EventSource {
    queue_url: String,
    arn: String,
    region: String,
}

impl EventSource {
    /// A queue URL ends in account and name: the ARN needs no further call.
    fn new(client: &Client, queue_url: String) -> Self {
        let region = client.config().region().map(ToString::to_string).unwrap_or_default();
        let mut segments = queue_url.rsplit('/');
        let name = segments.next().unwrap_or_default();
        let account = segments.next().unwrap_or_default();
        let arn = format!("arn:aws:sqs:{region}:{account}:{name}");
        Self { queue_url, arn, region }
    }

    fn event(&self, messages: Vec<Message>) -> SqsEvent {
        let mut event = SqsEvent::default();
        event.records = messages.into_iter().map(|message| self.record(message)).collect();
        event
    }

    fn record(&self, message: Message) -> SqsMessage {
        let mut record = SqsMessage::default();
        record.message_id = message.message_id;
        record.receipt_handle = message.receipt_handle;
        record.body = message.body;
        record.md5_of_body = message.md5_of_body;
        record.md5_of_message_attributes = message.md5_of_message_attributes;
        record.attributes = named(message.attributes, |name| name.as_str().to_owned(), |value| value);
        record.message_attributes = named(message.message_attributes, |name| name, attribute);
        record.event_source_arn = Some(self.arn.clone());
        record.event_source = Some("aws:sqs".to_owned());
        record.aws_region = Some(self.region.clone());
        record
    }
}

fn named<K, V, W>(
    map: Option<HashMap<K, V>>,
    name: impl Fn(K) -> String,
    value: impl Fn(V) -> W,
) -> HashMap<String, W> {
    map.unwrap_or_default().into_iter().map(|(key, it)| (name(key), value(it))).collect()
}

fn attribute(value: MessageAttributeValue) -> SqsMessageAttribute {
    let mut attribute = SqsMessageAttribute::default();
    attribute.data_type = Some(value.data_type);
    attribute.string_value = value.string_value;
    attribute.binary_value = value.binary_value.map(|bytes| {
        let mut data = Base64Data::default();
        data.0 = bytes.into_inner();
        data
    });
    attribute
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left_to_delete(failed: &[&str]) -> Vec<String> {
        let mut response = SqsBatchResponse::default();
        response.set_failures(failed.iter().copied());
        let handle = |name: &str| (name.to_owned(), format!("handle of {name}"));
        Handles(vec![handle("a"), handle("b")]).without(&response)
    }

    #[test]
    fn a_response_is_read_as_lambda_reads_it() {
        assert_eq!(left_to_delete(&[]), ["handle of a", "handle of b"]);
        assert_eq!(left_to_delete(&["a"]), ["handle of b"]);
        assert!(left_to_delete(&["a", "b"]).is_empty());
        assert!(left_to_delete(&["nobody"]).is_empty(), "an unknown id fails the whole batch");
        assert!(left_to_delete(&["a", ""]).is_empty(), "and so does an empty one");
    }
}
