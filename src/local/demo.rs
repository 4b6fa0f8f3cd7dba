//! A small tool server for the demo and for tests: a real RAP peer over HTTP on loopback.
//!
//! It shares no code with [`rap`](crate::rap) on purpose: what one of the two gets wrong, the other would hide.
//! It acknowledges every invocation at once and answers through the callback; nothing of it outlives the process.
//!
//! | tool | result |
//! |---|---|
//! | `srv_echo` | its arguments, byte for byte |
//! | `srv_fail` | `Error: tool broke` |
//! | `srv_slow` | its arguments, after `ms` milliseconds |
//! | `srv_time` | the current time |

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinHandle};

/// Attempts to deliver one callback.
const ATTEMPTS: u32 = 5;
/// The wait after the first failed attempt; doubles.
const FIRST_WAIT: Duration = Duration::from_millis(200);
/// One attempt.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The longest that `srv_slow` takes.
const MAX_SLOW_MS: u64 = 60 * 60 * 1_000;

/// A running demo tool server. Dropping it stops it.
pub struct DemoServer {
    url: String,
    server: JoinHandle<()>,
    shared: Arc<Shared>,
}

struct Shared {
    endpoint: String,
    http: reqwest::Client,
    /// Calls under way, by id, so that a cancellation finds them.
    running: Mutex<HashMap<String, AbortHandle>>,
}

#[derive(Deserialize)]
struct Invocation {
    operation: String,
    arguments: Box<RawValue>,
    id: String,
    #[serde(default)]
    call_id: Option<String>,
    callback_url: String,
    group_id: String,
}

#[derive(Deserialize)]
struct CancelToolCall {
    tool_call_id: String,
}

impl DemoServer {
    /// Starts on `127.0.0.1:port`; 0 takes a free port. Runs on the current tokio runtime.
    pub async fn start(port: u16) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let http = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(std::io::Error::other)?;
        let shared = Arc::new(Shared { endpoint: format!("{url}/invoke"), http, running: Mutex::default() });
        let app = Router::new()
            .route("/.well-known/rap-toolset", get(manifest))
            .route("/invoke", post(invoke))
            .route("/cancel_tool_call", post(cancel_tool_call))
            .route("/close_thread", post(|| async { StatusCode::OK }))
            .with_state(shared.clone());
        let server = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, app).await {
                tracing::error!(%error, "the demo tool server has stopped");
            }
        });
        Ok(Self { url, server, shared })
    }

    /// The base address, as it stands in `tool_servers`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Stops serving; calls under way are dropped.
    pub fn stop(self) {}
}

impl Drop for DemoServer {
    fn drop(&mut self) {
        self.server.abort();
        for (_, call) in self.shared.running().drain() {
            call.abort();
        }
    }
}

impl Shared {
    fn running(&self) -> std::sync::MutexGuard<'_, HashMap<String, AbortHandle>> {
        // Held for map operations only, which do not panic.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run(&self, invocation: Invocation) {
        let text = match invocation.operation.as_str() {
            "srv_echo" => invocation.arguments.get().to_owned(),
            "srv_fail" => "Error: tool broke".to_owned(),
            "srv_slow" => {
                let arguments: Value = serde_json::from_str(invocation.arguments.get()).unwrap_or_default();
                let ms = arguments["ms"].as_u64().unwrap_or(0).min(MAX_SLOW_MS);
                tokio::time::sleep(Duration::from_millis(ms)).await;
                invocation.arguments.get().to_owned()
            }
            "srv_time" => jiff::Timestamp::now().to_string(),
            other => format!("Error: there is no operation {other}"),
        };
        let mut body = json!({
            "type": "tool_result", "group_id": invocation.group_id, "id": invocation.id, "text": text,
        });
        if let Some(call_id) = &invocation.call_id {
            body["call_id"] = json!(call_id);
        }
        self.deliver(&invocation, &body).await;
        self.running().remove(&invocation.id);
    }

    /// Delivers a result: tries again after a 5xx or no answer, gives up on anything else.
    async fn deliver(&self, invocation: &Invocation, body: &Value) {
        let mut wait = FIRST_WAIT;
        for attempt in 1..=ATTEMPTS {
            let status = match self.http.post(&invocation.callback_url).json(body).send().await {
                Ok(response) if response.status().is_server_error() => response.status().as_u16(),
                Ok(_) => return,
                Err(_) => 0,
            };
            tracing::warn!(
                call = invocation.id,
                attempt,
                status,
                "a result of the demo could not be delivered"
            );
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
    }
}

async fn manifest(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let any = json!({"type": "object", "additionalProperties": true});
    Json(json!({
        "name": "demo",
        "description": "Small tools to try dormouse with",
        "endpoint": shared.endpoint,
        "tools": [
            {"name": "srv_echo", "description": "Returns its arguments as JSON.", "inputSchema": any,
             "annotations": {"readOnly": true, "idempotent": true}},
            {"name": "srv_fail", "description": "Always fails.", "inputSchema": any},
            {"name": "srv_slow", "description": "Waits `ms` milliseconds, then returns its arguments as JSON.",
             "inputSchema": {"type": "object", "required": ["ms"],
                             "properties": {"ms": {"type": "integer", "minimum": 0, "maximum": MAX_SLOW_MS}}},
             "annotations": {"longRunning": true}},
            {"name": "srv_time", "description": "Returns the current time in UTC.",
             "inputSchema": {"type": "object", "properties": {}}, "annotations": {"readOnly": true}},
        ],
    }))
}

async fn invoke(State(shared): State<Arc<Shared>>, body: axum::body::Bytes) -> Response {
    let invocation: Invocation = match serde_json::from_slice(&body) {
        Ok(invocation) => invocation,
        Err(error) => return (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    };
    let id = invocation.id.clone();
    // The lock is held until the call is noted, so that a call that ends at once is taken out after that.
    let mut running = shared.running();
    // The same id again is the same call: the runtime did not see our acknowledgement.
    if !running.contains_key(&id) {
        let owned = shared.clone();
        running.insert(id, tokio::spawn(async move { owned.run(invocation).await }).abort_handle());
    }
    StatusCode::OK.into_response()
}

async fn cancel_tool_call(
    State(shared): State<Arc<Shared>>,
    Json(notice): Json<CancelToolCall>,
) -> StatusCode {
    if let Some(call) = shared.running().remove(&notice.tool_call_id) {
        call.abort();
    }
    StatusCode::OK
}
