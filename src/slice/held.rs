//! Calls that do not go out with the commit that holds them: those of a `serial` tool server wait for their turn, and
//! destructive ones for the user's word, where the server's policy is to ask (RAP requirement 27).
//!
//! What a call waits for stands with it in META, so that any slice can let it go: the commit that settles what it waits
//! for promises it, and only then is it sent.

use super::{Runtime, SliceError};
use crate::history::{Arrival, Layer, TIMED_OUT, wording};
use crate::message::{
    CallId, ContentPart, DedupId, InputContent, InputMessage, Outcome, SettledBy, ThreadId, ToolCallItem,
    UserChoiceAnswer, UserChoiceRequired,
};
use crate::queue::QueueError;
use crate::store::{ChoiceRow, Due, Hold, OutboxEntry, PendingCall, Promise};
use crate::thread::HistoryManager;
use crate::tools::Registry;

/// The user's answers to whether a call may run; what stands for no answer is the second.
const ANSWERS: [&str; 2] = ["Allow", "Refuse"];
pub(super) const ALLOW: usize = 0;
const REFUSE: usize = 1;
/// Characters of a person's reason that a model reads.
const MAX_REASON: usize = 1_000;
/// Questions of this kind that are open at once: the next is asked when one is answered.
const MAX_QUESTIONS: usize = 4;
/// Characters of the arguments that a question shows.
const SHOWN_ARGUMENTS: usize = 1_000;

/// With the next commit, asks for the calls that need the user's word and promises those that wait for nothing any
/// more. A slice that has nothing else to commit does so for `arrival`.
pub(super) fn let_go(manager: &mut HistoryManager, arrival: Option<&Arrival>, now_ms: i64) {
    let due = manager.history_mut().take_turns();
    let (open, unasked): (Vec<PendingCall>, Vec<PendingCall>) = manager
        .history()
        .calls_to_permit()
        .cloned()
        .partition(|call| manager.open_choice(&call.call.permission()).is_some());
    let room = MAX_QUESTIONS.saturating_sub(open.len());
    if due.is_empty() && (unasked.is_empty() || room == 0) {
        return;
    }
    if manager.causes().is_empty()
        && let Some(arrival) = arrival
    {
        manager.work_for(arrival);
    }
    for call in due {
        manager.history_mut().describe_call(&call, |pending| pending.terms.begin_result(now_ms));
        manager.promise(Promise::Call { call });
    }
    for call in unasked.iter().take(room) {
        // A call that is not in the history cannot be asked about; user text settles it.
        let Some(question) = question(manager, call) else { continue };
        if !manager.ask(question) {
            // This commit has no room: a message of the thread's own asks.
            manager.promise(Promise::Release);
            break;
        }
        manager.history_mut().describe_call(&call.call, |pending| pending.terms.begin_consent(now_ms));
    }
}

/// The user's word on a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// It may run; with other arguments than the model's, if they are given.
    Allowed {
        /// Text of a JSON object, which fits the tool.
        arguments: Option<String>,
    },
    /// It may not.
    Refused {
        /// Why.
        reason: Option<String>,
    },
    /// There was none in time.
    Missing,
}

/// Takes the user's word on a call: it goes out, perhaps in its turn, or it has its result. What it goes out with is in the
/// same commit.
pub(super) fn decided(manager: &mut HistoryManager, call: &PendingCall, word: Word, now_ms: i64) {
    let text = match word {
        Word::Allowed { arguments } => {
            if let Some(arguments) = arguments {
                manager.history_mut().edit_call(&call.call, &call.name, arguments, now_ms);
            }
            return allow(manager, call, now_ms);
        }
        Word::Refused { reason } => {
            let reason: Option<String> = reason.map(|reason| reason.chars().take(MAX_REASON).collect());
            wording::refused(&call.name, reason.as_deref())
        }
        Word::Missing => wording::not_permitted_in_time(&call.name),
    };
    let (parts, by) = (vec![ContentPart::Text(text)], SettledBy::Runtime);
    manager.history_mut().settle(&call.call, Outcome::Refused, parts, by, Layer::Safe, now_ms);
}

fn allow(manager: &mut HistoryManager, call: &PendingCall, now_ms: i64) {
    let turn = (call.hold == Some(Hold::ConsentThenTurn)).then_some(Hold::Turn);
    manager.history_mut().describe_call(&call.call, |pending| {
        pending.hold = turn;
        match turn {
            Some(_) => pending.terms.due = None,
            None => pending.terms.begin_result(now_ms),
        }
    });
    if turn.is_none() {
        manager.promise(Promise::Call { call: call.call.clone() });
    }
}

/// The dedup id under which a question is dismissed when its time is up.
pub(super) fn expiry_id(thread: &ThreadId, question: &CallId) -> DedupId {
    DedupId::derive(TIMED_OUT, &[thread.as_str(), question.as_str()])
}

/// Has questions that were asked dismissed when their time is up.
///
/// # Errors
/// A queue that does not answer. Where one refuses, the question is dismissed at once: nobody is told a time that nothing
/// keeps.
pub(super) async fn set_expiries(
    runtime: &Runtime,
    registry: &Registry,
    manager: &HistoryManager,
    owed: &[OutboxEntry],
) -> Result<(), SliceError> {
    let thread = manager.history().thread();
    for entry in owed {
        let Promise::Choice { call: question } = &entry.promise else { continue };
        let asked = manager.history().calls_to_permit().find(|call| call.is_asked_by(question));
        let Some((call, due_ms)) = asked.and_then(|call| match call.terms.due {
            Some(Due::At(due_ms)) => Some((call, due_ms)),
            Some(Due::Unreadable(_)) | None => None,
        }) else {
            continue;
        };
        let none = UserChoiceAnswer { id: question.clone(), selected: None };
        let dismissal = InputMessage::plain(thread.clone(), InputContent::UserChoiceAnswer(none));
        let dedup = expiry_id(thread, question);
        let set = match registry.get(&call.name) {
            Some(tool) => tool.set_expiry(due_ms, &dismissal, &dedup).await,
            None => Err(QueueError::Refused(format!("{} is not available any more", call.name))),
        };
        match set {
            Ok(()) => {}
            Err(e @ QueueError::Unavailable(_)) => return Err(e.into()),
            Err(error @ QueueError::Refused(_)) => {
                tracing::error!(%thread, %question, %error, "the time of a question cannot be kept, so it ends");
                runtime.input.send(&dismissal, &dedup).await?;
            }
        }
    }
    Ok(())
}

/// Whether a call may run, as the user is asked. It is dormouse's own question: its answer goes to nobody else.
fn question(manager: &HistoryManager, call: &PendingCall) -> Option<ChoiceRow> {
    let choice = UserChoiceRequired {
        id: call.call.permission(),
        call_id: None,
        prompt: prompt(call, manager.history().call(&call.call)?),
        choices: ANSWERS.map(str::to_owned).to_vec(),
        default: REFUSE,
        response_url: String::new(),
    };
    let body = serde_json::to_string(&choice).ok()?;
    Some(ChoiceRow { id: choice.id, body })
}

fn prompt(call: &PendingCall, item: &ToolCallItem) -> String {
    // On one line, so that no argument looks like a part of the question.
    let arguments = super::synchronous::arguments(item);
    let mut shown: String =
        arguments.chars().take(SHOWN_ARGUMENTS).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if arguments.chars().nth(SHOWN_ARGUMENTS).is_some() {
        shown.push('…');
    }
    let server = call.server.as_deref().unwrap_or_default();
    format!(
        "May {} of the tool server {server} run? It is marked as destructive. Arguments: {shown}",
        call.name
    )
}
