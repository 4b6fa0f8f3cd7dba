//! A thread's logs, written as one would tell them.

use std::sync::Arc;

use dormouse::agui::branch::View;
use dormouse::agui::convert::{Placed, said};
use dormouse::message::{
    AssistantItem, CallId, ContentPart, Epoch, Item, ItemBody, ItemFacts, Outcome, ReasoningItem, RunRecord,
    RunRequest, Seq, SettledBy, ToolCallItem, ToolResultItem, UserItem,
};

pub enum Says<'a> {
    User(&'a str),
    Text(&'a str),
    Thought(&'a str),
    Call(&'a str),
    Result(&'a str, &'a str),
}

/// The items of one log.
pub fn log(epoch: u32, says: &[Says<'_>]) -> Vec<(Epoch, Item)> {
    let item = |(at, says): (u64, &Says<'_>)| {
        let mut facts = ItemFacts::default();
        let body = match says {
            Says::User(id) => {
                facts.dedup = Some(said(Epoch(epoch), id));
                facts.opens_turn = true;
                ItemBody::User(UserItem {
                    parts: vec![ContentPart::text(format!("says {id}"))],
                    ..UserItem::default()
                })
            }
            Says::Text(text) => ItemBody::Assistant(AssistantItem {
                text: (*text).to_owned(),
                model: "m".to_owned(),
                stop_reason: None,
            }),
            Says::Thought(text) => ItemBody::Reasoning(ReasoningItem {
                model: "m".to_owned(),
                text: (*text).to_owned(),
                signature: None,
                provider: None,
            }),
            Says::Call(call) => ItemBody::ToolCall(ToolCallItem {
                call_id: CallId::from(*call),
                provider_id: String::new(),
                name: "tool".to_owned(),
                arguments: "{}".to_owned(),
                signature: None,
                model: "m".to_owned(),
            }),
            Says::Result(call, text) => ItemBody::ToolResult(ToolResultItem {
                call_id: CallId::from(*call),
                outcome: Outcome::Ok,
                parts: vec![ContentPart::text(*text)],
                settled_by: SettledBy::Tool,
                display_as: None,
            }),
        };
        (Epoch(epoch), Item { seq: Seq(at), body, raw: Arc::from("{}"), facts })
    };
    (1..).zip(says).map(item).collect()
}

pub fn placed(items: &[(Epoch, Item)]) -> Vec<Placed<'_>> {
    items.iter().map(|(epoch, item)| Placed { epoch: *epoch, item, ancestor: 0 }).collect()
}

pub fn view(epoch: u32, items: &[(Epoch, Item)]) -> View<'_> {
    View { epoch: Epoch(epoch), items: placed(items) }
}

/// A request: `u1` is a user message, `=c1` a result, anything else an assistant message.
pub fn request(records: &[&str]) -> RunRequest {
    let record = |text: &&str| match text.strip_prefix('=') {
        Some(call) => RunRecord::Tool { call: call.to_owned(), text: "given".to_owned(), failed: false },
        None if text.starts_with('u') => {
            RunRecord::User { id: (*text).to_owned(), parts: vec![ContentPart::text(format!("new {text}"))] }
        }
        None => RunRecord::Assistant { id: (*text).to_owned(), calls: Vec::new() },
    };
    let records = records.iter().map(record).collect();
    RunRequest { run: "run".to_owned(), records, append: false, resume: None, state: None }
}
