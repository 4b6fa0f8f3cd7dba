//! A compaction's commit: a generation and META's pointer to it in one transaction, or attempts alone. On condition of the
//! log and of the last generation's number, not of the head or the token: slices go on meanwhile, and neither overwrites
//! what the other owns.

use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::types::{AttributeValue, TransactWriteItem};

use super::DynamoStore;
use super::calls::{Failure, failure, is_transient_code, pauses};
use super::codec::{self, n};
use super::commit::{CONDITION_FAILED, PutIf, REQUEST_TOKEN_CHARS, update_action};
use super::keys::{self, PK};
use super::meta_row::{self, CLOSED, COMPACT_RUN, GEN_LAST, LOG};
use crate::store::{
    Compacted, CompactionCommit, CompactionState, Generation, GenerationId, StoreError, body_digest,
};

impl DynamoStore {
    pub(super) async fn write_compaction(&self, change: CompactionCommit) -> Result<Compacted, StoreError> {
        if let Some(generation) = &change.generation {
            let pk = keys::generation(&generation.at.id).pk;
            self.put_bodies([(pk.as_str(), generation.said().as_str())].into_iter()).await?;
        }
        let actions = self.compaction_actions(&change);
        let digest =
            change.generation.as_ref().map_or(change.run.profile.as_str(), |new| new.digest.as_str());
        let name = format!(
            "{}\n{}\n{}\n{}\n{}\n{digest}\n{}\n{:?}",
            self.table,
            change.thread,
            change.epoch,
            change.last,
            change.run.next_try_at_ms,
            change.run.attempts,
            change.run.dead
        );
        let token = &body_digest(&name)[..REQUEST_TOKEN_CHARS];
        let mut pauses = pauses();
        loop {
            let request = self.client.transact_write_items().client_request_token(token);
            let request = request.set_transact_items(Some(actions.clone()));
            let error = match self.once(request.send()).await {
                Ok(_) => return Ok(Compacted::Done),
                Err(error) => error,
            };
            let why = match error.as_service_error() {
                Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) => {
                    let codes = cancelled.cancellation_reasons().iter().filter_map(|reason| reason.code());
                    let codes: Vec<&str> = codes.collect();
                    if codes.contains(&CONDITION_FAILED) {
                        // Ours, if an earlier try took effect and its answer was lost (C11).
                        return self.is_compacted(&change).await;
                    }
                    match codes.iter().find(|code| is_transient_code(code)) {
                        Some(code) => format!("TransactWriteItems: cancelled: {code}"),
                        None => return Err(refused(&error)),
                    }
                }
                // This very change took effect before, with another time on it.
                Some(service) if service.code() == Some("IdempotentParameterMismatchException") => {
                    return self.is_compacted(&change).await;
                }
                _ => match failure("TransactWriteItems", &error) {
                    Failure::Transient(why) => why,
                    refused @ Failure::Refused(_) => return Err(refused.into()),
                },
            };
            let Some(pause) = pauses.next() else { return Err(StoreError::Unavailable(why)) };
            tracing::debug!(thread = %change.thread, %why, "the compaction's commit is sent again");
            tokio::time::sleep(pause).await;
        }
    }

    async fn is_compacted(&self, change: &CompactionCommit) -> Result<Compacted, StoreError> {
        let Some(generation) = &change.generation else { return Ok(Compacted::Lost) };
        let stored = self.read_generation(&generation.at.id).await?;
        Ok(match stored.is_some_and(|stored| stored.digest == generation.digest) {
            true => Compacted::Done,
            false => Compacted::Lost,
        })
    }

    pub(super) async fn read_generation(&self, id: &GenerationId) -> Result<Option<Generation>, StoreError> {
        let Some(row) = self.get(&keys::generation(id)).await? else { return Ok(None) };
        let bodies = self.bodies_of([&row].into_iter()).await?;
        Ok(codec::read_generation(&row, &bodies))
    }

    fn compaction_actions(&self, change: &CompactionCommit) -> Vec<TransactWriteItem> {
        let state = CompactionState {
            newest: change.generation.as_ref().map(|generation| generation.at.clone()),
            last: change.generation.as_ref().map_or(change.last, |generation| generation.at.id.number),
            run: change.run.clone(),
        };
        let mut assignments = meta_row::compaction(&state);
        if change.generation.is_none() {
            // Always set: an expression that only removes is none.
            assignments = vec![(COMPACT_RUN, Some(meta_row::run(&change.run)))];
        }
        let none =
            if change.last == 0 { format!("attribute_not_exists(#{GEN_LAST}) OR ") } else { String::new() };
        let update = self
            .update(&keys::meta(&change.thread), assignments)
            .condition_expression(format!(
                "attribute_exists({PK}) AND #{LOG} = :at_log AND ({none}#{GEN_LAST} = :at_last) \
                 AND (attribute_not_exists(#{CLOSED}) OR #{CLOSED} = :at_open)"
            ))
            .expression_attribute_names(format!("#{LOG}"), LOG)
            .expression_attribute_names(format!("#{GEN_LAST}"), GEN_LAST)
            .expression_attribute_names(format!("#{CLOSED}"), CLOSED)
            .expression_attribute_values(":at_log", n(change.epoch))
            .expression_attribute_values(":at_last", n(change.last))
            .expression_attribute_values(":at_open", AttributeValue::Bool(false));
        let mut actions = vec![update_action(update)];
        let row = change.generation.as_ref().map(codec::generation_row);
        actions.extend(row.map(|row| self.put(row, PutIf::Absent)));
        actions
    }
}

fn refused<R>(error: &SdkError<TransactWriteItemsError, R>) -> StoreError {
    StoreError::Refused(format!("TransactWriteItems: {}", error.code().unwrap_or("no code")))
}
