//! A plain client of the embedded queue, over the wire.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::path::Path;

use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::{Message, MessageSystemAttributeName as Attribute};
use dormouse::local::aws::{EmbeddedAws, EmbeddedOptions};

pub async fn start(dir: &Path) -> EmbeddedAws {
    let options = EmbeddedOptions { dir: Some(dir.to_owned()), ..EmbeddedOptions::default() };
    EmbeddedAws::start(options).await.unwrap()
}

/// Message id and sequence number.
pub async fn send(client: &Client, url: &str, group: &str, dedup: &str, body: &str) -> (String, String) {
    let sent = client
        .send_message()
        .queue_url(url)
        .message_group_id(group)
        .message_deduplication_id(dedup)
        .message_body(body)
        .send()
        .await
        .unwrap();
    (sent.message_id.unwrap(), sent.sequence_number.unwrap_or_default())
}

pub async fn receive(client: &Client, url: &str, max: i32, wait: i32) -> Vec<Message> {
    client
        .receive_message()
        .queue_url(url)
        .max_number_of_messages(max)
        .wait_time_seconds(wait)
        .message_system_attribute_names(Attribute::All)
        .message_attribute_names("All")
        .send()
        .await
        .unwrap()
        .messages
        .unwrap_or_default()
}

pub async fn receive_one(client: &Client, url: &str) -> Message {
    let messages = receive(client, url, 1, 5).await;
    assert_eq!(messages.len(), 1);
    messages.into_iter().next().unwrap()
}

pub async fn delete(client: &Client, url: &str, message: &Message) {
    client
        .delete_message()
        .queue_url(url)
        .receipt_handle(message.receipt_handle().unwrap())
        .send()
        .await
        .unwrap();
}

pub fn attribute(message: &Message, name: Attribute) -> String {
    message.attributes().unwrap().get(&name).cloned().unwrap_or_default()
}
