//! `recall`: reading again what a thread's requests do not hold any more. The history itself is whole (I8).

use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::json;

use super::arguments;
use crate::message::{CallId, ContentPart, Item, ItemBody};
use crate::store::Store;
use crate::tools::{Execution, Invocation, Rerun, Tool, ToolDefinition, ToolError, ToolOutput};

/// Characters of one answer. More is read piece by piece, from a position.
const MAX_CHARS: usize = 12_000;
/// Turns of a list, and hits of a search.
const MAX_LINES: usize = 50;
/// Characters of a line of a list.
const LINE_CHARS: usize = 160;

/// Reads the calling thread's own view, whole.
pub(super) struct Recall {
    definition: ToolDefinition,
    store: Arc<dyn Store>,
}

#[derive(Deserialize)]
struct Arguments {
    call_id: Option<String>,
    turn: Option<u32>,
    search: Option<String>,
    #[serde(default)]
    from: usize,
}

impl Recall {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        let definition = ToolDefinition {
            name: "recall".to_owned(),
            description: "Reads this conversation again where parts of it were left out to save room. With call_id: the \
                          whole result of that call. With turn: everything of that turn. With search: the places where \
                          a text stands. With nothing: the list of turns. Long answers come in pieces: continue with \
                          from."
                .to_owned(),
            input_schema: json!({
                "type": "object",
                "properties": {
                    "call_id": {"type": "string", "description": "The call whose result to read"},
                    "turn": {"type": "integer", "minimum": 0, "description": "The turn to read"},
                    "search": {"type": "string", "description": "A text to look for, in any case"},
                    "from": {"type": "integer", "minimum": 0, "description": "The character, or the line, to begin with"},
                },
            }),
        };
        Self { definition, store }
    }
}

#[async_trait]
impl Tool for Recall {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn execution(&self) -> Execution {
        Execution::Synchronous(Rerun::Safe)
    }

    async fn execute_synchronous(&self, call: &Invocation) -> Result<ToolOutput, ToolError> {
        let asked: Arguments = arguments(&call.arguments)?;
        let loaded = self.store.load(&call.thread, &[]).await.map_err(|error| {
            tracing::warn!(thread = %call.thread, %error, "a history could not be recalled");
            ToolError::Unavailable("the conversation cannot be read now".to_owned())
        })?;
        let items = loaded.items;
        let text = match asked {
            Arguments { call_id: Some(id), from, .. } => piece(&result_of(&items, &CallId::new(id))?, from),
            Arguments { turn: Some(turn), from, .. } => piece(&whole_turn(&items, turn)?, from),
            Arguments { search: Some(text), from, .. } => search(&items, &text, from),
            Arguments { from, .. } => turns(&items, from),
        };
        Ok(ToolOutput::text(text))
    }
}

fn result_of(items: &[Item], id: &CallId) -> Result<String, ToolError> {
    let found = items.iter().rev().find_map(|item| match &item.body {
        ItemBody::ToolResult(result) if &result.call_id == id => Some(ContentPart::join_text(&result.parts)),
        _ => None,
    });
    found.ok_or_else(|| ToolError::Failed(format!("this conversation has no result of a call {id}")))
}

fn whole_turn(items: &[Item], turn: u32) -> Result<String, ToolError> {
    let lines: Vec<String> =
        items.iter().filter(|item| item.facts.turn == turn).filter_map(|item| said(&item.body)).collect();
    match lines.is_empty() {
        true => Err(ToolError::Failed(format!("this conversation has no turn {turn}"))),
        false => Ok(lines.join("\n")),
    }
}

/// A piece of `text` from the character `from` on, and where it goes on.
fn piece(text: &str, from: usize) -> String {
    let total = text.chars().count();
    let shown: String = text.chars().skip(from).take(MAX_CHARS).collect();
    let end = from.saturating_add(MAX_CHARS);
    match end < total {
        true => format!("{shown}\n[{total} characters in all; go on with \"from\": {end}]"),
        false => shown,
    }
}

fn turns(items: &[Item], from: usize) -> String {
    let openers = items.iter().filter(|item| item.facts.opens_turn);
    lines(openers.map(|item| line(item, said(&item.body).unwrap_or_default().as_str())), from)
}

fn search(items: &[Item], text: &str, from: usize) -> String {
    let wanted = text.to_lowercase();
    let hits = items.iter().filter_map(|item| {
        let said = said(&item.body)?;
        let lower = said.to_lowercase();
        let at = lower.find(&wanted)?;
        // Lower case may be longer: the place is only about where it stands.
        let before = lower[..at].chars().count().saturating_sub(LINE_CHARS / 4);
        Some(line(item, &said.chars().skip(before).collect::<String>()))
    });
    match lines(hits, from) {
        none if none.is_empty() => "That text stands nowhere in this conversation.".to_owned(),
        hits => hits,
    }
}

fn line(item: &Item, text: &str) -> String {
    let text: String =
        text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(LINE_CHARS).collect();
    format!("turn {}: {text}", item.facts.turn)
}

fn lines(lines: impl Iterator<Item = String>, from: usize) -> String {
    let mut rest = lines.skip(from);
    let mut shown: Vec<String> = rest.by_ref().take(MAX_LINES).collect();
    if rest.next().is_some() {
        shown.push(format!("[there is more; go on with \"from\": {}]", from.saturating_add(MAX_LINES)));
    }
    shown.join("\n")
}

fn said(body: &ItemBody) -> Option<String> {
    Some(match body {
        ItemBody::User(user) => format!("user: {}", ContentPart::join_text(&user.parts)),
        ItemBody::Assistant(assistant) => format!("assistant: {}", assistant.text),
        ItemBody::ToolCall(call) => format!("call {} of {}: {}", call.call_id, call.name, call.arguments),
        ItemBody::ToolResult(result) => {
            format!("result of {}: {}", result.call_id, ContentPart::join_text(&result.parts))
        }
        ItemBody::BackendToolCall(call) => format!("assistant: {}", call.summary),
        ItemBody::Event(event) => format!("event: {}", ContentPart::join_text(&event.parts)),
        ItemBody::System(_)
        | ItemBody::Reasoning(_)
        | ItemBody::Interrupt(_)
        | ItemBody::State(_)
        | ItemBody::Unknown { .. } => return None,
    })
}
