//! What an operator does: logs of snapshots, redaction, erasure.

use std::collections::{BTreeSet, HashSet};

use async_trait::async_trait;
use aws_sdk_dynamodb::error::ProvideErrorMetadata;

use super::bodies::BodyRef;
use super::codec::{self, Row, body_ref};
use super::keys::{self, Key, META};
use super::reads::Range;
use super::{DynamoStore, meta_row};
use crate::message::{Epoch, Item, ThreadId};
use crate::store::{ArchiveStore, Logs, Rewrite, StoreError, TextOf};

impl DynamoStore {
    pub(super) async fn write_log(&self, snapshot: &ThreadId, items: &[Item]) -> Result<(), StoreError> {
        let epoch = Epoch(0);
        let pk = keys::log_pk(snapshot, epoch);
        self.put_bodies(items.iter().map(|item| (pk.as_str(), &*item.raw))).await?;
        self.put_rows(items.iter().map(|item| codec::item_row(snapshot, epoch, item)).collect()).await
    }

    /// The partitions that hold texts of a thread; of its logs all that its META knows of.
    async fn partitions(&self, thread: &ThreadId) -> Result<Vec<(Option<Epoch>, String)>, StoreError> {
        let meta = self.get(&keys::meta(thread)).await?;
        let last = meta.as_ref().map(meta_row::read).transpose()?.map_or(Epoch(0), |meta| meta.epoch);
        let logs = (0..=last.0).map(|epoch| (Some(Epoch(epoch)), keys::log_pk(thread, Epoch(epoch))));
        Ok(logs.chain([(None, keys::thread_pk(thread))]).collect())
    }

    /// Rewrites the texts of one partition, and deletes the bodies that nothing there refers to any more.
    async fn rewrite_partition(
        &self,
        log: Option<Epoch>,
        pk: String,
        rewrite: &Rewrite<'_>,
    ) -> Result<usize, StoreError> {
        let rows = self.query(pk.clone(), Range::All).await?;
        let bodies = self.bodies_of(rows.iter()).await?;
        let (mut changed, mut dropped, mut kept) = (0, Vec::new(), HashSet::new());
        for row in &rows {
            let new = codec::content(row, &bodies).and_then(|text| rewrite(text_of(log, row), text));
            let Some(new) = new else {
                kept.extend(body_ref(row).map(|body| body.digest));
                continue;
            };
            self.put_bodies([(pk.as_str(), new.as_str())].into_iter()).await?;
            let renewed = codec::with_text(row, &new);
            kept.extend(body_ref(&renewed).map(|body| body.digest));
            self.replace(renewed).await?;
            dropped.extend(body_ref(row));
            changed += 1;
        }
        dropped.retain(|body: &BodyRef| !kept.contains(&body.digest));
        self.delete_bodies(dropped.into_iter()).await?;
        Ok(changed)
    }

    /// Puts a row in the place of one that is still there.
    async fn replace(&self, row: Row) -> Result<(), StoreError> {
        let put = || {
            let put = self.client.put_item().table_name(&*self.table).set_item(Some(row.clone()));
            put.condition_expression(format!("attribute_exists({})", keys::PK)).send()
        };
        let gone = |code: Option<&str>| code == Some("ConditionalCheckFailedException");
        match self.once(put()).await {
            Ok(_) => Ok(()),
            // Released or answered meanwhile: what it has become is found by the next run.
            Err(error) if gone(error.code()) => Ok(()),
            Err(_) => self.repeat("PutItem", put).await.map(drop),
        }
    }
}

fn text_of(log: Option<Epoch>, row: &Row) -> TextOf {
    let sk = codec::text(row, keys::SK).unwrap_or_default();
    match (log, keys::seq_of(sk)) {
        (Some(epoch), Some(seq)) => TextOf::Item(epoch, seq),
        (Some(epoch), None) => TextOf::Summary(epoch),
        (None, _) => TextOf::State,
    }
}

#[async_trait]
impl ArchiveStore for DynamoStore {
    async fn rewrite_texts(&self, thread: &ThreadId, rewrite: &Rewrite<'_>) -> Result<usize, StoreError> {
        let mut changed = 0;
        for (log, pk) in self.partitions(thread).await? {
            changed += self.rewrite_partition(log, pk, rewrite).await?;
        }
        Ok(changed)
    }

    async fn heirs(&self, thread: &ThreadId) -> Result<Vec<ThreadId>, StoreError> {
        let rows = self.query(keys::thread_pk(thread), Range::Prefix(keys::HEIR)).await?;
        let mut heirs: Vec<ThreadId> = rows.iter().filter_map(codec::read_heir).collect();
        heirs.sort();
        Ok(heirs)
    }

    async fn erase(&self, thread: &ThreadId, logs: Logs) -> Result<(), StoreError> {
        let meta = self.get(&keys::meta(thread)).await?.as_ref().map(meta_row::read).transpose()?;
        let mut ancestors: BTreeSet<ThreadId> = BTreeSet::new();
        for (log, pk) in self.partitions(thread).await? {
            let mut rows = self.query(pk, Range::All).await?;
            ancestors.extend(rows.iter().filter_map(codec::read_base).flatten().map(|span| span.thread));
            match log {
                Some(_) if logs == Logs::Keep => continue,
                Some(_) => {}
                None => rows.retain(|row| {
                    let sk = codec::text(row, keys::SK).unwrap_or_default();
                    sk != META && !(logs == Logs::Keep && sk.starts_with(keys::HEIR))
                }),
            }
            // Bodies first: what names them is there until they are gone.
            self.delete_bodies(rows.iter().filter_map(body_ref)).await?;
            self.delete_rows(rows.iter().filter_map(Key::of).collect()).await?;
        }
        let Some(meta) = meta else { return Ok(()) };
        ancestors.extend(meta.base.iter().map(|span| span.thread.clone()));
        self.delete_rows(ancestors.iter().map(|of| keys::heir(of, thread)).collect()).await?;
        self.replace(meta_row::tombstone(&meta.erased())).await
    }
}
