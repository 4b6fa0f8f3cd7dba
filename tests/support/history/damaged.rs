//! Stored histories as no version of dormouse should have written them.

use dormouse::message::{
    AssistantItem, BackendToolCallItem, CallId, ContentPart, EventItem, ImageData, InterruptItem, ItemBody,
    Outcome, RawJson, ReasoningItem, SettledBy, SyntheticReason, SystemItem, ToolCallItem, ToolResultItem,
    UserItem,
};
use proptest::prelude::*;

/// The model that answers.
pub const MODEL: &str = "m";

/// Few ids, so that they collide; odd ones, since old rows may hold anything.
const IDS: [&str; 9] = ["a", "b", "c", "a_2", "a_2_2", "", " ", "a b/ü", LONG];
const LONG: &str = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";

const ARGUMENTS: [&str; 14] = [
    "",
    " ",
    "{}",
    " {\"a\":1.0}\n",
    "\u{a0}{}\u{a0}",
    "\u{feff}{}",
    "[]",
    "null",
    "\"{}\"",
    "{\"a\":1e999}",
    "{\"a\":\"\\ud83d\"}",
    "{\"a\"",
    "{} {}",
    "{\"a\":1,\"a\":2}",
];

pub fn id() -> impl Strategy<Value = CallId> {
    // The first three are common, so that real pairs arise.
    prop_oneof![
        6 => prop::sample::select(&IDS[..3]),
        2 => prop::sample::select(&IDS[..]),
    ]
    .prop_map(CallId::new)
}

pub fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => Just("x".to_owned()),
        1 => prop::sample::select(&["", " ", "\n\t", "\u{2003}", "\u{85}", "\u{0}"][..]).prop_map(str::to_owned),
    ]
}

/// As a tool may send them: some that providers take, some that none does.
fn image() -> impl Strategy<Value = ImageData> {
    const BASE64: &[&str] = &["iVBORw0KGgo=", "/9j/4AAQSkZJRgAB", "AA==", "", "iVBORw0KGgo", "i V", "\u{0}"];
    const URLS: &[&str] =
        &["https://x/y", "http://x/y", "", "/y", "file:///y", "data:image/png;base64,iVBORw0KGgo="];
    prop_oneof![
        prop::sample::select(BASE64).prop_map(|text| ImageData::Base64(text.to_owned())),
        prop::sample::select(URLS).prop_map(|text| ImageData::Url(text.to_owned())),
    ]
}

fn part() -> impl Strategy<Value = ContentPart> {
    prop_oneof![
        5 => text().prop_map(ContentPart::Text),
        1 => image().prop_map(|data| ContentPart::Image { data, media_type: None }),
        1 => Just(ContentPart::Unknown(serde_json::json!({"type": "hologram"}))),
    ]
}

fn parts() -> impl Strategy<Value = Vec<ContentPart>> {
    prop::collection::vec(part(), 0..3)
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        3 => Just(Outcome::Ok),
        1 => Just(Outcome::Error),
        1 => Just(Outcome::Interrupted),
        1 => Just(Outcome::Halted),
        1 => Just(Outcome::Lost),
        1 => Just(Outcome::Refused),
        1 => Just(Outcome::TimedOut),
        1 => Just(Outcome::Truncated),
        1 => Just(Outcome::Unknown("vanished".into())),
    ]
}

fn call() -> impl Strategy<Value = ItemBody> {
    (id(), prop::sample::select(&ARGUMENTS[..]), text()).prop_map(|(call_id, arguments, provider_id)| {
        ItemBody::ToolCall(ToolCallItem {
            call_id,
            provider_id,
            name: "f".into(),
            arguments: arguments.into(),
            signature: None,
            model: MODEL.into(),
        })
    })
}

fn result() -> impl Strategy<Value = ItemBody> {
    (id(), outcome(), parts(), any::<bool>()).prop_map(|(call_id, outcome, parts, tool)| {
        let settled_by = if tool { SettledBy::Tool } else { SettledBy::Runtime };
        ItemBody::ToolResult(ToolResultItem { call_id, outcome, parts, settled_by, display_as: None })
    })
}

fn reasoning() -> impl Strategy<Value = ItemBody> {
    let signature = prop::option::of(prop::sample::select(&["sig", "", " "][..]).prop_map(str::to_owned));
    (text(), signature, any::<bool>(), any::<bool>()).prop_map(|(text, signature, own, native)| {
        let model = if own { MODEL } else { "other" };
        let provider = native.then(|| RawJson::parse(r#"{"n":1.0}"#).expect("JSON"));
        ItemBody::Reasoning(ReasoningItem { model: model.into(), text, signature, provider })
    })
}

fn event() -> impl Strategy<Value = ItemBody> {
    (id(), id(), parts()).prop_map(|(call_id, origin, parts)| {
        ItemBody::Event(EventItem {
            call_id,
            reason: SyntheticReason::SubscriptionEvent,
            original_tool_name: "s".into(),
            original_tool_call_id: origin,
            original_args: "\"".into(),
            parts,
        })
    })
}

/// Rows as they may lie in a store: of a newer version, or broken.
fn odd_row() -> impl Strategy<Value = ItemBody> {
    let rows = [
        "",
        "{}",
        "[1]",
        r#"{"kind":"dream"}"#,
        r#"{"kind":"tool_call","call_id":"a"}"#,
        r#"{"kind":"tool_call","call_id":"a","name":"f","arguments":"","new":{"x":1}}"#,
        r#"{"kind":"tool_result","call_id":"a","outcome":"gone","parts":[],"settled_by":"tool"}"#,
        r#"{"kind":"user","parts":[{"type":"text"}]}"#,
        r#"{"kind":"user","parts":[{"type":"smell"}],"synthetic_reason":"from_the_future"}"#,
    ];
    prop::sample::select(rows.to_vec()).prop_map(ItemBody::parse)
}

fn item() -> impl Strategy<Value = ItemBody> {
    prop_oneof![
        4 => call(),
        4 => result(),
        3 => parts().prop_map(|parts| ItemBody::User(UserItem { parts, ..UserItem::default() })),
        3 => text().prop_map(|text| {
            ItemBody::Assistant(AssistantItem { text, model: MODEL.into(), stop_reason: None })
        }),
        2 => reasoning(),
        2 => event(),
        1 => id().prop_map(|call_id| ItemBody::Interrupt(InterruptItem { call_id })),
        1 => text().prop_map(|text| ItemBody::System(SystemItem { text })),
        1 => text().prop_map(|summary| ItemBody::BackendToolCall(BackendToolCallItem {
            tool_type: "search".into(),
            provider: RawJson::empty_object(),
            summary,
        })),
        1 => odd_row(),
    ]
}

/// Gives each text that says something its own number, so that it can be found again.
fn number(items: &mut [ItemBody]) {
    for (at, item) in items.iter_mut().enumerate() {
        let mark = |text: &mut String| {
            if !text.trim().is_empty() {
                text.push_str(&format!("#{at}#"));
            }
        };
        let parts = match item {
            ItemBody::User(user) => &mut user.parts,
            ItemBody::ToolResult(result) => &mut result.parts,
            ItemBody::Event(event) => &mut event.parts,
            ItemBody::System(system) => {
                mark(&mut system.text);
                continue;
            }
            ItemBody::Assistant(assistant) => {
                mark(&mut assistant.text);
                continue;
            }
            ItemBody::BackendToolCall(call) => {
                mark(&mut call.summary);
                continue;
            }
            ItemBody::Reasoning(reasoning) => {
                reasoning.text.push_str(&reasoning.model);
                continue;
            }
            ItemBody::ToolCall(_) | ItemBody::Interrupt(_) | ItemBody::Unknown { .. } => continue,
        };
        for part in parts {
            if let ContentPart::Text(text) = part {
                mark(text);
            }
        }
    }
}

pub fn history() -> impl Strategy<Value = Vec<ItemBody>> {
    prop::collection::vec(item(), 0..16).prop_map(|mut items| {
        number(&mut items);
        items
    })
}
