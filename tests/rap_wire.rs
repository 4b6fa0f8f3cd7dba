//! The wire format against `rap-protocol`, which somebody else wrote: its types read whatever dormouse writes, and
//! dormouse reads whatever they write, with the same meaning. Lenient cases have tests of their own in `callbacks.rs`:
//! the crate is stricter than the protocol.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use dormouse::message::{CallId, ContentPart, ImageData, ThreadId};
use dormouse::rap::wire::{
    Callback, CallbackKind, CancelToolCall, ChoiceAnswer, CloseThread, InvocationBody, Manifest, Payload,
};
use proptest::collection::vec;
use proptest::prelude::*;
use rap_protocol::{
    DiffContent, DisplaySegment, ImageContent, RapCallback, RapInvocation, RapOAuth, RapSubscriptionEvent,
    RapToolResult, RapToolResultContent, RapUserChoice, RapViewUpdate, ToolDef, ToolsetManifest,
};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

/// Any text, control characters and all planes of Unicode included.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![any::<String>(), Just(String::new()), Just("\u{0}\u{FFFE}\"\\ud83d".to_owned())]
}

/// Any JSON of a few levels.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec((text(), inner), 0..4).prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn object() -> impl Strategy<Value = Value> {
    vec((text(), any_json()), 0..4)
        .prop_map(|members| Value::Object(members.into_iter().collect::<Map<String, Value>>()))
}

fn content() -> impl Strategy<Value = RapToolResultContent> {
    prop_oneof![
        text().prop_map(|text| RapToolResultContent::Text { text }),
        vec(any::<u8>(), 0..64).prop_map(|bytes| RapToolResultContent::Image {
            data: data_encoding::BASE64.encode(&bytes),
            media_type: "image/png".to_owned(),
        }),
    ]
}

fn segment() -> impl Strategy<Value = DisplaySegment> {
    prop_oneof![
        text().prop_map(DisplaySegment::Text),
        (text(), text()).prop_map(|(path, patch)| DisplaySegment::Diff(DiffContent { path, patch })),
        text().prop_map(|data| DisplaySegment::Image(ImageContent {
            data,
            media_type: "image/png".to_owned()
        })),
    ]
}

/// As the callback endpoint reads it; the ids must be the ones that were written.
fn read(callback: &RapCallback, thread: &str, call: Option<&str>) -> (CallbackKind, Payload) {
    let read = Callback::parse(serde_json::to_string(callback).unwrap().as_bytes()).unwrap();
    assert_eq!(read.thread.as_str(), thread);
    assert_eq!(read.call.as_ref().map(CallId::as_str), call);
    (read.kind, read.payload().unwrap())
}

fn part(content: &RapToolResultContent) -> ContentPart {
    match content {
        RapToolResultContent::Text { text } => ContentPart::Text(text.clone()),
        RapToolResultContent::Image { data, media_type } => {
            ContentPart::Image { data: ImageData::Base64(data.clone()), media_type: Some(media_type.clone()) }
        }
    }
}

proptest! {
    #[test]
    fn rap_12_33_36_any_result_that_the_crate_writes_is_read(
        group in text(),
        id in text(),
        call_id in proptest::option::of(text()),
        written in proptest::option::of(text()),
        content in proptest::option::of(vec(content(), 0..4)),
        display in proptest::option::of(vec(segment(), 0..4)),
        subscription in proptest::option::of(any::<bool>()),
    ) {
        let result = RapCallback::ToolResult(RapToolResult {
            group_id: group.clone().into(),
            id: id.clone().into(),
            call_id: call_id.clone().map(Into::into),
            text: written.clone(),
            content: content.clone(),
            display_as: display.clone(),
            subscription,
        });
        let parts: Vec<ContentPart> = content.iter().flatten().map(part).collect();
        if parts.is_empty() && written.is_none() {
            let body = serde_json::to_string(&result).unwrap();
            let refused = Callback::parse(body.as_bytes()).unwrap().payload();
            prop_assert!(refused.is_err(), "neither text nor content: {refused:?}");
            return Ok(());
        }
        let (kind, payload) = read(&result, &group, Some(&id));
        let Payload::ToolResult(read) = payload else { panic!("{payload:?}") };
        prop_assert_eq!(kind, CallbackKind::ToolResult);
        prop_assert_eq!(read.call_id, call_id);
        prop_assert_eq!(read.subscription, subscription == Some(true));
        let fallback = || vec![ContentPart::Text(written.clone().unwrap_or_default())];
        prop_assert_eq!(read.parts, if parts.is_empty() { fallback() } else { parts });
        // What is passed on for display is what the crate reads again.
        let shown = read.display_as.map(|raw| serde_json::from_str::<Vec<DisplaySegment>>(raw.get()).unwrap());
        prop_assert_eq!(
            serde_json::to_value(shown).unwrap(),
            serde_json::to_value(display).unwrap()
        );
    }

    #[test]
    fn rap_12_any_event_question_or_view_that_the_crate_writes_is_read(
        group in text(),
        id in text(),
        call_id in proptest::option::of(text()),
        said in text(),
        associative in any::<bool>(),
        last in proptest::option::of(any::<bool>()),
        choices in vec(text(), 1..5),
        chosen in any::<prop::sample::Index>(),
        view_type in "[a-z./:-]{1,128}",
        view in object(),
    ) {
        let event = RapCallback::SubscriptionEvent(RapSubscriptionEvent {
            group_id: group.clone().into(),
            tool_call_id: id.clone().into(),
            text: said.clone(),
            associative,
            r#final: last,
        });
        let Payload::Event(read_event) = read(&event, &group, Some(&id)).1 else { panic!() };
        prop_assert_eq!(
            (read_event.text, read_event.associative, read_event.r#final),
            (said.clone(), associative, last == Some(true))
        );

        let auth_url = "https://idp.example/authorize?x=1".to_owned();
        let oauth = RapCallback::OAuth(RapOAuth {
            group_id: group.clone().into(),
            id: id.clone().into(),
            call_id: call_id.clone().map(Into::into),
            auth_url: auth_url.clone(),
        });
        let expected = Payload::OAuth { call_id: call_id.clone(), auth_url };
        prop_assert_eq!(read(&oauth, &group, Some(&id)).1, expected);

        let default = chosen.index(choices.len());
        let choice = RapCallback::UserChoice(RapUserChoice {
            group_id: group.clone().into(),
            id: id.clone().into(),
            call_id: call_id.clone().map(Into::into),
            prompt: said.clone(),
            choices: choices.clone(),
            default,
            response_url: "https://b.example/answer".to_owned(),
        });
        let Payload::Choice(read_choice) = read(&choice, &group, Some(&id)).1 else { panic!() };
        prop_assert_eq!(
            (read_choice.call_id, read_choice.prompt, read_choice.choices, read_choice.default),
            (call_id, said, choices, default)
        );

        let update = RapCallback::ViewUpdate(RapViewUpdate {
            group_id: group.clone().into(),
            view_type: view_type.clone(),
            content: view.clone(),
        });
        let Payload::View { view_type: read_type, content } = read(&update, &group, None).1 else { panic!() };
        prop_assert_eq!(read_type, view_type);
        prop_assert_eq!(serde_json::from_str::<Value>(content.get()).unwrap(), view);
    }

    #[test]
    fn rap_31_any_invocation_that_dormouse_writes_is_read_by_the_crate(
        operation in "[A-Za-z0-9_-]{1,128}",
        arguments in object(),
        id in text(),
        group in text(),
        ancestors in vec(text(), 0..8),
        user in proptest::option::of(text()),
    ) {
        let raw = RawValue::from_string(arguments.to_string()).unwrap();
        let chain: Vec<ThreadId> = ancestors.iter().map(|id| ThreadId::from(id.as_str())).collect();
        let body = InvocationBody {
            operation: &operation,
            arguments: &raw,
            id: &CallId::from(id.as_str()),
            call_id: None,
            callback_url: "https://cb.example/rap/v1.k1.a.b.c",
            group_id: &ThreadId::from(group.as_str()),
            user_id: user.as_deref(),
            thread_ancestors: Some(chain.as_slice()).filter(|chain| !chain.is_empty()),
        };
        let read: RapInvocation = serde_json::from_slice(&serde_json::to_vec(&body).unwrap()).unwrap();
        prop_assert_eq!(read.operation, operation);
        prop_assert_eq!(read.arguments, arguments);
        prop_assert_eq!(read.id.to_string(), id);
        prop_assert_eq!(read.group_id.to_string(), group);
        prop_assert_eq!(read.user_id, user);
        prop_assert!(read.call_id.is_none());
        let read = read.thread_ancestors.unwrap_or_default();
        prop_assert_eq!(read.iter().map(ToString::to_string).collect::<Vec<_>>(), ancestors);
    }

    #[test]
    fn rap_21_any_manifest_that_the_crate_writes_is_read(
        name in text(),
        description in proptest::option::of(text()),
        needs_migration in any::<bool>(),
        tools in vec((text(), text(), any_json(), proptest::option::of(any::<bool>()), proptest::option::of(text())), 0..4),
    ) {
        let tool = |(name, description, input_schema, read_only, display_script): (_, _, _, Option<bool>, _)| ToolDef {
            name,
            description,
            input_schema,
            annotations: read_only.map(|read_only| json!({"readOnly": read_only, "x.example/y": [1]})),
            display_script,
        };
        let written = ToolsetManifest {
            name,
            description,
            endpoint: "https://b.example/invoke".to_owned(),
            tools: tools.into_iter().map(tool).collect(),
            needs_migration,
        };
        let body = serde_json::to_value(&written).unwrap();
        let read: Manifest = serde_json::from_str(&body.to_string()).unwrap();
        let again: ToolsetManifest = serde_json::from_str(&serde_json::to_string(&read).unwrap()).unwrap();
        prop_assert_eq!(serde_json::to_value(&again).unwrap(), body);
    }
}

/// The crate has no types for these; published servers read exactly these members, and refuse a body without one.
#[test]
fn rap_44_46_47_notices_and_answers_have_the_members_that_servers_read() {
    let (thread, call) = (ThreadId::from("th-2"), CallId::from("c-5f0a"));
    let notices = [
        (json!(CloseThread { thread_id: &thread }), json!({"thread_id": "th-2"})),
        (
            json!(CancelToolCall { thread_id: &thread, tool_call_id: &call }),
            json!({"thread_id": "th-2", "tool_call_id": "c-5f0a"}),
        ),
        (json!(ChoiceAnswer { id: &call, selected: 1 }), json!({"id": "c-5f0a", "selected": 1})),
    ];
    for (written, expected) in notices {
        assert_eq!(written, expected);
    }
}

/// The examples of the protocol's description, through both.
#[test]
fn rap_12_the_examples_of_the_protocol_are_read_by_both() {
    let examples = [
        r#"{"type":"tool_result","group_id":"th-2","id":"c-5f0a","text":"watching build 812","display_as":[{"type":"text","content":"build 812"}],"subscription":true}"#,
        r#"{"type":"subscription_event","group_id":"th-2","tool_call_id":"c-5f0a","text":"{\"state\":\"green\"}","associative":true,"final":true}"#,
        r#"{"type":"oauth","group_id":"th-2","id":"c-77b1","auth_url":"https://idp.example/authorize?client_id=x"}"#,
        r#"{"type":"user_choice","group_id":"th-2","id":"c-77b2","prompt":"Drop table users?","choices":["Drop","Keep"],"default":1,"response_url":"https://b.example/answer"}"#,
        r#"{"type":"view_update","group_id":"th-2","view_type":"diff","content":{"patch":"--- a\n+++ b\n"}}"#,
    ];
    for example in examples {
        let theirs: RapCallback = serde_json::from_str(example).unwrap();
        let ours = Callback::parse(example.as_bytes()).unwrap();
        let again = Callback::parse(serde_json::to_string(&theirs).unwrap().as_bytes()).unwrap();
        assert_eq!(ours.payload().unwrap(), again.payload().unwrap(), "{example}");
        // Members of a later version, and optional ones that are null.
        let mut body: Value = serde_json::from_str(example).unwrap();
        body["a_later_member"] = json!({"x": [1, null]});
        for optional in ["call_id", "display_as", "content", "subscription", "associative", "final"] {
            if body.get(optional).is_none() {
                body[optional] = Value::Null;
            }
        }
        let lenient = Callback::parse(body.to_string().as_bytes()).unwrap();
        assert_eq!(lenient.payload().unwrap(), ours.payload().unwrap(), "{body}");
    }
}
