//! Ending a response that streams, because somebody asked for it (`POST /threads/{id}/cancel`) or, in the resident mode,
//! because the user has said something new.
//!
//! The request is a row that names the head it saw. A slice heeds it only at that head, and only if it is younger than
//! what the slice has loaded: a thread that slept when it was asked must not stop its next response.

use std::time::Duration;

use futures::future::BoxFuture;

use super::{Runtime, Session, runs};
use crate::history::{Layer, wording};
use crate::message::{ContentPart, Outcome, SettledBy};
use crate::store::Promise;
use crate::thread::HistoryManager;

/// Between two looks while a model streams.
const POLL: Duration = Duration::from_secs(1);
/// The stored reason why a response ended that somebody wanted to end.
const STOPPED: &str = "stopped";
/// The stored reason why a response ended that new user text has cut.
const INTERRUPTED: &str = "interrupted";
/// What the user is told.
pub(super) const NOTICE: &str = "Stopped, as you asked. Write again to go on.";

/// Resolves when the slice is to end its response. It looks once a [`POLL`] for as long as it is awaited.
pub(super) fn asked(runtime: &Runtime, manager: &HistoryManager) -> BoxFuture<'static, ()> {
    let store = runtime.store.clone();
    let meta = manager.meta();
    let (thread, here) = (meta.thread.clone(), (meta.epoch, meta.head));
    let seen = manager.seen_stop().map(str::to_owned);
    let run = manager.run().map(str::to_owned);
    Box::pin(async move {
        loop {
            tokio::time::sleep(POLL).await;
            if let (Some(run), Some(runs)) = (&run, store.runs())
                && let Ok(Some(row)) = runs.run(&thread, run).await
                && row.is_stopped()
            {
                return;
            }
            match store.stop(&thread).await {
                Ok(Some(stop)) if (stop.epoch, stop.head) == here && Some(&stop.id) != seen.as_ref() => {
                    return;
                }
                Ok(_) => {}
                Err(error) => tracing::info!(%thread, %error, "cannot look for a cancel request"),
            }
        }
    })
}

/// Why a response ends before its model is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoppedBy {
    /// Somebody asked for it, and is told.
    Request,
    /// New user text, which is taken next.
    UserText,
}

/// Keeps what was streamed: text stays, trailing reasoning does not, and calls were never dispatched.
pub(super) fn end_response(
    runtime: &Runtime,
    session: &Session,
    manager: &mut HistoryManager,
    by: StoppedBy,
) {
    let stop_reason = match by {
        StoppedBy::Request => STOPPED,
        StoppedBy::UserText => INTERRUPTED,
    };
    let now_ms = runtime.clock.now_ms();
    let model = session.profile.model.model().to_owned();
    let user = manager.history().current_user();
    let first = manager.history().next_seq_after_inputs();
    let history = manager.history_mut();
    history.mark_inputs_model_validated();
    let calls = history.flush_turn_trimming_reasoning(&model, stop_reason, user.as_deref(), now_ms);
    let last = history.next_seq_after_inputs();
    for call in &calls {
        let parts = vec![ContentPart::Text(wording::stopped(&call.name))];
        let (outcome, by) = (Outcome::Halted, SettledBy::Runtime);
        history.settle(&call.call_id, outcome, parts, by, Layer::WithResponse, now_ms);
    }
    if last > first {
        let refused = calls.into_iter().map(|call| call.call_id).collect();
        manager.promise(Promise::Reply { from: first, to: last, refused });
    }
    if by == StoppedBy::Request {
        manager.set_trouble(runs::ABORT, NOTICE);
        manager.promise(Promise::Notice { text: NOTICE.to_owned() });
    }
}

/// Answers what a slice that died had begun itself: nobody goes on with it.
pub(super) fn give_up_open_work(manager: &mut HistoryManager, now_ms: i64) {
    let open = manager.history().open_calls().filter(|call| call.synchronous);
    for call in open.cloned().collect::<Vec<_>>() {
        let parts = vec![ContentPart::Text(wording::lost(&call.name))];
        let (outcome, by) = (Outcome::Lost, SettledBy::Runtime);
        manager.history_mut().settle(&call.call, outcome, parts, by, Layer::Safe, now_ms);
    }
}
