//! The crash table of the design, row by row: a slice is killed there, its message is delivered again, and the
//! conversation ends as the one in which nobody was killed. The real binary is killed in `lambda_runtime.rs`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/crash.rs"]
mod crash;
#[path = "support/world.rs"]
mod world;

use std::collections::{BTreeMap, BTreeSet};

use crash::{Mortal, Point, distinct};
use dormouse::message::{CallId, DedupId, ItemBody, MessageId, ThreadId};
use dormouse::store::{ConversationStore, StateStore};
use world::{Delivery, THREAD, World};

/// One input of a conversation.
#[derive(Clone, Copy, Debug)]
enum Step {
    Says(&'static str),
    /// The result of the n-th call of the conversation, from 0.
    Answers(usize, &'static str),
}
use Step::{Answers, Says};

/// What a conversation has come to. Equal for the killed and the unkilled, ids included: they all derive from
/// their causes.
#[derive(Debug, PartialEq)]
struct Came {
    story: Vec<String>,
    calls: Vec<CallId>,
    pending: Vec<CallId>,
    open: Vec<MessageId>,
    parked: usize,
    /// Texts by message id: sending is at least once, and a reader knows a repeat by its id.
    output: BTreeMap<String, String>,
    dispatched: BTreeSet<CallId>,
    ran: BTreeSet<CallId>,
    cancelled: BTreeSet<CallId>,
    processed: Vec<bool>,
}

/// What was found right after the kill, and what the redelivery did.
struct Redelivered {
    /// The history that the dead slice left.
    stored: Vec<String>,
    /// Whether its cause was left open.
    open: bool,
    /// Calls that tools had received when it died.
    received: usize,
    /// Notices that had gone out when it died.
    noticed: usize,
    /// Requests to the model that the redelivery made.
    asked: usize,
    came: Came,
}

async fn delivery(world: &World, step: Step) -> Delivery {
    match step {
        Says(text) => world.user(text),
        Answers(call, text) => world.result(&calls(world).await[call], text),
    }
}

async fn calls(world: &World) -> Vec<CallId> {
    let items = world.items().await.into_iter();
    let call = |body: ItemBody| if let ItemBody::ToolCall(call) = body { Some(call.call_id) } else { None };
    items.filter_map(|item| call(item.body)).collect()
}

async fn came(world: &World, deliveries: &[Delivery]) -> Came {
    let loaded = world.store.load(&ThreadId::from(THREAD), &[]).await.unwrap();
    let meta = loaded.meta.unwrap();
    let mut processed = Vec::new();
    for delivery in deliveries {
        let dedup = DedupId::new(&delivery.dedup);
        processed.push(world.store.is_message_processed(&ThreadId::from(THREAD), &dedup).await.unwrap());
    }
    let ids =
        |invocations: Vec<dormouse::tools::Invocation>| invocations.into_iter().map(|it| it.call).collect();
    let output = world.output.sent.lock().unwrap().clone();
    Came {
        story: world.story().await,
        calls: calls(world).await,
        pending: meta.pending.into_iter().map(|pending| pending.call).collect(),
        open: meta.open,
        parked: loaded.parked.len(),
        output: output.into_iter().map(|message| (message.message_id, message.text)).collect(),
        dispatched: ids(world.tools.dispatched()),
        ran: ids(world.tools.ran.lock().unwrap().clone()),
        cancelled: distinct(&world.tools.cancelled.lock().unwrap()),
        processed,
    }
}

/// The conversation in which nobody is killed.
async fn unkilled(steps: &[Step]) -> Came {
    let mortal = Mortal::new().await;
    let mut deliveries = Vec::new();
    for step in steps {
        let delivery = delivery(&mortal.world, *step).await;
        mortal.world.done(&delivery).await;
        deliveries.push(delivery);
    }
    came(&mortal.world, &deliveries).await
}

/// The same conversation, with the slice of step `killed` killed at `point` and its message delivered again.
async fn killed(steps: &[Step], killed: usize, point: Point) -> Redelivered {
    let mortal = Mortal::new().await;
    let world = &mortal.world;
    let mut deliveries = Vec::new();
    let mut found = (Vec::new(), false, 0, 0, 0);
    for (at, step) in steps.iter().enumerate() {
        let delivery = delivery(world, *step).await;
        if at == killed {
            mortal.killed(point, &delivery).await;
            let meta = world.store.meta(&ThreadId::from(THREAD)).await.unwrap();
            let open = meta.is_some_and(|meta| !meta.open.is_empty());
            let noticed = world.tools.cancelled.lock().unwrap().len();
            found = (world.story().await, open, world.tools.calls().len(), noticed, world.model.calls());
            world.done(&delivery.again()).await;
            found.4 = world.model.calls() - found.4;
        } else {
            world.done(&delivery).await;
        }
        deliveries.push(delivery);
    }
    let came = came(world, &deliveries).await;
    let (stored, open, received, noticed, asked) = found;
    Redelivered { stored, open, received, noticed, asked, came }
}

/// Kills there and compares; what is left to say is what was stored and what the redelivery did.
async fn survives(steps: &[Step], at: usize, point: Point) -> Redelivered {
    let (expected, redelivered) = (unkilled(steps).await, killed(steps, at, point).await);
    assert_eq!(redelivered.came, expected, "{point:?} of {:?}", steps[at]);
    assert!(redelivered.came.processed.iter().all(|processed| *processed), "{point:?}");
    redelivered
}

const PLAIN: [Step; 2] = [Says("say one"), Says("seen")];
const INTERRUPT: [Step; 3] = [Says("call echo {}"), Says("say stopped"), Says("seen")];
/// One of two results is parked when the user interrupts.
const PARKED: [Step; 4] = [Says("both echo {} other {}"), Answers(1, "B"), Says("say stopped"), Says("seen")];
const CALLS: [Step; 4] = [Says("both echo {} other {}"), Answers(0, "A"), Answers(1, "B"), Says("seen")];
const SYNCHRONOUS: [Step; 2] = [Says(r#"call add {"text":"1"}"#), Says("seen")];
/// A synchronous call and an asynchronous one in one step.
const MIXED: [Step; 3] = [Says("both add {} echo {}"), Answers(1, "E"), Says("seen")];

#[tokio::test]
async fn row_before_the_barrier_nothing_is_stored_and_it_runs_again() {
    let first = survives(&PLAIN, 0, Point::Load).await;
    assert!(first.stored.is_empty());
    assert_eq!(first.asked, 1);
    let interrupt = survives(&INTERRUPT, 1, Point::CommitAsked(1)).await;
    assert_eq!(interrupt.stored, ["user: call echo {}", "call: echo {}"]);
    assert_eq!(interrupt.noticed, 0, "nothing is cancelled before it is durable");
    let parked = survives(&PARKED, 2, Point::CommitAsked(1)).await;
    assert_eq!(parked.stored.len(), 3, "{:?}", parked.stored);
    assert_eq!(parked.noticed, 0);
}

#[tokio::test]
async fn row_after_the_barrier_before_its_notices_they_are_resumed_and_markers_are_not_repeated() {
    let interrupt = survives(&INTERRUPT, 1, Point::CommitWritten(1)).await;
    assert_eq!(interrupt.stored, ["user: call echo {}", "call: echo {}", "interrupt"]);
    assert_eq!(interrupt.noticed, 0);
    assert_eq!(interrupt.came.cancelled.len(), 1, "the notice went out with the redelivery");
    let parked = survives(&PARKED, 2, Point::CommitWritten(1)).await;
    assert!(parked.stored.contains(&"result: B".to_owned()), "released: {:?}", parked.stored);
    assert_eq!(parked.came.cancelled.len(), 1, "only the unanswered call");
    // The notice itself: not out, and out with nobody left to hear the answer.
    assert_eq!(survives(&INTERRUPT, 1, Point::CancelAsked).await.noticed, 0);
    assert_eq!(survives(&INTERRUPT, 1, Point::CancelTaken).await.noticed, 1);
}

#[tokio::test]
async fn row_while_the_model_streams_the_model_is_asked_again_and_half_an_answer_is_never_stored() {
    let plain = survives(&PLAIN, 0, Point::Streaming(1)).await;
    assert!(plain.stored.is_empty());
    assert_eq!(plain.asked, 1);
    let interrupt = survives(&INTERRUPT, 1, Point::Streaming(1)).await;
    assert_eq!(
        interrupt.stored,
        ["user: call echo {}", "call: echo {}", "interrupt"],
        "as after the barrier"
    );
    let woken = survives(&CALLS, 2, Point::Streaming(1)).await;
    assert_eq!(woken.stored.len(), 3, "the parked results are still parked: {:?}", woken.stored);
    // The response has ended and its commit is not written.
    for (steps, at) in [(&PLAIN[..], 0), (&CALLS[..], 0), (&CALLS[..], 2)] {
        let redelivered = survives(steps, at, Point::CommitAsked(1)).await;
        assert_eq!(redelivered.asked, 1, "{at} of {steps:?}");
    }
}

#[tokio::test]
async fn row_after_the_commit_of_a_synchronous_step_it_goes_on_from_there() {
    for point in [Point::CommitWritten(1), Point::Ran("add"), Point::Streaming(2), Point::CommitAsked(2)] {
        let redelivered = survives(&SYNCHRONOUS, 0, point).await;
        assert_eq!(redelivered.stored, [r#"user: call add {"text":"1"}"#, r#"call: add {"text":"1"}"#]);
        assert!(redelivered.open, "{point:?}: its cause is open");
        assert_eq!(redelivered.asked, 1, "{point:?}: only for what follows the step");
    }
    for point in [Point::CommitWritten(1), Point::Ran("add"), Point::CommitAsked(2)] {
        let redelivered = survives(&MIXED, 0, point).await;
        assert!(redelivered.open && redelivered.asked == 0, "{point:?}: the sibling's result wakes it");
        assert_eq!(redelivered.came.dispatched.len(), 1, "{point:?}");
    }
    // The one thing that a crash may change: what must not run twice is answered as lost, and has not run twice.
    for (point, runs) in [(Point::CommitWritten(1), 0), (Point::Ran("pay"), 1)] {
        let redelivered = killed(&[Says("call pay {}")], 0, point).await;
        assert!(
            redelivered.came.story[2].contains("the result of pay was lost"),
            "{redelivered:?}",
            redelivered = redelivered.came
        );
        assert_eq!(redelivered.came.ran.len(), runs);
        assert!(redelivered.came.open.is_empty() && redelivered.came.pending.is_empty());
    }
}

#[tokio::test]
async fn row_after_the_commit_before_dispatch_the_duplicate_resumes_the_outbox() {
    let points = [Point::CommitWritten(1), Point::OutputAsked, Point::OutputSent];
    for point in points {
        let calls = survives(&CALLS, 0, point).await;
        assert_eq!(calls.stored.len(), 3, "{point:?}: the step is stored");
        assert_eq!((calls.received, calls.asked), (0, 0), "{point:?}: nothing was out, and nobody is asked");
        assert_eq!(calls.came.dispatched.len(), 2, "{point:?}");
        // An answer without calls has an outbox as well.
        let plain = survives(&PLAIN, 0, point).await;
        assert_eq!((plain.stored.len(), plain.asked), (2, 0), "{point:?}");
        assert_eq!(plain.came.output.len(), 2, "{point:?}: one answer a text");
        // The answer to the last result.
        assert_eq!(survives(&CALLS, 2, point).await.asked, 0, "{point:?}");
    }
    // A parked result has nothing to send; its redelivery has nothing to do.
    assert_eq!(survives(&CALLS, 1, Point::CommitWritten(1)).await.asked, 0);
}

#[tokio::test]
async fn row_between_two_dispatches_all_are_resent_under_the_same_ids() {
    for point in [Point::CallAsked("other"), Point::CallAsked("echo")] {
        let redelivered = survives(&CALLS, 0, point).await;
        assert_eq!((redelivered.received, redelivered.asked), (1, 0), "{point:?}: one call was out");
        assert_eq!(redelivered.came.dispatched.len(), 2, "{point:?}");
    }
}

#[tokio::test]
async fn row_after_dispatch_before_the_acknowledgement_they_are_resent_once_more_under_the_same_ids() {
    for point in [Point::CallTaken("other"), Point::CallTaken("echo")] {
        let redelivered = survives(&CALLS, 0, point).await;
        assert_eq!((redelivered.received, redelivered.asked), (2, 0), "{point:?}");
    }
    // The slice has ended, and the queue does not know.
    for (steps, at) in
        [(&PLAIN[..], 0), (&CALLS[..], 0), (&CALLS[..], 1), (&CALLS[..], 2), (&INTERRUPT[..], 1)]
    {
        let expected = unkilled(steps).await;
        let mortal = Mortal::new().await;
        let mut deliveries = Vec::new();
        for (place, step) in steps.iter().enumerate() {
            let delivery = delivery(&mortal.world, *step).await;
            mortal.world.done(&delivery).await;
            if place == at {
                let asked = mortal.world.model.calls();
                mortal.world.done(&delivery.again()).await;
                assert_eq!(mortal.world.model.calls(), asked, "step {at} of {steps:?}");
            }
            deliveries.push(delivery);
        }
        assert_eq!(came(&mortal.world, &deliveries).await, expected, "step {at} of {steps:?}");
    }
}

/// What the user is told of a message that died.
const PUT_ASIDE: &str = "put aside for an operator";

/// The same conversation, with the slice of step `at` killed at `point` on the last receive that the queue allows.
/// What follows it goes on; the world is at rest afterwards.
async fn dies(steps: &[Step], at: usize, point: Point) -> Mortal {
    let mortal = Mortal::new().await;
    let world = &mortal.world;
    for step in &steps[..at] {
        world.done(&delivery(world, *step).await).await;
    }
    let delivery = delivery(world, steps[at]).await;
    mortal.killed(point, &delivery).await;
    world.dies(&delivery).await;
    let cause = MessageId::new(&delivery.message_id);
    let kept = world.store.dead_letter(&ThreadId::from(THREAD), &cause).await;
    assert_eq!(kept.unwrap().unwrap().body, delivery.body, "{point:?}: it is kept whole");
    let (story, output) = (world.story().await, world.output.texts());
    // Whoever drained it died before the queue knew.
    world.dies(&delivery).await;
    assert_eq!((world.story().await, world.output.texts()), (story, output), "{point:?}: once is enough");
    let meta = world.meta().await;
    assert!(meta.open.is_empty(), "{point:?} of {:?}: {meta:?}", steps[at]);
    let waits = meta.pending.iter().any(|pending| pending.cause.contains(&cause));
    assert!(!waits, "{point:?} of {:?}: {meta:?}", steps[at]);
    let parked = world.store.load(&ThreadId::from(THREAD), &[]).await.unwrap().parked;
    assert!(parked.is_empty() || !meta.pending.is_empty(), "{point:?} of {:?}: {parked:?}", steps[at]);
    // A placeholder at the latest, for ever.
    let said = steps[..=at].iter().filter(|step| matches!(step, Says(_))).count();
    let story = world.story().await;
    let users = story.iter().filter(|line| line.starts_with("user: ")).count();
    assert_eq!(users, said, "{point:?} of {:?}: {story:?}", steps[at]);
    world.done(&world.user("say still there")).await;
    assert_eq!(world.output.texts().last().unwrap(), "still there", "{point:?} of {:?}", steps[at]);
    world.settle().await;
    assert!(world.meta().await.redelivered.is_empty(), "{point:?}: nothing of it is owed any more");
    mortal
}

#[tokio::test]
async fn row_on_the_last_allowed_receive_as_far_as_it_got_then_the_drain() {
    // Nothing of it is stored: a placeholder stands for it.
    for point in [Point::Load, Point::Streaming(1), Point::CommitAsked(1)] {
        let mortal = dies(&PLAIN, 0, point).await;
        let story = mortal.world.story().await;
        assert_eq!(story[0], "user: [a message was left out: it could not be processed]", "{point:?}");
        assert!(mortal.world.output.texts()[0].contains(PUT_ASIDE), "{point:?}");
    }
    for point in [Point::CommitAsked(1), Point::CommitWritten(1), Point::CancelAsked, Point::CancelTaken] {
        let mortal = dies(&INTERRUPT, 1, point).await;
        assert!(mortal.world.output.texts().iter().any(|text| text.contains(PUT_ASIDE)), "{point:?}");
    }
    dies(&PARKED, 2, Point::CommitWritten(1)).await;
    // Half-way through a synchronous step: what may have run is lost, and the model goes on from there.
    for point in [Point::CommitWritten(1), Point::Ran("add"), Point::Streaming(2)] {
        let mortal = dies(&SYNCHRONOUS, 0, point).await;
        let story = mortal.world.story().await;
        assert!(story[2].contains("the result of add was lost"), "{point:?}: {story:?}");
        assert!(story[3].starts_with("assistant: "), "{point:?}: {story:?}");
        assert!(mortal.world.output.texts().iter().any(|text| text.contains(PUT_ASIDE)), "{point:?}");
    }
    // Its calls are stored: whether they are out or not, nobody waits for them, and the model is told.
    let points = [
        Point::CommitWritten(1),
        Point::OutputAsked,
        Point::OutputSent,
        Point::CallAsked("other"),
        Point::CallTaken("echo"),
    ];
    for point in points {
        let mortal = dies(&CALLS, 0, point).await;
        let story = mortal.world.story().await;
        for (at, tool) in [(3, "echo"), (4, "other")] {
            assert!(story[at].contains(&format!("the result of {tool} was lost")), "{point:?}: {story:?}");
        }
        let out = mortal.world.tools.calls().len();
        assert!(out <= 2, "{point:?}: {out} calls, none of them sent after it was settled");
        // The tool's own word, if it comes after all, is a note.
        let calls = calls(&mortal.world).await;
        mortal.world.done(&mortal.world.result(&calls[0], "A")).await;
        let story = mortal.world.story().await;
        assert!(story.last().unwrap().contains("late result of echo"), "{point:?}: {story:?}");
    }
    dies(&MIXED, 0, Point::CallAsked("echo")).await;
    // An answer is stored and not published: it is published, and nothing went wrong that a user must know.
    for (steps, at) in [(&PLAIN[..], 0), (&CALLS[..], 2)] {
        for point in [Point::CommitWritten(1), Point::OutputAsked, Point::OutputSent] {
            let mortal = dies(steps, at, point).await;
            let texts = mortal.world.output.texts();
            let answer = if at == 0 { "one" } else { "result: " };
            assert!(texts.iter().any(|text| text.starts_with(answer)), "{point:?}: {texts:?}");
            assert!(!texts.iter().any(|text| text.contains(PUT_ASIDE)), "{point:?}: {texts:?}");
        }
    }
    // A result whose slice never got anywhere settles its call with an error.
    for point in [Point::Load, Point::CommitAsked(1)] {
        let mortal = dies(&CALLS, 2, point).await;
        let story = mortal.world.story().await;
        assert!(story.iter().any(|line| line == "result: A"), "{point:?}: the parked sibling: {story:?}");
        assert!(story.iter().any(|line| line.contains("could not be processed")), "{point:?}: {story:?}");
    }
}

#[tokio::test]
async fn a_message_whose_redelivery_is_killed_as_well_is_delivered_a_third_time() {
    let twice = [
        (&INTERRUPT[..], 1, Point::CommitAsked(1), Point::CommitWritten(1)),
        (&INTERRUPT[..], 1, Point::CommitWritten(1), Point::CancelTaken),
        (&SYNCHRONOUS[..], 0, Point::CommitWritten(1), Point::Ran("add")),
        (&MIXED[..], 0, Point::CommitWritten(1), Point::CallAsked("echo")),
        (&CALLS[..], 0, Point::CommitWritten(1), Point::OutputSent),
        (&CALLS[..], 0, Point::CallAsked("echo"), Point::CallAsked("other")),
        (&CALLS[..], 2, Point::Streaming(1), Point::CommitWritten(1)),
    ];
    for (steps, at, first, second) in twice {
        let expected = unkilled(steps).await;
        let mortal = Mortal::new().await;
        let mut deliveries = Vec::new();
        for (place, step) in steps.iter().enumerate() {
            let delivery = delivery(&mortal.world, *step).await;
            if place == at {
                mortal.killed(first, &delivery).await;
                mortal.killed(second, &delivery.again()).await;
            }
            let last = if place == at { delivery.again().again() } else { delivery.clone() };
            mortal.world.done(&last).await;
            deliveries.push(delivery);
        }
        assert_eq!(came(&mortal.world, &deliveries).await, expected, "{first:?}, then {second:?}");
    }
}

#[tokio::test]
async fn a_batch_that_died_may_come_back_whole_or_one_by_one() {
    let synchronous = [Says("say one"), Says("call add {}")];
    for point in [Point::CommitWritten(1), Point::Ran("add"), Point::Streaming(2), Point::CommitWritten(2)] {
        batch_survives(synchronous, point).await;
    }
    let asynchronous = [Says("say one"), Says("both echo {} other {}")];
    for point in [Point::CommitWritten(1), Point::OutputSent, Point::CallAsked("other")] {
        batch_survives(asynchronous, point).await;
    }
}

/// Kills the slice of a batch whose inputs are committed, and compares with the batch that nobody killed.
async fn batch_survives(steps: [Step; 2], point: Point) {
    let unkilled = Mortal::new().await;
    let batch = [delivery(&unkilled.world, steps[0]).await, delivery(&unkilled.world, steps[1]).await];
    assert!(unkilled.world.deliver(&batch).await.is_empty());
    let expected = came(&unkilled.world, &batch).await;
    for size in [2, 1] {
        let mortal = Mortal::new().await;
        let batch = [delivery(&mortal.world, steps[0]).await, delivery(&mortal.world, steps[1]).await];
        mortal.killed_batch(point, &batch).await;
        for again in batch.each_ref().map(Delivery::again).chunks(size) {
            assert!(mortal.world.deliver(again).await.is_empty());
        }
        assert_eq!(came(&mortal.world, &batch).await, expected, "{point:?}, {size} at a time");
    }
}
