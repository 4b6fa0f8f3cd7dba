//! Waiting: sleeps as the slice sees them, the relay, and the delay queue and Scheduler over the wire.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/rap.rs"]
mod peer;
#[path = "support/timers.rs"]
mod timers;
#[path = "support/world.rs"]
mod world;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_lambda_events::event::sqs::{SqsEvent, SqsMessage};
use aws_sdk_sqs::config::{Credentials, SharedCredentialsProvider};
use axum::http::{Method, StatusCode};
use axum::response::IntoResponse;
use dormouse::message::{CallId, ContentPart, DedupId, InputContent, InputMessage, Synthetic, ThreadId};
use dormouse::model::scripted::{ScriptedEvent, ScriptedModel};
use dormouse::queue::delay::{Delayed, SqsDelay};
use dormouse::queue::scheduler::{SchedulerTimers, Schedules};
use dormouse::queue::{InputSender, QueueError, TimerSender};
use dormouse::slice::SystemClock;
use dormouse::slice::relay::Relay;
use dormouse::tools::{Registry, builtin};
use jiff::Timestamp;
use peer::{Answer, FakeServer};
use serde_json::{Value, json};
use timers::Timers;
use world::{Delivery, NOW_MS, THREAD, World};

fn text(text: &str) -> Vec<ScriptedEvent> {
    vec![ScriptedEvent::Text(text.into()), ScriptedEvent::End("end_turn".into())]
}

fn call(name: &str, arguments: &str) -> Vec<ScriptedEvent> {
    vec![ScriptedEvent::call("p", name, arguments), ScriptedEvent::End("tool_use".into())]
}

/// A world whose tools wait, and one that works.
fn world(responses: Vec<Vec<ScriptedEvent>>) -> (World, Arc<Timers>) {
    let timers = Arc::new(Timers::default());
    let mut world = World::new(ScriptedModel::script(responses));
    let echo = world.registry.get("echo").unwrap().clone();
    world.runtime.tools =
        Arc::new(Registry::new(builtin::waiting(Some(timers.clone())).into_iter().chain([echo])));
    (world, timers)
}

/// What a timer's message is when the queue hands it out.
fn fired(world: &World, (_, message, dedup): &(i64, InputMessage, DedupId)) -> Delivery {
    Delivery { dedup: dedup.as_str().to_owned(), ..world.message(message) }
}

fn result_of(call: &CallId, text: &str) -> InputMessage {
    InputMessage::tool_result(ThreadId::from(THREAD), call.clone(), vec![ContentPart::text(text)])
}

// In the slice.

#[tokio::test]
async fn a_sleep_sets_a_timer_after_its_commit_and_the_wake_up_goes_on() {
    let (world, timers) =
        world(vec![call("sleep", r#"{"seconds":2.5,"reason":"tea"}"#), text("good morning")]);
    let before = Timestamp::now().as_millisecond();
    world.done(&world.user("hi")).await;
    let set = timers.all();
    assert_eq!(set.len(), 1);
    let slept = set[0].0 - before;
    assert!((3_000..33_000).contains(&slept), "{slept}");
    assert_eq!(world.pending().await.len(), 1);
    world.done(&fired(&world, &set[0])).await;
    assert_eq!(
        world.story().await[2..],
        ["result: The time is up: 3 seconds have passed.", "assistant: good morning"]
    );
    assert!(world.pending().await.is_empty());
}

#[tokio::test]
async fn i2_a_timer_that_is_set_or_fires_twice_wakes_once() {
    let (world, timers) = world(vec![call("sleep", r#"{"seconds":0}"#), text("up"), text("never")]);
    let hi = world.user("hi");
    // The output fails behind the commit: the redelivered message sends the outbox again.
    *world.output.failures.lock().unwrap() = 1;
    assert_eq!(world.deliver(std::slice::from_ref(&hi)).await.len(), 1);
    world.done(&hi.again()).await;
    world.done(&fired(&world, &timers.all()[0])).await;
    // Later than the queue remembers, under another message id.
    world.done(&fired(&world, &timers.all()[0])).await;
    let ids: Vec<_> = timers.all().into_iter().map(|(_, _, dedup)| dedup).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!(world.story().await.len(), 4, "{:?}", world.story().await);
    assert_eq!(world.model.calls(), 2);
}

#[tokio::test]
async fn f65_user_text_interrupts_a_sleep_and_its_late_wake_up_is_a_note_that_asks_nobody() {
    let (world, timers) = world(vec![call("sleep", r#"{"seconds":60}"#), text("yes?"), text("indeed")]);
    world.done(&world.user("hi")).await;
    world.done(&world.user("wake up")).await;
    assert_eq!(world.story().await[2..], ["interrupt", "user: wake up", "assistant: yes?"]);
    world.done(&fired(&world, &timers.all()[0])).await;
    let story = world.story().await;
    assert!(
        story[5].contains("late result of sleep") && story[5].ends_with("60 seconds have passed."),
        "{story:?}"
    );
    assert_eq!(world.model.calls(), 2, "a note asks nobody");
    world.done(&world.user("still there?")).await;
    assert_eq!(world.story().await.last().unwrap(), "assistant: indeed");
}

#[tokio::test]
async fn a_sleep_does_not_defer_an_event() {
    for wait in ["sleep", "sleep_until_event_or_input"] {
        let (world, timers) = world(vec![call("echo", "{}"), call(wait, r#"{"seconds":60}"#), text("heard")]);
        world.done(&world.user("hi")).await;
        let subscribed = world.tools.calls()[0].clone();
        let mut result = result_of(&subscribed, "watching");
        result.subscription = true;
        world.done(&world.message(&result)).await;
        assert_eq!(timers.all().len(), usize::from(wait == "sleep"), "the other sets no timer");
        let mut event = result_of(&subscribed, "news");
        event.synthetic = Some(Synthetic::SubscriptionEvent {
            tool_call_id: subscribed.clone(),
            associative: true,
            r#final: false,
        });
        world.done(&world.message(&event)).await;
        let story = world.story().await;
        assert_eq!(story[story.len() - 2..], ["event: news", "assistant: heard"], "{wait}: {story:?}");
        assert!(world.pending().await.is_empty(), "{wait}: the wait is over");
        // The next request is one that a provider accepts, and says what ended the wait.
        let request = format!("{:?}", world.model.requests().last().unwrap());
        assert!(request.contains(&format!("{wait} was interrupted by an incoming event")), "{request}");
    }
}

#[tokio::test]
async fn waiting_for_input_sets_no_timer_and_ends_with_the_next_text() {
    let (world, timers) = world(vec![call("sleep_until_event_or_input", "{}"), text("hello again")]);
    world.done(&world.user("hi")).await;
    assert_eq!(world.pending().await.len(), 1);
    world.settle().await;
    assert!(timers.all().is_empty());
    world.done(&world.user("now")).await;
    assert_eq!(world.story().await.last().unwrap(), "assistant: hello again");
}

#[tokio::test]
async fn a_sleep_that_cannot_be_is_an_error_that_the_model_reads() {
    let bad = [
        ("sleep", r#"{"seconds":1e300}"#, "Error: seconds must be a number of at most 31622400"),
        ("sleep", r#"{"seconds":"soon"}"#, "Error: the arguments do not fit"),
        ("sleep", "{}", "Error: the arguments do not fit"),
        ("sleep_until", r#"{"date":"2026-02-30","time":"10:00"}"#, "Error: \"2026-02-30\" is not a date"),
        (
            "sleep_until",
            r#"{"date":"2026-03-01","time":"10:00","timezone":"Mars"}"#,
            "Error: there is no time zone",
        ),
    ];
    for (name, arguments, says) in bad {
        let (world, timers) = world(vec![call(name, arguments), text("I see")]);
        world.done(&world.user("hi")).await;
        world.settle().await;
        let story = world.story().await;
        assert!(story[2].starts_with(&format!("result: {says}")), "{name} {arguments}: {story:?}");
        assert_eq!(story[3], "assistant: I see");
        assert!(timers.all().is_empty());
    }
    let (world, timers) = world(vec![call("sleep", r#"{"seconds":1}"#), text("I see")]);
    *timers.fails.lock().unwrap() = Some(QueueError::Refused);
    world.done(&world.user("hi")).await;
    world.settle().await;
    assert_eq!(world.story().await[2..], ["result: Error: the timer could not be set", "assistant: I see"]);
}

#[test]
fn without_a_delay_queue_only_the_wait_that_needs_none_is_offered() {
    let names: Vec<_> = builtin::waiting(None).iter().map(|tool| tool.definition().name.clone()).collect();
    assert_eq!(names, ["sleep_until_event_or_input"]);
}

// The relay.

fn relay(world: &World, timers: &Arc<Timers>, input: Arc<dyn InputSender>) -> Relay {
    Relay {
        queue_name: "dormouse-delay".to_owned(),
        input,
        timers: timers.clone(),
        dead_letters: world.dead.clone(),
        redelivery: world.delays.clone(),
        clock: world.runtime.clock.clone(),
    }
}

fn delayed(due_ms: i64) -> Delayed {
    Delayed::new(due_ms, &result_of(&CallId::from("c-1"), "up"), &DedupId::from("timer-1")).unwrap()
}

fn record(body: &str, receives: u32) -> SqsEvent {
    let mut record = SqsMessage::default();
    record.message_id = Some("m-1".to_owned());
    record.receipt_handle = Some("handle".to_owned());
    record.body = Some(body.to_owned());
    record.attributes.insert("ApproximateReceiveCount".to_owned(), receives.to_string());
    record.event_source_arn = Some("arn:aws:sqs:eu-central-1:1:dormouse-delay".to_owned());
    let mut event = SqsEvent::default();
    event.records = vec![record];
    event
}

#[tokio::test]
async fn the_relay_forwards_what_is_due_and_puts_back_what_is_not() {
    let (world, timers) = world(vec![]);
    let relay = relay(&world, &timers, world.input.clone());
    let event = record(&delayed(NOW_MS).to_body().unwrap(), 1);
    assert!(relay.is_source_of(&event));
    assert!(relay.process_records(event).await.batch_item_failures.is_empty());
    let (message, dedup) = world.input.sent.lock().unwrap().remove(0);
    assert_eq!((message, dedup.as_str()), (result_of(&CallId::from("c-1"), "up"), "timer-1"));
    assert!(timers.all().is_empty());

    let event = record(&delayed(NOW_MS + 1).to_body().unwrap(), 1);
    assert!(relay.process_records(event).await.batch_item_failures.is_empty());
    assert!(world.input.sent.lock().unwrap().is_empty(), "not before its time");
    let set = timers.all();
    assert_eq!((set[0].0, set[0].2.as_str()), (NOW_MS + 1, "timer-1"));

    // As a producer of another runtime writes it: due when it is visible.
    let Delayed { message, .. } = delayed(0);
    let body = json!({"message": message, "group_id": THREAD, "dedup_id": "d", "more": 1}).to_string();
    assert!(relay.process_records(record(&body, 1)).await.batch_item_failures.is_empty());
    assert_eq!(world.input.sent.lock().unwrap()[0].1.as_str(), "d");

    let mut other = record("{}", 1);
    other.records[0].event_source_arn = Some("arn:aws:sqs:eu-central-1:1:dormouse-input.fifo".to_owned());
    assert!(!relay.is_source_of(&other) && !relay.is_source_of(&SqsEvent::default()));
}

#[tokio::test]
async fn i1_what_is_no_timer_is_put_aside_and_what_may_become_one_is_handed_back() {
    let (world, timers) = world(vec![]);
    let relay = relay(&world, &timers, world.input.clone());
    let envelope = |message: &str, group: &str| {
        json!({"message": message, "group_id": group, "dedup_id": "d"}).to_string()
    };
    let hi = InputMessage::user_text(ThreadId::from(THREAD), "hi").to_body().unwrap();
    let rubbish = [
        "rubbish".to_owned(),
        "{}".to_owned(),
        envelope("rubbish", THREAD),
        envelope(&hi, "another"),
        String::new(),
    ];
    for body in &rubbish {
        let failed = relay.process_records(record(body, 1)).await.batch_item_failures;
        assert!(failed.is_empty(), "{body} would come back for ever");
    }
    assert_eq!(world.dead.kept.lock().unwrap().len(), rubbish.len());
    // Kept or handed back, never dropped.
    *world.dead.failures.lock().unwrap() = 1;
    let failed = relay.process_records(record("rubbish", 1)).await.batch_item_failures;
    assert_eq!(failed[0].item_identifier, "m-1");
    assert_eq!(world.delays.set.lock().unwrap().len(), 1, "and soon, not when the queue's visibility ends");
    let newer = envelope(r#"{"schema":99,"content":{"type":"dream"},"group_id":"th-1"}"#, THREAD);
    assert_eq!(relay.process_records(record(&newer, 50)).await.batch_item_failures.len(), 1);
    assert!(world.input.sent.lock().unwrap().is_empty() && timers.all().is_empty());
}

#[tokio::test]
async fn i7_a_timer_that_the_queue_refuses_is_tried_again_and_then_put_aside_with_its_thread() {
    struct Refusing;
    #[async_trait]
    impl InputSender for Refusing {
        async fn send(&self, _: &InputMessage, _: &DedupId) -> Result<(), QueueError> {
            Err(QueueError::Refused("no".to_owned()))
        }
    }
    let (world, timers) = world(vec![]);
    let relay = relay(&world, &timers, Arc::new(Refusing));
    let body = delayed(NOW_MS).to_body().unwrap();
    assert_eq!(relay.process_records(record(&body, 9)).await.batch_item_failures.len(), 1);
    assert!(world.dead.kept.lock().unwrap().is_empty());
    assert!(relay.process_records(record(&body, 10)).await.batch_item_failures.is_empty());
    assert_eq!(world.dead.kept.lock().unwrap().len(), 1);
}

// Over the wire.

fn shared(endpoint: &str) -> SdkConfig {
    SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .endpoint_url(endpoint)
        .credentials_provider(SharedCredentialsProvider::new(Credentials::new(
            "test", "test", None, None, "test",
        )))
        .build()
}

fn answer(status: u16, kind: &str, body: Value) -> Answer {
    let headers = [("content-type", "application/json"), ("x-amzn-errortype", kind)];
    Answer::Now((StatusCode::from_u16(status).unwrap(), headers, body.to_string()).into_response())
}

fn over(endpoint: &str, hop: Duration, queue_arn: &str) -> SchedulerTimers {
    let shared = shared(endpoint);
    let near = SqsDelay::with_hop(dormouse::queue::sqs::client(&shared), format!("{endpoint}/1/delay"), hop);
    let schedules = Schedules {
        group: "dormouse-timers".to_owned(),
        role_arn: "arn:aws:iam::000000000000:role/scheduler".to_owned(),
        delay_queue_arn: queue_arn.to_owned(),
        dead_letter_arn: "arn:aws:sqs:us-east-1:000000000000:timer-dead".to_owned(),
    };
    SchedulerTimers::new(near, dormouse::queue::scheduler::client(&shared), schedules)
}

fn in_seconds(seconds: i64) -> i64 {
    Timestamp::now().as_millisecond() + seconds * 1000
}

const HOP: Duration = Duration::from_secs(900);
const DELAY_ARN: &str = "arn:aws:sqs:us-east-1:000000000000:delay";

#[tokio::test]
async fn a_timer_within_15_minutes_waits_in_the_delay_queue() {
    let aws =
        FakeServer::start(|_, _| answer(200, "", json!({"MessageId": "m", "MD5OfMessageBody": "x"}))).await;
    let timers = over(&aws.url, HOP, DELAY_ARN);
    let message = result_of(&CallId::from("c-1"), "up\u{FFFE}");
    let dedup = DedupId::from("timer-1");
    for (seconds, least, most) in [(-60, 0, 0), (0, 0, 0), (60, 50, 60), (899, 880, 899)] {
        let due = in_seconds(seconds);
        timers.schedule(due, &message, &dedup).await.unwrap();
        let request = aws.seen().pop().unwrap().json();
        let delay = request["DelaySeconds"].as_i64().unwrap();
        assert!((least..=most).contains(&delay), "{seconds}: {delay}");
        assert!(request.get("MessageGroupId").is_none(), "it is a standard queue");
        let body: Delayed = serde_json::from_str(request["MessageBody"].as_str().unwrap()).unwrap();
        assert_eq!(body.due_ms, Some(due));
        assert_eq!(body.input().unwrap(), message);
    }
    assert!(aws.seen().iter().all(|seen| seen.path != "/schedules/timer-1"));
}

#[tokio::test]
async fn d14_a_long_timer_is_a_schedule_that_names_its_call_and_cleans_itself_up() {
    let aws = FakeServer::start(|_, _| answer(200, "", json!({"ScheduleArn": "arn:x"}))).await;
    let timers = over(&aws.url, HOP, DELAY_ARN);
    let message = result_of(&CallId::from("c-1"), "up");
    let dedup = DedupId::derive("timer", &[THREAD, "c-1"]);
    let due = in_seconds(3_600);
    timers.schedule(due, &message, &dedup).await.unwrap();
    let seen = aws.seen().remove(0);
    assert_eq!((seen.method.clone(), seen.path.clone()), (Method::POST, format!("/schedules/{dedup}")));
    let request = seen.json();
    // A minute early: Scheduler knows minutes, the delay queue seconds.
    let fires =
        Timestamp::from_millisecond(due - 60_000).unwrap().strftime("at(%Y-%m-%dT%H:%M:%S)").to_string();
    assert_eq!(request["ScheduleExpression"], fires);
    assert_eq!(request["ScheduleExpressionTimezone"], "UTC");
    assert_eq!(request["FlexibleTimeWindow"], json!({"Mode": "OFF"}));
    assert_eq!(request["ActionAfterCompletion"], "DELETE");
    assert_eq!(request["GroupName"], "dormouse-timers");
    let target = &request["Target"];
    assert_eq!(target["Arn"], DELAY_ARN);
    assert_eq!(target["RoleArn"], "arn:aws:iam::000000000000:role/scheduler");
    assert_eq!(target["DeadLetterConfig"]["Arn"], "arn:aws:sqs:us-east-1:000000000000:timer-dead");
    assert!(target.get("SqsParameters").is_none(), "a standard queue has no groups");
    let body: Delayed = serde_json::from_str(target["Input"].as_str().unwrap()).unwrap();
    assert_eq!((body.due_ms, &body.dedup_id, body.input().unwrap()), (Some(due), &dedup, message.clone()));

    // A dedup id of another producer may not be a name.
    timers.schedule(due, &message, &DedupId::new("a/b".repeat(40))).await.unwrap();
    let name = aws.seen().pop().unwrap().path.trim_start_matches("/schedules/").to_owned();
    assert!(name.len() <= 64 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'), "{name}");
}

#[tokio::test]
async fn a_schedule_that_exists_is_set_and_other_failures_are_classed() {
    let failing = async |status: u16, code: &'static str| {
        let aws = FakeServer::start(move |_, _| answer(status, code, json!({"Message": "why"}))).await;
        let message = result_of(&CallId::from("c-1"), "up");
        let sent =
            over(&aws.url, HOP, DELAY_ARN).schedule(in_seconds(1_000), &message, &DedupId::from("t")).await;
        (sent, aws.seen().len())
    };
    assert!(matches!(failing(409, "ConflictException").await, (Ok(()), 1)));
    for (status, code) in
        [(400, "ValidationException"), (403, "AccessDeniedException"), (404, "ResourceNotFoundException")]
    {
        let (sent, attempts) = failing(status, code).await;
        assert!(matches!(&sent, Err(QueueError::Refused(text)) if text.contains(code)), "{sent:?}");
        assert_eq!(attempts, 1, "{code}");
    }
    for (status, code) in [(500, "InternalServerException"), (429, "ThrottlingException")] {
        let (sent, attempts) = failing(status, code).await;
        assert!(matches!(sent, Err(QueueError::Unavailable(_))), "{code}: {sent:?}");
        assert!((1..=3).contains(&attempts), "{code}: {attempts}");
    }
}

/// A Scheduler that somebody else wrote. It sweeps every ten seconds.
#[tokio::test]
async fn a_schedule_fires_into_the_delay_queue_and_is_gone() {
    let Ok(url) = std::env::var("DORMOUSE_TEST_DYNAMODB_URL") else {
        eprintln!("SKIPPED: DORMOUSE_TEST_DYNAMODB_URL is unset, no test against that peer");
        return;
    };
    let (sqs, scheduler) =
        (dormouse::queue::sqs::client(&shared(&url)), dormouse::queue::scheduler::client(&shared(&url)));
    let name = format!("delay-{}", uuid::Uuid::new_v4().simple());
    let queue = sqs.create_queue().queue_name(&name).send().await.unwrap().queue_url.unwrap();
    // It may exist from a run before.
    let _ = scheduler.create_schedule_group().name("dormouse-timers").send().await;
    let timers = over(&url, Duration::from_secs(2), &format!("arn:aws:sqs:us-east-1:000000000000:{name}"));
    let (message, due) = (result_of(&CallId::from("c-1"), "up"), in_seconds(63));
    let dedup = DedupId::derive("timer", &[&name]);
    for _ in 0..2 {
        timers.schedule(due, &message, &dedup).await.unwrap();
    }
    let find = || scheduler.get_schedule().group_name("dormouse-timers").name(dedup.as_str()).send();
    find().await.unwrap();
    let mut bodies = Vec::new();
    for _ in 0..40 {
        // Short polls: the client's time for an attempt is shorter than a long one.
        let received = sqs.receive_message().queue_url(&queue).send().await.unwrap();
        bodies.extend(received.messages.unwrap_or_default().into_iter().filter_map(|message| message.body));
        if !bodies.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert_eq!(bodies.len(), 1, "set twice, fired once");
    let body: Delayed = serde_json::from_str(&bodies[0]).unwrap();
    assert_eq!((body.due_ms, body.input().unwrap()), (Some(due), message));
    let gone = find().await.unwrap_err();
    assert!(gone.as_service_error().is_some_and(|e| e.is_resource_not_found_exception()), "{gone:?}");
}

#[cfg(feature = "local")]
mod embedded {
    use super::*;
    use dormouse::local::aws::{EmbeddedAws, EmbeddedOptions};
    use dormouse::local::poll::poll_queue;
    use dormouse::queue::sqs::{SqsDeadLetters, SqsInput, SqsRedelivery};
    use dormouse::store::memory::MemoryStore;

    /// A timer longer than one delay, which here is a second: it hops and arrives once, when it is due; and a timer
    /// that was put back is in the queue all the time.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_timer_longer_than_one_delay_hops_until_it_is_due_and_rubbish_is_a_dead_letter() {
        let aws = EmbeddedAws::start(EmbeddedOptions::default()).await.unwrap();
        let client = aws.sqs_client();
        let store = Arc::new(MemoryStore::new());
        let delay = SqsDelay::with_hop(client.clone(), aws.delay_queue_url(), Duration::from_secs(1));
        let relay = Relay {
            queue_name: "dormouse-delay".to_owned(),
            input: Arc::new(SqsInput::new(client.clone(), aws.input_queue_url(), store.clone())),
            timers: Arc::new(delay.clone()),
            dead_letters: Arc::new(SqsDeadLetters::new(client.clone(), aws.dead_letter_queue_url(), store)),
            redelivery: Arc::new(SqsRedelivery::new(client.clone(), aws.delay_queue_url())),
            clock: Arc::new(SystemClock),
        };
        let hops = Arc::new(Mutex::new(0));
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let counted = hops.clone();
        let handler = move |event: SqsEvent| {
            let relay = relay.clone();
            assert!(relay.is_source_of(&event));
            *counted.lock().unwrap() += event.records.len();
            async move { relay.process_records(event).await }
        };
        let polling = tokio::spawn(poll_queue(client.clone(), aws.delay_queue_url(), handler, async {
            let _ = stopped.await;
        }));
        let (message, due) = (result_of(&CallId::from("c-1"), "up"), in_seconds(4));
        delay.schedule(due, &message, &DedupId::from("timer-1")).await.unwrap();
        client.send_message().queue_url(aws.delay_queue_url()).message_body("rubbish").send().await.unwrap();

        let receive = async |url: String| {
            let receiving = client.receive_message().queue_url(url).wait_time_seconds(15);
            receiving.message_system_attribute_names("All".into()).send().await.unwrap().messages.unwrap()
        };
        let woken = receive(aws.input_queue_url()).await;
        assert!(Timestamp::now().as_millisecond() >= due, "not before its time");
        assert_eq!(woken.len(), 1);
        assert_eq!(InputMessage::parse(woken[0].body().unwrap().as_bytes()).unwrap(), message);
        let attributes = woken[0].attributes().unwrap();
        let attribute = |name: &str| attributes[&name.into()].as_str();
        assert_eq!((attribute("MessageGroupId"), attribute("MessageDeduplicationId")), (THREAD, "timer-1"));
        let dead = receive(aws.dead_letter_queue_url()).await;
        assert!(dead[0].body().unwrap().contains("rubbish"));
        stop.send(()).unwrap();
        polling.await.unwrap();
        let hops = *hops.lock().unwrap();
        // The queue looks once a second, so a hop of one may take two.
        assert!((3..=8).contains(&hops), "{hops} messages: hops of a second for four, and the rubbish");
        aws.stop().await;
    }
}

#[test]
fn the_wire_of_the_delay_queue_is_frozen() {
    let message = InputMessage::plain(ThreadId::from("t"), InputContent::Release);
    let body = Delayed::new(1_700_000_000_000, &message, &DedupId::from("d")).unwrap().to_body().unwrap();
    let parsed: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(parsed["group_id"], "t");
    assert_eq!(parsed["dedup_id"], "d");
    assert_eq!(parsed["due_ms"], 1_700_000_000_000_i64);
    assert_eq!(parsed["message"].as_str().unwrap(), message.to_body().unwrap());
    for id in ["", "a b", &"x".repeat(129)] {
        assert!(matches!(Delayed::new(0, &message, &DedupId::from(id)), Err(QueueError::Refused(_))), "{id}");
    }
}
