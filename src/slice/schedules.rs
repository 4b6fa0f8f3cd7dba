//! The timers of schedules: the outbox says which firing comes next, and its tool sets the timer.

use super::{Runtime, SliceError};
use crate::history::wording;
use crate::message::{CallId, ContentPart, DedupId, Firing, InputMessage, Synthetic, ThreadId};
use crate::queue::QueueError;
use crate::slice::synchronous::arguments;
use crate::store::{OutboxEntry, Promise};
use crate::thread::HistoryManager;
use crate::tools::Registry;

/// Sets the timers that `owed` promises. Without the history in hand (a slice that gives up on an input) none is: the next
/// slice does it.
///
/// # Errors
/// A queue that does not answer. One that refuses ends the schedule, which the model reads.
pub(super) async fn set_timers(
    runtime: &Runtime,
    registry: &Registry,
    manager: &HistoryManager,
    owed: &[OutboxEntry],
) -> Result<(), SliceError> {
    let thread = manager.history().thread();
    for entry in owed {
        let Promise::Schedule { call, firing } = &entry.promise else { continue };
        let Some(item) = manager.history().call(call) else { continue };
        let set = match registry.get(&item.name) {
            Some(tool) => tool.set_timer(thread, call, arguments(item), *firing).await,
            None => Err(QueueError::Refused(format!("{} is not available any more", item.name))),
        };
        match set {
            Ok(()) => {}
            Err(e @ QueueError::Unavailable(_)) => return Err(e.into()),
            Err(error @ QueueError::Refused(_)) => {
                tracing::error!(%thread, %call, %error, "the timer of a schedule cannot be set, so it ends");
                let (event, dedup) = end(thread, call, *firing);
                runtime.input.send(&event, &dedup).await?;
            }
        }
    }
    Ok(())
}

/// The last event of a schedule that cannot go on.
fn end(thread: &ThreadId, call: &CallId, firing: Firing) -> (InputMessage, DedupId) {
    let parts = vec![ContentPart::text(wording::SCHEDULE_ENDED)];
    let mut event = InputMessage::tool_result(thread.clone(), call.clone(), parts);
    event.synthetic =
        Some(Synthetic::SubscriptionEvent { tool_call_id: call.clone(), associative: true, r#final: true });
    let due = firing.due_ms.to_string();
    (event, DedupId::derive("schedule-ended", &[thread.as_str(), call.as_str(), &due]))
}
