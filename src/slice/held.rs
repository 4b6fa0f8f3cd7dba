//! Calls that do not go out with the commit that holds them: those of a `serial` tool server wait for their turn, and
//! destructive ones for the user's word, where the server's policy is to ask (RAP requirement 27).
//!
//! What a call waits for stands with it in META, so that any slice can let it go: the commit that settles what it waits
//! for promises it, and only then is it sent.

use crate::history::{Arrival, Layer, wording};
use crate::message::{ContentPart, Outcome, SettledBy, ToolCallItem, UserChoiceRequired};
use crate::store::{ChoiceRow, Hold, PendingCall, Promise};
use crate::thread::HistoryManager;

/// The user's answers to whether a call may run; what stands for no answer is the second.
const ANSWERS: [&str; 2] = ["Allow", "Refuse"];
const ALLOW: usize = 0;
const REFUSE: usize = 1;
/// Questions of this kind that are open at once: the next is asked when one is answered.
const MAX_QUESTIONS: usize = 4;
/// Characters of the arguments that a question shows.
const SHOWN_ARGUMENTS: usize = 1_000;

/// With the next commit, asks for the calls that need the user's word and promises those that wait for nothing any
/// more. A slice that has nothing else to commit does so for `arrival`.
pub(super) fn let_go(manager: &mut HistoryManager, arrival: Option<&Arrival>) {
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
    }
}

/// Takes the user's word on a call: it goes out, perhaps in its turn, or it has its result.
pub(super) fn decided(manager: &mut HistoryManager, call: &PendingCall, selected: usize, now_ms: i64) {
    if selected != ALLOW {
        let parts = vec![ContentPart::Text(wording::refused(&call.name))];
        let by = SettledBy::Runtime;
        manager.history_mut().settle(&call.call, Outcome::Refused, parts, by, Layer::Safe, now_ms);
        return;
    }
    let turn = (call.hold == Some(Hold::ConsentThenTurn)).then_some(Hold::Turn);
    manager.history_mut().describe_call(&call.call, |pending| pending.hold = turn);
    if turn.is_none() {
        manager.promise(Promise::Call { call: call.call.clone() });
    }
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
