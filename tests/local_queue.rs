//! What was queued is there: the embedded SQS over the real wire, across restarts. `local_kill.rs` has `kill -9`.

#![cfg(feature = "local")]
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "support/queue.rs"]
mod queue;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use aws_sdk_sqs::Client;
use aws_sdk_sqs::error::ProvideErrorMetadata;
use aws_sdk_sqs::primitives::Blob;
use aws_sdk_sqs::types::{
    DeleteMessageBatchRequestEntry, Message, MessageAttributeValue, MessageSystemAttributeName as Attribute,
    QueueAttributeName, SendMessageBatchRequestEntry,
};
use dormouse::local::aws::{EmbeddedAws, EmbeddedOptions, LocalError};
use queue::{attribute, delete, receive, receive_one, send, start};

async fn restart(aws: EmbeddedAws, dir: &Path) -> EmbeddedAws {
    aws.stop().await;
    start(dir).await
}

async fn show_again(client: &Client, url: &str, message: &Message) {
    let handle = message.receipt_handle().unwrap();
    client
        .change_message_visibility()
        .queue_url(url)
        .receipt_handle(handle)
        .visibility_timeout(0)
        .send()
        .await
        .unwrap();
}

fn count(message: &Message) -> String {
    attribute(message, Attribute::ApproximateReceiveCount)
}

fn body(message: &Message) -> &str {
    message.body().unwrap()
}

/// Receives and deletes until nothing comes any more; the bodies in order.
async fn drain(client: &Client, url: &str) -> Vec<String> {
    let mut bodies = Vec::new();
    loop {
        let messages = receive(client, url, 10, 0).await;
        if messages.is_empty() {
            return bodies;
        }
        for message in &messages {
            bodies.push(body(message).to_owned());
            delete(client, url, message).await;
        }
    }
}

#[tokio::test]
async fn a_queued_message_survives_a_restart_with_its_id_and_number() {
    let dir = tempfile::tempdir().unwrap();
    let aws = start(dir.path()).await;
    let (id, seq) = send(&aws.sqs_client(), &aws.input_queue_url(), "t1", "d1", "hello").await;
    assert_eq!(seq.len(), 20);

    let aws = restart(aws, dir.path()).await;
    let (client, url) = (aws.sqs_client(), aws.input_queue_url());
    let message = receive_one(&client, &url).await;
    assert_eq!((message.message_id().unwrap(), body(&message)), (id.as_str(), "hello"));
    assert_eq!(attribute(&message, Attribute::SequenceNumber), seq);
    assert_eq!(attribute(&message, Attribute::MessageGroupId), "t1");
    assert_eq!(attribute(&message, Attribute::MessageDeduplicationId), "d1");
    assert_eq!(count(&message), "1");

    // Deleted and restarted: the next number is still above every old one.
    delete(&client, &url, &message).await;
    let aws = restart(aws, dir.path()).await;
    let (_, next) = send(&aws.sqs_client(), &aws.input_queue_url(), "t1", "d2", "again").await;
    assert!(next > seq, "{next} {seq}");
    aws.stop().await;
}

#[tokio::test]
async fn the_receive_count_goes_on_and_what_was_in_flight_is_visible_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut aws = start(dir.path()).await;
    send(&aws.sqs_client(), &aws.input_queue_url(), "t", "d", "x").await;
    for expected in ["1", "2", "3"] {
        let message = receive_one(&aws.sqs_client(), &aws.input_queue_url()).await;
        assert_eq!(count(&message), expected);
        assert!(!attribute(&message, Attribute::ApproximateFirstReceiveTimestamp).is_empty());
        aws = restart(aws, dir.path()).await;
    }
    aws.stop().await;
}

#[tokio::test]
async fn a_deleted_message_stays_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let aws = start(dir.path()).await;
    let (client, url) = (aws.sqs_client(), aws.input_queue_url());
    for name in ["one", "two", "three"] {
        send(&client, &url, name, name, name).await;
    }
    let messages = receive(&client, &url, 10, 0).await;
    assert_eq!(messages.len(), 3);
    let entry = |message: &Message| {
        let (id, handle) = (body(message), message.receipt_handle().unwrap());
        DeleteMessageBatchRequestEntry::builder().id(id).receipt_handle(handle).build().unwrap()
    };
    let entries = messages.iter().filter(|message| body(message) != "two").map(entry).collect();
    let deleted =
        client.delete_message_batch().queue_url(&url).set_entries(Some(entries)).send().await.unwrap();
    assert_eq!(deleted.successful().len(), 2);

    let aws = restart(aws, dir.path()).await;
    assert_eq!(drain(&aws.sqs_client(), &aws.input_queue_url()).await, ["two"]);
    let aws = restart(aws, dir.path()).await;
    assert!(drain(&aws.sqs_client(), &aws.input_queue_url()).await.is_empty());
    aws.stop().await;
}

#[tokio::test]
async fn order_is_kept_across_a_restart_with_one_message_in_flight() {
    let dir = tempfile::tempdir().unwrap();
    let aws = start(dir.path()).await;
    let (client, url) = (aws.sqs_client(), aws.input_queue_url());
    let entry = |number: usize| {
        SendMessageBatchRequestEntry::builder()
            .id(number.to_string())
            .message_group_id("t")
            .message_deduplication_id(format!("d{number}"))
            .message_body(format!("{number}"))
            .build()
            .unwrap()
    };
    let entries = (0..5).map(entry).collect();
    let sent = client.send_message_batch().queue_url(&url).set_entries(Some(entries)).send().await.unwrap();
    let numbers: Vec<_> = sent.successful().iter().map(|sent| sent.sequence_number().unwrap()).collect();
    assert!(numbers.is_sorted() && numbers.len() == 5);
    assert_eq!(body(&receive_one(&client, &url).await), "0");

    let aws = restart(aws, dir.path()).await;
    let (client, url) = (aws.sqs_client(), aws.input_queue_url());
    send(&client, &url, "t", "d5", "5").await;
    assert_eq!(drain(&client, &url).await, ["0", "1", "2", "3", "4", "5"]);
    aws.stop().await;
}

#[tokio::test]
async fn a_dead_letter_is_moved_once_and_survives() {
    let dir = tempfile::tempdir().unwrap();
    let aws = start(dir.path()).await;
    let client = aws.sqs_client();
    let dead = aws.dead_letter_queue_url();
    let arn = client.get_queue_attributes().queue_url(&dead).attribute_names(QueueAttributeName::QueueArn);
    let arn = arn.send().await.unwrap().attributes.unwrap().remove(&QueueAttributeName::QueueArn).unwrap();
    let policy = format!(r#"{{"deadLetterTargetArn":"{arn}","maxReceiveCount":"2"}}"#);
    let made = client
        .create_queue()
        .queue_name("small.fifo")
        .attributes(QueueAttributeName::FifoQueue, "true")
        .attributes(QueueAttributeName::RedrivePolicy, &policy);
    let url = made.send().await.unwrap().queue_url.unwrap();
    let (id, _) = send(&client, &url, "t", "poison", "poison").await;
    send(&client, &url, "t", "next", "next").await;
    show_again(&client, &url, &receive_one(&client, &url).await).await;

    // The count of one receive is carried over: the second is the last.
    let aws = restart(aws, dir.path()).await;
    let client = aws.sqs_client();
    let url = client.get_queue_url().queue_name("small.fifo").send().await.unwrap().queue_url.unwrap();
    let attributes = client.get_queue_attributes().queue_url(&url).attribute_names(QueueAttributeName::All);
    let attributes = attributes.send().await.unwrap().attributes.unwrap();
    assert_eq!(attributes[&QueueAttributeName::RedrivePolicy], policy);
    let second = receive_one(&client, &url).await;
    assert_eq!((body(&second), count(&second).as_str()), ("poison", "2"));
    show_again(&client, &url, &second).await;
    let next = receive_one(&client, &url).await;
    assert_eq!(body(&next), "next");
    delete(&client, &url, &next).await;

    let aws = restart(aws, dir.path()).await;
    let (client, dead) = (aws.sqs_client(), aws.dead_letter_queue_url());
    let url = client.get_queue_url().queue_name("small.fifo").send().await.unwrap().queue_url.unwrap();
    assert!(receive(&client, &url, 10, 0).await.is_empty());
    let letters = receive(&client, &dead, 10, 0).await;
    assert_eq!(letters.len(), 1);
    let letter = &letters[0];
    assert_eq!((body(letter), letter.message_id().unwrap()), ("poison", id.as_str()));
    assert_eq!(attribute(letter, Attribute::MessageGroupId), "t");
    assert_eq!(attribute(letter, Attribute::MessageDeduplicationId), id);
    assert!(attribute(letter, Attribute::DeadLetterQueueSourceArn).ends_with(":small.fifo"));
    aws.stop().await;
}

#[tokio::test]
async fn a_delayed_message_fires_after_a_restart_and_not_before_its_time() {
    let dir = tempfile::tempdir().unwrap();
    let aws = start(dir.path()).await;
    let (client, url) = (aws.sqs_client(), aws.delay_queue_url());
    let sent_at = Instant::now();
    client.send_message().queue_url(&url).message_body("tick").delay_seconds(3).send().await.unwrap();
    let aws = restart(aws, dir.path()).await;
    let (client, url) = (aws.sqs_client(), aws.delay_queue_url());
    assert!(receive(&client, &url, 10, 0).await.is_empty());
    let message = receive_one(&client, &url).await;
    assert_eq!(body(&message), "tick");
    assert!(sent_at.elapsed() >= Duration::from_secs(3), "{:?}", sent_at.elapsed());
    aws.stop().await;
}

#[tokio::test]
async fn a_duplicate_send_names_the_first_also_after_delete_and_restart() {
    let dir = tempfile::tempdir().unwrap();
    let aws = start(dir.path()).await;
    let (client, url) = (aws.sqs_client(), aws.input_queue_url());
    let first = send(&client, &url, "t", "d", "one").await;
    assert_eq!(send(&client, &url, "t", "d", "two").await, first);
    assert_ne!(send(&client, &url, "other", "d", "three").await.0, first.0, "the scope is the group");
    assert_eq!(drain(&client, &url).await, ["three", "one"]);
    assert_eq!(send(&client, &url, "t", "d", "four").await, first);

    let aws = restart(aws, dir.path()).await;
    let (client, url) = (aws.sqs_client(), aws.input_queue_url());
    assert_eq!(send(&client, &url, "t", "d", "five").await, first);
    assert!(drain(&client, &url).await.is_empty());
    aws.stop().await;
}

#[tokio::test]
async fn a_large_message_with_attributes_survives_and_one_above_1_mib_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let aws = start(dir.path()).await;
    let large = "ä\"\n".repeat(900 * 1024 / 4);
    let value = |kind: &str| MessageAttributeValue::builder().data_type(kind);
    aws.sqs_client()
        .send_message()
        .queue_url(aws.input_queue_url())
        .message_group_id("t")
        .message_deduplication_id("d")
        .message_body(&large)
        .message_attributes("text", value("String").string_value("hé").build().unwrap())
        .message_attributes("bytes", value("Binary").binary_value(Blob::new([0, 255])).build().unwrap())
        .send()
        .await
        .unwrap();
    let aws = restart(aws, dir.path()).await;
    let (client, url) = (aws.sqs_client(), aws.input_queue_url());
    let message = receive_one(&client, &url).await;
    assert!(body(&message) == large);
    let attributes = message.message_attributes().unwrap();
    assert_eq!(attributes["text"].string_value(), Some("hé"));
    assert_eq!(attributes["bytes"].binary_value().unwrap().as_ref(), [0, 255]);

    let too_large = "x".repeat(1024 * 1024 + 1);
    let refused = client.send_message().queue_url(&url).message_group_id("t").message_deduplication_id("e");
    let refused = refused.message_body(too_large).send().await.unwrap_err();
    assert_eq!(refused.code(), Some("InvalidParameterValue"));
    aws.stop().await;
}

#[tokio::test]
async fn groups_do_not_wait_for_each_other_and_a_group_waits_for_itself() {
    let aws = EmbeddedAws::start(EmbeddedOptions::default()).await.unwrap();
    let (client, url) = (aws.sqs_client(), aws.input_queue_url());
    for (group, name) in [("a", "a1"), ("a", "a2"), ("b", "b1"), ("b", "b2")] {
        send(&client, &url, group, name, name).await;
    }
    let first: BTreeSet<_> = receive(&client, &url, 10, 0).await.iter().map(|m| body(m).to_owned()).collect();
    assert_eq!(first, BTreeSet::from(["a1".to_owned(), "b1".to_owned()]));
    assert!(receive(&client, &url, 10, 0).await.is_empty());
    aws.stop().await;
}

#[tokio::test]
async fn a_stale_receipt_handle_deletes_nothing() {
    let aws = EmbeddedAws::start(EmbeddedOptions::default()).await.unwrap();
    let (client, url) = (aws.sqs_client(), aws.input_queue_url());
    send(&client, &url, "t", "d", "x").await;
    let stale = receive_one(&client, &url).await;
    show_again(&client, &url, &stale).await;
    let handle = stale.receipt_handle().unwrap();
    let refused = client.delete_message().queue_url(&url).receipt_handle(handle).send().await.unwrap_err();
    assert_eq!(refused.code(), Some("InvalidParameterValue"));
    let fresh = receive_one(&client, &url).await;
    delete(&client, &url, &fresh).await;
    // Deleting what is gone is fine, as on AWS.
    delete(&client, &url, &fresh).await;
    delete(&client, &url, &stale).await;
    aws.stop().await;
}

#[tokio::test]
async fn numbers_out_of_range_are_refused_and_the_queue_lives_on() {
    let aws = EmbeddedAws::start(EmbeddedOptions::default()).await.unwrap();
    let (client, url) = (aws.sqs_client(), aws.input_queue_url());
    assert!(client.receive_message().queue_url(&url).visibility_timeout(-1).send().await.is_err());
    assert!(client.receive_message().queue_url(&url).max_number_of_messages(11).send().await.is_err());
    let control = client.send_message().queue_url(&url).message_group_id("t").message_deduplication_id("c");
    assert!(control.message_body("a\u{0}b").send().await.is_err());
    send(&client, &url, "t", "d", "x").await;
    let message = receive_one(&client, &url).await;
    let change = client.change_message_visibility().queue_url(&url);
    let change = change.receipt_handle(message.receipt_handle().unwrap()).visibility_timeout(-1);
    assert!(change.send().await.is_err());
    delete(&client, &url, &message).await;
    let missing = url.replace("input", "nowhere");
    let missing = client.receive_message().queue_url(missing).send().await.unwrap_err();
    assert!(missing.into_service_error().is_queue_does_not_exist());
    aws.stop().await;
}

#[tokio::test]
async fn a_second_dormouse_on_the_same_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let aws = start(dir.path()).await;
    let options = EmbeddedOptions { dir: Some(dir.path().to_owned()), ..EmbeddedOptions::default() };
    let refused = EmbeddedAws::start(options).await.unwrap_err();
    assert!(matches!(refused, LocalError::DirInUse { .. }), "{refused}");
    restart(aws, dir.path()).await.stop().await;
}

#[tokio::test]
async fn the_table_survives_with_its_items() {
    use aws_sdk_dynamodb::types::AttributeValue;
    let dir = tempfile::tempdir().unwrap();
    let aws = start(dir.path()).await;
    let text = |text: &str| AttributeValue::S(text.to_owned());
    let put = aws.dynamodb_client().put_item().table_name(aws.table()).item("pk", text("T#1"));
    put.item("sk", text("META")).item("lpk", text("L")).item("lsk", text("1")).send().await.unwrap();
    let aws = restart(aws, dir.path()).await;
    let listed = aws.dynamodb_client().query().table_name(aws.table()).index_name("lists");
    let listed = listed.key_condition_expression("lpk = :l").expression_attribute_values(":l", text("L"));
    assert_eq!(listed.send().await.unwrap().items()[0]["pk"], text("T#1"));
    let ttl = aws.dynamodb_client().describe_time_to_live().table_name(aws.table()).send().await.unwrap();
    assert_eq!(ttl.time_to_live_description().unwrap().attribute_name(), Some("expires_at"));
    aws.stop().await;
}
