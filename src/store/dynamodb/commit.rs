//! The one commit: a transaction that is conditional, idempotent by its token, and repeated in place.
//!
//! META's condition also demands the token that was read, so not ours. So a commit that took effect and whose answer
//! was lost always fails on META when it is sent again, with the row in hand to recognise it, also where it moved
//! no head and wrote no dedup row, and however long ago it was.

use aws_sdk_dynamodb::config::http::HttpResponse;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::types::{
    AttributeValue, CancellationReason, ConditionCheck, Delete, Put, ReturnValuesOnConditionCheckFailure,
    TransactWriteItem, Update,
};

use super::DynamoStore;
use super::calls::{Failure, failure, is_transient_code, pauses};
use super::codec::{self, ACTIVE, CALL, EXPIRES_AT, Row, n, s};
use super::keys::{self, Key, PK};
use super::meta_row::{self, Assignment, CLOSED, HEAD, LOG, TOKEN};
use super::owners::claim;
use crate::message::ThreadId;
use crate::store::{Commit, Committed, Expect, NewThread, StoreError, SubscriptionChange, body_digest};

/// The code of a transaction's reason for a condition that failed.
pub(super) const CONDITION_FAILED: &str = "ConditionalCheckFailed";
/// How many children of a root are open.
pub(super) const OPEN_CHILDREN: &str = "open";
/// The code of a reason that is none.
const NO_REASON: &str = "None";
/// The longest `ClientRequestToken`.
pub(super) const REQUEST_TOKEN_CHARS: usize = 36;

/// What one try of the transaction says.
enum Verdict {
    Done,
    LostRace,
    /// This very request took effect before, with content that looks different (an expiry, a map's order).
    TookEffect,
    Failed(Failure),
}

impl DynamoStore {
    pub(super) async fn write_commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        commit.validate()?;
        self.put_bodies(texts(&commit).iter().map(|(pk, text)| (pk.as_str(), *text))).await?;
        let actions = self.actions(&commit);
        // An account-wide name: two threads, or two tables of one account, may use the same token.
        let request_token = body_digest(&format!(
            "{}\n{}\n{}\n{}",
            self.table,
            commit.meta.thread.as_str().len(),
            commit.meta.thread,
            commit.meta.token
        ));
        let request_token = &request_token[..REQUEST_TOKEN_CHARS];
        let mut pauses = pauses();
        loop {
            let request = self
                .client
                .transact_write_items()
                .client_request_token(request_token)
                .set_transact_items(Some(actions.clone()));
            let why = match verdict(self.once(request.send()).await, &commit.meta.token) {
                Verdict::Done => return Ok(Committed::Done),
                Verdict::LostRace => return Ok(Committed::LostRace),
                Verdict::TookEffect => return self.is_last(&commit).await,
                Verdict::Failed(refused @ Failure::Refused(_)) => return Err(refused.into()),
                Verdict::Failed(Failure::Transient(why)) => why,
            };
            let Some(pause) = pauses.next() else {
                return Err(StoreError::Unavailable(why));
            };
            tracing::debug!(thread = %commit.meta.thread, %why, "the commit is sent again");
            tokio::time::sleep(pause).await;
        }
    }

    /// Whether the thread's last commit is this one.
    async fn is_last(&self, commit: &Commit) -> Result<Committed, StoreError> {
        let row = self.get(&keys::meta(&commit.meta.thread)).await?;
        let ours = row.is_some_and(|row| codec::text(&row, TOKEN) == Some(commit.meta.token.as_str()));
        Ok(if ours { Committed::Done } else { Committed::LostRace })
    }

    /// META first: [`verdict`] looks for its reason there.
    fn actions(&self, commit: &Commit) -> Vec<TransactWriteItem> {
        let thread = &commit.meta.thread;
        let mut actions = vec![self.meta_action(commit)];
        if let Some(owner) = commit.made_for() {
            // Unless the name was claimed before; whoever made the thread all the same is in META.
            actions.push(self.claim_action(thread, owner, commit.meta.created_at_ms));
        }
        for ancestor in commit.bequests() {
            actions.push(self.put(codec::heir_row(ancestor, thread), PutIf::Any));
            actions.push(self.absent(&keys::erased(ancestor)));
        }
        for (epoch, base) in &commit.left {
            actions.push(self.put(codec::base_row(thread, *epoch, base), PutIf::Any));
        }
        for item in &commit.items {
            let row = codec::item_row(thread, commit.meta.epoch, item);
            actions.push(self.put(row, PutIf::Absent));
        }
        for (id, life) in &commit.dedup {
            let row = codec::dedup_row(thread, id, life.expiry_ms(commit.now_ms));
            actions.push(self.put(row, PutIf::AbsentOrExpired { now_ms: commit.now_ms }));
        }
        actions
            .extend(commit.park.iter().map(|parked| self.put(codec::parked_row(thread, parked), PutIf::Any)));
        actions.extend(
            commit
                .release
                .iter()
                .map(|key| self.delete(&keys::parked(thread, key), Some("attribute_exists"))),
        );
        for change in commit.subscription_changes() {
            let active = match change {
                SubscriptionChange::Start(_) => true,
                SubscriptionChange::End(_) => false,
            };
            let assignments =
                vec![(CALL, Some(s(change.call().as_str()))), (ACTIVE, Some(AttributeValue::Bool(active)))];
            actions.push(update_action(self.update(&keys::subscription(thread, change.call()), assignments)));
        }
        let choices = commit.choices.iter();
        actions.extend(choices.map(|choice| self.put(codec::choice_row(thread, choice), PutIf::Any)));
        let closed = commit.closed_choices.iter();
        actions.extend(closed.map(|id| self.delete(&keys::choice(thread, id), None)));
        actions.extend(commit.children.iter().flat_map(|child| self.new_thread(thread, child)));
        if commit.open_children != 0 {
            let count = Update::builder()
                .table_name(&*self.table)
                .set_key(Some(keys::open_children(&commit.meta.root).attributes()))
                .update_expression("ADD #open :more")
                .expression_attribute_names("#open", OPEN_CHILDREN)
                .expression_attribute_values(":more", n(commit.open_children));
            actions.push(update_action(count));
        }
        actions
    }

    fn new_thread(&self, parent: &ThreadId, child: &NewThread) -> Vec<TransactWriteItem> {
        let NewThread { meta, items, parked } = child;
        let mut assignments = meta_row::owned(meta);
        assignments.extend(meta_row::identity(meta));
        assignments.extend(meta_row::compaction(&meta.compaction));
        let made = self.update(&keys::meta(&meta.thread), assignments);
        let mut actions =
            vec![update_action(made.condition_expression(format!("attribute_not_exists({PK})")))];
        let items = items.iter().map(|item| codec::item_row(&meta.thread, meta.epoch, item));
        actions.extend(items.map(|row| self.put(row, PutIf::Absent)));
        let parked =
            parked.iter().map(|parked| self.put(codec::parked_row(&meta.thread, parked), PutIf::Any));
        actions.extend(parked);
        actions.push(self.put(codec::child_row(parent, &meta.thread), PutIf::Any));
        actions
    }

    fn meta_action(&self, commit: &Commit) -> TransactWriteItem {
        let meta = &commit.meta;
        let mut assignments = meta_row::owned(meta);
        let key = keys::meta(&meta.thread);
        if commit.sets_compaction() {
            assignments.extend(meta_row::compaction(&meta.compaction));
        }
        let update = match &commit.expect {
            Expect::Absent => {
                assignments.extend(meta_row::identity(meta));
                self.update(&key, assignments).condition_expression(format!("attribute_not_exists({PK})"))
            }
            Expect::At { epoch, head, token } => self
                .update(&key, assignments)
                .condition_expression(format!(
                    "#{LOG} = :at_log AND #{HEAD} = :at_head AND #{TOKEN} = :at_token \
                     AND (attribute_not_exists(#{CLOSED}) OR #{CLOSED} = :at_open)"
                ))
                .expression_attribute_values(":at_token", s(token))
                .expression_attribute_values(":at_log", n(epoch))
                .expression_attribute_values(":at_head", n(head))
                .expression_attribute_values(":at_open", AttributeValue::Bool(false)),
        };
        update_action(
            update.return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld),
        )
    }

    /// Sets or removes each attribute and leaves all others.
    pub(super) fn update(
        &self,
        key: &Key,
        assignments: Vec<Assignment>,
    ) -> aws_sdk_dynamodb::types::builders::UpdateBuilder {
        let mut update = Update::builder().table_name(&*self.table).set_key(Some(key.attributes()));
        let (mut set, mut remove) = (Vec::new(), Vec::new());
        for (name, value) in assignments {
            update = update.expression_attribute_names(format!("#{name}"), name);
            match value {
                Some(value) => {
                    update = update.expression_attribute_values(format!(":{name}"), value);
                    set.push(format!("#{name} = :{name}"));
                }
                None => remove.push(format!("#{name}")),
            }
        }
        let mut expression = format!("SET {}", set.join(", "));
        if !remove.is_empty() {
            expression.push_str(&format!(" REMOVE {}", remove.join(", ")));
        }
        update.update_expression(expression)
    }

    fn claim_action(&self, thread: &ThreadId, owner: &str, at_ms: i64) -> TransactWriteItem {
        let (expression, names, values) = claim(thread, owner, at_ms);
        let update = Update::builder()
            .table_name(&*self.table)
            .set_key(Some(keys::owner(thread).attributes()))
            .update_expression(expression)
            .set_expression_attribute_names(Some(names))
            .set_expression_attribute_values(Some(values));
        update_action(update)
    }

    pub(super) fn put(&self, row: Row, condition: PutIf) -> TransactWriteItem {
        let put = Put::builder().table_name(&*self.table).set_item(Some(row));
        let absent = format!("attribute_not_exists({PK})");
        let put = match condition {
            PutIf::Any => put,
            PutIf::Absent => put.condition_expression(absent),
            PutIf::AbsentOrExpired { now_ms } => put
                .condition_expression(format!("{absent} OR {EXPIRES_AT} < :now"))
                .expression_attribute_values(":now", n(now_ms.div_euclid(codec::MS_PER_SECOND))),
        };
        TransactWriteItem::builder().put(put.build().expect("bug: a put has a table and a row")).build()
    }

    /// The condition that a row is not there.
    fn absent(&self, key: &Key) -> TransactWriteItem {
        let check = ConditionCheck::builder()
            .table_name(&*self.table)
            .set_key(Some(key.attributes()))
            .condition_expression(format!("attribute_not_exists({PK})"));
        TransactWriteItem::builder()
            .condition_check(check.build().expect("bug: a check has a table, a key and a condition"))
            .build()
    }

    /// Deletes a row, on the condition that a function of its key holds, if one is given.
    fn delete(&self, key: &Key, condition: Option<&str>) -> TransactWriteItem {
        let delete = Delete::builder()
            .table_name(&*self.table)
            .set_key(Some(key.attributes()))
            .set_condition_expression(condition.map(|function| format!("{function}({PK})")));
        TransactWriteItem::builder()
            .delete(delete.build().expect("bug: a delete has a table and a key"))
            .build()
    }
}

/// The texts of a commit, each with its row's partition.
fn texts(commit: &Commit) -> Vec<(String, &str)> {
    let meta = &commit.meta;
    let (thread, log) = (keys::thread_pk(&meta.thread), keys::log_pk(&meta.thread, meta.epoch));
    let items = commit.items.iter().map(|item| (log.clone(), &*item.raw));
    let parked = commit.park.iter().map(|parked| (thread.clone(), parked.body.as_str()));
    let choices = commit.choices.iter().map(|choice| (thread.clone(), choice.body.as_str()));
    let children = commit.children.iter().flat_map(|NewThread { meta, items, parked }| {
        let log = keys::log_pk(&meta.thread, meta.epoch);
        let items = items.iter().map(move |item| (log.clone(), &*item.raw));
        let parked = parked.iter().map(|parked| (keys::thread_pk(&meta.thread), parked.body.as_str()));
        items.chain(parked)
    });
    items.chain(parked).chain(choices).chain(children).collect()
}

/// On what condition a row is put.
pub(super) enum PutIf {
    Any,
    Absent,
    AbsentOrExpired { now_ms: i64 },
}

pub(super) fn update_action(update: aws_sdk_dynamodb::types::builders::UpdateBuilder) -> TransactWriteItem {
    let update = update.build().expect("bug: an update has a table, a key and an expression");
    TransactWriteItem::builder().update(update).build()
}

fn verdict<T>(answer: Result<T, SdkError<TransactWriteItemsError, HttpResponse>>, token: &str) -> Verdict {
    let error = match answer {
        Ok(_) => return Verdict::Done,
        Err(error) => error,
    };
    match error.as_service_error() {
        Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) => {
            judge(cancelled.cancellation_reasons(), token)
        }
        Some(TransactWriteItemsError::IdempotentParameterMismatchException(_)) => Verdict::TookEffect,
        Some(service) if service.code() == Some("IdempotentParameterMismatchException") => {
            Verdict::TookEffect
        }
        Some(_) | None => Verdict::Failed(failure("TransactWriteItems", &error)),
    }
}

/// Reads a cancelled transaction's reasons, which come in the order of its actions.
fn judge(reasons: &[CancellationReason], token: &str) -> Verdict {
    let code = |reason: &CancellationReason| reason.code().unwrap_or(NO_REASON).to_owned();
    let transient =
        |code: &str| Verdict::Failed(Failure::Transient(format!("TransactWriteItems: cancelled: {code}")));
    let codes: Vec<String> = reasons.iter().map(code).collect();
    let meta = codes.first().map_or(NO_REASON, String::as_str);
    if meta == CONDITION_FAILED {
        let stored = reasons.first().and_then(CancellationReason::item);
        let stored = stored.and_then(|row| codec::text(row, TOKEN));
        return if stored == Some(token) { Verdict::Done } else { Verdict::LostRace };
    }
    if is_transient_code(meta) {
        // META was not looked at: whoever holds it may be an earlier try of ours.
        return transient(meta);
    }
    if codes.iter().any(|code| code == CONDITION_FAILED) {
        return Verdict::LostRace;
    }
    if let Some(code) = codes.iter().find(|code| is_transient_code(code)) {
        return transient(code);
    }
    let mut why: Vec<&str> = codes.iter().map(String::as_str).filter(|code| *code != NO_REASON).collect();
    why.dedup();
    Verdict::Failed(Failure::Refused(format!("TransactWriteItems: cancelled: {}", why.join(", "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasons(codes: &[&str]) -> Vec<CancellationReason> {
        codes.iter().map(|code| CancellationReason::builder().code(*code).build()).collect()
    }

    fn judged(codes: &[&str]) -> &'static str {
        name(judge(&reasons(codes), "ours"))
    }

    fn name(verdict: Verdict) -> &'static str {
        match verdict {
            Verdict::Done => "done",
            Verdict::LostRace => "lost",
            Verdict::TookEffect => "took effect",
            Verdict::Failed(Failure::Transient(_)) => "again",
            Verdict::Failed(Failure::Refused(_)) => "refused",
        }
    }

    /// No stand-in makes conflicts or throttles, so their reasons are judged here.
    #[test]
    fn i6_only_a_failed_condition_is_a_lost_race() {
        assert_eq!(judged(&["ConditionalCheckFailed", "None"]), "lost");
        assert_eq!(judged(&["None", "ConditionalCheckFailed"]), "lost");
        assert_eq!(judged(&["TransactionConflict", "None"]), "again");
        assert_eq!(judged(&["None", "TransactionConflict"]), "again");
        assert_eq!(judged(&["ThrottlingError"]), "again");
        assert_eq!(judged(&["None", "ProvisionedThroughputExceeded"]), "again");
        assert_eq!(judged(&["ValidationError", "None"]), "refused");
        assert_eq!(judged(&[]), "refused");
        // An earlier try of ours may still hold META: its dedup row says nothing about another writer.
        assert_eq!(judged(&["TransactionConflict", "ConditionalCheckFailed"]), "again");
    }

    #[test]
    fn i2_our_own_commit_is_known_by_its_token() {
        let stored = |token: &str| {
            let reason = CancellationReason::builder().code(CONDITION_FAILED).item(TOKEN, s(token)).build();
            name(judge(&[reason], "ours"))
        };
        assert_eq!(stored("ours"), "done");
        assert_eq!(stored("theirs"), "lost");
    }
}
