//! Whatever is imported: no panic, bounds, and threads of which every request is whole (I5, I9).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use dormouse::agui::convert::{messages, place};
use dormouse::agui::planting::{MAX_ITEMS, Planted};
use dormouse::agui::repository::{ImportError, MAX_BRANCHES, MAX_MESSAGES, Repository};
use dormouse::history::History;
use dormouse::history::render::RenderOptions;
use dormouse::message::{Epoch, Item, ItemBody, Seq, ThreadId};
use dormouse::store::{Loaded, Meta, Span};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::history::provider_rules;
use super::history::say::{arrival, user as says};
use super::kept;

/// Cases of one run, unless `PROPTEST_CASES` says otherwise.
const CASES: u32 = 1_000;

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-c \u{feff}]{0,4}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        let names = prop::sample::select(vec![
            "id",
            "role",
            "content",
            "messages",
            "message",
            "parentId",
            "toolCalls",
            "type",
            "text",
        ]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((names, inner), 0..5).prop_map(|members| members
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect()),
        ]
    })
}

fn id() -> impl Strategy<Value = String> {
    prop_oneof![
        12 => "[ua][0-9]",
        1 => Just("__optimistic__".to_owned()),
        1 => Just("i0-3".to_owned()),
        1 => Just(String::new()),
    ]
}

fn call() -> impl Strategy<Value = String> {
    "c[0-3]?"
}

fn part() -> impl Strategy<Value = Value> {
    let result = prop_oneof![
        Just(None),
        Just(Some(json!(null))),
        Just(Some(json!({ "a": 1 }))),
        any_json().prop_map(Some)
    ];
    prop_oneof![
        3 => "[a-c ]{0,3}".prop_map(|text| json!({ "type": "text", "text": text })),
        1 => "[a-c ]{0,3}".prop_map(|text| json!({ "type": "reasoning", "text": text })),
        3 => (call(), prop::sample::select(vec!["{}", "{\"k\":1}", "{broken", "", "[1]"]), result, any::<Option<bool>>())
            .prop_map(|(call, arguments, result, failed)| {
                let mut part = json!({ "type": "tool-call", "toolCallId": call, "toolName": "f g", "argsText": arguments });
                part.as_object_mut().unwrap().extend(result.map(|result| ("result".to_owned(), result)));
                part.as_object_mut().unwrap().extend(failed.map(|failed| ("isError".to_owned(), json!(failed))));
                part
            }),
        1 => any_json(),
    ]
}

fn message() -> impl Strategy<Value = Value> {
    let content = prop_oneof![
        3 => prop::collection::vec(part(), 0..5).prop_map(Value::from),
        1 => "[a-c ]{0,3}".prop_map(Value::from),
        1 => any_json(),
    ];
    let role = prop::sample::select(vec![
        "user",
        "user",
        "assistant",
        "assistant",
        "assistant",
        "tool",
        "reasoning",
        "system",
        "odd",
    ]);
    let calls = prop::collection::vec(call(), 0..3);
    (id(), role, content, calls, call()).prop_map(|(id, role, content, calls, call)| {
        let calls: Vec<Value> = calls
            .iter()
            .map(|call| json!({ "id": call, "function": { "name": "f", "arguments": "{}" } }))
            .collect();
        json!({ "id": id, "role": role, "content": content, "toolCalls": calls, "toolCallId": call })
    })
}

/// A body: a list, a repository, or anything.
fn body() -> impl Strategy<Value = Value> {
    let parent = prop_oneof![4 => any::<prop::sample::Index>().prop_map(Some), 1 => Just(None)];
    let tree = (
        prop::collection::vec((message(), parent, id()), 0..14),
        any::<prop::sample::Index>(),
        any::<bool>(),
    );
    let tree = tree.prop_map(|(messages, head, unique)| {
        let mut ids: Vec<String> = Vec::new();
        let mut entries = Vec::new();
        for (at, (mut message, parent, odd)) in messages.into_iter().enumerate() {
            // Mostly a tree; else whatever comes.
            let id = if unique { format!("m{at}") } else { odd };
            message["id"] = json!(id);
            let parent = parent.filter(|_| !ids.is_empty()).map(|parent| parent.get(&ids).clone());
            entries.push(json!({ "parentId": parent, "message": message }));
            ids.push(id);
        }
        let head = (!ids.is_empty()).then(|| head.get(&ids).clone());
        json!({ "headId": head, "messages": entries })
    });
    prop_oneof![5 => tree, 3 => prop::collection::vec(message(), 0..14).prop_map(Value::from), 1 => any_json()]
}

/// Each branch with the thread that goes on from it.
fn threads(planted: &Planted) -> Vec<(Vec<Item>, Loaded)> {
    let log = ThreadId::from("log");
    let branch = |pieces: &Vec<dormouse::message::Piece>| {
        let span = |piece: &dormouse::message::Piece| Span {
            thread: log.clone(),
            epoch: Epoch(0),
            from: piece.from,
            to: piece.to,
        };
        let items = pieces
            .iter()
            .flat_map(|piece| planted.items[piece.from.0 as usize..piece.to.0 as usize].to_vec());
        let items: Vec<Item> = items.collect();
        let mut meta = Meta::new_root("t".into(), "agent", None, 0);
        meta.base = pieces.iter().map(span).collect();
        meta.next_turn = items.last().map_or(0, |item| item.facts.turn + 1);
        let loaded = Loaded { meta: Some(meta), items: items.clone(), ..Loaded::default() };
        (items, loaded)
    };
    planted.branches.iter().map(branch).collect()
}

/// Each call is answered once, behind its step, and before anything else is said.
fn check_calls(items: &[Item]) -> Result<(), TestCaseError> {
    let mut owed: Vec<&str> = Vec::new();
    let mut ids = BTreeSet::new();
    for item in items {
        let answered = match &item.body {
            ItemBody::ToolCall(call) => {
                prop_assert!(ids.insert(call.call_id.as_str()), "two calls have one id");
                owed.push(call.call_id.as_str());
                continue;
            }
            ItemBody::ToolResult(result) => result.call_id.as_str(),
            ItemBody::Interrupt(marker) => marker.call_id.as_str(),
            _ => {
                prop_assert!(owed.is_empty(), "something stands between calls and their results");
                continue;
            }
        };
        prop_assert_eq!(owed.first(), Some(&answered), "in the order of the calls");
        owed.remove(0);
    }
    prop_assert!(owed.is_empty());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(
        std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(CASES)
    )})]

    #[test]
    fn i5_i9_whatever_is_imported_is_a_thread_of_which_every_request_is_whole(body in body()) {
        let repository = match Repository::read(&body) {
            Ok(repository) => repository,
            Err(ImportError::Nothing | ImportError::NoId(_) | ImportError::NoMessages) => return Ok(()),
            Err(other) => return Err(TestCaseError::fail(format!("{other}"))),
        };
        let planted = repository.plant(&"log".into(), Some("ann"), 7).unwrap();
        prop_assert_eq!(&planted, &repository.plant(&"log".into(), Some("ann"), 7).unwrap());
        prop_assert!(!planted.branches.is_empty() && planted.branches.len() <= MAX_BRANCHES + 1);
        let mut used = BTreeSet::new();
        for (at, item) in planted.items.iter().enumerate() {
            prop_assert_eq!(item.seq, Seq(at as u64 + 1));
            prop_assert_eq!(&item.body, &ItemBody::parse(&item.raw));
        }
        for (pieces, (items, loaded)) in planted.branches.iter().zip(threads(&planted)) {
            prop_assert!(!items.is_empty() && pieces.iter().all(|piece| piece.from < piece.to && piece.to.0 <= planted.items.len() as u64));
            prop_assert!(pieces.windows(2).all(|pair| pair[0].to < pair[1].from), "in order, each as long as it can be");
            used.extend(items.iter().map(|item| item.seq));
            check_calls(&items)?;
            let turns: Vec<u32> = items.iter().map(|item| item.facts.turn).collect();
            prop_assert!(turns.windows(2).all(|pair| pair[0] <= pair[1]), "turns go up: {turns:?}");
            let meta = loaded.meta.clone().unwrap();
            let shown = messages(&place(&meta.thread, meta.logs(), &items));
            let ids: BTreeSet<&str> = shown.iter().map(|message| message.id()).collect();
            prop_assert_eq!(ids.len(), shown.len(), "no two messages of a view have one id: {:?}", shown);
            let mut history = History::new("t".into(), loaded);
            history.accept(&says("go on"), &arrival(1, "d"));
            let rendered = history.render_history(&RenderOptions { model: "imported".into(), image_input: true, ..RenderOptions::default() });
            let rendered = rendered.map_err(|e| TestCaseError::fail(e.to_string()))?;
            if let Err(why) = provider_rules::judge(&rendered.request) {
                return Err(TestCaseError::fail(format!("{why}\n{:#?}", rendered.request.messages)));
            }
            prop_assert!(!format!("{:?}", rendered.request).contains("RequestReasoning {"), "nobody has signed it");
            prop_assert_eq!((rendered.orphan_results, rendered.unknown_rows), (0, 0));
        }
        prop_assert_eq!(used.len(), planted.items.len(), "every item is of some branch");
    }
}

/// As large as they may be, in the shapes that cost most.
#[test]
fn a_large_import_costs_no_more_than_it_is_long() {
    let n = MAX_MESSAGES;
    let name = |at: usize| format!("m{at}");
    let role = |at: usize| if at.is_multiple_of(2) { "user" } else { "assistant" };
    let chain: Vec<Value> = (0..n)
        .map(|at| kept(at.checked_sub(1).map(name).as_deref(), &name(at), role(at), json!("x")))
        .collect();
    let backwards: Vec<&Value> = chain.iter().rev().collect();
    let unsent: Vec<Value> = (0..n)
        .map(|at| kept(at.checked_sub(1).map(name).as_deref(), &name(at), "system", json!("x")))
        .collect();
    let combs: Vec<Value> = (0..n)
        .map(|at| {
            // Branches of one long trunk, each from its end.
            let trunk = n - 63;
            let parent = if at < trunk { at.checked_sub(1) } else { Some(trunk - 1) };
            kept(parent.map(name).as_deref(), &name(at), role(at), json!("x"))
        })
        .collect();
    let call = json!({ "id": "c", "function": { "name": "f", "arguments": "" } });
    let same: Vec<Value> = (0..n)
        .map(|at| match at < n / 2 {
            true => json!({ "role": "assistant", "toolCalls": [call] }),
            false => json!({ "role": "tool", "toolCallId": "c", "content": "x" }),
        })
        .collect();
    let began = Instant::now();
    for (body, branches) in [
        (json!({ "messages": chain }), Ok(1)),
        (json!({ "messages": backwards, "headId": name(n - 1) }), Ok(1)),
        (json!({ "messages": unsent }), Err(ImportError::Nothing)),
        (json!({ "messages": combs }), Ok(63)),
        (json!(same), Ok(1)),
        (json!([{ "role": "assistant", "toolCalls": vec![call; 50_000] }]), Ok(1)),
    ] {
        let planted = Repository::read(&body).and_then(|repository| repository.plant(&"log".into(), None, 7));
        assert_eq!(planted.map(|planted| planted.branches.len()), branches);
    }
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    let many = json!([{ "role": "assistant", "content": vec![json!({ "type": "tool-call" }); MAX_ITEMS] }]);
    let error = Repository::read(&many).unwrap().plant(&"log".into(), None, 7).unwrap_err();
    assert_eq!(error.to_string(), format!("the import has more than {MAX_ITEMS} items"));
}
