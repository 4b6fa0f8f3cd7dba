//! What a process brings to a slice that serves its thread for longer than this slice: a way to end its response, what
//! it knows of the thread, and who follows what is committed. A Lambda function brings nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

/// How much of a thread a slice looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// What its requests hold.
    Request,
    /// Everything: it hides, copies or ends parts of it.
    Whole,
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

    /// The thread, from what is known of it or from the store.
    pub(super) async fn load(
        &mut self,
        runtime: &Runtime,
        thread: &ThreadId,
        dedup: &[DedupId],
        extent: Extent,
    ) -> Result<HistoryManager, StoreError> {
        let store = runtime.store.clone();
        // What is known counts once: a slice that starts over does so because it was not so.
        if let Some(known) = self.known.take().filter(|known| extent == Extent::Request || known.is_whole())
            && let Some(mut manager) =
                HistoryManager::load_known(store.clone(), store.clone(), thread.clone(), dedup, &known)
                    .await?
        {
            manager.follow(self.follower.clone());
            return Ok(manager);
        }
        let mut manager = match extent {
            Extent::Request => HistoryManager::load(store.clone(), store, thread.clone(), dedup).await?,
            Extent::Whole => HistoryManager::load_whole(store.clone(), store, thread.clone(), dedup).await?,
        };
        if let Some(follower) = &self.follower {
            follower.changed(manager.change());
        }
        manager.follow(self.follower.clone());
        Ok(manager)
    }
}

/// The slices of a worker that run now, by thread, so that whoever takes a user's text may end the response that it
/// interrupts. Cheap to clone; one a process.
#[derive(Clone, Default)]
pub struct Running(Arc<Mutex<Slices>>);

/// What each slice works for, and its end.
type Slices = BTreeMap<ThreadId, (Vec<DedupId>, oneshot::Sender<Cancel>)>;

impl Running {
    /// Ends the running response of `thread`, if there is one, because the user now says what is sent under `dedup`. One
    /// that is the answer to that very text, which is then sent once more, goes on.
    pub fn user_text(&self, thread: &ThreadId, dedup: &DedupId) {
        let mut running = self.running();
        if running.get(thread).is_some_and(|(inputs, _)| !inputs.contains(dedup))
            && let Some((_, cancel)) = running.remove(thread)
        {
            // A slice that is over needs no end.
            let _ = cancel.send(Cancel::UserText);
        }
    }

    /// Whether a slice of `thread` runs that can be ended.
    pub fn has(&self, thread: &ThreadId) -> bool {
        self.running().contains_key(thread)
    }

    /// The seat of a slice for these inputs, from here on until [`over`](Self::over).
    pub(super) fn seat(&self, thread: &ThreadId, inputs: impl Iterator<Item = DedupId>) -> Seat {
        let (cancel, cancelled) = oneshot::channel();
        self.running().insert(thread.clone(), (inputs.collect(), cancel));
        Seat::new(cancelled)
    }

    pub(super) fn over(&self, thread: &ThreadId) {
        self.running().remove(thread);
    }

    /// A slice that panicked while it held the lock has left the map as it was.
    fn running(&self) -> MutexGuard<'_, Slices> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
