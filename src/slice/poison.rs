//! Giving up on an input that has failed too often, and on one that the queue itself gave up on (I7). Whatever it was
//! that failed, the history included, is not looked at again: only META is read, and what is written is small.

use tokio::time::Instant;

use super::batch::send_outbox;
use super::{DisplayEvent, Input, Runtime, SliceError, compact, execute_action, runs};
use crate::agui::emit::End;
use crate::history::{Arrival, Layer, wording};
use crate::message::{
    ContentPart, DedupId, InputContent, InputMessage, Outcome, SettledBy, Synthetic, ThreadId, Undeliverable,
};
use crate::store::{DedupLife, PendingCall, Promise, ThreadKind};
use crate::thread::{HistoryManager, Progress};
use crate::tools::Registry;

/// What the user is told.
const NOTICE: &str =
    "A message could not be processed and was left out after several attempts. Write again to go on.";

/// What the user is told of a message that the queue gave up on.
const UNDELIVERABLE_NOTICE: &str =
    "A message could not be processed and was put aside for an operator. Write again to go on.";

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
    manager.resume_outbox([arrival]);
    let owes = !manager.owed().is_empty();
    if manager.is_processed(&arrival.dedup).await? {
        if !unfinished {
            return Ok(GaveUp::NotOurs);
        }
        // Its commit stands; what ran inside the slice for it may or may not have run.
        manager.work_for(arrival);
        settle_lost(&mut manager, arrival, |call| call.synchronous);
    } else if manager.meta().kind == ThreadKind::Compaction {
        tracing::error!(%thread, dedup = %arrival.dedup, "gave up on a compaction");
        abandon(runtime, &mut manager, arrival, deadline).await?;
        return Ok(GaveUp::Done);
    } else if manager.exists() || is_user_text(&input.message) {
        take(runtime, &mut manager, &input.message, arrival);
    } else {
        return Ok(GaveUp::Done);
    }
    // What its commits still owe stays in the outbox, since its cause is marked as redelivered: the next slice sends
    // it, with the history in hand. A release that could not even begin causes no other one: that would go on for ever.
    let releases = matches!(input.message.content, InputContent::Release);
    if unfinished || (owes && !releases) {
        manager.promise(Promise::Release);
    }
    manager.promise(Promise::Notice { text: NOTICE.to_owned() });
    let end = End::failed(runs::WORKER_LOST, NOTICE);
    lose_run(&mut manager, Some(&input.message), unfinished, &end);
    manager.sync(Progress::Aside, runtime.clock.now_ms()).await?;
    tracing::error!(%thread, dedup = %arrival.dedup, "gave up on an input");
    runtime.observer.on_event(thread, &DisplayEvent::Notice(NOTICE.to_owned()));
    execute_action(runtime, &Registry::default(), &mut manager, deadline).await?;
    Ok(GaveUp::Done)
}

/// Settles what a message that went to the dead-letter queue has left behind, or gives up on it where it has left
/// nothing; the user is told unless all of its work was done and only its acknowledgement was missing.
///
/// # Errors
/// Any failure: the record is handed back.
pub(super) async fn bury(
    runtime: &Runtime,
    thread: &ThreadId,
    arrival: &Arrival,
    dead: &Undeliverable,
    deadline: Instant,
) -> Result<(), SliceError> {
    let store = runtime.store.clone();
    let mut manager = HistoryManager::load_state(store.clone(), store.clone(), thread.clone()).await?;
    if manager.is_processed(&arrival.dedup).await? {
        manager.resume_outbox([arrival]);
        return execute_action(runtime, &Registry::default(), &mut manager, deadline).await;
    }
    let (letter, dedup) = tokio::try_join!(
        runtime.store.dead_letter(thread, &dead.message_id),
        runtime.store.failed_input(thread, &dead.message_id),
    )?;
    // Where nobody could count its attempts, nobody could mark its cause either: what it owed, and is not owed any more, a
    // slice between its death and this word may have taken for sent.
    let uncounted = dedup.is_none();
    let dedup = dedup.unwrap_or_else(|| DedupId::new(dead.message_id.as_str()));
    let died = Arrival { dedup, cause: dead.message_id.clone(), ..arrival.clone() };
    // A body that nobody can read, or that is for another thread, has nothing to be given up on but itself.
    let message = letter.and_then(|letter| InputMessage::parse(letter.body.as_bytes()).ok());
    let message = message.filter(|message| message.group_id == *thread);
    let founds = message.as_ref().is_some_and(is_user_text);
    let releases = message.as_ref().is_some_and(|message| matches!(message.content, InputContent::Release));
    if manager.meta().closed {
        if let Some(message) = &message {
            runs::end_unbegun(runtime, message, "the thread is closed").await?;
        }
        // Nothing is committed any more; what the last commit promised is owed all the same, its end above all.
        let mut closed = HistoryManager::load(store.clone(), store, thread.clone(), &[]).await?;
        closed.resume_outbox([arrival, &died]);
        return send_outbox(runtime, &mut closed, deadline).await;
    }
    if !(manager.exists() || founds) {
        tracing::info!(%thread, message_id = %dead.message_id, "a dead letter of a thread that is not there");
        return Ok(());
    }
    let taken = manager.is_taken(&died.cause) || manager.is_processed(&died.dedup).await?;
    let open = manager.is_open(&died.cause);
    manager.resume_outbox([arrival, &died]);
    if manager.meta().kind == ThreadKind::Compaction && !taken {
        tracing::error!(%thread, message_id = %dead.message_id, "a compaction died in the queue");
        manager.record_processed(&died, DedupLife::Days);
        return abandon(runtime, &mut manager, arrival, deadline).await;
    }
    let owes = !manager.owed().is_empty();
    // Resending might be what it died of: of what it has caused, nothing that is out is waited for. (What is parked
    // is not out.)
    let settled = settle_lost(&mut manager, arrival, |call| call.cause.contains(&died.cause) && !call.parked);
    manager.record_processed(arrival, DedupLife::Days);
    if owes || settled > 0 {
        // Replies and notices to tools need the history: the next slice sends them.
        manager.mark_redelivered(&died.cause);
        manager.promise(Promise::Release);
    } else if releases && !taken {
        // What it was to wake up would stay parked until somebody writes. Days of failures lie between two of these.
        manager.promise(Promise::Release);
    }
    if !taken || open || settled > 0 || (uncounted && !owes) {
        tracing::error!(%thread, message_id = %dead.message_id, settled, "a message died in the queue");
        manager.promise(Promise::Notice { text: UNDELIVERABLE_NOTICE.to_owned() });
        runtime.observer.on_event(thread, &DisplayEvent::Notice(UNDELIVERABLE_NOTICE.to_owned()));
    }
    if !taken || open {
        let end = End::failed(runs::WORKER_LOST, UNDELIVERABLE_NOTICE);
        lose_run(&mut manager, message.as_ref(), open, &end);
    }
    if let Some(message) = message.filter(|_| !taken) {
        take(runtime, &mut manager, &message, &died);
    }
    manager.work_for(&died);
    manager.sync(Progress::Aside, runtime.clock.now_ms()).await?;
    execute_action(runtime, &Registry::default(), &mut manager, deadline).await
}

/// Ends a compaction whose slices keep dying, and tells its thread: else it would be under way for ever.
async fn abandon(
    runtime: &Runtime,
    manager: &mut HistoryManager,
    arrival: &Arrival,
    deadline: Instant,
) -> Result<(), SliceError> {
    manager.record_processed(arrival, DedupLife::Days);
    let ended = compact::abandoned(runtime, manager).await?;
    compact::conclude(manager, ended);
    manager.sync(Progress::Aside, runtime.clock.now_ms()).await?;
    execute_action(runtime, &Registry::default(), manager, deadline).await
}

/// Ends the client's run that a message was to begin which is given up on; of a message whose worker has died `midway`, the
/// run that is under way: whatever the thread still does about it, this run is not shown any more.
fn lose_run(manager: &mut HistoryManager, message: Option<&InputMessage>, midway: bool, end: &End) {
    let Some(InputContent::Run(request)) = message.map(|message| &message.content) else {
        if midway {
            manager.end_run(runs::end_text(end));
        }
        return;
    };
    let before = manager.run().filter(|run| **run != request.run).map(str::to_owned);
    manager.begin_run(&request.run);
    manager.end_run(runs::end_text(end));
    if let Some(before) = before {
        manager.begin_run(&before);
    }
}

/// Settles the open calls that `which` names as lost, and says how many.
fn settle_lost(
    manager: &mut HistoryManager,
    arrival: &Arrival,
    which: impl Fn(&PendingCall) -> bool,
) -> usize {
    let lost: Vec<PendingCall> = manager.history().open_calls().filter(|call| which(call)).cloned().collect();
    for call in &lost {
        settle(manager, call, Outcome::Lost, wording::lost(&call.name), arrival.now_ms);
    }
    lost.len()
}

fn is_user_text(message: &InputMessage) -> bool {
    (message.content.is_said() || matches!(message.content, InputContent::Run(_)))
        && message.synthetic.is_none()
}

/// Takes an input that no delivery has processed.
fn take(runtime: &Runtime, manager: &mut HistoryManager, message: &InputMessage, arrival: &Arrival) {
    match (&message.content, &message.synthetic) {
        (_, None) if is_user_text(message) => {
            let agent = message.agent().filter(|agent| runtime.agents.knows(agent));
            let agent = agent.unwrap_or_else(|| runtime.agents.default_agent().to_owned());
            manager.found(agent, message.user_id(), arrival.now_ms);
            manager.work_for(arrival);
            manager.history_mut().accept_placeholder(message, arrival, true);
        }
        (InputContent::ToolResult(result), None) => {
            manager.record_processed(arrival, DedupLife::Forever);
            // One whose result is parked has it: what died only stood in for it.
            let waits = |call: &&PendingCall| call.call == result.id && !call.parked;
            let pending = manager.history().open_calls().find(waits).cloned();
            if let Some(call) = pending {
                let text = wording::RESULT_GIVEN_UP.to_owned();
                settle(manager, &call, Outcome::Error, text, arrival.now_ms);
                // Parked siblings are not in hand here: a message of the thread's own goes on with them.
                manager.promise(Promise::Release);
            }
        }
        (_, Some(Synthetic::SchedulerFired { .. })) => {
            // The schedule goes on. Its next timer is set by a slice that has the history in hand.
            manager.pass_over_firing(message, arrival);
            manager.mark_redelivered(&arrival.cause);
            manager.promise(Promise::Release);
        }
        _ => manager.record_processed(arrival, DedupLife::Days),
    }
}

fn settle(manager: &mut HistoryManager, call: &PendingCall, outcome: Outcome, text: String, now_ms: i64) {
    let parts = vec![ContentPart::Text(text)];
    manager.history_mut().settle(&call.call, outcome, parts, SettledBy::Runtime, Layer::Safe, now_ms);
}
