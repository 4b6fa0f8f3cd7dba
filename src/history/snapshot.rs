//! A thread as a JSON document: to keep it, to move it, to go on with it elsewhere. It holds the conversation as it is
//! stored, and nothing that is under way: no open calls, no parked inputs, no subscriptions, no keys.
//!
//! Items are copied to the byte, of unknown kinds as well; fields that this version does not know stay where they are,
//! in the document and in a thread that is made of it, so that an older version passes on what a newer one has written.

use serde::{Deserialize, Serialize};

use crate::message::{DedupId, Epoch, Item, ItemFacts, ItemId, LeftOut, MessageId, RawJson, Seq, ThreadId};
use crate::model::Usage;
use crate::store::{Extra, ImagesOut, Meta, Prune, body_digest};

/// The newest form of the document that this version reads.
const VERSION: u32 = 1;
/// Bytes of what a document says of the thread, and of one item beside its text: each goes into one row.
const MAX_FACTS_BYTES: usize = 16 * 1024;

/// A thread, at rest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The form of this document.
    pub dormouse_snapshot: u32,
    /// The thread it is of.
    pub thread: ThreadId,
    /// Its agent.
    pub agent: String,
    /// The index that the next turn gets.
    pub next_turn: u32,
    /// What requests hold of old results.
    #[serde(default, skip_serializing_if = "is_default")]
    pub prune: Prune,
    /// Which images they do not hold.
    #[serde(default, skip_serializing_if = "is_default")]
    pub images_out: ImagesOut,
    /// What the provider counted for the last response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Everything that the thread shows, in order.
    pub items: Vec<SnapshotItem>,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub extra: Extra,
}

/// An item, and the facts about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SnapshotItem {
    /// The stored text. One that is no JSON is in `text`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<RawJson>,
    /// A stored text that is no JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Turn index.
    pub turn: u32,
    /// Whether it opens its turn.
    #[serde(default, skip_serializing_if = "is_default")]
    pub opens_turn: bool,
    /// The principal on whose behalf it was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Milliseconds since the epoch.
    #[serde(default)]
    pub created_at_ms: i64,
    /// Estimated tokens.
    #[serde(default)]
    pub est_tokens: u32,
    /// Why its content is left out of requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
    /// The dedup id it arrived under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedup: Option<DedupId>,
    /// The message that brought it about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<MessageId>,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Why a document is no snapshot that this version can use.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// It has another shape.
    #[error("this is no snapshot of a thread: {0}")]
    Malformed(String),
    /// A newer version has written it in a form of its own.
    #[error("the snapshot has form {0}, this version reads up to {VERSION}; use the newer version")]
    Newer(u32),
    /// What it says beside the items' texts fits no row.
    #[error("{0} has more than {MAX_FACTS_BYTES} bytes beside its text; no row holds that")]
    TooLarge(String),
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Snapshot {
    /// What a thread shows. `items` are all of its items, its inherited ones first.
    pub fn of(meta: &Meta, items: &[Item]) -> Self {
        Self {
            dormouse_snapshot: VERSION,
            thread: meta.thread.clone(),
            agent: meta.agent.clone(),
            next_turn: meta.next_turn,
            prune: meta.prune,
            images_out: meta.images_out.clone(),
            usage: meta.usage,
            items: items.iter().map(SnapshotItem::of).collect(),
            extra: meta.extra.clone(),
        }
    }

    /// Reads a document.
    ///
    /// # Errors
    /// It is none, or of a newer form.
    pub fn parse(json: &str) -> Result<Self, SnapshotError> {
        #[derive(Deserialize)]
        struct Form {
            dormouse_snapshot: u32,
        }
        let malformed = |e: serde_json::Error| SnapshotError::Malformed(e.to_string());
        let Form { dormouse_snapshot: form } = serde_json::from_str(json).map_err(malformed)?;
        if form > VERSION {
            return Err(SnapshotError::Newer(form));
        }
        let snapshot: Self = serde_json::from_str(json).map_err(malformed)?;
        for (at, item) in snapshot.items.iter().enumerate() {
            let facts = SnapshotItem { item: None, text: None, ..item.clone() };
            bounded(&facts, || format!("item {at}"))?;
        }
        bounded(&Self { items: Vec::new(), ..snapshot.clone() }, || "the thread".to_owned())?;
        Ok(snapshot)
    }

    /// The same, but for everything that was said on somebody's behalf: that was `user`. Who imports a thread acts for
    /// nobody else in it.
    pub fn on_behalf_of(mut self, user: &str) -> Self {
        for item in self.items.iter_mut().filter(|item| item.user.is_some()) {
            item.user = Some(user.to_owned());
        }
        self
    }

    /// The document without its items: what is stored elsewhere.
    pub fn without_items(self) -> RawJson {
        let facts = Self { items: Vec::new(), ..self };
        let json = serde_json::to_string(&facts).expect("bug: a snapshot serialises");
        RawJson::parse(&json).expect("bug: what was serialised is JSON")
    }

    /// The name of the log that holds the items: it is that of their content, and no thread's.
    pub fn log(&self) -> ThreadId {
        let items = serde_json::to_string(&self.items).expect("bug: items of a snapshot serialise");
        log_of(&items)
    }

    /// The items as rows of that log.
    pub fn rows(&self) -> Vec<Item> {
        let mut turn_id = None;
        let items = self.items.iter().zip(1..).map(|(item, seq)| {
            let seq = Seq(seq);
            if item.opens_turn {
                turn_id = Some(ItemId::at(Epoch(0), seq));
            }
            item.row(seq, turn_id.clone())
        });
        items.collect()
    }
}

/// The name of the log that holds `content`.
pub fn log_of(content: &str) -> ThreadId {
    // No id of a thread has a blank.
    ThreadId::new(format!("snapshot {}", body_digest(content)))
}

fn bounded<T: Serialize>(facts: &T, what: impl FnOnce() -> String) -> Result<(), SnapshotError> {
    let bytes = serde_json::to_string(facts).map_or(usize::MAX, |json| json.len());
    if bytes > MAX_FACTS_BYTES { Err(SnapshotError::TooLarge(what())) } else { Ok(()) }
}

/// Whether a log belongs to a snapshot, and so to no thread.
pub fn is_snapshot_log(thread: &ThreadId) -> bool {
    thread.as_str().starts_with("snapshot ")
}

impl SnapshotItem {
    fn of(item: &Item) -> Self {
        let facts = &item.facts;
        let raw = RawJson::parse(&item.raw).ok();
        Self {
            text: raw.is_none().then(|| item.raw.to_string()),
            item: raw,
            turn: facts.turn,
            opens_turn: facts.opens_turn,
            user: facts.user.clone(),
            created_at_ms: facts.created_at_ms,
            est_tokens: facts.est_tokens,
            left_out: facts.left_out.map(|why| why.tag().to_owned()),
            dedup: facts.dedup.clone(),
            cause: facts.cause.clone(),
            extra: facts.extra.clone(),
        }
    }

    fn row(&self, seq: Seq, turn_id: Option<ItemId>) -> Item {
        let facts = ItemFacts {
            dedup: self.dedup.clone(),
            cause: self.cause.clone(),
            turn: self.turn,
            turn_id,
            opens_turn: self.opens_turn,
            user: self.user.clone(),
            created_at_ms: self.created_at_ms,
            est_tokens: self.est_tokens,
            left_out: self.left_out.as_deref().map(LeftOut::from_tag),
            excerpt_of: None,
            extra: self.extra.clone(),
        };
        let raw = self.item.as_ref().map(RawJson::get).or(self.text.as_deref());
        Item::stored(seq, raw.unwrap_or_default(), facts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEWER: &str = r#"{"dormouse_snapshot":1,"thread":"t","agent":"a","next_turn":1,"items":[{"item":{"kind":"user","parts":[{"type":"text","text":"hi"}],"mood":1.50},"turn":0,"opens_turn":true,"created_at_ms":7,"est_tokens":3,"weight":{"b":1,"a":2.0}},{"item":{"kind":"dream","x":12345678901234567890123},"turn":0,"created_at_ms":8,"est_tokens":1},{"text":"{broken","turn":0,"created_at_ms":9,"est_tokens":0}],"requires":["hologram"],"lens":{"z":1}}"#;

    #[test]
    fn what_a_newer_version_has_written_is_passed_on_to_the_byte() {
        let snapshot = Snapshot::parse(NEWER).unwrap();
        assert_eq!(serde_json::to_string(&snapshot).unwrap(), NEWER);
        // As a thread would give it back that was made of it.
        let mut meta = Meta::new_root(ThreadId::from("t"), "a", None, 0);
        meta.next_turn = snapshot.next_turn;
        meta.extra = snapshot.extra.clone();
        assert!(meta.needs_newer_version());
        let rows = snapshot.rows();
        assert_eq!(rows[2].facts.turn_id, Some(ItemId::at(Epoch(0), Seq(1))));
        assert_eq!(serde_json::to_string(&Snapshot::of(&meta, &rows)).unwrap(), NEWER);
    }

    #[test]
    fn a_log_is_named_by_its_content_and_is_no_threads() {
        let (one, mut other) = (Snapshot::parse(NEWER).unwrap(), Snapshot::parse(NEWER).unwrap());
        other.thread = ThreadId::from("elsewhere");
        assert_eq!(one.log(), other.log());
        other.items[0].turn = 1;
        assert_ne!(one.log(), other.log());
        assert!(is_snapshot_log(&one.log()) && !is_snapshot_log(&one.thread));
    }

    #[test]
    fn what_is_no_snapshot_says_so() {
        let error = |json: &str| Snapshot::parse(json).unwrap_err().to_string();
        assert!(error("{}").contains("no snapshot"));
        assert!(error(r#"{"dormouse_snapshot":2,"new":1}"#).contains("form 2"));
        assert!(error(r#"{"dormouse_snapshot":1,"thread":"t"}"#).contains("missing field"));
        let long = "x".repeat(MAX_FACTS_BYTES);
        assert!(error(&NEWER.replace("hologram", &long)).starts_with("the thread has more than"));
        assert!(
            error(&NEWER.replace("\"weight\":{", &format!("\"weight\":{{\"{long}\":0,")))
                .starts_with("item 0")
        );
    }
}
