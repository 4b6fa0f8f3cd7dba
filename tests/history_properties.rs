//! I5 and I9 over arbitrary stored histories, valid or damaged: whatever is stored, `render` answers with the
//! calls that are open, with nothing to answer, or with a request that every provider accepts.

#[path = "support/history/mod.rs"]
mod support;

use std::collections::{BTreeMap, BTreeSet};

use dormouse::history::render::{RenderError, RenderOptions, Rendered, render};
use dormouse::history::request::{ModelRequest, RequestMessage};
use dormouse::message::{
    AssistantItem, BackendToolCallItem, CallId, ContentPart, EventItem, ImageData, InterruptItem, ItemBody,
    Outcome, RawJson, ReasoningItem, SettledBy, SyntheticReason, SystemItem, ToolCallItem, ToolResultItem,
    UserItem,
};
use proptest::prelude::*;
use support::provider_rules;

/// Cases of one run, unless `PROPTEST_CASES` says otherwise.
const CASES: u32 = 10_000;
const MODEL: &str = "m";

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

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(CASES)
}

fn id() -> impl Strategy<Value = CallId> {
    // The first three are common, so that real pairs arise.
    prop_oneof![
        6 => prop::sample::select(&IDS[..3]),
        2 => prop::sample::select(&IDS[..]),
    ]
    .prop_map(CallId::new)
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => Just("x".to_owned()),
        1 => prop::sample::select(&["", " ", "\n\t", "\u{2003}", "\u{85}", "\u{0}"][..]).prop_map(str::to_owned),
    ]
}

fn part() -> impl Strategy<Value = ContentPart> {
    prop_oneof![
        5 => text().prop_map(ContentPart::Text),
        1 => any::<bool>().prop_map(|url| ContentPart::Image {
            data: if url { ImageData::Url("https://x/y".into()) } else { ImageData::Base64("AA==".into()) },
            media_type: None,
        }),
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
        let provider = native.then(|| RawJson::parse(r#"{"n":1.0}"#).unwrap());
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
            ItemBody::Reasoning(_)
            | ItemBody::ToolCall(_)
            | ItemBody::Interrupt(_)
            | ItemBody::Unknown { .. } => continue,
        };
        for part in parts {
            if let ContentPart::Text(text) = part {
                mark(text);
            }
        }
    }
}

fn history() -> impl Strategy<Value = Vec<ItemBody>> {
    prop::collection::vec(item(), 0..16).prop_map(|mut items| {
        number(&mut items);
        items
    })
}

/// Every text of a request, where the model reads it.
fn shown(request: &ModelRequest) -> Vec<String> {
    let mut shown: Vec<String> = request.system.clone().into_iter().collect();
    for message in &request.messages {
        match message {
            RequestMessage::User(parts) => shown.push(ContentPart::join_text(parts)),
            RequestMessage::Assistant(said) => shown.extend(said.text.clone()),
            RequestMessage::ToolResults(results) => {
                shown.extend(results.iter().map(|result| ContentPart::join_text(&result.parts)));
            }
        }
    }
    shown
}

/// Texts that must be in the request: everything said, and the first result of each call.
fn expected(items: &[ItemBody]) -> Vec<String> {
    let texts = |parts: &[ContentPart]| -> Vec<String> {
        let text = |part: &ContentPart| match part {
            ContentPart::Text(text) if !text.trim().is_empty() => Some(text.clone()),
            ContentPart::Text(_) | ContentPart::Image { .. } | ContentPart::Unknown(_) => None,
        };
        parts.iter().filter_map(text).collect()
    };
    let said = |text: &String| (!text.trim().is_empty()).then(|| vec![text.clone()]).unwrap_or_default();
    let calls = calls(items);
    let mut settled: BTreeSet<&CallId> = BTreeSet::new();
    let mut unanswered: BTreeSet<&CallId> = BTreeSet::new();
    let mut expected = Vec::new();
    for item in items {
        expected.extend(match item {
            ItemBody::System(system) => said(&system.text),
            ItemBody::User(user) => texts(&user.parts),
            ItemBody::Assistant(assistant) => said(&assistant.text),
            ItemBody::BackendToolCall(call) => said(&call.summary),
            ItemBody::ToolResult(result) => {
                unanswered.remove(&result.call_id);
                match settled.insert(&result.call_id) && calls.contains(&result.call_id) {
                    true => texts(&result.parts),
                    false => Vec::new(),
                }
            }
            ItemBody::Event(event) => {
                // It interrupted what was unanswered, so a result behind it is late.
                settled.append(&mut unanswered);
                texts(&event.parts)
            }
            ItemBody::Interrupt(marker) => {
                unanswered.remove(&marker.call_id);
                settled.insert(&marker.call_id);
                Vec::new()
            }
            ItemBody::ToolCall(call) => {
                if !settled.contains(&call.call_id) {
                    unanswered.insert(&call.call_id);
                }
                Vec::new()
            }
            ItemBody::Reasoning(_) | ItemBody::Unknown { .. } => Vec::new(),
        });
    }
    expected
}

fn calls(items: &[ItemBody]) -> BTreeSet<CallId> {
    let call = |item: &ItemBody| match item {
        ItemBody::ToolCall(call) => Some(call.call_id.clone()),
        _ => None,
    };
    items.iter().filter_map(call).collect()
}

fn settled(items: &[ItemBody]) -> BTreeSet<CallId> {
    let settled = |item: &ItemBody| match item {
        ItemBody::ToolResult(result) => Some(result.call_id.clone()),
        ItemBody::Interrupt(marker) => Some(marker.call_id.clone()),
        _ => None,
    };
    items.iter().filter_map(settled).collect()
}

/// Whether the history says anything to a model.
fn says_something(items: &[ItemBody]) -> bool {
    items.iter().any(|item| match item {
        ItemBody::User(user) => user.parts.iter().any(|part| !part.is_blank()),
        ItemBody::Assistant(assistant) => !assistant.text.trim().is_empty(),
        ItemBody::BackendToolCall(call) => !call.summary.trim().is_empty(),
        ItemBody::ToolCall(_) | ItemBody::Event(_) => true,
        ItemBody::System(_)
        | ItemBody::ToolResult(_)
        | ItemBody::Reasoning(_)
        | ItemBody::Interrupt(_)
        | ItemBody::Unknown { .. } => false,
    })
}

fn options(image_input: bool, system: Option<&str>) -> RenderOptions {
    RenderOptions {
        model: MODEL.into(),
        image_input,
        system: system.map(str::to_owned),
        ..Default::default()
    }
}

fn rendered(items: &[ItemBody], open: &[CallId], options: &RenderOptions) -> Result<Rendered, RenderError> {
    render(items.iter(), &open.iter().collect(), options)
}

/// A failing case is printed, and becomes a rule in `history_rules.rs`; files of seeds are not kept.
fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(cases()))]

    #[test]
    fn i5_whatever_is_stored_renders_as_a_request_that_every_provider_accepts(
        items in history(),
        open in prop::collection::vec(id(), 0..2),
        image_input in any::<bool>(),
        system in prop::option::of(text()),
    ) {
        let unanswered: BTreeSet<CallId> =
            calls(&items).intersection(&open.iter().cloned().collect()).cloned().collect();
        let unanswered: BTreeSet<CallId> = unanswered.difference(&settled(&items)).cloned().collect();
        match rendered(&items, &open, &options(image_input, system.as_deref())) {
            Err(RenderError::OpenCalls(calls)) => {
                prop_assert_eq!(calls.len(), unanswered.len(), "each open call once");
                prop_assert_eq!(calls.into_iter().collect::<BTreeSet<_>>(), unanswered);
            }
            Err(RenderError::Empty) => {
                prop_assert!(unanswered.is_empty());
                prop_assert!(!says_something(&items));
            }
            Err(RenderError::Invalid(why)) => prop_assert!(false, "our own check refuses it: {why}"),
            Ok(rendered) => {
                prop_assert!(unanswered.is_empty(), "asked although {unanswered:?} are open");
                prop_assert!(says_something(&items));
                if let Err(why) = provider_rules::judge(&rendered.request) {
                    prop_assert!(false, "{why}\n{:#?}", rendered.request.messages);
                }
            }
        }
    }

}

proptest! {
    // Fewer cases: the first property is the one that the others lean on.
    #![proptest_config(config(cases().div_ceil(5)))]

    #[test]
    fn i5_nothing_said_is_left_out_and_each_call_shows_its_first_result(items in history()) {
        let Ok(rendered) = rendered(&items, &[], &options(true, None)) else { return Ok(()) };
        let shown = shown(&rendered.request).join("\n");
        for text in expected(&items) {
            prop_assert!(shown.contains(&text), "{text:?} is missing in {shown:?}");
        }
        let mut wire: BTreeMap<&str, usize> = BTreeMap::new();
        for message in &rendered.request.messages {
            if let RequestMessage::Assistant(said) = message {
                for call in &said.calls {
                    *wire.entry(&call.name).or_default() += 1;
                }
            }
        }
        let count = |kind: &str| items.iter().filter(|item| item.kind() == kind).count();
        prop_assert_eq!(wire.get("f").copied().unwrap_or(0), count("tool_call"), "every call is shown");
        prop_assert_eq!(wire.len() - usize::from(wire.contains_key("f")), usize::from(count("event") > 0));
        prop_assert!(rendered.orphan_results <= count("tool_result"));
    }

    #[test]
    fn i5_rendering_is_a_function_of_what_is_stored(items in history(), open in prop::collection::vec(id(), 0..2)) {
        let stored: Vec<ItemBody> = items.iter().map(|item| match item {
            ItemBody::Unknown { .. } => item.clone(),
            known => ItemBody::parse(&known.to_raw()),
        }).collect();
        let options = options(true, Some("be brief"));
        prop_assert_eq!(rendered(&items, &open, &options), rendered(&stored, &open, &options));
    }

    #[test]
    fn i9_no_stored_text_makes_reading_or_rendering_panic(rows in prop::collection::vec(".{0,40}", 0..6)) {
        let items: Vec<ItemBody> = rows.iter().map(|row| ItemBody::parse(row)).collect();
        let _ = rendered(&items, &[], &options(false, None));
    }
}
