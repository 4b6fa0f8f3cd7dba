//! Where a history can be cut: between two items where no call is open, outside every group (a response with its calls
//! and their results), and where the speaker changes, so that what is left renders as it did (C18).

use std::collections::{BTreeMap, BTreeSet};

use crate::message::{CallId, ItemBody};

/// Who speaks, as a request has it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    User,
    Assistant,
}

/// The role in which an item begins, and the one in which it ends; none for what is never sent by itself.
fn roles(body: &ItemBody) -> Option<(Role, Role)> {
    match body {
        ItemBody::User(_) | ItemBody::ToolResult(_) | ItemBody::Interrupt(_) => {
            Some((Role::User, Role::User))
        }
        // An injected call with its result.
        ItemBody::Event(_) => Some((Role::Assistant, Role::User)),
        ItemBody::Assistant(_)
        | ItemBody::ToolCall(_)
        | ItemBody::BackendToolCall(_)
        | ItemBody::Reasoning(_) => Some((Role::Assistant, Role::Assistant)),
        ItemBody::System(_) | ItemBody::State(_) | ItemBody::Unknown { .. } => None,
    }
}

/// The indexes at which `items` can be cut, ascending: what stands before one can go without what follows. `pending` are
/// calls that somebody works on; one that has no result and is not pending is lost, and holds nothing up.
pub fn cuts(items: &[&ItemBody], pending: &BTreeSet<&CallId>) -> Vec<usize> {
    let mut settled: BTreeMap<&CallId, usize> = BTreeMap::new();
    for (at, body) in items.iter().enumerate() {
        match body {
            ItemBody::ToolResult(result) => drop(settled.entry(&result.call_id).or_insert(at)),
            ItemBody::Interrupt(marker) => drop(settled.entry(&marker.call_id).or_insert(at)),
            _ => {}
        }
    }
    let mut cuts = Vec::new();
    let mut open_until = 0;
    let mut before: Option<Role> = None;
    for (at, body) in items.iter().enumerate() {
        let Some((first, last)) = roles(body) else { continue };
        if before.is_some_and(|before| before != first) && at >= open_until {
            cuts.push(at);
        }
        before = Some(last);
        if let ItemBody::ToolCall(call) = body {
            let until = match settled.get(&call.call_id) {
                Some(result) => result.saturating_add(1),
                None if pending.contains(&call.call_id) => usize::MAX,
                None => 0,
            };
            open_until = open_until.max(until);
        }
    }
    cuts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{
        AssistantItem, InterruptItem, Outcome, SettledBy, ToolCallItem, ToolResultItem, UserItem,
    };

    fn history(story: &str) -> Vec<ItemBody> {
        let id = |name: &str| CallId::from(name);
        let item = |word: &str| match word.split_at(1) {
            ("U", _) => ItemBody::User(UserItem::default()),
            ("A", _) => {
                ItemBody::Assistant(AssistantItem { text: "a".into(), model: "m".into(), stop_reason: None })
            }
            ("C", call) => ItemBody::ToolCall(ToolCallItem {
                call_id: id(call),
                provider_id: String::new(),
                name: "f".into(),
                arguments: "{}".into(),
                signature: None,
                model: "m".into(),
            }),
            ("R", call) => ItemBody::ToolResult(ToolResultItem {
                call_id: id(call),
                outcome: Outcome::Ok,
                parts: Vec::new(),
                settled_by: SettledBy::Tool,
                display_as: None,
            }),
            ("I", call) => ItemBody::Interrupt(InterruptItem { call_id: id(call) }),
            (other, _) => panic!("{other}"),
        };
        story.split_whitespace().map(item).collect()
    }

    fn cut(story: &str, pending: &[&str]) -> Vec<usize> {
        let items = history(story);
        let pending: Vec<CallId> = pending.iter().map(|id| CallId::from(*id)).collect();
        cuts(&items.iter().collect::<Vec<_>>(), &pending.iter().collect())
    }

    #[test]
    fn c18_f16_f19_f25_a_cut_lies_only_where_no_call_is_open_and_the_speaker_changes() {
        assert_eq!(cut("U A U A", &[]), [1, 2, 3]);
        assert_eq!(cut("U A Ca Cb Ra Rb A U", &[]), [1, 6, 7], "F16: a group is whole");
        assert_eq!(cut("A Ca Ra A U", &[]), [3, 4], "F25: never inside a pair");
        assert_eq!(cut("U U A", &[]), [2], "what one message holds stays together");
        assert_eq!(cut("U Ca A U", &["a"]), [1], "an open call holds everything behind it");
        assert_eq!(cut("U Ca U A", &[]), [1, 2, 3], "a lost one nothing");
        assert_eq!(cut("U Ca Ia U A", &[]), [1, 4]);
        assert_eq!(cut("U Ca A U Ra A", &[]), [1, 5], "F19: a result far from its call, on the final list");
        assert_eq!(cut("", &[]), [0; 0]);
    }
}
