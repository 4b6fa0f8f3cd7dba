//! What the worker speaks to and a test can hold: a proxy in front of a service of AWS, and a tool server.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::lambda::LIMIT;

/// Waits until `condition` holds.
pub async fn until(what: &str, condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(LIMIT, waiting).await.is_ok(), "{what}: it never was");
}

async fn serve(app: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    url
}

type Rule = Box<dyn FnMut(&str, &str) -> bool + Send>;

/// A proxy in front of a service of AWS. A request that it holds never gets through, also not after its client is
/// gone: the service has not seen it.
pub struct Gate {
    pub url: String,
    shared: Arc<GateState>,
}

struct GateState {
    target: String,
    http: reqwest::Client,
    rule: Mutex<Option<Rule>>,
    held: AtomicUsize,
}

impl Gate {
    pub async fn before(target: String) -> Self {
        let (rule, held) = (Mutex::default(), AtomicUsize::new(0));
        let shared = Arc::new(GateState { target, http: reqwest::Client::new(), rule, held });
        let url = serve(Router::new().fallback(pass).with_state(shared.clone())).await;
        Self { url, shared }
    }

    /// Holds every request for which `rule` says so, given its operation and its body.
    pub fn hold(&self, rule: impl FnMut(&str, &str) -> bool + Send + 'static) {
        *self.shared.rule.lock().unwrap() = Some(Box::new(rule));
    }

    /// How many requests it has held.
    pub fn held(&self) -> usize {
        self.shared.held.load(Ordering::Relaxed)
    }

    /// Holds nothing any more.
    pub fn open(&self) {
        *self.shared.rule.lock().unwrap() = None;
    }
}

async fn pass(State(gate): State<Arc<GateState>>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let operation = headers.get("x-amz-target").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let text = String::from_utf8_lossy(&body);
    if gate.rule.lock().unwrap().as_mut().is_some_and(|rule| rule(operation, &text)) {
        gate.held.fetch_add(1, Ordering::Relaxed);
        return std::future::pending().await;
    }
    let mut request = gate.http.post(format!("{}{uri}", gate.target));
    for (name, value) in headers.iter().filter(|(name, _)| *name != "host" && *name != "content-length") {
        request = request.header(name, value);
    }
    let answer = match request.body(body).send().await {
        Ok(answer) => answer,
        Err(error) => return (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    };
    let (status, mut headers) = (answer.status(), answer.headers().clone());
    headers.remove("transfer-encoding");
    (status, headers, answer.bytes().await.unwrap()).into_response()
}

/// A tool server that writes down what reaches it and answers nothing by itself.
#[derive(Clone, Default)]
pub struct ToolServer {
    /// Invocations in the order of arrival.
    pub invoked: Arc<Mutex<Vec<Value>>>,
    /// Calls of which it was told that nobody waits for them.
    pub cancelled: Arc<Mutex<Vec<String>>>,
    /// How often its manifest was fetched: the last thing of a slice before it asks the model.
    pub looked_at: Arc<AtomicUsize>,
    /// The operation whose next invocations do not get through.
    pub holds: Arc<Mutex<Option<&'static str>>>,
    /// Invocations that did not.
    pub held: Arc<AtomicUsize>,
    endpoint: Arc<Mutex<String>>,
}

impl ToolServer {
    /// The server and its address.
    pub async fn start() -> (Self, String) {
        let server = Self::default();
        let app = Router::new()
            .route("/.well-known/rap-toolset", get(manifest))
            .route("/invoke", post(invoke))
            .route("/cancel_tool_call", post(cancel))
            .with_state(server.clone());
        let url = serve(app).await;
        *server.endpoint.lock().unwrap() = format!("{url}/invoke");
        (server, url)
    }

    /// What it was sent for `operation`, each time.
    pub fn calls(&self, operation: &str) -> Vec<Value> {
        let invoked = self.invoked.lock().unwrap();
        invoked.iter().filter(|invocation| invocation["operation"] == operation).cloned().collect()
    }
}

async fn manifest(State(server): State<ToolServer>) -> Json<Value> {
    server.looked_at.fetch_add(1, Ordering::Relaxed);
    let tool = |name| json!({"name": name, "description": "Notes it.", "inputSchema": {"type": "object"}});
    Json(json!({
        "name": "notes", "description": "Takes notes", "endpoint": *server.endpoint.lock().unwrap(),
        "tools": [tool("note_a"), tool("note_b")],
    }))
}

async fn invoke(State(server): State<ToolServer>, Json(invocation): Json<Value>) -> StatusCode {
    let held = *server.holds.lock().unwrap();
    if held.is_some_and(|held| invocation["operation"] == held) {
        server.held.fetch_add(1, Ordering::Relaxed);
        return std::future::pending().await;
    }
    server.invoked.lock().unwrap().push(invocation);
    StatusCode::OK
}

async fn cancel(State(server): State<ToolServer>, Json(notice): Json<Value>) -> StatusCode {
    server.cancelled.lock().unwrap().push(notice["tool_call_id"].as_str().unwrap().to_owned());
    StatusCode::OK
}
