//! Rows of attached clients: their runs, and what is shown of them while somebody looks. They are transport, not history:
//! a thread without clients has none, and nothing of a conversation is lost with them.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::StoreError;
use crate::message::ThreadId;

/// Milliseconds that shown events are kept: a client that comes back later is shown the messages.
pub const EVENTS_LIFE_MS: i64 = 3_600_000;
/// Milliseconds that a run is kept after its last change: as long as its input's dedup row.
pub const RUN_LIFE_MS: i64 = super::DEDUP_DAYS * 86_400_000;

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// Its input is on the queue.
    Queued,
    /// A slice works on it.
    Running,
    /// It waits for results of tools.
    Waiting,
    /// It is over.
    Ended,
}

/// A run of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunRow {
    /// The client's name of it.
    pub run: String,
    /// Where it stands.
    pub state: RunState,
    /// What the client brought besides its messages, as JSON.
    pub config: String,
    /// Until when somebody looks, unless they say so again; milliseconds.
    pub attached_until_ms: i64,
    /// Somebody wants it to end.
    pub stop: bool,
    /// Slices that have worked on it: each shows what it does under a number of its own.
    pub attempt: u32,
    /// How it ended, as JSON.
    pub end: Option<String>,
}

impl RunRow {
    /// Whether its user has ended it, or wants it to end: whoever would work for it does not.
    pub fn is_stopped(&self) -> bool {
        self.stop || self.state == RunState::Ended
    }

    /// A run whose input is about to be queued.
    pub fn queued(run: impl Into<String>, config: impl Into<String>, attached_until_ms: i64) -> Self {
        Self {
            run: run.into(),
            state: RunState::Queued,
            config: config.into(),
            attached_until_ms,
            stop: false,
            attempt: 0,
            end: None,
        }
    }
}

/// What happens to a run. An ended one is only looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunChange {
    /// Somebody looks, until then.
    Attach {
        /// Milliseconds.
        until_ms: i64,
    },
    /// Somebody wants it to end.
    Stop,
    /// A slice begins to work on it.
    Begin,
    /// It waits.
    Wait,
    /// It is over, so.
    End(String),
}

/// What one slice shows at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunEvents {
    /// The slice's number within the run.
    pub attempt: u32,
    /// The row's number within the slice.
    pub n: u32,
    /// What, as JSON.
    pub text: String,
}

/// Where readers of a run stand: the last row they have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    /// The slice's number.
    pub attempt: u32,
    /// The row's number.
    pub n: u32,
}

/// Runs of attached clients. All reads are strongly consistent.
#[async_trait]
pub trait RunStore: Send + Sync {
    /// Makes a run unless there is one of its name, and says whether it did.
    async fn put_run(&self, thread: &ThreadId, row: &RunRow, now_ms: i64) -> Result<bool, StoreError>;

    /// A run, if it is known.
    async fn run(&self, thread: &ThreadId, run: &str) -> Result<Option<RunRow>, StoreError>;

    /// Changes a run and returns it as it stands then; none if there is none. Of one that has ended nothing changes.
    async fn change_run(
        &self,
        thread: &ThreadId,
        run: &str,
        change: &RunChange,
        now_ms: i64,
    ) -> Result<Option<RunRow>, StoreError>;

    /// Writes what a slice shows. It expires.
    async fn put_run_events(
        &self,
        thread: &ThreadId,
        run: &str,
        events: &RunEvents,
        now_ms: i64,
    ) -> Result<(), StoreError>;

    /// What was shown behind `after`, in order.
    async fn run_events(
        &self,
        thread: &ThreadId,
        run: &str,
        after: Cursor,
    ) -> Result<Vec<RunEvents>, StoreError>;
}
