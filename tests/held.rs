//! Calls that are held back: those of a `serial` tool server go out one after the other.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/crash.rs"]
mod crash;
#[path = "support/world.rs"]
mod world;

use std::sync::Arc;

use async_trait::async_trait;
use crash::{Mortal, Point, distinct};
use dormouse::message::{CallId, ThreadId};
use dormouse::model::scripted::{ScriptedEvent, ScriptedModel};
use dormouse::store::{ConversationStore, Hold};
use dormouse::tools::{Execution, Invocation, Registry, Tool, ToolDefinition, ToolError, ToolOutput};
use world::{Delivery, THREAD, World};

/// A fake of the world as a tool of another server, whose calls wait for something.
struct Held {
    tool: Arc<dyn Tool>,
    server: &'static str,
    hold: Option<Hold>,
}

#[async_trait]
impl Tool for Held {
    fn definition(&self) -> &ToolDefinition {
        self.tool.definition()
    }
    fn execution(&self) -> Execution {
        self.tool.execution()
    }
    fn server(&self) -> Option<&str> {
        self.tool.server().map(|_| self.server)
    }
    fn hold(&self) -> Option<Hold> {
        self.hold
    }
    async fn execute(&self, call: &Invocation) -> Result<(), ToolError> {
        self.tool.execute(call).await
    }
    async fn execute_synchronous(&self, call: &Invocation) -> Result<ToolOutput, ToolError> {
        self.tool.execute_synchronous(call).await
    }
    async fn cancel(&self, thread: &ThreadId, call: &CallId) {
        self.tool.cancel(thread, call).await;
    }
}

/// Has the calls of `tools` wait for `hold`; the others keep a server of their own.
async fn hold(world: &mut World, tools: &[&str], hold: Hold) {
    let offered = world.runtime.tools.tools("default", &ThreadId::from(THREAD)).await.registry;
    let held = offered.iter().map(|tool| {
        let is_held = tools.contains(&tool.definition().name.as_str());
        let (server, hold) = if is_held { ("held", Some(hold)) } else { ("free", None) };
        Arc::new(Held { tool: tool.clone(), server, hold }) as Arc<dyn Tool>
    });
    world.runtime.tools = Arc::new(Registry::new(held.collect::<Vec<_>>()));
}

fn text(text: &str) -> Vec<ScriptedEvent> {
    vec![ScriptedEvent::Text(text.into()), ScriptedEvent::End("end_turn".into())]
}

fn calls(names: &[&str]) -> Vec<ScriptedEvent> {
    let mut events: Vec<ScriptedEvent> =
        names.iter().map(|name| ScriptedEvent::call(*name, *name, "{}")).collect();
    events.push(ScriptedEvent::End("tool_use".into()));
    events
}

async fn serial(responses: Vec<Vec<ScriptedEvent>>) -> World {
    let mut world = World::new(ScriptedModel::script(responses));
    hold(&mut world, &["echo", "other"], Hold::Turn).await;
    world
}

/// What was dispatched; the calls that go out at once in no order.
fn sent(world: &World) -> Vec<String> {
    world.tools.dispatched().into_iter().map(|call| call.name).collect()
}

fn call_of(world: &World, tool: &str) -> CallId {
    world.tools.dispatched().into_iter().rfind(|call| call.name == tool).unwrap().call
}

/// The newest call that was dispatched.
fn newest(world: &World) -> CallId {
    world.tools.calls().last().unwrap().clone()
}

#[tokio::test]
async fn f09_calls_of_a_serial_server_go_out_one_after_the_other_and_those_of_others_at_once() {
    let world = serial(vec![calls(&["echo", "other", "nap", "echo"]), text("done")]).await;
    world.done(&world.user("go")).await;
    assert_eq!(
        distinct(&sent(&world)),
        distinct(&["echo".into(), "nap".into()]),
        "the first of the serial server, and what is not serial"
    );
    world.done(&world.result(&call_of(&world, "nap"), "zzz")).await;
    assert_eq!(sent(&world).len(), 2, "the result of another server gives nobody a turn");
    world.done(&world.result(&call_of(&world, "echo"), "1")).await;
    assert_eq!(sent(&world)[2..], ["other"]);
    world.done(&world.result(&newest(&world), "2")).await;
    assert_eq!(sent(&world)[3..], ["echo"]);
    assert_eq!(world.model.calls(), 1, "the model is asked when all are in");
    world.done(&world.result(&newest(&world), "3")).await;
    assert_eq!(
        world.story().await[5..],
        ["result: 1", "result: 2", "result: zzz", "result: 3", "assistant: done"]
    );
    assert_eq!(sent(&world).len(), 4, "each went out once");
    // Parking, turn and promise are one commit: three for the parked results, two for the responses.
    assert_eq!(world.store.commits(), 5);
}

#[tokio::test]
async fn f09_a_call_that_fails_or_is_settled_by_hand_gives_way_to_the_next_over_several_steps() {
    let steps = vec![calls(&["echo", "other"]), calls(&["other", "echo"]), text("done")];
    let world = serial(steps).await;
    world.tools.failures.lock().unwrap().push(ToolError::Failed("no".into()));
    world.done(&world.user("go")).await;
    assert_eq!(sent(&world), ["echo"]);
    // What could not be dispatched has a result through the queue, and that gives the next one its turn.
    world.settle().await;
    assert_eq!(sent(&world), ["echo", "other"]);
    world.done(&world.result(&newest(&world), "2")).await;
    assert_eq!(sent(&world)[2..], ["other"], "the next step begins anew");
    let (message, dedup) =
        dormouse::http::settled_by_hand(&ThreadId::from(THREAD), &newest(&world), Some("gone"));
    let by_hand = Delivery { dedup: dedup.as_str().to_owned(), ..world.message(&message) };
    world.done(&by_hand).await;
    assert_eq!(sent(&world)[3..], ["echo"]);
    world.done(&world.result(&newest(&world), "4")).await;
    assert_eq!(
        world.story().await[3..],
        [
            "result: Error: no",
            "result: 2",
            "call: other {}",
            "call: echo {}",
            "result: Error: gone",
            "result: 4",
            "assistant: done"
        ]
    );
}

#[tokio::test]
async fn f09_what_is_interrupted_before_its_turn_did_not_run_and_its_server_hears_nothing_of_it() {
    let world = serial(vec![calls(&["echo", "other"]), calls(&["other"]), text("done")]).await;
    world.done(&world.user("go")).await;
    let first = newest(&world);
    world.done(&world.user("no, wait")).await;
    assert_eq!(*world.tools.cancelled.lock().unwrap(), [first.clone()]);
    let story = world.story().await;
    assert_eq!(
        story[3..],
        [
            "interrupt",
            "result: Error: other did not run: it was interrupted before its turn came.",
            "user: no, wait",
            "call: other {}"
        ]
    );
    // Nobody waits for the interrupted call: the next step's call goes out, and its late result is a note.
    assert_eq!(sent(&world), ["echo", "other"]);
    world.done(&world.result(&first, "late")).await;
    world.done(&world.result(&newest(&world), "ok")).await;
    assert_eq!(sent(&world).len(), 2);
    assert_eq!(world.story().await.last().unwrap(), "assistant: done");
}

#[tokio::test]
async fn f09_a_thread_that_is_given_its_turn_by_a_message_that_dies_sends_it_all_the_same() {
    let mut mortal = Mortal::new().await;
    hold(&mut mortal.world, &["echo", "other"], Hold::Turn).await;
    let world = &mortal.world;
    world.done(&world.user("both echo {} other {}")).await;
    // The commit that parks the result and promises the next call is written, nothing is sent, and nobody comes back.
    let result = world.result(&newest(world), "1");
    mortal.killed(Point::CommitWritten(1), &result).await;
    world.dies(&result).await;
    assert_eq!(sent(world), ["echo", "other"]);
    world.done(&world.result(&newest(world), "2")).await;
    assert!(world.pending().await.is_empty(), "{:?}", world.story().await);
}

/// Kills the slice of the first result of two serial calls at `point`, delivers its message again, and goes on.
async fn killed(at: usize, point: Option<Point>) -> (Vec<String>, Vec<CallId>) {
    let mut mortal = Mortal::new().await;
    hold(&mut mortal.world, &["echo", "other"], Hold::Turn).await;
    let world = &mortal.world;
    for step in 0..3 {
        let delivery = match step {
            0 => world.user("both echo {} other {}"),
            _ => {
                let calls: Vec<CallId> = distinct(&world.tools.calls()).into_iter().collect();
                assert_eq!(calls.len(), step, "only what has its turn is out");
                let next = calls.iter().find(|call| Some(*call) == world.tools.calls().last());
                world.result(next.unwrap(), &format!("r{step}"))
            }
        };
        match point.filter(|_| at == step) {
            Some(point) => {
                mortal.killed(point, &delivery).await;
                world.done(&delivery.again()).await;
            }
            None => world.done(&delivery).await,
        }
    }
    (world.story().await, distinct(&world.tools.calls()).into_iter().collect())
}

#[tokio::test]
async fn i4_a_turn_survives_a_crash_at_every_point() {
    let expected = killed(9, None).await;
    assert_eq!(expected.0[3..5], ["result: r1", "result: r2"]);
    let points = [
        (0, Point::CommitAsked(1)),
        (0, Point::CommitWritten(1)),
        (0, Point::CallAsked("echo")),
        (0, Point::CallTaken("echo")),
        (1, Point::Load),
        (1, Point::CommitAsked(1)),
        (1, Point::CommitWritten(1)),
        (1, Point::CallAsked("other")),
        (1, Point::CallTaken("other")),
        (2, Point::CommitAsked(1)),
    ];
    for (at, point) in points {
        assert_eq!(killed(at, Some(point)).await, expected, "{point:?} of step {at}");
    }
}

#[tokio::test]
async fn i4_a_serial_call_beside_one_that_runs_inside_the_slice_survives_too() {
    for point in [Point::CommitWritten(1), Point::Ran("add"), Point::CommitAsked(2), Point::CommitWritten(2)]
    {
        let mut mortal = Mortal::new().await;
        hold(&mut mortal.world, &["echo", "other"], Hold::Turn).await;
        let world = &mortal.world;
        let message = world.user("both add {} echo {}");
        mortal.killed(point, &message).await;
        world.done(&message.again()).await;
        assert_eq!(distinct(&world.tools.calls()).len(), 1, "{point:?}");
        world.done(&world.result(&newest(world), "E")).await;
        let story = world.story().await;
        assert_eq!(story[3..5], ["result: ran {}", "result: E"], "{point:?}");
    }
}

#[tokio::test]
async fn a_hold_is_part_of_the_stored_state_and_gone_when_the_call_is_out() {
    let world = serial(vec![calls(&["echo", "other"]), text("done")]).await;
    world.done(&world.user("go")).await;
    let holds = async || -> Vec<Option<Hold>> {
        let meta = world.store.meta(&ThreadId::from(THREAD)).await.unwrap().unwrap();
        meta.pending.into_iter().map(|call| call.hold).collect()
    };
    assert_eq!(holds().await, [None, Some(Hold::Turn)]);
    world.done(&world.result(&newest(&world), "1")).await;
    assert_eq!(holds().await, [None, None]);
}
