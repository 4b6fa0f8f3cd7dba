//! What all dialects agree on: the spelling of call ids and arguments, and the check of the finished list.

use std::collections::{BTreeMap, BTreeSet};

use super::request::{ModelRequest, RequestMessage};
use super::wording;
use crate::message::{CallId, ContentPart, DedupId};

/// The longest id of a call that every dialect takes: OpenAI's Chat Completions allow 40, others 64.
const MAX_ID: usize = 40;

/// The ids of one request's calls: each once, in every dialect's alphabet, the same for the same history.
#[derive(Default)]
pub(super) struct WireIds {
    used: BTreeSet<CallId>,
    repeats: BTreeMap<CallId, usize>,
}

impl WireIds {
    /// The id for the next call that is stored as `id`. dormouse's own ids come back unchanged; damaged rows
    /// may repeat one, or hold one that no provider takes.
    pub(super) fn take(&mut self, id: &CallId) -> CallId {
        let base = shape(id.as_str());
        if self.used.insert(base.clone()) {
            return base;
        }
        let repeats = self.repeats.entry(base.clone()).or_insert(1);
        loop {
            *repeats += 1;
            // A stored id may look like one of ours with a suffix, so that it is taken already.
            let id = shape(&format!("{base}_{repeats}"));
            if self.used.insert(id.clone()) {
                return id;
            }
        }
    }
}

fn shape(id: &str) -> CallId {
    let fits = (1..=MAX_ID).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
    if fits { CallId::new(id) } else { CallId::new(DedupId::derive("call", &[id]).as_str()) }
}

/// The arguments as every provider takes them: a JSON object's text. Malformed ones become `{}`, and the
/// problem says so.
pub(super) fn wire_arguments(arguments: &str) -> (String, Option<String>) {
    if arguments.trim().is_empty() {
        return ("{}".to_owned(), None);
    }
    match serde_json::from_str::<serde_json::Value>(arguments) {
        Ok(value) if value.is_object() => (arguments.to_owned(), None),
        Ok(_) => ("{}".to_owned(), Some(wording::bad_arguments("the arguments were no JSON object"))),
        Err(_) => ("{}".to_owned(), Some(wording::bad_arguments("the arguments were no valid JSON"))),
    }
}

/// The pairing check on the final list (P8). Independent of how the list was made.
pub(super) fn check(request: &ModelRequest) -> Result<(), String> {
    let mut ids = BTreeSet::new();
    let mut owed: Vec<&CallId> = Vec::new();
    if !matches!(request.messages.first(), Some(RequestMessage::User(_))) {
        return Err("the request does not begin with a user-role message".to_owned());
    }
    let said = |message: &RequestMessage| matches!(message, RequestMessage::Assistant(_));
    if request.messages.windows(2).any(|pair| pair.iter().all(said)) {
        return Err("two assistant messages in a row".to_owned());
    }
    for (at, message) in request.messages.iter().enumerate() {
        let results: Vec<&CallId> = match message {
            RequestMessage::ToolResults(results) => results.iter().map(|result| &result.id).collect(),
            RequestMessage::User(_) | RequestMessage::Assistant(_) => Vec::new(),
        };
        if results != owed {
            return Err(format!("message {at}: the results do not answer the calls before them"));
        }
        owed.clear();
        match message {
            RequestMessage::User(parts) if parts.is_empty() || parts.iter().any(ContentPart::is_blank) => {
                return Err(format!("message {at}: blank user content"));
            }
            RequestMessage::Assistant(message) => {
                if message.text.is_none() && message.calls.is_empty() {
                    return Err(format!("message {at}: an empty assistant message"));
                }
                owed = message.calls.iter().map(|call| &call.id).collect();
                if !owed.iter().all(|id| ids.insert(*id)) {
                    return Err(format!("message {at}: a call id repeats"));
                }
            }
            RequestMessage::ToolResults(results)
                if results
                    .iter()
                    .any(|r| r.parts.is_empty() || r.parts.iter().any(ContentPart::is_blank)) =>
            {
                return Err(format!("message {at}: a blank result"));
            }
            RequestMessage::User(_) | RequestMessage::ToolResults(_) => {}
        }
    }
    if !owed.is_empty() || matches!(request.messages.last(), Some(RequestMessage::Assistant(_)) | None) {
        return Err("the request does not end on a user-role message".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::request::{AssistantMessage, RequestCall, RequestResult};
    use super::*;

    #[test]
    fn ids_of_ours_stay_and_repeated_or_foreign_ones_get_one_deterministic_spelling() {
        let take = || {
            let mut ids = WireIds::default();
            let stored = [
                "c0-2-abc",
                "x_2",
                "x",
                "x",
                "x",
                "",
                "a b",
                &"y".repeat(41),
                &"z".repeat(40),
                &"z".repeat(40),
            ];
            stored.map(|id| ids.take(&CallId::new(id)).as_str().to_owned())
        };
        let ids = take();
        assert_eq!(ids[..5], ["c0-2-abc", "x_2", "x", "x_3", "x_4"]);
        assert!(ids.iter().all(|id| (1..=MAX_ID).contains(&id.len())), "{ids:?}");
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
        assert_eq!(ids, take());
    }

    #[test]
    fn the_pairing_check_fails_closed_on_a_list_made_by_hand() {
        let user = || RequestMessage::User(vec![ContentPart::text("hi")]);
        let said = |call: &str| {
            RequestMessage::Assistant(AssistantMessage {
                calls: vec![RequestCall {
                    id: CallId::new(call),
                    name: "f".into(),
                    arguments: "{}".into(),
                    signature: None,
                }],
                ..Default::default()
            })
        };
        let result = |call: &str| {
            RequestMessage::ToolResults(vec![RequestResult {
                id: CallId::new(call),
                name: "f".into(),
                parts: vec![ContentPart::text("1")],
                is_error: false,
            }])
        };
        let judge = |messages| check(&ModelRequest { messages, ..ModelRequest::default() });
        assert!(judge(vec![user(), said("a"), result("a")]).is_ok());
        for bad in [
            vec![],
            vec![user(), said("a")],
            vec![user(), said("a"), user()],
            vec![user(), said("a"), result("b")],
            vec![user(), result("a")],
            vec![said("a"), result("a")],
            vec![user(), said("a"), result("a"), said("a"), result("a")],
            vec![user(), said("a"), result("a"), result("a")],
            vec![user(), RequestMessage::Assistant(Default::default()), user()],
            vec![RequestMessage::User(vec![])],
            vec![RequestMessage::User(vec![ContentPart::text(" ")])],
        ] {
            assert!(judge(bad.clone()).is_err(), "{bad:?}");
        }
    }
}
