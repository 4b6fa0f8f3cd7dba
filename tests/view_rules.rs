//! What a thread shows of its history: pruning, rewind, fork and snapshot at their edges, on the pure core.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/history/mod.rs"]
mod support;

use dormouse::history::History;
use dormouse::history::request::RequestMessage;
use dormouse::history::rewind::{RewindKind, RewindRefused};
use dormouse::history::snapshot::Snapshot;
use dormouse::message::{
    AssistantItem, CallId, ContentPart, Epoch, EventItem, ImageData, Item, ItemBody, ItemFacts, ItemId,
    Outcome, ReasoningItem, RewindTarget, Seq, SettledBy, SyntheticReason, SystemItem, ToolCallItem,
    ToolResultItem, UserItem,
};
use dormouse::model::Usage;
use dormouse::store::{Loaded, Meta, PendingCall, Prune};
use support::say::{answer, arrival, says, thread, user};
use support::slice::options;

/// Stored rows, built turn by turn.
#[derive(Clone, Default)]
struct Rows {
    items: Vec<Item>,
    next_turn: u32,
}

impl Rows {
    fn push(&mut self, body: ItemBody, opens_turn: bool) -> &mut Self {
        self.next_turn += u32::from(opens_turn);
        let seq = Seq(self.items.len() as u64 + 1);
        let opener = self.items.iter().rev().find(|item| item.facts.opens_turn).map(|item| item.seq);
        let turn_id = if opens_turn { Some(seq) } else { opener };
        let facts = ItemFacts {
            turn: self.next_turn.saturating_sub(1),
            turn_id: turn_id.map(|seq| ItemId::at(Epoch(0), seq)),
            opens_turn,
            ..ItemFacts::default()
        };
        self.items.push(Item::fresh(seq, body, facts));
        self
    }

    fn user(&mut self, text: &str) -> &mut Self {
        self.push(said(vec![ContentPart::text(text)], None), true)
    }

    fn step(&mut self, parts: Vec<ContentPart>, outcome: Outcome) -> &mut Self {
        let call = call(self.items.len() + 1);
        self.push(
            ItemBody::ToolCall(ToolCallItem {
                call_id: call.clone(),
                provider_id: String::new(),
                name: "f".into(),
                arguments: "{}".into(),
                signature: None,
                model: "m".into(),
            }),
            false,
        );
        let settled_by = SettledBy::Tool;
        self.push(
            ItemBody::ToolResult(ToolResultItem {
                call_id: call,
                outcome,
                parts,
                settled_by,
                display_as: None,
            }),
            false,
        )
    }

    fn says(&mut self, text: &str) -> &mut Self {
        let (text, model) = (text.to_owned(), "m".to_owned());
        self.push(ItemBody::Assistant(AssistantItem { text, model, stop_reason: None }), false)
    }

    /// A turn with one result of so many characters.
    fn turn(&mut self, chars: usize) -> &mut Self {
        let text = "é".repeat(chars);
        self.user("go").step(vec![ContentPart::text(text)], Outcome::Ok).says("done")
    }

    fn turns(&mut self, turns: usize, chars: usize) {
        for _ in 0..turns {
            self.turn(chars);
        }
    }

    fn meta(&self) -> Meta {
        let head = Seq(self.items.len() as u64 + 1);
        Meta { head, next_turn: self.next_turn, ..Meta::new_root(thread(), "agent", None, 0) }
    }

    fn load(&self) -> History {
        self.load_with(Prune::default())
    }

    fn load_with(&self, prune: Prune) -> History {
        let meta = Meta { prune, ..self.meta() };
        History::new(thread(), Loaded { meta: Some(meta), items: self.items.clone(), ..Loaded::default() })
    }
}

fn said(parts: Vec<ContentPart>, synthetic_reason: Option<SyntheticReason>) -> ItemBody {
    ItemBody::User(UserItem { parts, synthetic_reason, ..UserItem::default() })
}

fn call(seq: usize) -> CallId {
    CallId::mint(&thread(), Epoch(0), Seq(seq as u64))
}

/// The history in which the next turn begins.
fn beginning(rows: &Rows) -> History {
    let mut history = rows.load();
    history.accept(&user("next"), &arrival(1, "d1"));
    history
}

/// The texts of the results that the next request shows.
fn results(history: &History) -> Vec<String> {
    let request = history.render_history(&options()).unwrap().request;
    let results = request.messages.into_iter().filter_map(|message| match message {
        RequestMessage::ToolResults(results) => Some(results),
        RequestMessage::User(_) | RequestMessage::Assistant(_) => None,
    });
    results.flatten().map(|result| ContentPart::join_text(&result.parts)).collect()
}

fn form(text: &str) -> &'static str {
    match text {
        text if text.contains("recall with") => "cleared",
        text if text.contains("was left out to save room") => "short",
        _ => "whole",
    }
}

const TINY: u64 = 1_000;
/// Characters of a result that is shortened, and frees more than a batch needs at the least.
const LONG: usize = 20_000;

#[test]
fn prune_a_result_is_shortened_from_its_third_turn_back_and_cleared_from_its_tenth() {
    let mut rows = Rows::default();
    rows.turns(12, LONG);
    let mut history = beginning(&rows);
    assert!(history.prune_at_turn_start(TINY, None, 0));
    let forms: Vec<&str> = results(&history).iter().map(|text| form(text)).collect();
    // The turn that begins is the twelfth: ages run from 12 down to 1.
    assert_eq!(forms[..3], ["cleared"; 3], "ages 12 to 10");
    assert_eq!(forms[3..10], ["short"; 7], "ages 9 to 3");
    assert_eq!(forms[10..], ["whole"; 2], "ages 2 and 1");
    // A young thread is not touched.
    let mut young = Rows::default();
    young.turns(2, LONG);
    assert!(!beginning(&young).prune_at_turn_start(TINY, None, 0));
}

#[test]
fn prune_what_opens_no_turn_makes_nothing_older() {
    let mut plain = Rows::default();
    plain.turns(12, LONG);
    let mut noted = Rows::default();
    noted.push(ItemBody::System(SystemItem { text: "be brief".into() }), false);
    noted.push(
        said(vec![ContentPart::text("house rules")], Some(SyntheticReason::ProjectInstructions)),
        false,
    );
    for _ in 0..12 {
        noted.turn(LONG);
        noted.push(said(vec![ContentPart::text("by the way")], Some(SyntheticReason::SystemReminder)), false);
    }
    let forms = |rows: &Rows| -> Vec<&'static str> {
        let mut history = beginning(rows);
        history.prune_at_turn_start(TINY, None, 0);
        results(&history).iter().map(|text| form(text)).collect()
    };
    assert_eq!(forms(&plain), forms(&noted));
}

#[test]
fn prune_the_gate_is_above_half_of_the_window() {
    let mut rows = Rows::default();
    rows.turns(12, LONG);
    let size = beginning(&rows).size(None, 0);
    for (window, pruned) in [(2 * size, false), (2 * size + 1, false), (2 * size - 2, true), (0, false)] {
        assert_eq!(beginning(&rows).prune_at_turn_start(window, None, 0), pruned, "{window} of {size}");
    }
    // What the provider has counted counts, not the estimate.
    let usage = |input| Some(Usage { input, ..Usage::default() });
    let rest = beginning(&rows).size(usage(0), 0);
    assert!(!beginning(&rows).prune_at_turn_start(2 * size, usage(size - rest), 0));
    assert!(beginning(&rows).prune_at_turn_start(2 * size, usage(size - rest + 1), 0));
    assert!(!beginning(&rows).prune_at_turn_start(u64::MAX, usage(u64::MAX), u64::MAX), "nothing overflows");
}

#[test]
fn prune_a_result_is_long_from_4001_characters_on_whatever_their_bytes() {
    let mut rows = Rows::default();
    rows.turn(4_000).turn(4_001);
    rows.turns(3, 10);
    let history = rows.load_with(Prune { soft_before: 2, hard_before: 0, since_turn: 5 });
    let mut history = history;
    history.accept(&user("next"), &arrival(1, "d1"));
    let shown = results(&history);
    assert_eq!((form(&shown[0]), shown[0].chars().count()), ("whole", 4_000));
    assert_eq!(form(&shown[1]), "short");
    assert!(shown[1].starts_with(&"é".repeat(1_500)) && shown[1].ends_with(&"é".repeat(1_500)));
}

#[test]
fn prune_a_batch_that_frees_too_little_is_not_taken_and_a_large_one_stops_when_it_is_enough() {
    let mut small = Rows::default();
    small.turn(4_100);
    small.turns(12, 10);
    assert!(!beginning(&small).prune_at_turn_start(TINY, None, 0), "it frees less than 4,000 tokens");
    let mut rows = Rows::default();
    rows.turns(40, LONG);
    let window = 2 * beginning(&rows).size(None, 0) - 2;
    let mut history = beginning(&rows);
    assert!(history.prune_at_turn_start(window, None, 0));
    let after = history.size(None, 0);
    assert!(after <= window / 5 * 2, "down to two fifths: {after} of {window}");
    assert!(history.prune().soft_before < 20, "and not further than needed: {:?}", history.prune());
}

#[test]
fn prune_lands_where_a_turn_begins_and_never_between_a_call_and_its_result() {
    let mut rows = Rows::default();
    rows.turns(12, LONG);
    assert!(!rows.load().prune_at_turn_start(TINY, None, 0), "nothing begins");
    // The turn's own step: its call is out, its result comes in.
    rows.user("go").step(vec![ContentPart::text("é".repeat(LONG))], Outcome::Ok);
    let ItemBody::ToolResult(result) = rows.items.pop().unwrap().body else { panic!("a result") };
    let pending: PendingCall = serde_json::from_value(serde_json::json!({
        "call": result.call_id, "seq": rows.items.len(), "name": "f"
    }))
    .unwrap();
    let meta = Meta { pending: vec![pending], ..rows.meta() };
    let loaded = Loaded { meta: Some(meta), items: rows.items.clone(), ..Loaded::default() };
    let mut history = History::new(thread(), loaded);
    assert!(!history.prune_at_turn_start(TINY, None, 0), "while the call is out");
    history.accept(&support::say::result(&result.call_id, "done"), &arrival(1, "d1"));
    assert!(history.is_settled() && history.size(None, 0) > TINY);
    assert!(!history.prune_at_turn_start(TINY, None, 0), "nor as it is answered");
    history.accept(&user("next"), &arrival(2, "d2"));
    assert!(history.prune_at_turn_start(TINY, None, 0), "but where the next turn begins");
}

#[test]
fn prune_boundaries_only_move_forward_and_follow_a_rewind_back() {
    let mut rows = Rows::default();
    rows.turns(20, LONG);
    let there = Prune { soft_before: 18, hard_before: 11, since_turn: 20 };
    let mut history = rows.load_with(there);
    history.accept(&user("next"), &arrival(1, "d1"));
    history.prune_at_turn_start(TINY, None, 0);
    assert!(history.prune().soft_before >= 18 && history.prune().hard_before >= 11);
    let mut history = rows.load_with(there);
    let plan = history.plan_rewind(&RewindTarget::Turn(5), None, RewindKind::Hide).unwrap();
    history.rewind(&plan, &arrival(1, "d1"));
    assert_eq!(history.prune(), Prune { soft_before: 5, hard_before: 5, since_turn: 5 });
    // An age is by the turns that are shown: those that were hidden count no more.
    history.accept(&user("next"), &arrival(2, "d2"));
    assert_eq!(history.render_history(&options()).unwrap().request.messages.len(), 5 * 4 + 1);
}

#[test]
fn prune_takes_the_reasoning_that_is_bound_to_what_it_changes() {
    let mut rows = Rows::default();
    let reasoning = ItemBody::Reasoning(ReasoningItem {
        text: "thought".into(),
        signature: Some("s".into()),
        provider: None,
        model: options().model,
    });
    for _ in 0..12 {
        rows.user("go").push(reasoning.clone(), false);
        rows.step(vec![ContentPart::text("é".repeat(LONG))], Outcome::Ok).says("done");
    }
    let thoughts = |history: &History| {
        let messages = history.render_history(&options()).unwrap().request.messages;
        let said = messages.iter().filter_map(|message| match message {
            RequestMessage::Assistant(said) => Some(said.reasoning.len()),
            RequestMessage::User(_) | RequestMessage::ToolResults(_) => None,
        });
        said.sum::<usize>()
    };
    let mut history = beginning(&rows);
    assert_eq!(thoughts(&history), 12);
    assert!(history.prune_at_turn_start(TINY, None, 0));
    assert_eq!(thoughts(&history), 0);
    answer(&mut history, &[support::say::thinks("new"), support::say::signs(), says("ok")]);
    history.accept(&user("more"), &arrival(2, "d2"));
    assert_eq!(thoughts(&history), 1, "what was thought after it goes back");
}

#[test]
fn prune_clears_images_with_the_text_and_counts_them_and_keeps_a_failures_first_line() {
    let image =
        ContentPart::Image { data: ImageData::Base64("AAAA".repeat(3_000)), media_type: Some("png".into()) };
    let mut rows = Rows::default();
    rows.user("look")
        .step(vec![image.clone(), image, ContentPart::text("two pictures")], Outcome::Ok)
        .says("ok");
    rows.user("fail")
        .step(vec![ContentPart::text(format!("disk full\n{}", "x".repeat(LONG)))], Outcome::Error)
        .says("oh");
    rows.turns(12, LONG);
    let (mut history, before) = (beginning(&rows), beginning(&rows).size(None, 0));
    assert!(history.prune_at_turn_start(TINY, None, 0));
    let request = history.render_history(&options()).unwrap().request;
    let images = request.messages.iter().flat_map(|message| match message {
        RequestMessage::ToolResults(results) => results.iter().flat_map(|result| &result.parts).collect(),
        RequestMessage::User(parts) => parts.iter().collect::<Vec<_>>(),
        RequestMessage::Assistant(_) => Vec::new(),
    });
    assert_eq!(images.filter(|part| matches!(part, ContentPart::Image { .. })).count(), 0);
    assert!(before - history.size(None, 0) > 10_000, "each unreadable image counts 5,000 tokens");
    let shown = results(&history);
    assert!(shown[1].contains("disk full") && !shown[1].contains("xxx"), "{}", shown[1]);
}

#[test]
fn prune_keeps_fifty_turns_of_long_results_within_the_window() {
    let mut rows = Rows::default();
    let window = 60_000;
    let mut prune = Prune::default();
    for turn in 0..50 {
        let mut history = rows.load_with(prune);
        history.accept(&user("next"), &arrival(turn, &format!("d{turn}")));
        history.prune_at_turn_start(window, None, 0);
        prune = history.prune();
        assert!(history.size(None, 0) < window * 3 / 4, "turn {turn}: {}", history.size(None, 0));
        rows.turn(6_000);
    }
}

#[test]
fn rewind_counts_turns_by_what_opens_them_and_nothing_else() {
    let mut rows = Rows::default();
    rows.push(
        said(vec![ContentPart::text("house rules")], Some(SyntheticReason::ProjectInstructions)),
        false,
    );
    rows.user("one").says("1");
    rows.push(said(vec![ContentPart::text("late")], Some(SyntheticReason::LateResult)), false);
    let woken = EventItem {
        call_id: call(90),
        original_tool_name: "watch".into(),
        original_tool_call_id: call(2),
        original_args: "{}".into(),
        reason: SyntheticReason::SubscriptionEvent,
        parts: vec![ContentPart::text("green")],
    };
    rows.push(ItemBody::Event(woken), true).says("2");
    rows.user("three").says("3");
    let plan = |target: RewindTarget| rows.load().plan_rewind(&target, None, RewindKind::Hide);
    let hidden =
        |target| plan(target).map(|plan| plan.turns.iter().map(|turn| turn.turn).collect::<Vec<_>>());
    assert_eq!(hidden(RewindTarget::Turn(0)), Ok(vec![0, 1, 2]));
    assert_eq!(hidden(RewindTarget::Turn(1)), Ok(vec![1, 2]), "a wake is a turn");
    assert_eq!(hidden(RewindTarget::LastPrompt), Ok(vec![2]));
    assert_eq!(hidden(RewindTarget::Turn(3)), Err(RewindRefused::Nothing), "the end, and beyond it");
    assert_eq!(hidden(RewindTarget::Turn(9)), Err(RewindRefused::Nothing));
    // To the very start: what stands before the first turn stays.
    let mut history = rows.load();
    let start = history.plan_rewind(&RewindTarget::Turn(0), None, RewindKind::Hide).unwrap();
    history.rewind(&start, &arrival(1, "d1"));
    assert_eq!((history.committed().len(), history.spans()[0].to), (1, Seq(1)));
    // A thread in which nobody has said anything, and an empty one.
    let mut silent = Rows::default();
    silent.push(ItemBody::System(SystemItem { text: "x".into() }), false);
    for rows in [silent, Rows::default()] {
        let history = rows.load();
        let last = history.plan_rewind(&RewindTarget::LastPrompt, None, RewindKind::Hide);
        assert_eq!(last, Err(RewindRefused::NoSuchTurn));
        assert_eq!(history.committed().len(), rows.items.len());
    }
}

#[test]
fn rewind_takes_an_image_alone_for_a_prompt() {
    let mut rows = Rows::default();
    rows.user("one").says("1");
    let image =
        ContentPart::Image { data: ImageData::Url("https://x.example/a.png".into()), media_type: None };
    rows.push(said(vec![image], None), true).says("a cat");
    let plan = rows.load().plan_rewind(&RewindTarget::LastPrompt, None, RewindKind::Hide).unwrap();
    assert_eq!((plan.next_turn, plan.turns.len()), (1, 1));
}

#[test]
fn fork_is_cut_behind_the_turn_that_it_names_with_what_the_turn_brought() {
    let mut rows = Rows::default();
    rows.user("one").says("1");
    rows.push(said(vec![ContentPart::text("late")], Some(SyntheticReason::LateResult)), false);
    rows.user("two").says("2");
    let mut fork = History::new("f".into(), Loaded::default());
    fork.inherit(rows.load().fork_point(Some(0)).unwrap());
    let spans = fork.spans();
    assert_eq!(
        (&spans[0].thread, spans[0].to),
        (&thread(), Seq(3)),
        "by reference, the note behind the turn as well"
    );
    assert_eq!(rows.load().fork_point(Some(2)).unwrap_err(), RewindRefused::NoSuchTurn);
    // A fork of the fork inherits of both.
    let mut own = Rows::default();
    own.user("mine").says("3");
    let meta = Meta { base: vec![spans[0].clone()], thread: "f".into(), next_turn: 2, ..own.meta() };
    let items = rows.items[..3].iter().chain(&own.items).cloned().collect();
    let second = History::new("f".into(), Loaded { meta: Some(meta), items, ..Loaded::default() });
    let mut third = History::new("g".into(), Loaded::default());
    third.inherit(second.fork_point(None).unwrap());
    let from: Vec<String> = third.spans().iter().map(|span| format!("{} {}", span.thread, span.to)).collect();
    assert_eq!(from, [format!("{} 3", thread()), "f 2".to_owned(), "g 0".to_owned()]);
}

#[test]
fn snapshot_of_an_empty_and_of_a_full_thread_is_read_back_the_same() {
    let mut rows = Rows::default();
    rows.turn(10_000).turn(10);
    for rows in [Rows::default(), rows] {
        let mut meta = rows.meta();
        meta.prune = Prune { soft_before: 1, hard_before: 0, since_turn: 2 };
        let snapshot = Snapshot::of(&meta, &rows.items);
        let json = serde_json::to_string(&snapshot).unwrap();
        let read = Snapshot::parse(&json).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), json);
        assert_eq!(read.rows(), rows.items);
    }
}

#[test]
fn snapshot_holds_no_key_token_or_address_of_what_is_under_way() {
    let mut rows = Rows::default();
    rows.user("one").says("1");
    let mut meta = rows.meta();
    meta.token = "secret-token".into();
    meta.outbox = vec![dormouse::store::OutboxEntry {
        id: "o".into(),
        cause: vec![],
        sequence: String::new(),
        promise: dormouse::store::Promise::OAuth { call: call(2), auth_url: "https://secret-address".into() },
    }];
    meta.metadata = Some(dormouse::message::RawJson::parse(r#"{"slack":"secret-metadata"}"#).unwrap());
    let json = serde_json::to_string(&Snapshot::of(&meta, &rows.items)).unwrap();
    assert!(!json.contains("secret"), "{json}");
}
