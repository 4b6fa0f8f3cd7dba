//! Pruning over the real store: what a model is shown of old results, that the prefix of its requests holds still, that
//! texts which are not sent are not read, and that all of it can be read again.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(feature = "local")]

#[path = "support/ddb.rs"]
mod ddb;
#[path = "support/world.rs"]
mod world;

use std::sync::Arc;

use dormouse::history::request::{ModelRequest, RequestMessage};
use dormouse::message::{ContentPart, InputMessage, ItemBody, ThreadId};
use dormouse::model::ModelInfo;
use dormouse::model::scripted::{ScriptedEvent, ScriptedModel, prompts};
use dormouse::store::dynamodb::{DynamoStore, create_table};
use dormouse::store::{Prune, Store};
use world::{THREAD, World};

const TABLE: &str = "pruning";
/// Characters of each result: about 3,000 tokens, and a body of its own.
const RESULT_CHARS: usize = 12_000;
/// Tokens of the window: half of it is filled by ten such results.
const WINDOW: u64 = 60_000;

/// A user's text is a call of `echo`, unless it is one of the prompts; a result is answered.
fn model() -> ScriptedModel {
    let info = ModelInfo { context_window: Some(WINDOW), ..ModelInfo::default() };
    let respond = |request: &ModelRequest| match request.messages.last() {
        Some(RequestMessage::User(parts)) if ContentPart::join_text(parts).starts_with("turn") => {
            vec![ScriptedEvent::call("", "echo", "{}")]
        }
        Some(RequestMessage::User(_)) => prompts::respond(request),
        Some(RequestMessage::ToolResults(_) | RequestMessage::Assistant(_)) | None => {
            vec![ScriptedEvent::Text("seen".into())]
        }
    };
    ScriptedModel::from_fn(respond).with_info(info)
}

struct Bed {
    world: World,
    store: Arc<DynamoStore>,
    client: aws_sdk_dynamodb::Client,
    _server: ddb::Embedded,
}

async fn bed() -> Bed {
    let server = ddb::Embedded::start(dynoxide::Database::memory().unwrap());
    let client = ddb::client(&server.url);
    create_table(&client, TABLE).await.unwrap();
    let store = Arc::new(DynamoStore::new(client.clone(), TABLE.to_owned()).with_clock(|| world::NOW_MS));
    let mut world = World::over(store.clone(), model());
    let port: Arc<dyn Store> = store.clone();
    let builtins = dormouse::tools::builtin::all(&port);
    world.runtime.tools =
        Arc::new(dormouse::tools::Registry::new(builtins.into_iter().chain(world.registry.iter().cloned())));
    Bed { world, store, client, _server: server }
}

impl Bed {
    /// One turn: a text, a call, its result, an answer.
    async fn turn(&self, n: usize, result_chars: usize) {
        self.world.done(&self.world.user(&format!("turn {n}"))).await;
        let call = self.world.tools.calls().last().unwrap().clone();
        let text = format!("{n}: {}", "ä".repeat(result_chars / 2));
        let result = InputMessage::tool_result(THREAD.into(), call, vec![ContentPart::text(text)]);
        self.world.done(&self.world.message(&result)).await;
    }

    async fn prune(&self) -> Prune {
        use dormouse::store::ConversationStore;
        self.store.meta(&THREAD.into()).await.unwrap().unwrap().prune
    }
}

/// What stands in front of the last message of `before` stands in front of it in `after` as well.
fn extends(after: &ModelRequest, before: &ModelRequest) -> bool {
    after.messages.len() > before.messages.len() && after.messages.starts_with(&before.messages)
}

fn results(request: &ModelRequest) -> Vec<String> {
    let results = request.messages.iter().filter_map(|message| match message {
        RequestMessage::ToolResults(results) => Some(results),
        RequestMessage::User(_) | RequestMessage::Assistant(_) => None,
    });
    results.flatten().map(|result| ContentPart::join_text(&result.parts)).collect()
}

#[tokio::test]
async fn the_prefix_of_requests_holds_still_between_batches_which_start_with_a_turn() {
    let bed = bed().await;
    let mut moved = Vec::new();
    let mut last = Prune::default();
    for n in 0..48 {
        bed.turn(n, if n < 28 { RESULT_CHARS } else { 100 }).await;
        let now = bed.prune().await;
        assert!(now.soft_before >= last.soft_before && now.hard_before >= last.hard_before, "never back");
        if now != last {
            moved.push(n);
        }
        last = now;
    }
    let requests = bed.world.model.requests();
    let breaks: Vec<usize> = requests
        .windows(2)
        .enumerate()
        .filter(|(_, pair)| !extends(&pair[1], &pair[0]))
        .map(|(at, _)| at / 2 + 1)
        .collect();
    assert_eq!(
        breaks, moved,
        "the prefix changes where a batch was taken, at the start of its turn, and nowhere else"
    );
    assert!((2..=10).contains(&moved.len()), "{moved:?}: batches are rare, and there are some");
    assert!(moved.iter().all(|turn| *turn < 28), "{moved:?}: twenty turns that need no room change nothing");
    let requests = &requests[..28 * 2];
    let shown = results(requests.last().unwrap());
    assert_eq!(shown.len(), 28);
    assert!(shown[0].contains("recall with {\"call_id\":\"c0-2-"), "{}", shown[0]);
    assert!(
        shown.iter().any(|text| text.contains("the middle of this result was left out")),
        "some are short"
    );
    assert!(shown[25..].iter().all(|text| text.chars().count() > RESULT_CHARS / 2), "three turns are whole");
    let sizes: Vec<usize> =
        requests.iter().map(|request| results(request).iter().map(String::len).sum()).collect();
    let largest = sizes.iter().max().unwrap() / 4;
    assert!((largest as u64) < WINDOW * 2 / 3, "{largest} tokens of results");
}

#[tokio::test]
async fn what_is_pruned_is_not_read_and_can_still_be_recalled() {
    use dormouse::store::ConversationStore;
    let bed = bed().await;
    for n in 0..16 {
        bed.turn(n, RESULT_CHARS).await;
    }
    let prune = bed.prune().await;
    assert!(prune.soft_before > 5, "{prune:?}");
    let thread = ThreadId::from(THREAD);
    let whole = bed.store.load(&thread, &[]).await.unwrap().items;
    let for_request = bed.store.load_for_request(&thread, &[]).await.unwrap().items;
    let unread = for_request.iter().filter(|item| item.facts.excerpt_of.is_some()).count();
    assert_eq!(unread, prune.soft_before as usize, "one long result a turn");
    assert!(whole.iter().all(|item| item.facts.excerpt_of.is_none()), "the history is whole (I8)");
    // The first result, by its call, in pieces.
    let ItemBody::ToolCall(call) = &whole[1].body else { panic!("{:?}", whole[1]) };
    let ask = format!(r#"call recall {{"call_id":"{}","from":5990}}"#, call.call_id);
    bed.world.done(&bed.world.user(&ask)).await;
    let requests = bed.world.model.requests();
    let recalled = results(requests.last().unwrap()).pop().unwrap();
    assert_eq!(recalled, "ä".repeat(RESULT_CHARS / 2 + 3 - 5_990));
    for (arguments, says) in [
        ("{}", "turn 0: user: turn 0"),
        (r#"{"search":"TURN 7"}"#, "turn 7: user: turn 7"),
        (r#"{"turn":3}"#, "user: turn 3"),
        (r#"{"search":"nowhere to be found"}"#, "user: call recall"),
        (r#"{"call_id":"c9-9-x"}"#, "Error: this conversation has no result of a call c9-9-x"),
    ] {
        bed.world.done(&bed.world.user(&format!("call recall {arguments}"))).await;
        let requests = bed.world.model.requests();
        let text = results(requests.last().unwrap()).pop().unwrap();
        assert!(text.contains(says), "{arguments}: {text}");
    }
    // Not even once: with their texts gone the requests are the same.
    let before = bed.world.model.requests().last().unwrap().clone();
    let rows = bed.client.scan().table_name(TABLE).send().await.unwrap().items.unwrap();
    let body = |row: &std::collections::HashMap<String, aws_sdk_dynamodb::types::AttributeValue>| {
        row.contains_key("raw") && row["pk"].as_s().is_ok_and(|pk| pk.starts_with("B#"))
    };
    let pruned: Vec<_> = whole.iter().filter(|item| item.facts.turn < prune.soft_before).collect();
    for row in rows.iter().filter(|row| body(row)) {
        let piece = row["raw"].as_s().unwrap();
        if pruned.iter().any(|item| item.raw.starts_with(piece.as_str())) {
            let key = [("pk".to_owned(), row["pk"].clone()), ("sk".to_owned(), row["sk"].clone())];
            bed.client.delete_item().table_name(TABLE).set_key(Some(key.into())).send().await.unwrap();
        }
    }
    bed.world.done(&bed.world.user("say bye")).await;
    let after = bed.world.model.requests().last().unwrap().clone();
    assert!(extends(&after, &before), "the same bytes, from the excerpts");
}
