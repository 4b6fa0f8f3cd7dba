//! The real worker binary against a stand-in for the Lambda Runtime API, and killed with SIGKILL in mid-slice. The
//! queue and the table are the embedded ones and outlive it; its message comes back with a higher receive count, to
//! a new process. `crash_table.rs` has every row of the table in one process.
//!
//! Nothing in the binary knows of these tests: it is held where it is to be killed by what it speaks to.

#![cfg(feature = "local")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/cloud.rs"]
mod cloud;
#[path = "support/gates.rs"]
mod gates;
#[path = "support/lambda.rs"]
mod lambda;
#[path = "support/world.rs"]
mod world;

use std::time::{Duration, Instant};

use aws_sdk_sqs::types::Message;
use cloud::{Came, Cloud, THREAD, event, failed, receives};
use dormouse::message::{InputMessage, ThreadId};
use gates::until;
use lambda::{Kind, Worker};
use serde_json::json;

/// After the last sign of life: long enough to be in the stream, short enough to be before its end.
const INTO_THE_STREAM: Duration = Duration::from_millis(300);
/// One second of stream, and its text.
const SLOW: &str = "slow 20 x";

fn commits(operation: &str) -> bool {
    operation.ends_with(".TransactWriteItems")
}

fn text_to(thread: &str, text: &str) -> String {
    InputMessage::user_text(ThreadId::from(thread), text).to_body().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_two_threads_is_answered_stored_and_published() {
    let cloud = Cloud::start().await;
    let mut worker = cloud.worker().await;
    cloud.says("say hello").await;
    cloud.queues("th-2", &text_to("th-2", "say other")).await;
    let mut messages = cloud.receive().await;
    if messages.len() == 1 {
        messages.extend(cloud.receive().await);
    }
    let answer = worker.invoke(&event(&messages)).await;
    assert_eq!((answer.kind, &answer.body), (Kind::Response, &json!({"batchItemFailures": []})));
    cloud.acknowledge(&messages, &answer).await;
    let came = cloud.came().await;
    assert_eq!(came.story, ["user: say hello", "assistant: hello"]);
    assert_eq!(came.texts, ["hello", "other"]);
    assert_eq!(came.dead, 0, "and nothing is left in the queue: {}", worker.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_a_record_that_can_never_be_read_is_put_aside_and_one_of_a_newer_version_is_handed_back() {
    let cloud = Cloud::start().await;
    let mut worker = cloud.worker().await;
    // The parser's complaint quotes the text: it is for the operator, who has the body, and not for the log (D35).
    cloud.queues(THREAD, &json!({"content": "private words", "group_id": THREAD}).to_string()).await;
    cloud.run(&mut worker).await;
    let dead = cloud.drain(&cloud.aws.dead_letter_queue_url()).await;
    assert!(dead.len() == 1 && dead[0].contains("not an InputMessage") && dead[0].contains("private words"));
    assert!(
        worker.log().contains("malformed") && !worker.log().contains("private words"),
        "{}",
        worker.log()
    );

    cloud.queues(THREAD, r#"{"schema":2,"what":"ever"}"#).await;
    cloud.says("say behind").await;
    let messages = cloud.receive().await;
    let started = Instant::now();
    let answer = worker.invoke(&event(&messages)).await;
    assert_eq!(failed(&answer), [messages[0].message_id().unwrap()]);
    cloud.acknowledge(&messages, &answer).await;
    // Its own visibility is two minutes: the worker has asked for a second. What is behind it keeps its place.
    let mut again = cloud.peek().await;
    assert!(again.is_empty() || started.elapsed() >= Duration::from_secs(1), "at once");
    if again.is_empty() {
        again = cloud.receive().await;
    }
    assert_eq!((again.len(), again[0].message_id(), receives(&again[0])), (1, messages[0].message_id(), "2"));
    assert!(cloud.story().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_sqs_event_is_an_error_of_the_invocation_and_the_same_process_serves_the_next() {
    let cloud = Cloud::start().await;
    let mut worker = cloud.worker().await;
    let process = worker.process();
    for malformed in [json!({"nothing": 1}), json!({"Records": "none"}), json!("text"), json!(null)] {
        let answer = worker.invoke(&malformed).await;
        assert_eq!(answer.kind, Kind::Error, "{malformed}: {answer:?}");
        let error_type = answer.body["errorType"].as_str().unwrap();
        assert!(error_type.contains("DeserializeError"), "{malformed}: {error_type}");
    }
    // Fields that AWS may add, and those that it may leave out.
    let answer = worker.invoke(&json!({"Records": [], "new": {"field": 1}})).await;
    assert_eq!((answer.kind, answer.body), (Kind::Response, json!({"batchItemFailures": []})));
    cloud.says("say next").await;
    cloud.run(&mut worker).await;
    assert_eq!(cloud.story().await, ["user: say next", "assistant: next"]);
    assert_eq!(worker.process(), process);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callback_wakes_the_thread_and_a_repeated_one_changes_nothing() {
    let cloud = Cloud::start().await;
    let mut worker = cloud.worker().await;
    cloud.says(r#"call note_a {"x":1.0}"#).await;
    cloud.run(&mut worker).await;
    assert_eq!(cloud.tools.calls("note_a")[0]["arguments"].to_string(), r#"{"x":1.0}"#);
    assert_eq!(cloud.answers("note_a", "sunny").await, 200);
    cloud.run(&mut worker).await;
    assert_eq!(cloud.answers("note_a", "rainy").await, 200);
    cloud.says("say done").await;
    for _ in 0..2 {
        if cloud.story().await.len() < 6 {
            cloud.run(&mut worker).await;
        }
    }
    let story = cloud.story().await;
    assert_eq!(
        story[2..],
        ["result: sunny", "assistant: result: sunny", "user: say done", "assistant: done"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_without_its_settings_ends_and_says_which_one_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let settings = [("DORMOUSE_MODEL", "scripted".to_owned())];
    let mut worker = Worker::start(&settings, &dir.path().join("log")).await;
    let (succeeded, log) = worker.ended().await;
    assert!(!succeeded && log.contains("aws.callback_keys_secret"), "{log}");
}

/// SIGKILLs the process in the invocation of `messages`, which are then delivered to a new one.
async fn killed(cloud: &Cloud, worker: Worker, messages: &[Message]) -> Worker {
    worker.kill().await;
    cloud.dynamodb.open();
    cloud.sqs.open();
    *cloud.tools.holds.lock().unwrap() = None;
    cloud.time_out(messages).await;
    let mut worker = cloud.worker().await;
    let again = cloud.run(&mut worker).await;
    assert_eq!((again[0].message_id(), receives(&again[0])), (messages[0].message_id(), "2"));
    worker
}

/// Two calls, their results, and a question about all of it. `first` gets the first message done.
async fn calls(cloud: &Cloud, first: impl AsyncFnOnce(Worker) -> Worker) -> Came {
    let worker = cloud.worker().await;
    cloud.says("both note_a {} note_b {}").await;
    let mut worker = first(worker).await;
    for (operation, text) in [("note_a", "A"), ("note_b", "B")] {
        assert_eq!(cloud.answers(operation, text).await, 200);
        cloud.run(&mut worker).await;
    }
    cloud.says("seen").await;
    cloud.run(&mut worker).await;
    let came = cloud.came().await;
    assert_one_id(cloud);
    assert_eq!(came.dedup.len(), 4, "one for each input: {:?}", came.dedup);
    assert_eq!(came.story.len(), 8, "{:?}", came.story);
    came
}

async fn unkilled_calls() -> Came {
    let cloud = Cloud::start().await;
    calls(&cloud, async |mut worker| {
        cloud.run(&mut worker).await;
        worker
    })
    .await
}

/// Each operation was invoked this often so far, always under one id. (What was received more than once may be sent
/// again by a later slice too: it is never sure that such a message did not die.)
fn assert_invoked(cloud: &Cloud, times: [usize; 2]) {
    for (operation, times) in ["note_a", "note_b"].into_iter().zip(times) {
        assert_eq!(cloud.tools.calls(operation).len(), times, "{operation}");
    }
    assert_one_id(cloud);
}

fn assert_one_id(cloud: &Cloud) {
    for operation in ["note_a", "note_b"] {
        let calls = cloud.tools.calls(operation);
        let same = |it: &serde_json::Value| {
            it["id"] == calls[0]["id"] && it["callback_url"] == calls[0]["callback_url"]
        };
        assert!(calls.iter().all(same), "{calls:?}");
    }
}

/// One answer to a slow text and one to the next. `first` gets the first message done.
async fn slow(cloud: &Cloud, first: impl AsyncFnOnce(Worker) -> Worker) -> Came {
    let worker = cloud.worker().await;
    cloud.says(SLOW).await;
    let mut worker = first(worker).await;
    cloud.says("seen").await;
    cloud.run(&mut worker).await;
    cloud.came().await
}

#[tokio::test(flavor = "multi_thread")]
async fn sigkill_while_the_model_streams_stores_nothing_and_the_model_is_asked_again() {
    let expected = Cloud::start().await;
    let expected = slow(&expected, async |mut worker| {
        expected.run(&mut worker).await;
        worker
    })
    .await;
    let cloud = Cloud::start().await;
    let came = slow(&cloud, async |mut worker| {
        // Should this machine be so slow that the stream ends before the kill, its commit does not get through.
        cloud.dynamodb.hold(|operation, _| commits(operation));
        let messages = cloud.receive().await;
        worker.begin(&event(&messages)).await;
        until("it looks for tools", || cloud.tools.looked_at.load(std::sync::atomic::Ordering::Relaxed) > 0)
            .await;
        tokio::time::sleep(INTO_THE_STREAM).await;
        let worker = killed(&cloud, worker, &messages).await;
        assert_eq!(cloud.story().await.len(), 2);
        let published = cloud.published().await;
        assert!(published.values().all(|texts| texts.len() == 1), "nothing was out before: {published:?}");
        worker
    })
    .await;
    assert_eq!(came, expected);
    assert_eq!(came.dedup.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn sigkill_between_the_commit_and_the_first_dispatch_resumes_the_outbox() {
    let expected = unkilled_calls().await;
    let cloud = Cloud::start().await;
    let came = calls(&cloud, async |mut worker| {
        // The output of a step leaves after its commit and before its calls.
        cloud
            .sqs
            .hold(|operation, body| operation.ends_with(".SendMessage") && body.contains("dormouse-output"));
        let messages = cloud.receive().await;
        worker.begin(&event(&messages)).await;
        until("it publishes", || cloud.sqs.held() > 0).await;
        assert_eq!(cloud.story().await.len(), 3, "the step is stored");
        assert_invoked(&cloud, [0, 0]);
        let worker = killed(&cloud, worker, &messages).await;
        assert_invoked(&cloud, [1, 1]);
        worker
    })
    .await;
    assert_eq!(came, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn sigkill_between_two_dispatches_sends_both_under_their_ids() {
    let expected = unkilled_calls().await;
    for (held, out, times) in [("note_b", "note_a", [2, 1]), ("note_a", "note_b", [1, 2])] {
        let cloud = Cloud::start().await;
        let came = calls(&cloud, async |mut worker| {
            *cloud.tools.holds.lock().unwrap() = Some(held);
            let messages = cloud.receive().await;
            worker.begin(&event(&messages)).await;
            until("one is out and one is not", || {
                let held = cloud.tools.held.load(std::sync::atomic::Ordering::Relaxed);
                held > 0 && !cloud.tools.calls(out).is_empty()
            })
            .await;
            let worker = killed(&cloud, worker, &messages).await;
            assert_invoked(&cloud, times);
            worker
        })
        .await;
        assert_eq!(came, expected, "{held} was held");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sigkill_after_dispatch_before_the_acknowledgement_sends_once_more_under_the_same_ids() {
    let expected = unkilled_calls().await;
    let cloud = Cloud::start().await;
    let came = calls(&cloud, async |mut worker| {
        worker.hold_answers();
        let messages = cloud.receive().await;
        let answer = worker.invoke(&event(&messages)).await;
        assert!(answer.kind == Kind::Response && failed(&answer).is_empty(), "{answer:?}");
        assert_invoked(&cloud, [1, 1]);
        let worker = killed(&cloud, worker, &messages).await;
        assert_invoked(&cloud, [2, 2]);
        let published = cloud.published().await;
        assert!(published.len() == 1 && published.values().all(|texts| texts.len() == 2), "{published:?}");
        worker
    })
    .await;
    assert_eq!(came, expected);
}

/// A call that the user interrupts. `second` gets the interrupting message done.
async fn interrupt(cloud: &Cloud, second: impl AsyncFnOnce(Worker) -> Worker) -> Came {
    let mut worker = cloud.worker().await;
    cloud.says("call note_a {}").await;
    cloud.run(&mut worker).await;
    cloud.says(SLOW).await;
    let mut worker = second(worker).await;
    // The tool did not hear that nobody waits.
    assert_eq!(cloud.answers("note_a", "late").await, 200);
    cloud.run(&mut worker).await;
    cloud.came().await
}

#[tokio::test(flavor = "multi_thread")]
async fn sigkill_between_the_barrier_and_the_model_finds_the_marker_and_does_not_repeat_it() {
    let expected = Cloud::start().await;
    let expected = interrupt(&expected, async |mut worker| {
        expected.run(&mut worker).await;
        worker
    })
    .await;
    let cloud = Cloud::start().await;
    let came = interrupt(&cloud, async |mut worker| {
        let mut barrier = true;
        cloud.dynamodb.hold(move |operation, _| commits(operation) && !std::mem::take(&mut barrier));
        let messages = cloud.receive().await;
        worker.begin(&event(&messages)).await;
        // The notice leaves after the barrier, and the model is asked after it.
        until("the tool hears of the interrupt", || !cloud.tools.cancelled.lock().unwrap().is_empty()).await;
        tokio::time::sleep(INTO_THE_STREAM).await;
        assert_eq!(cloud.story().await[1..], ["call: note_a {}", "interrupt"]);
        killed(&cloud, worker, &messages).await
    })
    .await;
    assert_eq!(came.story.iter().filter(|line| *line == "interrupt").count(), 1);
    assert_eq!(came, expected);
}

/// Gets the next message done after three processes were killed over it, each a little later than the one before.
/// Fewer than the attempts after which a message is given up.
async fn killed_thrice(cloud: &Cloud, mut worker: Worker, first: Duration) -> Worker {
    for kill in 0..3 {
        let messages = cloud.receive().await;
        worker.begin(&event(&messages)).await;
        if let Some(answer) = worker.answer_within(first + kill * Duration::from_millis(20)).await {
            cloud.acknowledge(&messages, &answer).await;
            return worker;
        }
        worker.kill().await;
        cloud.time_out(&messages).await;
        worker = cloud.worker().await;
    }
    cloud.run(&mut worker).await;
    worker
}

#[tokio::test(flavor = "multi_thread")]
async fn sigkill_at_any_moment_again_and_again_changes_nothing_of_what_comes_out() {
    let expected = unkilled_calls().await;
    let cloud = Cloud::start().await;
    let mut worker = cloud.worker().await;
    cloud.says("both note_a {} note_b {}").await;
    worker = killed_thrice(&cloud, worker, Duration::from_millis(60)).await;
    for (operation, text, first) in [("note_a", "A", 5), ("note_b", "B", 20)] {
        assert_eq!(cloud.answers(operation, text).await, 200);
        worker = killed_thrice(&cloud, worker, Duration::from_millis(first)).await;
    }
    cloud.says("seen").await;
    killed_thrice(&cloud, worker, Duration::from_millis(35)).await;
    assert_eq!(cloud.came().await, expected);
    assert_one_id(&cloud);
}
