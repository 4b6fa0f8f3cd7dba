//! On one machine, what a user says ends the response that runs, through whichever door it comes.
#![cfg(feature = "local")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/stack.rs"]
mod stack;
#[path = "support/world.rs"]
mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use dormouse::message::{DedupId, InputMessage, ThreadId};
use dormouse::slice::{DisplayEvent, Observer};
use serde_json::{Value, json};
use stack::Stack;

/// What the response would take that is interrupted: 50 ms a word.
const LONG: Duration = Duration::from_secs(40);

async fn say(stack: &Stack, thread: &str, body: &Value) -> u16 {
    let url = format!("{}/threads/{thread}/messages", stack.system.endpoints().http);
    stack.http.post(url).json(body).send().await.unwrap().status().as_u16()
}

/// Counts what is shown of responses.
#[derive(Default)]
struct Pieces(AtomicUsize);

impl Observer for Pieces {
    fn on_event(&self, _thread: &ThreadId, event: &DisplayEvent) {
        if matches!(event, DisplayEvent::Text(_)) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The thread is asked something long, and the model has begun.
async fn begun(thread: &str) -> Stack {
    let pieces = Arc::new(Pieces::default());
    let stack = Stack::start_watched(stack::config(&[]), pieces.clone()).await;
    let body = json!({"text": "slow 800 zzz", "dedup_id": "long"});
    assert_eq!(say(&stack, thread, &body).await, 202);
    stack::found(|| (pieces.0.load(Ordering::Relaxed) >= 2).then_some(())).await;
    stack
}

#[tokio::test]
async fn a_text_over_http_ends_the_running_response_and_the_same_text_again_does_not() {
    let stack = begun("t1").await;
    let started = Instant::now();
    let again = json!({"text": "slow 800 zzz", "dedup_id": "long"});
    assert_eq!(say(&stack, "t1", &again).await, 202, "a client that sends it again");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(stack.story("t1").await.is_empty(), "the answer to it goes on");
    assert_eq!(say(&stack, "t1", &json!({"text": "say never mind"})).await, 202);
    let story = stack.story_ending("t1", "assistant: never mind").await;
    assert!(started.elapsed() < LONG / 2, "{:?}", started.elapsed());
    assert_eq!((story[0].as_str(), story[2].as_str()), ("user: slow 800 zzz", "user: say never mind"));
    assert!(story[1].starts_with("assistant: zzz zzz"), "what was visible is kept: {story:?}");
    assert_eq!(story.len(), 4);
}

#[tokio::test]
async fn a_text_of_another_thread_or_from_inside_ends_nothing_and_one_through_the_system_does() {
    let stack = begun("t1").await;
    let started = Instant::now();
    let input = stack.system.input();
    let to = |thread: &str, text: &str| InputMessage::user_text(ThreadId::from(thread), text);
    input.send(&to("t2", "say other"), &DedupId::from("d-1")).await.unwrap();
    stack.story_ending("t2", "assistant: other").await;
    assert!(stack.story("t1").await.is_empty());
    input.send(&to("t1", "say done"), &DedupId::from("d-2")).await.unwrap();
    let story = stack.story_ending("t1", "assistant: done").await;
    assert!(started.elapsed() < LONG / 2 && story[1].starts_with("assistant: zzz"), "{story:?}");
}
