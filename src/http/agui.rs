//! AG-UI: `POST /agui/agent/{agent}/run` takes a client's view of a thread and answers with a stream of events, and the
//! routes beside it show what there is. What is refused about a thread is an event of its stream; only what comes before a
//! run is a status.
//!
//! | file | what it holds |
//! |---|---|
//! | `import` | threads made of what a client kept |
//! | `tail` | a run's rows as a stream of events |
//! | `views` | a thread as messages |
//! | `watch` | what tools show meanwhile, as events |

mod import;
mod tail;
mod views;
mod watch;

use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::auth::Caller;
use super::threads::{known, metadata, path};
use super::{ApiError, HttpDeps, body};
use crate::agui::branch;
use crate::agui::convert;
use crate::agui::emit::End;
use crate::agui::wire::{RunInput, WireError};
use crate::message::{DedupId, InputContent, InputMessage, RawJson, RunRecord, RunRequest, ThreadId};
use crate::slice::{Clock, SystemClock};
use crate::store::{Meta, RunChange, RunRow, RunState, RunStore};

pub(super) use import::import;
pub(super) use views::messages;

/// How long a stream lasts at most, where whatever serves the router gives it less than a stream would take: behind an HTTP
/// API the whole of it is one buffered body. The run goes on; posting it again shows the rest.
#[derive(Clone, Copy, Debug)]
pub struct StreamTime(pub Duration);

impl StreamTime {
    /// Behind an HTTP API: below its 30 seconds, with some for the way.
    pub const BUFFERED: Self = Self(Duration::from_secs(25));
}

/// SQS's bound on a message group.
const MAX_GROUP_CHARS: usize = 128;

/// A thread's name for a client's name of it: the same where SQS can carry it.
fn thread_of(name: &str) -> ThreadId {
    let plain =
        (1..=MAX_GROUP_CHARS).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic());
    match plain {
        true => ThreadId::from(name),
        false => ThreadId::new(DedupId::derive("agui", &[name]).as_str()),
    }
}

fn answer(result: Result<Response, ApiError>) -> Response {
    result.unwrap_or_else(IntoResponse::into_response)
}

/// The store of runs.
fn runs(deps: &HttpDeps) -> Result<&dyn RunStore, ApiError> {
    let none = || ApiError::new(StatusCode::NOT_FOUND, "this store keeps no runs of clients");
    deps.callback.store.runs().ok_or_else(none)
}

fn agent(deps: &HttpDeps, name: &str) -> Result<(), ApiError> {
    let unknown = |_| ApiError::new(StatusCode::NOT_FOUND, "there is no such agent");
    deps.callback.config.agent(name).map(|_| ()).map_err(unknown)
}

async fn input(headers: &HeaderMap, body: Body) -> Result<RunInput, ApiError> {
    let bytes = body::json_bytes(headers, body).await?;
    RunInput::parse(&bytes).map_err(|e| match e {
        WireError::StateTooLarge(_) => ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, e.to_string()),
        WireError::NotJson(_) | WireError::Missing(..) | WireError::TooMany(..) | WireError::StateTooDeep => {
            ApiError::bad(e.to_string())
        }
    })
}

/// `POST /agui/agent/{agent}/run`
pub(super) async fn run(
    State(deps): State<HttpDeps>,
    time: Option<Extension<StreamTime>>,
    caller: Result<Caller, ApiError>,
    name: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let begun = async {
        let (caller, name) = (caller?, path(name)?);
        agent(&deps, &name)?;
        let input = input(&headers, body).await?;
        begin(deps, &caller, &name, input, time).await
    };
    answer(begun.await)
}

/// Queues a run that is not known, and follows it either way.
async fn begin(
    deps: HttpDeps,
    caller: &Caller,
    agent: &str,
    input: RunInput,
    time: Option<Extension<StreamTime>>,
) -> Result<Response, ApiError> {
    let thread = thread_of(&input.thread_id);
    let known = known(&deps, caller, &thread).await?;
    let now_ms = SystemClock.now_ms();
    let config = serde_json::to_string(&input.config).map_err(|e| ApiError::bad(e.to_string()))?;
    let row = RunRow::queued(&input.run_id, config, now_ms + tail::ATTACHED_MS);
    let store = runs(&deps)?;
    let state = match store.put_run(&thread, &row, now_ms).await? {
        true => RunState::Queued,
        false => {
            let attach = RunChange::Attach { until_ms: now_ms + tail::ATTACHED_MS };
            let row = store.change_run(&thread, &input.run_id, &attach, now_ms).await?;
            row.map_or(RunState::Queued, |row| row.state)
        }
    };
    if state == RunState::Queued {
        // Also of a run that is known: whoever made its row may have died before this.
        let given = match known {
            Some(_) => None,
            None => Some([("agent".to_owned(), quoted(agent)?)].into()),
        };
        let message = InputMessage {
            metadata: metadata(caller, given, known.as_ref())?,
            ..InputMessage::plain(thread.clone(), InputContent::Run(input.request.clone()))
        };
        if let Some(meta) = &known {
            take_over(&deps, meta, &input.request, now_ms).await?;
        }
        let dedup = DedupId::derive("run", &[thread.as_str(), &input.run_id]);
        deps.callback.sender.send(&message, &dedup).await?;
        tracing::info!(%thread, %dedup, "run queued");
    }
    let tail = tail::Tail::new(deps.callback.store.clone(), thread, input.thread_id, input.run_id);
    Ok(stream(tail.within(time.map(|Extension(time)| time)).events()))
}

fn quoted(text: &str) -> Result<RawJson, ApiError> {
    RawJson::parse(&json!(text).to_string()).map_err(|e| ApiError::bad(e.to_string()))
}

fn stream(frames: impl futures::Stream<Item = String> + Send + 'static) -> Response {
    use futures::StreamExt;
    let body = Body::from_stream(frames.map(Ok::<_, std::convert::Infallible>));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (headers, body).into_response()
}

/// `POST /agui/agent/{agent}/connect`
pub(super) async fn connect(
    State(deps): State<HttpDeps>,
    time: Option<Extension<StreamTime>>,
    caller: Result<Caller, ApiError>,
    name: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let connected = async {
        let (caller, name) = (caller?, path(name)?);
        agent(&deps, &name)?;
        let input = input(&headers, body).await?;
        let thread = thread_of(&input.thread_id);
        let active = match deps.callback.store.meta(&thread).await? {
            Some(meta) => {
                caller.thread(&*deps.callback.store, &thread).await?;
                meta.run
            }
            None => None,
        };
        if let Some(run) = &active {
            let now_ms = SystemClock.now_ms();
            let attach = RunChange::Attach { until_ms: now_ms + tail::ATTACHED_MS };
            runs(&deps)?.change_run(&thread, run, &attach, now_ms).await?;
        }
        let tail = tail::Tail::new(deps.callback.store.clone(), thread, input.thread_id, input.run_id);
        Ok(stream(tail.within(time.map(|Extension(time)| time)).connected(active)))
    };
    answer(connected.await)
}

/// What a client wants to end.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct StopRequest {
    run_id: Option<String>,
}

/// `POST /agui/agent/{agent}/stop/{thread}`
pub(super) async fn stop(
    State(deps): State<HttpDeps>,
    caller: Result<Caller, ApiError>,
    names: Result<Path<(String, String)>, PathRejection>,
    body: Body,
) -> Response {
    let stopped = async {
        let (caller, (_, thread)) = (caller?, path(names)?);
        let thread = thread_of(&thread);
        let body::Read::Whole(bytes) = body::read(body).await else {
            return Err(ApiError::bad("the body broke off"));
        };
        // An empty body and one that says nothing name whatever runs; one that cannot be read must not.
        let asked = match bytes.iter().all(u8::is_ascii_whitespace) {
            true => None,
            false => {
                let named: StopRequest =
                    serde_json::from_slice(&bytes).map_err(|e| ApiError::bad(format!("the body: {e}")))?;
                named.run_id
            }
        };
        let now_ms = SystemClock.now_ms();
        let run = match deps.callback.store.meta(&thread).await? {
            Some(meta) if caller.may(&*deps.callback.store, &meta).await? => asked.or(meta.run),
            // Before its first commit nobody can tell whose it is.
            None if caller == Caller::Operator => asked,
            Some(_) | None => None,
        };
        let stopped = match run {
            Some(run) => end(runs(&deps)?, &thread, &run, now_ms).await?,
            None => false,
        };
        Ok(axum::Json(json!({ "stopped": stopped })).into_response())
    };
    answer(stopped.await)
}

/// Has a run end, and says whether it was under way. A slice that works on it is told; of one that only waits, the end is
/// written here, since nobody else might for days.
async fn end(runs: &dyn RunStore, thread: &ThreadId, run: &str, now_ms: i64) -> Result<bool, ApiError> {
    let change = match runs.run(thread, run).await?.map(|row| row.state) {
        None | Some(RunState::Ended) => return Ok(false),
        Some(RunState::Running) => RunChange::Stop,
        Some(RunState::Queued | RunState::Waiting) => RunChange::End(stopped_text()),
    };
    let row = runs.change_run(thread, run, &change, now_ms).await?;
    // Its slice has ended in the meantime, unheeding.
    if row.is_some_and(|row| matches!(row.state, RunState::Queued | RunState::Waiting)) {
        runs.change_run(thread, run, &RunChange::End(stopped_text()), now_ms).await?;
    }
    Ok(true)
}

/// How a run ended that nobody worked on.
fn stopped_text() -> String {
    serde_json::to_string(&End::failed("abort", "stopped")).expect("bug: an end serialises")
}

/// Ends the run that is under way for a client that has stopped listening to it and goes on (R13): one whose view holds the
/// running turn. The new run follows it on the queue.
async fn take_over(deps: &HttpDeps, meta: &Meta, request: &RunRequest, now_ms: i64) -> Result<(), ApiError> {
    let is_new = matches!(request.records.last(), Some(RunRecord::User { .. }));
    let Some(active) = meta.run.as_ref().filter(|run| is_new && **run != request.run) else { return Ok(()) };
    let loaded = deps.callback.store.load(&meta.thread, &[]).await?;
    let Some(meta) = &loaded.meta else { return Ok(()) };
    let items = convert::place(&meta.thread, meta.logs(), &loaded.items);
    if branch::running(&items).is_some_and(|running| branch::knows(request, &running)) {
        runs(deps)?.change_run(&meta.thread, active, &RunChange::Stop, now_ms).await?;
        tracing::info!(thread = %meta.thread, "a client goes on: the run before is stopped");
    }
    Ok(())
}

/// `GET /agui/info`
pub(super) async fn info(State(deps): State<HttpDeps>, caller: Result<Caller, ApiError>) -> Response {
    let told = caller.map(|_| {
        let config = &deps.callback.config;
        let names = config.agents.keys().chain([&config.default_agent]);
        let agents: serde_json::Map<String, Value> = names
            .map(|name| {
                let agent =
                    json!({ "name": name, "description": "an agent of dormouse", "className": "HttpAgent" });
                (name.clone(), agent)
            })
            .collect();
        axum::Json(json!({
            "version": env!("CARGO_PKG_VERSION"),
            "agents": agents,
            "mode": "sse",
            "audioFileTranscriptionEnabled": false,
        }))
        .into_response()
    });
    answer(told)
}
