//! Streams of events. The verifier is written from the protocol's rules of order, not from the emitter.

use std::collections::BTreeSet;

use dormouse::agui::emit::{End, Piece, begin};
use dormouse::agui::wire::{Event, Interrupt};
use proptest::prelude::*;
use serde_json::Value;

/// Why a client would refuse a stream; nothing: it takes it.
fn refused(events: &[Value]) -> Option<String> {
    let (mut texts, mut calls) = (BTreeSet::new(), BTreeSet::new());
    let (mut spans, mut thoughts, mut ever) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut over = false;
    for (at, event) in events.iter().enumerate() {
        let kind = event["type"].as_str()?;
        let id = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
        let say = |what: &str| Some(format!("event {at} {kind}: {what}"));
        if over {
            return say("comes after the end");
        }
        if (at == 0) != (kind == "RUN_STARTED") {
            return say("a run starts once, first");
        }
        // What is shared is somebody else's.
        let ours = !kind.starts_with("STATE_");
        if let Some(path) = null(event).filter(|_| ours) {
            return say(&format!("{path} is null"));
        }
        let ok = match kind {
            "RUN_STARTED" => true,
            // Ids are not opened twice, though clients would allow it: a reader tells messages apart by them.
            "TEXT_MESSAGE_START" => ever.insert(id("messageId")) && texts.insert(id("messageId")),
            "TEXT_MESSAGE_CONTENT" => texts.contains(&id("messageId")) && !id("delta").is_empty(),
            "TEXT_MESSAGE_END" => texts.remove(&id("messageId")),
            "REASONING_START" => ever.insert(id("messageId")) && spans.insert(id("messageId")),
            "REASONING_MESSAGE_START" => {
                spans.contains(&id("messageId"))
                    && event["role"] == "reasoning"
                    && thoughts.insert(id("messageId"))
            }
            "REASONING_MESSAGE_CONTENT" => thoughts.contains(&id("messageId")) && !id("delta").is_empty(),
            "REASONING_MESSAGE_END" => thoughts.remove(&id("messageId")),
            "REASONING_END" => !thoughts.contains(&id("messageId")) && spans.remove(&id("messageId")),
            "TOOL_CALL_START" => {
                !id("parentMessageId").is_empty()
                    && ever.insert(id("toolCallId"))
                    && calls.insert(id("toolCallId"))
            }
            "TOOL_CALL_ARGS" => calls.contains(&id("toolCallId")),
            "TOOL_CALL_END" => calls.remove(&id("toolCallId")),
            "TOOL_CALL_RESULT" => event["role"] == "tool" && ever.insert(id("messageId")),
            "MESSAGES_SNAPSHOT" => event["messages"].is_array(),
            "STATE_SNAPSHOT" => event.get("snapshot").is_some(),
            "STATE_DELTA" => event["delta"].as_array().is_some_and(|patch| !patch.is_empty()),
            "RUN_FINISHED" => {
                over = true;
                let outcome = event.get("outcome");
                let list =
                    |outcome: &Value| outcome["interrupts"].as_array().is_some_and(|all| !all.is_empty());
                texts.is_empty() && calls.is_empty() && spans.is_empty() && outcome.is_none_or(list)
            }
            "RUN_ERROR" => {
                over = true;
                !id("code").is_empty()
            }
            _ => return say("is no event that every client knows"),
        };
        if !ok {
            return say("is out of order");
        }
    }
    (!over).then(|| "has no end".to_owned())
}

fn null(value: &Value) -> Option<String> {
    match value {
        Value::Null => Some(String::new()),
        Value::Object(fields) => {
            fields.iter().find_map(|(name, value)| Some(format!("{name}.{}", null(value)?)))
        }
        Value::Array(all) => all.iter().find_map(null),
        _ => None,
    }
}

pub fn values(events: &[Event]) -> Vec<Value> {
    events.iter().map(|event| serde_json::to_value(event).unwrap()).collect()
}

/// What a row of a run holds.
#[derive(Clone, Debug)]
enum Row {
    Pieces(Vec<Piece>),
    CatchUp(Vec<Piece>),
    NextSlice,
}

fn piece() -> impl Strategy<Value = Piece> {
    let message = prop_oneof!["i0-[1-3]", Just("i0-1.2".to_owned()), Just(String::new())];
    let call = "c[1-3]";
    let delta = prop_oneof![Just(String::new()), "[a-z\\n\"]{1,4}", Just("é\u{2028}🦀".to_owned())];
    prop_oneof![
        4 => (message.clone(), delta.clone()).prop_map(|(message, delta)| Piece::Text { message, delta }),
        2 => (message.clone(), delta.clone()).prop_map(|(message, delta)| Piece::Reasoning { message, delta }),
        1 => Just(Piece::Discard),
        2 => (message, call, delta.clone()).prop_map(|(message, call, arguments)| Piece::Call {
            message,
            call,
            name: "tool".to_owned(),
            arguments,
        }),
        2 => (call, delta).prop_map(|(call, content)| Piece::Result { call, content }),
        1 => state().prop_map(|state| Piece::State { state }),
    ]
}

/// Small values, so that what changes is often a part.
fn state() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        "[a-z~/]{0,12}".prop_map(Value::from)
    ];
    let value = leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-c~/]{0,2}", inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    });
    value.prop_map(|value| value.to_string())
}

fn row() -> impl Strategy<Value = Row> {
    let pieces = || prop::collection::vec(piece(), 0..6);
    prop_oneof![4 => pieces().prop_map(Row::Pieces), 1 => pieces().prop_map(Row::CatchUp), 1 => Just(Row::NextSlice)]
}

fn end() -> impl Strategy<Value = End> {
    let interrupt = Interrupt {
        id: "x".to_owned(),
        reason: "tool_call".to_owned(),
        message: None,
        tool_call_id: Some("c1".to_owned()),
        response_schema: None,
        expires_at: None,
        metadata: None,
    };
    prop_oneof![
        Just(End::Finished),
        Just(End::Unchanged),
        Just(End::failed("INTERNAL", "")),
        prop::collection::vec(Just(interrupt), 0..2).prop_map(|interrupts| End::Interrupted { interrupts }),
    ]
}

fn play(rows: &[Row], end: End) -> Vec<Value> {
    let (mut stream, first) = begin("thread", "run");
    let mut events = vec![first];
    for row in rows {
        match row {
            Row::Pieces(pieces) => pieces.iter().for_each(|piece| events.extend(stream.show(piece))),
            Row::CatchUp(pieces) => events.extend(stream.catch_up(pieces)),
            Row::NextSlice => events.extend(stream.next_slice()),
        }
    }
    events.extend(stream.end(end, Vec::new));
    values(&events)
}

proptest! {
    #[test]
    fn whatever_slices_show_every_client_takes_the_stream(rows in prop::collection::vec(row(), 0..12), end in end()) {
        let events = play(&rows, end);
        prop_assert_eq!(refused(&events), None, "{:#?}", events);
    }

    #[test]
    fn r21_a_client_that_applies_what_it_is_sent_has_the_state(states in prop::collection::vec(state(), 1..8)) {
        let (mut stream, _) = begin("thread", "run");
        let (mut client, mut deltas) = (Value::Null, 0);
        for state in &states {
            let events = stream.show(&Piece::State { state: state.clone() });
            for event in values(&events) {
                match event["type"].as_str() {
                    Some("STATE_SNAPSHOT") => client = event["snapshot"].clone(),
                    _ => {
                        deltas += 1;
                        let patch: json_patch::Patch = serde_json::from_value(event["delta"].clone()).unwrap();
                        json_patch::patch(&mut client, &patch).unwrap();
                    }
                }
            }
            let expected: Value = serde_json::from_str(state).unwrap();
            prop_assert_eq!(&client, &expected);
            prop_assert_eq!(stream.show(&Piece::State { state: state.clone() }), vec![], "the same again is no event");
        }
        prop_assert!(deltas < states.len(), "the first is whole");
    }

    #[test]
    fn a_stream_that_breaks_a_rule_is_noticed(rows in prop::collection::vec(row(), 1..8), cut in any::<prop::sample::Index>()) {
        // The verifier itself: without one of its opening or closing events a stream is no longer taken.
        let events = play(&rows, End::Finished);
        let pairs: Vec<usize> = (0..events.len())
            .filter(|at| {
                let kind = events[*at]["type"].as_str().unwrap();
                kind.ends_with("_START") || kind.ends_with("_END") || kind.starts_with("RUN_")
            })
            .collect();
        let mut broken = events;
        broken.remove(pairs[cut.index(pairs.len())]);
        prop_assert!(refused(&broken).is_some(), "{:#?}", broken);
    }
}

fn text(message: &str, delta: &str) -> Piece {
    Piece::Text { message: message.to_owned(), delta: delta.to_owned() }
}

fn kinds(events: &[Event]) -> Vec<String> {
    let bare = |value: Value| {
        let id = ["messageId", "toolCallId"].iter().find_map(|name| value[*name].as_str().map(str::to_owned));
        let kind = value["type"].as_str().unwrap().to_owned();
        [Some(kind), id, value["delta"].as_str().map(str::to_owned)]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join(" ")
    };
    values(events).into_iter().map(bare).collect()
}

#[test]
fn r4_a_retry_ends_what_was_shown_and_goes_on_under_a_new_id() {
    let (mut stream, _) = begin("t", "r");
    let mut events = stream.show(&text("i0-2", "half"));
    events.extend(stream.show(&Piece::Discard));
    events.extend(stream.show(&text("i0-2", "whole")));
    assert_eq!(
        kinds(&events),
        [
            "TEXT_MESSAGE_START i0-2",
            "TEXT_MESSAGE_CONTENT i0-2 half",
            "TEXT_MESSAGE_END i0-2",
            "TEXT_MESSAGE_START i0-2.2",
            "TEXT_MESSAGE_CONTENT i0-2.2 whole",
        ]
    );
}

#[test]
fn r5_a_call_without_text_names_the_message_that_exists_through_it_alone() {
    let (mut stream, _) = begin("t", "r");
    let call = |id: &str| Piece::Call {
        message: "i0-2".to_owned(),
        call: id.to_owned(),
        name: "tool".to_owned(),
        arguments: "{}".to_owned(),
    };
    let events: Vec<Event> =
        [call("a"), call("b"), call("a")].iter().flat_map(|piece| stream.show(piece)).collect();
    let parents: Vec<Value> =
        values(&events).into_iter().map(|event| event["parentMessageId"].clone()).collect();
    assert_eq!(parents.iter().filter(|parent| **parent == "i0-2").count(), 2, "a call is opened once");
    assert_eq!(events.len(), 6);
}

#[test]
fn a_late_attachment_sees_a_text_once() {
    let (mut stream, _) = begin("t", "r");
    let mut events = stream.show(&text("i0-2", "one "));
    events.extend(stream.catch_up(&[text("i0-2", "one two ")]));
    events.extend(stream.catch_up(&[text("i0-2", "one two ")]));
    events.extend(stream.show(&text("i0-2", "three")));
    let said: String =
        values(&events).iter().filter_map(|event| event["delta"].as_str()).collect::<Vec<_>>().concat();
    assert_eq!(said, "one two three");
}

#[test]
fn frames_hold_no_line_break_but_their_own() {
    let (mut stream, _) = begin("t\r\n", "r");
    let events = stream.show(&text("i0-2", "a\r\n\u{2028}\"é"));
    for event in &events {
        let frame = event.frame();
        assert!(frame.starts_with("data: {") && frame.ends_with("}\n\n"), "{frame:?}");
        assert!(!frame.contains('\r') && !frame.trim_end().contains('\n'), "{frame:?}");
    }
    let laid_out = "{\r\n  \"a\": \"x\\ny\",\n\n  \"b\": 1.50\n}";
    let events = stream.show(&Piece::State { state: laid_out.to_owned() });
    assert_eq!(
        events[0].frame(),
        "data: {\"type\":\"STATE_SNAPSHOT\",\"snapshot\":{    \"a\": \"x\\ny\",    \"b\": 1.50 }}\n\n"
    );
}

#[test]
fn empty_output_is_no_message() {
    let (mut stream, _) = begin("t", "r");
    assert_eq!(stream.show(&text("i0-2", "")), []);
    assert_eq!(kinds(&stream.end(End::Finished, Vec::new)), ["RUN_FINISHED"]);
}
