//! What a thread is doing: ending its response, and the calls that it waits for.

use std::collections::BTreeMap;

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::auth::Caller;
use super::threads::{Queued, path, thread_id};
use super::{ApiError, HttpDeps, body};
use crate::history::SETTLED_BY_HAND;
use crate::message::{CallId, ContentPart, DedupId, InputContent, InputMessage, Resend, ThreadId};
use crate::store::{Loaded, PendingCall, Stop};

/// Characters of the reason with which a call is settled by hand.
const MAX_REASON_CHARS: usize = 2_000;

/// `POST /threads/{id}/cancel`
pub(super) async fn cancel(
    State(deps): State<HttpDeps>,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let thread = thread_id(&path(id)?)?;
    let store = &deps.callback.store;
    let meta = caller.thread(&**store, &thread).await?;
    let stop = Stop { epoch: meta.epoch, head: meta.head, id: Uuid::new_v4().to_string() };
    store.request_stop(&thread, &stop).await?;
    tracing::info!(%thread, head = %meta.head, "cancel requested");
    Ok((StatusCode::ACCEPTED, Json(json!({ "thread_id": thread, "head": meta.head }))))
}

/// Pending calls, and since when each waits (milliseconds since the epoch).
pub fn waiting_since(loaded: &Loaded) -> Vec<(&PendingCall, i64)> {
    let Some(meta) = &loaded.meta else { return Vec::new() };
    // The last of two items with one seq is the thread's own.
    let times: BTreeMap<_, _> =
        loaded.items.iter().map(|item| (item.seq, item.facts.created_at_ms)).collect();
    let since = |call: &PendingCall| times.get(&call.seq).copied().unwrap_or(meta.created_at_ms);
    meta.pending.iter().map(|call| (call, since(call))).collect()
}

/// The message that settles a call in place of a tool that will not, and the id it goes under. The tool's own result
/// is a late one then.
pub fn settled_by_hand(thread: &ThreadId, call: &CallId, reason: Option<&str>) -> (InputMessage, DedupId) {
    let reason = reason.unwrap_or("no result came, and an operator has settled the call");
    let parts = vec![ContentPart::Text(format!("Error: {reason}"))];
    let dedup = DedupId::derive(SETTLED_BY_HAND, &[thread.as_str(), call.as_str()]);
    (InputMessage::tool_result(thread.clone(), call.clone(), parts), dedup)
}

/// What keeps a pending call from being sent again, if anything does.
pub fn unsendable(pending: &PendingCall) -> Option<&'static str> {
    match pending {
        PendingCall { parked: true, .. } => Some("its result is in already"),
        PendingCall { synchronous: true, .. } => Some("it runs inside the slice"),
        PendingCall { hold: Some(_), .. } => Some("it is not out yet"),
        _ => None,
    }
}

/// The message that has a pending call dispatched again, and the id it goes under: each request is one of its own.
pub fn resent_by_hand(thread: &ThreadId, call: &CallId) -> (InputMessage, DedupId) {
    let content = InputContent::Resend(Resend { id: call.clone() });
    let dedup = DedupId::derive("resend", &[thread.as_str(), call.as_str(), &Uuid::new_v4().to_string()]);
    (InputMessage::plain(thread.clone(), content), dedup)
}

/// `POST /threads/{id}/calls/{call_id}/resend`
pub(super) async fn resend(
    State(deps): State<HttpDeps>,
    caller: Caller,
    ids: Result<Path<(String, String)>, PathRejection>,
) -> Result<(StatusCode, Json<Queued>), ApiError> {
    let (thread, call) = path(ids)?;
    let (thread, call) = (thread_id(&thread)?, CallId::new(call));
    let meta = caller.thread(&*deps.callback.store, &thread).await?;
    let Some(pending) = meta.pending_call(&call) else {
        return Err(ApiError::new(StatusCode::NOT_FOUND, "there is no such pending call"));
    };
    if let Some(why) = unsendable(pending) {
        return Err(ApiError::new(StatusCode::CONFLICT, why));
    }
    let (message, dedup_id) = resent_by_hand(&thread, &call);
    deps.callback.sender.send(&message, &dedup_id).await?;
    tracing::info!(%thread, %call, "call is to be sent again");
    Ok((StatusCode::ACCEPTED, Json(Queued { thread_id: thread, dedup_id })))
}

/// `GET /threads/{id}/pending`
pub(super) async fn pending(
    State(deps): State<HttpDeps>,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let thread = thread_id(&path(id)?)?;
    caller.thread(&*deps.callback.store, &thread).await?;
    let loaded = deps.callback.store.load(&thread, &[]).await?;
    let calls: Vec<Value> = waiting_since(&loaded)
        .into_iter()
        .map(|(call, since_ms)| {
            let mut shown = super::threads::pending(call);
            shown["since_ms"] = json!(since_ms);
            shown
        })
        .collect();
    Ok(Json(json!({ "pending": calls })))
}

/// How a call is settled, as it is POSTed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Settle {
    reason: Option<String>,
}

/// `POST /threads/{id}/pending/{call_id}/settle`
pub(super) async fn settle(
    State(deps): State<HttpDeps>,
    caller: Caller,
    ids: Result<Path<(String, String)>, PathRejection>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<Queued>), ApiError> {
    let (thread, call) = path(ids)?;
    let (thread, call) = (thread_id(&thread)?, CallId::new(call));
    let Settle { reason } = body::parse(&headers, body).await?;
    if reason.as_ref().is_some_and(|reason| reason.chars().count() > MAX_REASON_CHARS) {
        return Err(ApiError::bad(format!("reason: at most {MAX_REASON_CHARS} characters")));
    }
    let meta = caller.thread(&*deps.callback.store, &thread).await?;
    match meta.pending_call(&call) {
        None => return Err(ApiError::new(StatusCode::NOT_FOUND, "there is no such pending call")),
        Some(pending) if pending.parked => {
            return Err(ApiError::new(StatusCode::CONFLICT, "its result is in already"));
        }
        Some(_) => {}
    }
    let (message, dedup_id) = settled_by_hand(&thread, &call, reason.as_deref());
    deps.callback.sender.send(&message, &dedup_id).await?;
    tracing::info!(%thread, %call, "call settled by hand");
    Ok((StatusCode::ACCEPTED, Json(Queued { thread_id: thread, dedup_id })))
}
