//! What holds for the DynamoDB table alone: rows behind the store's back, lost answers, round trips.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::interceptors::{
    BeforeDeserializationInterceptorContextMut, BeforeTransmitInterceptorContextMut,
};
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;
use aws_sdk_dynamodb::types::AttributeValue;
use dormouse::message::{DedupId, Epoch, ItemBody, Seq, ThreadId};
use dormouse::store::dynamodb::{DynamoStore, RoundTrips};
use dormouse::store::{Committed, ConversationStore, Span, StoreError};

use crate::bed::{append, create, days, item, new_table, parked, raws, said};

pub fn s(text: &str) -> AttributeValue {
    AttributeValue::S(text.to_owned())
}

/// Sets one attribute of one row, as another program would.
pub async fn plant(client: &Client, table: &str, pk: &str, sk: &str, name: &str, value: AttributeValue) {
    let update = client.update_item().table_name(table).key("pk", s(pk)).key("sk", s(sk));
    let update = update.update_expression("SET #n = :v").expression_attribute_names("#n", name);
    update.expression_attribute_values(":v", value).send().await.unwrap();
}

pub async fn delete(client: &Client, table: &str, pk: &str, sk: &str) {
    client.delete_item().table_name(table).key("pk", s(pk)).key("sk", s(sk)).send().await.unwrap();
}

async fn attribute(client: &Client, table: &str, pk: &str, sk: &str, name: &str) -> Option<AttributeValue> {
    let get = client.get_item().table_name(table).key("pk", s(pk)).key("sk", s(sk)).consistent_read(true);
    get.send().await.unwrap().item.and_then(|mut row| row.remove(name))
}

pub async fn r21_requests_are_loaded_with_the_newest_state_alone_and_everything_else_with_all(url: &str) {
    let (client, table) = new_table(url).await;
    let store = DynamoStore::new(client.clone(), table.clone());
    let state = |fill: char| format!(r#"{{"kind":"state","state":"{}"}}"#, fill.to_string().repeat(10_000));
    let (first, second) = (state('a'), state('b'));
    let make = create("t", &[&said("a"), &first, &said("b"), &second, &said("c")]);
    let meta = make.meta.clone();
    assert_eq!(store.commit(make).await.unwrap(), Committed::Done);
    let request = store.load_for_request(&meta.thread, &[]).await.unwrap();
    let kinds = request.items.iter().map(|item| item.body.kind());
    assert_eq!(kinds.collect::<Vec<_>>(), ["assistant", "state", "assistant", "state", "assistant"]);
    let (older, newest) = (&request.items[1], &request.items[3]);
    assert_eq!((&*newest.raw, newest.facts.excerpt_of), (second.as_str(), None));
    assert_eq!((&*older.raw, older.facts.excerpt_of), (r#"{"kind":"state","state":{}}"#, Some(10_002)));
    let whole = store.load(&meta.thread, &[]).await.unwrap();
    assert!(raws(&whole) == [said("a"), first, said("b"), second, said("c")]);
}

pub async fn i8_unknown_attributes_and_rows_survive(url: &str) {
    let (client, table) = new_table(url).await;
    let store = DynamoStore::new(client.clone(), table.clone());
    let mut make = create("t", &[&said("a")]);
    make.subscriptions = vec![dormouse::store::SubscriptionChange::Start("c".into())];
    let meta = make.meta.clone();
    store.commit(make).await.unwrap();
    let unknown = AttributeValue::L(vec![AttributeValue::N("1.5".into()), s("x")]);
    plant(&client, &table, "T#t", "META", "of_a_newer_version", unknown.clone()).await;
    plant(&client, &table, "T#t", "Z#new kind", "z", s("z")).await;
    plant(&client, &table, "T#t", "S#c", "kid", s("k1")).await;
    plant(&client, &table, "L#0#t", "C#000000000001", "text", s("a summary")).await;
    plant(&client, &table, "L#0#t", "I#not a number", "raw", s("?")).await;

    let mut commit = append(&meta, &[&said("b")]);
    commit.meta.turn_id = Some(dormouse::message::ItemId::at(Epoch(0), Seq(2)));
    commit.subscriptions = vec![dormouse::store::SubscriptionChange::End("c".into())];
    assert_eq!(store.commit(commit).await.unwrap(), Committed::Done);

    let found = |sk, name| attribute(&client, &table, "T#t", sk, name);
    assert_eq!(found("META", "of_a_newer_version").await, Some(unknown));
    assert_eq!(found("Z#new kind", "z").await, Some(s("z")));
    assert_eq!(found("S#c", "kid").await, Some(s("k1")));
    assert_eq!(found("S#c", "active").await, Some(AttributeValue::Bool(false)));
    assert!(found("META", "lpk").await.is_some());
    let loaded = store.load(&meta.thread, &[]).await.unwrap();
    assert_eq!(raws(&loaded), [said("a"), said("b")]);
}

pub async fn i7_rows_that_cannot_be_read_are_placeholders(url: &str) {
    let (client, table) = new_table(url).await;
    let store = DynamoStore::new(client.clone(), table.clone());
    let large = said(&"x".repeat(500_000));
    let mut make = create("t", &[&said("a"), &large, &said("c"), &said("d")]);
    make.park = vec![parked("1", &large)];
    let thread = make.meta.thread.clone();
    store.commit(make).await.unwrap();
    let digest = dormouse::store::body_digest(&format!("L#0#t\n{large}"));
    let parked_digest = dormouse::store::body_digest(&format!("T#t\n{large}"));
    for digest in [digest, parked_digest] {
        delete(&client, &table, &format!("B#{digest}"), "000001").await;
    }
    plant(&client, &table, "L#0#t", "I#000000000003", "raw", AttributeValue::N("7".into())).await;
    plant(&client, &table, "L#0#t", "I#000000000004", "turn", s("not a number")).await;

    let loaded = store.load(&thread, &[]).await.unwrap();
    assert_eq!(loaded.items.len(), 4, "an unreadable row is an item, not an error");
    let unreadable = |n: usize| match &loaded.items[n].body {
        ItemBody::Unknown { kind } => kind.starts_with("unreadable") && loaded.items[n].raw.is_empty(),
        _ => false,
    };
    assert!(!unreadable(0) && unreadable(1) && unreadable(2) && !unreadable(3));
    assert_eq!(loaded.items[1].facts, item(2, "").facts, "the facts are still known");
    assert_eq!((loaded.parked[0].key.as_str(), loaded.parked[0].body.as_str()), ("1", ""));

    plant(&client, &table, "T#t", "META", "pending", s("{")).await;
    let error = store.load(&thread, &[]).await.unwrap_err();
    assert!(matches!(&error, StoreError::Corrupt { row, .. } if row == "META"), "{error}");
    assert!(store.list_threads(10).await.unwrap().is_empty(), "the list goes on without it");
}

pub async fn a_missing_item_is_incomplete_and_one_that_comes_late_is_not(url: &str) {
    let (client, table) = new_table(url).await;
    let store = DynamoStore::new(client.clone(), table.clone());
    let make = create("t", &[&said("a"), &said("b"), &said("c")]);
    let thread = make.meta.thread.clone();
    store.commit(make).await.unwrap();
    delete(&client, &table, "L#0#t", "I#000000000002").await;
    let error = store.load(&thread, &[]).await.unwrap_err();
    let StoreError::Incomplete { thread: of, epoch, missing } = &error else { panic!("{error}") };
    assert_eq!((of, *epoch, *missing), (&thread, Epoch(0), Seq(2)));

    let late = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(20)).await;
        plant(&client, &table, "L#0#t", "I#000000000002", "raw", s(&said("late"))).await;
    });
    let loaded = store.load(&thread, &[]).await.unwrap();
    late.await.unwrap();
    assert_eq!(raws(&loaded), [said("a"), said("late"), said("c")]);
}

pub async fn i8_items_beyond_head_are_neither_shown_nor_written_over(url: &str) {
    let (client, table) = new_table(url).await;
    let store = DynamoStore::new(client.clone(), table.clone());
    let make = create("t", &[&said("a")]);
    let meta = make.meta.clone();
    let thread = meta.thread.clone();
    store.commit(make).await.unwrap();
    // What a load sees when a commit lands between its read of META and its read of the log.
    plant(&client, &table, "L#0#t", "I#000000000002", "raw", s(&said("b"))).await;
    let loaded = store.load(&thread, &[]).await.unwrap();
    assert_eq!(raws(&loaded), [said("a")]);
    assert_eq!(loaded.meta, Some(meta.clone()));
    // And if it were no commit but a stray row: an item is never written over.
    assert_eq!(store.commit(append(&meta, &[&said("over")])).await.unwrap(), Committed::LostRace);
    let raw = attribute(&client, &table, "L#0#t", "I#000000000002", "raw").await;
    assert_eq!(raw, Some(s(&said("b"))));
    assert_eq!(store.meta(&thread).await.unwrap(), Some(meta));
}

pub async fn round_trips_are_as_few_as_the_design_says(url: &str) {
    let (client, table) = new_table(url).await;
    let trips = RoundTrips::new();
    let store = DynamoStore::new(client, table).with_round_trips(trips.clone());
    let dedup: Vec<DedupId> = (0..10).map(|n| DedupId::new(format!("in-{n}"))).collect();

    // A new thread: a look, and the commit that makes it.
    let t = ThreadId::from("t");
    store.load(&t, &dedup).await.unwrap();
    let texts = vec![said("a"); 40];
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let make = create("t", &texts);
    let meta = make.meta.clone();
    store.commit(make).await.unwrap();
    assert_eq!(trips.sequential(), 2);

    // A first-epoch root in one page, without separate bodies.
    trips.reset();
    store.load(&t, &dedup).await.unwrap();
    let mut step = append(&meta, &[&said("b")]);
    step.dedup = vec![days("in-1")];
    let meta = step.meta.clone();
    store.commit(step).await.unwrap();
    assert_eq!((trips.sequential(), trips.requests()), (2, 4));

    // A body to write is one more, bodies to read are one more, however many.
    trips.reset();
    let large: Vec<String> = (0..5).map(|n| said(&format!("{n}{}", "x".repeat(900_000)))).collect();
    let texts: Vec<&str> = large.iter().map(String::as_str).collect();
    store.commit(append(&meta, &texts)).await.unwrap();
    assert_eq!(trips.sequential(), 2);
    trips.reset();
    assert_eq!(store.load(&t, &dedup).await.unwrap().items.len(), 46);
    assert_eq!(trips.sequential(), 2);

    // Spans are one more, whatever the depth.
    let mut deep = create("deep", &[&said("own")]);
    deep.meta.base =
        (0..30).map(|n| Span { thread: t.clone(), epoch: Epoch(0), from: Seq(n), to: Seq(n + 1) }).collect();
    let deep_thread = deep.meta.thread.clone();
    store.commit(deep).await.unwrap();
    trips.reset();
    assert_eq!(store.load(&deep_thread, &dedup).await.unwrap().items.len(), 31);
    assert_eq!(trips.sequential(), 2);
}

/// Loses answers after the server acted, or requests before it saw them.
#[derive(Clone, Debug, Default)]
pub struct Wire {
    lost_answers: Arc<AtomicUsize>,
    lost_requests: Arc<AtomicUsize>,
    sent: Arc<AtomicUsize>,
}

impl Wire {
    /// Loses the next `n` answers.
    pub fn lose_answers(&self, n: usize) {
        self.lost_answers.store(n, Ordering::SeqCst);
    }

    /// Whether everything that was to be lost was lost.
    fn is_whole(&self) -> bool {
        [&self.lost_answers, &self.lost_requests].iter().all(|left| left.load(Ordering::SeqCst) == 0)
    }
}

fn take(counter: &AtomicUsize) -> Result<(), BoxError> {
    match counter.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)) {
        Ok(_) => Err("the wire is cut".into()),
        Err(_) => Ok(()),
    }
}

impl Intercept for Wire {
    fn name(&self) -> &'static str {
        "wire"
    }

    fn modify_before_transmit(
        &self,
        _: &mut BeforeTransmitInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        self.sent.fetch_add(1, Ordering::SeqCst);
        take(&self.lost_requests)
    }

    fn modify_before_deserialization(
        &self,
        _: &mut BeforeDeserializationInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        take(&self.lost_answers)
    }
}

pub fn wired(url: &str, table: &str) -> (DynamoStore, Wire) {
    let wire = Wire::default();
    let config = crate::ddb::config(url).interceptor(wire.clone()).build();
    (DynamoStore::new(Client::from_conf(config), table.to_owned()), wire)
}

pub async fn i2_a_commit_whose_answer_was_lost_is_done(url: &str) {
    let (_, table) = new_table(url).await;
    let (store, wire) = wired(url, &table);
    let make = create("t", &[&said("a")]);
    let meta = make.meta.clone();
    wire.lost_answers.store(2, Ordering::SeqCst);
    assert_eq!(store.commit(make).await.unwrap(), Committed::Done);
    assert!(wire.is_whole());

    let mut step = append(&meta, &[&said("b")]);
    step.dedup = vec![days("in-1")];
    wire.lost_requests.store(1, Ordering::SeqCst);
    wire.lost_answers.store(1, Ordering::SeqCst);
    assert_eq!(store.commit(step).await.unwrap(), Committed::Done);
    assert!(wire.is_whole());

    wire.lost_answers.store(2, Ordering::SeqCst);
    let loaded = store.load(&meta.thread, &[]).await.unwrap();
    assert_eq!(raws(&loaded), [said("a"), said("b")]);

    wire.lost_requests.store(usize::MAX, Ordering::SeqCst);
    let error = store.commit(create("u", &[])).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
}

pub async fn i6_a_lost_race_after_a_lost_answer_is_a_lost_race(url: &str) {
    let (_, table) = new_table(url).await;
    let (store, wire) = wired(url, &table);
    let make = create("t", &[&said("a")]);
    let meta = make.meta.clone();
    store.commit(make).await.unwrap();
    store.commit(append(&meta, &[&said("theirs")])).await.unwrap();
    wire.lost_answers.store(1, Ordering::SeqCst);
    assert_eq!(store.commit(append(&meta, &[&said("ours")])).await.unwrap(), Committed::LostRace);
    assert!(wire.is_whole());
}

pub async fn a_missing_table_is_refused_and_a_dead_server_unavailable(url: &str) {
    let store = DynamoStore::new(crate::ddb::client(url), "no-such-table".to_owned());
    let t = ThreadId::from("t");
    for error in [
        store.load(&t, &[]).await.map(|_| ()).unwrap_err(),
        store.commit(create("t", &[])).await.map(|_| ()).unwrap_err(),
        store.put_claim("x").await.map(|_| ()).unwrap_err(),
    ] {
        assert!(matches!(error, StoreError::Refused(_)), "{error}");
    }
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (store, wire) = wired(&format!("http://{nobody}"), "table");
    let trips = RoundTrips::new();
    let store = store.with_round_trips(trips.clone());
    let error = store.meta(&t).await.unwrap_err();
    assert_eq!(wire.sent.load(Ordering::SeqCst), trips.requests(), "only the store repeats, not the SDK");
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
}

/// dynoxide forgets request tokens when it stops, as DynamoDB does after ten minutes.
#[cfg(feature = "local")]
pub async fn sent_again_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("table.db");
    let start = || crate::ddb::Embedded::start(dynoxide::Database::new(path.to_str().unwrap()).unwrap());
    let first = start();
    let (client, table) = new_table(&first.url).await;
    let make = create("t", &[&said("a")]);
    let mut step = append(&make.meta, &[&said("b")]);
    step.dedup = vec![days("in-1")];
    step.park = vec![parked("1", "x")];
    // Moves no head: META's condition on the token is all that tells it from a new one.
    let mut release = append(&step.meta, &[]);
    release.release = vec!["1".into()];
    let thread = make.meta.thread.clone();
    let mut server = first;
    let mut store = DynamoStore::new(client, table.clone());
    for commit in [make, step, release] {
        assert_eq!(store.commit(commit.clone()).await.unwrap(), Committed::Done);
        server.stop();
        server = start();
        store = DynamoStore::new(crate::ddb::client(&server.url), table.clone());
        assert_eq!(store.commit(commit).await.unwrap(), Committed::Done);
    }
    let loaded = store.load(&thread, &[]).await.unwrap();
    assert_eq!(raws(&loaded), [said("a"), said("b")]);
    assert!(loaded.parked.is_empty());
    server.stop();
}
