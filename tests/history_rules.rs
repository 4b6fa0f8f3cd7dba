//! The rules of a conversation, each as a short transcript: what arrives, what the model says, what is stored
//! and what the next request shows. Promises and field cases are named by their ids.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/history/mod.rs"]
mod support;

use dormouse::history::render::{RenderError, Rendered};
use dormouse::history::request::{RequestMessage, RequestResult};
use dormouse::history::{Accepted, History, Layer, MAX_CALLS, MAX_WAITING, wording};
use dormouse::message::{
    AssistantItem, CallId, ContentPart, DedupId, Item, ItemBody, ItemFacts, MessageId, Outcome,
    ReasoningItem, Seq, SettledBy, SyntheticReason, ToolCallItem, ToolResultItem, UserItem,
};
use dormouse::store::ParkedInput;
use support::provider_rules;
use support::say::{answer, arrival, calls, event, report, result, says, signs, thinks, user};
use support::slice::options;
use support::store::{Rows, settlements};

/// A thread in the middle of its life: rows, the history of the running slice, and the queue's next number.
struct Thread {
    rows: Rows,
    history: History,
    sent: usize,
}

impl Thread {
    fn new() -> Self {
        let rows = Rows::default();
        Self { history: rows.load(), rows, sent: 0 }
    }

    /// Stored rows of an older time.
    fn with_rows(bodies: Vec<ItemBody>) -> Self {
        let items = bodies
            .into_iter()
            .enumerate()
            .map(|(n, body)| Item::fresh(Seq::FIRST.plus(n), body, ItemFacts::default()))
            .collect();
        let mut rows = Rows { items, ..Rows::default() };
        rows.meta.head = Seq::FIRST.plus(rows.items.len());
        Self { history: rows.load(), rows, sent: 0 }
    }

    fn arrives(&mut self, message: &dormouse::message::InputMessage) -> Accepted {
        self.sent += 1;
        self.history.accept(message, &arrival(self.sent, &format!("d{}", self.sent)))
    }

    /// The model is asked and answers; everything is committed and the slice ends.
    fn model(&mut self, events: &[dormouse::model::ModelEvent]) -> Vec<CallId> {
        self.rendered();
        let made = answer(&mut self.history, events);
        let made: Vec<CallId> = made.into_iter().map(|call| call.call_id).collect();
        self.rows.responses.push(made.clone());
        self.ends();
        made
    }

    /// The slice ends; the next one loads.
    fn ends(&mut self) {
        self.rows.meta.images_out.clone_from(self.history.images_out());
        self.rows.sync(&mut self.history);
        self.history = self.rows.load();
    }

    fn sync(&mut self) {
        self.rows.sync(&mut self.history);
    }

    fn crashes(&mut self) {
        self.history = self.rows.load();
    }

    /// The next request, which every provider accepts.
    fn rendered(&self) -> Rendered {
        let rendered = self.history.render_history(&options()).expect("a request");
        provider_rules::judge(&rendered.request).expect("a valid request");
        rendered
    }

    /// The next request, one line a message.
    fn request(&self) -> Vec<String> {
        self.rendered().request.messages.iter().map(line).collect()
    }

    fn kinds(&self) -> Vec<String> {
        self.rows.items.iter().map(|item| item.body.kind().to_owned()).collect()
    }

    /// `n` asynchronous calls, committed and dispatched.
    fn calling(n: usize) -> (Self, Vec<CallId>) {
        let mut thread = Self::new();
        thread.arrives(&user("go"));
        let events: Vec<_> = (0..n).map(|i| calls(&format!("p{i}"), &format!("f{i}"), "{}")).collect();
        let made = thread.model(&events);
        (thread, made)
    }

    fn passive(&mut self, call: &CallId) {
        let pending = self.rows.meta.pending.iter_mut().find(|pending| &pending.call == call);
        pending.expect("a pending call").passive = true;
        self.history = self.rows.load();
    }
}

fn text(parts: &[ContentPart]) -> String {
    ContentPart::join_text(parts)
}

fn line(message: &RequestMessage) -> String {
    match message {
        RequestMessage::User(parts) => format!("U {}", text(parts).replace('\n', " | ")),
        RequestMessage::Assistant(said) => {
            let thought = if said.reasoning.is_empty() { "" } else { "(thinks) " };
            let names: Vec<&str> = said.calls.iter().map(|call| call.name.as_str()).collect();
            let said = said.text.as_deref().unwrap_or_default().replace('\n', " | ");
            format!("A {thought}{said}{}", names.iter().map(|name| format!("[{name}]")).collect::<String>())
        }
        RequestMessage::ToolResults(results) => {
            let each = |result: &RequestResult| format!("{}={}", result.name, text(&result.parts));
            format!("R {}", results.iter().map(each).collect::<Vec<_>>().join(", "))
        }
    }
}

fn by_user(tool: &str) -> String {
    wording::interrupted_by_user(tool)
}

fn by_event(tool: &str) -> String {
    wording::interrupted_by_event(tool)
}

fn stored_user(text: &str) -> ItemBody {
    ItemBody::User(UserItem { parts: vec![ContentPart::text(text)], ..UserItem::default() })
}

fn stored_call(id: &str, arguments: &str) -> ItemBody {
    ItemBody::ToolCall(ToolCallItem {
        call_id: CallId::new(id),
        provider_id: "call_0".into(),
        name: "f".into(),
        arguments: arguments.into(),
        signature: None,
        model: "m".into(),
    })
}

fn stored_result(id: &str, text: &str) -> ItemBody {
    ItemBody::ToolResult(ToolResultItem {
        call_id: CallId::new(id),
        outcome: Outcome::Ok,
        parts: vec![ContentPart::text(text)],
        settled_by: SettledBy::Tool,
        display_as: None,
    })
}

fn stored_answer(text: &str) -> ItemBody {
    ItemBody::Assistant(AssistantItem { text: text.into(), model: "m".into(), stop_reason: None })
}

fn stored_reasoning(model: &str, signature: Option<&str>) -> ItemBody {
    ItemBody::Reasoning(ReasoningItem {
        model: model.into(),
        text: "hm".into(),
        signature: signature.map(str::to_owned),
        provider: None,
    })
}

#[path = "history_rules/content.rs"]
mod content;
#[path = "history_rules/events.rs"]
mod events;
#[path = "history_rules/images.rs"]
mod images;
#[path = "history_rules/limits.rs"]
mod limits;
#[path = "history_rules/pairing.rs"]
mod pairing;
#[path = "history_rules/settling.rs"]
mod settling;
#[path = "history_rules/tokens.rs"]
mod tokens;
