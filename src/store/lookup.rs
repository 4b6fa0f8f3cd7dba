//! Single items, looked up where they stand.

use super::{ConversationStore, Meta, Position, Span, StoreError, behind};
use crate::message::{Item, RawJson, Seq};

/// The item at a place; none if nothing says where, or it is not there any more.
///
/// # Errors
/// The store's.
pub async fn item_at<S: ConversationStore + ?Sized>(
    store: &S,
    at: Option<&Position>,
) -> Result<Option<Item>, StoreError> {
    let Some(at) = at else { return Ok(None) };
    let from = Seq(at.seq.0.saturating_sub(1));
    let span = Span { thread: at.thread.clone(), epoch: at.epoch, from, to: at.seq };
    match store.read_span(&span).await {
        Ok(mut items) => Ok(items.pop()),
        // It is shown for a better answer, not for a valid one.
        Err(StoreError::Incomplete { .. }) => Ok(None),
        Err(e) => Err(e),
    }
}

/// What a thread's user's application and its agent share; none: nothing.
///
/// # Errors
/// The store's.
pub async fn shared_state<S: ConversationStore + ?Sized>(
    store: &S,
    meta: &Meta,
) -> Result<Option<RawJson>, StoreError> {
    // An older version that has rewound the thread knows nothing of it.
    let at = meta.state.as_ref().filter(|at| behind(&meta.spans(), at).is_some());
    Ok(item_at(store, at).await?.and_then(|item| item.body.state().cloned()))
}
