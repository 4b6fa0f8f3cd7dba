//! What a case runs on, and short ways to write commits.

use std::sync::Arc;

use aws_sdk_dynamodb::Client;
use dormouse::message::{DedupId, Epoch, Item, ItemFacts, MessageId, Seq, ThreadId};
use dormouse::store::dynamodb::{DynamoStore, create_table};
use dormouse::store::memory::MemoryStore;
use dormouse::store::{ArchiveStore, Commit, Committed, DedupLife, Expect, Loaded, Meta, ParkedInput, Store};

/// A store of a case's own.
pub struct Bed {
    pub store: Arc<dyn Store>,
    pub archive: Arc<dyn ArchiveStore>,
    memory: Option<MemoryStore>,
}

impl Bed {
    pub fn memory() -> Self {
        let memory = MemoryStore::new();
        Self { store: Arc::new(memory.clone()), archive: Arc::new(memory.clone()), memory: Some(memory) }
    }

    pub async fn table(url: &str) -> Self {
        let (client, table) = new_table(url).await;
        let store = Arc::new(DynamoStore::new(client, table));
        Self { store: store.clone(), archive: store, memory: None }
    }

    /// Lets the memory's clock catch up; a table's store already lives in the present.
    pub fn advance_to(&self, now_ms: i64) {
        if let Some(memory) = &self.memory {
            memory.advance_to(now_ms);
        }
    }

    pub async fn commit(&self, commit: Commit) -> Committed {
        self.store.commit(commit).await.unwrap()
    }

    pub async fn load(&self, thread: &ThreadId) -> Loaded {
        self.store.load(thread, &[]).await.unwrap()
    }

    /// Makes a thread with `texts` as its first items.
    pub async fn thread(&self, id: &str, texts: &[&str]) -> Meta {
        let commit = create(id, texts);
        let meta = commit.meta.clone();
        assert_eq!(self.commit(commit).await, Committed::Done);
        meta
    }
}

/// An empty table of a random name.
pub async fn new_table(url: &str) -> (Client, String) {
    let client = crate::ddb::client(url);
    let table = format!("dormouse-{}", uuid::Uuid::new_v4());
    create_table(&client, &table).await.unwrap();
    (client, table)
}

pub fn now_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

pub fn token() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// An item of the given stored text.
pub fn item(seq: u64, raw: &str) -> Item {
    let facts = ItemFacts {
        dedup: Some(DedupId::from("in-1")),
        cause: Some(MessageId::from("sqs-1")),
        turn: 3,
        turn_id: Some(dormouse::message::ItemId::at(Epoch(0), Seq(1))),
        opens_turn: seq == 1,
        user: Some("ana".to_owned()),
        created_at_ms: 1_764_460_800_123,
        est_tokens: 42,
        left_out: Some(dormouse::message::LeftOut::TooLarge),
        excerpt_of: None,
        extra: Default::default(),
    };
    Item::stored(Seq(seq), raw, facts)
}

pub fn said(text: &str) -> String {
    format!(r#"{{"kind":"assistant","text":"{text}","model":"m"}}"#)
}

/// A commit at `meta` that appends `texts`.
pub fn append(meta: &Meta, texts: &[&str]) -> Commit {
    let mut after = meta.clone();
    after.head = meta.head.plus(texts.len());
    after.token = token();
    Commit {
        items: texts.iter().enumerate().map(|(n, raw)| item(meta.head.plus(n).0, raw)).collect(),
        ..Commit::new(
            Expect::At { epoch: meta.epoch, head: meta.head, token: meta.token.clone() },
            after,
            now_ms(),
        )
    }
}

/// The commit that makes a thread.
pub fn create(id: &str, texts: &[&str]) -> Commit {
    let meta = Meta::new_root(ThreadId::from(id), "agent", Some("ana".to_owned()), now_ms());
    Commit { expect: Expect::Absent, ..append(&meta, texts) }
}

pub fn days(id: &str) -> (DedupId, DedupLife) {
    (DedupId::from(id), DedupLife::Days)
}

pub fn parked(key: &str, body: &str) -> ParkedInput {
    ParkedInput {
        key: key.to_owned(),
        dedup: DedupId::new(format!("dedup of {key}")),
        cause: MessageId::new(format!("cause of {key}")),
        body: body.to_owned(),
    }
}

pub fn raws(loaded: &Loaded) -> Vec<&str> {
    loaded.items.iter().map(|item| &*item.raw).collect()
}
