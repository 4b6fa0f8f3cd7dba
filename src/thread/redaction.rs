//! Redaction: a text that must be gone, from every row and body of a thread. It is an operator's, and with erasure the
//! only thing that changes what was stored (I8).
//!
//! What a redacted item was stays: its kind, its call, its place. So every request stays as valid as it was.

use serde_json::Value;
use uuid::Uuid;

use super::deletion::snapshots_of;
use crate::message::{ContentPart, Epoch, ItemBody, ItemId, RawJson, Seq, ThreadId};
use crate::store::{
    ArchiveStore, Commit, Committed, CompactionWrite, Expect, Generation, Meta, Position, Store, StoreError,
    TextOf, behind,
};

/// What stands for what is gone.
const REDACTED: &str = "[redacted]";
/// What stands for an item that cannot be kept in part.
const GONE: &str = r#"{"kind":"redacted"}"#;
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
    let mut changed = 0;
    for round in 0..MAX_ROUNDS {
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
        let mut found = store.rewrite_texts(thread, &rewrite).await?;
        // What a thread was made of is nobody else's to redact.
        for log in snapshots_of(store, &meta).await? {
            if found == 0 || matches!(what, Redaction::Text(_)) {
                found += store.rewrite_texts(&log, &rewrite).await?;
            }
        }
        changed += found;
        if round > 0 && found == 0 {
            return match (changed, what) {
                (0, Redaction::Item(id)) => Err(RedactError::NoItem(id.clone())),
                _ => Ok(changed),
            };
        }
        // A slice that has read the text before may still write it: whatever it commits is refused from here on.
        move_on(store, thread, summaries).await?;
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

/// Makes every slice that has loaded the thread lose its race. What providers have counted, and signed, was another view.
async fn move_on<S: Store + ?Sized>(
    store: &S,
    thread: &ThreadId,
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
        let commit = Commit { compaction: CompactionWrite::Set, ..Commit::new(expect, after, 0) };
        if store.commit(commit).await? == Committed::Done {
            return Ok(());
        }
    }
    Err(RedactError::Busy)
}

impl Redaction {
    /// What becomes of a stored text; none: nothing.
    fn apply(&self, of: TextOf, text: &str) -> Option<String> {
        match (self, of) {
            (Self::Text(wanted), TextOf::Item(..)) => Wanted::new(wanted).out_of_item(text),
            (Self::Text(wanted), TextOf::Summary(_)) => {
                // What only a provider can read may say it as well.
                let open = Generation::without_sealed(text);
                Wanted::new(wanted).out_of_state(open.as_deref().unwrap_or(text), &NAMES).or(open)
            }
            (Self::Text(wanted), TextOf::State) => Wanted::new(wanted).out_of_state(text, &NAMES),
            (Self::Text(wanted), TextOf::Opaque) => Wanted::new(wanted).out_of_state(text, &[]),
            (Self::Item(id), TextOf::Item(epoch, seq)) if *id == ItemId::at(epoch, seq) => {
                let blank = blanked(ItemBody::parse(text));
                (blank != text).then_some(blank)
            }
            (
                Self::Item(_),
                TextOf::Item(Epoch(_), Seq(_)) | TextOf::Summary(_) | TextOf::State | TextOf::Opaque,
            ) => None,
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
        ItemBody::User(mut item) => {
            if let Some(edited) = &mut item.edited {
                edited.arguments = "{}".to_owned();
            }
            ItemBody::User(item)
        }
        ItemBody::State(mut item) => {
            item.state = RawJson::empty_object();
            ItemBody::State(item)
        }
        body @ ItemBody::Interrupt(_) => body,
        // Neither can be kept in part: a provider takes its own back whole or not at all.
        ItemBody::Reasoning(_) | ItemBody::BackendToolCall(_) | ItemBody::Unknown { .. } => {
            return GONE.to_owned();
        }
    };
    blank.to_raw()
}

/// What of an item says what it is, not what was said.
const STRUCTURE: [&str; 12] = [
    "kind",
    "call_id",
    "provider_id",
    "name",
    "model",
    "outcome",
    "settled_by",
    "reason",
    "synthetic_reason",
    "original_tool_name",
    "original_tool_call_id",
    "stop_reason",
];
/// The same of messages that are kept beside the history, wherever in them it stands.
const NAMES: [&str; 8] =
    ["type", "id", "call_id", "tool_call_id", "group_id", "message_id", "child_thread_id", "media_type"];
/// Fields of our own messages: never taken for somebody's words.
const FIELDS: [&str; 16] = [
    "text",
    "content",
    "parts",
    "data",
    "value",
    "metadata",
    "synthetic",
    "display_as",
    "subscription",
    "prompt",
    "choices",
    "default",
    "response_url",
    "auth_url",
    "selected",
    "user_id",
];
/// Members of our own messages that somebody else has given, in a form of their own: a name in there is none of ours.
const OPAQUE: [&str; 4] = ["metadata", "value", "arguments", "state"];
/// JSON inside of a string inside of JSON …, followed so deep.
const MAX_NESTING: usize = 4;

/// A text that is to be gone, as it may be spelled.
struct Wanted<'a> {
    plain: &'a str,
    /// As JSON has it inside of a string.
    escaped: String,
}

impl<'a> Wanted<'a> {
    fn new(plain: &'a str) -> Self {
        let quoted = Value::from(plain).to_string();
        Self { plain, escaped: quoted[1..quoted.len() - 1].to_owned() }
    }

    /// An item without the text; none if it is not in it. What the item is stays.
    fn out_of_item(&self, raw: &str) -> Option<String> {
        let Ok(Value::Object(mut fields)) = serde_json::from_str::<Value>(raw) else {
            return self.out_of_text(raw);
        };
        let mut found = false;
        for (name, value) in fields.iter_mut().filter(|(name, _)| !STRUCTURE.contains(&name.as_str())) {
            found |= match name.as_str() {
                "parts" => self.out_of_parts(value),
                _ => self.out_of(value, &[], MAX_NESTING),
            };
        }
        if !found {
            return None;
        }
        match ItemBody::parse(raw) {
            // A provider takes its own back whole or not at all.
            ItemBody::Reasoning(_) | ItemBody::BackendToolCall(_) => return Some(GONE.to_owned()),
            ItemBody::ToolCall(_) => drop(fields.shift_remove("signature")),
            _ => {}
        }
        Some(Value::Object(fields).to_string())
    }

    /// Something beside the history without the text. What is among `but` stays: names of threads, calls and messages, or it
    /// would be of nobody.
    fn out_of_state(&self, text: &str, but: &[&str]) -> Option<String> {
        match serde_json::from_str::<Value>(text) {
            Ok(mut value) => self.out_of(&mut value, but, MAX_NESTING).then(|| value.to_string()),
            Err(_) => self.out_of_text(text),
        }
    }

    fn out_of_text(&self, text: &str) -> Option<String> {
        text.contains(self.plain).then(|| text.replace(self.plain, REDACTED))
    }

    /// Content parts: the bytes of an image are no text.
    fn out_of_parts(&self, parts: &mut Value) -> bool {
        let Value::Array(parts) = parts else { return self.out_of(parts, &NAMES, MAX_NESTING) };
        parts.iter_mut().fold(false, |found, part| {
            let bytes = part.pointer("/data/type").is_some_and(|form| form == "base64");
            (!bytes && self.out_of(part, &NAMES, MAX_NESTING)) | found
        })
    }

    /// Takes it out of every string of a value but those whose fields are among `but`; says whether it was there.
    fn out_of(&self, value: &mut Value, but: &[&str], depth: usize) -> bool {
        match value {
            Value::String(text) => {
                let mut found = false;
                // Arguments and quoted answers are JSON in a string, in whatever spelling their writer has.
                if depth > 0
                    && text.trim_start().starts_with(['{', '['])
                    && let Ok(mut inner) = serde_json::from_str::<Value>(text)
                    && self.out_of(&mut inner, &[], depth - 1)
                {
                    *text = inner.to_string();
                    found = true;
                }
                for spelled in [self.plain, &self.escaped] {
                    if text.contains(spelled) {
                        *text = text.replace(spelled, REDACTED);
                        found = true;
                    }
                }
                found
            }
            Value::Array(values) => {
                values.iter_mut().fold(false, |found, value| self.out_of(value, but, depth) | found)
            }
            Value::Object(fields) => {
                let mut found = false;
                let named: Vec<String> =
                    fields.keys().filter(|key| key.contains(self.plain)).cloned().collect();
                let ours = |name: &&String| {
                    !but.is_empty() && (but.contains(&name.as_str()) || FIELDS.contains(&name.as_str()))
                };
                for name in named.iter().filter(|name| !ours(name)) {
                    let value = fields.shift_remove(name).unwrap_or_default();
                    fields.insert(name.replace(self.plain, REDACTED), value);
                    found = true;
                }
                for (name, value) in fields.iter_mut().filter(|(name, _)| !but.contains(&name.as_str())) {
                    let but = if OPAQUE.contains(&name.as_str()) { &[] } else { but };
                    found |= self.out_of(value, but, depth);
                }
                found
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_found_however_it_is_spelled_and_nothing_else_changes() {
        let secret = "p\"w\n1 café";
        let arguments = serde_json::json!({ "token": secret, "n": 1 }).to_string();
        let ascii = arguments.replace('é', "\\u00e9");
        let twice = serde_json::json!({ "inner": ascii }).to_string();
        for arguments in [arguments, ascii, twice] {
            let item = serde_json::json!({ "kind": "tool_call", "call_id": "c", "name": "f", "arguments": arguments,
                "signature": "s", "model": "m" });
            let gone = Wanted::new(secret).out_of_item(&item.to_string()).unwrap();
            assert!(!gone.contains("caf") && gone.contains(REDACTED), "{gone}");
            let ItemBody::ToolCall(call) = ItemBody::parse(&gone) else { panic!("{gone}") };
            assert_eq!(
                (call.name.as_str(), call.signature),
                ("f", None),
                "what was signed is another text now"
            );
            assert!(
                call.arguments.contains(r#"n\":1"#) || call.arguments.contains(r#""n":1"#),
                "{}",
                call.arguments
            );
            assert_eq!(Wanted::new(secret).out_of_item(&gone), None, "once is enough");
        }
        assert_eq!(Wanted::new("1 café").out_of_item("no json 1 café").unwrap(), "no json [redacted]");
    }

    #[test]
    fn what_an_item_is_stays_whatever_the_text_is() {
        let raw = r#"{"kind":"tool_result","call_id":"text-1","outcome":"text","parts":[{"type":"text","text":"a text"},{"type":"image","data":{"type":"base64","value":"AAtextAA"},"media_type":"text"}],"settled_by":"tool"}"#;
        let gone = Wanted::new("text").out_of_item(raw).unwrap();
        assert_eq!(gone, raw.replace("a text", "a [redacted]"));
        let parked =
            r#"{"content":{"type":"text","text":"some text"},"group_id":"text","metadata":{"text":"text"}}"#;
        let gone = Wanted::new("text").out_of_state(parked, &NAMES).unwrap();
        let left = r#"{"content":{"type":"text","text":"some [redacted]"},"group_id":"text","metadata":{"[redacted]":"[redacted]"}}"#;
        assert_eq!(gone, left);
        // Where the form is somebody else's, a name is a word as any other.
        let theirs = r#"{"id":"text-1","metadata":{"user":{"id":"text"}}}"#;
        let gone = Wanted::new("text").out_of_state(theirs, &NAMES).unwrap();
        assert_eq!(gone, r#"{"id":"text-1","metadata":{"user":{"id":"[redacted]"}}}"#);
        let gone = Wanted::new("text").out_of_state(theirs, &[]).unwrap();
        assert_eq!(gone, r#"{"id":"[redacted]-1","metadata":{"user":{"id":"[redacted]"}}}"#);
        let reasoning = r#"{"kind":"reasoning","text":"a secret","model":"m","signature":"s"}"#;
        assert_eq!(Wanted::new("secret").out_of_item(reasoning).unwrap(), GONE, "it is whole or absent");
    }

    #[test]
    fn an_item_of_every_kind_keeps_its_place_and_says_nothing() {
        let secret = "hunter2";
        for raw in [
            r#"{"kind":"system","text":"hunter2"}"#,
            r#"{"kind":"user","parts":[{"type":"text","text":"hunter2"}],"author":"ana"}"#,
            r#"{"kind":"user","parts":[{"type":"text","text":"hunter2"}],"synthetic_reason":"edited_call","call_id":"c","arguments":"{\"p\":\"hunter2\"}"}"#,
            r#"{"kind":"assistant","text":"hunter2","model":"m"}"#,
            r#"{"kind":"reasoning","text":"hunter2","model":"m","signature":"hunter2"}"#,
            r#"{"kind":"tool_call","call_id":"c","name":"f","arguments":"{\"p\":\"hunter2\"}","model":"m"}"#,
            r#"{"kind":"tool_result","call_id":"c","outcome":"ok","parts":[{"type":"text","text":"hunter2"}],"settled_by":"tool","display_as":{"x":"hunter2"}}"#,
            r#"{"kind":"state","state":{"hunter2":["hunter2"]}}"#,
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
