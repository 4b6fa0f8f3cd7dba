//! A thread as a client's messages.

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{answer, thread_of};
use crate::agui::convert::{self, place, repository};
use crate::agui::emit::End;
use crate::agui::wire::{Interrupt, Message};
use crate::http::auth::Caller;
use crate::http::threads::{path, query};
use crate::http::{ApiError, HttpDeps};
use crate::message::{RawJson, ThreadId};
use crate::slice::questions::interrupts;
use crate::store::{Loaded, Store, StoreError};
use crate::thread::{Branches, MAX_BRANCH_ITEMS, load_branches};

/// A thread as it stands.
#[derive(Default)]
pub(super) struct View {
    pub messages: Vec<Message>,
    pub state: Option<RawJson>,
    pub interrupts: Vec<Interrupt>,
    pub active_run: Option<String>,
}

impl View {
    /// Puts into interrupts that were written down what only their open questions know: where to consent, and what is large.
    pub(super) fn in_full(&self, end: End) -> End {
        let End::Interrupted { interrupts: told } = end else { return end };
        let as_open =
            |told: Interrupt| self.interrupts.iter().find(|open| open.id == told.id).cloned().unwrap_or(told);
        End::Interrupted { interrupts: told.into_iter().map(as_open).collect() }
    }
}

/// The head of a thread; nothing of one that does not exist.
pub(super) async fn current(store: &dyn Store, thread: &ThreadId) -> Result<View, StoreError> {
    let loaded = store.load(thread, &[]).await?;
    let active_run = loaded.meta.as_ref().and_then(|meta| meta.run.clone());
    let state = loaded.items.iter().rev().find_map(|item| item.body.state()).cloned();
    let interrupts = interrupts(&loaded);
    Ok(View { messages: shown(&loaded, &interrupts), state, interrupts, active_run })
}

fn shown(loaded: &Loaded, interrupts: &[Interrupt]) -> Vec<Message> {
    let Some(meta) = &loaded.meta else { return Vec::new() };
    let mut messages = convert::messages(&place(&meta.thread, meta.logs(), &loaded.items));
    // Otherwise a page that is loaded anew would not know of the pause.
    let last = messages.iter_mut().rev().find_map(|message| match message {
        Message::Assistant { metadata, .. } => Some(metadata),
        Message::User { .. } | Message::Tool { .. } | Message::Reasoning { .. } => None,
    });
    if let Some(metadata) = last.filter(|_| !interrupts.is_empty()) {
        *metadata = Some(json!({ "custom": { "agui": { "interrupts": interrupts } } }));
    }
    messages
}

#[derive(Deserialize)]
pub(in crate::http) struct Format {
    format: Option<String>,
}

/// `GET /agui/threads/{thread}/messages`
pub(in crate::http) async fn messages(
    State(deps): State<HttpDeps>,
    caller: Result<Caller, ApiError>,
    name: Result<Path<String>, PathRejection>,
    format: Result<Query<Format>, QueryRejection>,
) -> Response {
    let shown = async {
        let (caller, name) = (caller?, path(name)?);
        let format = query(format)?.format;
        let (store, thread) = (&*deps.callback.store, thread_of(&name));
        // One that does not exist, or is somebody else's, is empty.
        let meta = match store.meta(&thread).await? {
            Some(meta) if caller.may(store, &meta).await? => Some(meta),
            Some(_) | None => None,
        };
        let view = match &meta {
            Some(_) => current(store, &thread).await?,
            None => View::default(),
        };
        let mut body = match format.as_deref() {
            Some("repository") => {
                let branches = match &meta {
                    Some(meta) => load_branches(store, meta, MAX_BRANCH_ITEMS).await?,
                    None => Branches::default(),
                };
                let left =
                    branches.iter().map(|branch| place(&thread, branch.logs.into_iter(), branch.items));
                let left = left.map(|items| convert::messages(&items));
                repository(&left.chain([view.messages]).collect::<Vec<_>>())
            }
            Some(_) | None => {
                let mut body = json!({ "threadId": name, "messages": view.messages });
                if !view.interrupts.is_empty() {
                    body["interrupts"] = json!(view.interrupts);
                }
                if let Some(run) = view.active_run {
                    body["activeRunId"] = Value::from(run);
                }
                body
            }
        };
        // One that no reader takes is left out, not the thread.
        if let Some(Ok(state)) = view.state.map(serde_json::to_value) {
            body["state"] = state;
        }
        Ok(axum::Json(body).into_response())
    };
    answer(shown.await)
}
