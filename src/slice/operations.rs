//! What is asked of a thread itself: to hide its newest turns, to begin as another one stands, to end. An operation is alone in its slice.

use super::prepare::PrepareResult;
use super::{Runtime, SliceError, runs};
use crate::agui::repository::{MAX_BRANCHES, MAX_FOREIGN_EPOCH};
use crate::history::rewind::MAX_SPANS;
use crate::history::snapshot::{Snapshot, is_snapshot_log};
use crate::history::{Accepted, Arrival, History};
use crate::message::{
    ContentPart, Epoch, Fork, Import, InputContent, InputMessage, Piece, Rewind, Then, ThreadId,
};
use crate::store::{DedupLife, Promise};
use crate::thread::{Handled, HistoryManager, generation_within, load_branch};

/// The newest children that a thread that is ended looks for.
const MAX_CHILDREN: usize = 100;

/// Rewinds the thread; an edit's text and the new log are one commit, so that a redelivery finds both or neither.
pub(super) async fn rewind(
    message: &InputMessage,
    arrival: &Arrival,
    manager: &mut HistoryManager,
    rewind: &Rewind,
) -> Result<PrepareResult, SliceError> {
    let refused = |text: String| PrepareResult::RefusedToUser(format!("Nothing was rewound: {text}."));
    if let Some(Then::Say(parts)) = &rewind.then
        && parts.iter().all(ContentPart::is_blank)
    {
        return Ok(refused("the new message is empty".to_owned()));
    }
    let plan = match manager.rewind(rewind, arrival).await? {
        Ok(plan) => plan,
        Err(why) => return Ok(refused(why.to_string())),
    };
    let thread = manager.history().thread().clone();
    tracing::info!(%thread, turns = plan.turns.len(), epoch = %manager.history().epoch(), "thread rewound");
    let Some(Then::Say(parts)) = &rewind.then else {
        manager.record_processed(arrival, DedupLife::Days);
        return Ok(match rewind.then {
            Some(_) => PrepareResult::Ready,
            None => PrepareResult::Handled,
        });
    };
    let said = InputMessage { content: InputContent::Parts(parts.clone()), ..message.clone() };
    match manager.handle_input(&said, arrival).await? {
        Handled::Accepted(Accepted::Ready) => {
            manager.history_mut().mark_inputs_model_validated();
            Ok(PrepareResult::Ready)
        }
        other => Err(SliceError::Bug(format!("an edit was not taken: {other:?}"))),
    }
}

/// Makes the thread as a fork of another one. Nothing of the other one changes.
pub(super) async fn fork(
    runtime: &Runtime,
    message: &InputMessage,
    arrival: &Arrival,
    manager: &mut HistoryManager,
    fork: &Fork,
) -> Result<PrepareResult, SliceError> {
    let refused = |why: String| Ok(PrepareResult::RefusedToUser(format!("Nothing was forked: {why}.")));
    if manager.exists() {
        return refused("a thread of this name exists; a fork needs a new one".to_owned());
    }
    let branch = load_branch(&*runtime.store, &fork.source, fork.epoch).await?;
    let Some((meta, loaded)) = branch.and_then(|loaded| Some((loaded.meta.clone()?, loaded))) else {
        return refused(match fork.epoch {
            Some(epoch) => format!("there is no branch {epoch} of a thread {}", fork.source),
            None => format!("there is no thread {}", fork.source),
        });
    };
    let newest = meta.compaction.newest.clone();
    let point = match History::new(fork.source.clone(), loaded).fork_point(fork.through) {
        Ok(point) => point,
        Err(why) => return refused(why.to_string()),
    };
    let owner = message.user_id().or(meta.owner);
    manager.found(meta.agent, owner, arrival.now_ms);
    let generation = generation_within(&*runtime.store, newest.as_ref(), point.base()).await?;
    manager.inherit_generation(generation.map(|(generation, _)| generation.at));
    manager.history_mut().inherit(point);
    manager.record_processed(arrival, DedupLife::Days);
    tracing::info!(thread = %manager.history().thread(), source = %fork.source, "thread forked");
    Ok(PrepareResult::Handled)
}

/// Makes the thread of a snapshot. Its rows are there already, under a name that is their content's.
pub(super) async fn import(
    runtime: &Runtime,
    message: &InputMessage,
    arrival: &Arrival,
    manager: &mut HistoryManager,
    import: &Import,
) -> Result<PrepareResult, SliceError> {
    let refused = |why: String| Ok(PrepareResult::RefusedToUser(format!("Nothing was imported: {why}.")));
    if manager.exists() {
        return refused("a thread of this name exists; an import needs a new one".to_owned());
    }
    let snapshot = match Snapshot::parse(import.thread.get()) {
        Ok(snapshot) => snapshot,
        Err(why) => return refused(why.to_string()),
    };
    // A thread whose rows are not there could never be loaded.
    let items = runtime.store.log(&import.log, Epoch(0)).await?.items;
    let stored = items.len() as u64;
    if !is_snapshot_log(&import.log) || stored != import.items {
        return refused(format!("{stored} of its {} items are stored; import it again", import.items));
    }
    let is_whole = |piece: &Piece| piece.from < piece.to && piece.to.0 <= stored;
    let is_branch = |pieces: &Vec<Piece>| pieces.len() <= MAX_SPANS && pieces.iter().all(is_whole);
    if import.first.0 > MAX_FOREIGN_EPOCH + 1
        || import.branches.len() > MAX_BRANCHES + 1
        || !import.branches.iter().all(is_branch)
    {
        return refused("its branches are not made of its items".to_owned());
    }
    let agent = match runtime.agents.knows(&snapshot.agent) {
        true => snapshot.agent.clone(),
        false => runtime.agents.default_agent().to_owned(),
    };
    manager.found(agent, message.user_id(), arrival.now_ms);
    manager.restore(snapshot, import, &items);
    manager.record_processed(arrival, DedupLife::Days);
    tracing::info!(thread = %manager.history().thread(), items = import.items, "thread imported");
    Ok(PrepareResult::Handled)
}

/// Ends the thread for good, and its children that are still open; a parent is told.
pub(super) async fn close(
    runtime: &Runtime,
    arrival: &Arrival,
    manager: &mut HistoryManager,
) -> Result<PrepareResult, SliceError> {
    let thread = manager.history().thread().clone();
    manager.record_processed(arrival, DedupLife::Days);
    for call in manager.history().spawn_calls().take(MAX_CHILDREN).collect::<Vec<_>>() {
        let child = ThreadId::child(&thread, call.as_str());
        if runtime.store.meta(&child).await?.is_some_and(|meta| !meta.closed) {
            manager.promise(Promise::End { thread: child });
        }
    }
    if let Some(to) = manager.meta().parent.clone() {
        let call = manager.meta().origin.clone();
        manager.promise(Promise::Report { to, call: call.unwrap_or_else(|| "".into()) });
    }
    manager.begin_closing();
    manager.close(arrival.now_ms);
    manager.set_trouble(runs::ABORT, "the thread was closed");
    tracing::info!(%thread, "thread closed by hand");
    Ok(PrepareResult::Handled)
}
