//! Giving up on an input that has failed too often (I7). Whatever it was that failed, the history included, is
//! not looked at again: only META is read, and what is written is small.

use tokio::time::Instant;

use super::{DisplayEvent, Input, Runtime, SliceError, execute_action};
use crate::history::{Layer, wording};
use crate::message::{ContentPart, InputContent, Outcome, SettledBy, ThreadId};
use crate::store::{DedupLife, PendingCall, Promise};
use crate::thread::{HistoryManager, Progress};
use crate::tools::Registry;

/// What the user is told.
const NOTICE: &str =
    "A message could not be processed and was left out after several attempts. Write again to go on.";

/// How giving up ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GaveUp {
    /// The input is settled for good.
    Done,
    /// It was processed and finished before: what keeps failing is the way out, which is worth another try.
    NotOurs,
}

/// Gives up on `input`: a placeholder stands for it for ever, a call that it answers is settled with an error, an
/// unfinished slice of it is closed, and the user is told.
pub(super) async fn give_up(
    runtime: &Runtime,
    thread: &ThreadId,
    input: &Input,
    deadline: Instant,
) -> Result<GaveUp, SliceError> {
    let arrival = &input.arrival;
    let store = runtime.store.clone();
    let mut manager = HistoryManager::load_state(store.clone(), store, thread.clone()).await?;
    let unfinished = manager.is_open(&arrival.cause);
    if manager.is_processed(&arrival.dedup).await? {
        if !unfinished {
            return Ok(GaveUp::NotOurs);
        }
        // Its commit stands; what ran inside the slice for it may or may not have run.
        let lost: Vec<PendingCall> =
            manager.history().open_calls().filter(|call| call.synchronous).cloned().collect();
        manager.work_for(arrival);
        for call in &lost {
            settle(&mut manager, call, Outcome::Lost, wording::lost(&call.name), arrival.now_ms);
        }
        // What its commits still owe stays in the outbox, since its cause is marked as redelivered: the next
        // slice sends it, with the history in hand.
        if !matches!(input.message.content, InputContent::Release) {
            manager.promise(Promise::Release);
        }
    } else {
        take(runtime, &mut manager, input);
    }
    manager.resume_outbox([arrival]);
    manager.promise(Promise::Notice { text: NOTICE.to_owned() });
    manager.sync(Progress::Aside, runtime.clock.now_ms()).await?;
    tracing::error!(%thread, dedup = %arrival.dedup, "gave up on an input");
    runtime.observer.on_event(thread, &DisplayEvent::Notice(NOTICE.to_owned()));
    execute_action(runtime, &Registry::default(), &mut manager, deadline).await?;
    Ok(GaveUp::Done)
}

/// Takes an input that no delivery has processed.
fn take(runtime: &Runtime, manager: &mut HistoryManager, input: &Input) {
    let Input { message, arrival, .. } = input;
    match (&message.content, &message.synthetic) {
        (InputContent::Text(_) | InputContent::Image { .. }, None) => {
            let agent = message.agent().filter(|agent| runtime.agents.knows(agent));
            let agent = agent.unwrap_or_else(|| runtime.agents.default_agent().to_owned());
            manager.found(agent, message.user_id(), arrival.now_ms);
            manager.work_for(arrival);
            manager.history_mut().accept_placeholder(message, arrival, true);
        }
        (InputContent::ToolResult(result), None) => {
            manager.record_processed(arrival, DedupLife::Forever);
            let pending = manager.history().open_calls().find(|call| call.call == result.id).cloned();
            if let Some(call) = pending {
                let text = wording::RESULT_GIVEN_UP.to_owned();
                settle(manager, &call, Outcome::Error, text, arrival.now_ms);
                // Parked siblings are not in hand here: a message of the thread's own goes on with them.
                manager.promise(Promise::Release);
            }
        }
        _ => manager.record_processed(arrival, DedupLife::Days),
    }
}

fn settle(manager: &mut HistoryManager, call: &PendingCall, outcome: Outcome, text: String, now_ms: i64) {
    let parts = vec![ContentPart::Text(text)];
    manager.history_mut().settle(&call.call, outcome, parts, SettledBy::Runtime, Layer::Safe, now_ms);
}
