//! Runs of attached clients, in memory.

use async_trait::async_trait;

use super::{MemoryStore, ordered_outage};
use crate::message::ThreadId;
use crate::store::{Cursor, RunChange, RunEvents, RunRow, RunState, RunStore, StoreError};

#[async_trait]
impl RunStore for MemoryStore {
    async fn put_run(&self, thread: &ThreadId, row: &RunRow, _now_ms: i64) -> Result<bool, StoreError> {
        let mut state = self.lock();
        let runs = &mut state.threads.entry(thread.clone()).or_default().runs;
        let is_new = !runs.contains_key(&row.run);
        runs.entry(row.run.clone()).or_insert_with(|| row.clone());
        Ok(is_new)
    }

    async fn run(&self, thread: &ThreadId, run: &str) -> Result<Option<RunRow>, StoreError> {
        Ok(self.of_thread(thread, |rows| rows.runs.get(run).cloned()))
    }

    async fn change_run(
        &self,
        thread: &ThreadId,
        run: &str,
        change: &RunChange,
        _now_ms: i64,
    ) -> Result<Option<RunRow>, StoreError> {
        let mut state = self.lock();
        if state.failing_run_changes > 0 {
            state.failing_run_changes -= 1;
            return Err(ordered_outage());
        }
        let runs = &mut state.threads.entry(thread.clone()).or_default().runs;
        let Some(row) = runs.get_mut(run) else { return Ok(None) };
        if row.state != RunState::Ended {
            match change {
                RunChange::Attach { until_ms } => row.attached_until_ms = *until_ms,
                RunChange::Stop => row.stop = true,
                RunChange::Begin => {
                    row.state = RunState::Running;
                    row.attempt = row.attempt.saturating_add(1);
                }
                RunChange::Wait => row.state = RunState::Waiting,
                RunChange::End(end) => {
                    row.state = RunState::Ended;
                    row.end = Some(end.clone());
                }
            }
        }
        Ok(Some(row.clone()))
    }

    async fn put_run_events(
        &self,
        thread: &ThreadId,
        run: &str,
        events: &RunEvents,
        _now_ms: i64,
    ) -> Result<(), StoreError> {
        let mut state = self.lock();
        let rows = &mut state.threads.entry(thread.clone()).or_default().run_events;
        rows.insert((run.to_owned(), events.attempt, events.n), events.text.clone());
        Ok(())
    }

    async fn run_events(
        &self,
        thread: &ThreadId,
        run: &str,
        after: Cursor,
    ) -> Result<Vec<RunEvents>, StoreError> {
        let behind = |attempt: u32, n: u32| (attempt, n) > (after.attempt, after.n);
        Ok(self.of_thread(thread, |rows| {
            let of_run = rows.run_events.iter().filter(|((of, _, _), _)| of == run);
            let of_run = of_run.filter(|((_, attempt, n), _)| behind(*attempt, *n));
            of_run
                .map(|((_, attempt, n), text)| RunEvents { attempt: *attempt, n: *n, text: text.clone() })
                .collect()
        }))
    }
}
