//! A run's rows as a stream of events. Whatever rows there are, and in whatever state their slices left them, the stream
//! begins, is in order, and ends: see [`emit`](crate::agui::emit).

use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use tokio::time::Instant;

use super::StreamTime;
use super::views::{View, current};
use super::watch::{Run, Watch};
use crate::agui::emit::{self, End, Piece};
use crate::agui::wire::{Event, Message};
use crate::message::ThreadId;
use crate::slice::live::LiveRow;
use crate::slice::{Clock, SystemClock};
use crate::store::{Cursor, RunChange, RunRow, RunState, Store, StoreError};

/// Milliseconds for which a client counts as attached once it has said so.
pub(super) const ATTACHED_MS: i64 = 30_000;
/// A client that is still there says so after this time.
const RENEW_AFTER: Duration = Duration::from_secs(10);
/// Between two looks: the first, and the longest after some without news.
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_millis(400);
/// A stream without news says that it is there.
const KEEP_ALIVE_AFTER: Duration = Duration::from_secs(15);
/// How long a stream lasts at most; the run goes on, and posting it again shows the rest.
const MAX_STREAM: Duration = Duration::from_secs(14 * 60);
/// Looks at the store that fail in a row before a stream gives up.
const MAX_FAILURES: u32 = 5;
/// A comment: clients ignore it.
const KEEP_ALIVE: &str = ": keep-alive\n\n";

/// Somebody who follows a run.
pub(super) struct Tail {
    store: Arc<dyn Store>,
    thread: ThreadId,
    /// The client's own names.
    thread_name: String,
    run: String,
    time: Duration,
}

/// What one look finds.
struct Look {
    row: Option<RunRow>,
    rows: Vec<(Cursor, LiveRow)>,
}

impl Tail {
    pub(super) fn new(store: Arc<dyn Store>, thread: ThreadId, thread_name: String, run: String) -> Self {
        Self { store, thread, thread_name, run, time: MAX_STREAM }
    }

    /// With less time, where there is.
    pub(super) fn within(self, time: Option<StreamTime>) -> Self {
        Self { time: time.map_or(self.time, |StreamTime(time)| time.min(MAX_STREAM)), ..self }
    }

    /// The run from its beginning to its end, as frames.
    pub(super) fn events(self) -> impl Stream<Item = String> + Send + 'static {
        async_stream::stream! {
            let (stream, started) = emit::begin(&self.thread_name, &self.run);
            yield started.frame();
            let mut frames = std::pin::pin!(self.follow(stream));
            while let Some(frame) = futures::StreamExt::next(&mut frames).await {
                yield frame;
            }
        }
    }

    /// The thread as it stands, and then the run that is under way, as a second one in the same body.
    pub(super) fn connected(mut self, active: Option<String>) -> impl Stream<Item = String> + Send + 'static {
        async_stream::stream! {
            let (mut stream, started) = emit::begin(&self.thread_name, &self.run);
            yield started.frame();
            let View { mut messages, state, .. } = self.view().await;
            if active.is_some() {
                // What the run has made so far is shown by its own events.
                let last = messages.iter().rposition(|message| matches!(message, Message::User { .. }));
                messages.truncate(last.map_or(0, |last| last + 1));
            }
            let shared = state.and_then(|state| stream.share(state.get()));
            for event in shared.into_iter().chain(stream.snapshot(messages)).chain(stream.end(End::Finished, Vec::new)) {
                yield event.frame();
            }
            if let Some(run) = active {
                self.run = run;
                let mut frames = std::pin::pin!(self.events());
                while let Some(frame) = futures::StreamExt::next(&mut frames).await {
                    yield frame;
                }
            }
        }
    }

    fn follow(self, mut stream: emit::Stream) -> impl Stream<Item = String> + Send + 'static {
        async_stream::stream! {
            let (mut cursor, mut failures) = (Cursor::default(), 0);
            let (mut pause, mut shown_any, mut watch) = (FIRST_PAUSE, false, Watch::new());
            let began = Instant::now();
            let (mut renewed, mut said) = (began, began);
            let end = loop {
                let look = match self.look(cursor).await {
                    Ok(look) => look,
                    Err(error) => {
                        failures += 1;
                        tracing::warn!(thread = %self.thread, %error, failures, "a run cannot be followed");
                        if failures >= MAX_FAILURES {
                            break End::failed("INTERNAL", "the run cannot be followed now; post it again");
                        }
                        tokio::time::sleep(LONGEST_PAUSE).await;
                        continue;
                    }
                };
                failures = 0;
                let is_new = !look.rows.is_empty();
                for (at, row) in look.rows {
                    for event in show(&mut stream, &mut cursor, at, &row) {
                        shown_any = true;
                        said = Instant::now();
                        yield event.frame();
                    }
                }
                let is_over = look.row.as_ref().is_none_or(|row| row.state == RunState::Ended);
                let state = if is_over { Run::IsOver } else { Run::GoesOn };
                for view in watch.look(&*self.store, &self.thread, state).await {
                    yield stream.view(view).frame();
                }
                match look.row {
                    Some(row) if row.state == RunState::Ended => break self.end_of(row, shown_any),
                    Some(_) => {}
                    None => break End::failed("INTERNAL", "the run is not known any more"),
                }
                if began.elapsed() >= self.time {
                    break End::failed("STREAM_TIMEOUT", "the run goes on; post it again to see the rest");
                }
                pause = if is_new { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
                if said.elapsed() >= KEEP_ALIVE_AFTER {
                    said = Instant::now();
                    yield KEEP_ALIVE.to_owned();
                }
                if renewed.elapsed() >= RENEW_AFTER {
                    renewed = Instant::now();
                    self.renew().await;
                }
                tokio::time::sleep(pause).await;
            };
            // A client that is to answer goes by what it has; one that has missed the run has nothing else.
            let view = match &end {
                End::Unchanged | End::Interrupted { .. } => self.view().await,
                End::Finished | End::Failed { .. } => View::default(),
            };
            if let Some(event) = view.state.as_ref().and_then(|state| stream.share(state.get())) {
                yield event.frame();
            }
            let (end, messages) = (view.with_addresses(end), view.messages);
            for event in stream.end(end, || messages) {
                yield event.frame();
            }
        }
    }

    /// The row first: once it says that the run is over, all rows of it are written.
    async fn look(&self, after: Cursor) -> Result<Look, StoreError> {
        let Some(runs) = self.store.runs() else { return Ok(Look { row: None, rows: Vec::new() }) };
        let row = runs.run(&self.thread, &self.run).await?;
        let rows = runs.run_events(&self.thread, &self.run, after).await?;
        let mut read = Vec::with_capacity(rows.len());
        for events in rows {
            // One of a newer version is left out; its place is taken all the same.
            let row = serde_json::from_str(&events.text);
            let row = row.unwrap_or(LiveRow { whole: false, pieces: Vec::new() });
            read.push((Cursor { attempt: events.attempt, n: events.n }, row));
        }
        Ok(Look { row, rows: read })
    }

    /// How the stream ends. Of a run that was shown once and whose rows are gone, the messages are shown.
    fn end_of(&self, row: RunRow, shown_any: bool) -> End {
        let end = row.end.as_deref().and_then(|end| serde_json::from_str(end).ok());
        match end.unwrap_or(End::Finished) {
            End::Finished if !shown_any => End::Unchanged,
            end => end,
        }
    }

    async fn renew(&self) {
        let Some(runs) = self.store.runs() else { return };
        let now_ms = SystemClock.now_ms();
        let attach = RunChange::Attach { until_ms: now_ms + ATTACHED_MS };
        if let Err(error) = runs.change_run(&self.thread, &self.run, &attach, now_ms).await {
            tracing::info!(thread = %self.thread, %error, "a client could not say that it is there");
        }
    }

    async fn view(&self) -> View {
        match current(&*self.store, &self.thread).await {
            Ok(view) => view,
            Err(error) => {
                tracing::warn!(thread = %self.thread, %error, "a thread cannot be shown");
                View::default()
            }
        }
    }
}

/// The events of one row.
fn show(stream: &mut emit::Stream, cursor: &mut Cursor, at: Cursor, row: &LiveRow) -> Vec<Event> {
    let mut events = Vec::new();
    if at.attempt != cursor.attempt {
        events.extend(stream.next_slice());
    }
    *cursor = at;
    match row.whole {
        true => events.extend(stream.catch_up(&row.pieces)),
        false => events.extend(row.pieces.iter().flat_map(|piece: &Piece| stream.show(piece))),
    }
    events
}
