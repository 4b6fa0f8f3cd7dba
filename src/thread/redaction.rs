//! Redaction: a text that must be gone, from every row and body of a thread. It is an operator's, and with erasure the
//! only thing that changes what was stored (I8).
//!
//! What a redacted item was stays: its kind, its call, its place. So every request stays as valid as it was.

use serde_json::Value;
use uuid::Uuid;

use crate::message::{ContentPart, Epoch, ItemBody, ItemId, RawJson, Seq, ThreadId};
use crate::store::{
    ArchiveStore, Commit, Committed, CompactionWrite, Expect, Meta, OutboxEntry, Position, Store, StoreError,
    TextOf, behind,
};

/// What stands for what is gone.
const REDACTED: &str = "[redacted]";
/// Rounds until nothing new is found: a slice that runs meanwhile may store the text once more.
const MAX_ROUNDS: usize = 5;
/// Tries to move a thread that others move.
const MAX_RACES: usize = 20;
/// The shortest text that is looked for: a shorter one would take half of the thread with it.
const MIN_CHARS: usize = 4;

/// What is to be gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Redaction {
    /// Everything that an item of one of the thread's logs says.
    Item(ItemId),
    /// A text, wherever it stands.
    Text(String),
}

/// Why nothing, or not everything, was redacted.
#[derive(Debug, thiserror::Error)]
pub enum RedactError {
    /// The store's.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no such thread.
    #[error("there is no thread {0}")]
    NoThread(ThreadId),
    /// No item of that name.
    #[error(
        "{0} is no item of this thread's own logs; `show --json` names them, and what a thread inherits is redacted where it was said"
    )]
    NoItem(ItemId),
    /// The text is too short to be looked for.
    #[error("the text has fewer than {MIN_CHARS} characters: it would be found everywhere")]
    TooShort,
    /// The thread is at work and keeps writing it.
    #[error("the thread keeps writing it; stop or close the thread and run this again")]
    Busy,
}

/// Redacts, and returns how many stored texts have changed. Running it again is harmless. Messages that are still in a
/// queue, and copies that a provider, a tool or a client has, are not reached.
///
/// # Errors
/// A [`RedactError`]; what was changed until then stays changed.
pub async fn redact<S>(store: &S, thread: &ThreadId, what: &Redaction) -> Result<usize, RedactError>
where
    S: Store + ArchiveStore + ?Sized,
{
    if matches!(what, Redaction::Text(text) if text.trim().chars().count() < MIN_CHARS) {
        return Err(RedactError::TooShort);
    }
    let meta = store.meta(thread).await?.ok_or_else(|| RedactError::NoThread(thread.clone()))?;
    // What a summary says of an item cannot be told from the rest: it goes as a whole, and the items count again.
    let summaries = match what {
        Redaction::Item(id) if is_summarised(&meta, id) => Summaries::Erase,
        Redaction::Item(_) | Redaction::Text(_) => Summaries::Keep,
    };
    let rewrite = |of: TextOf, text: &str| match (of, summaries) {
        (TextOf::Summary(_), Summaries::Erase) => (!text.is_empty()).then(String::new),
        _ => what.apply(of, text),
    };
    let mut changed = 0;
    for round in 0..MAX_ROUNDS {
        let found = store.rewrite_texts(thread, &rewrite).await?;
        changed += found;
        if round > 0 && found == 0 {
            return match (changed, what) {
                (0, Redaction::Item(id)) => Err(RedactError::NoItem(id.clone())),
                _ => Ok(changed),
            };
        }
        // A slice that has read the text before may still write it: whatever it commits is refused from here on.
        move_on(store, thread, what, summaries).await?;
    }
    Err(RedactError::Busy)
}

/// What becomes of summaries.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Summaries {
    Keep,
    Erase,
}

/// Whether a summary may say something of the item.
fn is_summarised(meta: &Meta, id: &ItemId) -> bool {
    let Some(newest) = &meta.compaction.newest else { return false };
    let spans = meta.spans();
    let Some((covered, _)) = behind(&spans, &newest.through) else { return true };
    let of_thread = spans.iter().filter(|span| span.thread == meta.thread);
    let place = of_thread.clone().find_map(|span| {
        let seq = (span.from.0..span.to.0)
            .map(|seq| Seq(seq + 1))
            .find(|seq| *id == ItemId::at(span.epoch, *seq))?;
        behind(&spans, &Position { thread: span.thread.clone(), epoch: span.epoch, seq })
    });
    // One of a log that a rewind has left may be told of in that log's summaries.
    place.is_none_or(|(place, _)| place <= covered)
}

/// Makes every slice that has loaded the thread lose its race, and takes the text out of the thread's state. What
/// providers have counted, and signed, was another view.
async fn move_on<S: Store + ?Sized>(
    store: &S,
    thread: &ThreadId,
    what: &Redaction,
    summaries: Summaries,
) -> Result<(), RedactError> {
    for _ in 0..MAX_RACES {
        let Some(meta) = store.meta(thread).await?.filter(|meta| !meta.closed) else { return Ok(()) };
        let expect = Expect::At { epoch: meta.epoch, head: meta.head, token: meta.token.clone() };
        let mut after = Meta { usage: None, token: Uuid::new_v4().to_string(), ..meta };
        after.prune.since_turn = after.next_turn;
        // A summary that is being written is of what there was: its number is taken.
        after.compaction.last = after.compaction.last.saturating_add(1);
        if summaries == Summaries::Erase {
            after.compaction.newest = None;
        }
        if let Redaction::Text(text) = what {
            after.metadata = after.metadata.map(|kept| rewritten(&kept, text).unwrap_or(kept));
            after.outbox = after.outbox.into_iter().map(|entry| without(entry, text)).collect();
        }
        let commit = Commit { compaction: CompactionWrite::Set, ..Commit::new(expect, after, 0) };
        if store.commit(commit).await? == Committed::Done {
            return Ok(());
        }
    }
    Err(RedactError::Busy)
}

fn rewritten(kept: &RawJson, text: &str) -> Option<RawJson> {
    let new = replaced_in_json(kept.get(), text)?;
    RawJson::parse(&new).ok()
}

fn without(entry: OutboxEntry, text: &str) -> OutboxEntry {
    let json = serde_json::to_string(&entry).unwrap_or_default();
    let new = replaced_in_json(&json, text).and_then(|new| serde_json::from_str(&new).ok());
    new.unwrap_or(entry)
}

impl Redaction {
    /// What becomes of a stored text; none: nothing.
    fn apply(&self, of: TextOf, text: &str) -> Option<String> {
        match (self, of) {
            (Self::Text(wanted), _) => replaced_in_json(text, wanted),
            (Self::Item(id), TextOf::Item(epoch, seq)) if *id == ItemId::at(epoch, seq) => {
                let blank = blanked(ItemBody::parse(text));
                (blank != text).then_some(blank)
            }
            (Self::Item(_), TextOf::Item(Epoch(_), Seq(_)) | TextOf::Summary(_) | TextOf::State) => None,
        }
    }
}

/// An item that says nothing, in the place of one that did.
fn blanked(body: ItemBody) -> String {
    let gone = || REDACTED.to_owned();
    let parts = || vec![ContentPart::text(REDACTED)];
    let blank = match body.with_parts(parts()) {
        ItemBody::System(mut item) => {
            item.text = gone();
            ItemBody::System(item)
        }
        ItemBody::Assistant(mut item) => {
            item.text = gone();
            ItemBody::Assistant(item)
        }
        ItemBody::ToolCall(mut item) => {
            item.arguments = "{}".to_owned();
            item.signature = None;
            ItemBody::ToolCall(item)
        }
        ItemBody::ToolResult(mut item) => {
            item.display_as = None;
            ItemBody::ToolResult(item)
        }
        ItemBody::Event(mut item) => {
            item.original_args = "{}".to_owned();
            ItemBody::Event(item)
        }
        body @ (ItemBody::User(_) | ItemBody::Interrupt(_)) => body,
        // Neither can be kept in part: a provider takes its own back whole or not at all.
        ItemBody::Reasoning(_) | ItemBody::BackendToolCall(_) | ItemBody::Unknown { .. } => {
            return r#"{"kind":"redacted"}"#.to_owned();
        }
    };
    blank.to_raw()
}

/// `json` with `wanted` replaced in every string of it, spelled out or escaped (arguments are JSON inside of a string);
/// none if it stands nowhere. A text that is no JSON is replaced as it is.
fn replaced_in_json(json: &str, wanted: &str) -> Option<String> {
    let Ok(mut value) = serde_json::from_str::<Value>(json) else {
        return json.contains(wanted).then(|| json.replace(wanted, REDACTED));
    };
    let quoted = Value::from(wanted).to_string();
    let escaped = quoted[1..quoted.len() - 1].to_owned();
    replace(&mut value, wanted, &escaped).then(|| value.to_string())
}

fn replace(value: &mut Value, wanted: &str, escaped: &str) -> bool {
    match value {
        Value::String(text) => {
            let found = text.contains(wanted) || text.contains(escaped);
            if found {
                *text = text.replace(wanted, REDACTED).replace(escaped, REDACTED);
            }
            found
        }
        Value::Array(values) => {
            values.iter_mut().fold(false, |found, value| replace(value, wanted, escaped) | found)
        }
        Value::Object(fields) => {
            let keys: Vec<String> = fields.keys().filter(|key| key.contains(wanted)).cloned().collect();
            for key in &keys {
                let value = fields.shift_remove(key).unwrap_or_default();
                fields.insert(key.replace(wanted, REDACTED), value);
            }
            fields
                .values_mut()
                .fold(!keys.is_empty(), |found, value| replace(value, wanted, escaped) || found)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_found_spelled_out_and_escaped_and_nothing_else_changes() {
        let secret = "p\"w\n1";
        let arguments = serde_json::json!({ "token": secret, "n": 1 }).to_string();
        let item = serde_json::json!({ "kind": "tool_call", "arguments": arguments, "z": [secret, "ok"] })
            .to_string();
        let gone = replaced_in_json(&item, secret).unwrap();
        let value: Value = serde_json::from_str(&gone).unwrap();
        assert_eq!(value["z"], serde_json::json!([REDACTED, "ok"]));
        let arguments: Value = serde_json::from_str(value["arguments"].as_str().unwrap()).unwrap();
        assert_eq!(arguments, serde_json::json!({ "token": REDACTED, "n": 1 }));
        assert_eq!(replaced_in_json(&gone, secret), None, "once is enough");
        assert_eq!(replaced_in_json("no json p\"w\n1", secret).unwrap(), "no json [redacted]");
    }

    #[test]
    fn an_item_of_every_kind_keeps_its_place_and_says_nothing() {
        let secret = "hunter2";
        for raw in [
            r#"{"kind":"system","text":"hunter2"}"#,
            r#"{"kind":"user","parts":[{"type":"text","text":"hunter2"}],"author":"ana"}"#,
            r#"{"kind":"assistant","text":"hunter2","model":"m"}"#,
            r#"{"kind":"reasoning","text":"hunter2","model":"m","signature":"hunter2"}"#,
            r#"{"kind":"tool_call","call_id":"c","name":"f","arguments":"{\"p\":\"hunter2\"}","model":"m"}"#,
            r#"{"kind":"tool_result","call_id":"c","outcome":"ok","parts":[{"type":"text","text":"hunter2"}],"settled_by":"tool","display_as":{"x":"hunter2"}}"#,
            r#"{"kind":"dream","x":"hunter2"}"#,
        ] {
            let blank = blanked(ItemBody::parse(raw));
            assert!(!blank.contains(secret), "{blank}");
            match (ItemBody::parse(raw), ItemBody::parse(&blank)) {
                (ItemBody::Reasoning(_) | ItemBody::Unknown { .. }, ItemBody::Unknown { kind }) => {
                    assert_eq!(kind, "redacted");
                }
                (before, after) => assert_eq!(before.kind(), after.kind(), "{raw}"),
            }
            assert_eq!(blanked(ItemBody::parse(&blank)), blank, "once is enough");
        }
    }
}
