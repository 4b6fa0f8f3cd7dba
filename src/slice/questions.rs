//! What a thread waits for its user to say, as attached clients see it: the interrupts of AG-UI, and what an answer to one
//! must be. The end of a run, a page load and an answer all go by this.
//!
//! A question is open as long as its row is there and its call waits: whether a call may run, what a tool asks, and consent
//! that a tool waits for at an address.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::agui::convert::{approval, selection};
use crate::agui::wire::Interrupt;
use crate::message::{CallId, OAuthRequired, UserChoiceRequired};
use crate::store::{ChoiceRow, Due, Loaded, PendingCall};
use crate::thread::HistoryManager;

/// Reasons of the protocol, and our own.
const TOOL_CALL: &str = "tool_call";
const INPUT_REQUIRED: &str = "input_required";
/// A tool waits for consent at an address.
const OAUTH: &str = "dormouse:oauth";

/// The member of an interrupt's metadata that says where to consent.
const AUTH_URL: &str = "authUrl";

/// Bytes of interrupts that are written down with the end of a run, which META holds until it is sent: what a tool asks may
/// be as large as a callback.
const MAX_TOLD_BYTES: usize = 16 * 1024;

/// Questions that are shown, and answered, at once: a commit has room to end so many. Others follow them.
pub(crate) const MAX_ASKED: usize = 10;

/// An open question.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Question {
    /// The call that waits.
    pub call: PendingCall,
    /// What is asked.
    pub asks: Asks,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Asks {
    /// Whether the call may run.
    Permission(UserChoiceRequired),
    /// Something that its tool wants to know.
    Choice(UserChoiceRequired),
    /// Consent at an address, after which its tool goes on by itself.
    Authorization(OAuthRequired),
}

/// Open questions of a thread, in call order.
pub(crate) fn of(manager: &HistoryManager) -> Vec<Question> {
    let history = manager.history();
    let waiting = history.open_calls().filter(|call| !history.has_arrived(&call.call));
    waiting.flat_map(|call| asked_of(call, |id| manager.open_choice(id))).collect()
}

/// As interrupts, for the end of a run: of those for which there is no room no more than their names. Whoever shows it looks
/// the rest up.
pub(crate) fn told(asked: &[Question]) -> Vec<Interrupt> {
    let mut room = MAX_TOLD_BYTES;
    let mut fits = |interrupt: &Interrupt| {
        let bytes = serde_json::to_string(interrupt).map_or(usize::MAX, |text| text.len());
        let left = room.checked_sub(bytes);
        room = left.unwrap_or(room);
        left.is_some()
    };
    let told = asked.iter().take(MAX_ASKED).map(Question::interrupt);
    told.map(|interrupt| match fits(&interrupt) {
        true => interrupt,
        false => Interrupt { message: None, response_schema: None, ..interrupt },
    })
    .collect()
}

/// Open questions as interrupts, of a thread as it is stored.
pub(crate) fn interrupts(loaded: &Loaded) -> Vec<Interrupt> {
    let row = |id: &CallId| loaded.choices.iter().find(|row| &row.id == id);
    let pending = loaded.meta.iter().flat_map(|meta| &meta.pending).filter(|call| !call.parked);
    let questions = pending.flat_map(|call| asked_of(call, row));
    questions
        .take(MAX_ASKED)
        .map(|question| Interrupt { metadata: question.address(), ..question.interrupt() })
        .collect()
}

fn asked_of<'a>(call: &PendingCall, row: impl Fn(&CallId) -> Option<&'a ChoiceRow>) -> Vec<Question> {
    // One that cannot be read any more cannot be answered either.
    let choice = |id: &CallId| row(id).and_then(|row| serde_json::from_str(&row.body).ok());
    let asks = match call.needs_consent() {
        true => [choice(&call.call.permission()).map(Asks::Permission), None],
        false => [
            choice(&call.call).map(Asks::Choice),
            row(&call.call.authorization())
                .and_then(|row| serde_json::from_str(&row.body).ok())
                .map(Asks::Authorization),
        ],
    };
    asks.into_iter().flatten().map(|asks| Question { call: call.clone(), asks }).collect()
}

impl Question {
    /// Its name.
    pub(crate) fn id(&self) -> CallId {
        match &self.asks {
            Asks::Permission(choice) | Asks::Choice(choice) => choice.id.clone(),
            Asks::Authorization(_) => self.call.call.authorization(),
        }
    }

    /// It as a client is told, but for an address that is not to be kept.
    pub(crate) fn interrupt(&self) -> Interrupt {
        let (reason, message, response_schema) = match &self.asks {
            Asks::Permission(choice) => {
                (TOOL_CALL, choice.prompt.clone(), Some(approval(self.call.terms.editable)))
            }
            Asks::Choice(choice) => {
                let labels = labels(&choice.choices);
                let default = labels.get(choice.default).cloned();
                (INPUT_REQUIRED, choice.prompt.clone(), Some(selection(&labels, default.as_deref())))
            }
            Asks::Authorization(_) => {
                let text = "waits for your consent; give it there, then go on here";
                (OAUTH, format!("{} {text}", self.call.name), None)
            }
        };
        let expires_at = match self.call.terms.due {
            Some(Due::At(ms)) => jiff::Timestamp::from_millisecond(ms).ok().map(|at| at.to_string()),
            Some(Due::Unreadable(_)) | None => None,
        };
        Interrupt {
            id: self.id().as_str().to_owned(),
            reason: reason.to_owned(),
            message: Some(message),
            tool_call_id: Some(self.call.call.as_str().to_owned()),
            response_schema,
            expires_at,
            metadata: None,
        }
    }

    /// Where its user is to go, for a client that looks now: an address is kept nowhere but in the open question.
    fn address(&self) -> Option<Value> {
        match &self.asks {
            Asks::Authorization(oauth) => Some(json!({ AUTH_URL: oauth.auth_url })),
            Asks::Permission(_) | Asks::Choice(_) => None,
        }
    }

    /// Why it cannot be answered at this time, if it cannot.
    pub(crate) fn expired(&self, now_ms: i64) -> Option<&'static str> {
        match &self.call.terms.due {
            None => None,
            Some(Due::At(due_ms)) => (now_ms >= *due_ms).then_some("has expired"),
            Some(Due::Unreadable(_)) => Some("has an expiry that cannot be read"),
        }
    }

    /// What is wrong with an answer, if something is. Whether edited arguments fit their tool, only the tool can say.
    pub(crate) fn problem(&self, payload: Option<&Value>) -> Option<&'static str> {
        let member = |name| payload.and_then(|payload| payload.get(name));
        match &self.asks {
            Asks::Permission(_) => match (member("approved"), member("reason"), member("editedArgs")) {
                // To run the call as it stands would be what nobody has approved.
                (_, _, Some(_)) if !self.call.terms.editable => Some(
                    "has `editedArgs`, but arguments cannot be edited here; deny it, and say what to call",
                ),
                (Some(Value::Bool(_)), None | Some(Value::String(_)), None | Some(Value::Object(_))) => None,
                (Some(Value::Bool(_)), None | Some(Value::String(_)), Some(_)) => {
                    Some("has `editedArgs` that are no object")
                }
                (Some(Value::Bool(_)), Some(_), _) => Some("has a `reason` that is no text"),
                (_, _, _) => Some("needs `approved`, true or false"),
            },
            Asks::Choice(choice) => match selected(choice, payload) {
                Some(_) => None,
                None => Some("needs `selected`, one of the answers"),
            },
            Asks::Authorization(_) => None,
        }
    }
}

impl Question {
    /// The arguments that an approval gives the call in place of the model's own.
    pub(crate) fn edited(&self, payload: Option<&Value>) -> Option<String> {
        let payload = payload.filter(|_| self.call.terms.editable)?;
        let approved = payload.get("approved") == Some(&Value::Bool(true));
        let edited = payload.get("editedArgs").filter(|_| approved)?;
        Some(edited.to_string())
    }
}

/// Which answer a payload names.
pub(crate) fn selected(choice: &UserChoiceRequired, payload: Option<&Value>) -> Option<usize> {
    let given = payload?.get("selected")?.as_str()?;
    labels(&choice.choices).iter().position(|label| label == given)
}

/// Names of the answers, no two of them equal: a text that stands there again is numbered.
fn labels(choices: &[String]) -> Vec<String> {
    let mut taken: BTreeSet<String> = choices.iter().cloned().collect();
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    let mut label = |choice: &'_ str, times: &mut usize| {
        *times += 1;
        if *times == 1 {
            return choice.to_owned();
        }
        // Of as many numbers as there are texts, and one more, one is free.
        loop {
            let numbered = format!("{choice} ({times})");
            if taken.insert(numbered.clone()) {
                return numbered;
            }
            *times += 1;
        }
    };
    choices.iter().map(|choice| label(choice, times.entry(choice).or_default())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_has_a_name_of_its_own() {
        let named = |choices: &[&str]| labels(&choices.iter().map(|c| (*c).to_owned()).collect::<Vec<_>>());
        assert_eq!(named(&["a", "b", "a", "a", "a (2)"]), ["a", "b", "a (3)", "a (4)", "a (2)"]);
        assert_eq!(named(&["", ""]), ["", " (2)"]);
    }
}
