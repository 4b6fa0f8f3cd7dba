//! Whose a thread is: a row of its own, written by whoever is first, and listed under its owner.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue};

use super::codec::{self, s};
use super::keys::{self, Key, LPK, LSK};
use super::reads::BATCH_KEYS;
use super::state::MAX_LIST;
use super::{DynamoStore, meta_row};
use crate::message::ThreadId;
use crate::store::{StoreError, ThreadSummary};

const OWNER: &str = "owner";
const THREAD: &str = "thread";

type Names = HashMap<String, String>;
type Values = HashMap<String, AttributeValue>;

/// The update that makes a thread's name somebody's unless it is somebody's already.
pub(super) fn claim(thread: &ThreadId, owner: &str, at_ms: i64) -> (String, Names, Values) {
    let (lpk, lsk) = keys::owner_entry(owner, thread, at_ms);
    let fields = [(OWNER, owner.to_owned()), (THREAD, thread.as_str().to_owned()), (LPK, lpk), (LSK, lsk)];
    let set: Vec<String> =
        fields.iter().map(|(name, _)| format!("#{name} = if_not_exists(#{name}, :{name})")).collect();
    let names = fields.iter().map(|(name, _)| (format!("#{name}"), (*name).to_owned())).collect();
    let values = fields.into_iter().map(|(name, value)| (format!(":{name}"), s(value))).collect();
    (format!("SET {}", set.join(", ")), names, values)
}

impl DynamoStore {
    pub(super) async fn claim_name(
        &self,
        thread: &ThreadId,
        owner: &str,
        now_ms: i64,
    ) -> Result<String, StoreError> {
        let (expression, names, values) = claim(thread, owner, now_ms);
        let key = keys::owner(thread).attributes();
        let answer = self
            .repeat("UpdateItem", || {
                self.client
                    .update_item()
                    .table_name(&*self.table)
                    .set_key(Some(key.clone()))
                    .update_expression(&expression)
                    .set_expression_attribute_names(Some(names.clone()))
                    .set_expression_attribute_values(Some(values.clone()))
                    .return_values(ReturnValue::AllNew)
                    .send()
            })
            .await?;
        let row = answer.attributes.unwrap_or_default();
        let owner = codec::text(&row, OWNER).map(str::to_owned);
        owner.ok_or_else(|| StoreError::Corrupt {
            thread: thread.clone(),
            row: "OWNER".to_owned(),
            reason: "it names no owner".to_owned(),
        })
    }

    /// What is listed is read from the table. A name that was only claimed has no thread yet, and one that somebody
    /// else made meanwhile is theirs.
    pub(super) async fn newest_threads_of(
        &self,
        owner: &str,
        limit: usize,
    ) -> Result<Vec<ThreadSummary>, StoreError> {
        let limit = limit.min(MAX_LIST);
        if limit == 0 {
            return Ok(Vec::new());
        }
        let rows = self.newest_in(&keys::owner_pk(owner), limit).await?;
        let own = rows.iter().filter_map(Key::of).map(|key| Key { sk: keys::META.to_owned(), ..key });
        let metas = self.get_many(own.collect(), BATCH_KEYS).await?;
        let mut threads: Vec<ThreadSummary> = Vec::new();
        for row in metas.values() {
            match meta_row::read(row) {
                Ok(meta) if meta.owner.as_deref() == Some(owner) => threads.push(ThreadSummary::from(&meta)),
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "a thread is left out of the list"),
            }
        }
        threads.sort_by(ThreadSummary::newest_first);
        threads.truncate(limit);
        Ok(threads)
    }
}
