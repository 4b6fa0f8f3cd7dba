//! A conversation as a person reads it, and as a script does. Pure: what was loaded in, text out.

use std::collections::BTreeMap;

use dormouse::message::{
    CallId, ContentPart, InputContent, InputMessage, Item, ItemBody, Outcome, SyntheticReason, ToolCallItem,
    UserItem,
};
use dormouse::store::{Generation, Loaded, Meta, PendingCall};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use super::conversation::consent_urls;
use super::screen::{Colours, Tone, harmless, toned};

/// Columns of the label in front of a text.
const LABEL: usize = 8;
/// Characters of one tool result; `--json` has all of it.
const MAX_RESULT_CHARS: usize = 4_000;

/// Milliseconds since the epoch as the local time.
pub fn local_time(ms: i64) -> String {
    match Timestamp::from_millisecond(ms) {
        Ok(time) => time.to_zoned_datetime(TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string(),
        Err(_) => "?".to_owned(),
    }
}

/// A thread's summaries as one JSON object.
pub fn generations_json(meta: &Meta, found: &[Generation]) -> Result<String, serde_json::Error> {
    let found: Vec<Value> = found
        .iter()
        .map(|generation| {
            let mut facts = serde_json::to_value(generation)?;
            facts["text"] = json!(generation.text);
            Ok(facts)
        })
        .collect::<Result<_, serde_json::Error>>()?;
    serde_json::to_string_pretty(&json!({
        "thread": meta.thread,
        "attempts": meta.compaction.run,
        "generations": found,
    }))
}

/// A thread's summaries for people, newest first.
pub fn generations(meta: &Meta, found: &[Generation]) -> String {
    let mut out = String::new();
    let run = &meta.compaction.run;
    if let (true, Some(failure)) = (run.attempts > 0, &run.failure) {
        out.push_str(&format!(
            "The last {} attempt(s) at a summary failed ({}); the next is not before {}.\n",
            run.attempts,
            harmless(failure),
            local_time(run.next_try_at_ms)
        ));
    }
    if found.is_empty() {
        out.push_str("Nothing of this conversation is summarised.\n");
    }
    for generation in found {
        let (id, through) = (&generation.at.id, &generation.at.through);
        let checkpoint = match &generation.native {
            None => "",
            Some(_) if run.dead.as_ref() == Some(id) => ", with a checkpoint that its provider refuses",
            Some(_) => ", with its provider's checkpoint",
        };
        out.push_str(&format!(
            "generation {} of log {}, up to item {} of log {}{}, {} tokens for {}, by {}{checkpoint}, {}\n{}\n\n",
            id.number,
            id.epoch,
            through.seq,
            through.epoch,
            if through.thread == meta.thread { String::new() } else { format!(" of {}", through.thread) },
            dormouse::message::tokens::of_bytes(generation.text.len()),
            generation.source_tokens,
            harmless(&generation.model),
            local_time(generation.created_at_ms),
            harmless(&generation.text),
        ));
    }
    out
}

/// Everything as one JSON object.
pub fn json(meta: &Meta, loaded: &Loaded) -> Result<String, serde_json::Error> {
    let items: Vec<Value> = loaded
        .items
        .iter()
        .map(|item| {
            json!({
                "seq": item.seq,
                "turn": item.facts.turn,
                "opens_turn": item.facts.opens_turn,
                "created_at_ms": item.facts.created_at_ms,
                "dedup": item.facts.dedup,
                "cause": item.facts.cause,
                "user": item.facts.user,
                "item": Value::from(item),
            })
        })
        .collect();
    let parked: Vec<Value> = loaded
        .parked
        .iter()
        .map(|parked| {
            let body: Value = serde_json::from_str(&parked.body).unwrap_or_else(|_| json!(parked.body));
            json!({ "dedup": parked.dedup, "cause": parked.cause, "message": body })
        })
        .collect();
    serde_json::to_string_pretty(&json!({
        "thread": meta.thread,
        "agent": meta.agent,
        "owner": meta.owner,
        "created_at_ms": meta.created_at_ms,
        "closed": meta.closed,
        "epoch": meta.epoch,
        "head": meta.head,
        "pending": meta.pending,
        "notices": meta.notices(),
        "unanswered": is_unanswered(meta, &loaded.items),
        "parked": parked,
        "items": items,
    }))
}

/// The conversation, turn by turn.
pub fn readable(meta: &Meta, loaded: &Loaded, colours: Colours) -> String {
    let mut page = Page { text: String::new(), colours };
    let count = loaded.items.len();
    let closed = if meta.closed { " · closed" } else { "" };
    page.line(
        &format!(
            "thread {} · agent {} · {count} {} · since {}{closed}",
            meta.thread,
            meta.agent,
            if count == 1 { "item" } else { "items" },
            local_time(meta.created_at_ms),
        ),
        Tone::Bold,
    );
    let endings = endings(loaded);
    let mut turn = None;
    for item in &loaded.items {
        if turn != Some(item.facts.turn) {
            turn = Some(item.facts.turn);
            page.text.push('\n');
            let heading = format!("turn {} · {}", item.facts.turn + 1, local_time(item.facts.created_at_ms));
            page.line(&heading, Tone::Dim);
        }
        page.item(item, &endings, &meta.pending);
    }
    page.footer(meta, loaded);
    page.text
}

/// How each call ended, as far as it has: shown below the call rather than where it came in.
fn endings(loaded: &Loaded) -> BTreeMap<CallId, String> {
    let mut endings = BTreeMap::new();
    for item in &loaded.items {
        match &item.body {
            ItemBody::ToolResult(result) => {
                let text = parts(&result.parts);
                let shown = match &result.outcome {
                    Outcome::Ok => text,
                    other => format!("({}) {text}", outcome_name(other)),
                };
                endings.insert(result.call_id.clone(), shown);
            }
            ItemBody::Interrupt(interrupt) => {
                let text = "(interrupted by the user, may have taken effect)".to_owned();
                endings.entry(interrupt.call_id.clone()).or_insert(text);
            }
            ItemBody::System(_)
            | ItemBody::User(_)
            | ItemBody::Assistant(_)
            | ItemBody::ToolCall(_)
            | ItemBody::BackendToolCall(_)
            | ItemBody::Reasoning(_)
            | ItemBody::Event(_)
            | ItemBody::State(_)
            | ItemBody::Unknown { .. } => {}
        }
    }
    for parked in &loaded.parked {
        if let Ok(InputMessage { content: InputContent::ToolResult(result), .. }) =
            InputMessage::parse(parked.body.as_bytes())
        {
            let text = format!("{} (kept until the other results are in)", parts(&result.content));
            endings.entry(result.id).or_insert(text);
        }
    }
    endings
}

fn outcome_name(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Ok => "ok",
        Outcome::Error => "error",
        Outcome::Interrupted => "interrupted",
        Outcome::Halted => "stopped",
        Outcome::Lost => "lost",
        Outcome::Refused => "not permitted",
        Outcome::TimedOut => "timed out",
        Outcome::Truncated => "cut",
        Outcome::Unknown(other) => other,
    }
}

/// Whether the history ends in something that the model has not answered, and nothing is out.
fn is_unanswered(meta: &Meta, items: &[Item]) -> bool {
    let last = items.iter().rev().find(|item| !is_note(item));
    let open = last.is_some_and(|item| match &item.body {
        ItemBody::User(_) | ItemBody::ToolResult(_) | ItemBody::Interrupt(_) | ItemBody::Event(_) => true,
        ItemBody::System(_)
        | ItemBody::Assistant(_)
        | ItemBody::ToolCall(_)
        | ItemBody::BackendToolCall(_)
        | ItemBody::Reasoning(_)
        | ItemBody::State(_)
        | ItemBody::Unknown { .. } => false,
    });
    open && meta.pending.is_empty()
}

/// A late result: kept for the next turn, opens none.
fn is_note(item: &Item) -> bool {
    matches!(
        &item.body,
        ItemBody::User(UserItem { synthetic_reason: Some(reason), .. }) if !reason.starts_turn()
    )
}

/// Text of parts; what is not text is named.
fn parts(parts: &[ContentPart]) -> String {
    let shown = parts.iter().map(|part| match part {
        ContentPart::Text(text) => text.clone(),
        ContentPart::Image { media_type, .. } => {
            format!("[image {}]", media_type.as_deref().unwrap_or("of unknown type"))
        }
        ContentPart::Unknown(_) => "[content of an unknown kind]".to_owned(),
    });
    shortened(shown.collect::<Vec<_>>().join("\n"))
}

fn shortened(text: String) -> String {
    match text.char_indices().nth(MAX_RESULT_CHARS) {
        Some((cut, _)) => format!("{}… ({} bytes in all, see --json)", &text[..cut], text.len()),
        None => text,
    }
}

/// A page that grows downwards.
struct Page {
    text: String,
    colours: Colours,
}

impl Page {
    fn line(&mut self, text: &str, tone: Tone) {
        self.text.push_str(&toned(&harmless(text), tone, self.colours));
        self.text.push('\n');
    }

    /// A label and a text beside it, whose further lines stand below its first.
    fn said(&mut self, label: &str, text: &str) {
        let label = toned(&format!("{label:<LABEL$}"), Tone::Dim, self.colours);
        let text = harmless(text.trim_end()).replace('\n', &format!("\n  {:LABEL$}", ""));
        self.text.push_str(&format!("  {label}{text}\n"));
    }

    fn item(&mut self, item: &Item, endings: &BTreeMap<CallId, String>, pending: &[PendingCall]) {
        match &item.body {
            ItemBody::User(user) => self.user(item, user),
            ItemBody::Assistant(said) => self.said("agent", &said.text),
            ItemBody::ToolCall(call) => self.call(call, endings.get(&call.call_id), pending),
            // Shown below their call.
            ItemBody::ToolResult(_) | ItemBody::Interrupt(_) => {}
            ItemBody::Reasoning(reasoning) if reasoning.text.trim().is_empty() => {}
            ItemBody::Reasoning(reasoning) => self.said("thinks", &reasoning.text),
            ItemBody::BackendToolCall(call) => self.said("uses", &call.summary),
            ItemBody::Event(event) => {
                self.said("event", &format!("of {}: {}", event.original_tool_name, parts(&event.parts)));
            }
            ItemBody::System(system) => self.said("system", &system.text),
            ItemBody::State(shared) => self.said("state", &shortened(shared.state.get().to_owned())),
            ItemBody::Unknown { kind } => {
                self.said("?", &format!("an item this version cannot show: {kind}"))
            }
        }
    }

    fn user(&mut self, item: &Item, user: &UserItem) {
        let label = match &user.synthetic_reason {
            None => user.author.as_deref().or(item.facts.user.as_deref()).unwrap_or("you"),
            Some(SyntheticReason::LateResult) => "late",
            Some(
                SyntheticReason::AgentMessage
                | SyntheticReason::ParentMessage
                | SyntheticReason::ThreadReport,
            ) => "agents",
            Some(SyntheticReason::SubscriptionEvent | SyntheticReason::SchedulerFired) => "event",
            Some(
                SyntheticReason::CompactionMeta
                | SyntheticReason::SystemReminder
                | SyntheticReason::ProjectInstructions
                | SyntheticReason::Interjection
                | SyntheticReason::OmissionNote
                | SyntheticReason::EditedCall
                | SyntheticReason::Unknown(_),
            ) => "note",
        };
        // A name longer than the column keeps a space behind it.
        match label.chars().count() < LABEL {
            true => self.said(label, &parts(&user.parts)),
            false => self.said(&format!("{label} "), &parts(&user.parts)),
        }
    }

    fn call(&mut self, call: &ToolCallItem, ending: Option<&String>, pending: &[PendingCall]) {
        self.said("calls", &format!("{} {}", call.name, call.arguments));
        let waits = || match pending.iter().any(|pending| pending.call == call.call_id) {
            true => "… no result yet".to_owned(),
            false => "(no result)".to_owned(),
        };
        let ending = ending.cloned().unwrap_or_else(waits);
        let ending = if ending.trim().is_empty() { "(no output)" } else { &ending };
        self.said("", &format!("  {}", ending.replace('\n', "\n  ")));
    }

    fn footer(&mut self, meta: &Meta, loaded: &Loaded) {
        let waiting: Vec<&str> =
            meta.pending.iter().filter(|call| !call.parked).map(|call| call.name.as_str()).collect();
        let notices = meta.notices();
        let unanswered = is_unanswered(meta, &loaded.items);
        let results = meta.pending.iter().filter(|call| call.parked).count();
        let parked = loaded.parked.len().saturating_sub(results);
        if waiting.is_empty() && notices.is_empty() && !unanswered && parked == 0 {
            return;
        }
        self.text.push('\n');
        for notice in notices {
            self.line(&format!("Told to the user: {notice}"), Tone::Warning);
        }
        for url in consent_urls(meta) {
            self.line(&format!("Asks for consent at {url}"), Tone::Warning);
        }
        if !waiting.is_empty() {
            self.line(&format!("Waits for {}.", waiting.join(", ")), Tone::Warning);
        }
        if parked > 0 {
            self.line(&format!("{parked} more inputs wait for that."), Tone::Warning);
        }
        if unanswered {
            self.line("The last message is not answered.", Tone::Warning);
        }
    }
}
