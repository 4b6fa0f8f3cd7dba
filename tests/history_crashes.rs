//! The crash table at the level of the pure core: a run of slices that is killed anywhere and redelivered ends
//! with the rows of the run that was not.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/history/mod.rs"]
mod support;

use dormouse::history::Arrival;
use dormouse::message::{CallId, InputMessage, ItemBody};
use proptest::prelude::*;
use support::say::{arrival, event, report, result, user};
use support::slice::{Kind, Response, Slices, kind};
use support::store::Rows;

/// Runs of one test, unless `PROPTEST_CASES` says otherwise.
const CASES: u32 = 1_000;

/// A message; calls are named by their place among those that are committed when its batch arrives.
#[derive(Clone, Debug)]
enum Message {
    Text,
    Result(usize),
    Event { origin: usize, is_report: bool },
}

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        2 => Just(Message::Text),
        6 => (0..6_usize).prop_map(Message::Result),
        3 => (0..6_usize, any::<bool>()).prop_map(|(origin, is_report)| Message::Event { origin, is_report }),
    ]
}

fn response() -> impl Strategy<Value = Response> {
    (any::<bool>(), prop::collection::vec(kind(), 0..=4))
        .prop_map(|(thinks, calls)| Response { thinks, calls })
}

/// What a batch holds, given what is committed. Redelivered, it is the same.
fn compose(batch: &[Message], calls: &[CallId], sent: &mut usize) -> Vec<(InputMessage, Arrival)> {
    let call = |at: usize| calls.iter().rev().nth(at);
    let mut composed = Vec::new();
    for message in batch {
        *sent += 1;
        let text = format!("<{sent}>");
        let (message, dedup) = match message {
            Message::Text => (user(&text), format!("d{sent}")),
            Message::Result(at) => match call(*at) {
                Some(call) => (result(call, &text), format!("result-{call}")),
                None => continue,
            },
            Message::Event { origin, is_report } => match call(*origin) {
                Some(call) if *is_report => (report(call, &text), format!("d{sent}")),
                Some(call) => (event(call, &text), format!("d{sent}")),
                None => continue,
            },
        };
        composed.push((message, arrival(*sent, &dedup)));
    }
    composed
}

/// Runs everything; the slice of one batch is killed after it has passed so many points.
fn run(batches: &[Vec<Message>], script: &[Response], kill: Option<(usize, usize)>) -> Slices {
    let mut slices = Slices::new(script.to_vec());
    let mut sent = 0;
    slices.process(&[(user("<0>"), arrival(0, "d0"))]);
    for (at, batch) in batches.iter().enumerate() {
        slices.lives_for = kill.filter(|(batch, _)| *batch == at).map(|(_, points)| points);
        let batch = compose(batch, &slices.rows.calls(), &mut sent);
        slices.process(&batch);
        slices.lives_for = None;
    }
    slices
}

/// What is in the history, whatever its order.
fn effects(rows: &Rows) -> Vec<String> {
    let mut effects: Vec<String> = rows.items.iter().map(|item| item.raw.to_string()).collect();
    effects.sort();
    effects
}

/// In one batch an event waits for a call, and the text behind it interrupts that call: the event follows the
/// text. If the slice dies when the marker is committed and the inputs are not, the event finds no open call
/// when it comes again, and goes first, as it had arrived. Both orders are sound; nothing is lost or doubled.
fn text_behind_an_event(batch: &[Message]) -> bool {
    let event = batch.iter().position(|message| matches!(message, Message::Event { .. }));
    let text = batch.iter().rposition(|message| matches!(message, Message::Text));
    event.zip(text).is_some_and(|(event, text)| event < text)
}

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(CASES)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn i1_i2_a_run_that_is_killed_anywhere_ends_as_the_run_that_was_not(
        batches in prop::collection::vec(prop::collection::vec(message(), 1..5), 1..8),
        script in prop::collection::vec(response(), 0..8),
        batch in 0..8_usize,
        points in 0..12_usize,
    ) {
        let whole = run(&batches, &script, None).rows;
        let killed = run(&batches, &script, Some((batch, points))).rows;
        prop_assert_eq!(effects(&whole), effects(&killed));
        if !batches.get(batch).is_some_and(|batch| text_behind_an_event(batch)) {
            prop_assert_eq!(whole.bodies(), killed.bodies());
            let facts = |rows: &Rows| -> Vec<_> { rows.items.iter().map(|item| item.facts.clone()).collect() };
            prop_assert_eq!(facts(&whole), facts(&killed));
        }
        prop_assert_eq!(&whole.dedup, &killed.dedup);
        prop_assert_eq!(&whole.parked, &killed.parked);
        prop_assert_eq!(&whole.meta.pending, &killed.meta.pending);
    }
}

#[test]
fn the_script_reaches_synchronous_steps_parked_results_and_events() {
    // What the property leans on: without this a change of the driver could make it say nothing.
    let script = [
        Response { thinks: true, calls: vec![Kind::Asynchronous, Kind::Asynchronous, Kind::Synchronous] },
        Response { thinks: false, calls: vec![Kind::Passive] },
    ];
    let batches = [
        vec![Message::Event { origin: 1, is_report: false }],
        vec![Message::Result(1)],
        vec![Message::Result(2)],
        vec![Message::Event { origin: 1, is_report: true }],
    ];
    let rows = run(&batches, &script, None).rows;
    let kinds: Vec<String> = rows.items.iter().map(|item| item.body.kind().to_owned()).collect();
    assert_eq!(kinds.iter().filter(|kind| *kind == "event").count(), 2, "{kinds:?}");
    assert_eq!(kinds.iter().filter(|kind| *kind == "tool_result").count(), 3, "{kinds:?}");
    assert!(rows.released.len() >= 2);
    assert!(matches!(rows.items.last().map(|item| &item.body), Some(ItemBody::Assistant(_))));
}
