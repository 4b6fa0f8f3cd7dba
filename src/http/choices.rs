//! Questions of tools to the user, and their answers.

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use super::auth::Caller;
use super::threads::{Queued, path, thread_id};
use super::{ApiError, HttpDeps, body};
use crate::message::{CallId, DedupId, InputContent, InputMessage, UserChoiceAnswer, UserChoiceRequired};
use crate::store::{ChoiceRow, Meta};

/// An answer, as it is POSTed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Answer {
    /// Null dismisses the question; to leave it out is an error.
    #[serde(deserialize_with = "Option::deserialize")]
    selected: Option<usize>,
}

/// A question that still waits: its call has no result.
fn waiting(meta: &Meta, row: &ChoiceRow) -> Option<UserChoiceRequired> {
    let call = CallId::of_choice(&row.id);
    meta.pending_call(&call).filter(|call| call.is_asked_by(&row.id) && !call.parked)?;
    serde_json::from_str(&row.body).ok()
}

/// `GET /threads/{id}/choices`
pub(super) async fn list(
    State(deps): State<HttpDeps>,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let thread = thread_id(&path(id)?)?;
    let store = &deps.callback.store;
    let meta = caller.thread(&**store, &thread).await?;
    let rows = store.open_choices(&thread).await?;
    let choices: Vec<Value> = rows
        .iter()
        .filter_map(|row| waiting(&meta, row))
        .map(|choice| {
            json!({
                "choice_id": choice.id,
                "prompt": choice.prompt,
                "choices": choice.choices,
                "default": choice.default,
            })
        })
        .collect();
    Ok(Json(json!({ "choices": choices })))
}

/// `POST /threads/{id}/choices/{choice_id}`
pub(super) async fn answer(
    State(deps): State<HttpDeps>,
    caller: Caller,
    ids: Result<Path<(String, String)>, PathRejection>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<Queued>), ApiError> {
    let (thread, choice) = path(ids)?;
    let (thread, choice) = (thread_id(&thread)?, CallId::new(choice));
    let Answer { selected } = body::parse(&headers, body).await?;
    let store = &deps.callback.store;
    let meta = caller.thread(&**store, &thread).await?;
    let row = store.choice(&thread, &choice).await?;
    let Some(asked) = row.and_then(|row| waiting(&meta, &row)) else {
        return Err(ApiError::new(StatusCode::NOT_FOUND, "there is no such open question"));
    };
    if selected.is_some_and(|selected| selected >= asked.choices.len()) {
        let text = format!("selected: there are {} choices, counted from 0", asked.choices.len());
        return Err(ApiError::bad(text));
    }
    // One answer to a question: of two that are sent at once the first counts.
    let dedup_id = DedupId::derive("choice-answer", &[thread.as_str(), choice.as_str()]);
    let content = InputContent::UserChoiceAnswer(UserChoiceAnswer { id: choice, selected });
    deps.callback.sender.send(&InputMessage::plain(thread.clone(), content), &dedup_id).await?;
    tracing::info!(%thread, dedup = %dedup_id, "answer to a choice queued");
    Ok((StatusCode::ACCEPTED, Json(Queued { thread_id: thread, dedup_id })))
}
