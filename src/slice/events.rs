//! What a person may want to see while a slice runs, for observers: the terminal, live rows, a library user,
//! or nobody. Observers change nothing and may miss nothing that matters: replies go through the outbox.

use crate::message::ThreadId;

/// Something to show.
#[derive(Clone, Debug, PartialEq)]
pub enum DisplayEvent {
    /// The model is being asked.
    Asking {
        /// Which one.
        model: String,
    },
    /// A piece of the reply.
    Text(String),
    /// A piece of reasoning.
    Reasoning(String),
    /// What was shown of this response does not count: it is retried or was cut.
    Discarded {
        /// Why, fit for the user.
        why: String,
    },
    /// A call is committed and goes out.
    Call {
        /// The tool.
        name: String,
        /// Its arguments.
        arguments: String,
    },
    /// A call's result is in.
    Result {
        /// The tool, where known.
        name: String,
        /// Its text.
        text: String,
    },
    /// The user is to consent somewhere; the tool then goes on by itself.
    Consent {
        /// Where.
        auth_url: String,
    },
    /// The user is asked to choose.
    Choice {
        /// The question and its answers.
        text: String,
    },
    /// Something the user should know.
    Notice(String),
    /// The response is committed and nothing is out: the thread sleeps until the next input.
    Done,
    /// The slice is over, calls are out: the thread sleeps until their results are in.
    Sleeping {
        /// How many.
        calls: usize,
    },
    /// The slice failed and will be run again.
    Retrying {
        /// Why, fit for the user.
        why: String,
    },
}

/// Somebody who watches. Called inline: must not block.
pub trait Observer: Send + Sync {
    /// Something happened in `thread`.
    fn on_event(&self, thread: &ThreadId, event: &DisplayEvent);
}

/// Nobody watches.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObserver;

impl Observer for NoObserver {
    fn on_event(&self, _thread: &ThreadId, _event: &DisplayEvent) {}
}
