//! How often a slice waits for DynamoDB, counted over the wire against the embedded table. A plain slice loads
//! once and commits once; nothing else of it waits for the store.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(feature = "local")]

#[path = "support/ddb.rs"]
mod ddb;
#[path = "support/world.rs"]
mod world;

use std::sync::Arc;

use dormouse::model::scripted::{ScriptedEvent, ScriptedModel};
use dormouse::store::dynamodb::{DynamoStore, RoundTrips, create_table};
use world::{Delivery, World};

const TABLE: &str = "round-trips";

async fn world(responses: Vec<Vec<ScriptedEvent>>) -> (World, RoundTrips, ddb::Embedded) {
    let server = ddb::Embedded::start(dynoxide::Database::memory().unwrap());
    let client = ddb::client(&server.url);
    create_table(&client, TABLE).await.unwrap();
    let trips = RoundTrips::new();
    let store = DynamoStore::new(client, TABLE.to_owned())
        .with_round_trips(trips.clone())
        .with_clock(|| world::NOW_MS);
    (World::over(Arc::new(store), ScriptedModel::script(responses)), trips, server)
}

/// Sequential round trips of one delivery. What the tests' own tools look up is not the slice's.
async fn cost(world: &World, trips: &RoundTrips, batch: &[Delivery]) -> usize {
    trips.reset();
    assert!(world.deliver(batch).await.is_empty());
    trips.sequential()
}

fn say(text: &str) -> Vec<ScriptedEvent> {
    vec![ScriptedEvent::Text(text.into()), ScriptedEvent::End("end_turn".into())]
}

fn call(names: &[&str]) -> Vec<ScriptedEvent> {
    let calls = names.iter().map(|name| ScriptedEvent::call("", *name, "{}"));
    calls.chain([ScriptedEvent::End("tool_use".into())]).collect()
}

#[tokio::test]
async fn a_slice_of_a_root_thread_is_two_round_trips() {
    let (world, trips, _server) = world(vec![say("one"), say("two"), say("three")]).await;
    assert_eq!(cost(&world, &trips, &[world.user("first")]).await, 2, "a new thread");
    assert_eq!(cost(&world, &trips, &[world.user("second")]).await, 2, "a thread with history");
    let last = world.user("third");
    assert_eq!(cost(&world, &trips, std::slice::from_ref(&last)).await, 2);
    assert_eq!(
        cost(&world, &trips, &[last.again()]).await,
        3,
        "a duplicate counts its attempt, looks, and strikes what it sent again"
    );
}

#[tokio::test]
async fn waking_by_a_result_is_two_round_trips_and_parking_one_as_well() {
    let (world, trips, _server) = world(vec![call(&["echo", "other"]), say("done")]).await;
    world.tools.look_up(false);
    assert_eq!(cost(&world, &trips, &[world.user("go")]).await, 2);
    let calls = world.tools.calls();
    assert_eq!(cost(&world, &trips, &[world.result(&calls[1], "B")]).await, 2, "parked");
    assert_eq!(cost(&world, &trips, &[world.result(&calls[0], "A")]).await, 2, "released");
}

#[tokio::test]
async fn a_barrier_with_something_to_write_and_each_further_step_add_one() {
    let (world, trips, _server) =
        world(vec![call(&["echo"]), say("stopped"), call(&["add"]), say("sum")]).await;
    world.tools.look_up(false);
    assert_eq!(cost(&world, &trips, &[world.user("go")]).await, 2);
    assert_eq!(cost(&world, &trips, &[world.user("stop")]).await, 3, "the interrupt's barrier");
    assert_eq!(cost(&world, &trips, &[world.user("add")]).await, 3, "a synchronous step");
}

#[tokio::test]
async fn a_body_of_its_own_adds_one() {
    let (world, trips, _server) = world(vec![say("one"), say("two")]).await;
    let large = "x".repeat(20_000);
    // Bodies are written ahead of the commit, and read after the rows that name them.
    assert_eq!(cost(&world, &trips, &[world.user(&large)]).await, 3);
    assert_eq!(cost(&world, &trips, &[world.user("next")]).await, 3);
}

#[tokio::test]
async fn a_child_is_three_whatever_its_depth() {
    use dormouse::message::{InputMessage, ThreadId};
    let spawn = |stack: &[String]| {
        let arguments = serde_json::json!({"instructions": "go on", "child_of": stack}).to_string();
        vec![ScriptedEvent::call("", "spawn_thread", arguments), ScriptedEvent::End("tool_use".into())]
    };
    // A thread's id is its parent's and its call's: known beforehand.
    let mut stack = vec![world::THREAD.to_owned()];
    let mut responses = Vec::new();
    for depth in 0..8 {
        responses.extend([spawn(&stack), say("it is at work")]);
        let parent = ThreadId::new(stack.last().unwrap());
        // The root's call is behind its user's text; a child's behind its own spawn call and the result of that.
        let seq = dormouse::message::Seq(if depth == 0 { 2 } else { 3 });
        let call = dormouse::message::CallId::mint(&parent, dormouse::message::Epoch(0), seq);
        stack.push(ThreadId::child(&parent, call.as_str()).as_str().to_owned());
    }
    responses.extend([say("at the bottom"), say("still here")]);
    let (mut world, trips, _server) = world(responses).await;
    let store = world.runtime.store.clone();
    world.runtime.tools = Arc::new(dormouse::tools::Registry::new(dormouse::tools::builtin::all(&store)));
    world.done(&world.user("go")).await;
    world.settle().await;
    let deepest = ThreadId::new(stack.last().unwrap());
    let meta = store.meta(&deepest).await.unwrap().expect("the deepest thread is there");
    assert_eq!((meta.ancestors.len(), meta.base.len()), (8, 8));
    let text = world.message(&InputMessage::user_text(deepest, "are you there?"));
    assert_eq!(cost(&world, &trips, &[text]).await, 3, "META and the own log; the spans; the commit");
}
