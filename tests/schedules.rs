//! Recurring schedules: as the slice sees them, and the running binary, killed in between.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[cfg(feature = "local")]
#[path = "support/command.rs"]
mod command;
#[path = "support/world.rs"]
mod world;

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use dormouse::message::{
    CallId, ContentPart, DedupId, Firing, InputMessage, ItemBody, Recurrence, Synthetic, SyntheticReason,
    ThreadId,
};
use dormouse::model::scripted::{ScriptedErrorClass, ScriptedEvent, ScriptedModel, prompts};
use dormouse::queue::{QueueError, TimerSender};
use dormouse::store::memory::CommitFault;
use dormouse::store::{StateStore, Store};
use dormouse::tools::{Registry, builtin};
use jiff::Timestamp;
use serde_json::json;
use world::{Delivery, NOW_MS, THREAD, World};

const MINUTE_MS: i64 = 60_000;

/// Timers that a test reads and delivers by hand.
#[derive(Default)]
struct Timers {
    set: Mutex<Vec<(i64, InputMessage, DedupId)>>,
    fault: Mutex<Option<QueueError>>,
}

#[async_trait]
impl TimerSender for Timers {
    async fn schedule(&self, due_ms: i64, message: &InputMessage, dedup: &DedupId) -> Result<(), QueueError> {
        match self.fault.lock().unwrap().take() {
            Some(fault) => Err(fault),
            None => {
                self.set.lock().unwrap().push((due_ms, message.clone(), dedup.clone()));
                Ok(())
            }
        }
    }
}

impl Timers {
    fn set(&self) -> Vec<(i64, InputMessage, DedupId)> {
        self.set.lock().unwrap().clone()
    }

    /// Which firings were set up, each as often as it was.
    fn numbers(&self) -> Vec<u32> {
        self.set().iter().map(|(_, message, _)| parts(message).1.number).collect()
    }

    fn last(&self) -> (i64, InputMessage, DedupId) {
        self.set().pop().unwrap()
    }
}

fn parts(message: &InputMessage) -> (CallId, Firing, Recurrence) {
    match &message.synthetic {
        Some(Synthetic::SchedulerFired { tool_call_id, firing, recurrence }) => {
            (tool_call_id.clone(), *firing, recurrence.clone())
        }
        other => panic!("{other:?}"),
    }
}

fn world(model: ScriptedModel) -> (World, Arc<Timers>) {
    let timers = Arc::new(Timers::default());
    let mut world = World::new(model);
    let store: Arc<dyn Store> = Arc::new(world.store.clone());
    let echo = world.registry.get("echo").unwrap().clone();
    let own = builtin::waiting(Some(timers.clone())).into_iter().chain(builtin::all(&store));
    world.runtime.tools = Arc::new(Registry::new(own.chain([echo])));
    (world, timers)
}

/// A world whose thread has made a schedule; the model answers each firing with a text.
async fn scheduled(arguments: serde_json::Value) -> (World, Arc<Timers>) {
    scheduled_with(ScriptedModel::from_fn(prompts::respond), arguments).await
}

async fn scheduled_with(model: ScriptedModel, arguments: serde_json::Value) -> (World, Arc<Timers>) {
    let (world, timers) = world(model);
    world.done(&world.user(&format!("call schedule {arguments}"))).await;
    (world, timers)
}

/// What a timer's message is when the queue hands it out.
fn fired(world: &World, (_, message, dedup): &(i64, InputMessage, DedupId)) -> Delivery {
    Delivery { dedup: dedup.as_str().to_owned(), ..world.message(message) }
}

async fn events(world: &World) -> usize {
    world.story().await.iter().filter(|line| line.starts_with("event: ")).count()
}

async fn active(world: &World) -> usize {
    world.store.get_active_subscriptions(&ThreadId::from(THREAD)).await.unwrap().len()
}

#[tokio::test]
async fn each_firing_is_an_event_that_wakes_the_agent_and_sets_the_next_timer() {
    let before = Timestamp::now().as_millisecond();
    let (world, timers) =
        scheduled(json!({"cron": "* * * * *", "timezone": "Asia/Kolkata", "message": "look"})).await;
    let (due, message, _) = timers.last();
    let after = Timestamp::now().as_millisecond();
    assert!(before < due && due <= after + MINUTE_MS && due % MINUTE_MS == 0, "{due}");
    let (call, firing, _) = parts(&message);
    assert_eq!(firing, Firing { number: 1, due_ms: due });
    let story = world.story().await;
    assert!(story[2].starts_with("result: Scheduled: it fires first at 2"), "{story:?}");
    assert!(story[2].contains(" in Asia/Kolkata.") && story[2].contains(call.as_str()), "{story:?}");
    assert_eq!(active(&world).await, 1);

    for n in 1..=3_i64 {
        world.done(&fired(&world, &timers.last())).await;
        let (next, message, _) = timers.last();
        assert_eq!(next, due + n * MINUTE_MS);
        assert_eq!(parts(&message).1, Firing { number: n as u32 + 1, due_ms: next });
    }
    let items = world.items().await;
    let events: Vec<_> = items
        .iter()
        .filter_map(|item| match &item.body {
            ItemBody::Event(event) => Some(event),
            _ => None,
        })
        .collect();
    assert_eq!(events.len(), 3);
    assert_eq!(
        (&events[0].reason, &events[0].original_tool_call_id),
        (&SyntheticReason::SchedulerFired, &call)
    );
    let text = ContentPart::join_text(&events[0].parts);
    assert!(text.starts_with("[scheduled for 2") && text.ends_with(" in Asia/Kolkata]\nlook"), "{text}");
    assert!(world.story().await.last().unwrap().starts_with("assistant: "), "the model was asked");
    // A timer of one time has one id, so that a queue knows it again; that of another time has another.
    let ids: std::collections::BTreeSet<_> = timers.set().into_iter().map(|(_, _, dedup)| dedup).collect();
    assert_eq!(ids.len(), 4);
}

#[tokio::test]
async fn i2_a_firing_that_comes_twice_is_one_event_and_the_chain_does_not_fork() {
    let (world, timers) = scheduled(json!({"cron": "* * * * *", "message": "look"})).await;
    let first = fired(&world, &timers.last());
    // The output fails behind the commit: the redelivered firing sends the outbox again.
    *world.output.failures.lock().unwrap() = 1;
    assert_eq!(world.deliver(std::slice::from_ref(&first)).await.len(), 1);
    assert_eq!(timers.numbers(), [1], "no timer yet");
    world.done(&first.again()).await;
    world.done(&first.again()).await;
    // The timer itself was set twice: another message with the same id, later than the queue remembers.
    world.done(&fired(&world, &timers.set()[0])).await;
    let numbers = timers.numbers();
    assert!(numbers.len() > 1 && numbers[1..].iter().all(|number| *number == 2), "{numbers:?}");
    let second: std::collections::BTreeSet<_> =
        timers.set()[1..].iter().map(|(due, _, dedup)| (*due, dedup.clone())).collect();
    assert_eq!(second.len(), 1, "one time, one id, however often it is sent: {second:?}");
    assert_eq!(events(&world).await, 1);
}

#[tokio::test]
async fn i3_no_timer_is_set_for_what_is_not_committed_and_none_is_lost() {
    for fault in [CommitFault::Unavailable, CommitFault::AnswerLost, CommitFault::LostRace] {
        let (world, timers) = scheduled(json!({"cron": "* * * * *", "message": "look"})).await;
        let mut first = fired(&world, &timers.last());
        world.store.fail_commits([fault]);
        for _ in 0..5 {
            match world.deliver(std::slice::from_ref(&first)).await.as_slice() {
                [] => break,
                _ => first = first.again(),
            }
        }
        let numbers = timers.numbers();
        assert!(numbers.len() > 1 && numbers[1..].iter().all(|n| *n == 2), "{fault:?}: {numbers:?}");
        assert_eq!(events(&world).await, 1, "{fault:?}");
    }
}

#[tokio::test]
async fn firings_that_were_missed_are_one() {
    let (world, timers) = scheduled(json!({"cron": "0 * * * *", "message": "look"})).await;
    // Due long ago: everything was down since.
    let (_, mut message, _) = timers.last();
    let due_ms = NOW_MS - 9 * 24 * 60 * MINUTE_MS;
    let Some(Synthetic::SchedulerFired { firing, .. }) = &mut message.synthetic else { panic!() };
    firing.due_ms = due_ms;
    world.done(&fired(&world, &(due_ms, message, DedupId::from("late")))).await;
    assert_eq!(events(&world).await, 1);
    let next = timers.last().0;
    assert!(next > NOW_MS && next <= NOW_MS + 60 * MINUTE_MS && next % (60 * MINUTE_MS) == 0, "{next}");
}

#[tokio::test]
async fn while_a_call_is_at_work_one_firing_waits_and_the_schedule_goes_on() {
    let (world, timers) = scheduled(json!({"cron": "* * * * *", "message": "look"})).await;
    world.done(&world.user("call echo {}")).await;
    let asked = world.model.calls();
    for _ in 0..20 {
        world.done(&fired(&world, &timers.last())).await;
    }
    assert_eq!(timers.numbers(), (1..=21).collect::<Vec<_>>(), "each sets the next, waiting or not");
    assert_eq!(world.model.calls(), asked, "the call is not disturbed");
    world.done(&world.result(&world.tools.calls()[0], "done")).await;
    world.settle().await;
    let story = world.story().await;
    assert_eq!(events(&world).await, 1, "twenty that say the same are one: {story:?}");
    assert!(timers.numbers().len() == 21, "what is released sets nothing");
    // The next one is an event again, and ends a wait.
    world.done(&world.user("call sleep_until_event_or_input {}")).await;
    world.done(&fired(&world, &timers.last())).await;
    assert_eq!(events(&world).await, 2);
    assert!(world.pending().await.is_empty());
}

#[tokio::test]
async fn rap_40_the_last_firing_ends_the_subscription() {
    let (world, timers) = scheduled(json!({"cron": "* * * * *", "message": "look", "max_firings": 2})).await;
    world.done(&fired(&world, &timers.last())).await;
    assert_eq!(active(&world).await, 1);
    let second = fired(&world, &timers.last());
    world.done(&second).await;
    assert_eq!((active(&world).await, events(&world).await, timers.numbers().len()), (0, 2, 2));
    world.done(&second.again()).await;
    assert_eq!((events(&world).await, timers.numbers().len()), (2, 2));

    // The same where it had to wait for a call, and one waits already.
    let (world, timers) = scheduled(json!({"cron": "* * * * *", "message": "look", "max_firings": 2})).await;
    world.done(&world.user("call echo {}")).await;
    world.done(&fired(&world, &timers.last())).await;
    world.done(&fired(&world, &timers.last())).await;
    world.done(&world.result(&world.tools.calls()[0], "done")).await;
    assert_eq!((active(&world).await, events(&world).await, timers.numbers().len()), (0, 1, 2));
    // And alone in waiting: it ends when it is in.
    let (world, timers) = scheduled(json!({"cron": "* * * * *", "message": "look", "max_firings": 1})).await;
    world.done(&world.user("call echo {}")).await;
    world.done(&fired(&world, &timers.last())).await;
    world.done(&world.result(&world.tools.calls()[0], "done")).await;
    assert_eq!((active(&world).await, events(&world).await, timers.numbers().len()), (0, 1, 1));
}

#[tokio::test]
async fn rap_41_after_a_cancel_the_timer_that_is_set_does_nothing() {
    let (world, timers) = scheduled(json!({"cron": "* * * * *", "message": "look"})).await;
    let call = parts(&timers.last().1).0;
    let cancel = format!("call cancel_subscription {}", json!({"tool_call_id": call.as_str()}));
    world.done(&world.user(&cancel)).await;
    let asked = world.model.calls();
    world.done(&fired(&world, &timers.last())).await;
    assert_eq!((events(&world).await, timers.numbers().len()), (0, 1));
    assert_eq!(world.model.calls(), asked);
}

#[tokio::test(start_paused = true)]
async fn i7_a_firing_that_is_given_up_on_does_not_end_the_schedule() {
    let poisoned = Arc::new(Mutex::new(true));
    let poison = poisoned.clone();
    let model = ScriptedModel::from_fn(move |request| {
        match *poison.lock().unwrap() && format!("{:?}", request.messages.last()).contains("[scheduled for") {
            true => vec![ScriptedEvent::error(ScriptedErrorClass::Transient, "down")],
            false => prompts::respond(request),
        }
    });
    let (world, timers) = scheduled_with(model, json!({"cron": "* * * * *", "message": "look"})).await;
    let mut first = fired(&world, &timers.last());
    for receive in 1.. {
        assert!(receive < 20, "never given up on");
        if world.deliver(std::slice::from_ref(&first)).await.is_empty() {
            break;
        }
        first = first.again();
    }
    assert_eq!(events(&world).await, 0);
    world.settle().await;
    assert_eq!(timers.numbers(), [1, 2], "set by the slice behind it");

    // One whose workers died until the queue gave up on it.
    world.dies(&fired(&world, &timers.last())).await;
    assert_eq!(timers.numbers(), [1, 2, 3]);
    *poisoned.lock().unwrap() = false;
    world.done(&fired(&world, &timers.last())).await;
    assert_eq!(events(&world).await, 1);
    assert_eq!(timers.numbers(), [1, 2, 3, 4]);
}

#[tokio::test]
async fn a_timer_that_cannot_be_set_now_is_set_later_and_one_that_never_can_ends_the_schedule_visibly() {
    let (world, timers) = scheduled(json!({"cron": "* * * * *", "message": "look"})).await;
    let first = fired(&world, &timers.last());
    *timers.fault.lock().unwrap() = Some(QueueError::Unavailable("a test says so".into()));
    assert_eq!(world.deliver(std::slice::from_ref(&first)).await.len(), 1);
    world.done(&first.again()).await;
    assert_eq!((timers.numbers(), events(&world).await), (vec![1, 2], 1));

    *timers.fault.lock().unwrap() = Some(QueueError::Refused("a test says so".into()));
    world.done(&fired(&world, &timers.last())).await;
    world.settle().await;
    let story = world.story().await;
    assert!(
        story.iter().any(|line| line.starts_with("event: Error: the next firing of this schedule")),
        "{story:?}"
    );
    assert_eq!(active(&world).await, 0);
}

#[tokio::test]
async fn what_makes_no_schedule_is_an_error_that_the_model_reads() {
    for (arguments, says) in [
        (json!({"cron": "* * * * * *", "message": "x"}), "a cron expression has five fields"),
        (json!({"cron": "61 * * * *", "message": "x"}), ""),
        (json!({"cron": "0 0 31 2 *", "message": "x"}), "\"0 0 31 2 *\" never fires"),
        (json!({"cron": "* * * * *", "timezone": "Mars", "message": "x"}), "there is no time zone \"Mars\""),
        (json!({"cron": "* * * * *", "message": ""}), "the arguments do not fit"),
        (json!({"cron": "* * * * *"}), "the arguments do not fit"),
        (json!({"cron": "* * * * *", "message": "x", "max_firings": 0}), "the arguments do not fit"),
        (json!({"cron": "* * * * *", "message": "x".repeat(8_001)}), "message has more than 8000"),
    ] {
        let (world, timers) = scheduled(arguments.clone()).await;
        let story = world.story().await;
        assert!(story[2].starts_with(&format!("result: Error: {says}")), "{arguments}: {story:?}");
        assert_eq!((timers.set().len(), active(&world).await), (0, 0), "{arguments}");
    }
}

#[tokio::test]
async fn rap_42_a_schedule_above_the_cap_sets_no_timer() {
    let asks = |n: usize| -> Vec<ScriptedEvent> {
        let arguments = r#"{"cron":"0 0 1 1 *","message":"happy new year"}"#;
        let calls = (0..n).map(|i| ScriptedEvent::call(format!("p{i}"), "schedule", arguments));
        calls.chain([ScriptedEvent::End("tool_use".into())]).collect()
    };
    let done = vec![ScriptedEvent::Text("ok".into()), ScriptedEvent::End("end_turn".into())];
    let (world, timers) = world(ScriptedModel::script(vec![asks(31), asks(3), done]));
    world.done(&world.user("go")).await;
    assert_eq!((active(&world).await, timers.set().len()), (32, 32));
}

/// The real binary: killed after the schedule was made, and again after it has fired. Takes as long as two minutes do.
#[cfg(feature = "local")]
#[test]
fn i1_i2_a_schedule_goes_on_after_kill_9() {
    use std::time::{Duration, Instant};
    // The next full minute, and what a busy machine needs beyond it.
    const PATIENCE: Duration = Duration::from_secs(110);
    let home = command::Home::new();
    let events = |enough: usize| {
        let started = Instant::now();
        loop {
            let items = command::items(&home.thread("t1"));
            let events: Vec<String> = items.into_iter().filter(|item| item.starts_with("event: ")).collect();
            if events.len() >= enough {
                return events;
            }
            assert!(started.elapsed() < PATIENCE, "{events:?}");
            std::thread::sleep(Duration::from_millis(200));
        }
    };
    let serving = home.serve(&[]);
    let arguments = r#"{"cron":"* * * * *","message":"tick","max_firings":2}"#;
    home.ok(&["send", &format!("call schedule {arguments}"), "--thread", "t1"]);
    home.items_when("t1", |items| items.len() == 4);
    serving.kill();
    let serving = home.serve(&[]);
    events(1);
    serving.kill();
    let serving = home.serve(&[]);
    let fired = events(2);
    assert!(serving.terminate().success());
    assert_eq!(fired.len(), 2, "{fired:?}");
    assert!(
        fired.iter().all(|event| event.starts_with("event: [scheduled for 2") && event.ends_with("\ntick"))
    );
    assert_ne!(fired[0], fired[1], "one event for each time");
}
