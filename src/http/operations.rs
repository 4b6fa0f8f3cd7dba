//! What is asked of a thread itself: to hide its newest turns, to begin as a copy of another one, to end. Each is a
//! queue message like every other input (I6); a rewind can be looked at first, which changes nothing.

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use super::auth::Caller;
use super::threads::{Queued, content, idempotency_key, path, thread_id};
use super::{ApiError, HttpDeps, body};
use crate::history::History;
use crate::history::rewind::{RewindPlan, RewindRefused};
use crate::history::snapshot::Snapshot;
use crate::message::{
    DedupId, Epoch, Fork, InputContent, InputMessage, RawJson, Rewind, RewindTarget, Seen, Then, ThreadId,
};
use crate::store::Loaded;
use crate::thread::{load_branch, store_snapshot};

/// A rewind, as it is POSTed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RewindRequest {
    target: RewindTarget,
    seen: Option<Seen>,
    then: Option<Then>,
    #[serde(default)]
    preview: bool,
}

/// A fork, as it is POSTed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ForkRequest {
    thread_id: String,
    through: Option<u32>,
    epoch: Option<Epoch>,
}

/// Which branch to export.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExportQuery {
    epoch: Option<Epoch>,
}

/// What a rewind of a loaded thread would hide.
///
/// # Errors
/// Why it would be refused.
pub fn preview(loaded: Loaded, thread: &ThreadId, rewind: &Rewind) -> Result<Preview, RewindRefused> {
    let history = History::new(thread.clone(), loaded);
    let seen = Seen { epoch: history.epoch(), head: history.head() };
    let plan = history.plan_rewind(&rewind.target, rewind.seen, rewind.into())?;
    Ok(Preview { seen, plan })
}

/// A rewind that was only looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preview {
    /// Where the thread stands: sent along, it makes sure that nothing else is hidden.
    pub seen: Seen,
    /// What would be hidden.
    pub plan: RewindPlan,
}

/// `POST /threads/{id}/rewind`
pub(super) async fn rewind(
    State(deps): State<HttpDeps>,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let thread = thread_id(&path(id)?)?;
    let RewindRequest { target, seen, then, preview: only_look } = body::parse(&headers, body).await?;
    if caller.thread(&*deps.callback.store, &thread).await?.closed {
        return Err(ApiError::new(StatusCode::CONFLICT, "the thread is closed"));
    }
    if let Some(Then::Say(parts)) = &then {
        content(None, Some(parts.clone()))?;
    }
    let rewind = Rewind { target, seen, then };
    let loaded = deps.callback.store.load(&thread, &[]).await?;
    let looked = preview(loaded, &thread, &rewind).map_err(|why| conflict(&why))?;
    if only_look {
        return Ok(Json(shown(&looked)).into_response());
    }
    Ok(queue(&deps, &headers, thread, InputContent::Rewind(rewind), None).await?.into_response())
}

fn conflict(why: &RewindRefused) -> ApiError {
    ApiError::new(StatusCode::CONFLICT, why.to_string())
}

fn shown(Preview { seen, plan }: &Preview) -> Value {
    let turns = plan.turns.iter().map(|turn| json!({ "turn": turn.turn, "text": turn.text }));
    let calls = plan.calls.iter().map(|(name, call)| json!({ "name": name, "call_id": call }));
    json!({
        "seen": seen,
        "next_turn": plan.next_turn,
        "turns": turns.collect::<Vec<_>>(),
        "calls": calls.collect::<Vec<_>>(),
        "children": plan.children.len(),
    })
}

/// `POST /threads/{id}/fork`
pub(super) async fn fork(
    State(deps): State<HttpDeps>,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<Queued>), ApiError> {
    let source = thread_id(&path(id)?)?;
    let ForkRequest { thread_id: target, through, epoch } = body::parse(&headers, body).await?;
    let target = thread_id(&target)?;
    caller.thread(&*deps.callback.store, &source).await?;
    if super::threads::known(&deps, &caller, &target).await?.is_some() {
        return Err(ApiError::new(
            StatusCode::CONFLICT,
            "a thread of this name exists; a fork needs a new one",
        ));
    }
    let branch = load_branch(&*deps.callback.store, &source, epoch).await?;
    let branch = branch.ok_or_else(no_branch)?;
    History::new(source.clone(), branch).fork_point(through).map_err(|why| conflict(&why))?;
    let fork = Fork { source, through, epoch };
    queue(&deps, &headers, target, InputContent::Fork(fork), owned_by(&caller)?).await
}

fn no_branch() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "the thread has no log of that epoch")
}

/// Who makes a thread owns it.
fn owned_by(caller: &Caller) -> Result<Option<RawJson>, ApiError> {
    match caller {
        Caller::Operator => Ok(None),
        Caller::Principal(principal) => {
            let text = json!({ "user_id": principal }).to_string();
            RawJson::parse(&text).map(Some).map_err(|e| ApiError::bad(e.to_string()))
        }
    }
}

/// `GET /threads/{id}/export`
pub(super) async fn export(
    State(deps): State<HttpDeps>,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
    asked: Result<Query<ExportQuery>, QueryRejection>,
) -> Result<Json<Snapshot>, ApiError> {
    let thread = thread_id(&path(id)?)?;
    let ExportQuery { epoch } = super::threads::query(asked)?;
    caller.thread(&*deps.callback.store, &thread).await?;
    let branch = load_branch(&*deps.callback.store, &thread, epoch).await?.ok_or_else(no_branch)?;
    let meta = branch.meta.ok_or_else(no_branch)?;
    Ok(Json(Snapshot::of(&meta, &branch.items)))
}

/// `POST /threads/{id}/import`
pub(super) async fn import(
    State(deps): State<HttpDeps>,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<Queued>), ApiError> {
    let thread = thread_id(&path(id)?)?;
    let document: Box<serde_json::value::RawValue> = body::parse(&headers, body).await?;
    if super::threads::known(&deps, &caller, &thread).await?.is_some() {
        return Err(ApiError::new(
            StatusCode::CONFLICT,
            "a thread of this name exists; an import needs a new one",
        ));
    }
    let snapshot = Snapshot::parse(document.get()).map_err(|why| ApiError::bad(why.to_string()))?;
    let snapshot = match &caller {
        Caller::Operator => snapshot,
        Caller::Principal(principal) => snapshot.on_behalf_of(principal),
    };
    let import = store_snapshot(&*deps.callback.store, snapshot).await?;
    queue(&deps, &headers, thread, InputContent::Import(import), owned_by(&caller)?).await
}

/// `POST /threads/{id}/close`
pub(super) async fn close(
    State(deps): State<HttpDeps>,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<(StatusCode, Json<Queued>), ApiError> {
    let thread = thread_id(&path(id)?)?;
    caller.thread(&*deps.callback.store, &thread).await?;
    queue(&deps, &headers, thread, InputContent::Close, None).await
}

async fn queue(
    deps: &HttpDeps,
    headers: &HeaderMap,
    thread: ThreadId,
    content: InputContent,
    metadata: Option<RawJson>,
) -> Result<(StatusCode, Json<Queued>), ApiError> {
    let key = idempotency_key(headers, None)?;
    let message = InputMessage { metadata, ..InputMessage::plain(thread.clone(), content) };
    let dedup_id = DedupId::derive("http", &[thread.as_str(), &key]);
    deps.callback.sender.send(&message, &dedup_id).await?;
    tracing::info!(%thread, dedup = %dedup_id, "operation queued");
    Ok((StatusCode::ACCEPTED, Json(Queued { thread_id: thread, dedup_id })))
}
