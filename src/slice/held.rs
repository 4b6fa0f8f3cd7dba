//! Calls that do not go out with the commit that holds them: those of a `serial` tool server wait for their turn.
//!
//! What a call waits for stands with it in META, so that any slice can let it go: the commit that settles what it waits
//! for promises it, and only then is it sent.

use crate::history::Arrival;
use crate::store::Promise;
use crate::thread::HistoryManager;

/// Promises, with the next commit, the calls that wait for nothing any more. A slice that has nothing else to commit
/// does so for `arrival`.
pub(super) fn let_go(manager: &mut HistoryManager, arrival: Option<&Arrival>) {
    let due = manager.history_mut().take_turns();
    if due.is_empty() {
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
}
