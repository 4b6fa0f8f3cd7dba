//! Synchronous tools: they run inside the slice, after the commit of their call.

use tokio::time::Instant;

use super::failures::check_time;
use super::{Runtime, Session, SliceError};
use crate::history::{Layer, wording};
use crate::message::{ContentPart, Outcome, SettledBy, ToolCallItem};
use crate::store::PendingCall;
use crate::thread::{HistoryManager, Progress};
use crate::tools::{Execution, Invocation, Rerun};

/// The arguments that a tool gets: `{}` where the model wrote none (F47).
pub(super) fn arguments(call: &ToolCallItem) -> &str {
    if call.arguments.trim().is_empty() { "{}" } else { &call.arguments }
}

/// Runs the open synchronous calls, one after the other, and says whether there were any. After a crash an
/// open one runs again under its id if that is safe; else it is answered as lost.
pub(super) async fn run_open_synchronous_calls(
    runtime: &Runtime,
    session: &Session,
    manager: &mut HistoryManager,
    deadline: Instant,
) -> Result<bool, SliceError> {
    let open: Vec<PendingCall> =
        manager.history().open_calls().filter(|pending| pending.synchronous).cloned().collect();
    let others = manager.history().open_calls().any(|pending| !pending.synchronous);
    // With asynchronous siblings the slice ends here, so the results must not wait for the model.
    let layer = if others { Layer::Safe } else { Layer::Unvalidated };
    let stop_at = deadline.checked_sub(runtime.limits.deadline_margin).unwrap_or(deadline);
    for (at, pending) in open.iter().enumerate() {
        let resumed = !manager.started_in_this_slice(&pending.call);
        let in_time = match check_time(runtime, deadline) {
            Ok(()) => {
                let run = run_synchronously(session, manager, pending, resumed);
                tokio::time::timeout_at(stop_at, run).await.map_err(|_| SliceError::Deadline)
            }
            Err(e) => Err(e),
        };
        let (outcome, parts) = match in_time {
            Ok(ran) => ran,
            Err(e) if at == 0 => return Err(e),
            // What ran before it has its result: without this it would be answered as lost, or run again.
            Err(e) => {
                manager.history_mut().mark_inputs_model_validated();
                manager.sync(Progress::More, runtime.clock.now_ms()).await?;
                return Err(e);
            }
        };
        let now_ms = runtime.clock.now_ms();
        let by = if outcome == Outcome::Lost { SettledBy::Runtime } else { SettledBy::Tool };
        manager.history_mut().settle(&pending.call, outcome, parts, by, layer, now_ms);
    }
    Ok(!open.is_empty())
}

async fn run_synchronously(
    session: &Session,
    manager: &HistoryManager,
    pending: &PendingCall,
    resumed: bool,
) -> (Outcome, Vec<ContentPart>) {
    let text = |text: String| vec![ContentPart::Text(text)];
    let (Some(tool), Some(call)) =
        (session.tools.registry.get(&pending.name), manager.history().call(&pending.call))
    else {
        return (Outcome::Lost, text(wording::lost(&pending.name)));
    };
    if resumed && tool.execution() != Execution::Synchronous(Rerun::Safe) {
        return (Outcome::Lost, text(wording::lost(&pending.name)));
    }
    match tool.execute_synchronous(&invocation(manager, pending, call)).await {
        Ok(output) => (Outcome::Ok, output.parts),
        Err(e) => (Outcome::Error, text(format!("Error: {e}"))),
    }
}

/// A call as it leaves the process.
pub(super) fn invocation(manager: &HistoryManager, pending: &PendingCall, call: &ToolCallItem) -> Invocation {
    let meta = manager.meta();
    let mut ancestors: Vec<_> = meta.base.iter().map(|span| span.thread.clone()).collect();
    ancestors.dedup();
    Invocation {
        thread: meta.thread.clone(),
        ancestors,
        call: pending.call.clone(),
        name: pending.name.clone(),
        arguments: arguments(call).to_owned(),
        user: pending.user.clone(),
        cause: pending.cause.clone(),
        resumed: !manager.started_in_this_slice(&pending.call),
    }
}
