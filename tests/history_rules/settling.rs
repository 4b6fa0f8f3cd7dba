//! What settles a call: its result, user text, the runtime; and what comes too late.

use super::*;

#[test]
fn f05_the_second_result_of_a_call_has_no_effect() {
    let (mut thread, made) = Thread::calling(1);
    assert_eq!(thread.arrives(&result(&made[0], "Error: no")), Accepted::Ready);
    assert_eq!(thread.arrives(&result(&made[0], "yes")), Accepted::Duplicate, "in the same batch");
    thread.model(&[says("ok")]);
    assert_eq!(thread.arrives(&result(&made[0], "yes")), Accepted::Duplicate, "and later");
    assert_eq!(settlements(thread.rows.bodies().iter(), &made[0]), 1);
    assert_eq!(thread.request()[2], "R f0=Error: no");
}

#[test]
fn f05_a_second_result_of_a_parked_call_has_no_effect_and_releases_nothing() {
    let (mut thread, made) = Thread::calling(2);
    thread.arrives(&event(&made[0], "ding"));
    thread.arrives(&result(&made[1], "first"));
    thread.ends();
    assert_eq!(thread.arrives(&result(&made[1], "second")), Accepted::Duplicate);
    assert_eq!(thread.arrives(&result(&CallId::new("c0-9-nobody"), "x")), Accepted::Foreign);
    assert!(!thread.history.has_unsynced() && !thread.history.has_unvalidated());
    assert_eq!(thread.rows.parked.len(), 2);
    thread.arrives(&result(&made[0], "a"));
    assert_eq!(thread.request()[2], "R f0=a, f1=first");
}

#[test]
fn f01_user_text_brings_in_the_results_that_have_arrived_and_interrupts_the_other_calls() {
    let (mut thread, made) = Thread::calling(3);
    thread.arrives(&result(&made[1], "b"));
    thread.ends();
    assert_eq!(thread.arrives(&user("stop")), Accepted::Ready);
    let results = format!("R f0={}, f1=b, f2={}", by_user("f0"), by_user("f2"));
    assert_eq!(thread.request(), ["U go", "A [f0][f1][f2]", &results, "U stop"]);
    thread.sync();
    assert_eq!(thread.kinds()[4..], ["interrupt", "tool_result", "interrupt"]);
    assert!(thread.rows.parked.is_empty(), "the barrier removes the parked row");
    let cancelled: Vec<CallId> =
        thread.history.take_interrupted_tool_calls().into_iter().map(|pending| pending.call).collect();
    assert_eq!(cancelled, [made[0].clone(), made[2].clone()], "the answered call is not cancelled");
}

#[test]
fn markers_of_a_committed_step_are_known_safe() {
    let (mut thread, _) = Thread::calling(1);
    thread.arrives(&user("hi"));
    assert!(thread.history.has_unsynced(), "the marker");
    assert!(thread.history.has_unvalidated(), "the text");
    thread.sync();
    assert_eq!(thread.kinds(), ["user", "tool_call", "interrupt"]);
    thread.crashes();
    thread.arrives(&user("hi"));
    assert_eq!(thread.request()[3], "U hi");
    assert_eq!(thread.request()[2], format!("R f0={}", by_user("f0")), "found, not repeated");
}

#[test]
fn a_marker_behind_an_unvalidated_input_stays_unvalidated_and_is_never_dropped() {
    // One synchronous call has run, its sibling has not, and the user speaks (resident mode).
    let mut thread = Thread::new();
    thread.arrives(&user("go"));
    let made = thread.model(&[calls("p", "a", "{}"), calls("p", "b", "{}")]);
    let parts = vec![ContentPart::text("a very long result of a")];
    thread.history.settle(&made[0], Outcome::Ok, parts, SettledBy::Tool, Layer::Unvalidated, 0);
    thread.arrives(&user("stop"));
    assert!(!thread.history.has_unsynced(), "known-safe always precedes unvalidated");
    while thread.history.leave_out_largest_input(dormouse::message::LeftOut::TooLarge).is_some() {}
    let marker = |body: &&ItemBody| matches!(body, ItemBody::Interrupt(_));
    assert_eq!(thread.history.current_turn_view("m").iter().filter(marker).count(), 1);
    assert_eq!(thread.request()[2], format!("R a={}, b={}", wording::RESULT_LEFT_OUT, by_user("b")));
    assert_eq!(thread.request()[3], format!("U {}", wording::TOO_LARGE));
}

#[test]
fn f65_a_result_behind_the_users_interruption_is_kept_as_a_note_that_opens_no_turn() {
    let (mut thread, made) = Thread::calling(1);
    thread.arrives(&user("hi"));
    thread.model(&[says("hello")]);
    let turn = thread.rows.meta.next_turn;
    assert_eq!(thread.arrives(&result(&made[0], "done")), Accepted::Note);
    assert!(!thread.history.has_unvalidated(), "nothing to ask the model");
    thread.ends();
    let Some(Item { body: ItemBody::User(note), facts, .. }) = thread.rows.items.last() else {
        panic!("no note");
    };
    assert_eq!(note.synthetic_reason, Some(SyntheticReason::LateResult));
    assert!(!facts.opens_turn);
    assert_eq!(thread.rows.meta.next_turn, turn);
    assert_eq!(settlements(thread.rows.bodies().iter(), &made[0]), 1, "one result stays");
    let request = thread.request();
    assert_eq!(request[2], format!("R f0={}", by_user("f0")));
    assert!(request[5].starts_with("U [late result of f0"), "{request:?}");
    assert!(request[5].ends_with("done"));
}

#[test]
fn f65_a_late_result_keeps_its_images() {
    let (mut thread, made) = Thread::calling(1);
    thread.arrives(&user("hi"));
    thread.model(&[says("hello")]);
    let mut late = result(&made[0], "a picture");
    let picture = ContentPart::Image {
        data: dormouse::message::ImageData::Url("https://x/y.png".into()),
        media_type: None,
    };
    if let dormouse::message::InputContent::ToolResult(result) = &mut late.content {
        result.content.push(picture.clone());
    }
    assert_eq!(thread.arrives(&late), Accepted::Note);
    thread.ends();
    let Some(ItemBody::User(note)) = thread.rows.items.last().map(|item| &item.body) else {
        panic!("no note")
    };
    assert!(note.parts.contains(&picture));
}

#[test]
fn f65_a_result_behind_an_events_interruption_is_a_note_too() {
    let (mut thread, made) = Thread::calling(1);
    thread.passive(&made[0]);
    assert_eq!(thread.arrives(&event(&made[0], "ding")), Accepted::Ready);
    thread.model(&[says("heard")]);
    assert_eq!(thread.arrives(&result(&made[0], "woke up")), Accepted::Note);
    assert_eq!(thread.request()[2], format!("R f0={}", by_event("f0")));
    assert!(thread.request().last().is_some_and(|line| line.ends_with("woke up")));
}

#[test]
fn i1_a_result_that_is_accepted_but_not_committed_leaves_its_call_pending() {
    // A late note of an older call comes in the same batch: the barrier has something to write. Then the model
    // is throttled, or the process dies.
    let (mut thread, old) = Thread::calling(1);
    thread.arrives(&user("never mind"));
    let made = thread.model(&[calls("p", "f", "{}")]);
    let (late, answer) = (result(&old[0], "late"), result(&made[0], "42"));
    assert_eq!(thread.arrives(&late), Accepted::Note);
    assert_eq!(thread.arrives(&answer), Accepted::Ready);
    thread.sync();
    assert_eq!(thread.rows.meta.pending.len(), 1, "its result is in memory only");
    thread.crashes();
    assert_eq!(thread.arrives(&answer), Accepted::Ready, "no late note");
    assert!(thread.request().contains(&"R f=42".to_owned()), "{:?}", thread.request());
    thread.model(&[says("ok")]);
    assert!(thread.rows.meta.pending.is_empty());
}

#[test]
fn i1_a_parked_result_stays_parked_while_what_brings_it_in_is_not_committed() {
    let (mut thread, old) = Thread::calling(1);
    thread.arrives(&user("never mind"));
    let made = thread.model(&[calls("p", "f", "{}"), calls("p", "g", "{}")]);
    thread.arrives(&result(&made[1], "g1"));
    thread.ends();
    assert_eq!(thread.arrives(&result(&old[0], "late")), Accepted::Note);
    let answer = result(&made[0], "f1");
    assert_eq!(thread.arrives(&answer), Accepted::Ready);
    thread.sync();
    let parked: Vec<bool> = thread.rows.meta.pending.iter().map(|pending| pending.parked).collect();
    assert_eq!(parked, [false, true]);
    thread.crashes();
    assert_eq!(thread.arrives(&answer), Accepted::Ready);
    assert!(thread.request().contains(&"R f=f1, g=g1".to_owned()), "{:?}", thread.request());
}

#[test]
fn i7_a_call_settled_inside_the_slice_brings_in_what_its_siblings_have_parked() {
    let (mut thread, made) = Thread::calling(2);
    thread.arrives(&result(&made[1], "b"));
    thread.ends();
    let parts = vec![ContentPart::text("a")];
    thread.history.settle(&made[0], Outcome::Ok, parts, SettledBy::Tool, Layer::Safe, 0);
    assert!(thread.history.is_settled());
    assert_eq!(thread.request()[2], "R f0=a, f1=b");
    // It dies when only the first is committed: loading finds the step answered.
    thread.sync();
    thread.crashes();
    assert_eq!(thread.request()[2], "R f0=a, f1=b");
}

#[test]
fn settling_a_call_whose_result_has_arrived_has_no_effect() {
    let (mut thread, made) = Thread::calling(2);
    thread.arrives(&result(&made[0], "real"));
    let parts = vec![ContentPart::text("Error: lost")];
    thread.history.settle(&made[0], Outcome::Lost, parts, SettledBy::Runtime, Layer::Safe, 0);
    assert_eq!(thread.history.open_calls().count(), 2);
    thread.arrives(&result(&made[1], "b"));
    assert_eq!(thread.request()[2], "R f0=real, f1=b");
}

#[test]
fn a_step_that_runs_inside_the_slice_is_one_step_with_its_results() {
    let mut thread = Thread::new();
    thread.arrives(&user("go"));
    let made = answer(&mut thread.history, &[says("two"), calls("p", "f", "{}"), calls("p", "g", "{}")]);
    thread.sync();
    for call in &made {
        let parts = vec![ContentPart::text(call.name.clone())];
        thread.history.settle(&call.call_id, Outcome::Ok, parts, SettledBy::Tool, Layer::Unvalidated, 0);
    }
    assert_eq!(thread.request(), ["U go", "A two[f][g]", "R f=f, g=g"]);
    assert_eq!(thread.rows.meta.pending.len(), 2, "not committed before the model has seen them");
    thread.model(&[says("done")]);
    assert!(thread.rows.meta.pending.is_empty());
}
