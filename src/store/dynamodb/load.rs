//! Loading: one wave of parallel reads for a plain thread, one more for what META points at, one for bodies.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};

use super::codec::{self, Row};
use super::keys::{self, Key};
use super::reads::{BATCH_KEYS, CONCURRENCY, Range};
use super::{DynamoStore, meta_row};
use crate::message::{DedupId, Epoch, Item, RawJson, Seq, ThreadId};
use crate::store::{self, Loaded, Meta, ParkedInput, Prune, Span, StateStore, StoreError};

/// Reads of a log in which a position is missing, after the first.
const REREADS: usize = 3;
/// The pause before reading again; what is missing is usually on its way.
const REREAD_PAUSE: Duration = Duration::from_millis(40);
/// The log that is read before META says which one is current: nearly always right.
const LIKELY_EPOCH: Epoch = Epoch(0);

/// How much of a thread is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    /// Everything.
    Whole,
    /// What a request may hold: no texts of results that are pruned.
    Request,
}

/// Item rows by position.
type Log = BTreeMap<u64, Row>;

impl DynamoStore {
    pub(super) async fn load_thread(
        &self,
        thread: &ThreadId,
        dedup: &[DedupId],
        depth: Depth,
    ) -> Result<Loaded, StoreError> {
        let dedup_keys: BTreeMap<Key, &DedupId> =
            dedup.iter().map(|id| (keys::dedup(thread, id), id)).collect();
        let mut by_key: Vec<Key> = vec![keys::meta(thread), keys::stop(thread)];
        by_key.extend(dedup_keys.keys().cloned());
        let (rows, waiting_rows, likely_log) = futures::try_join!(
            self.get_many(by_key, BATCH_KEYS),
            self.query(keys::thread_pk(thread), Range::Waiting),
            self.query(keys::log_pk(thread, LIKELY_EPOCH), Range::Prefix(keys::ITEM)),
        )?;
        let now_ms = self.now_ms();
        let processed: BTreeSet<DedupId> = dedup_keys
            .into_iter()
            .filter(|(key, _)| rows.get(key).is_some_and(|row| codec::is_live(row, now_ms)))
            .map(|(_, id)| id.clone())
            .collect();
        let meta = rows.get(&keys::meta(thread)).map(meta_row::read).transpose()?;
        let stop = rows.get(&keys::stop(thread)).and_then(codec::read_stop);
        let (log, root_metadata) = match &meta {
            Some(meta) => {
                tokio::try_join!(self.item_rows(meta, by_seq(likely_log)), self.root_metadata(meta))?
            }
            // Items without META: the thread was made between the reads, and is not there yet for this one.
            None => (Vec::new(), None),
        };
        let prune = match depth {
            Depth::Request => meta.as_ref().map(|meta| meta.prune).unwrap_or_default(),
            Depth::Whole => Prune::default(),
        };
        let needed = log.iter().map(|(_, row)| row).filter(|row| !codec::is_excerpted(row, prune));
        let bodies = self.bodies_of(needed.chain(&waiting_rows)).await?;
        let mut items: Vec<Item> =
            log.iter().map(|(seq, row)| codec::read_item(*seq, row, &bodies)).collect();
        if depth == Depth::Whole {
            for (item, (_, row)) in items.iter_mut().zip(&log) {
                item.facts.extra = codec::extra_facts(row);
            }
        }
        let (choice_rows, parked_rows): (Vec<&Row>, Vec<&Row>) = waiting_rows
            .iter()
            .partition(|row| codec::text(row, keys::SK).is_some_and(|sk| sk.starts_with(keys::CHOICE)));
        let choices = choice_rows.into_iter().filter_map(|row| codec::read_choice(row, &bodies)).collect();
        let mut parked: Vec<ParkedInput> =
            parked_rows.into_iter().map(|row| codec::read_parked(row, &bodies)).collect();
        parked.sort_by(ParkedInput::arrival_order);
        Ok(Loaded { meta, items, processed, parked, root_metadata, choices, stop })
    }

    /// One log as it is stored. What stands behind a gap belongs to no thread.
    pub(super) async fn read_log(&self, thread: &ThreadId, epoch: Epoch) -> Result<store::Log, StoreError> {
        let rows = self.query(keys::log_pk(thread, epoch), Range::All).await?;
        let base = rows.iter().find(|row| codec::text(row, keys::SK) == Some(keys::BASE));
        let base = base.and_then(codec::read_base).unwrap_or_default();
        let whole: Vec<(u64, Row)> = by_seq(rows)
            .into_iter()
            .zip(1..)
            .take_while(|((seq, _), at)| seq == at)
            .map(|(row, _)| row)
            .collect();
        let bodies = self.bodies_of(whole.iter().map(|(_, row)| row)).await?;
        let item = |(seq, row): &(u64, Row)| {
            let mut item = codec::read_item(Seq(*seq), row, &bodies);
            item.facts.extra = codec::extra_facts(row);
            item
        };
        Ok(store::Log { base, items: whole.iter().map(item).collect() })
    }

    /// What a child's output carries; read beside its spans.
    async fn root_metadata(&self, meta: &Meta) -> Result<Option<RawJson>, StoreError> {
        match meta.parent {
            Some(_) => self.metadata(&meta.root).await,
            None => Ok(None),
        }
    }

    /// Every inherited span, then the own log up to `head`, complete. What was written beyond `head` between the
    /// two reads is not part of the thread that META describes.
    async fn item_rows(&self, meta: &Meta, mut likely: Log) -> Result<Vec<(Seq, Row)>, StoreError> {
        let own = Span {
            thread: meta.thread.clone(),
            epoch: meta.epoch,
            from: Seq(0),
            to: Seq(meta.head.0.saturating_sub(1)),
        };
        let reads: Vec<_> = meta
            .base
            .iter()
            .cloned()
            .chain([own])
            .map(|span| {
                let known = span.thread == meta.thread && span.epoch == LIKELY_EPOCH;
                let have = if known { cut(&mut likely, &span) } else { Log::new() };
                self.span_rows(span, have)
            })
            .collect();
        let spans: Vec<Vec<(Seq, Row)>> = stream::iter(reads).buffered(CONCURRENCY).try_collect().await?;
        Ok(spans.into_iter().flatten().collect())
    }

    /// One span, of which `have` was already read.
    async fn span_rows(&self, span: Span, have: Log) -> Result<Vec<(Seq, Row)>, StoreError> {
        let was_read = !have.is_empty();
        let mut log = have;
        for attempt in 0.. {
            let Some(missing) = first_missing(&log, &span) else {
                break;
            };
            let reads = attempt + usize::from(was_read);
            if reads > REREADS {
                return Err(StoreError::Incomplete {
                    thread: span.thread.clone(),
                    epoch: span.epoch,
                    missing,
                });
            }
            if reads > 0 {
                tracing::warn!(thread = %span.thread, epoch = %span.epoch, seq = %missing, "an item is missing; reading again");
                tokio::time::sleep(REREAD_PAUSE).await;
            }
            let seqs = span.from.0.saturating_add(1)..=span.to.0;
            log = by_seq(self.query(keys::log_pk(&span.thread, span.epoch), Range::Items(seqs)).await?);
        }
        Ok(log.into_iter().map(|(seq, row)| (Seq(seq), row)).collect())
    }
}

fn by_seq(rows: Vec<Row>) -> Log {
    rows.into_iter().filter_map(|row| Some((keys::seq_of(codec::text(&row, keys::SK)?)?.0, row))).collect()
}

/// Takes the rows of `span` out of `log`.
fn cut(log: &mut Log, span: &Span) -> Log {
    let mut taken = log.split_off(&span.from.0.saturating_add(1));
    let mut beyond = taken.split_off(&span.to.0.saturating_add(1));
    log.append(&mut beyond);
    taken
}

fn first_missing(log: &Log, span: &Span) -> Option<Seq> {
    let first = span.from.0.saturating_add(1);
    let mut expected = first;
    for seq in log.keys() {
        if *seq != expected {
            break;
        }
        expected = expected.saturating_add(1);
    }
    (expected <= span.to.0).then_some(Seq(expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(seqs: &[u64]) -> Log {
        seqs.iter().map(|seq| (*seq, Row::new())).collect()
    }

    fn span(from: u64, to: u64) -> Span {
        Span { thread: ThreadId::from("t"), epoch: Epoch(0), from: Seq(from), to: Seq(to) }
    }

    #[test]
    fn a_hole_is_found_wherever_it_is() {
        assert_eq!(first_missing(&log(&[1, 2, 3]), &span(0, 3)), None);
        assert_eq!(first_missing(&log(&[]), &span(0, 0)), None);
        assert_eq!(first_missing(&log(&[]), &span(3, 2)), None, "an empty span lacks nothing");
        assert_eq!(first_missing(&log(&[2, 3]), &span(0, 3)), Some(Seq(1)));
        assert_eq!(first_missing(&log(&[1, 3]), &span(0, 3)), Some(Seq(2)));
        assert_eq!(first_missing(&log(&[1, 2]), &span(0, 3)), Some(Seq(3)));
        assert_eq!(first_missing(&log(&[5, 6]), &span(4, 6)), None);
    }

    #[test]
    fn cutting_a_span_leaves_the_rest() {
        let mut all = log(&[1, 2, 3, 4, 5]);
        assert_eq!(cut(&mut all, &span(1, 3)).into_keys().collect::<Vec<_>>(), [2, 3]);
        assert_eq!(all.into_keys().collect::<Vec<_>>(), [1, 4, 5]);
    }
}
