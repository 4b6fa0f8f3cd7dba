//! A user's answers to the questions of tools (RAP requirement 44).
//!
//! A question is open as long as its row is there. The answer, or what stands for one, closes it and promises the POST
//! to the tool in the same commit: whatever comes later finds nothing to answer.

use futures::future::join_all;

use super::held::Word;
use super::prepare::PrepareResult;
use super::{Runtime, SliceError, dispatch_failed_id, held};
use crate::history::{Arrival, Layer, TIMED_OUT, wording};
use crate::message::{
    CallId, ContentPart, InputMessage, Outcome, OutputKind, SettledBy, TypedOutput, UserChoiceAnswer,
    UserChoiceRequired,
};
use crate::store::{DedupLife, OutboxEntry, PendingCall, Promise};
use crate::thread::HistoryManager;
use crate::tools::{Registry, ToolError};

/// Takes an answer. One to a question that is over, or that is none of the choices, is told to the user.
pub(super) fn answer(
    arrival: &Arrival,
    manager: &mut HistoryManager,
    answer: &UserChoiceAnswer,
) -> PrepareResult {
    // That the time is up is news only for a question that is still open.
    let timed_out = arrival.dedup.is_of_kind(TIMED_OUT);
    let word = match answer.selected {
        _ if timed_out => Word::Missing,
        Some(held::ALLOW) => Word::Allowed { arguments: None },
        Some(_) | None => Word::Refused { reason: None },
    };
    answer_with(arrival, manager, answer, word)
}

/// The same; where it is asked whether a call may run, with what else the user says of that.
pub(super) fn answer_with(
    arrival: &Arrival,
    manager: &mut HistoryManager,
    answer: &UserChoiceAnswer,
    word: Word,
) -> PrepareResult {
    let refused = |text: &str| match word {
        Word::Missing => PrepareResult::Handled,
        Word::Allowed { .. } | Word::Refused { .. } => PrepareResult::RefusedToUser(text.to_owned()),
    };
    let asked = |call: &&PendingCall| call.is_asked_by(&answer.id) && !call.parked;
    let pending = manager.history().open_calls().find(asked).cloned();
    let (Some(call), Some(choice)) = (pending, open_choice(manager, &answer.id)) else {
        return refused("That question is not open any more; the answer had no effect.");
    };
    let selected = answer.selected.unwrap_or(choice.default);
    if selected >= choice.choices.len() {
        return refused("The answer is none of the choices; the question is still open.");
    }
    manager.record_processed(arrival, DedupLife::Days);
    close(manager, &call, choice, selected);
    if call.needs_consent() {
        held::decided(manager, &call, word, arrival.now_ms);
    }
    // A refusal may have been what the model waits for.
    match manager.history().is_settled() {
        true => PrepareResult::Ready,
        false => PrepareResult::Handled,
    }
}

/// Takes the user's word on a request for consent at an address. With it the tool goes on by itself; without it nobody waits
/// for its call any more.
pub(super) fn authorize(
    arrival: &Arrival,
    manager: &mut HistoryManager,
    call: &PendingCall,
    given: bool,
) -> PrepareResult {
    manager.record_processed(arrival, DedupLife::Days);
    manager.close_choice(&call.call.authorization());
    if !given {
        let parts = vec![ContentPart::Text(wording::no_consent(&call.name))];
        let by = SettledBy::Runtime;
        manager.history_mut().settle(&call.call, Outcome::Refused, parts, by, Layer::Safe, arrival.now_ms);
        manager.promise(Promise::Cancel { call: call.call.clone(), server: call.server.clone() });
    }
    match manager.history().is_settled() {
        true => PrepareResult::Ready,
        false => PrepareResult::Handled,
    }
}

/// Dismisses the open questions of interrupted calls, whose tools get the default, and forgets those of calls that
/// have a result by now.
pub(super) fn dismiss(manager: &mut HistoryManager, interrupted: &[PendingCall]) {
    for call in interrupted {
        let id = if call.needs_consent() { call.call.permission() } else { call.call.clone() };
        if let Some(choice) = open_choice(manager, &id) {
            let selected = choice.default;
            close(manager, call, choice, selected);
        }
    }
    manager.close_stale_choices();
}

fn close(manager: &mut HistoryManager, call: &PendingCall, choice: UserChoiceRequired, selected: usize) {
    manager.close_choice(&choice.id);
    manager.promise(Promise::Answer {
        call: choice.id,
        server: call.server.clone(),
        response_url: choice.response_url,
        selected,
    });
}

/// One that cannot be read any more cannot be answered either.
fn open_choice(manager: &HistoryManager, call: &CallId) -> Option<UserChoiceRequired> {
    manager.open_choice(call).and_then(|row| serde_json::from_str(&row.body).ok())
}

/// What tells consumers that a question is over.
pub(super) fn over(call: &CallId) -> (OutputKind, String) {
    let kind = TypedOutput::UserChoiceComplete { choice_id: call.clone() };
    (OutputKind::Typed(kind), "The question is closed.".to_owned())
}

/// POSTs the promised answers. Of one that does not get through the model reads, if its call still waits: the tool
/// would wait for ever.
pub(super) async fn deliver(
    runtime: &Runtime,
    registry: &Registry,
    manager: &HistoryManager,
    owed: &[OutboxEntry],
) -> Result<(), SliceError> {
    let answers = owed.iter().filter_map(|entry| match &entry.promise {
        // Of what dormouse itself has asked, nobody is to be told.
        Promise::Answer { response_url, .. } if response_url.is_empty() => None,
        Promise::Answer { call, server, response_url, selected } => {
            Some(post(registry, call, server.as_deref(), response_url, *selected))
        }
        Promise::Call { .. }
        | Promise::Cancel { .. }
        | Promise::Reply { .. }
        | Promise::Notice { .. }
        | Promise::OAuth { .. }
        | Promise::Choice { .. }
        | Promise::Release
        | Promise::Wake { .. }
        | Promise::Report { .. }
        | Promise::Message { .. }
        | Promise::Schedule { .. }
        | Promise::End { .. }
        | Promise::Compact { .. }
        | Promise::Compacted { .. }
        | Promise::RunEnd { .. }
        | Promise::Closed
        | Promise::Unknown(_) => None,
    });
    let thread = manager.history().thread();
    for (call, posted) in join_all(answers).await {
        let ok = posted.is_ok();
        tracing::info!(%thread, %call, ok, "answer to a choice");
        let waits = manager.history().open_calls().any(|open| &open.call == call && !open.parked);
        if let Err(e) = posted
            && waits
        {
            let parts = vec![ContentPart::Text(format!("Error: {e}"))];
            let result = InputMessage::tool_result(thread.clone(), call.clone(), parts);
            runtime.input.send(&result, &dispatch_failed_id(thread, call)).await?;
        }
    }
    Ok(())
}

async fn post<'a>(
    registry: &Registry,
    call: &'a CallId,
    server: Option<&str>,
    response_url: &str,
    selected: usize,
) -> (&'a CallId, Result<(), ToolError>) {
    let posted = match server.and_then(|server| registry.of_server(server)) {
        Some(tool) => tool.answer_choice(response_url, call, selected).await,
        None => Err(ToolError::Failed("the tool server that asked is not there any more".to_owned())),
    };
    (call, posted)
}
