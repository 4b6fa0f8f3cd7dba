//! Subscriptions in the slice: when one begins and ends, which events count, and how many a thread may have.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/world.rs"]
mod world;

use dormouse::message::{CallId, ContentPart, InputMessage, Synthetic, ThreadId};
use dormouse::model::scripted::ScriptedModel;
use dormouse::store::StateStore;
use dormouse::store::memory::CommitFault;
use dormouse::thread::MAX_SUBSCRIPTIONS;
use world::{THREAD, World};

/// Calls `echo`, and the id of that call.
async fn called(world: &World) -> CallId {
    world.done(&world.user("call echo {}")).await;
    world.tools.calls().last().unwrap().clone()
}

/// A result that subscribes.
fn subscribing(call: &CallId) -> InputMessage {
    let parts = vec![ContentPart::text("on")];
    let mut result = InputMessage::tool_result(ThreadId::from(THREAD), call.clone(), parts);
    result.subscription = true;
    result
}

fn event(call: &CallId, text: &str, last: bool) -> InputMessage {
    let parts = vec![ContentPart::text(text)];
    let mut event = InputMessage::tool_result(ThreadId::from(THREAD), CallId::new(""), parts);
    event.synthetic =
        Some(Synthetic::SubscriptionEvent { tool_call_id: call.clone(), associative: true, r#final: last });
    event
}

async fn active(world: &World) -> Vec<CallId> {
    world.store.get_active_subscriptions(&ThreadId::from(THREAD)).await.unwrap()
}

#[tokio::test]
async fn rap_36_a_subscription_is_recorded_with_its_result_or_not_at_all() {
    let world = World::with_builtins(ScriptedModel::prompts());
    let call = called(&world).await;
    let mut result = world.message(&subscribing(&call));
    for _ in 0..2 {
        world.store.fail_commits([CommitFault::Unavailable]);
        assert_eq!(world.deliver(std::slice::from_ref(&result)).await.len(), 1, "it is handed back");
        assert_eq!(active(&world).await, []);
        assert_eq!(world.story().await.len(), 2, "no result either");
        result = result.again();
    }
    world.done(&result).await;
    assert_eq!(active(&world).await, [call]);
    assert!(world.story().await.contains(&"result: on".to_owned()));
}

#[tokio::test]
async fn rap_13_16_40_only_events_of_an_active_subscription_of_this_thread_are_taken() {
    let world = World::with_builtins(ScriptedModel::prompts());
    let plain = called(&world).await;
    world.done(&world.result(&plain, "no news")).await;
    let call = called(&world).await;
    world.done(&world.message(&subscribing(&call))).await;
    world.done(&world.message(&event(&call, "last", true))).await;
    assert_eq!(active(&world).await, []);
    let asked = world.model.calls();
    let story = world.story().await;
    assert!(story.contains(&"event: last".to_owned()), "{story:?}");
    // Never subscribed; over; of a call that this thread never made; of another thread.
    for of in [&plain, &call, &CallId::from("c0-9-none")] {
        world.done(&world.message(&event(of, "stray", false))).await;
    }
    let mut foreign = event(&call, "stray", false);
    foreign.group_id = ThreadId::from("th-other");
    world.done(&world.message(&foreign)).await;
    assert_eq!((world.story().await, world.model.calls()), (story, asked), "they leave no trace");
    assert!(world.story_of(&ThreadId::from("th-other")).await.is_empty(), "and make no thread");
}

#[tokio::test]
async fn rap_42_d26_one_subscription_too_many_is_refused_to_the_model_and_cancelled_at_its_server() {
    let world = World::with_builtins(ScriptedModel::prompts());
    for _ in 0..MAX_SUBSCRIPTIONS {
        let call = called(&world).await;
        world.done(&world.message(&subscribing(&call))).await;
    }
    assert_eq!(active(&world).await.len(), MAX_SUBSCRIPTIONS);
    assert!(world.tools.cancelled.lock().unwrap().is_empty());
    let one_too_many = called(&world).await;
    let delivery = world.message(&subscribing(&one_too_many));
    world.done(&delivery).await;
    world.done(&delivery.again()).await;
    let story = world.story().await;
    let [.., result, answer] = &story[..] else { panic!("{story:?}") };
    assert!(result.starts_with("result: Error: no events of this will arrive"), "{result}");
    assert!(result.ends_with("\non") && answer.contains("cancel_subscription"), "{result} {answer}");
    assert!(!active(&world).await.contains(&one_too_many));
    assert_eq!(*world.tools.cancelled.lock().unwrap(), std::slice::from_ref(&one_too_many));
    world.done(&world.message(&event(&one_too_many, "stray", false))).await;
    assert_eq!(world.story().await.len(), story.len());

    // One that has ended makes room.
    let first = active(&world).await[0].clone();
    world.done(&world.message(&event(&first, "bye", true))).await;
    let call = called(&world).await;
    world.done(&world.message(&subscribing(&call))).await;
    assert_eq!(active(&world).await.len(), MAX_SUBSCRIPTIONS);
    assert!(active(&world).await.contains(&call));
}
