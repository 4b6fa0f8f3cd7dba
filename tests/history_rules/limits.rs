//! Bounds: what one commit holds, where a child may begin, what is left out when the window overflows.

use super::*;

/// Commits of what is to be written now, each within the bounds of a transaction (`Rows` checks that).
fn commits(thread: &mut Thread) -> usize {
    let before = thread.rows.commits;
    thread.sync();
    thread.rows.commits - before
}

#[test]
fn thirty_two_results_and_twelve_events_of_one_batch_take_several_commits() {
    let (mut thread, made) = Thread::calling(MAX_CALLS);
    for n in 0..MAX_WAITING {
        thread.arrives(&event(&made[0], &format!("ding {n}")));
    }
    for call in &made[1..] {
        let mut subscribing = result(call, "r");
        subscribing.subscription = true;
        assert_eq!(thread.arrives(&subscribing), Accepted::Parked);
    }
    assert!(commits(&mut thread) > 1);
    assert_eq!(thread.rows.parked.len(), MAX_CALLS - 1 + MAX_WAITING);
    thread.crashes();
    assert_eq!(thread.arrives(&result(&made[0], "r")), Accepted::Ready);
    let request = thread.request();
    answer(&mut thread.history, &[says("done")]);
    assert!(commits(&mut thread) > 1);
    thread.crashes();
    assert_eq!(thread.request()[..request.len() - 1], request[..request.len() - 1]);
    assert!(thread.rows.parked.is_empty() && thread.rows.meta.pending.is_empty());
    assert_eq!(thread.kinds().iter().filter(|kind| *kind == "event").count(), MAX_WAITING);
}

#[test]
fn i1_a_crash_between_two_commits_of_one_sync_loses_no_result() {
    // Results that arrived in one resident batch, never parked: each is three actions.
    let (mut thread, made) = Thread::calling(MAX_CALLS);
    let results: Vec<_> = made
        .iter()
        .map(|call| {
            let mut message = result(call, &format!("r of {call}"));
            message.subscription = true;
            message
        })
        .collect();
    for message in &results {
        thread.arrives(message);
    }
    thread.history.mark_inputs_model_validated();
    let plan = thread.history.plan();
    assert!(plan.more);
    thread.rows.write(&plan);
    thread.crashes();
    let left = thread.rows.meta.pending.len();
    assert_eq!(left, MAX_CALLS - plan.items.len(), "what is not committed is still pending");
    thread.sent = MAX_CALLS - left + 1;
    for message in &results[MAX_CALLS - left..] {
        assert!(matches!(thread.arrives(message), Accepted::Parked | Accepted::Ready));
    }
    let request = thread.request();
    assert!(made.iter().all(|call| request[2].contains(&format!("r of {call}"))), "{}", request[2]);
}

#[test]
fn i7_a_response_without_end_still_fits_one_commit() {
    let mut thread = Thread::new();
    thread.arrives(&user("go"));
    thread.history.mark_inputs_model_validated();
    for n in 0..40 {
        thread.history.buffer(&thinks(&format!("{n}")));
        thread.history.buffer(&signs());
        thread.history.buffer(&says("x"));
    }
    for n in 0..500 {
        thread.history.buffer(&calls("call_0", "f", &format!("{{\"n\":{n}}}")));
    }
    let made = thread.history.flush_turn_trimming_reasoning("m", "tool_use", None, 0);
    assert!(made.len() > MAX_CALLS, "some of those above the bound are there to be refused: {}", made.len());
    for call in &made {
        let parts = vec![ContentPart::text("Error: no")];
        let by = SettledBy::Runtime;
        thread.history.settle(&call.call_id, Outcome::Refused, parts, by, Layer::WithResponse, 0);
    }
    thread.rows.responses.push(made.iter().map(|call| call.call_id.clone()).collect());
    thread.sync();
    thread.rendered();
    assert!(thread.rows.meta.pending.is_empty());
}

#[test]
fn a_child_begins_before_the_step_that_is_not_answered_whole() {
    let mut thread = Thread::new();
    thread.arrives(&user("go"));
    thread.model(&[says("hello")]);
    assert_eq!(thread.history.safe_spawn_point(), Seq(2), "everything committed");
    thread.arrives(&user("both"));
    assert_eq!(thread.history.safe_spawn_point(), Seq(2), "nothing unvalidated");
    let made = thread.model(&[says("well"), calls("p", "a", "{}"), calls("p", "b", "{}")]);
    assert_eq!(thread.history.safe_spawn_point(), Seq(4), "no call without its result");
    let parts = vec![ContentPart::text("1")];
    thread.history.settle(&made[0], Outcome::Ok, parts, SettledBy::Tool, Layer::Safe, 0);
    thread.sync();
    assert_eq!(thread.history.safe_spawn_point(), Seq(4), "nor an answered one without its result");
    thread.arrives(&result(&made[1], "2"));
    assert_eq!(thread.history.safe_spawn_point(), Seq(4), "its result is not committed");
    thread.model(&[says("done")]);
    assert_eq!(thread.history.safe_spawn_point(), thread.rows.last());
}

#[test]
fn an_empty_thread_has_nothing_to_inherit() {
    assert_eq!(Thread::new().history.safe_spawn_point(), Seq(0));
}

#[test]
fn overflow_leaves_out_the_largest_input_first_and_ends() {
    let (mut thread, made) = Thread::calling(2);
    thread.arrives(&result(&made[0], &"a".repeat(500)));
    thread.arrives(&result(&made[1], &"b".repeat(2_000)));
    thread.arrives(&user(&"c".repeat(1_000)));
    let left_out = |thread: &Thread| {
        let text = thread.request().join("\n");
        ["a".repeat(500), "b".repeat(2_000), "c".repeat(1_000)].map(|input| !text.contains(&input))
    };
    let mut steps = Vec::new();
    while thread.history.leave_out_largest_input(dormouse::message::LeftOut::TooLarge).is_some() {
        steps.push(left_out(&thread));
        assert!(steps.len() <= 3, "it never ends");
    }
    assert_eq!(steps, [[false, true, false], [false, true, true], [true, true, true]]);
    // The fact is stored with the content: the thread does not meet it again, and nothing is rewritten (I8).
    thread.model(&[says("ok")]);
    assert_eq!(left_out(&thread), [true, true, true]);
    assert_eq!(settlements(thread.rows.bodies().iter(), &made[1]), 1);
}

#[test]
fn what_is_committed_or_validated_is_never_left_out() {
    let mut thread = Thread::new();
    thread.arrives(&user("one"));
    thread.model(&[says("1")]);
    assert!(thread.history.leave_out_largest_input(dormouse::message::LeftOut::TooLarge).is_none());
    thread.arrives(&user("two"));
    thread.history.mark_inputs_model_validated();
    assert!(thread.history.leave_out_largest_input(dormouse::message::LeftOut::TooLarge).is_none());
}

#[test]
fn i2_an_input_is_taken_once_under_its_dedup_id() {
    let mut thread = Thread::new();
    let again = arrival(1, "d1");
    assert_eq!(thread.history.accept(&user("yes"), &again), Accepted::Ready);
    assert_eq!(thread.history.accept(&user("yes"), &again), Accepted::Duplicate);
    assert_eq!(
        thread.history.accept(&user("yes"), &arrival(2, "d2")),
        Accepted::Ready,
        "said twice: kept twice"
    );
    assert_eq!(thread.request(), ["U yes | yes"]);
}

#[test]
fn i9_a_stored_turn_index_that_cannot_grow_stops_no_thread() {
    let mut thread = Thread::new();
    thread.rows.meta.next_turn = u32::MAX;
    thread.crashes();
    assert_eq!(thread.arrives(&user("hi")), Accepted::Ready);
    thread.model(&[says("hello")]);
    assert_eq!(thread.rows.meta.next_turn, u32::MAX);
}
