//! Synchronous tools: they run inside the slice, after the commit of their call.

use tokio::time::Instant;

use super::failures::check_time;
use super::{Runtime, Session, SliceError};
use crate::history::{Layer, wording};
use crate::message::{CallId, Outcome, SettledBy, ToolCallItem};
use crate::store::{PendingCall, Promise};
use crate::thread::{HistoryManager, MAX_SPAWNS, MAX_SUBSCRIPTIONS, Progress};
use crate::tools::builtin::patched;
use crate::tools::{Effect, Execution, Invocation, Rerun, ToolOutput};

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
    let stop_at = deadline.checked_sub(runtime.limits.deadline_margin).unwrap_or(deadline);
    let (mut done, mut late) = (Vec::new(), None);
    for pending in &open {
        let resumed = !manager.started_in_this_slice(&pending.call);
        let in_time = match check_time(runtime, deadline) {
            Ok(()) => {
                let run = run_synchronously(session, manager, pending, resumed);
                tokio::time::timeout_at(stop_at, run).await.map_err(|_| SliceError::Deadline)
            }
            Err(e) => Err(e),
        };
        match in_time {
            Ok(ran) => done.push(ran),
            Err(e) if done.is_empty() => return Err(e),
            Err(e) => {
                late = Some(e);
                break;
            }
        }
    }
    // An effect is in the commit of its result, so that a crash finds both or neither. And what ran before the time was
    // up has its result: else it would be answered as lost, or run again.
    let effects = done.iter().any(|(_, output)| !output.effects.is_empty());
    let commits = effects || late.is_some();
    let layer = if others || commits { Layer::Safe } else { Layer::Unvalidated };
    let now_ms = runtime.clock.now_ms();
    for (pending, (mut outcome, mut output)) in open.iter().zip(done) {
        for effect in std::mem::take(&mut output.effects) {
            if let Some(refused) = apply(session, manager, &pending.call, effect, &mut output, now_ms).await?
            {
                (outcome, output) = (Outcome::Error, ToolOutput::text(format!("Error: {refused}")));
                break;
            }
        }
        let by = if outcome == Outcome::Lost { SettledBy::Runtime } else { SettledBy::Tool };
        manager.history_mut().settle(&pending.call, outcome, output.parts, by, layer, now_ms);
    }
    if manager.is_closing() {
        // Behind the results of its siblings, which have none to wait for any more.
        manager.close(now_ms);
        return Ok(true);
    }
    if commits {
        manager.sync(Progress::More, now_ms).await?;
    }
    late.map_or(Ok(!open.is_empty()), Err)
}

async fn run_synchronously(
    session: &Session,
    manager: &HistoryManager,
    pending: &PendingCall,
    resumed: bool,
) -> (Outcome, ToolOutput) {
    let text = |text: String| ToolOutput::text(text);
    let (Some(tool), Some(call)) =
        (session.tools.registry.get(&pending.name), manager.history().call(&pending.call))
    else {
        return (Outcome::Lost, text(wording::lost(&pending.name)));
    };
    if resumed && tool.execution() != Execution::Synchronous(Rerun::Safe) {
        return (Outcome::Lost, text(wording::lost(&pending.name)));
    }
    match tool.execute_synchronous(&invocation(manager, pending, call)).await {
        Ok(output) => (Outcome::Ok, output),
        Err(e) => (Outcome::Error, text(format!("Error: {e}"))),
    }
}

/// Takes what a call brings about into the commit of its result, or says why not.
async fn apply(
    session: &Session,
    manager: &mut HistoryManager,
    call: &CallId,
    effect: Effect,
    output: &mut ToolOutput,
    now_ms: i64,
) -> Result<Option<String>, SliceError> {
    match effect {
        Effect::Spawn(spawn) => {
            if manager.spawn(call, &spawn, now_ms).is_none() {
                return Ok(Some(format!(
                    "at most {MAX_SPAWNS} threads can be spawned at once; spawn the others in the next step"
                )));
            }
        }
        Effect::Report => {
            if let Some(to) = manager.meta().parent.clone() {
                manager.promise(Promise::Report { to, call: call.clone() });
            }
        }
        Effect::Message { to, origin } => {
            manager.promise(Promise::Message { to, origin, call: call.clone() });
        }
        Effect::Close => manager.begin_closing(),
        Effect::Share(patch) => match patched(manager.state().await?.as_ref(), &patch) {
            Ok(state) => {
                let known = manager.state().await?;
                *output = ToolOutput::text(match known.is_some_and(|known| known.is_same(&state)) {
                    true => wording::STATE_UNCHANGED.to_owned(),
                    // The prompt of this slice still has the one before.
                    false => {
                        let told = wording::state_updated(state.get());
                        manager.history_mut().put_state(state, now_ms);
                        told
                    }
                });
            }
            Err(why) => return Ok(Some(why)),
        },
        Effect::Subscribe => {
            if manager.count_subscriptions().await? >= MAX_SUBSCRIPTIONS {
                return Ok(Some(format!(
                    "this thread has {MAX_SUBSCRIPTIONS} subscriptions, and that is the most; cancel one first"
                )));
            }
            manager.track_subscription(call.clone());
        }
        Effect::Schedule(firing) => manager.promise(Promise::Schedule { call: call.clone(), firing }),
        Effect::Unsubscribe(ended) => {
            let tool = manager.history().call(&ended).and_then(|call| session.tools.registry.get(&call.name));
            let server = tool.and_then(|tool| tool.server()).map(str::to_owned);
            manager.remove_subscription(ended.clone());
            if server.is_some() {
                manager.promise(Promise::Cancel { call: ended, server });
            }
        }
    }
    Ok(None)
}

/// A call as it leaves the process.
pub(super) fn invocation(manager: &HistoryManager, pending: &PendingCall, call: &ToolCallItem) -> Invocation {
    let meta = manager.meta();
    Invocation {
        thread: meta.thread.clone(),
        ancestors: meta.ancestors.clone(),
        call: pending.call.clone(),
        name: pending.name.clone(),
        arguments: manager.history().edited_arguments(&call.call_id).unwrap_or(arguments(call)).to_owned(),
        user: pending.user.clone(),
        cause: pending.cause.clone(),
        resumed: !manager.started_in_this_slice(&pending.call),
    }
}
