//! Runs of attached clients, and what is shown of them.

use std::collections::HashMap;

use async_trait::async_trait;
use aws_sdk_dynamodb::error::ProvideErrorMetadata;
use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue};

use super::calls::{Failure, failure, pauses};
use super::codec::{self, EXPIRES_AT, Row, flag, n, number, s, text};
use super::reads::Range;
use super::{DynamoStore, keys};
use crate::message::ThreadId;
use crate::store::{
    Cursor, EVENTS_LIFE_MS, RUN_LIFE_MS, Rewrite, RunChange, RunEvents, RunRow, RunState, RunStore,
    StoreError, TextOf,
};

const RUN: &str = "run";
const STATE: &str = "run_state";
const ATTACHED: &str = "attached_until";
const STOP: &str = "stop_asked";
const ATTEMPT: &str = "attempt";
const END: &str = "run_end";
const NUMBER: &str = "n";

/// What a failed condition is called.
const CONDITION_FAILED: &str = "ConditionalCheckFailedException";

fn state_text(state: RunState) -> &'static str {
    match state {
        RunState::Queued => "queued",
        RunState::Running => "running",
        RunState::Waiting => "waiting",
        RunState::Ended => "ended",
    }
}

fn row_of(thread: &ThreadId, run: &RunRow, now_ms: i64) -> Row {
    let mut row = codec::run_row(thread, &run.run, &run.config);
    row.insert(RUN.to_owned(), s(&run.run));
    row.insert(STATE.to_owned(), s(state_text(run.state)));
    row.insert(ATTACHED.to_owned(), n(run.attached_until_ms));
    row.insert(ATTEMPT.to_owned(), n(run.attempt));
    row.insert(EXPIRES_AT.to_owned(), n(codec::seconds(now_ms + RUN_LIFE_MS)));
    row
}

/// A run's row with another end; none if it stays.
pub(super) fn with_end_rewritten(row: &Row, rewrite: &Rewrite<'_>) -> Option<Row> {
    let end = rewrite(TextOf::State, text(row, END)?)?;
    let mut row = row.clone();
    row.insert(END.to_owned(), s(end));
    Some(row)
}

impl DynamoStore {
    async fn read_run(&self, row: &Row) -> Result<Option<RunRow>, StoreError> {
        let bodies = self.bodies_of([row].into_iter()).await?;
        let states = [RunState::Queued, RunState::Running, RunState::Waiting, RunState::Ended];
        let Some(run) = text(row, RUN) else { return Ok(None) };
        Ok(Some(RunRow {
            run: run.to_owned(),
            // What a newer version calls otherwise is under way.
            state: states
                .into_iter()
                .find(|state| text(row, STATE) == Some(state_text(*state)))
                .unwrap_or(RunState::Running),
            config: codec::content(row, &bodies).unwrap_or_default().to_owned(),
            attached_until_ms: number(row, ATTACHED).unwrap_or_default(),
            stop: flag(row, STOP),
            attempt: number(row, ATTEMPT).unwrap_or_default(),
            end: text(row, END).map(str::to_owned),
        }))
    }
}

#[async_trait]
impl RunStore for DynamoStore {
    async fn put_run(&self, thread: &ThreadId, run: &RunRow, now_ms: i64) -> Result<bool, StoreError> {
        let row = row_of(thread, run, now_ms);
        self.put_bodies([(keys::thread_pk(thread).as_str(), run.config.as_str())].into_iter()).await?;
        let mut pauses = pauses();
        loop {
            let put = self.client.put_item().table_name(&*self.table).set_item(Some(row.clone()));
            let put = put.condition_expression(format!("attribute_not_exists({})", keys::PK));
            let error = match self.once(put.send()).await {
                Ok(_) => return Ok(true),
                Err(error) if error.code() == Some(CONDITION_FAILED) => return Ok(false),
                Err(error) => error,
            };
            match (failure("PutItem", &error), pauses.next()) {
                (Failure::Transient(_), Some(pause)) => tokio::time::sleep(pause).await,
                (failed, _) => return Err(failed.into()),
            }
        }
    }

    async fn run(&self, thread: &ThreadId, run: &str) -> Result<Option<RunRow>, StoreError> {
        match self.get(&keys::run(thread, run)).await? {
            Some(row) => self.read_run(&row).await,
            None => Ok(None),
        }
    }

    async fn change_run(
        &self,
        thread: &ThreadId,
        run: &str,
        change: &RunChange,
        now_ms: i64,
    ) -> Result<Option<RunRow>, StoreError> {
        let mut values: HashMap<String, AttributeValue> = HashMap::new();
        values.insert(":expiry".to_owned(), n(codec::seconds(now_ms + RUN_LIFE_MS)));
        let state = |values: &mut HashMap<String, AttributeValue>, state| {
            values.insert(":state".to_owned(), s(state_text(state)));
        };
        let update = match change {
            RunChange::Attach { until_ms } => {
                values.insert(":until".to_owned(), n(*until_ms));
                format!("SET {ATTACHED} = :until")
            }
            RunChange::Stop => {
                values.insert(":stop".to_owned(), AttributeValue::Bool(true));
                format!("SET {STOP} = :stop")
            }
            RunChange::Begin => {
                state(&mut values, RunState::Running);
                values.insert(":one".to_owned(), n(1));
                format!("ADD {ATTEMPT} :one SET {STATE} = :state")
            }
            RunChange::Wait => {
                state(&mut values, RunState::Waiting);
                format!("SET {STATE} = :state")
            }
            RunChange::End(end) => {
                state(&mut values, RunState::Ended);
                values.insert(":end".to_owned(), s(end));
                format!("SET {STATE} = :state, {END} = :end")
            }
        };
        let update = format!("{update}, {EXPIRES_AT} = :expiry");
        let key = keys::run(thread, run);
        let mut pauses = pauses();
        loop {
            let request = self
                .client
                .update_item()
                .table_name(&*self.table)
                .set_key(Some(key.attributes()))
                .update_expression(&update)
                .condition_expression(format!(
                    "attribute_exists({}) AND attribute_not_exists({END})",
                    keys::PK
                ))
                .set_expression_attribute_values(Some(values.clone()))
                .return_values(ReturnValue::AllNew);
            let error = match self.once(request.send()).await {
                Ok(answer) => return self.read_run(&answer.attributes.unwrap_or_default()).await,
                Err(error) if error.code() == Some(CONDITION_FAILED) => return self.run(thread, run).await,
                Err(error) => error,
            };
            match (failure("UpdateItem", &error), pauses.next()) {
                (Failure::Transient(_), Some(pause)) => tokio::time::sleep(pause).await,
                (failed, _) => return Err(failed.into()),
            }
        }
    }

    async fn put_run_events(
        &self,
        thread: &ThreadId,
        run: &str,
        events: &RunEvents,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        let mut row = codec::run_events_row(thread, run, events);
        row.insert(RUN.to_owned(), s(run));
        row.insert(ATTEMPT.to_owned(), n(events.attempt));
        row.insert(NUMBER.to_owned(), n(events.n));
        row.insert(EXPIRES_AT.to_owned(), n(codec::seconds(now_ms + EVENTS_LIFE_MS)));
        self.put_text_row(row, &events.text).await
    }

    async fn run_events(
        &self,
        thread: &ThreadId,
        run: &str,
        after: Cursor,
    ) -> Result<Vec<RunEvents>, StoreError> {
        let from = keys::run_events(thread, run, after.attempt, after.n.saturating_add(1)).sk;
        let to = keys::run_events(thread, run, u32::MAX, u32::MAX).sk;
        let rows = self.query(keys::thread_pk(thread), Range::Between(from, to)).await?;
        let bodies = self.bodies_of(rows.iter()).await?;
        let read = |row: &Row| {
            let text = codec::content(row, &bodies)?.to_owned();
            Some(RunEvents { attempt: number(row, ATTEMPT)?, n: number(row, NUMBER)?, text })
        };
        Ok(rows.iter().filter_map(read).collect())
    }
}
