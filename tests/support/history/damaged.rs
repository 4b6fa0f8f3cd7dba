//! Stored histories as no version of dormouse should have written them.

use dormouse::message::{
    AssistantItem, BackendToolCallItem, CallId, ContentPart, EventItem, ImageData, InterruptItem, ItemBody,
    Outcome, RawJson, ReasoningItem, SettledBy, StateItem, SyntheticReason, SystemItem, ToolCallItem,
    ToolResultItem, UserItem,
};
use proptest::prelude::*;

/// The model that answers.
pub const MODEL: &str = "m";

/// Few ids, so that they collide; odd ones, since old rows may hold anything.
const IDS: [&str; 9] = ["a", "b", "c", "a_2", "a_2_2", "", " ", "a b/ü", LONG];
const LONG: &str = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";

/// Names of tools as models invent them (F44): of other providers' tools, of ours, and of none.
const NAMES: [&str; 12] = [
    "g",
    "foo@bar",
    "foo!bar",
    LONG,
    "",
    " ",
    "7up",
    "a.b",
    "ünï/🐭",
    "web_search",
    "googleSearch",
    "receive_event__injected",
];

const ARGUMENTS: [&str; 17] = [
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
    "{\"a\":1.0,\"b\":0.1,\"c\":12345678901234567890123}",
    "{\"\":{\"ü\":[null,\"a\\u0000b\"]}}",
    "{\"a\":\"\u{1}\"}",
];

pub fn id() -> impl Strategy<Value = CallId> {
    // The first three are common, so that real pairs arise.
    prop_oneof![
        6 => prop::sample::select(&IDS[..3]),
        2 => prop::sample::select(&IDS[..]),
    ]
    .prop_map(CallId::new)
}

/// Texts that are blank to some provider: white space of Unicode, of Python, of JavaScript.
const BLANKS: [&str; 8] =
    ["", " ", "\n\t", "\u{2003}", "\u{85}", "\u{1c}\u{1f}", "\u{feff}", " \u{feff}\u{1d}"];
/// Texts that say something, if not much.
const ODD_TEXTS: [&str; 7] =
    ["\u{0}", "ü🐭\u{202e}", "\u{fffe}\u{ffff}\u{7}", "a\r\nb\u{2028}", "</s>\"}]\\", "\u{200b}", "x \n"];

/// Whether nobody would take a text for one.
pub fn is_blank(text: &str) -> bool {
    text.chars().all(|c| c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c) || c == '\u{feff}')
}

pub fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => Just("x".to_owned()),
        2 => prop::sample::select(&BLANKS[..]).prop_map(str::to_owned),
        1 => prop::sample::select(&ODD_TEXTS[..]).prop_map(str::to_owned),
    ]
}

/// As a tool may send them: some that providers take, some that none does.
fn image() -> impl Strategy<Value = ContentPart> {
    const BASE64: &[&str] = &[
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg==",
        "/9j/4AAQSkZJRgABAQAAAQABAAD/wAALCAABAAEBAREA/9k=",
        "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7",
        "UklGRiIAAABXRUJQVlA4IBYAAAAwAQCdASoBAAEADsD+JaQAA3AAAAAA",
        // Their headers are cut, or say that there is nothing in them.
        "iVBORw0KGgo=",
        "/9j/4AAQSkZJRgAB",
        "iVBORw0KGgoAAAANSUhEUgAAAAAAAAABCAAAAAA=",
        "AA==",
        "",
        "iVBORw0KGgo",
        "i V",
        "\u{0}",
    ];
    const URLS: &[&str] = &[
        "https://x/y",
        "https://x/y.gif",
        "http://x/y",
        "",
        "/y",
        "file:///y",
        "data:image/png;base64,iVBORw0KGgo=",
    ];
    const TYPES: &[&str] =
        &["png", "jpg", "GIF", "image/webp", "svg+xml", "text/html", "", " ", "a/b/c", "ü"];
    let data = prop_oneof![
        prop::sample::select(BASE64).prop_map(|text| ImageData::Base64(text.to_owned())),
        prop::sample::select(URLS).prop_map(|text| ImageData::Url(text.to_owned())),
    ];
    (data, prop::option::of(prop::sample::select(TYPES)))
        .prop_map(|(data, media_type)| ContentPart::Image { data, media_type: media_type.map(str::to_owned) })
}

fn part() -> impl Strategy<Value = ContentPart> {
    prop_oneof![
        5 => text().prop_map(ContentPart::Text),
        2 => image(),
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

/// A model: the one that answers, or one of those that answered before it.
fn model() -> impl Strategy<Value = String> {
    prop_oneof![3 => Just(MODEL), 1 => Just("other"), 1 => Just("other-2")].prop_map(str::to_owned)
}

fn signature() -> impl Strategy<Value = Option<String>> {
    prop::option::of(prop::sample::select(&["c2ln", "", " "][..]).prop_map(str::to_owned))
}

fn call() -> impl Strategy<Value = ItemBody> {
    let name = prop_oneof![3 => Just("f"), 1 => prop::sample::select(&NAMES[..])];
    (id(), name, prop::sample::select(&ARGUMENTS[..]), text(), signature(), model()).prop_map(
        |(call_id, name, arguments, provider_id, signature, model)| {
            ItemBody::ToolCall(ToolCallItem {
                call_id,
                provider_id,
                name: name.into(),
                arguments: arguments.into(),
                signature,
                model,
            })
        },
    )
}

fn result() -> impl Strategy<Value = ItemBody> {
    (id(), outcome(), parts(), any::<bool>()).prop_map(|(call_id, outcome, parts, tool)| {
        let settled_by = if tool { SettledBy::Tool } else { SettledBy::Runtime };
        ItemBody::ToolResult(ToolResultItem { call_id, outcome, parts, settled_by, display_as: None })
    })
}

/// Blocks as providers gave them, of every dialect: a thread may go on with the same model over another route.
const BLOCKS: [&str; 7] = [
    r#"{"n":1.0}"#,
    r#"{"type":"redacted_thinking","data":"YWJj"}"#,
    r#"{"type":"redacted_thinking"}"#,
    r#"{"type":"thinking","thinking":"","signature":""}"#,
    r#"{"type":"reasoning_content"}"#,
    r#"{"type":"reasoning","id":"rs_1","summary":[]}"#,
    r#"{"redactedContent":"YWJj"}"#,
];

fn reasoning() -> impl Strategy<Value = ItemBody> {
    let provider = prop::option::of(prop::sample::select(&BLOCKS[..]));
    (text(), signature(), model(), provider).prop_map(|(text, signature, model, provider)| {
        let provider = provider.map(|block| RawJson::parse(block).expect("JSON"));
        ItemBody::Reasoning(ReasoningItem { model, text, signature, provider })
    })
}

/// A step as a model makes it: reasoning, text, several calls, and some of their results in any order.
fn step() -> impl Strategy<Value = Vec<ItemBody>> {
    let said = prop::option::of(answer());
    let calls = prop::collection::vec(call(), 1..5);
    (
        prop::collection::vec(reasoning(), 0..3),
        said,
        calls,
        prop::collection::vec(any::<(bool, bool)>(), 4),
        parts(),
    )
        .prop_map(|(mut items, said, calls, fates, parts)| {
            items.extend(said);
            let mut results = Vec::new();
            for (call, (answered, first)) in calls.iter().zip(fates) {
                let ItemBody::ToolCall(ToolCallItem { call_id, .. }) = call else { continue };
                let result = ItemBody::ToolResult(ToolResultItem {
                    call_id: call_id.clone(),
                    outcome: Outcome::Ok,
                    parts: parts.clone(),
                    settled_by: SettledBy::Tool,
                    display_as: None,
                });
                match (answered, first) {
                    (false, _) => {}
                    (true, true) => results.insert(0, result),
                    (true, false) => results.push(result),
                }
            }
            items.extend(calls);
            items.extend(results);
            items
        })
}

fn answer() -> impl Strategy<Value = ItemBody> {
    (text(), model())
        .prop_map(|(text, model)| ItemBody::Assistant(AssistantItem { text, model, stop_reason: None }))
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
        3 => answer(),
        2 => reasoning(),
        2 => event(),
        1 => id().prop_map(|call_id| ItemBody::Interrupt(InterruptItem { call_id })),
        1 => text().prop_map(|text| ItemBody::System(SystemItem { text })),
        1 => (text(), prop::sample::select(&BLOCKS[..])).prop_map(|(summary, block)| {
            ItemBody::BackendToolCall(BackendToolCallItem {
                tool_type: "search".into(),
                provider: RawJson::parse(block).expect("JSON"),
                summary,
            })
        }),
        1 => prop::sample::select(&BLOCKS[..]).prop_map(|block| {
            ItemBody::State(StateItem { state: RawJson::parse(block).expect("JSON") })
        }),
        1 => odd_row(),
    ]
}

/// Gives each text that says something its own number, so that it can be found again.
fn number(items: &mut [ItemBody]) {
    for (at, item) in items.iter_mut().enumerate() {
        let mark = |text: &mut String| {
            if !is_blank(text) {
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
                reasoning.text.push_str(&format!("{}#{at}#", reasoning.model));
                continue;
            }
            ItemBody::ToolCall(_)
            | ItemBody::Interrupt(_)
            | ItemBody::State(_)
            | ItemBody::Unknown { .. } => continue,
        };
        for part in parts {
            if let ContentPart::Text(text) = part {
                mark(text);
            }
        }
    }
}

pub fn history() -> impl Strategy<Value = Vec<ItemBody>> {
    let piece = prop_oneof![5 => item().prop_map(|item| vec![item]), 1 => step()];
    prop::collection::vec(piece, 0..16).prop_map(|pieces| {
        let mut items = pieces.concat();
        number(&mut items);
        items
    })
}
