//! What a process brings to a slice that serves its thread for longer than this slice: a way to end its response, what
//! it knows of the thread, and who follows what is committed. A Lambda function brings nothing.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::Runtime;
use crate::message::{DedupId, ThreadId};
use crate::store::StoreError;
use crate::thread::{Follower, HistoryManager, Known};

/// How a running completion is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancel {
    /// What was streamed is discarded, and the messages are handed back.
    HandBack,
    /// What was streamed is kept, and the user is told.
    Stop,
    /// What was streamed is kept: the user has said something new, which the next slice takes.
    UserText,
}

/// See the module.
pub struct Seat {
    /// Ends the completion.
    pub cancel: oneshot::Receiver<Cancel>,
    /// What the last slice has left: the history is not read again if the store still stands there.
    pub known: Option<Known>,
    /// Who is told of every load and commit.
    pub follower: Option<Arc<dyn Follower>>,
}

impl Seat {
    /// One that only ends the completion.
    pub fn new(cancel: oneshot::Receiver<Cancel>) -> Self {
        Self { cancel, known: None, follower: None }
    }

    /// One of somebody who does not stay.
    pub(super) fn empty() -> Self {
        // A dropped sender is nobody who could cancel.
        Self::new(oneshot::channel().1)
    }

    /// The thread, from what is known of it or from the store.
    pub(super) async fn load(
        &mut self,
        runtime: &Runtime,
        thread: &ThreadId,
        dedup: &[DedupId],
    ) -> Result<HistoryManager, StoreError> {
        let store = runtime.store.clone();
        // What is known counts once: a slice that starts over does so because it was not so.
        if let Some(known) = self.known.take()
            && let Some(mut manager) =
                HistoryManager::load_known(store.clone(), store.clone(), thread.clone(), dedup, &known)
                    .await?
        {
            manager.follow(self.follower.clone());
            return Ok(manager);
        }
        let mut manager = HistoryManager::load(store.clone(), store, thread.clone(), dedup).await?;
        if let Some(follower) = &self.follower {
            follower.changed(manager.change());
        }
        manager.follow(self.follower.clone());
        Ok(manager)
    }
}
