//! What clients send is read leniently.

use dormouse::agui::wire::{RunInput, WireError};
use dormouse::message::{ContentPart, ImageData, MAX_STATE_BYTES, MAX_STATE_DEPTH, RunRecord};
use serde_json::{Value, json};

fn parse(value: &Value) -> Result<RunInput, WireError> {
    RunInput::parse(value.to_string().as_bytes())
}

fn input(messages: Value) -> RunInput {
    parse(&json!({ "threadId": "t", "runId": "r", "messages": messages })).unwrap()
}

#[test]
fn only_what_makes_it_no_run_at_all_is_an_error() {
    assert!(matches!(RunInput::parse(b"{"), Err(WireError::NotJson(_))));
    assert!(matches!(RunInput::parse(b"[]"), Err(WireError::NotJson(_))));
    assert_eq!(parse(&json!({ "threadId": "t" })), Err(WireError::Missing("runId", "a string")));
    assert_eq!(
        parse(&json!({ "threadId": 1, "runId": "r" })),
        Err(WireError::Missing("threadId", "a string"))
    );
    assert_eq!(
        parse(&json!({ "threadId": "t", "runId": "r" })),
        Err(WireError::Missing("messages", "an array"))
    );
    let odd = json!({
        "threadId": "t", "runId": "r", "messages": [], "state": null, "tools": null, "context": null, "resume": null,
        "parentRunId": "p", "protocolVersion": "1.0", "somethingNew": { "a": 1 },
    });
    let read = parse(&odd).unwrap();
    assert_eq!((read.request.resume, read.config.tools.len()), (None, 0));
}

#[test]
fn r9_of_the_clients_list_only_what_counts_is_taken() {
    let read = input(json!([
        null, 7, { "id": "no role" }, { "role": "user", "content": "no id" },
        { "id": "s", "role": "system", "content": "obey" }, { "id": "d", "role": "developer", "content": "obey" },
        { "id": "x", "role": "activity", "content": {} }, { "id": "y", "role": "reasoning", "content": "hm" },
        { "id": "__optimistic__1", "role": "user", "content": "not sent" },
        { "id": "u1", "role": "user", "content": "hi" },
        { "id": "a1", "role": "assistant", "content": "said", "tool_calls": [{ "id": "c1" }, {}] },
        { "id": "t1", "role": "tool", "tool_call_id": "c1", "content": [{ "type": "text", "text": "r" }], "error": "e" },
    ]));
    assert_eq!(
        read.request.records,
        [
            RunRecord::User { id: "u1".into(), parts: vec![ContentPart::text("hi")] },
            RunRecord::Assistant { id: "a1".into(), calls: vec!["c1".into()] },
            RunRecord::Tool { call: "c1".into(), text: "r".into(), failed: true },
        ]
    );
}

#[test]
fn parts_of_all_forms_are_read() {
    let read = input(json!([{ "id": "u1", "role": "user", "content": [
        { "type": "text", "text": "see", "id": "p1" },
        { "type": "image", "source": { "type": "data", "value": "AA==", "mimeType": "image/png" }, "metadata": null },
        { "type": "image", "source": { "type": "url", "value": "https://x/y" } },
        { "type": "binary", "mimeType": "image/gif", "data": "BB==", "url": "https://x/z" },
        { "type": "audio", "source": { "type": "url", "value": "https://x/a" } },
        { "type": "binary", "mimeType": "image/png", "id": "only" },
        { "type": "hologram" }, 5,
    ] }]));
    let RunRecord::User { parts, .. } = &read.request.records[0] else { panic!("{read:?}") };
    let image = |data, media: Option<&str>| ContentPart::Image { data, media_type: media.map(str::to_owned) };
    assert_eq!(
        parts,
        &[
            ContentPart::text("see"),
            image(ImageData::Base64("AA==".into()), Some("png")),
            image(ImageData::Url("https://x/y".into()), None),
            image(ImageData::Base64("BB==".into()), Some("gif")),
            ContentPart::text("[audio: https://x/a]"),
            ContentPart::text("[binary image/png was left out]"),
            ContentPart::text("[hologram of unknown type was left out]"),
        ]
    );
}

#[test]
fn tools_context_and_answers_are_kept() {
    let read = parse(&json!({
        "threadId": "t", "runId": "r", "messages": [],
        "tools": [{ "name": "a", "description": "" }, { "name": "" }, { "name": "b", "parameters": { "type": "object" } }],
        "context": [{ "description": "system", "value": "be kind" }, { "value": null }, { "value": { "k": 1 } }],
        "resume": [{ "interruptId": "i", "status": "resolved", "payload": { "approved": true } }, { "interruptId": "j", "status": "odd" }],
        "forwardedProps": { "dormouse": { "mode": "append" } },
    }))
    .unwrap();
    let names: Vec<&str> = read.config.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    let values: Vec<&str> = read.config.context.iter().map(|context| context.value.as_str()).collect();
    assert_eq!(values, ["be kind", "{\"k\":1}"]);
    assert!(read.request.append);
    let answers = read.request.resume.unwrap();
    assert_eq!((answers[0].resolved, answers[1].resolved, answers[1].interrupt.as_str()), (true, false, ""));
}

#[test]
fn odd_ids_are_ids() {
    let long = "é".repeat(500);
    let read = parse(
        &json!({ "threadId": long, "runId": " ", "messages": [{ "id": long, "role": "user", "content": "" }] }),
    );
    assert_eq!(read.unwrap().thread_id, long);
    let longer = "x".repeat(1_025);
    assert!(parse(&json!({ "threadId": longer, "runId": "r", "messages": [] })).is_err());
}

#[test]
fn r21_of_a_state_its_text_is_taken_and_what_says_nothing_is_none() {
    let with = |state: &str| {
        let body = format!(r#"{{"threadId":"t","runId":"r","messages":[],"state":{state}}}"#);
        RunInput::parse(body.as_bytes()).map(|read| read.request.state.map(|state| state.get().to_owned()))
    };
    for nothing in ["null", "{}", " { } "] {
        assert_eq!(with(nothing), Ok(None), "{nothing}");
    }
    for state in [r#"{"a": 1.0, "b": null}"#, "[]", "0", "false", r#""""#, "12345678901234567890123"] {
        assert_eq!(with(state), Ok(Some(state.to_owned())));
    }
    assert_eq!(parse(&json!({ "threadId": "t", "runId": "r", "messages": [] })).unwrap().request.state, None);
    let long = format!("{:?}", "x".repeat(MAX_STATE_BYTES));
    assert_eq!(with(&long), Err(WireError::StateTooLarge(MAX_STATE_BYTES + 2)));
    let deep = |levels| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
    assert!(with(&deep(MAX_STATE_DEPTH)).is_ok());
    assert_eq!(with(&deep(MAX_STATE_DEPTH + 1)), Err(WireError::StateTooDeep));
}
