//! The SQS adapters against an endpoint that speaks the AWS JSON protocol and keeps what it is asked: what goes
//! over the wire, how failures are classed, and that nothing is sent that SQS would refuse.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "support/rap.rs"]
mod support;

use std::sync::Arc;

use aws_sdk_sqs::config::{BehaviorVersion, Credentials, Region};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use dormouse::message::{
    CallId, ContentPart, DedupId, InputContent, InputMessage, OutputKind, OutputMessage, RawJson, ThreadId,
};
use dormouse::queue::sqs::{MAX_BODY_BYTES, SqsDeadLetters, SqsInput, SqsOutput};
use dormouse::queue::{DeadLetters, InputSender, MAX_INLINE_INPUT, OutputSender, QueueError};
use dormouse::store::ConversationStore;
use dormouse::store::memory::MemoryStore;
use serde_json::{Value, json};
use support::{Answer, FakeServer, StoreDown, dead_url};

const QUEUE: &str = "http://sqs.example/1/input.fifo";

/// A client as [`dormouse::queue::sqs::client`] makes it, with an endpoint and made-up credentials.
fn client(endpoint: &str) -> aws_sdk_sqs::Client {
    let shared = aws_config::SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("eu-central-1"))
        .endpoint_url(endpoint)
        .credentials_provider(aws_sdk_sqs::config::SharedCredentialsProvider::new(Credentials::new(
            "id", "secret", None, None, "test",
        )))
        .build();
    dormouse::queue::sqs::client(&shared)
}

fn answer(status: u16, body: Value) -> Answer {
    let headers = [("content-type", "application/x-amz-json-1.0")];
    Answer::Now((StatusCode::from_u16(status).unwrap(), headers, body.to_string()).into_response())
}

async fn accepting() -> FakeServer {
    FakeServer::start(|_, _| answer(200, json!({"MessageId": "m-1", "MD5OfMessageBody": "x"}))).await
}

fn result(text: &str) -> InputMessage {
    InputMessage::tool_result(ThreadId::from("th-1"), CallId::from("c-1"), vec![ContentPart::text(text)])
}

/// SQS's character set.
fn fits_sqs(body: &str) -> bool {
    body.chars().all(|c| matches!(c, '\t' | '\n' | '\r' | '\u{20}'..='\u{FFFD}' | '\u{10000}'..))
}

#[tokio::test]
async fn rap_15_f32_d38_an_input_goes_out_under_its_thread_and_dedup_id_within_the_character_set() {
    let sqs = accepting().await;
    let input = SqsInput::new(client(&sqs.url), QUEUE, Arc::new(MemoryStore::new()));
    let message = result("x\u{0}\u{7}\u{FFFE}\u{FFFF}y😀");
    input.send(&message, &DedupId::from("d-1")).await.unwrap();
    let seen = sqs.seen().remove(0);
    assert_eq!(seen.headers["x-amz-target"], "AmazonSQS.SendMessage");
    let request = seen.json();
    assert_eq!(request["QueueUrl"], QUEUE);
    assert_eq!(request["MessageGroupId"], "th-1");
    assert_eq!(request["MessageDeduplicationId"], "d-1");
    let body = request["MessageBody"].as_str().unwrap();
    assert!(fits_sqs(body));
    assert_eq!(InputMessage::parse(body.as_bytes()).unwrap(), message);
}

#[tokio::test]
async fn f36_d18_a_large_input_goes_by_claim_check_under_the_same_ids() {
    let sqs = accepting().await;
    let store = MemoryStore::new();
    let input = SqsInput::new(client(&sqs.url), QUEUE, Arc::new(store.clone()));
    let small = result(&"a".repeat(MAX_INLINE_INPUT - 500));
    input.send(&small, &DedupId::from("d-0")).await.unwrap();
    for bytes in [MAX_INLINE_INPUT, 399_000, 400_000, 401_000, 1_200_000, 4_000_000] {
        let message = result(&"\u{1}".repeat(bytes / 6));
        input.send(&message, &DedupId::from("d-1")).await.unwrap();
        let request = sqs.seen().pop().unwrap().json();
        let ids = (request["MessageGroupId"].as_str(), request["MessageDeduplicationId"].as_str());
        assert_eq!(ids, (Some("th-1"), Some("d-1")));
        let body = request["MessageBody"].as_str().unwrap();
        assert!(body.len() < 1_000);
        let sent = InputMessage::parse(body.as_bytes()).unwrap();
        let InputContent::ClaimCheck(claim) = sent.content else { panic!("{sent:?}") };
        let kept = store.claim(&claim.digest).await.unwrap().unwrap();
        assert_eq!(InputMessage::parse(kept.as_bytes()).unwrap(), message);
    }
    let first = sqs.seen().remove(0).json();
    assert!(first["MessageBody"].as_str().unwrap().len() > 200_000, "what fits goes whole");
    // A store that cannot keep the body: nothing is sent that would point nowhere.
    let sent = sqs.seen().len();
    let input = SqsInput::new(client(&sqs.url), QUEUE, Arc::new(StoreDown));
    let error = input.send(&result(&"a".repeat(300_000)), &DedupId::from("d-2")).await.unwrap_err();
    assert!(matches!(error, QueueError::Unavailable(_)), "{error}");
    assert_eq!(sqs.seen().len(), sent);
}

#[tokio::test]
async fn an_id_that_sqs_cannot_carry_is_refused_before_anything_is_sent() {
    let sqs = accepting().await;
    let input = SqsInput::new(client(&sqs.url), QUEUE, Arc::new(MemoryStore::new()));
    for thread in ["", "a b", "größe", &"t".repeat(129)] {
        let error = input
            .send(&InputMessage::user_text(ThreadId::from(thread), "x"), &DedupId::from("d"))
            .await
            .unwrap_err();
        assert!(matches!(&error, QueueError::Refused(text) if text.contains("thread id")), "{error}");
    }
    let message = InputMessage::user_text(ThreadId::from("t"), "x");
    let error = input.send(&message, &DedupId::new("d".repeat(129))).await.unwrap_err();
    assert!(matches!(&error, QueueError::Refused(text) if text.contains("dedup id")), "{error}");
    assert_eq!(sqs.seen().len(), 0);
}

#[tokio::test]
async fn failures_are_classed_by_whether_they_pass_and_repeated_in_place_a_bounded_number_of_times() {
    let failing = async |status: u16, code: &'static str| {
        let body = move || json!({"__type": format!("com.amazonaws.sqs#{code}"), "message": "why"});
        let sqs = FakeServer::start(move |_, _| answer(status, body())).await;
        let error = SqsOutput::new(client(&sqs.url), QUEUE).send(&output("x")).await.unwrap_err();
        (error, sqs.seen().len())
    };
    for (status, code) in [(500, "InternalError"), (503, "ServiceUnavailable"), (400, "RequestThrottled")] {
        let (error, attempts) = failing(status, code).await;
        assert!(matches!(error, QueueError::Unavailable(_)), "{code}: {error}");
        assert!((1..=3).contains(&attempts), "{code}: {attempts}");
    }
    for (status, code) in [(400, "QueueDoesNotExist"), (403, "AccessDenied"), (400, "InvalidMessageContents")]
    {
        let (error, attempts) = failing(status, code).await;
        assert!(matches!(&error, QueueError::Refused(text) if text.contains(code)), "{error}");
        assert_eq!(attempts, 1, "{code}");
    }
    let gone = SqsOutput::new(client(&dead_url().await), QUEUE).send(&output("x")).await.unwrap_err();
    assert!(matches!(gone, QueueError::Unavailable(_)), "{gone}");
    // One failure in between is not seen at all.
    let sqs = FakeServer::start(|_, before| match before {
        0 => answer(500, json!({"__type": "com.amazonaws.sqs#InternalError"})),
        _ => answer(200, json!({"MessageId": "m-1"})),
    })
    .await;
    SqsOutput::new(client(&sqs.url), QUEUE).send(&output("x")).await.unwrap();
    assert_eq!(sqs.seen().len(), 2);
}

fn output(text: &str) -> OutputMessage {
    OutputMessage {
        kind: OutputKind::TEXT,
        text: text.into(),
        metadata: RawJson::parse(r#"{"channel":"x"}"#).unwrap(),
        message_id: "m-1".into(),
        thread_id: ThreadId::from("th-1"),
    }
}

#[tokio::test]
async fn output_is_a_plain_message_and_a_text_above_the_limit_says_that_it_was_cut() {
    let sqs = accepting().await;
    let out = SqsOutput::new(client(&sqs.url), "http://sqs.example/1/output");
    out.send(&output("hi \u{FFFF}")).await.unwrap();
    out.send(&output(&"é".repeat(700_000))).await.unwrap();
    let seen = sqs.seen();
    let (small, large) = (seen[0].json(), seen[1].json());
    assert!(small.get("MessageGroupId").is_none() && small.get("MessageDeduplicationId").is_none());
    assert!(fits_sqs(small["MessageBody"].as_str().unwrap()));
    let body = large["MessageBody"].as_str().unwrap();
    assert!(body.len() <= MAX_BODY_BYTES);
    let read: OutputMessage = serde_json::from_str(body).unwrap();
    assert!(read.text.ends_with("can be]") && read.text.starts_with("éé"));
    assert_eq!((read.message_id.as_str(), read.metadata.get()), ("m-1", r#"{"channel":"x"}"#));
}

#[tokio::test]
async fn f55_a_dead_letter_keeps_reason_and_body_also_a_large_one() {
    let sqs = accepting().await;
    let store = MemoryStore::new();
    let letters =
        SqsDeadLetters::new(client(&sqs.url), "http://sqs.example/1/dead.fifo", Arc::new(store.clone()));
    let thread = ThreadId::from("th-1");
    letters.keep(&thread, "m-1", "not json \u{FFFE}", "it is not JSON").await.unwrap();
    letters.keep(&thread, "m-1", "not json \u{FFFE}", "it is not JSON").await.unwrap();
    let large = "\"".repeat(1_000_000);
    letters.keep(&thread, "m-2", &large, "it is not JSON").await.unwrap();
    let requests: Vec<Value> = sqs.seen().iter().map(|seen| seen.json()).collect();
    let body = |request: &Value| {
        let text = request["MessageBody"].as_str().unwrap();
        assert!(fits_sqs(text) && text.len() <= MAX_BODY_BYTES);
        serde_json::from_str::<Value>(text).unwrap()
    };
    assert_eq!(
        body(&requests[0]),
        json!({"reason": "it is not JSON", "message_id": "m-1", "thread": "th-1", "body": "not json \u{FFFE}"})
    );
    assert_eq!(requests[0]["MessageGroupId"], "th-1");
    let dedup = |request: &Value| request["MessageDeduplicationId"].as_str().unwrap().to_owned();
    assert_eq!(dedup(&requests[0]), dedup(&requests[1]), "kept once whatever the number of deliveries");
    assert_ne!(dedup(&requests[0]), dedup(&requests[2]));
    let kept = body(&requests[2]);
    assert_eq!(kept["body"].as_str().unwrap().len(), 1_000);
    assert_eq!(store.claim(kept["claim"].as_str().unwrap()).await.unwrap().unwrap(), large);
}
