//! What stands in for Lambda's event source mapping: delivery, deletion, redelivery, stopping.

#![cfg(feature = "local")]
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_lambda_events::event::sqs::{SqsBatchResponse, SqsEvent, SqsMessage};
use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::{MessageAttributeValue, QueueAttributeName};
use dormouse::local::aws::{EmbeddedAws, EmbeddedOptions};
use dormouse::local::poll::poll_queue;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

const PATIENCE: Duration = Duration::from_secs(10);

struct Loop {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Loop {
    /// Polls the input queue with a handler that sees one record at a time and says whether it failed.
    fn start<F>(aws: &EmbeddedAws, handle: F) -> Self
    where
        F: Fn(&SqsMessage) -> bool + Send + Sync + 'static,
    {
        let handler = move |event: SqsEvent| {
            let mut response = SqsBatchResponse::default();
            for record in &event.records {
                if handle(record) {
                    response.add_failure(record.message_id.clone().unwrap());
                }
            }
            async move { response }
        };
        let (stop, stopped) = oneshot::channel();
        let polling = poll_queue(aws.sqs_client(), aws.input_queue_url(), handler, async {
            let _ = stopped.await;
        });
        Self { stop, task: tokio::spawn(polling) }
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        tokio::time::timeout(PATIENCE, self.task).await.unwrap().unwrap();
    }
}

async fn start() -> EmbeddedAws {
    EmbeddedAws::start(EmbeddedOptions::default()).await.unwrap()
}

async fn send(client: &Client, url: &str, group: &str, body: &str) {
    let sending = client.send_message().queue_url(url).message_group_id(group).message_deduplication_id(body);
    let kind = MessageAttributeValue::builder().data_type("String").string_value("v").build().unwrap();
    sending.message_body(body).message_attributes("k", kind).send().await.unwrap();
}

async fn next<T>(received: &mut mpsc::UnboundedReceiver<T>) -> T {
    tokio::time::timeout(PATIENCE, received.recv()).await.expect("nothing came").unwrap()
}

/// Messages visible and in flight.
async fn left(client: &Client, url: &str) -> (String, String) {
    use QueueAttributeName::{
        ApproximateNumberOfMessages as Visible, ApproximateNumberOfMessagesNotVisible as InFlight,
    };
    let attributes = client.get_queue_attributes().queue_url(url).attribute_names(QueueAttributeName::All);
    let attributes = attributes.send().await.unwrap().attributes.unwrap();
    (attributes[&Visible].clone(), attributes[&InFlight].clone())
}

#[tokio::test]
async fn a_record_looks_as_on_lambda_and_is_deleted_when_it_is_handled() {
    let aws = start().await;
    let (client, url) = (aws.sqs_client(), aws.input_queue_url());
    let (seen, mut records) = mpsc::unbounded_channel();
    let polling = Loop::start(&aws, move |record| seen.send(record.clone()).is_err());
    send(&client, &url, "t", "hello").await;
    let record = next(&mut records).await;
    assert_eq!(record.body.as_deref(), Some("hello"));
    assert_eq!(record.event_source.as_deref(), Some("aws:sqs"));
    assert_eq!(
        record.event_source_arn.as_deref(),
        Some("arn:aws:sqs:us-east-1:000000000000:dormouse-input.fifo")
    );
    assert_eq!(record.aws_region.as_deref(), Some("us-east-1"));
    for (name, value) in
        [("MessageGroupId", "t"), ("MessageDeduplicationId", "hello"), ("ApproximateReceiveCount", "1")]
    {
        assert_eq!(record.attributes[name], value);
    }
    assert_eq!(record.attributes["SequenceNumber"].len(), 20);
    assert!(record.attributes["SentTimestamp"].parse::<u64>().is_ok());
    assert_eq!(record.message_attributes["k"].string_value.as_deref(), Some("v"));
    polling.stop().await;
    assert_eq!(left(&client, &url).await, ("0".to_owned(), "0".to_owned()));
    aws.stop().await;
}

#[tokio::test]
async fn a_failed_record_comes_again_and_the_rest_of_its_batch_does_not() {
    let aws = start().await;
    let (client, url) = (aws.sqs_client(), aws.input_queue_url());
    send(&client, &url, "bad", "bad").await;
    send(&client, &url, "good", "good").await;
    let (seen, mut records) = mpsc::unbounded_channel();
    let polling = Loop::start(&aws, move |record| {
        let count = record.attributes["ApproximateReceiveCount"].clone();
        seen.send((record.body.clone().unwrap(), count.clone(), record.receipt_handle.clone().unwrap()))
            .unwrap();
        record.body.as_deref() == Some("bad") && count == "1"
    });
    let (first, second) = (next(&mut records).await, next(&mut records).await);
    let failed = if first.0 == "bad" { first } else { second };
    // The handler's own business on Lambda; here the test does it.
    let change = client.change_message_visibility().queue_url(&url).receipt_handle(failed.2);
    change.visibility_timeout(0).send().await.unwrap();
    let again = next(&mut records).await;
    assert_eq!((again.0.as_str(), again.1.as_str()), ("bad", "2"));
    polling.stop().await;
    assert_eq!(left(&client, &url).await, ("0".to_owned(), "0".to_owned()));
    aws.stop().await;
}

#[tokio::test]
async fn a_panic_fails_its_batch_and_the_loop_goes_on() {
    let aws = start().await;
    let (client, url) = (aws.sqs_client(), aws.input_queue_url());
    let (seen, mut records) = mpsc::unbounded_channel();
    let polling = Loop::start(&aws, move |record| {
        seen.send(record.body.clone().unwrap()).unwrap();
        assert_ne!(record.body.as_deref(), Some("panic"), "as it should");
        false
    });
    send(&client, &url, "a", "panic").await;
    assert_eq!(next(&mut records).await, "panic");
    send(&client, &url, "b", "after").await;
    assert_eq!(next(&mut records).await, "after");
    polling.stop().await;
    assert_eq!(left(&client, &url).await, ("0".to_owned(), "1".to_owned()));
    aws.stop().await;
}

#[tokio::test]
async fn rap_49_a_slow_thread_does_not_hold_another() {
    let aws = start().await;
    let (client, url) = (aws.sqs_client(), aws.input_queue_url());
    let (seen, mut records) = mpsc::unbounded_channel();
    let (release, released) = oneshot::channel::<()>();
    let released = Arc::new(Mutex::new(Some(released)));
    let handler = move |event: SqsEvent| {
        let (seen, released) = (seen.clone(), Arc::clone(&released));
        async move {
            let bodies: Vec<_> = event.records.iter().map(|record| record.body.clone().unwrap()).collect();
            seen.send(bodies.clone()).unwrap();
            if bodies == ["slow"] {
                let released = released.lock().unwrap().take().unwrap();
                let _ = released.await;
            }
            SqsBatchResponse::default()
        }
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let polling = tokio::spawn(poll_queue(client.clone(), url.clone(), handler, async {
        let _ = stopped.await;
    }));
    send(&client, &url, "slow", "slow").await;
    assert_eq!(next(&mut records).await, ["slow"]);
    send(&client, &url, "slow", "after-slow").await;
    send(&client, &url, "quick", "quick").await;
    assert_eq!(next(&mut records).await, ["quick"]);
    release.send(()).unwrap();
    assert_eq!(next(&mut records).await, ["after-slow"]);
    stop.send(()).unwrap();
    polling.await.unwrap();
    assert_eq!(left(&client, &url).await, ("0".to_owned(), "0".to_owned()));
    aws.stop().await;
}
