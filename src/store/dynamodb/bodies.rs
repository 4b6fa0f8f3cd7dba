//! Texts too large for their row, in parts under their digest.
//!
//! They are written before the transaction that refers to them. A name is its partition and its content, so a body that
//! was written for a commit that never came is harmless, and one that is written twice is the same.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use aws_sdk_dynamodb::types::{DeleteRequest, PutRequest, WriteRequest};
use futures::{StreamExt, TryStreamExt, stream};

use super::DynamoStore;
use super::calls::pauses;
use super::codec::{self, Row, body_ref, piece};
use super::keys::{self, Key};
use super::reads::{CONCURRENCY, Range};
use crate::store::{INLINE_BYTES, StoreError, body_digest};

/// Bytes of one part; with its key and attributes it stays below an item's 400 KB.
const PART_BYTES: usize = 350 * 1024;
/// Parts in one `BatchWriteItem`: 1.75 MB, so that it stays below 16 MB also where JSON escapes every byte.
const WRITE_PARTS: usize = 5;
/// Keys in one `BatchWriteItem`.
const WRITE_KEYS: usize = 25;
/// Parts in one `BatchGetItem`, which answers at most 16 MB.
const READ_PARTS: usize = 40;
/// Reads of a body whose parts are not all there, after the first.
const REREADS: usize = 3;

/// Where a text is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BodyRef {
    /// Its name.
    pub digest: String,
    /// In how many parts.
    pub parts: usize,
}

/// Bodies that were read, by digest.
#[derive(Debug, Default)]
pub(super) struct Bodies(HashMap<String, String>);

impl Bodies {
    /// A body's text.
    pub(super) fn get(&self, digest: &str) -> Option<&str> {
        self.0.get(digest).map(String::as_str)
    }
}

/// Cuts a text into parts, between characters.
fn split(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    while rest.len() > PART_BYTES {
        let (part, tail) = rest.split_at(rest.floor_char_boundary(PART_BYTES));
        parts.push(part);
        rest = tail;
    }
    parts.push(rest);
    parts
}

/// In how many parts a text is kept.
pub(super) fn part_count(text: &str) -> usize {
    split(text).len()
}

/// Puts a text together again, if every part is there.
fn join<'a>(rows: impl Iterator<Item = &'a Row>) -> Option<String> {
    let mut text = String::new();
    let mut expected = None;
    let mut found = 0;
    for row in rows {
        let (piece, of) = piece(row)?;
        if *expected.get_or_insert(of) != of {
            return None;
        }
        text.push_str(piece);
        found += 1;
    }
    (expected == Some(found)).then_some(text)
}

impl DynamoStore {
    /// Writes the bodies of those texts that do not fit their row; each with its row's partition.
    pub(super) async fn put_bodies<'a>(
        &self,
        texts: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Result<(), StoreError> {
        let mut rows = BTreeMap::new();
        for (pk, text) in texts.filter(|(_, text)| text.len() > INLINE_BYTES) {
            let digest = codec::body_name(pk, text);
            let pieces = split(text);
            // First in the order of keys: what erases the partition finds a body also where no row came to name it.
            rows.insert(keys::listed_body(pk, &digest), codec::listed_body_row(pk, &digest, pieces.len()));
            for (part, piece) in pieces.iter().enumerate() {
                // By key: two results that say the same are one body, and a batch may name a key once.
                let row = codec::body_row(&digest, part, pieces.len(), piece);
                rows.insert(keys::body_part(&digest, part), row);
            }
        }
        self.put_rows(rows.into_values().collect()).await
    }

    /// Writes a claim check.
    pub(super) async fn put_claim_body(&self, text: &str, expiry_ms: i64) -> Result<String, StoreError> {
        let digest = body_digest(text);
        let pieces = split(text);
        let rows = pieces.iter().enumerate();
        let rows = rows
            .map(|(part, piece)| codec::claim_row(&digest, part, pieces.len(), piece, expiry_ms))
            .collect();
        self.put_rows(rows).await?;
        Ok(digest)
    }

    /// Reads a claim check; none unless all of it is there.
    pub(super) async fn claim_body(&self, digest: &str) -> Result<Option<String>, StoreError> {
        let rows = self.query(keys::claim_pk(digest), Range::All).await?;
        Ok(join(rows.iter()))
    }

    /// Puts rows, unconditionally, all batches at once.
    pub(super) async fn put_rows(&self, rows: Vec<Row>) -> Result<(), StoreError> {
        let put = |row: Row| {
            let put = PutRequest::builder().set_item(Some(row)).build().expect("bug: a put has an item");
            WriteRequest::builder().put_request(put).build()
        };
        self.write(rows.into_iter().map(put).collect(), WRITE_PARTS).await
    }

    /// Deletes rows, unconditionally, all batches at once.
    pub(super) async fn delete_rows(&self, keys: Vec<Key>) -> Result<(), StoreError> {
        let delete = |key: Key| {
            let delete = DeleteRequest::builder().set_key(Some(key.attributes()));
            WriteRequest::builder().delete_request(delete.build().expect("bug: a delete has a key")).build()
        };
        self.write(keys.into_iter().map(delete).collect(), WRITE_KEYS).await
    }

    /// Every body that was written for a partition, whether a row names it or not.
    pub(super) async fn listed_bodies(&self, pk: &str) -> Result<Vec<BodyRef>, StoreError> {
        let rows = self.query(keys::bodies_pk(pk), Range::All).await?;
        Ok(rows.iter().filter_map(codec::read_listed_body).collect())
    }

    /// Deletes bodies of a partition; from its list last, so that whatever breaks off is found again.
    pub(super) async fn delete_bodies(&self, pk: &str, bodies: &[BodyRef]) -> Result<(), StoreError> {
        let parts = |body: &BodyRef| {
            let digest = body.digest.clone();
            (0..body.parts).map(move |part| keys::body_part(&digest, part))
        };
        let keys: BTreeSet<Key> = bodies.iter().flat_map(parts).collect();
        self.delete_rows(keys.into_iter().collect()).await?;
        let listed: BTreeSet<Key> = bodies.iter().map(|body| keys::listed_body(pk, &body.digest)).collect();
        self.delete_rows(listed.into_iter().collect()).await
    }

    /// The text of a body; none if it is not whole.
    pub(super) async fn body_text(&self, body: &BodyRef) -> Result<Option<String>, StoreError> {
        let keys = (0..body.parts).map(|part| keys::body_part(&body.digest, part)).collect();
        let found = self.get_many(keys, READ_PARTS).await?;
        let rows = (0..body.parts).filter_map(|part| found.get(&keys::body_part(&body.digest, part)));
        Ok(join(rows))
    }

    async fn write(&self, writes: Vec<WriteRequest>, chunk: usize) -> Result<(), StoreError> {
        let batches: Vec<Vec<WriteRequest>> = writes.chunks(chunk).map(<[WriteRequest]>::to_vec).collect();
        stream::iter(batches)
            .map(|batch| self.write_batch(batch))
            .buffer_unordered(CONCURRENCY)
            .try_collect::<()>()
            .await
    }

    async fn write_batch(&self, mut left: Vec<WriteRequest>) -> Result<(), StoreError> {
        let mut pauses = pauses();
        loop {
            let answer = self
                .repeat("BatchWriteItem", || {
                    self.client.batch_write_item().request_items(&*self.table, left.clone()).send()
                })
                .await?;
            left = answer
                .unprocessed_items
                .and_then(|mut tables| tables.remove(&*self.table))
                .unwrap_or_default();
            if left.is_empty() {
                return Ok(());
            }
            let pause = pauses
                .next()
                .ok_or_else(|| StoreError::Unavailable("BatchWriteItem: rows stay unprocessed".to_owned()))?;
            tokio::time::sleep(pause).await;
        }
    }

    /// Reads the bodies that `rows` refer to, each once. One that is not whole, also after reading again, is
    /// left out: an operator may have deleted it, and its thread must go on.
    pub(super) async fn bodies_of<'a>(
        &self,
        rows: impl Iterator<Item = &'a Row>,
    ) -> Result<Bodies, StoreError> {
        let mut missing: BTreeMap<String, usize> =
            rows.filter_map(body_ref).map(|body| (body.digest, body.parts)).collect();
        let mut bodies = Bodies::default();
        for _ in 0..=REREADS {
            if missing.is_empty() {
                return Ok(bodies);
            }
            let keys: Vec<Key> = missing
                .iter()
                .flat_map(|(digest, parts)| (0..*parts).map(|part| keys::body_part(digest, part)))
                .collect();
            let found = self.get_many(keys, READ_PARTS).await?;
            missing.retain(|digest, parts| {
                let rows = (0..*parts).filter_map(|part| found.get(&keys::body_part(digest, part)));
                match join(rows) {
                    Some(text) => {
                        bodies.0.insert(digest.clone(), text);
                        false
                    }
                    None => true,
                }
            });
        }
        for digest in missing.keys() {
            tracing::warn!(digest, "a body is missing; its item is shown as unreadable");
        }
        Ok(bodies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_cut_between_characters_and_join_to_the_same_text() {
        for text in ["", "x", &"é".repeat(PART_BYTES), &format!("a{}", "😀".repeat(PART_BYTES / 3))] {
            let parts = split(text);
            assert!(parts.iter().all(|part| part.len() <= PART_BYTES));
            let rows: Vec<Row> = parts
                .iter()
                .enumerate()
                .map(|(n, piece)| codec::body_row("d", n, parts.len(), piece))
                .collect();
            assert_eq!(join(rows.iter()).as_deref(), Some(text));
            assert_eq!(join(rows.iter().skip(1)), None, "a part is missing");
        }
    }
}
