//! An MCP server over streamable HTTP that a test controls: written by hand, so that what rmcp gets wrong on one side
//! is not hidden by its other side.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::broadcast;

const SESSION: &str = "mcp-session-id";

/// How a call is answered.
pub enum Answer {
    /// The `result` of the response.
    Result(Value),
    /// The `error` of the response.
    Error(i32, &'static str),
    /// An HTTP status without a body.
    Status(StatusCode),
    /// A page that is no JSON at all.
    Page(&'static str),
    /// Nothing.
    Never,
}

/// A result of one text.
pub fn text(text: impl Into<String>) -> Answer {
    Answer::Result(json!({"content": [{"type": "text", "text": text.into()}]}))
}

/// How a server says that it knows no such session.
#[derive(Clone, Copy, Default)]
pub enum Refusal {
    /// As the protocol has it.
    #[default]
    NotFound,
    /// By a JSON-RPC error that names no request, with 400: the TypeScript SDK.
    Nameless,
    /// By one that does name it.
    Named,
}

type Script = dyn Fn(Value) -> BoxFuture<'static, Answer> + Send + Sync;

/// What the server is told to do and has seen.
#[derive(Default)]
pub struct Inner {
    /// Pages of `tools/list`.
    pub pages: Vec<Value>,
    pub sessions: BTreeSet<String>,
    /// How a forgotten session is refused.
    pub refusal: Refusal,
    /// Every message, in order.
    pub seen: Vec<Value>,
    pub headers: Vec<HeaderMap>,
    made: usize,
}

pub struct ScriptedMcp {
    pub url: String,
    inner: Arc<Mutex<Inner>>,
    notices: broadcast::Sender<String>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Clone)]
struct Shared {
    inner: Arc<Mutex<Inner>>,
    script: Arc<Script>,
    notices: broadcast::Sender<String>,
}

/// A tool as it is listed.
pub fn tool(name: &str) -> Value {
    json!({"name": name, "description": format!("the tool {name}"), "inputSchema": {"type": "object"}})
}

/// One whose annotations say that it only reads.
pub fn reading(name: &str) -> Value {
    let mut tool = tool(name);
    tool["annotations"] = json!({"readOnlyHint": true});
    tool
}

impl ScriptedMcp {
    pub async fn start(
        tools: Vec<Value>,
        script: impl Fn(Value) -> BoxFuture<'static, Answer> + Send + Sync + 'static,
    ) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let inner = Arc::new(Mutex::new(Inner { pages: vec![Value::Array(tools)], ..Inner::default() }));
        let (notices, _) = broadcast::channel(16);
        let shared = Shared { inner: inner.clone(), script: Arc::new(script), notices: notices.clone() };
        let app = Router::new().route("/mcp", any(serve)).with_state(shared);
        let task = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { url, inner, notices, task }
    }

    /// One that answers every call with its arguments.
    pub async fn echoing(tools: Vec<Value>) -> Self {
        Self::start(tools, |params| Box::pin(async move { text(params["arguments"].to_string()) })).await
    }

    pub fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    /// Messages of a method, by their params.
    pub fn seen(&self, method: &str) -> Vec<Value> {
        let inner = self.inner();
        let of = inner.seen.iter().filter(|message| message["method"] == method);
        of.map(|message| message["params"].clone()).collect()
    }

    /// Messages of a method, once there are `count`.
    pub async fn seen_soon(&self, method: &str, count: usize) -> Vec<Value> {
        for _ in 0..500 {
            let seen = self.seen(method);
            if seen.len() >= count {
                return seen;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{method} did not come {count} times: {:?}", self.seen(method));
    }

    /// Offers other tools and says so to whoever listens.
    pub async fn change(&self, tools: Vec<Value>) {
        self.inner().pages = vec![Value::Array(tools)];
        for _ in 0..500 {
            if self.notices.receiver_count() > 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let notice = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
        self.notices.send(notice.to_string()).unwrap();
    }
}

impl Drop for ScriptedMcp {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    State(shared): State<Shared>,
    method: axum::http::Method,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let session = headers.get(SESSION).map(|value| value.to_str().unwrap().to_owned());
    match method.as_str() {
        "GET" => notices(&shared),
        "POST" => {
            let message: Value = serde_json::from_slice(&body).unwrap();
            {
                let mut inner = shared.inner.lock().unwrap();
                inner.seen.push(message.clone());
                inner.headers.push(headers);
            }
            post(&shared, session, message).await
        }
        _ => StatusCode::OK.into_response(),
    }
}

fn notices(shared: &Shared) -> Response {
    let mut notices = shared.notices.subscribe();
    let events = async_stream::stream! {
        while let Ok(notice) = notices.recv().await {
            yield Ok::<_, std::io::Error>(format!("event: message\ndata: {notice}\n\n"));
        }
    };
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(events)).into_response()
}

async fn post(shared: &Shared, session: Option<String>, message: Value) -> Response {
    let method = message["method"].as_str().unwrap_or_default();
    let answer = |answer: Value| {
        let mut response = json!({"jsonrpc": "2.0", "id": message["id"]});
        response.as_object_mut().unwrap().extend(answer.as_object().unwrap().clone());
        axum::Json(response).into_response()
    };
    if method == "initialize" {
        let mut inner = shared.inner.lock().unwrap();
        inner.made += 1;
        let id = format!("s{}", inner.made);
        inner.sessions.insert(id.clone());
        let result = json!({"protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {"listChanged": true}},
            "serverInfo": {"name": "scripted", "version": "1"}});
        return ([(SESSION, id)], answer(json!({"result": result}))).into_response();
    }
    {
        let inner = shared.inner.lock().unwrap();
        if !session.is_some_and(|session| inner.sessions.contains(&session)) {
            let error = json!({"jsonrpc": "2.0", "error": {"code": -32000, "message": "no such session"}});
            return match inner.refusal {
                Refusal::NotFound => StatusCode::NOT_FOUND.into_response(),
                Refusal::Nameless => (StatusCode::BAD_REQUEST, axum::Json(error)).into_response(),
                Refusal::Named => (StatusCode::BAD_REQUEST, answer(error)).into_response(),
            };
        }
    }
    match method {
        "tools/list" => {
            let at: usize = message["params"]["cursor"].as_str().map_or(0, |cursor| cursor.parse().unwrap());
            let inner = shared.inner.lock().unwrap();
            let mut result = json!({"tools": inner.pages[at]});
            if at + 1 < inner.pages.len() {
                result["nextCursor"] = json!((at + 1).to_string());
            }
            answer(json!({"result": result}))
        }
        "tools/call" => match (shared.script)(message["params"].clone()).await {
            Answer::Result(result) => answer(json!({"result": result})),
            Answer::Error(code, text) => answer(json!({"error": {"code": code, "message": text}})),
            Answer::Status(status) => status.into_response(),
            Answer::Page(page) => ([(header::CONTENT_TYPE, "text/html")], page).into_response(),
            Answer::Never => std::future::pending().await,
        },
        _ => StatusCode::ACCEPTED.into_response(),
    }
}
