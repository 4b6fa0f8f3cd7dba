//! I5 and I9 over arbitrary stored histories, valid or damaged: whatever is stored, `render` answers with the
//! calls that are open, with nothing to answer, or with a request that every provider accepts.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/history/mod.rs"]
mod support;

use std::collections::BTreeSet;

use dormouse::history::render::{EVENT_TOOL, RenderError, RenderOptions, Rendered, render};
use dormouse::history::request::{ModelRequest, RequestMessage};
use dormouse::history::{Accepted, History};
use dormouse::message::{CallId, ContentPart, Epoch, Item, ItemBody, ItemFacts, MessageId, Seq};
use dormouse::store::{ImagesOut, Loaded, Meta, ParkedInput, PendingCall, Span};
use proptest::prelude::*;
use support::damaged::{MODEL, history, id, is_blank, text};
use support::provider_rules;
use support::say::{answer, arrival, calls as calls_tool, event, result, thread, user};
use support::store::Rows;

/// Cases of one run, unless `PROPTEST_CASES` says otherwise.
const CASES: u32 = 10_000;

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(CASES)
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

fn reasoning_of(request: &ModelRequest) -> Vec<String> {
    let said = |message: &RequestMessage| match message {
        RequestMessage::Assistant(said) => said.reasoning.iter().map(|r| r.text.clone()).collect(),
        RequestMessage::User(_) | RequestMessage::ToolResults(_) => Vec::new(),
    };
    request.messages.iter().flat_map(said).collect()
}

/// Texts that must be in the request: everything said, and the first result of each call.
fn expected(items: &[ItemBody]) -> Vec<String> {
    let texts = |parts: &[ContentPart]| -> Vec<String> {
        let text = |part: &ContentPart| match part {
            ContentPart::Text(text) if !is_blank(text) => Some(text.clone()),
            ContentPart::Text(_) | ContentPart::Image { .. } | ContentPart::Unknown(_) => None,
        };
        parts.iter().filter_map(text).collect()
    };
    let said = |text: &String| if is_blank(text) { vec![] } else { vec![text.clone()] };
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
            ItemBody::Reasoning(_) | ItemBody::State(_) | ItemBody::Unknown { .. } => Vec::new(),
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
    let says = |part: &ContentPart| !matches!(part, ContentPart::Text(text) if is_blank(text));
    items.iter().any(|item| match item {
        ItemBody::User(user) => user.parts.iter().any(says),
        ItemBody::Assistant(assistant) => !is_blank(&assistant.text),
        ItemBody::BackendToolCall(call) => !is_blank(&call.summary),
        ItemBody::ToolCall(_) | ItemBody::Event(_) => true,
        ItemBody::System(_)
        | ItemBody::ToolResult(_)
        | ItemBody::Reasoning(_)
        | ItemBody::Interrupt(_)
        | ItemBody::State(_)
        | ItemBody::Unknown { .. } => false,
    })
}

/// The reasoning of a turn that text or a call follows before its response ends: what ends on reasoning is no response.
fn followed_reasoning(turn: &[ItemBody]) -> impl Iterator<Item = &String> {
    let followed = |at: usize| {
        for item in &turn[at + 1..] {
            match item {
                ItemBody::ToolCall(_) => return true,
                ItemBody::Assistant(said) if !is_blank(&said.text) => return true,
                ItemBody::BackendToolCall(call) if !is_blank(&call.summary) => return true,
                ItemBody::User(_) | ItemBody::Event(_) | ItemBody::ToolResult(_) | ItemBody::Interrupt(_) => {
                    return false;
                }
                _ => {}
            }
        }
        false
    };
    turn.iter().enumerate().filter_map(move |(at, item)| match item {
        ItemBody::Reasoning(reasoning) if followed(at) => Some(&reasoning.text),
        _ => None,
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
                prop_assert!(reasoning_of(&rendered.request).iter().all(|text| !text.contains("other")));
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
        let calls = |message: &RequestMessage| match message {
            RequestMessage::Assistant(said) => said.calls.iter().map(|call| call.name.clone()).collect(),
            RequestMessage::User(_) | RequestMessage::ToolResults(_) => Vec::new(),
        };
        let wire: Vec<String> = rendered.request.messages.iter().flat_map(calls).collect();
        let name = |item: &ItemBody| match item {
            ItemBody::ToolCall(call) => Some(call.name.clone()),
            ItemBody::Event(_) => Some(EVENT_TOOL.to_owned()),
            _ => None,
        };
        prop_assert_eq!(wire, items.iter().filter_map(name).collect::<Vec<_>>(), "every call is shown, in order");
        let count = |kind: &str| items.iter().filter(|item| item.kind() == kind).count();
        prop_assert!(rendered.orphan_results <= count("tool_result"));
    }

    #[test]
    fn f40_a_turns_reasoning_goes_back_whole_or_not_at_all(items in history()) {
        let Ok(rendered) = rendered(&items, &[], &options(true, None)) else { return Ok(()) };
        let sent: BTreeSet<String> = reasoning_of(&rendered.request).into_iter().collect();
        for turn in items.chunk_by(|_, next| !next.starts_turn()) {
            let of_turn: Vec<bool> = followed_reasoning(turn).map(|text| sent.contains(text)).collect();
            let (some, all) = (of_turn.contains(&true), !of_turn.contains(&false));
            prop_assert!(all || !some, "a part of a turn's reasoning: {turn:#?}");
        }
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

    #[test]
    fn i5_i9_whatever_an_overlay_of_images_says_the_request_is_valid_and_no_image_comes_back(
        items in history(),
        (before, nth) in prop_oneof![(0..12_u64, 0..4_u32), any::<(u64, u32)>()],
        head in prop_oneof![4 => Just(None), 1 => any::<u64>().prop_map(Some)],
        span in prop::option::of(any::<(u64, u64)>()),
        most in 0..6_usize,
        aside in any::<bool>(),
    ) {
        let item =
            |(n, body): (usize, &ItemBody)| Item::fresh(Seq::FIRST.plus(n), body.clone(), ItemFacts::default());
        let mut meta = Meta::new_root(thread(), "agent", None, 0);
        meta.head = head.map_or(Seq::FIRST.plus(items.len()), Seq);
        meta.base.extend(span.map(|(from, to)| {
            Span { thread: thread(), epoch: Epoch(0), from: Seq(from), to: Seq(to) }
        }));
        meta.images_out = ImagesOut { before, nth, refused: vec!["x".into()] };
        let items = items.iter().enumerate().map(item).collect();
        let mut history = History::new(thread(), Loaded { meta: Some(meta), items, ..Loaded::default() });
        if aside {
            history.set_images_aside();
        }
        let Ok(first) = history.render_history(&options(true, None)) else { return Ok(()) };
        let mut request = first.request.clone();
        let mut rounds = 0;
        // More than one only where results without a call, which no request shows, hold images.
        while history.make_room_for_images(&request, Some(most)) {
            rounds += 1;
            prop_assert!(rounds < 100, "each round moves on");
            request = history.render_history(&options(true, None)).unwrap().request;
        }
        if let Err(why) = provider_rules::judge(&request) {
            prop_assert!(false, "{why}\n{:#?}", request.messages);
        }
        prop_assert!(request.images() <= most, "{} images, {most} fit", request.images());
        prop_assert_eq!(rounds > 0, first.request.images() > most);
        let out = history.images_out();
        prop_assert!((out.before, out.nth) >= (before, nth), "only forward");
    }

    #[test]
    fn i7_a_damaged_thread_takes_another_message_of_the_user(
        items in history(),
        pending in prop::collection::vec((id(), 0..20_u64, any::<bool>(), any::<bool>()), 0..4),
        parked in prop::collection::vec((id(), 0..4_usize), 0..4),
        head in prop_oneof![4 => Just(None), 1 => (0..20_u64).prop_map(Some)],
    ) {
        let mut history = damaged_thread(&items, &pending, &parked, head);
        let _ = history.render_history(&options(true, None));
        let _ = (history.safe_spawn_point(), history.own_items().len(), history.plan());
        prop_assert_eq!(history.accept(&user("hi"), &arrival(99, "d99")), Accepted::Ready);
        let rendered = history.render_history(&options(true, None));
        let request = rendered.map(|rendered| rendered.request);
        prop_assert!(request.as_ref().is_ok_and(|request| shown(request).join("").contains("hi")), "{request:?}");
        if let Err(why) = provider_rules::judge(&request.unwrap_or_default()) {
            prop_assert!(false, "{why}");
        }
        let made = answer(&mut history, &[calls_tool("", "f", "{}")]);
        prop_assert!(!history.is_settled());
        prop_assert_eq!(
            history.accept(&result(&made[0].call_id, "1"), &arrival(100, "d100")),
            Accepted::Ready,
            "and works on"
        );
        let mut rows = Rows::of(history.head(), history.committed().to_vec());
        rows.parked.extend(parked_rows(&parked).into_iter().map(|row| (row.key.clone(), row)));
        history.mark_inputs_model_validated();
        loop {
            let plan = history.plan();
            rows.write_unchecked(&plan);
            let more = plan.more;
            history.apply(plan);
            if !more {
                break;
            }
        }
        prop_assert!(history.is_settled() && !history.has_unsynced());
    }
}

fn parked_rows(parked: &[(CallId, usize)]) -> Vec<ParkedInput> {
    let body = |call: &CallId, kind: usize| match kind {
        0 => result(call, "parked").to_body().expect("a body"),
        1 => event(call, "parked").to_body().expect("a body"),
        2 => user("parked").to_body().expect("a body"),
        _ => "{\"not\": a message".to_owned(),
    };
    let row = |(n, (call, kind)): (usize, &(CallId, usize))| {
        let arrival = arrival(n, &format!("p{n}"));
        ParkedInput { key: arrival.key, dedup: arrival.dedup, cause: arrival.cause, body: body(call, *kind) }
    };
    parked.iter().enumerate().map(row).collect()
}

/// META, items and parked rows that do not fit each other.
fn damaged_thread(
    items: &[ItemBody],
    pending: &[(CallId, u64, bool, bool)],
    parked: &[(CallId, usize)],
    head: Option<u64>,
) -> History {
    let item =
        |(n, body): (usize, &ItemBody)| Item::fresh(Seq::FIRST.plus(n), body.clone(), ItemFacts::default());
    let mut meta = Meta::new_root(thread(), "agent", None, 0);
    meta.head = head.map_or(Seq::FIRST.plus(items.len()), Seq);
    let open = |(call, seq, passive, synchronous): &(CallId, u64, bool, bool)| PendingCall {
        call: call.clone(),
        seq: Seq(*seq),
        name: "f".into(),
        passive: *passive,
        synchronous: *synchronous,
        server: None,
        hold: None,
        terms: Default::default(),
        parked: *passive,
        cause: vec![MessageId::new("m")],
        user: None,
        extra: Default::default(),
    };
    meta.pending = pending.iter().map(open).collect();
    let items = items.iter().enumerate().map(item).collect();
    let loaded = Loaded { meta: Some(meta), items, parked: parked_rows(parked), ..Loaded::default() };
    History::new(thread(), loaded)
}
