//! The handle of a resident thread: what it can be told and asked. It holds no state.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, TryAcquireError, mpsc, oneshot};

use super::AgentInput;
use super::view::{ReplaySnapshot, View, text_of};
use crate::message::{CallId, ContentPart, DedupId, Item, ItemBody, Seq, ThreadId};
use crate::store::{PendingCall, Store};

/// The thread's actor has ended, or the process is ending: nothing was promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the thread's actor is gone")]
pub struct ActorGone;

/// Why an input was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotPushed {
    /// Its queue is full: the thread is slower than whoever pushes.
    #[error("{0} inputs of the thread are waiting; try again when some are done")]
    Full(usize),
    /// See [`ActorGone`].
    #[error(transparent)]
    Gone(#[from] ActorGone),
}

/// Why a read has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// See [`ActorGone`].
    #[error(transparent)]
    Gone(#[from] ActorGone),
    /// The thread cannot be read from its store.
    #[error("{0}")]
    Store(String),
}

/// What became of an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// It is done for good: its effect is in the store, or it is parked there, refused with a visible reason, or a known
    /// duplicate. (A slice of it that failed behind a commit of its own goes on by itself.)
    Committed,
    /// Nothing of it is in the store, and the actor has let go of it. Pushing it again is a new attempt. (Calls that a text
    /// has interrupted stay interrupted.)
    NotCommitted {
        /// Why, fit for the user.
        why: String,
        /// When to try again, where somebody has said so.
        after: Option<Duration>,
    },
    /// The store could not be asked. The actor goes on with it; pushed again under the same id it has effect once.
    Indeterminate {
        /// Why.
        why: String,
    },
}

/// What the actor is sent.
pub(super) enum Command {
    Push(Box<Pushed>),
    Read(Read),
    Flush(oneshot::Sender<()>),
    /// The running response is to end.
    Stop,
    /// Nothing is taken any more: the actor ends as if the last handle were gone.
    End,
}

/// An input on its way.
pub(super) struct Pushed {
    pub(super) input: AgentInput,
    pub(super) ack: Option<oneshot::Sender<WriteOutcome>>,
    /// Its place in the queue, given back when it is done. What threads send to one another needs none: it is bounded by
    /// what a commit can promise, and nobody could wait for it.
    pub(super) _place: Option<OwnedSemaphorePermit>,
}

/// A question, answered where the state is.
pub(super) type Read = Box<dyn FnOnce(Result<&View<'_>, &str>) + Send>;

/// One resident thread. Cheap to clone; its actor ends when the last handle is gone and what was pushed is done.
#[derive(Clone)]
pub struct ThreadHandle {
    pub(super) thread: ThreadId,
    pub(super) mailbox: mpsc::UnboundedSender<Command>,
    pub(super) places: Arc<Semaphore>,
    pub(super) capacity: usize,
    pub(super) store: Arc<dyn Store>,
}

/// A handle that does not keep its actor alive.
pub(super) struct WeakHandle {
    thread: ThreadId,
    mailbox: mpsc::WeakUnboundedSender<Command>,
    places: Arc<Semaphore>,
    capacity: usize,
    store: Arc<dyn Store>,
}

impl WeakHandle {
    pub(super) fn upgrade(&self) -> Option<ThreadHandle> {
        let (thread, places) = (self.thread.clone(), self.places.clone());
        let (capacity, store) = (self.capacity, self.store.clone());
        self.mailbox.upgrade().map(|mailbox| ThreadHandle { thread, mailbox, places, capacity, store })
    }
}

impl ThreadHandle {
    /// The thread.
    pub fn thread(&self) -> &ThreadId {
        &self.thread
    }

    pub(super) fn downgrade(&self) -> WeakHandle {
        let (thread, places) = (self.thread.clone(), self.places.clone());
        let (capacity, store) = (self.capacity, self.store.clone());
        WeakHandle { thread, mailbox: self.mailbox.downgrade(), places, capacity, store }
    }

    /// Says something as the user: a running response ends at once, and what was visible of it stays. Returns the id under
    /// which it has effect once.
    ///
    /// # Errors
    /// It was not taken.
    pub fn push_user(&self, text: impl Into<String>) -> Result<DedupId, NotPushed> {
        self.push(AgentInput::user(text))
    }

    /// Gives the result of an asynchronous call.
    ///
    /// # Errors
    /// It was not taken.
    pub fn push_result(&self, call: CallId, parts: Vec<ContentPart>) -> Result<DedupId, NotPushed> {
        self.push(AgentInput::result(call, parts))
    }

    /// Gives any input. It is in memory until its commit: whoever must know uses [`push_and_ack`](Self::push_and_ack).
    ///
    /// # Errors
    /// It was not taken.
    pub fn push(&self, input: impl Into<AgentInput>) -> Result<DedupId, NotPushed> {
        let place = self.places.clone().try_acquire_owned().map_err(|e| match e {
            TryAcquireError::NoPermits => NotPushed::Full(self.capacity),
            TryAcquireError::Closed => NotPushed::Gone(ActorGone),
        })?;
        let input = input.into();
        let id = input.id.clone();
        self.send(Command::Push(Box::new(Pushed { input, ack: None, _place: Some(place) })))?;
        Ok(id)
    }

    /// As [`push_user`](Self::push_user), and says what became of it.
    ///
    /// # Errors
    /// The actor ended before it could say.
    pub async fn push_user_and_ack(&self, text: impl Into<String>) -> Result<WriteOutcome, ActorGone> {
        self.push_and_ack(AgentInput::user(text)).await
    }

    /// As [`push_result`](Self::push_result), and says what became of it.
    ///
    /// # Errors
    /// The actor ended before it could say.
    pub async fn push_result_and_ack(
        &self,
        call: CallId,
        parts: Vec<ContentPart>,
    ) -> Result<WriteOutcome, ActorGone> {
        self.push_and_ack(AgentInput::result(call, parts)).await
    }

    /// Gives any input, waiting for a place in the queue, and says what became of it: not before the store has committed
    /// it, which for a user's text is when the model has answered, or was interrupted.
    ///
    /// # Errors
    /// The actor ended before it could say; pushed again under the same id it has effect once.
    pub async fn push_and_ack(&self, input: impl Into<AgentInput>) -> Result<WriteOutcome, ActorGone> {
        let place = self.places.clone().acquire_owned().await.map_err(|_: AcquireError| ActorGone)?;
        let (ack, answer) = oneshot::channel();
        self.send(Command::Push(Box::new(Pushed {
            input: input.into(),
            ack: Some(ack),
            _place: Some(place),
        })))?;
        answer.await.map_err(|_| ActorGone)
    }

    /// What a thread of this process sends.
    pub(super) fn pass_on(&self, input: AgentInput) -> Result<(), ActorGone> {
        self.send(Command::Push(Box::new(Pushed { input, ack: None, _place: None })))
    }

    /// Ends a running response: what was visible of it stays, and the user is told. Without one it has no effect.
    ///
    /// # Errors
    /// There is no actor.
    pub fn stop_response(&self) -> Result<(), ActorGone> {
        self.send(Command::Stop)
    }

    /// Returns when everything that was pushed before is done.
    ///
    /// # Errors
    /// The actor ended before that.
    pub async fn flush(&self) -> Result<(), ActorGone> {
        let (reply, done) = oneshot::channel();
        self.send(Command::Flush(reply))?;
        done.await.map_err(|_| ActorGone)
    }

    /// The thread as a client shows it that attaches now.
    ///
    /// # Errors
    /// The actor is gone, or the store does not answer.
    pub async fn snapshot(&self) -> Result<ReplaySnapshot, ReadError> {
        let mut snapshot = self.read(|view| view.snapshot()).await?;
        // Views are no part of any commit: they are read where they are.
        let views = self.store.views(&self.thread).await.map_err(|e| ReadError::Store(e.to_string()))?;
        snapshot.views = views;
        Ok(snapshot)
    }

    /// How many items are committed, inherited ones among them.
    ///
    /// # Errors
    /// As [`snapshot`](Self::snapshot).
    pub async fn len(&self) -> Result<usize, ReadError> {
        self.read(|view| view.known.items.len()).await
    }

    /// Whether nothing is committed.
    ///
    /// # Errors
    /// As [`snapshot`](Self::snapshot).
    pub async fn is_empty(&self) -> Result<bool, ReadError> {
        self.read(|view| view.known.items.is_empty()).await
    }

    /// The newest committed text of the model.
    ///
    /// # Errors
    /// As [`snapshot`](Self::snapshot).
    pub async fn last_text(&self) -> Result<Option<String>, ReadError> {
        let is_answer = |item: &&Item| matches!(item.body, ItemBody::Assistant(_));
        self.read(move |view| {
            view.known.items.iter().rev().find(is_answer).and_then(|item| text_of(&item.body))
        })
        .await
    }

    /// The committed item at a position of the thread's own log.
    ///
    /// # Errors
    /// As [`snapshot`](Self::snapshot).
    pub async fn item_at(&self, seq: Seq) -> Result<Option<Item>, ReadError> {
        self.read(move |view| {
            let head = view.meta().map_or(Seq::FIRST, |meta| meta.head);
            let behind = usize::try_from(head.0.checked_sub(seq.0)?).ok().filter(|&behind| behind > 0)?;
            view.known.items.iter().nth_back(behind - 1).filter(|item| item.seq == seq).cloned()
        })
        .await
    }

    /// Calls without a result.
    ///
    /// # Errors
    /// As [`snapshot`](Self::snapshot).
    pub async fn pending(&self) -> Result<Vec<PendingCall>, ReadError> {
        self.read(|view| view.meta().map(|meta| meta.pending.clone()).unwrap_or_default()).await
    }

    async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&View<'_>) -> T + Send + 'static,
    ) -> Result<T, ReadError> {
        let (reply, answer) = oneshot::channel();
        let read: Read = Box::new(move |view| {
            // Whoever does not wait any more needs no answer.
            let _ = reply.send(view.map(look).map_err(|why| ReadError::Store(why.to_owned())));
        });
        self.send(Command::Read(read))?;
        answer.await.map_err(|_| ActorGone)?
    }

    /// Has the actor take nothing any more, whoever has a handle.
    pub(super) fn end(&self) {
        // One that is gone has ended.
        let _ = self.send(Command::End);
    }

    fn send(&self, command: Command) -> Result<(), ActorGone> {
        self.mailbox.send(command).map_err(|_| ActorGone)
    }
}
