//! META to and from attributes.
//!
//! Plain facts are native attributes; lists and records are JSON text. A commit sets the attributes that a slice
//! owns, one by one, so that those of a newer version stay (I8). What a thread *is* is written once.

use std::collections::BTreeSet;

use serde::Serialize;
use serde::de::DeserializeOwned;

use aws_sdk_dynamodb::types::AttributeValue;

use super::codec::{Row, flag, n, number, s, text};
use super::keys::{self, LPK, LSK, List, META};
use crate::message::{CallId, Epoch, ItemId, MessageId, RawJson, Seq, ThreadId};
use crate::store::{
    Asked, CompactionRun, CompactionState, Extra, ImagesOut, Meta, Prune, StoreError, ThreadKind,
};

/// The current log's epoch.
pub(super) const LOG: &str = "log";
/// The seq of the next item.
pub(super) const HEAD: &str = "head";
/// Whether the thread takes input.
pub(super) const CLOSED: &str = "closed";
/// Names the last commit.
pub(super) const TOKEN: &str = "token";
/// The root's opaque metadata.
pub(super) const METADATA: &str = "metadata";
const THREAD: &str = "thread";
const ROOT: &str = "root";
const PARENT: &str = "parent";
const ANCESTORS: &str = "ancestors";
const ORIGIN: &str = "origin";
const KIND: &str = "kind";
const OWNER: &str = "owner";
const AGENT: &str = "agent";
const CREATED_AT: &str = "created_at";
const BASE: &str = "base";
const PRUNE: &str = "prune";
const IMAGES_OUT: &str = "images_out";
const NEXT_TURN: &str = "next_turn";
const TURN_ID: &str = "turn_id";
/// Where the newest state stands.
const STATE: &str = "state";
const PENDING: &str = "pending";
const OUTBOX: &str = "outbox";
const OPEN: &str = "open";
const RECENT: &str = "recent";
/// Causes that were received more than once: a string set, since it is added to beside commits.
pub(super) const REDELIVERED: &str = "redelivered";
const SELF_CAUSED: &str = "self_caused";
/// The client's run that is under way.
const RUN: &str = "run";
const USAGE: &str = "usage";
/// Results that requests have no room for.
const RESULTS_OUT: &str = "results_out";
/// The window that a provider has named.
const WINDOW: &str = "window";
const SHOWN: &str = "shown";
const ASKED: &str = "asked";
/// The newest summary.
pub(super) const GEN: &str = "gen";
/// The number of the last summary of the log.
pub(super) const GEN_LAST: &str = "gen_last";
/// Attempts at the next one.
pub(super) const COMPACT_RUN: &str = "compact_run";
/// What a newer version's snapshot said.
const EXTRA: &str = "extra";

/// An attribute and its new value; none: it is to be absent.
pub(super) type Assignment = (&'static str, Option<AttributeValue>);

fn json<T: Serialize>(value: &T) -> AttributeValue {
    // Our own types: string keys, finite numbers, and RawJson that was parsed.
    s(serde_json::to_string(value).expect("bug: META serialises"))
}

/// A string set; DynamoDB has no empty one.
fn set(ids: &[MessageId]) -> Option<AttributeValue> {
    let ids: BTreeSet<&str> = ids.iter().map(MessageId::as_str).collect();
    (!ids.is_empty()).then(|| AttributeValue::Ss(ids.into_iter().map(str::to_owned).collect()))
}

fn read_set(row: &Row, name: &str) -> Result<Vec<MessageId>, ()> {
    let Some(value) = row.get(name) else { return Ok(Vec::new()) };
    let ids = value.as_ss().map_err(|_| ())?;
    Ok(ids.iter().map(MessageId::new).collect())
}

/// What a slice owns: set by every commit.
pub(super) fn owned(meta: &Meta) -> Vec<Assignment> {
    vec![
        (LOG, Some(n(meta.epoch))),
        (HEAD, Some(n(meta.head))),
        (BASE, Some(json(&meta.base))),
        (CLOSED, Some(AttributeValue::Bool(meta.closed))),
        (NEXT_TURN, Some(n(meta.next_turn))),
        (TURN_ID, meta.turn_id.as_ref().map(|id| s(id.as_str()))),
        (STATE, meta.state.as_ref().map(json)),
        (PENDING, Some(json(&meta.pending))),
        (OUTBOX, Some(json(&meta.outbox))),
        (OPEN, Some(json(&meta.open))),
        (RECENT, Some(json(&meta.recent))),
        (REDELIVERED, set(&meta.redelivered)),
        (SELF_CAUSED, Some(n(meta.self_caused))),
        (PRUNE, (meta.prune != Prune::default()).then(|| json(&meta.prune))),
        (SHOWN, meta.shown.as_ref().map(json)),
        (ASKED, (meta.asked != Asked::default()).then(|| json(&meta.asked))),
        (IMAGES_OUT, (meta.images_out != ImagesOut::default()).then(|| json(&meta.images_out))),
        (RESULTS_OUT, (!meta.results_out.seqs.is_empty()).then(|| json(&meta.results_out))),
        (WINDOW, meta.window.as_ref().map(json)),
        (USAGE, meta.usage.as_ref().map(json)),
        (RUN, meta.run.as_deref().map(s)),
        (METADATA, meta.metadata.as_ref().map(|metadata| s(metadata.get()))),
        (EXTRA, (!meta.extra.is_empty()).then(|| json(&meta.extra))),
        (TOKEN, Some(s(&meta.token))),
    ]
}

/// What compaction owns: written beside the slices' commits, and by those that make a thread or begin a log.
pub(super) fn compaction(state: &CompactionState) -> Vec<Assignment> {
    vec![
        (GEN, state.newest.as_ref().map(json)),
        (GEN_LAST, (state.last > 0).then(|| n(state.last))),
        (COMPACT_RUN, (state.run != CompactionRun::default()).then(|| json(&state.run))),
    ]
}

/// Attempts.
pub(super) fn run(run: &CompactionRun) -> AttributeValue {
    json(run)
}

/// What a thread is: set by the commit that makes it, with its place in the list of threads.
pub(super) fn identity(meta: &Meta) -> Vec<Assignment> {
    let (lpk, lsk) = keys::list_entry(List::Threads, meta.thread.as_str(), meta.created_at_ms);
    // What summarises a thread is no conversation.
    let listed = meta.kind != ThreadKind::Compaction;
    vec![
        (THREAD, Some(s(meta.thread.as_str()))),
        (ROOT, Some(s(meta.root.as_str()))),
        (PARENT, meta.parent.as_ref().map(|parent| s(parent.as_str()))),
        (ANCESTORS, (!meta.ancestors.is_empty()).then(|| json(&meta.ancestors))),
        (ORIGIN, meta.origin.as_ref().map(|call| s(call.as_str()))),
        (KIND, Some(s(kind_text(meta.kind)))),
        (OWNER, meta.owner.as_deref().map(s)),
        (AGENT, Some(s(&meta.agent))),
        (CREATED_AT, Some(n(meta.created_at_ms))),
        (LPK, listed.then(|| s(lpk))),
        (LSK, listed.then(|| s(lsk))),
    ]
}

/// What META holds of somebody's words.
pub(super) fn words(meta: &Meta) -> Vec<Assignment> {
    let words = [METADATA, OUTBOX, ASKED, EXTRA];
    owned(meta).into_iter().filter(|(name, _)| words.contains(name)).collect()
}

/// The whole row of a thread that was erased. It is in no list.
pub(super) fn tombstone(meta: &Meta) -> Row {
    let listed = |name: &str| name == LPK || name == LSK;
    let assignments = owned(meta).into_iter().chain(identity(meta)).filter(|(name, _)| !listed(name));
    let attributes = assignments.filter_map(|(name, value)| Some((name.to_owned(), value?)));
    keys::meta(&meta.thread).attributes().into_iter().chain(attributes).collect()
}

fn kind_text(kind: ThreadKind) -> &'static str {
    match kind {
        ThreadKind::Root => "root",
        ThreadKind::Child => "child",
        ThreadKind::Event => "event",
        ThreadKind::Compaction => "compaction",
    }
}

fn read_kind(text: &str) -> Option<ThreadKind> {
    [ThreadKind::Root, ThreadKind::Child, ThreadKind::Event, ThreadKind::Compaction]
        .into_iter()
        .find(|kind| kind_text(*kind) == text)
}

/// Reads META.
///
/// Fails with [`StoreError::Corrupt`] if an attribute that decides anything is missing or does not parse; the
/// error names it and quotes nothing.
pub(super) fn read(row: &Row) -> Result<Meta, StoreError> {
    let thread = ThreadId::new(text(row, THREAD).or_else(|| text(row, keys::PK)).unwrap_or_default());
    let corrupt = |name: &str, what: &str| StoreError::Corrupt {
        thread: thread.clone(),
        row: META.to_owned(),
        reason: format!("attribute {name} {what}"),
    };
    let need = |name| text(row, name).ok_or_else(|| corrupt(name, "is missing"));
    let count = |name| match row.contains_key(name) {
        true => number(row, name).ok_or_else(|| corrupt(name, "is not a number in range")),
        false => Ok(0),
    };
    Ok(Meta {
        root: ThreadId::new(need(ROOT)?),
        parent: text(row, PARENT).map(ThreadId::new),
        ancestors: list(row, ANCESTORS).map_err(|()| corrupt(ANCESTORS, "does not parse"))?,
        origin: text(row, ORIGIN).map(CallId::new),
        kind: read_kind(need(KIND)?).ok_or_else(|| corrupt(KIND, "is of no known kind"))?,
        owner: text(row, OWNER).map(str::to_owned),
        agent: need(AGENT)?.to_owned(),
        created_at_ms: number(row, CREATED_AT).unwrap_or_default(),
        epoch: Epoch(number(row, LOG).ok_or_else(|| corrupt(LOG, "is missing"))?),
        head: Seq(number(row, HEAD).ok_or_else(|| corrupt(HEAD, "is missing"))?),
        base: list(row, BASE).map_err(|()| corrupt(BASE, "does not parse"))?,
        closed: flag(row, CLOSED),
        next_turn: count(NEXT_TURN)?,
        turn_id: text(row, TURN_ID).map(ItemId::new),
        pending: list(row, PENDING).map_err(|()| corrupt(PENDING, "does not parse"))?,
        outbox: list(row, OUTBOX).map_err(|()| corrupt(OUTBOX, "does not parse"))?,
        open: list(row, OPEN).map_err(|()| corrupt(OPEN, "does not parse"))?,
        recent: list(row, RECENT).map_err(|()| corrupt(RECENT, "does not parse"))?,
        redelivered: read_set(row, REDELIVERED).map_err(|()| corrupt(REDELIVERED, "does not parse"))?,
        self_caused: count(SELF_CAUSED)?,
        prune: match text(row, PRUNE) {
            Some(prune) => serde_json::from_str(prune).map_err(|_| corrupt(PRUNE, "does not parse"))?,
            None => Prune::default(),
        },
        compaction: CompactionState {
            // The pointer is as good as absent if it cannot be read: the items are all there.
            newest: text(row, GEN).and_then(|newest| serde_json::from_str(newest).ok()),
            last: count(GEN_LAST)?,
            run: text(row, COMPACT_RUN).and_then(|run| serde_json::from_str(run).ok()).unwrap_or_default(),
        },
        state: text(row, STATE).and_then(|state| serde_json::from_str(state).ok()),
        shown: text(row, SHOWN).and_then(|shown| serde_json::from_str(shown).ok()),
        asked: text(row, ASKED).and_then(|asked| serde_json::from_str(asked).ok()).unwrap_or_default(),
        run: text(row, RUN).map(str::to_owned),
        images_out: match text(row, IMAGES_OUT) {
            Some(images) => {
                serde_json::from_str(images).map_err(|_| corrupt(IMAGES_OUT, "does not parse"))?
            }
            None => ImagesOut::default(),
        },
        // None of these decides anything: what cannot be read is as good as absent.
        results_out: text(row, RESULTS_OUT)
            .and_then(|out| serde_json::from_str(out).ok())
            .unwrap_or_default(),
        window: text(row, WINDOW).and_then(|window| serde_json::from_str(window).ok()),
        usage: text(row, USAGE).and_then(|usage| serde_json::from_str(usage).ok()),
        metadata: metadata(row),
        extra: match text(row, EXTRA) {
            Some(extra) => serde_json::from_str(extra).map_err(|_| corrupt(EXTRA, "does not parse"))?,
            None => Extra::new(),
        },
        token: text(row, TOKEN).unwrap_or_default().to_owned(),
        thread,
    })
}

/// The metadata attribute.
pub(super) fn metadata(row: &Row) -> Option<RawJson> {
    text(row, METADATA).and_then(|metadata| RawJson::parse(metadata).ok())
}

fn list<T: DeserializeOwned>(row: &Row, name: &str) -> Result<Vec<T>, ()> {
    match row.get(name) {
        None => Ok(Vec::new()),
        Some(value) => {
            let text = value.as_s().map_err(|_| ())?;
            serde_json::from_str(text).map_err(|_| ())
        }
    }
}
