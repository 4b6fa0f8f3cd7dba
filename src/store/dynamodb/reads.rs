//! The two ways rows are read: by key, and by range. Both strongly consistent, both to the end.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use aws_sdk_dynamodb::types::{AttributeValue, KeysAndAttributes};
use futures::{StreamExt, TryStreamExt, stream};

use super::DynamoStore;
use super::calls::pauses;
use super::codec::{Row, s};
use super::keys::{self, Key};
use crate::message::Seq;
use crate::store::StoreError;

/// Keys of one `BatchGetItem`.
pub(super) const BATCH_KEYS: usize = 100;
/// Requests under way at once for one load.
pub(super) const CONCURRENCY: usize = 32;

/// Which end of a partition comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Ascending,
    Descending,
}

/// A range of sort keys.
#[derive(Clone, Debug)]
pub(super) enum Range {
    /// Everything of the partition.
    All,
    /// What begins like this.
    Prefix(&'static str),
    /// Parked inputs and open choices, which are neighbours.
    Waiting,
    /// Items at these positions.
    Items(RangeInclusive<u64>),
    /// From one sort key to another.
    Between(String, String),
}

impl DynamoStore {
    /// One row.
    pub(super) async fn get(&self, key: &Key) -> Result<Option<Row>, StoreError> {
        let answer = self
            .repeat("GetItem", || {
                let get = self.client.get_item().table_name(&*self.table).consistent_read(true);
                get.set_key(Some(key.attributes())).send()
            })
            .await?;
        Ok(answer.item)
    }

    /// Many rows, `chunk` to a request, all requests at once; what is not there is left out. The keys must
    /// differ: DynamoDB refuses a batch that names one twice.
    pub(super) async fn get_many(
        &self,
        keys: Vec<Key>,
        chunk: usize,
    ) -> Result<HashMap<Key, Row>, StoreError> {
        let chunks: Vec<Vec<Key>> = keys.chunks(chunk.clamp(1, BATCH_KEYS)).map(<[Key]>::to_vec).collect();
        let rows: Vec<Vec<Row>> = stream::iter(chunks)
            .map(|chunk| self.get_chunk(chunk))
            .buffer_unordered(CONCURRENCY)
            .try_collect()
            .await?;
        Ok(rows.into_iter().flatten().filter_map(|row| Some((Key::of(&row)?, row))).collect())
    }

    async fn get_chunk(&self, chunk: Vec<Key>) -> Result<Vec<Row>, StoreError> {
        let mut wanted: Vec<Row> = chunk.iter().map(Key::attributes).collect();
        let mut rows = Vec::with_capacity(wanted.len());
        let mut pauses = pauses();
        loop {
            let batch = KeysAndAttributes::builder()
                .set_keys(Some(wanted))
                .consistent_read(true)
                .build()
                .expect("bug: a batch has keys");
            let answer = self
                .repeat("BatchGetItem", || {
                    self.client.batch_get_item().request_items(&*self.table, batch.clone()).send()
                })
                .await?;
            let found = answer.responses.and_then(|mut tables| tables.remove(&*self.table));
            let found = found.unwrap_or_default();
            let progress = !found.is_empty();
            rows.extend(found);
            let left = answer.unprocessed_keys.and_then(|mut tables| tables.remove(&*self.table));
            wanted = left.map(|left| left.keys).unwrap_or_default();
            if wanted.is_empty() {
                return Ok(rows);
            }
            if progress {
                // Cut at 16 MB rather than throttled: the rest is there for the asking, and gets fewer.
                continue;
            }
            let pause = pauses
                .next()
                .ok_or_else(|| StoreError::Unavailable("BatchGetItem: keys stay unprocessed".to_owned()))?;
            tokio::time::sleep(pause).await;
        }
    }

    /// Rows of a partition whose sort keys begin like this, behind `after`: one page of at most `limit`.
    pub(super) async fn page(
        &self,
        pk: String,
        prefix: &'static str,
        order: Order,
        after: Option<Key>,
        limit: i32,
    ) -> Result<Vec<Row>, StoreError> {
        let after = after.as_ref().map(Key::attributes);
        let answer = self
            .repeat("Query", || {
                self.client
                    .query()
                    .table_name(&*self.table)
                    .consistent_read(true)
                    .key_condition_expression("pk = :pk AND begins_with(sk, :from)")
                    .expression_attribute_values(":pk", s(pk.clone()))
                    .expression_attribute_values(":from", s(prefix))
                    .scan_index_forward(order == Order::Ascending)
                    .set_exclusive_start_key(after.clone())
                    .limit(limit)
                    .send()
            })
            .await?;
        Ok(answer.items.unwrap_or_default())
    }

    /// All rows of a range, in key order, every page followed.
    pub(super) async fn query(&self, pk: String, range: Range) -> Result<Vec<Row>, StoreError> {
        let mut condition = "pk = :pk".to_owned();
        let mut values = HashMap::from([(":pk".to_owned(), s(pk))]);
        let between = match range {
            Range::All => None,
            Range::Prefix(prefix) => {
                condition.push_str(" AND begins_with(sk, :from)");
                values.insert(":from".to_owned(), s(prefix));
                None
            }
            Range::Waiting => Some((keys::PARKED.to_owned(), keys::BEHIND_CHOICES.to_owned())),
            Range::Between(from, to) => Some((from, to)),
            Range::Items(seqs) => Some((keys::item_sk(Seq(*seqs.start())), keys::item_sk(Seq(*seqs.end())))),
        };
        if let Some((from, to)) = between {
            condition.push_str(" AND sk BETWEEN :from AND :to");
            values.extend([(":from".to_owned(), s(from)), (":to".to_owned(), s(to))]);
        }
        let mut rows = Vec::new();
        let mut next: Option<HashMap<String, AttributeValue>> = None;
        loop {
            let answer = self
                .repeat("Query", || {
                    self.client
                        .query()
                        .table_name(&*self.table)
                        .consistent_read(true)
                        .key_condition_expression(&condition)
                        .set_expression_attribute_values(Some(values.clone()))
                        .set_exclusive_start_key(next.clone())
                        .send()
                })
                .await?;
            rows.extend(answer.items.unwrap_or_default());
            // An empty map is how some servers spell "no more".
            next = answer.last_evaluated_key.filter(|key| !key.is_empty());
            if next.is_none() {
                return Ok(rows);
            }
        }
    }
}
