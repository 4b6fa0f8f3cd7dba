//! What was queued is there after `kill -9`.

#![cfg(feature = "local")]
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "support/queue.rs"]
mod queue;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::{Message, MessageSystemAttributeName as Attribute};
use queue::{attribute, delete, receive, receive_one, send, start};

/// Tells the re-executed test binary that it is the process to be killed, and where.
const KILLED_DIR: &str = "DORMOUSE_TEST_KILLED_DIR";

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

/// Kills a process that is sending and deleting as fast as it can, and looks for everything it was told is accepted,
/// and for nothing it was told is deleted.
#[tokio::test]
async fn what_was_queued_is_there_after_kill_9() {
    if let Some(dir) = std::env::var_os(KILLED_DIR) {
        return the_process_that_is_killed(Path::new(&dir)).await;
    }
    const ACKNOWLEDGED: usize = 40;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    let acknowledged =
        tokio::task::spawn_blocking(move || kill_while_sending(path, ACKNOWLEDGED)).await.unwrap();
    assert!(acknowledged.len() >= ACKNOWLEDGED);

    let aws = start(dir.path()).await;
    let (client, url) = (aws.sqs_client(), aws.input_queue_url());
    for (place, expected) in acknowledged.iter().enumerate() {
        let message = receive_one(&client, &url).await;
        let number = attribute(&message, Attribute::SequenceNumber);
        assert_eq!(&format!("{} {number} {}", message.message_id().unwrap(), body(&message)), expected);
        // The first one was in flight when the process was killed.
        assert_eq!(count(&message), if place == 0 { "2" } else { "1" });
        delete(&client, &url, &message).await;
    }
    // At most the one send whose answer the killed process did not get to print.
    assert!(drain(&client, &url).await.len() <= 1);
    // The other queue: each of its messages was deleted before the line was printed.
    for left in drain(&client, &aws.dead_letter_queue_url()).await {
        assert!(!acknowledged.iter().any(|line| line.ends_with(&format!(" {left}"))), "{left} was deleted");
    }
    aws.stop().await;
}

/// Runs this test as [`the_process_that_is_killed`] until it has printed `lines` accepted messages.
fn kill_while_sending(dir: PathBuf, lines: usize) -> Vec<String> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "what_was_queued_is_there_after_kill_9", "--nocapture"])
        .env(KILLED_DIR, dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    let mut sent = Vec::new();
    let mut line = String::new();
    while sent.len() < lines && reader.read_line(&mut line).unwrap() > 0 {
        sent.extend(line.trim_end().strip_prefix("sent ").map(str::to_owned));
        line.clear();
    }
    child.kill().unwrap();
    // What it printed between the last line read and its end was accepted as well. The last line may be half a line.
    while reader.read_line(&mut line).unwrap_or(0) > 0 {
        sent.extend(line.strip_suffix('\n').and_then(|line| line.strip_prefix("sent ")).map(str::to_owned));
        line.clear();
    }
    child.wait().unwrap();
    sent
}

async fn the_process_that_is_killed(dir: &Path) {
    let aws = start(dir).await;
    let (client, url) = (aws.sqs_client(), aws.input_queue_url());
    for number in 0.. {
        let text = format!("message {number}");
        let (id, seq) = send(&client, &url, "t", &number.to_string(), &text).await;
        if number == 0 {
            receive_one(&client, &url).await;
        }
        let other = aws.dead_letter_queue_url();
        send(&client, &other, "t", &number.to_string(), &text).await;
        delete(&client, &other, &receive_one(&client, &other).await).await;
        let mut out = std::io::stdout().lock();
        writeln!(out, "sent {id} {seq} {text}").unwrap();
        out.flush().unwrap();
    }
}
