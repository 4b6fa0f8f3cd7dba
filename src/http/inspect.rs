//! What an observer reads of a thread beside its items: where it stands, the threads that come of it, the logs that rewinds
//! have left, and the summaries. Nothing here changes anything, and nothing reads more than a page.

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use futures::future::try_join_all;
use serde::Deserialize;
use serde_json::{Value, json};

use super::auth::Caller;
use super::threads::{MAX_PAGE_BYTES, foreign, limit, path, pending, query, summary, thread_id};
use super::{ApiError, HttpDeps};
use crate::message::{Epoch, Seq};
use crate::store::{
    Generation, Hold, Kinship, Meta, PendingCall, RunRow, Span, Store, StoreError, ThreadSummary, behind,
};
use crate::thread::generations_from;

/// Threads of a page, unless fewer are asked for.
const LISTED_RELATIVES: usize = 50;
/// Logs and summaries of a page, unless fewer are asked for: each is read whole.
const LISTED_LOGS: usize = 20;
/// Threads of a page that are read at once.
const READS_AT_ONCE: usize = 16;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RelativesQuery {
    after: Option<String>,
    limit: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BranchesQuery {
    before: Option<u32>,
    limit: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GenerationsQuery {
    skip: Option<usize>,
    limit: Option<usize>,
}

/// `GET /threads/{id}/state`: META alone, so that it may be asked again and again.
pub(super) async fn state(
    State(deps): State<HttpDeps>,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let thread = thread_id(&path(id)?)?;
    let store = &*deps.callback.store;
    let meta = caller.thread(store, &thread).await?;
    let run = match (&meta.run, store.runs()) {
        (Some(run), Some(runs)) => runs.run(&thread, run).await?,
        (Some(_), None) | (None, _) => None,
    };
    let compaction = &meta.compaction;
    let mut shown = summary(&ThreadSummary::from(&meta));
    let more = json!({
        "version": version(&meta),
        "owner": meta.owner,
        "turns": meta.next_turn,
        "inherited": foreign(&meta),
        "spans": meta.base,
        "calls": meta.pending.iter().map(call).collect::<Vec<_>>(),
        "run": run.as_ref().map(run_of),
        "unfinished": meta.open.len(),
        "unsent": meta.outbox.iter().filter(|entry| entry.promise.notice().is_none()).count(),
        "notices": meta.notices(),
        "pruned": { "shortened_before": meta.prune.soft_before, "cleared_before": meta.prune.hard_before },
        "compaction": {
            "generation": compaction.newest.as_ref().map(|newest| newest.id.number),
            "failed_attempts": compaction.run.attempts,
            "next_try_at_ms": compaction.run.next_try_at_ms,
            "failure": compaction.run.failure,
        },
        "usage": meta.usage,
    });
    if let (Value::Object(shown), Value::Object(more)) = (&mut shown, more) {
        shown.extend(more);
    }
    Ok(Json(shown))
}

/// Changes whenever what is shown of the thread does: with each commit, and with each compaction beside them.
fn version(meta: &Meta) -> String {
    let summary = meta.compaction.newest.as_ref().map_or(0, |newest| newest.id.number);
    format!("{}-{}-{}-{summary}-{}", meta.epoch, meta.head, meta.token, meta.compaction.run.attempts)
}

fn call(waiting: &PendingCall) -> Value {
    let mut shown = pending(waiting);
    shown["server"] = json!(waiting.server);
    shown["waits_for"] = json!(match waiting.hold {
        None => "result",
        Some(Hold::Turn) => "turn",
        Some(Hold::Consent | Hold::ConsentThenTurn) => "consent",
    });
    shown
}

fn run_of(run: &RunRow) -> Value {
    json!({ "run_id": run.run, "state": run.state, "attempt": run.attempt, "stopping": run.stop })
}

/// `GET /threads/{id}/children`
pub(super) async fn children(
    State(deps): State<HttpDeps>,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
    asked: Result<Query<RelativesQuery>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    relatives(&deps, &caller, id, asked, Kinship::Child).await
}

/// `GET /threads/{id}/forks`
pub(super) async fn forks(
    State(deps): State<HttpDeps>,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
    asked: Result<Query<RelativesQuery>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    relatives(&deps, &caller, id, asked, Kinship::Heir).await
}

async fn relatives(
    deps: &HttpDeps,
    caller: &Caller,
    id: Result<Path<String>, PathRejection>,
    asked: Result<Query<RelativesQuery>, QueryRejection>,
    kinship: Kinship,
) -> Result<Json<Value>, ApiError> {
    let thread = thread_id(&path(id)?)?;
    let asked = query(asked)?;
    let limit = limit(asked.limit, LISTED_RELATIVES)?;
    let after = asked.after.as_deref().map(thread_id).transpose()?;
    let store = &*deps.callback.store;
    caller.thread(store, &thread).await?;
    let names = store.relatives(&thread, kinship, after.as_ref(), limit).await?;
    let next = names.last().filter(|_| names.len() == limit).cloned();
    let mut metas = Vec::with_capacity(names.len());
    for some in names.chunks(READS_AT_ONCE) {
        metas.extend(try_join_all(some.iter().map(|name| store.meta(name))).await?);
    }
    let mut shown = Vec::new();
    for meta in metas.into_iter().flatten() {
        // A fork of a fork inherits too, and belongs to whom it was made of; somebody else's is not there.
        let is_direct = kinship == Kinship::Child || meta.forked_from() == Some(&thread);
        if is_direct && caller.may(store, &meta).await? {
            shown.push(summary(&ThreadSummary::from(&meta)));
        }
    }
    Ok(Json(json!({ "threads": shown, "next": next })))
}

/// `GET /threads/{id}/branches`
pub(super) async fn branches(
    State(deps): State<HttpDeps>,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
    asked: Result<Query<BranchesQuery>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let thread = thread_id(&path(id)?)?;
    let asked = query(asked)?;
    let limit = limit(asked.limit, LISTED_LOGS)?.min(LISTED_LOGS);
    let store = &*deps.callback.store;
    let meta = caller.thread(store, &thread).await?;
    let newest = meta.epoch.0.saturating_add(1);
    let behind = asked.before.unwrap_or(newest).min(newest);
    let mut shown = Vec::new();
    for epoch in (0..behind).rev().take(limit) {
        let branch = branch(store, &meta, Epoch(epoch)).await?;
        // An import may begin with a later one.
        if branch["items"] != 0 || Epoch(epoch) == meta.epoch {
            shown.push(branch);
        }
    }
    let next = behind.checked_sub(limit as u32).filter(|next| *next > 0);
    Ok(Json(json!({ "branches": shown, "next": next })))
}

async fn branch(store: &dyn Store, meta: &Meta, epoch: Epoch) -> Result<Value, StoreError> {
    let current = meta.spans();
    let log = store.log(&meta.thread, epoch).await?;
    let base = if epoch == meta.epoch { &meta.base } else { &log.base };
    let own = Span { thread: meta.thread.clone(), epoch, from: Seq(0), to: Seq(log.items.len() as u64) };
    let view: Vec<Span> = base.iter().cloned().chain([own]).collect();
    let inherited = foreign(meta) as u64;
    let (items, shared) = (length(&view), shared(&view, &current));
    Ok(json!({
        "epoch": epoch,
        "current": epoch == meta.epoch,
        "items": items.saturating_sub(inherited),
        "shared": shared.saturating_sub(inherited),
        "own": log.items.len(),
        "began_at_ms": log.items.first().map(|item| item.facts.created_at_ms),
        "ended_at_ms": log.items.last().map(|item| item.facts.created_at_ms),
    }))
}

fn length(spans: &[Span]) -> u64 {
    spans.iter().map(|span| span.to.0.saturating_sub(span.from.0)).sum()
}

/// How many items two views have in common, from their beginnings on.
fn shared(a: &[Span], b: &[Span]) -> u64 {
    fn is_empty(span: &Span) -> bool {
        span.to <= span.from
    }
    let (mut a, mut b) = (a.iter().filter(|span| !is_empty(span)), b.iter().filter(|span| !is_empty(span)));
    let (mut left, mut right) = (a.next().cloned(), b.next().cloned());
    let mut common = 0;
    while let (Some(one), Some(other)) = (&mut left, &mut right) {
        if (&one.thread, one.epoch, one.from) != (&other.thread, other.epoch, other.from) {
            break;
        }
        let to = one.to.min(other.to);
        common += to.0 - one.from.0;
        (one.from, other.from) = (to, to);
        if is_empty(one) {
            left = a.next().cloned();
        }
        if is_empty(other) {
            right = b.next().cloned();
        }
    }
    common
}

/// `GET /threads/{id}/generations`
pub(super) async fn generations(
    State(deps): State<HttpDeps>,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
    asked: Result<Query<GenerationsQuery>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let thread = thread_id(&path(id)?)?;
    let asked = query(asked)?;
    let limit = limit(asked.limit, LISTED_LOGS)?.min(LISTED_LOGS);
    let skip = asked.skip.unwrap_or_default();
    let store = &*deps.callback.store;
    let meta = caller.thread(store, &thread).await?;
    let newest = meta.compaction.newest.as_ref();
    // One more than asked for says whether there are more.
    let found = generations_from(store, newest, skip, limit + 1).await?;
    let (spans, mut bytes, mut shown) = (meta.spans(), 0, Vec::new());
    for generation in found.iter().take(limit) {
        if bytes > MAX_PAGE_BYTES {
            break;
        }
        bytes += generation.text.len();
        shown.push(shown_generation(&meta, &spans, generation));
    }
    let next = (shown.len() < found.len()).then(|| skip.saturating_add(shown.len()));
    Ok(Json(json!({ "generations": shown, "next": next })))
}

fn shown_generation(meta: &Meta, spans: &[Span], generation: &Generation) -> Value {
    let id = &generation.at.id;
    let covers = behind(spans, &generation.at.through).map(|(covered, _)| covered);
    json!({
        "thread_id": id.thread,
        "epoch": id.epoch,
        "generation": id.number,
        "covers": covers.map(|covered| covered.saturating_sub(foreign(meta))),
        "text": generation.text,
        "model": generation.model,
        "partial": generation.partial,
        "source_tokens": generation.source_tokens,
        "tokens": crate::message::tokens::of_bytes(generation.text.len()),
        "created_at_ms": generation.created_at_ms,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::ThreadId;

    fn span(thread: &str, epoch: u32, from: u64, to: u64) -> Span {
        Span { thread: ThreadId::from(thread), epoch: Epoch(epoch), from: Seq(from), to: Seq(to) }
    }

    #[test]
    fn views_share_what_they_begin_with_however_it_is_cut_into_spans() {
        let whole = [span("t", 0, 0, 6)];
        let cut = [span("t", 0, 0, 2), span("t", 0, 2, 4), span("t", 1, 0, 9)];
        assert_eq!(shared(&whole, &cut), 4);
        assert_eq!(shared(&cut, &whole), 4);
        assert_eq!(shared(&whole, &whole), 6);
        assert_eq!(shared(&whole, &[span("t", 1, 0, 6)]), 0);
        assert_eq!(shared(&whole, &[span("s", 0, 0, 6)]), 0);
        assert_eq!(shared(&whole, &[span("t", 0, 1, 6)]), 0);
        assert_eq!(
            shared(&[span("t", 0, 0, 0), span("t", 0, 0, 6)], &whole),
            6,
            "empty spans count for nothing"
        );
        assert_eq!(shared(&whole, &[]), 0);
        assert_eq!(length(&cut), 13);
    }
}
