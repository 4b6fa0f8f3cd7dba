//! Inputs that keep failing: attempts are counted in the store, an input that has failed too often is given up on
//! visibly, and its thread and its neighbours go on (I7). Nothing is given up on that is not to blame (I1).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/world.rs"]
mod world;

use dormouse::message::{InputMessage, ThreadId};
use dormouse::model::scripted::{ScriptedError, ScriptedErrorClass, ScriptedEvent, ScriptedModel};
use world::{Delivery, THREAD, World};

/// Receives after which an input is given up on: the first, and as many as attempts are allowed.
const RECEIVES: usize = 6;

/// A model that fails for every request that shows `poison`, and otherwise follows the prompts.
fn model(class: ScriptedErrorClass) -> ScriptedModel {
    ScriptedModel::from_fn(move |request| {
        if format!("{:?}", request.messages.last()).contains("poison") {
            return vec![ScriptedEvent::Error(ScriptedError {
                class,
                retry_after_ms: matches!(class, ScriptedErrorClass::Throttled).then_some(60_000),
                message: None,
            })];
        }
        dormouse::model::scripted::prompts::respond(request)
    })
}

/// Delivers until nothing is handed back; returns the receives it took.
async fn deliver_until_done(world: &World, mut batch: Vec<Delivery>) -> usize {
    for receive in 1..=20 {
        let failed = world.deliver(&batch).await;
        batch.retain(|delivery| failed.contains(&delivery.message_id));
        if batch.is_empty() {
            return receive;
        }
        batch = batch.iter().map(Delivery::again).collect();
    }
    panic!("still handed back: {batch:?}");
}

#[tokio::test(start_paused = true)]
async fn rap_52_i7_d1_a_text_that_keeps_failing_is_given_up_on_and_the_next_one_is_answered() {
    let world = World::new(model(ScriptedErrorClass::Transient));
    assert_eq!(deliver_until_done(&world, vec![world.user("poison")]).await, RECEIVES);
    assert_eq!(world.story().await, ["user: [a message was left out: it could not be processed]"]);
    assert!(world.output.texts()[0].contains("left out after several attempts"));
    world.done(&world.user("say hello")).await;
    assert_eq!(world.output.texts().last().unwrap(), "hello");
    let asked = world.model.calls();
    world.settle().await;
    assert_eq!(world.model.calls(), asked, "nothing else was woken");
}

#[tokio::test(start_paused = true)]
async fn i7_neighbours_of_a_poisonous_message_are_untouched() {
    let world = World::new(model(ScriptedErrorClass::Transient));
    let to = |thread: &str, text: &str| world.message(&InputMessage::user_text(ThreadId::from(thread), text));
    let batch =
        vec![to(THREAD, "poison"), to("other", "say one"), to(THREAD, "say two"), to(THREAD, "say three")];
    deliver_until_done(&world, batch).await;
    let texts = world.output.texts();
    assert_eq!(texts.iter().filter(|text| text.contains("left out")).count(), 1, "{texts:?}");
    for answer in ["one", "two", "three"] {
        assert!(texts.iter().any(|text| text == answer), "{texts:?}");
    }
    let story = world.story().await;
    assert_eq!(story[1..], ["user: say two", "assistant: two", "user: say three", "assistant: three"]);
}

#[tokio::test(start_paused = true)]
async fn i7_a_result_that_keeps_failing_settles_its_call_and_the_thread_goes_on_by_itself() {
    let world = World::new(model(ScriptedErrorClass::Transient));
    world.done(&world.user(r#"both echo {} other {}"#)).await;
    let calls = world.tools.calls();
    world.done(&world.result(&calls[1], "fine")).await;
    assert_eq!(deliver_until_done(&world, vec![world.result(&calls[0], "poison")]).await, RECEIVES);
    assert_eq!(world.pending().await.len(), 1, "the parked sibling is not in yet");
    world.settle().await;
    let story = world.story().await;
    assert_eq!(
        story[3],
        "result: Error: the tool's result arrived but could not be processed. It has taken effect."
    );
    assert_eq!(story[4], "result: fine");
    assert!(story[5].starts_with("assistant: result: "), "{story:?}");
    assert!(world.pending().await.is_empty());
    // The tool sends it once more: it is a duplicate by now.
    world.done(&world.result(&calls[0], "poison")).await;
    assert_eq!(world.story().await, story);
}

#[tokio::test(start_paused = true)]
async fn f51_a_throttle_does_not_spend_the_poison_budget() {
    let world = World::new(model(ScriptedErrorClass::Throttled));
    let mut message = world.user("poison");
    for _ in 0..20 {
        assert_eq!(world.deliver(std::slice::from_ref(&message)).await.len(), 1);
        message = message.again();
    }
    assert!(world.output.texts().is_empty());
}

#[tokio::test(start_paused = true)]
async fn i1_what_is_committed_is_not_given_up_on_because_a_queue_is_down() {
    let world = World::new(ScriptedModel::prompts());
    *world.output.failures.lock().unwrap() = 12;
    let receives = deliver_until_done(&world, vec![world.user("say hello")]).await;
    assert_eq!(receives, 13);
    assert_eq!(world.output.texts(), ["hello"]);
    assert_eq!(world.model.calls(), 1);
    assert_eq!(world.store.commits(), 2, "the turn, and what strikes the outbox of a redelivered message");
}

#[tokio::test(start_paused = true)]
async fn f21_attempts_are_counted_in_the_store_not_in_the_process() {
    let world = World::new(model(ScriptedErrorClass::Transient));
    let mut message = world.user("poison");
    for _ in 1..RECEIVES {
        assert_eq!(world.deliver(std::slice::from_ref(&message)).await.len(), 1);
        message = message.again();
    }
    // Another worker, another process: the same store.
    let next = World::over(std::sync::Arc::new(world.store.clone()), model(ScriptedErrorClass::Transient));
    assert!(next.deliver(std::slice::from_ref(&message)).await.is_empty());
    assert_eq!(next.model.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn i7_an_unfinished_slice_that_keeps_failing_is_closed() {
    // The first commit holds the synchronous call; the model fails on every request that shows its result.
    let world = World::new(ScriptedModel::from_fn(|request| {
        if format!("{:?}", request.messages.last()).contains("ran") {
            return vec![ScriptedEvent::error(ScriptedErrorClass::Transient, "no")];
        }
        dormouse::model::scripted::prompts::respond(request)
    }));
    let receives = deliver_until_done(&world, vec![world.user("call add {}")]).await;
    assert_eq!(receives, RECEIVES);
    assert!(world.meta().await.open.is_empty() && world.pending().await.is_empty());
    // What the thread sends itself meets the same model, and is given up on as well.
    let sent = std::mem::take(&mut *world.input.sent.lock().unwrap());
    assert_eq!(sent.len(), 1);
    let (message, dedup) = sent[0].clone();
    let release = Delivery { dedup: dedup.as_str().to_owned(), ..world.message(&message) };
    assert_eq!(deliver_until_done(&world, vec![release]).await, RECEIVES);
    // What was promised for a message that may have died is sent once more, under the same id: a duplicate.
    let again = std::mem::take(&mut *world.input.sent.lock().unwrap());
    assert!(again.iter().all(|(_, id)| *id == dedup), "{again:?}");
    let asked = world.model.calls();
    for (message, id) in again {
        world.done(&Delivery { dedup: id.as_str().to_owned(), ..world.message(&message) }).await;
    }
    assert_eq!(world.model.calls(), asked);
    world.done(&world.user("say still here")).await;
    assert_eq!(world.output.texts().last().unwrap(), "still here");
    assert!(world.output.texts().iter().any(|text| text == "[add({})]"), "what was committed was published");
}

#[tokio::test(start_paused = true)]
async fn i1_a_late_result_before_the_given_up_step_goes_on_is_kept() {
    let world = World::new(model(ScriptedErrorClass::Transient));
    world.done(&world.user(r#"both echo {} other {}"#)).await;
    let calls = world.tools.calls();
    world.done(&world.result(&calls[1], "fine")).await;
    assert_eq!(deliver_until_done(&world, vec![world.result(&calls[0], "poison")]).await, RECEIVES);
    // The message that goes on with the step stands behind this one in the queue.
    world.done(&Delivery { dedup: "again".into(), ..world.result(&calls[0], "real") }).await;
    world.settle().await;
    let story = world.story().await;
    assert_eq!(
        story.iter().filter(|line| line.starts_with("user: [late result of echo")).count(),
        1,
        "{story:?}"
    );
    assert!(world.pending().await.is_empty());
}
