//! What a slice shows to an attached client: rows that the client's stream reads, written while somebody looks and never
//! otherwise. Nobody waits for them but the slice itself, for a moment; one that cannot be written is not worth a retry.
//!
//! The pieces of a slice are kept in hand for as long as it lasts: whoever looks only later gets a row that holds all of
//! them, and goes on from there.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::Runtime;
use crate::agui::convert::{INTERRUPTED, Placed, responses, result_text};
use crate::agui::emit::Piece;
use crate::agui::wire::RunConfig;
use crate::message::{CallId, Epoch, Item, ItemBody, ItemId, RawJson, ThreadId};
use crate::store::{RunChange, RunEvents, RunRow, RunState, Store, StoreError};
use crate::thread::HistoryManager;

/// Pieces wait this long for more of their kind.
const FLUSH_AFTER: Duration = Duration::from_millis(100);
/// Bytes of text that are not held back.
const FLUSH_BYTES: usize = 4 * 1024;
/// Between two looks whether somebody is attached, or wants the run to end.
const LOOK_AFTER: Duration = Duration::from_secs(1);
/// Bytes of pieces that a slice keeps for whoever looks later. What comes behind them is only shown as it comes.
const MAX_KEPT_BYTES: usize = 1024 * 1024;

/// One row.
#[derive(Debug, Serialize, Deserialize)]
pub struct LiveRow {
    /// It holds everything of its slice so far, not only what is new.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
    /// What is shown.
    pub pieces: Vec<Piece>,
}

/// A slice that works for a client's run.
pub(super) struct Live {
    store: Arc<dyn Store>,
    clock: Arc<dyn super::Clock>,
    thread: ThreadId,
    row: RunRow,
    config: RunConfig,
    n: u32,
    /// New since the last row.
    new: Vec<Piece>,
    new_bytes: usize,
    /// Everything, texts of one message as one piece.
    all: Vec<Piece>,
    all_bytes: usize,
    /// The last row was written while somebody looked: what is new is all that is missing.
    is_followed: bool,
    due: Option<Instant>,
    looked: Instant,
    /// Calls and results that are shown already.
    shown: BTreeSet<(bool, CallId)>,
    /// The state is shown.
    shares: bool,
    /// The response that runs.
    message: String,
}

impl Live {
    /// The client's run that this slice works for, if it does. A run that is not known any more is nobody's.
    ///
    /// # Errors
    /// The store's: what the client brings, its tools above all, is part of the request.
    pub(super) async fn begin(
        runtime: &Runtime,
        manager: &HistoryManager,
    ) -> Result<Option<Self>, StoreError> {
        let (Some(run), Some(runs)) = (manager.run(), runtime.store.runs()) else { return Ok(None) };
        let thread = manager.history().thread().clone();
        let begun = runs.change_run(&thread, run, &RunChange::Begin, runtime.clock.now_ms()).await?;
        let Some(row) = begun else { return Ok(None) };
        Ok(Some(Self {
            store: runtime.store.clone(),
            clock: runtime.clock.clone(),
            config: serde_json::from_str(&row.config).unwrap_or_default(),
            thread,
            row,
            n: 0,
            new: Vec::new(),
            new_bytes: 0,
            all: Vec::new(),
            all_bytes: 0,
            is_followed: false,
            due: None,
            looked: Instant::now(),
            shown: BTreeSet::new(),
            shares: false,
            message: String::new(),
        }))
    }

    /// Whether its user had ended the run when the slice began.
    pub(super) fn is_stopped(&self) -> bool {
        self.row.is_stopped()
    }

    /// What the client brought to the run.
    pub(super) fn config(&self) -> &RunConfig {
        &self.config
    }

    /// A response begins, whose first item would stand there.
    pub(super) fn asking(&mut self, first: &ItemId) {
        first.as_str().clone_into(&mut self.message);
    }

    /// A piece of text.
    pub(super) fn text(&mut self, delta: &str) {
        self.push(Piece::Text { message: self.message.clone(), delta: delta.to_owned() });
    }

    /// A piece of reasoning.
    pub(super) fn reasoning(&mut self, delta: &str) {
        self.push(Piece::Reasoning { message: self.message.clone(), delta: delta.to_owned() });
    }

    /// What was shown of the response does not count.
    pub(super) fn discard(&mut self) {
        let message = self.message.clone();
        // Whoever looks later is not shown it.
        self.all.retain(|piece| !matches!(piece, Piece::Text { message: of, .. } | Piece::Reasoning { message: of, .. } if *of == message));
        self.add_new(Piece::Discard);
    }

    /// A result that has come in.
    pub(super) fn result(&mut self, call: &CallId, content: String) {
        if self.shown.insert((true, call.clone())) {
            self.push(Piece::Result { call: call.as_str().to_owned(), content });
        }
    }

    /// Calls and results that are committed. `items` are the thread's own, from the beginning of a response on.
    pub(super) fn committed(&mut self, epoch: Epoch, items: &[Item]) {
        let placed: Vec<Placed<'_>> = items.iter().map(|item| Placed { epoch, item, ancestor: 0 }).collect();
        let firsts = responses(&placed);
        for (at, item) in items.iter().enumerate() {
            match &item.body {
                ItemBody::ToolCall(call) if self.shown.insert((false, call.call_id.clone())) => {
                    let first = firsts[at].and_then(|first| placed.get(first)).unwrap_or(&placed[at]);
                    self.push(Piece::Call {
                        message: first.id(),
                        call: call.call_id.as_str().to_owned(),
                        name: call.name.clone(),
                        arguments: call.arguments.clone(),
                    });
                }
                ItemBody::ToolResult(result) => self.result(&result.call_id, result_text(&result.parts)),
                ItemBody::Interrupt(interrupt) => self.result(&interrupt.call_id, INTERRUPTED.to_owned()),
                ItemBody::State(shared) => self.state(&shared.state),
                ItemBody::ToolCall(_)
                | ItemBody::System(_)
                | ItemBody::User(_)
                | ItemBody::Assistant(_)
                | ItemBody::BackendToolCall(_)
                | ItemBody::Reasoning(_)
                | ItemBody::Event(_)
                | ItemBody::Unknown { .. } => {}
            }
        }
    }

    /// What the application and the agent share now.
    pub(super) fn state(&mut self, state: &RawJson) {
        self.shares = true;
        // Whoever looks later is shown the newest one alone.
        self.all.retain(|piece| !matches!(piece, Piece::State { .. }));
        self.all_bytes = self.all.iter().map(piece_bytes).sum();
        self.push(Piece::State { state: state.get().to_owned() });
    }

    /// Whether the client was shown in this slice what it shares with the agent.
    pub(super) fn shares(&self) -> bool {
        self.shares
    }

    fn push(&mut self, piece: Piece) {
        let bytes = piece_bytes(&piece);
        if self.all_bytes.saturating_add(bytes) <= MAX_KEPT_BYTES {
            self.all_bytes += bytes;
            match self.all.iter_mut().find_map(|known| joined(known, &piece)) {
                Some((known, delta)) => known.push_str(delta),
                None => self.all.push(piece.clone()),
            }
        }
        self.add_new(piece);
    }

    fn add_new(&mut self, piece: Piece) {
        self.new_bytes = self.new_bytes.saturating_add(piece_bytes(&piece));
        match self.new.last_mut().and_then(|known| joined(known, &piece)) {
            Some((known, delta)) => known.push_str(delta),
            None => self.new.push(piece),
        }
        let now = Instant::now();
        let due = if self.new_bytes >= FLUSH_BYTES { now } else { now + FLUSH_AFTER };
        self.due = Some(self.due.map_or(due, |before| before.min(due)));
    }

    /// Resolves when something is to be written, or looked at.
    pub(super) async fn wait(&self) {
        let look = self.looked + LOOK_AFTER;
        tokio::time::sleep_until(self.due.map_or(look, |due| due.min(look))).await;
    }

    /// Writes what is due, and looks whether somebody is attached.
    pub(super) async fn tend(&mut self) {
        if Instant::now() >= self.looked + LOOK_AFTER {
            self.look().await;
        }
        if self.due.is_some_and(|due| due <= Instant::now()) || !self.is_followed {
            self.flush().await;
        }
    }

    /// A result that the client has brought itself.
    pub(super) fn knows_result(&mut self, call: CallId) {
        self.shown.insert((true, call));
    }

    async fn look(&mut self) {
        self.looked = Instant::now();
        let Some(runs) = self.store.runs() else { return };
        match runs.run(&self.thread, &self.row.run).await {
            Ok(Some(row)) => self.row = RunRow { attempt: self.row.attempt, ..row },
            Ok(None) => {}
            Err(error) => tracing::info!(thread = %self.thread, %error, "cannot look for a client"),
        }
    }

    /// Writes what is not written yet, if somebody looks.
    pub(super) async fn flush(&mut self) {
        self.due = None;
        let now_ms = self.clock.now_ms();
        if self.row.attached_until_ms <= now_ms || self.row.state == RunState::Ended {
            self.is_followed = false;
            self.new.clear();
            self.new_bytes = 0;
            return;
        }
        let whole = !self.is_followed && self.all != self.new;
        let pieces = if whole { self.all.clone() } else { std::mem::take(&mut self.new) };
        self.new.clear();
        self.new_bytes = 0;
        self.is_followed = true;
        if pieces.is_empty() {
            return;
        }
        let Some(runs) = self.store.runs() else { return };
        self.n = self.n.saturating_add(1);
        let text = serde_json::to_string(&LiveRow { whole, pieces }).expect("bug: pieces serialise");
        let events = RunEvents { attempt: self.row.attempt, n: self.n, text };
        if let Err(error) = runs.put_run_events(&self.thread, &self.row.run, &events, now_ms).await {
            tracing::warn!(thread = %self.thread, %error, "a client misses something");
            // The next row holds it as well.
            self.is_followed = false;
        }
    }

    /// The slice is over and the run is not: it waits.
    pub(super) async fn rest(mut self) {
        self.flush().await;
        let Some(runs) = self.store.runs() else { return };
        let waiting =
            runs.change_run(&self.thread, &self.row.run, &RunChange::Wait, self.clock.now_ms()).await;
        if let Err(error) = waiting {
            tracing::info!(thread = %self.thread, %error, "a run's state is behind");
        }
    }
}

fn piece_bytes(piece: &Piece) -> usize {
    match piece {
        Piece::Text { delta, .. } | Piece::Reasoning { delta, .. } => delta.len(),
        Piece::Discard => 0,
        Piece::Call { arguments, .. } => arguments.len(),
        Piece::Result { content, .. } => content.len(),
        Piece::State { state } => state.len(),
    }
}

/// The text that `piece` goes on, and what it adds.
fn joined<'a, 'b>(known: &'a mut Piece, piece: &'b Piece) -> Option<(&'a mut String, &'b str)> {
    match (known, piece) {
        (Piece::Text { message: of, delta }, Piece::Text { message, delta: more })
        | (Piece::Reasoning { message: of, delta }, Piece::Reasoning { message, delta: more })
            if of == message =>
        {
            Some((delta, more))
        }
        _ => None,
    }
}
