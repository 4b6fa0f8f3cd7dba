//! What an operator does: logs of snapshots, redaction, erasure.

use std::collections::{BTreeSet, HashSet};

use async_trait::async_trait;
use aws_sdk_dynamodb::error::ProvideErrorMetadata;
use aws_sdk_dynamodb::types::TransactWriteItem;

use super::bodies::BodyRef;
use super::codec::{self, Row, body_ref, s};
use super::keys::{self, Key, META};
use super::meta_row::TOKEN;
use super::reads::Range;
use super::{DynamoStore, meta_row, runs};
use crate::message::{Epoch, Item, ThreadId};
use crate::store::{ArchiveStore, Logs, Rewrite, Span, StoreError, TextOf, ThreadSummary};

impl DynamoStore {
    pub(super) async fn write_log(&self, snapshot: &ThreadId, items: &[Item]) -> Result<(), StoreError> {
        let epoch = Epoch(0);
        let pk = keys::log_pk(snapshot, epoch);
        // What is there stays: it may have been redacted since.
        let there: BTreeSet<_> =
            self.read_log(snapshot, epoch).await?.items.iter().map(|item| item.seq).collect();
        let new = || items.iter().filter(|item| !there.contains(&item.seq));
        self.put_bodies(new().map(|item| (pk.as_str(), &*item.raw))).await?;
        self.put_rows(new().map(|item| codec::item_row(snapshot, epoch, item)).collect()).await?;
        self.set_inheritable(snapshot, true).await
    }

    /// The partitions that hold texts of a thread; of its logs all that its META knows of.
    async fn partitions(&self, thread: &ThreadId) -> Result<Vec<(Option<Epoch>, String)>, StoreError> {
        let meta = self.get(&keys::meta(thread)).await?;
        let last = meta.as_ref().map(meta_row::read).transpose()?.map_or(Epoch(0), |meta| meta.epoch);
        let logs = (0..=last.0).map(|epoch| (Some(Epoch(epoch)), keys::log_pk(thread, Epoch(epoch))));
        Ok(logs.chain([(None, keys::thread_pk(thread))]).collect())
    }

    /// Rewrites the texts of one partition, and deletes the bodies that they had.
    ///
    /// A row that is rewritten names the body that it had until that is deleted, so that whoever goes on after a crash
    /// finds it. A body that no row names is of a row that is gone, or of a commit that never came: it goes if it would
    /// be rewritten.
    async fn rewrite_partition(
        &self,
        log: Option<Epoch>,
        pk: String,
        rewrite: &Rewrite<'_>,
    ) -> Result<usize, StoreError> {
        let rows = self.query(pk.clone(), Range::All).await?;
        let bodies = self.bodies_of(rows.iter()).await?;
        let (mut changed, mut dropped, mut done, mut kept) = (0, Vec::new(), Vec::new(), HashSet::new());
        for row in &rows {
            if codec::text(row, keys::SK) == Some(META) {
                changed += usize::from(self.rewrite_meta(row, rewrite).await?);
                continue;
            }
            // What a run ended with stands beside what its client brought.
            let ended = runs::with_end_rewritten(row, rewrite);
            if let Some(ended) = &ended {
                self.replace(ended.clone()).await?;
                changed += 1;
            }
            let row = ended.as_ref().unwrap_or(row);
            dropped.extend(codec::old_body(row));
            let new = codec::content(row, &bodies).and_then(|text| rewrite(text_of(log, row), text));
            let Some(new) = new else {
                kept.extend(body_ref(row).map(|body| body.digest));
                done.extend(codec::old_body(row).map(|_| codec::without_old_body(row)));
                continue;
            };
            self.put_bodies([(pk.as_str(), new.as_str())].into_iter()).await?;
            let renewed = codec::without_old_body(&codec::with_text(row, &new));
            kept.extend(body_ref(&renewed).map(|body| body.digest));
            match body_ref(row) {
                Some(old) => {
                    self.replace(codec::with_old_body(&renewed, &old)).await?;
                    dropped.push(old);
                    done.push(renewed);
                }
                None => self.replace(renewed).await?,
            }
            changed += 1;
        }
        dropped.retain(|body: &BodyRef| !kept.contains(&body.digest));
        self.delete_bodies(&pk, &dropped).await?;
        for row in done {
            self.replace(row).await?;
        }
        let unnamed = self.listed_bodies(&pk).await?.into_iter().filter(|body| !kept.contains(&body.digest));
        for body in unnamed {
            let text = self.body_text(&body).await?.unwrap_or_default();
            if rewrite(TextOf::State, &text).is_some() {
                self.delete_bodies(&pk, &[body]).await?;
                changed += 1;
            }
        }
        Ok(changed)
    }

    /// Rewrites what META holds of somebody's words, if nobody moves the thread meanwhile.
    async fn rewrite_meta(&self, row: &Row, rewrite: &Rewrite<'_>) -> Result<bool, StoreError> {
        let mut meta = meta_row::read(row)?;
        if !meta.rewrite_texts(rewrite) {
            return Ok(false);
        }
        let update = self.update(&keys::meta(&meta.thread), meta_row::words(&meta));
        let update = update
            .condition_expression("#at_token = :at_token")
            .expression_attribute_names("#at_token", TOKEN)
            .expression_attribute_values(":at_token", s(&meta.token));
        let update = update.build().expect("bug: an update has a table, a key and an expression");
        let action = TransactWriteItem::builder().update(update).build();
        let send = || self.client.transact_write_items().transact_items(action.clone()).send();
        match self.once(send()).await {
            Ok(_) => Ok(true),
            // The next run looks again.
            Err(error) if error.code() == Some("TransactionCanceledException") => Ok(true),
            Err(_) => self.repeat("TransactWriteItems", send).await.map(|_| true),
        }
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
        (None, _) if sk.starts_with(keys::VIEW) || sk.starts_with(keys::RUN) => TextOf::Opaque,
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

    async fn children(&self, thread: &ThreadId) -> Result<Vec<ThreadId>, StoreError> {
        let rows = self.query(keys::thread_pk(thread), Range::Prefix(keys::CHILD)).await?;
        let mut children: Vec<ThreadId> = rows.iter().filter_map(codec::read_heir).collect();
        children.sort();
        Ok(children)
    }

    async fn set_inheritable(&self, thread: &ThreadId, inheritable: bool) -> Result<(), StoreError> {
        match inheritable {
            true => self.delete_rows(vec![keys::erased(thread)]).await,
            false => self.put_rows(vec![codec::erased_row(thread)]).await,
        }
    }

    async fn oldest_threads(
        &self,
        from_ms: i64,
        before_ms: i64,
        limit: usize,
    ) -> Result<Vec<ThreadSummary>, StoreError> {
        self.oldest(from_ms, before_ms, limit).await
    }

    async fn erase(&self, thread: &ThreadId, logs: Logs) -> Result<(), StoreError> {
        let meta = self.get(&keys::meta(thread)).await?.as_ref().map(meta_row::read).transpose()?;
        let partitions = self.partitions(thread).await?;
        let mut ancestors: BTreeSet<ThreadId> = meta.iter().flat_map(|meta| &meta.base).map(of).collect();
        for (_, pk) in partitions.iter().filter(|(log, _)| log.is_some()) {
            let bases = self.query(pk.clone(), Range::Prefix(keys::BASE)).await?;
            ancestors.extend(bases.iter().filter_map(codec::read_base).flatten().map(|span| of(&span)));
        }
        // Notes first: what tells of them is there until they are gone.
        self.delete_rows(ancestors.iter().map(|of| keys::heir(of, thread)).collect()).await?;
        for (log, pk) in partitions {
            if log.is_some() && logs == Logs::Keep {
                continue;
            }
            let mut rows = self.query(pk.clone(), Range::All).await?;
            rows.retain(|row| {
                let sk = codec::text(row, keys::SK).unwrap_or_default();
                // Whoever inherits is still there; so may be children whose own heirs keep them, to be deleted later.
                let kin = sk.starts_with(keys::HEIR) || sk.starts_with(keys::CHILD);
                sk != META && sk != keys::ERASED && !(logs == Logs::Keep && kin)
            });
            self.delete_bodies(&pk, &self.listed_bodies(&pk).await?).await?;
            self.delete_rows(rows.iter().filter_map(Key::of).collect()).await?;
        }
        match meta {
            Some(meta) => self.replace(meta_row::tombstone(&meta.erased())).await,
            None => Ok(()),
        }
    }
}

fn of(span: &Span) -> ThreadId {
    span.thread.clone()
}
