//! Events and reports: they wait behind work, wake what only waits, and are inferred, not marked.

use super::*;

fn view(thread: &Thread) -> Vec<String> {
    thread.history.current_turn_view("m").iter().map(|body| body.kind().to_owned()).collect()
}

/// The text of each item that is an event, in order.
fn rang(thread: &Thread) -> Vec<String> {
    let event = |body: &ItemBody| match body {
        ItemBody::Event(event) => Some(text(&event.parts)),
        _ => None,
    };
    thread.history.current_turn_view("m").iter().filter_map(event).collect()
}

#[test]
fn rap_37_an_event_is_shown_as_an_injected_call_with_its_result() {
    let (mut thread, made) = Thread::calling(1);
    thread.arrives(&result(&made[0], "subscribed"));
    thread.model(&[says("ok")]);
    assert_eq!(thread.arrives(&event(&made[0], "ding")), Accepted::Ready);
    let request = thread.request();
    assert_eq!(request[3..], ["A ok[receive_event__injected]", "R receive_event__injected=ding"]);
    let RequestMessage::Assistant(said) = &thread.rendered().request.messages[3] else { panic!("no call") };
    assert!(said.calls[0].arguments.contains(made[0].as_str()), "names the call that subscribed");
    let turn = thread.rows.meta.next_turn;
    thread.model(&[says("heard")]);
    assert_eq!(thread.rows.meta.next_turn, turn + 1, "it opens a turn");
}

#[test]
fn rap_16_an_event_without_a_call_that_this_thread_knows_is_refused() {
    let mut thread = Thread::new();
    thread.arrives(&user("hi"));
    assert_eq!(thread.arrives(&event(&CallId::new("c0-9-nobody"), "ding")), Accepted::Foreign);
}

#[test]
fn d20_events_wait_behind_an_open_call_and_follow_its_result_in_arrival_order() {
    let (mut thread, made) = Thread::calling(1);
    for ding in ["1", "2"] {
        assert_eq!(thread.arrives(&event(&made[0], ding)), Accepted::Parked);
    }
    thread.ends();
    assert_eq!(thread.arrives(&report(&made[0], "3")), Accepted::Parked);
    assert_eq!(thread.arrives(&result(&made[0], "a")), Accepted::Ready);
    assert_eq!(thread.arrives(&user("later input of the batch")), Accepted::Ready);
    assert_eq!(view(&thread)[2..], ["tool_result", "event", "event", "event", "user"]);
    assert_eq!(rang(&thread), ["1", "2", "3"]);
    assert_eq!(thread.request()[2], "R f0=a", "the call has its own result: nothing is inferred");
    thread.model(&[says("ok")]);
    assert!(thread.rows.parked.is_empty());
    let opened: Vec<bool> = thread.rows.items.iter().map(|item| item.facts.opens_turn).collect();
    assert_eq!(
        opened,
        [true, false, false, false, false, false, true, false],
        "what joins a turn opens none"
    );
}

#[test]
fn events_that_waited_follow_the_user_text_that_released_them() {
    let (mut thread, made) = Thread::calling(1);
    thread.arrives(&event(&made[0], "1"));
    thread.ends();
    thread.arrives(&event(&made[0], "2"));
    thread.arrives(&user("stop"));
    assert_eq!(view(&thread)[2..], ["interrupt", "user", "event", "event"]);
    assert_eq!(rang(&thread), ["1", "2"]);
    assert_eq!(thread.request()[2], format!("R f0={}", by_user("f0")), "by the user, not by the event");
}

#[test]
fn an_event_wakes_a_call_that_only_waits_and_leaves_no_marker() {
    let (mut thread, made) = Thread::calling(1);
    thread.passive(&made[0]);
    assert_eq!(thread.arrives(&event(&made[0], "ding")), Accepted::Ready);
    assert_eq!(view(&thread)[2..], ["event"]);
    assert_eq!(thread.request()[2], format!("R f0={}", by_event("f0")));
    assert_eq!(thread.history.take_interrupted_tool_calls().len(), 1, "its server is told");
    thread.sync();
    assert_eq!(thread.rows.meta.pending.len(), 1, "the event is the record, and it is not committed yet");
    thread.model(&[says("awake")]);
    assert!(thread.rows.meta.pending.is_empty());
    assert_eq!(thread.kinds()[2..], ["event", "assistant"]);
}

#[test]
fn a_sleeping_call_holds_no_event_once_the_calls_at_work_are_answered() {
    // f0 works, f1 sleeps until something happens.
    let (mut thread, made) = Thread::calling(2);
    thread.passive(&made[1]);
    assert_eq!(thread.arrives(&result(&made[0], "a")), Accepted::Parked);
    thread.ends();
    thread.passive(&made[1]);
    assert_eq!(thread.arrives(&event(&made[0], "ding")), Accepted::Ready, "or both would wait for ever");
    assert_eq!(thread.request()[2], format!("R f0=a, f1={}", by_event("f1")));
    assert_eq!(rang(&thread), ["ding"]);
}

#[test]
fn a_result_releases_the_event_behind_it_which_wakes_the_sleeping_sibling() {
    let (mut thread, made) = Thread::calling(2);
    thread.passive(&made[1]);
    assert_eq!(thread.arrives(&event(&made[0], "ding")), Accepted::Parked, "f0 is at work");
    thread.ends();
    assert_eq!(thread.arrives(&result(&made[0], "a")), Accepted::Ready);
    assert_eq!(view(&thread)[3..], ["tool_result", "event"]);
    assert_eq!(thread.request()[2], format!("R f0=a, f1={}", by_event("f1")));
    thread.model(&[says("ok")]);
    assert!(thread.rows.meta.pending.is_empty() && thread.rows.parked.is_empty());
}

#[test]
fn two_sleeping_calls_wait_for_each_other_until_an_event_comes() {
    let (mut thread, made) = Thread::calling(2);
    thread.passive(&made[0]);
    thread.passive(&made[1]);
    assert_eq!(thread.arrives(&result(&made[0], "slept")), Accepted::Parked);
    assert_eq!(thread.arrives(&event(&made[0], "ding")), Accepted::Ready);
    assert_eq!(thread.request()[2], format!("R f0=slept, f1={}", by_event("f1")));
}

#[test]
fn more_events_than_may_wait_interrupt() {
    let (mut thread, made) = Thread::calling(1);
    for n in 0..MAX_WAITING {
        assert_eq!(thread.arrives(&event(&made[0], &n.to_string())), Accepted::Parked);
    }
    assert_eq!(thread.arrives(&event(&made[0], "the one too many")), Accepted::Ready);
    assert_eq!(rang(&thread).len(), MAX_WAITING + 1);
    assert_eq!(thread.request()[2], format!("R f0={}", by_event("f0")));
    thread.model(&[says("ok")]);
    assert_eq!(rang(&thread).len(), MAX_WAITING + 1);
}

#[test]
fn the_same_delivery_has_the_same_injected_call_id() {
    let run = || {
        let (mut thread, made) = Thread::calling(1);
        thread.passive(&made[0]);
        thread.arrives(&event(&made[0], "ding"));
        thread.history.current_turn_view("m")
    };
    assert_eq!(run(), run());
}

#[test]
fn inputs_of_one_message_stand_between_those_before_and_behind_it() {
    let parked = |key: &str| ParkedInput {
        key: key.to_owned(),
        dedup: DedupId::new(key),
        cause: MessageId::new("m"),
        body: String::new(),
    };
    let ordered = ["9", "10", "10.1", "10.2", "10.10", "011", "b", "10.x"].map(parked);
    let mut rows = ordered.to_vec();
    rows.reverse();
    rows.sort_by(ParkedInput::arrival_order);
    let keys: Vec<&str> = rows.iter().map(|row| row.key.as_str()).collect();
    assert_eq!(keys, ["9", "10", "10.1", "10.2", "10.10", "011", "10.x", "b"]);
}
