//! Loading: one wave of parallel reads for a plain thread, one more for what META points at, one for bodies.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};

use super::codec::{self, Row};
use super::keys::{self, Key};
use super::reads::{BATCH_KEYS, CONCURRENCY, Order, Range};
use super::{DynamoStore, meta_row};
use crate::message::{DedupId, Epoch, Item, RawJson, Seq, ThreadId};
use crate::store::{self, Loaded, Meta, ParkedInput, Position, Prune, Span, StateStore, StoreError, behind};

/// Reads of a log in which a position is missing, after the first.
const REREADS: usize = 3;
/// The pause before reading again; what is missing is usually on its way.
const REREAD_PAUSE: Duration = Duration::from_millis(40);
/// The log that is read before META says which one is current: nearly always right.
const LIKELY_EPOCH: Epoch = Epoch(0);

/// The newest items that are read before META says which are needed: all of nearly every thread.
const LIKELY_ITEMS: i32 = 1_000;

/// How much of a thread is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    /// Everything.
    Whole,
    /// What a request may hold: nothing that a summary stands for, no texts of results that are pruned.
    Request,
}

/// Whether summaries count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Summaries {
    Taken,
    Ignored,
}

/// The rows of a view.
#[derive(Default)]
struct ViewRows {
    /// The summary that META points at, if it points at one; none within: it is not there.
    summary: Option<Option<Row>>,
    opener: Option<(Seq, Row)>,
    unread: usize,
    log: Vec<(Seq, Row)>,
    root_metadata: Option<RawJson>,
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
        if let Some(loaded) = self.load_with(thread, dedup, depth, Summaries::Taken).await? {
            return Ok(loaded);
        }
        // What it stands for is all there: the items count again (I7).
        tracing::error!(%thread, "the summary of a thread cannot be read; its items are read instead");
        let loaded = self.load_with(thread, dedup, depth, Summaries::Ignored).await?;
        Ok(loaded.expect("bug: without a summary there is none that cannot be read"))
    }

    /// None if a summary is to be taken and cannot be read.
    async fn load_with(
        &self,
        thread: &ThreadId,
        dedup: &[DedupId],
        depth: Depth,
        summaries: Summaries,
    ) -> Result<Option<Loaded>, StoreError> {
        let dedup_keys: BTreeMap<Key, &DedupId> =
            dedup.iter().map(|id| (keys::dedup(thread, id), id)).collect();
        let mut by_key: Vec<Key> = vec![keys::meta(thread), keys::stop(thread)];
        by_key.extend(dedup_keys.keys().cloned());
        let (rows, waiting_rows, likely_log) = futures::try_join!(
            self.get_many(by_key, BATCH_KEYS),
            self.query(keys::thread_pk(thread), Range::Waiting),
            self.page(keys::log_pk(thread, LIKELY_EPOCH), keys::ITEM, Order::Descending, None, LIKELY_ITEMS),
        )?;
        let now_ms = self.now_ms();
        let processed: BTreeSet<DedupId> = dedup_keys
            .into_iter()
            .filter(|(key, _)| rows.get(key).is_some_and(|row| codec::is_live(row, now_ms)))
            .map(|(_, id)| id.clone())
            .collect();
        let meta = rows.get(&keys::meta(thread)).map(meta_row::read).transpose()?;
        let stop = rows.get(&keys::stop(thread)).and_then(codec::read_stop);
        let ViewRows { summary, opener, unread, log, root_metadata } = match &meta {
            Some(meta) => self.view_rows(meta, by_seq(likely_log), depth, summaries).await?,
            // Items without META: the thread was made between the reads, and is not there yet for this one.
            None => ViewRows::default(),
        };
        let prune = match depth {
            Depth::Request => meta.as_ref().map(|meta| meta.prune).unwrap_or_default(),
            Depth::Whole => Prune::default(),
        };
        let newest_state = log.iter().rposition(|(_, row)| codec::is_state(row));
        let is_needed = |(at, row): &(usize, &Row)| match codec::is_state(row) {
            true => depth == Depth::Whole || Some(*at) == newest_state || !codec::has_excerpt(row),
            false => !codec::is_excerpted(row, prune),
        };
        let rows = log.iter().map(|(_, row)| row).enumerate();
        let needed = rows.filter(is_needed).map(|(_, row)| row);
        let summary_rows = summary.iter().flatten().chain(opener.as_ref().map(|(_, row)| row));
        let bodies = self.bodies_of(needed.chain(&waiting_rows).chain(summary_rows)).await?;
        let generation =
            summary.as_ref().map(|row| row.as_ref().and_then(|row| codec::read_generation(row, &bodies)));
        let generation = match generation {
            Some(None) => return Ok(None),
            generation => generation.flatten(),
        };
        let opener = opener.map(|(seq, row)| codec::read_item(seq, &row, &bodies));
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
        Ok(Some(Loaded {
            meta,
            items,
            unread,
            generation,
            opener,
            processed,
            parked,
            root_metadata,
            choices,
            stop,
        }))
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

    /// The rows of the thread's view: its summary, and the items behind it or, at [`Depth::Whole`], all of them.
    async fn view_rows(
        &self,
        meta: &Meta,
        likely: Log,
        depth: Depth,
        summaries: Summaries,
    ) -> Result<ViewRows, StoreError> {
        let spans = meta.spans();
        let newest = meta.compaction.newest.as_ref().filter(|_| summaries == Summaries::Taken);
        // A pointer that the spans do not hold is of another view.
        let newest = newest.and_then(|newest| Some((newest, behind(&spans, &newest.through)?)));
        let pointer = newest.as_ref().map(|(newest, _)| *newest);
        let (unread, wanted) = match (newest, depth) {
            (Some((_, (covered, rest))), Depth::Request) => (covered, rest),
            _ => (0, spans),
        };
        let summary = async {
            match pointer {
                Some(pointer) => Ok(Some(self.get(&keys::generation(&pointer.id)).await?)),
                None => Ok(None),
            }
        };
        let opener = self.opener_row(pointer.and_then(|pointer| pointer.opener.as_ref()));
        let (summary, opener, log, root_metadata) = tokio::try_join!(
            summary,
            opener,
            self.item_rows(&meta.thread, wanted, likely),
            self.root_metadata(meta)
        )?;
        Ok(ViewRows { summary, opener, unread, log, root_metadata })
    }

    async fn opener_row(&self, at: Option<&Position>) -> Result<Option<(Seq, Row)>, StoreError> {
        let Some(at) = at else { return Ok(None) };
        Ok(self.get(&keys::item(&at.thread, at.epoch, at.seq)).await?.map(|row| (at.seq, row)))
    }

    /// The items of one span, whole.
    pub(super) async fn whole_span(&self, span: &Span) -> Result<Vec<Item>, StoreError> {
        let rows = self.span_rows(span.clone(), Log::new()).await?;
        let bodies = self.bodies_of(rows.iter().map(|(_, row)| row)).await?;
        Ok(rows.iter().map(|(seq, row)| codec::read_item(*seq, row, &bodies)).collect())
    }

    /// Every span, complete: inherited ones, then the own log up to `head`. What was written beyond `head` between the
    /// two reads is not part of the thread that META describes.
    async fn item_rows(
        &self,
        thread: &ThreadId,
        spans: Vec<Span>,
        mut likely: Log,
    ) -> Result<Vec<(Seq, Row)>, StoreError> {
        let reads: Vec<_> = spans
            .into_iter()
            .map(|span| {
                let known = &span.thread == thread && span.epoch == LIKELY_EPOCH;
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
        // What was read in advance is the newest part: what is before it was not asked for yet.
        if let Some(reached) = log.keys().next().copied()
            && reached > span.from.0.saturating_add(1)
        {
            let before = Range::Items(span.from.0.saturating_add(1)..=reached - 1);
            log.extend(by_seq(self.query(keys::log_pk(&span.thread, span.epoch), before).await?));
        }
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
