//! What a system tells: the events that its slices show, and its replies.

use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::sync::broadcast;

use crate::message::{OutputMessage, ThreadId};
use crate::queue::{OutputSender, QueueError};
use crate::slice::{DisplayEvent, Observer, Runtime};

/// Events that a slow reader of the stream may be behind.
const MAX_BEHIND: usize = 4_096;

/// Something happened.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum AgentEvent {
    /// Something to show, while a slice runs. What is streamed may still be [discarded](DisplayEvent::Discarded).
    Shown {
        /// The thread.
        thread: ThreadId,
        /// What.
        event: DisplayEvent,
    },
    /// A reply, a question or an error, after its commit. Whoever must not see one twice drops a `message_id` that it has
    /// seen.
    Output(OutputMessage),
    /// The reader of this stream was too slow.
    Missed {
        /// Events that it does not get.
        events: u64,
    },
}

impl AgentEvent {
    /// The thread it is about.
    pub fn thread(&self) -> Option<&ThreadId> {
        match self {
            Self::Shown { thread, .. } => Some(thread),
            Self::Output(message) => Some(&message.thread_id),
            Self::Missed { .. } => None,
        }
    }
}

/// Has a runtime tell everything to a stream as well.
pub(super) fn attach(runtime: &mut Runtime) -> broadcast::Sender<AgentEvent> {
    let (events, _) = broadcast::channel(MAX_BEHIND);
    let tell = events.clone();
    // Without a reader there is nobody to tell.
    tap(runtime, move |event| drop(tell.send(event)));
    events
}

/// Has a runtime tell everything to `tell` as well. Called inline: it must not block.
pub(super) fn tap(runtime: &mut Runtime, tell: impl Fn(AgentEvent) + Send + Sync + 'static) {
    let tell = Arc::new(tell);
    runtime.observer = Arc::new(Tap { inner: runtime.observer.clone(), tell: tell.clone() });
    runtime.output = Arc::new(Tap { inner: runtime.output.clone(), tell });
}

struct Tap<I, F> {
    inner: I,
    tell: Arc<F>,
}

impl<F: Fn(AgentEvent) + Send + Sync> Observer for Tap<Arc<dyn Observer>, F> {
    fn on_event(&self, thread: &ThreadId, event: &DisplayEvent) {
        self.inner.on_event(thread, event);
        (self.tell)(AgentEvent::Shown { thread: thread.clone(), event: event.clone() });
    }
}

#[async_trait]
impl<F: Fn(AgentEvent) + Send + Sync> OutputSender for Tap<Arc<dyn OutputSender>, F> {
    async fn send(&self, message: &OutputMessage) -> Result<(), QueueError> {
        self.inner.send(message).await?;
        (self.tell)(AgentEvent::Output(message.clone()));
        Ok(())
    }
}

/// Several observers as one.
pub(super) struct Observers(pub(super) Vec<Arc<dyn Observer>>);

impl Observer for Observers {
    fn on_event(&self, thread: &ThreadId, event: &DisplayEvent) {
        for observer in &self.0 {
            observer.on_event(thread, event);
        }
    }
}

/// A closure as an observer.
pub(super) struct OnEvent<F>(pub(super) F);

impl<F: Fn(&ThreadId, &DisplayEvent) + Send + Sync> Observer for OnEvent<F> {
    fn on_event(&self, thread: &ThreadId, event: &DisplayEvent) {
        (self.0)(thread, event);
    }
}

/// Replies are events, and nothing else.
pub(super) struct OnlyEvents;

#[async_trait]
impl OutputSender for OnlyEvents {
    async fn send(&self, _message: &OutputMessage) -> Result<(), QueueError> {
        Ok(())
    }
}

pub(super) fn stream(events: broadcast::Receiver<AgentEvent>) -> BoxStream<'static, AgentEvent> {
    futures::stream::unfold(events, |mut events| async move {
        match events.recv().await {
            Ok(event) => Some((event, events)),
            Err(broadcast::error::RecvError::Lagged(missed)) => {
                Some((AgentEvent::Missed { events: missed }, events))
            }
            Err(broadcast::error::RecvError::Closed) => None,
        }
    })
    .boxed()
}
