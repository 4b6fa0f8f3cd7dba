//! Every key of the table, built here and nowhere else. The layout is design part 3.
//!
//! A key is a prefix and one variable part at its end. The part is spelled out where it is short and plain, so
//! that an operator can read it; `#`, `%`, `~` and blanks are percent-escaped; anything else becomes `~` and the
//! base32 of its SHA-256, and the original is an attribute of the row. An escaped part never holds a bare `~`, so
//! the two forms cannot meet.

use std::collections::HashMap;
use std::fmt::Write as _;

use aws_sdk_dynamodb::types::AttributeValue;

use crate::message::{CallId, DedupId, Epoch, MessageId, Seq, ThreadId};
use crate::store::{GenerationId, body_digest};

/// The partition key's attribute.
pub(super) const PK: &str = "pk";
/// The sort key's attribute.
pub(super) const SK: &str = "sk";
/// The sparse index of threads.
pub(super) const LISTS: &str = "lists";
/// Its partition key's attribute.
pub(super) const LPK: &str = "lpk";
/// Its sort key's attribute.
pub(super) const LSK: &str = "lsk";
/// Partitions of a list: new threads of a busy table must not share one.
pub(super) const LIST_SHARDS: u8 = 8;

/// Sort key of a thread's state.
pub(super) const META: &str = "META";
/// Parked inputs.
pub(super) const PARKED: &str = "P#";
/// Subscriptions.
pub(super) const SUBSCRIPTION: &str = "S#";
/// Failed attempts.
pub(super) const ATTEMPTS: &str = "A#";
/// Views.
pub(super) const VIEW: &str = "V#";
/// Open choices.
pub(super) const CHOICE: &str = "Q#";
/// A client's run.
pub(super) const RUN: &str = "R#";
/// Sorts behind every choice, and before every other kind of row.
pub(super) const BEHIND_CHOICES: &str = "Q$";
/// Items of a log.
pub(super) const ITEM: &str = "I#";
/// What a log that was left inherits.
pub(super) const BASE: &str = "BASE";
/// Who inherits of a thread's logs.
pub(super) const HEIR: &str = "H#";
/// Children that a thread has made.
pub(super) const CHILD: &str = "K#";
/// That nobody may inherit of a thread's logs any more.
pub(super) const ERASED: &str = "ERASED";

/// Generations of a log.
pub(super) const GENERATION: &str = "C#";

/// Longest variable part, in bytes after escaping; a sort key may have 1,024.
const MAX_PART: usize = 512;
/// Digits of a seq, so that the order of the keys is the order of the numbers.
const SEQ_DIGITS: usize = 12;
/// Digits of a generation's number.
const GENERATION_DIGITS: usize = 10;
/// Digits of a slice's and a row's number within a run.
const EVENT_DIGITS: usize = 10;
/// Digits of a body part's number.
const PART_DIGITS: usize = 6;
/// Digits of a creation time in milliseconds.
const TIME_DIGITS: usize = 15;

/// A row's primary key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Key {
    /// Partition key.
    pub pk: String,
    /// Sort key.
    pub sk: String,
}

impl Key {
    fn new(pk: String, sk: impl Into<String>) -> Self {
        Self { pk, sk: sk.into() }
    }

    /// As the two attributes of a request.
    pub(super) fn attributes(&self) -> HashMap<String, AttributeValue> {
        HashMap::from([
            (PK.to_owned(), AttributeValue::S(self.pk.clone())),
            (SK.to_owned(), AttributeValue::S(self.sk.clone())),
        ])
    }

    /// The key of a row that was read.
    pub(super) fn of(row: &HashMap<String, AttributeValue>) -> Option<Self> {
        let text = |name| row.get(name).and_then(|value| value.as_s().ok()).cloned();
        Some(Self { pk: text(PK)?, sk: text(SK)? })
    }
}

/// The variable part of a key.
fn part(text: &str) -> String {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    if plain {
        let mut escaped = String::with_capacity(text.len());
        for c in text.chars() {
            match c {
                '#' | '%' | '~' | ' ' => {
                    write!(escaped, "%{:02X}", u32::from(c)).expect("bug: writing to a string")
                }
                _ => escaped.push(c),
            }
        }
        if escaped.len() <= MAX_PART {
            return escaped;
        }
    }
    format!("~{}", body_digest(text))
}

/// Partition of everything of a thread but its logs.
pub(super) fn thread_pk(thread: &ThreadId) -> String {
    format!("T#{}", part(thread.as_str()))
}

/// Partition of one log.
pub(super) fn log_pk(thread: &ThreadId, epoch: Epoch) -> String {
    format!("L#{epoch}#{}", part(thread.as_str()))
}

/// Partition of a body.
pub(super) fn body_pk(digest: &str) -> String {
    format!("B#{}", part(digest))
}

/// Partition of a claim check.
pub(super) fn claim_pk(digest: &str) -> String {
    format!("X#{}", part(digest))
}

/// Sort key of an item.
pub(super) fn item_sk(seq: Seq) -> String {
    format!("{ITEM}{:0SEQ_DIGITS$}", seq.0)
}

/// The position that an item's sort key names.
pub(super) fn seq_of(sk: &str) -> Option<Seq> {
    sk.strip_prefix(ITEM)?.parse().ok().map(Seq)
}

/// Sort key of a body's part.
pub(super) fn part_sk(part: usize) -> String {
    format!("{part:0PART_DIGITS$}")
}

/// A thread's state.
pub(super) fn meta(thread: &ThreadId) -> Key {
    Key::new(thread_pk(thread), META)
}

/// Whose a thread's name is.
pub(super) fn owner(thread: &ThreadId) -> Key {
    Key::new(thread_pk(thread), "OWNER")
}

/// A cancel request.
pub(super) fn stop(thread: &ThreadId) -> Key {
    Key::new(thread_pk(thread), "STOP")
}

/// Where a thread stands in the list of its owner. One partition: one principal makes no thousand threads a second.
pub(super) fn owner_entry(owner: &str, thread: &ThreadId, at_ms: i64) -> (String, String) {
    (owner_pk(owner), format!("{:0TIME_DIGITS$}#{}", at_ms.max(0), part(thread.as_str())))
}

/// The list of an owner's threads.
pub(super) fn owner_pk(owner: &str) -> String {
    format!("LIST#owner#{}", part(owner))
}

/// A processed or parked input.
pub(super) fn dedup(thread: &ThreadId, id: &DedupId) -> Key {
    Key::new(thread_pk(thread), format!("D#{}", part(id.as_str())))
}

/// Failed attempts of an input.
pub(super) fn attempts(thread: &ThreadId, id: &DedupId) -> Key {
    Key::new(thread_pk(thread), format!("{ATTEMPTS}{}", part(id.as_str())))
}

/// A parked input.
pub(super) fn parked(thread: &ThreadId, key: &str) -> Key {
    Key::new(thread_pk(thread), format!("{PARKED}{}", part(key)))
}

/// A subscription.
pub(super) fn subscription(thread: &ThreadId, call: &CallId) -> Key {
    Key::new(thread_pk(thread), format!("{SUBSCRIPTION}{}", part(call.as_str())))
}

/// An open choice.
pub(super) fn choice(thread: &ThreadId, id: &CallId) -> Key {
    Key::new(thread_pk(thread), format!("{CHOICE}{}", part(id.as_str())))
}

/// The latest view of a type.
pub(super) fn view(thread: &ThreadId, view_type: &str) -> Key {
    Key::new(thread_pk(thread), format!("{VIEW}{}", part(view_type)))
}

/// An item.
pub(super) fn item(thread: &ThreadId, epoch: Epoch, seq: Seq) -> Key {
    Key::new(log_pk(thread, epoch), item_sk(seq))
}

/// A generation.
pub(super) fn generation(id: &GenerationId) -> Key {
    Key::new(log_pk(&id.thread, id.epoch), format!("{GENERATION}{:0GENERATION_DIGITS$}", id.number))
}

/// What a log that was left inherits.
pub(super) fn base(thread: &ThreadId, epoch: Epoch) -> Key {
    Key::new(log_pk(thread, epoch), BASE)
}

/// A run of an attached client.
pub(super) fn run(thread: &ThreadId, run: &str) -> Key {
    Key::new(thread_pk(thread), format!("{RUN}{}", part(run)))
}

/// What one of a run's slices shows.
pub(super) fn run_events(thread: &ThreadId, run: &str, attempt: u32, n: u32) -> Key {
    let sk = format!("E#{}#{attempt:0EVENT_DIGITS$}#{n:0EVENT_DIGITS$}", part(run));
    Key::new(thread_pk(thread), sk)
}

/// Who inherits of a thread's logs.
pub(super) fn heir(thread: &ThreadId, heir: &ThreadId) -> Key {
    Key::new(thread_pk(thread), format!("{HEIR}{}", part(heir.as_str())))
}

/// A child that a thread has made.
pub(super) fn child(thread: &ThreadId, child: &ThreadId) -> Key {
    Key::new(thread_pk(thread), format!("{CHILD}{}", part(child.as_str())))
}

/// That nobody may inherit of a thread's logs any more.
pub(super) fn erased(thread: &ThreadId) -> Key {
    Key::new(thread_pk(thread), ERASED)
}

/// The list of a partition's bodies, whatever row names them.
pub(super) fn bodies_pk(pk: &str) -> String {
    // A digest has no `#`.
    format!("B#{pk}")
}

/// A body in that list.
pub(super) fn listed_body(pk: &str, digest: &str) -> Key {
    Key::new(bodies_pk(pk), digest)
}

/// A part of a body.
pub(super) fn body_part(digest: &str, number: usize) -> Key {
    Key::new(body_pk(digest), part_sk(number))
}

/// A part of a claim check.
pub(super) fn claim_part(digest: &str, number: usize) -> Key {
    Key::new(claim_pk(digest), part_sk(number))
}

/// A server's manifest.
pub(super) fn manifest(server: &str) -> Key {
    Key::new(format!("M#{}", part(server)), "manifest")
}

/// How many children of a root are open.
pub(super) fn open_children(root: &ThreadId) -> Key {
    Key::new(thread_pk(root), "CHILDREN")
}

/// A dead letter.
pub(super) fn dead_letter(thread: &ThreadId, id: &MessageId) -> Key {
    Key::new(thread_pk(thread), format!("U#{}", part(id.as_str())))
}

/// What the index lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    /// All threads, by creation time.
    Threads,
    /// Dead letters, by when they were kept.
    DeadLetters,
}

/// A shard of a list.
pub(super) fn list_pk(list: List, shard: u8) -> String {
    let name = match list {
        List::Threads => "threads",
        List::DeadLetters => "dead-letters",
    };
    format!("LIST#{name}#{shard}")
}

/// Where `name` stands in a list: its shard and its place by time.
pub(super) fn list_entry(list: List, name: &str, at_ms: i64) -> (String, String) {
    let shard = body_digest(name).bytes().next().unwrap_or_default() % LIST_SHARDS;
    (list_pk(list, shard), list_place(at_ms, name))
}

/// The place of `name` by time; without a name, before all of that time.
pub(super) fn list_place(at_ms: i64, name: &str) -> String {
    let name = if name.is_empty() { String::new() } else { part(name) };
    format!("{:0TIME_DIGITS$}#{name}", at_ms.max(0))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn keys_are_those_of_the_design() {
        let t = ThreadId::from("slack:C1");
        let is = |key: Key, pk: &str, sk: &str| assert_eq!((key.pk.as_str(), key.sk.as_str()), (pk, sk));
        is(meta(&t), "T#slack:C1", "META");
        is(owner(&t), "T#slack:C1", "OWNER");
        is(stop(&t), "T#slack:C1", "STOP");
        is(dedup(&t, &DedupId::from("m-1")), "T#slack:C1", "D#m-1");
        is(parked(&t, "18849496460467696128"), "T#slack:C1", "P#18849496460467696128");
        is(subscription(&t, &CallId::from("c0-2-x")), "T#slack:C1", "S#c0-2-x");
        is(choice(&t, &CallId::from("c0-2-x")), "T#slack:C1", "Q#c0-2-x");
        is(view(&t, "chart"), "T#slack:C1", "V#chart");
        is(item(&t, Epoch(3), Seq(7)), "L#3#slack:C1", "I#000000000007");
        let id = GenerationId { thread: t.clone(), epoch: Epoch(3), number: 2 };
        is(generation(&id), "L#3#slack:C1", "C#0000000002");
        is(base(&t, Epoch(3)), "L#3#slack:C1", "BASE");
        is(heir(&t, &ThreadId::from("fork 1")), "T#slack:C1", "H#fork%201");
        is(body_part("abc", 1), "B#abc", "000001");
        is(listed_body("L#0#slack:C1", "abc"), "B#L#0#slack:C1", "abc");
        is(child(&t, &ThreadId::from("th-1")), "T#slack:C1", "K#th-1");
        is(erased(&t), "T#slack:C1", "ERASED");
        is(claim_part("abc", 0), "X#abc", "000000");
        is(run(&t, "run 1"), "T#slack:C1", "R#run%201");
        is(run_events(&t, "r#", 2, 7), "T#slack:C1", "E#r%23#0000000002#0000000007");
        is(manifest("http://tools/x"), "M#http://tools/x", "manifest");
        is(dead_letter(&t, &MessageId::from("m-1")), "T#slack:C1", "U#m-1");
        let listed = |list| list_entry(list, t.as_str(), 1_700_000_000_000);
        assert_eq!(listed(List::Threads).1, "001700000000000#slack:C1");
        assert_eq!(owner_entry("ann", &t, 7), ("LIST#owner#ann".into(), "000000000000007#slack:C1".into()));
        assert!(listed(List::DeadLetters).0.starts_with("LIST#dead-letters#"));
        assert_eq!(seq_of(&item_sk(Seq(12))), Some(Seq(12)));
    }

    #[test]
    fn variable_parts_neither_meet_nor_outgrow_a_key() {
        let hash = format!("~{}", body_digest("é"));
        let long = "x".repeat(600);
        let hashes = "#".repeat(400);
        let odd = ["a", "a#b", "a%23b", "a b", "~", "~x", "%7E", "é", &hash, "", "\0", &long, &hashes];
        let parts: BTreeSet<String> = odd.iter().map(|text| part(text)).collect();
        assert_eq!(parts.len(), odd.len());
        for text in parts {
            assert!(!text.is_empty() && text.len() <= MAX_PART && !text.contains('#'), "{text}");
        }
        assert_eq!(part(&"x".repeat(MAX_PART)).len(), MAX_PART);
    }
}
