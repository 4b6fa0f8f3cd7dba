//! State beside the history: metadata, subscriptions, choices, views, manifests, and the list of threads.

use std::collections::HashMap;

use async_trait::async_trait;
use aws_sdk_dynamodb::types::AttributeValue;
use futures::future::try_join_all;

use super::bodies::Bodies;
use super::codec::{self, Row, s};
use super::commit::OPEN_CHILDREN;
use super::keys::{self, Key, LISTS, LPK, LSK, List};
use super::reads::{BATCH_KEYS, Order, Range};
use super::{DynamoStore, meta_row};
use crate::message::{CallId, MessageId, RawJson, ThreadId};
use crate::store::{
    ChoiceRow, DeadLetter, Kinship, RunStore, StateStore, Stop, StoreError, Subscription, ThreadSummary,
};

/// The most threads one list returns.
pub(super) const MAX_LIST: usize = 1_000;

impl DynamoStore {
    /// The text of one row, with its body if it has one.
    async fn text_at(&self, key: &Key) -> Result<Option<(Row, String)>, StoreError> {
        let Some(row) = self.get(key).await? else {
            return Ok(None);
        };
        let bodies = self.bodies_of([&row].into_iter()).await?;
        let text = codec::content(&row, &bodies).map(str::to_owned);
        Ok(text.map(|text| (row, text)))
    }

    pub(super) async fn put_text_row(&self, row: Row, text: &str) -> Result<(), StoreError> {
        let pk = codec::text(&row, keys::PK).unwrap_or_default();
        self.put_bodies([(pk, text)].into_iter()).await?;
        self.repeat("PutItem", || {
            self.client.put_item().table_name(&*self.table).set_item(Some(row.clone())).send()
        })
        .await?;
        Ok(())
    }

    /// The newest threads of every shard, merged. The index trails the table by moments, so a thread made just
    /// now may be missing; what is listed is read from the table.
    pub(super) async fn newest_threads(&self, limit: usize) -> Result<Vec<ThreadSummary>, StoreError> {
        let limit = limit.min(MAX_LIST);
        if limit == 0 {
            return Ok(Vec::new());
        }
        let metas = self.newest_of(List::Threads, limit).await?;
        let mut threads: Vec<ThreadSummary> = metas
            .values()
            .filter_map(|row| match meta_row::read(row) {
                Ok(meta) => Some(ThreadSummary::from(&meta)),
                Err(error) => {
                    // One damaged thread must not hide the others.
                    tracing::warn!(%error, "a thread is left out of the list");
                    None
                }
            })
            .collect();
        threads.sort_by(ThreadSummary::newest_first);
        Ok(threads)
    }

    /// Of every shard the oldest threads of a time, merged.
    pub(super) async fn oldest(
        &self,
        from_ms: i64,
        before_ms: i64,
        limit: usize,
    ) -> Result<Vec<ThreadSummary>, StoreError> {
        if from_ms >= before_ms {
            return Ok(Vec::new());
        }
        // In front of every thread of that time: no thread is without a name.
        let (from, before) = (keys::list_place(from_ms, ""), keys::list_place(before_ms, ""));
        let mut found = Vec::new();
        for shard in (0..keys::LIST_SHARDS).map(|shard| keys::list_pk(List::Threads, shard)) {
            let mut next: Option<HashMap<String, AttributeValue>> = None;
            let mut of_shard = 0;
            loop {
                let answer = self
                    .repeat("Query", || {
                        self.client
                            .query()
                            .table_name(&*self.table)
                            .index_name(LISTS)
                            .key_condition_expression(format!(
                                "{LPK} = :shard AND {LSK} BETWEEN :from AND :before"
                            ))
                            .expression_attribute_values(":shard", s(&shard))
                            .expression_attribute_values(":from", s(&from))
                            .expression_attribute_values(":before", s(&before))
                            .set_exclusive_start_key(next.clone())
                            .send()
                    })
                    .await?;
                let rows = answer.items.unwrap_or_default();
                of_shard += rows.len();
                found.extend(rows);
                next = answer.last_evaluated_key.filter(|key| !key.is_empty());
                if next.is_none() || of_shard >= limit {
                    break;
                }
            }
        }
        found.sort_by(|a, b| codec::text(a, LSK).cmp(&codec::text(b, LSK)));
        found.truncate(limit);
        let metas = self.get_many(found.iter().filter_map(Key::of).collect(), BATCH_KEYS).await?;
        let metas = metas.values().filter_map(|row| meta_row::read(row).ok());
        let mut threads: Vec<ThreadSummary> = metas.map(|meta| ThreadSummary::from(&meta)).collect();
        threads.sort_by(|a, b| b.newest_first(a));
        Ok(threads)
    }

    /// The rows that stand first in a list.
    async fn newest_of(&self, list: List, limit: usize) -> Result<HashMap<Key, Row>, StoreError> {
        let shards: Vec<String> = (0..keys::LIST_SHARDS).map(|shard| keys::list_pk(list, shard)).collect();
        let shards = shards.iter().map(|shard| self.newest_in(shard, limit));
        let mut rows: Vec<Row> = try_join_all(shards).await?.into_iter().flatten().collect();
        rows.sort_by(|a, b| codec::text(b, LSK).cmp(&codec::text(a, LSK)));
        rows.truncate(limit);
        self.get_many(rows.iter().filter_map(Key::of).collect(), BATCH_KEYS).await
    }

    /// The rows that stand first in one partition of the index.
    pub(super) async fn newest_in(&self, partition: &str, limit: usize) -> Result<Vec<Row>, StoreError> {
        let page = i32::try_from(limit).unwrap_or(i32::MAX);
        let mut rows = Vec::new();
        let mut next: Option<HashMap<String, AttributeValue>> = None;
        loop {
            let answer = self
                .repeat("Query", || {
                    self.client
                        .query()
                        .table_name(&*self.table)
                        .index_name(LISTS)
                        .key_condition_expression(format!("{LPK} = :shard"))
                        .expression_attribute_values(":shard", s(partition))
                        .scan_index_forward(false)
                        .limit(page)
                        .set_exclusive_start_key(next.clone())
                        .send()
                })
                .await?;
            rows.extend(answer.items.unwrap_or_default());
            next = answer.last_evaluated_key.filter(|key| !key.is_empty());
            if next.is_none() || rows.len() >= limit {
                return Ok(rows);
            }
        }
    }
}

#[async_trait]
impl StateStore for DynamoStore {
    fn runs(&self) -> Option<&dyn RunStore> {
        Some(self)
    }

    async fn metadata(&self, root: &ThreadId) -> Result<Option<RawJson>, StoreError> {
        Ok(self.get(&keys::meta(root)).await?.as_ref().and_then(meta_row::metadata))
    }

    async fn subscription(
        &self,
        thread: &ThreadId,
        call: &CallId,
    ) -> Result<Option<Subscription>, StoreError> {
        let row = self.get(&keys::subscription(thread, call)).await?;
        Ok(row.as_ref().and_then(codec::read_subscription))
    }

    async fn get_active_subscriptions(&self, thread: &ThreadId) -> Result<Vec<CallId>, StoreError> {
        let rows = self.query(keys::thread_pk(thread), Range::Prefix(keys::SUBSCRIPTION)).await?;
        let mut calls: Vec<CallId> = rows
            .iter()
            .filter_map(codec::read_subscription)
            .filter(|subscription| subscription.active)
            .map(|subscription| subscription.call)
            .collect();
        calls.sort();
        Ok(calls)
    }

    async fn choice(&self, thread: &ThreadId, id: &CallId) -> Result<Option<ChoiceRow>, StoreError> {
        let found = self.text_at(&keys::choice(thread, id)).await?;
        Ok(found.map(|(_, body)| ChoiceRow { id: id.clone(), body }))
    }

    async fn open_choices(&self, thread: &ThreadId) -> Result<Vec<ChoiceRow>, StoreError> {
        let rows = self.query(keys::thread_pk(thread), Range::Prefix(keys::CHOICE)).await?;
        let bodies = self.bodies_of(rows.iter()).await?;
        let mut choices: Vec<ChoiceRow> =
            rows.iter().filter_map(|row| codec::read_choice(row, &bodies)).collect();
        choices.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(choices)
    }

    async fn request_stop(&self, thread: &ThreadId, stop: &Stop) -> Result<(), StoreError> {
        self.put_text_row(codec::stop_row(thread, stop), "").await
    }

    async fn stop(&self, thread: &ThreadId) -> Result<Option<Stop>, StoreError> {
        Ok(self.get(&keys::stop(thread)).await?.as_ref().and_then(codec::read_stop))
    }

    async fn put_view(
        &self,
        thread: &ThreadId,
        view_type: &str,
        content: &RawJson,
    ) -> Result<(), StoreError> {
        self.put_text_row(codec::view_row(thread, view_type, content.get()), content.get()).await
    }

    async fn views(&self, thread: &ThreadId) -> Result<Vec<(String, RawJson)>, StoreError> {
        let rows = self.query(keys::thread_pk(thread), Range::Prefix(keys::VIEW)).await?;
        let bodies = self.bodies_of(rows.iter()).await?;
        let mut views: Vec<(String, RawJson)> = rows
            .iter()
            .filter_map(|row| {
                let content = RawJson::parse(codec::content(row, &bodies)?).ok()?;
                Some((codec::view_type(row)?.to_owned(), content))
            })
            .collect();
        views.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(views)
    }

    async fn manifest(&self, server: &str) -> Result<Option<(String, i64)>, StoreError> {
        let found = self.text_at(&keys::manifest(server)).await?;
        Ok(found.map(|(row, manifest)| (manifest, codec::stored_at(&row).unwrap_or_default())))
    }

    async fn put_manifest(&self, server: &str, manifest: &str, now_ms: i64) -> Result<(), StoreError> {
        self.put_text_row(codec::manifest_row(server, manifest, now_ms), manifest).await
    }

    async fn relatives(
        &self,
        thread: &ThreadId,
        kinship: Kinship,
        after: Option<&ThreadId>,
        limit: usize,
    ) -> Result<Vec<ThreadId>, StoreError> {
        let limit = i32::try_from(limit.min(MAX_LIST)).unwrap_or(i32::MAX);
        let (prefix, key): (_, fn(&ThreadId, &ThreadId) -> Key) = match kinship {
            Kinship::Child => (keys::CHILD, keys::child),
            Kinship::Heir => (keys::HEIR, keys::heir),
        };
        let after = after.map(|after| key(thread, after));
        let rows = self.page(keys::thread_pk(thread), prefix, Order::Ascending, after, limit).await?;
        Ok(rows.iter().filter_map(codec::read_heir).collect())
    }

    async fn open_children(&self, root: &ThreadId) -> Result<u32, StoreError> {
        let row = self.get(&keys::open_children(root)).await?;
        let open = row.and_then(|row| codec::number::<i64>(&row, OPEN_CHILDREN)).unwrap_or_default();
        Ok(u32::try_from(open.max(0)).unwrap_or(u32::MAX))
    }

    async fn keep_dead_letter(&self, letter: &DeadLetter) -> Result<(), StoreError> {
        if self.get(&keys::dead_letter(&letter.thread, &letter.message_id)).await?.is_some() {
            return Ok(());
        }
        self.put_text_row(codec::dead_letter_row(letter), &letter.body).await
    }

    async fn dead_letter(&self, thread: &ThreadId, id: &MessageId) -> Result<Option<DeadLetter>, StoreError> {
        let Some(row) = self.get(&keys::dead_letter(thread, id)).await? else { return Ok(None) };
        let bodies = self.bodies_of([&row].into_iter()).await?;
        Ok(codec::read_dead_letter(&row, &bodies))
    }

    async fn dead_letters(&self, limit: usize) -> Result<Vec<DeadLetter>, StoreError> {
        let rows = self.newest_of(List::DeadLetters, limit.min(MAX_LIST)).await?;
        let none = Bodies::default();
        let mut letters: Vec<DeadLetter> =
            rows.values().filter_map(|row| codec::read_dead_letter(row, &none)).collect();
        letters.sort_by(DeadLetter::newest_first);
        Ok(letters)
    }

    async fn forget_dead_letter(&self, thread: &ThreadId, id: &MessageId) -> Result<(), StoreError> {
        let key = keys::dead_letter(thread, id).attributes();
        self.repeat("DeleteItem", || {
            self.client.delete_item().table_name(&*self.table).set_key(Some(key.clone())).send()
        })
        .await?;
        Ok(())
    }
}
