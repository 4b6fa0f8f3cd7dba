//! The first phase: what one input means for its thread. Asks no model and sends nothing; what must be durable
//! is written by the barrier that follows.

use super::{Runtime, SliceError, choices, compact, operations, runs};
use crate::history::{Accepted, Arrival, TIMED_OUT, wording};
use crate::message::{
    CallId, Compact, ContentPart, InputContent, InputMessage, Resend, Synthetic, ThreadId, UserChoiceRequired,
};
use crate::slice::DisplayEvent;
use crate::store::{ChoiceRow, DedupLife, PendingCall, Promise};
use crate::thread::{Handled, HistoryManager, MAX_SUBSCRIPTIONS, ThreadError};

/// What to do after an input was prepared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrepareResult {
    /// It is part of the history, or a committed part waits: run a completion.
    Ready,
    /// It is fully absorbed: a duplicate, a late note, or nothing for this thread.
    Handled,
    /// It is kept aside until the calls it waits for are settled.
    Parked,
    /// The user is to consent somewhere; no completion.
    OAuthRequired,
    /// The user is to choose; no completion.
    UserChoiceRequired,
    /// The history was compacted; no completion.
    CompactionApplied,
    /// It can never be processed: to be kept for an operator, with the reason.
    Refused(String),
    /// It is refused, and the sender's user is told why.
    RefusedToUser(String),
}

/// Prepares one input.
///
/// # Errors
/// Any failing look-up: the record is handed back, never turned into a notice (D3).
pub async fn prepare_input(
    runtime: &Runtime,
    message: &InputMessage,
    arrival: &Arrival,
    manager: &mut HistoryManager,
) -> Result<PrepareResult, SliceError> {
    let thread = manager.history().thread().clone();
    if manager.is_processed(&arrival.dedup).await? {
        return Ok(match manager.handle_input(message, arrival).await? {
            Handled::Unfinished => PrepareResult::Ready,
            Handled::Processed | Handled::Accepted(_) => {
                tracing::info!(%thread, dedup = %arrival.dedup, "duplicate input");
                PrepareResult::Handled
            }
        });
    }
    if manager.meta().closed {
        tracing::info!(%thread, dedup = %arrival.dedup, "input for a closed thread dropped");
        return Ok(PrepareResult::Handled);
    }
    if !manager.exists()
        && manager.meta().agent.is_empty()
        && let Some(result) = found_thread(runtime, message, arrival, manager)
    {
        return Ok(result);
    }
    know_calls(message, manager).await?;
    let prepared = take(runtime, message, arrival, manager).await?;
    // What is dropped or refused must not redirect later replies.
    if let Some(metadata) = &message.metadata
        && manager.causes().contains(&arrival.cause)
    {
        manager.set_metadata(metadata.clone());
    }
    Ok(prepared)
}

async fn take(
    runtime: &Runtime,
    message: &InputMessage,
    arrival: &Arrival,
    manager: &mut HistoryManager,
) -> Result<PrepareResult, SliceError> {
    let thread = manager.history().thread().clone();
    match &message.content {
        InputContent::OAuthRequired(oauth) => {
            if !is_pending(manager, &oauth.id) {
                return Ok(dropped(&thread, arrival, "consent for a call that is not pending"));
            }
            let promise = Promise::OAuth { call: oauth.id.clone(), auth_url: oauth.auth_url.clone() };
            // So that whoever looks later is shown it too; it is gone with the call's result.
            let body = serde_json::to_string(oauth).map_err(|e| SliceError::Bug(e.to_string()))?;
            let row = ChoiceRow { id: oauth.id.authorization(), body };
            manager.record(arrival, promise, Some(row));
            Ok(PrepareResult::OAuthRequired)
        }
        InputContent::UserChoiceRequired(choice) => {
            if !is_pending(manager, &choice.id) {
                return Ok(dropped(&thread, arrival, "choice for a call that is not pending"));
            }
            manager.record(arrival, Promise::Choice { call: choice.id.clone() }, Some(choice_row(choice)?));
            Ok(PrepareResult::UserChoiceRequired)
        }
        InputContent::UserChoiceAnswer(answer) => Ok(choices::answer(arrival, manager, answer)),
        InputContent::ClaimCheck(_) => {
            Ok(PrepareResult::Refused("a claim check inside a claim check".to_owned()))
        }
        InputContent::Undeliverable(_) => {
            Ok(PrepareResult::Refused("a word of a dead letter comes with no other message".to_owned()))
        }
        InputContent::Rewind(rewind) => operations::rewind(message, arrival, manager, rewind).await,
        InputContent::Fork(fork) => operations::fork(runtime, message, arrival, manager, fork).await,
        InputContent::Import(import) => operations::import(runtime, message, arrival, manager, import).await,
        InputContent::Run(run) => runs::start(runtime, message, arrival, manager, run).await,
        InputContent::Close => operations::close(runtime, arrival, manager).await,
        InputContent::Compact(request) => Ok(compact::start(runtime, arrival, manager, request)),
        InputContent::CompactionComplete(report) => Ok(compact::complete(runtime, arrival, manager, report)),
        InputContent::Resend(Resend { id: call }) => {
            let out =
                |pending: &PendingCall| !pending.parked && !pending.synchronous && pending.hold.is_none();
            if !manager.history().open_calls().any(|pending| &pending.call == call && out(pending)) {
                return Ok(dropped(&thread, arrival, "resend of a call that is not out"));
            }
            tracing::info!(%thread, %call, "a call is sent again");
            manager.record(arrival, Promise::Call { call: call.clone() }, None);
            Ok(PrepareResult::Handled)
        }
        InputContent::Release => {
            if manager.history().has_leftover_waiting() {
                manager.history_mut().release_waiting();
            }
            let wakes = manager.history().has_unvalidated() || manager.history().awaits_answer();
            if !wakes {
                return Ok(PrepareResult::Handled);
            }
            manager.record_processed(arrival, DedupLife::Days);
            Ok(PrepareResult::Ready)
        }
        InputContent::Text(_)
        | InputContent::Image { .. }
        | InputContent::Parts(_)
        | InputContent::ToolResult(_) => conversational(runtime, message, arrival, manager).await,
    }
}

/// Looks up the call that an input names, where a summary stands for it: what comes for it must not be taken for what no
/// call has asked for.
async fn know_calls(message: &InputMessage, manager: &mut HistoryManager) -> Result<(), SliceError> {
    let named = match (&message.synthetic, &message.content) {
        (
            Some(
                Synthetic::SubscriptionEvent { tool_call_id, .. }
                | Synthetic::SchedulerFired { tool_call_id, .. }
                | Synthetic::ThreadReport { tool_call_id, .. }
                | Synthetic::ParentMessage { tool_call_id },
            ),
            _,
        ) => tool_call_id,
        (None, InputContent::ToolResult(result)) => &result.id,
        _ => return Ok(()),
    };
    Ok(manager.know_call(named).await?)
}

/// Only user text creates a thread (D32), and a fork or an import, which say themselves what it is.
fn found_thread(
    runtime: &Runtime,
    message: &InputMessage,
    arrival: &Arrival,
    manager: &mut HistoryManager,
) -> Option<PrepareResult> {
    if matches!(message.content, InputContent::Fork(_) | InputContent::Import(_)) {
        return None;
    }
    let said = message.content.is_said() || matches!(message.content, InputContent::Run(_));
    let from_user = said && message.synthetic.is_none();
    if !from_user {
        return Some(dropped(manager.history().thread(), arrival, "input for an unknown thread"));
    }
    let agent = message.agent().unwrap_or_else(|| runtime.agents.default_agent().to_owned());
    if !runtime.agents.knows(&agent) {
        manager.record_dropped(arrival);
        let problem = format!("There is no agent {agent:?}; name a configured one in metadata.agent.");
        return Some(PrepareResult::RefusedToUser(problem));
    }
    manager.found(agent, message.user_id(), arrival.now_ms);
    None
}

async fn conversational(
    runtime: &Runtime,
    message: &InputMessage,
    arrival: &Arrival,
    manager: &mut HistoryManager,
) -> Result<PrepareResult, SliceError> {
    let thread = manager.history().thread().clone();
    match &message.synthetic {
        Some(Synthetic::SubscriptionEvent { tool_call_id, associative, r#final }) => {
            if !takes_events(manager, tool_call_id, arrival).await? {
                return Ok(dropped(&thread, arrival, "event without an active subscription"));
            }
            // An event with a thread of its own does not disturb this one, whatever it is waiting for.
            if !associative && manager.spawn_for_event(tool_call_id, message, arrival).is_some() {
                manager.record_processed(arrival, DedupLife::Days);
                if *r#final {
                    manager.remove_subscription(tool_call_id.clone());
                }
                return Ok(PrepareResult::Handled);
            }
        }
        Some(Synthetic::SchedulerFired { tool_call_id, .. }) => {
            if !takes_events(manager, tool_call_id, arrival).await? {
                return Ok(dropped(&thread, arrival, "firing of a schedule that has ended"));
            }
            // One that the thread has had no time for yet says the same.
            if manager.history().has_waiting_firing(tool_call_id) {
                manager.pass_over_firing(message, arrival);
                return Ok(PrepareResult::Handled);
            }
        }
        Some(Synthetic::Compaction | Synthetic::CompactionComplete) => {
            let request = Compact { manual: true, focus: None };
            return Ok(match message.synthetic {
                Some(Synthetic::Compaction) => compact::start(runtime, arrival, manager, &request),
                _ => dropped(&thread, arrival, "word of a compaction that this thread has not asked for"),
            });
        }
        Some(Synthetic::ThreadReport { .. } | Synthetic::ParentMessage { .. }) | None => {}
    }
    let expired = expired(manager, message, arrival);
    let refused = match message.subscription && message.synthetic.is_none() {
        true => without_subscription(message, manager).await?,
        false => None,
    };
    let message = refused.as_ref().unwrap_or(message);
    let handled = manager.handle_input(message, arrival).await?;
    let Handled::Accepted(accepted) = handled else {
        return Err(SliceError::Bug("an input was processed between two looks".to_owned()));
    };
    if let Some(PendingCall { call, server, .. }) = expired
        && matches!(accepted, Accepted::Ready | Accepted::Parked)
    {
        tracing::info!(%thread, %call, "a call has timed out");
        manager.promise(Promise::Cancel { call, server });
    }
    Ok(match accepted {
        Accepted::Ready => {
            show_result(runtime, &thread, message, manager);
            PrepareResult::Ready
        }
        Accepted::Parked => {
            show_result(runtime, &thread, message, manager);
            PrepareResult::Parked
        }
        Accepted::Note => PrepareResult::Handled,
        Accepted::Duplicate => dropped(&thread, arrival, "its call is already answered"),
        Accepted::Foreign => dropped(&thread, arrival, "this thread knows no such call"),
        Accepted::Blank => PrepareResult::RefusedToUser(
            "The message is empty: write some text. Nothing was stored.".to_owned(),
        ),
        Accepted::NotConversational => {
            PrepareResult::Refused("this content does not go with this synthetic type".to_owned())
        }
    })
}

/// The pending call whose time is up with this input.
fn expired(manager: &HistoryManager, message: &InputMessage, arrival: &Arrival) -> Option<PendingCall> {
    let InputContent::ToolResult(result) = &message.content else { return None };
    let is_timer = message.synthetic.is_none() && arrival.dedup.is_of_kind(TIMED_OUT);
    manager.history().open_calls().find(|pending| is_timer && pending.call == result.id).cloned()
}

/// A result that subscribes, where the thread has as many subscriptions as it may: the model is told so in front of it, and
/// the tool that nobody listens (RAP 42). Counted as stored: results that come in one batch may go a few above.
async fn without_subscription(
    message: &InputMessage,
    manager: &mut HistoryManager,
) -> Result<Option<InputMessage>, SliceError> {
    let InputContent::ToolResult(result) = &message.content else { return Ok(None) };
    let waits = |call: &&PendingCall| call.call == result.id && !call.parked;
    let Some(pending) = manager.history().open_calls().find(waits).cloned() else { return Ok(None) };
    if manager.count_subscriptions().await? < MAX_SUBSCRIPTIONS {
        return Ok(None);
    }
    let mut result = result.clone();
    result.content.insert(0, ContentPart::Text(wording::too_many_subscriptions(MAX_SUBSCRIPTIONS)));
    manager.promise(Promise::Cancel { call: pending.call, server: pending.server });
    let content = InputContent::ToolResult(result);
    Ok(Some(InputMessage { content, subscription: false, ..message.clone() }))
}

/// Whether events of `call` are taken.
async fn takes_events(
    manager: &HistoryManager,
    call: &CallId,
    arrival: &Arrival,
) -> Result<bool, SliceError> {
    // Of a call that is still pending, the result that subscribes may only be behind its first event.
    let subscribed = manager.history().opens_subscription(call)
        || is_pending(manager, call)
        || manager.is_subscribed(call).await?;
    // The look-up is younger than what was loaded: the subscription may have ended with this very event, in another
    // worker's hands. Without a commit nothing else would tell.
    if !subscribed && manager.was_overtaken(&arrival.dedup).await? {
        return Err(ThreadError::LostRace(manager.history().thread().clone()).into());
    }
    Ok(subscribed)
}

fn show_result(runtime: &Runtime, thread: &ThreadId, message: &InputMessage, manager: &HistoryManager) {
    if let (InputContent::ToolResult(result), None) = (&message.content, &message.synthetic) {
        let name = manager.history().call(&result.id).map(|call| call.name.clone()).unwrap_or_default();
        let text = ContentPart::join_text(&result.content);
        runtime.observer.on_event(thread, &DisplayEvent::Result { name, text });
    }
}

fn is_pending(manager: &HistoryManager, call: &CallId) -> bool {
    manager.history().open_calls().any(|pending| &pending.call == call)
}

fn choice_row(choice: &UserChoiceRequired) -> Result<ChoiceRow, SliceError> {
    let body = serde_json::to_string(choice).map_err(|e| SliceError::Bug(e.to_string()))?;
    Ok(ChoiceRow { id: choice.id.clone(), body })
}

fn dropped(thread: &ThreadId, arrival: &Arrival, why: &str) -> PrepareResult {
    tracing::info!(%thread, dedup = %arrival.dedup, why, "input dropped");
    PrepareResult::Handled
}
