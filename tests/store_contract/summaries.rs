//! What holds for summaries in the DynamoDB table alone: how little of a long thread is read, lost answers, damage.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::interceptors::AfterDeserializationInterceptorContextRef;
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;
use aws_sdk_dynamodb::types::{AttributeValue, PutRequest, WriteRequest};
use dormouse::message::{Seq, ThreadId};
use dormouse::store::dynamodb::{DynamoStore, RoundTrips};
use dormouse::store::{Compacted, ConversationStore};
use futures::{StreamExt, stream};

use crate::bed::{create, new_table, raws, said};
use crate::generations::{chunk, generation};
use crate::table::{delete, plant, s, wired};

/// Counts the rows that queries and gets answer with.
#[derive(Clone, Debug, Default)]
struct Rows(Arc<AtomicUsize>);

impl Intercept for Rows {
    fn name(&self) -> &'static str {
        "rows"
    }

    fn read_after_deserialization(
        &self,
        context: &AfterDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let body = context.response().body().bytes().unwrap_or_default();
        let body = String::from_utf8_lossy(body);
        // Every row has its sort key, once.
        self.0.fetch_add(body.matches(r#""sk":"#).count(), Ordering::SeqCst);
        Ok(())
    }
}

/// A thread of so many items, planted, and its first log's summary of all but the last `behind`.
async fn long_thread(
    client: &Client,
    table: &str,
    store: &DynamoStore,
    name: &str,
    items: u64,
    behind: u64,
) -> ThreadId {
    let make = create(name, &[&said("1")]);
    let meta = make.meta.clone();
    store.commit(make).await.unwrap();
    let rows: Vec<WriteRequest> = (2..=items)
        .map(|seq| {
            let put = PutRequest::builder()
                .item("pk", s(&format!("L#0#{name}")))
                .item("sk", s(&format!("I#{seq:012}")))
                .item("raw", s(&said(&seq.to_string())));
            WriteRequest::builder().put_request(put.build().unwrap()).build()
        })
        .collect();
    let batches: Vec<Vec<WriteRequest>> = rows.chunks(25).map(<[WriteRequest]>::to_vec).collect();
    let written = stream::iter(batches)
        .map(|batch| client.batch_write_item().request_items(table, batch).send())
        .buffer_unordered(4);
    assert!(written.all(|answer| async move { answer.is_ok() }).await);
    let head = AttributeValue::N((items + 1).to_string());
    plant(client, table, &format!("T#{name}"), "META", "head", head).await;
    if behind < items {
        let change = chunk(&meta, 0, generation(&meta, 1, items - behind, "all of it"));
        assert_eq!(store.compact(change).await.unwrap(), Compacted::Done);
    }
    meta.thread
}

pub async fn c13_of_a_thread_of_100_000_items_no_more_rows_are_read_than_of_one_of_1_000(url: &str) {
    let (plain, table) = new_table(url).await;
    let rows = Rows::default();
    let client = Client::from_conf(crate::ddb::config(url).interceptor(rows.clone()).build());
    let trips = RoundTrips::new();
    let store = DynamoStore::new(client, table.clone()).with_round_trips(trips.clone());
    // The server that somebody else wrote looks through every row for each page: there the point is made with fewer.
    let items: u64 = if crate::ddb::server_url().as_deref() == Some(url) { 4_000 } else { 100_000 };
    let short = long_thread(&plain, &table, &store, "short", 1_000, 1_000).await;
    let long = long_thread(&plain, &table, &store, "long", items, 900).await;
    let cost = |thread: ThreadId| {
        let (rows, store, trips) = (rows.clone(), store.clone(), trips.clone());
        async move {
            rows.0.store(0, Ordering::SeqCst);
            trips.reset();
            let loaded = store.load_for_request(&thread, &[]).await.unwrap();
            (rows.0.load(Ordering::SeqCst), trips.sequential(), loaded)
        }
    };
    let (few, waits, loaded) = cost(short).await;
    assert_eq!((loaded.items.len(), waits), (1_000, 1));
    let (many, waits, loaded) = cost(long.clone()).await;
    assert_eq!((loaded.unread as u64, loaded.items.len()), (items - 900, 900));
    assert!(many * 10 <= few * 12, "{many} rows of 100,000 items, {few} of 1,000");
    assert_eq!(waits, 2, "a summary adds one round trip");
    assert_eq!(loaded.items.last().unwrap().seq, Seq(items));
    let (all, _, loaded) = cost_whole(&store, &rows, &long).await;
    assert!(all as u64 > items && loaded as u64 == items, "and everything can be read");
}

async fn cost_whole(store: &DynamoStore, rows: &Rows, thread: &ThreadId) -> (usize, (), usize) {
    rows.0.store(0, Ordering::SeqCst);
    let loaded = store.load(thread, &[]).await.unwrap();
    (rows.0.load(Ordering::SeqCst), (), loaded.items.len())
}

pub async fn c11_a_compaction_whose_answer_was_lost_is_done_and_one_that_came_too_late_is_not(url: &str) {
    let (_, table) = new_table(url).await;
    let (store, wire) = wired(url, &table);
    let make = create("t", &[&said("a"), &said("b"), &said("c"), &said("d")]);
    let meta = make.meta.clone();
    store.commit(make).await.unwrap();
    wire.lose_answers(1);
    let mine = chunk(&meta, 0, generation(&meta, 1, 2, "mine"));
    assert_eq!(store.compact(mine.clone()).await.unwrap(), Compacted::Done);
    // Another process repeats it, at another time.
    let mut later = mine;
    later.generation.as_mut().unwrap().created_at_ms += 5;
    assert_eq!(store.compact(later).await.unwrap(), Compacted::Done);
    wire.lose_answers(1);
    let theirs = chunk(&meta, 0, generation(&meta, 1, 3, "theirs"));
    assert_eq!(store.compact(theirs).await.unwrap(), Compacted::Lost);
    assert_eq!(store.generation(&generation(&meta, 1, 2, "").at.id).await.unwrap().unwrap().text, "mine");
}

pub async fn i7_a_summary_that_cannot_be_read_stands_for_nothing_and_unknown_attributes_survive(url: &str) {
    let (client, table) = new_table(url).await;
    let store = DynamoStore::new(client.clone(), table.clone());
    let make = create("t", &[&said("a"), &said("b"), &said("c")]);
    let meta = make.meta.clone();
    store.commit(make).await.unwrap();
    plant(&client, &table, "T#t", "META", "of_a_newer_version", s("x")).await;
    let long = generation(&meta, 1, 2, &"long ".repeat(4_000));
    store.compact(chunk(&meta, 0, long.clone())).await.unwrap();
    let row = client.get_item().table_name(&table).key("pk", s("T#t")).key("sk", s("META"));
    let row = row.send().await.unwrap().item.unwrap();
    assert_eq!(row.get("of_a_newer_version"), Some(&s("x")));
    let loaded = store.load_for_request(&meta.thread, &[]).await.unwrap();
    assert_eq!((loaded.unread, raws(&loaded)), (2, vec![&*said("c")]));
    // Its text is gone, then the row, then the pointer makes no sense: each time the items count.
    delete(
        &client,
        &table,
        &format!("B#{}", dormouse::store::body_digest(&format!("L#0#t\n{}", long.said()))),
        "000000",
    )
    .await;
    for damage in ["body", "row", "pointer"] {
        match damage {
            "row" => delete(&client, &table, "L#0#t", "C#0000000001").await,
            "pointer" => plant(&client, &table, "T#t", "META", "gen", s("{")).await,
            _ => {}
        }
        let loaded = store.load_for_request(&meta.thread, &[]).await.unwrap();
        assert_eq!((loaded.unread, loaded.items.len(), loaded.generation), (0, 3, None), "{damage}");
    }
    // The next one goes on counting.
    let next = generation(&meta, 2, 1, "anew");
    assert_eq!(store.compact(chunk(&meta, 1, next)).await.unwrap(), Compacted::Done);
    assert_eq!(store.load_for_request(&meta.thread, &[]).await.unwrap().unread, 1);
}
