//! What tools show of a thread beside its conversation (RAP 45): the latest view of each type, as the tool wrote it.

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use serde::{Deserialize, Serialize};

use super::auth::Caller;
use super::threads::{MAX_PAGE_BYTES, path, query, thread_id};
use super::{ApiError, HttpDeps};
use crate::message::RawJson;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ViewQuery {
    view_type: Option<String>,
}

#[derive(Serialize)]
pub(super) struct View {
    view_type: String,
    content: RawJson,
}

#[derive(Default, Serialize)]
pub(super) struct Views {
    views: Vec<View>,
    /// Types for which this answer had no room.
    left_out: Vec<String>,
}

/// `GET /threads/{id}/views`
pub(super) async fn list(
    State(deps): State<HttpDeps>,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
    asked: Result<Query<ViewQuery>, QueryRejection>,
) -> Result<Json<Views>, ApiError> {
    let thread = thread_id(&path(id)?)?;
    let asked = query(asked)?.view_type;
    let store = &deps.callback.store;
    caller.thread(&**store, &thread).await?;
    let mut answer = Views::default();
    let mut bytes = 0;
    for (view_type, content) in store.views(&thread).await? {
        if asked.as_ref().is_some_and(|asked| *asked != view_type) {
            continue;
        }
        // One alone always fits: it came in one callback.
        if bytes > 0 && bytes + content.get().len() > MAX_PAGE_BYTES {
            answer.left_out.push(view_type);
            continue;
        }
        bytes += content.get().len();
        answer.views.push(View { view_type, content });
    }
    Ok(Json(answer))
}
