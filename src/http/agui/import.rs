//! Conversations that clients kept, brought in as threads. The items are stored at once, under the name of their content; the
//! thread is made of them by its queue, with all of its branches or not at all.

use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;

use super::{answer, thread_of};
use crate::agui::planting::Planted;
use crate::agui::repository::{ImportError, Repository};
use crate::agui::wire::WireError;
use crate::history::snapshot::{Snapshot, log_of};
use crate::http::auth::Caller;
use crate::http::threads::{known, metadata, path, query};
use crate::http::{ApiError, HttpDeps, body};
use crate::message::{DedupId, Import, InputContent, InputMessage, ThreadId};
use crate::slice::{Clock, SystemClock};
use crate::store::Meta;

#[derive(Deserialize)]
pub(in crate::http) struct Agent {
    agent: Option<String>,
}

impl From<ImportError> for ApiError {
    fn from(error: ImportError) -> Self {
        match &error {
            ImportError::State(WireError::StateTooLarge(_)) => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, error.to_string())
            }
            _ => Self::bad(error.to_string()),
        }
    }
}

/// `POST /agui/threads/{thread}/messages`
pub(in crate::http) async fn import(
    State(deps): State<HttpDeps>,
    caller: Result<Caller, ApiError>,
    name: Result<Path<String>, PathRejection>,
    agent: Result<Query<Agent>, QueryRejection>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let imported = async {
        let (caller, name) = (caller?, path(name)?);
        let config = &deps.callback.config;
        let agent = query(agent)?.agent.unwrap_or_else(|| config.default_agent.clone());
        super::agent(&deps, &agent)?;
        let repository = Repository::parse(&body::json_bytes(&headers, body).await?)?;
        let thread = thread_of(&name);
        if known(&deps, &caller, &thread).await?.is_some() {
            let text = "a thread of this name exists; an import needs a new one";
            return Err(ApiError::new(StatusCode::CONFLICT, text));
        }
        let (log, planted) = plant(&repository, &caller, &thread)?;
        deps.callback.store.put_log(&log, &planted.items).await?;
        let (items, branches) = (planted.items.len(), planted.branches.len());
        let dedup = DedupId::derive("agui-import", &[thread.as_str(), log.as_str(), &agent]);
        let message = InputMessage {
            metadata: metadata(&caller, None, None)?,
            ..InputMessage::plain(thread.clone(), content(log, planted, &thread, agent))
        };
        deps.callback.sender.send(&message, &dedup).await?;
        tracing::info!(%thread, %dedup, items, branches, "import queued");
        let queued = json!({ "threadId": name, "items": items, "branches": branches });
        Ok((StatusCode::ACCEPTED, axum::Json(queued)).into_response())
    };
    answer(imported.await)
}

/// The items, and the log that is named by them and by the thread: no call of one thread has the id of another's. Calls have
/// their ids of the log, so it is named before they have any.
fn plant(
    repository: &Repository,
    caller: &Caller,
    thread: &ThreadId,
) -> Result<(ThreadId, Planted), ImportError> {
    let user = match caller {
        Caller::Operator => None,
        Caller::Principal(principal) => Some(principal.as_str()),
    };
    let now_ms = SystemClock.now_ms();
    let content = repository.plant(thread, user, now_ms)?.content();
    let log = log_of(&format!("{thread} {content}"));
    let planted = repository.plant(&log, user, now_ms)?;
    Ok((log, planted))
}

fn content(log: ThreadId, planted: Planted, thread: &ThreadId, agent: String) -> InputContent {
    let meta = Meta { next_turn: planted.next_turn, ..Meta::new_root(thread.clone(), agent, None, 0) };
    InputContent::Import(Import {
        log,
        items: planted.items.len() as u64,
        thread: Snapshot::of(&meta, &[]).without_items(),
        branches: planted.branches,
        first: planted.first,
    })
}
