//! Peers for the RAP tests: a scripted HTTP server, a queue that keeps what it is sent, a store that is down.

#![allow(dead_code, clippy::unwrap_used, reason = "shared by several test binaries, each using a part")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use dormouse::message::{CallId, DedupId, Epoch, InputMessage, Item, MessageId, RawJson, ThreadId};
use dormouse::queue::{InputSender, QueueError};
use dormouse::rap::{CallbackKeys, CallbackTokens};
use dormouse::store::{
    ChoiceRow, Commit, Committed, Compacted, CompactionCommit, ConversationStore, DeadLetter, Generation,
    GenerationId, Kinship, Loaded, Log, Meta, Span, StateStore, Stop, StoreError, Subscription,
    ThreadSummary,
};

/// A request as a fake server saw it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: Method,
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Seen {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

type Script = dyn Fn(&Seen, usize) -> Answer + Send + Sync;

/// How a fake server answers.
pub enum Answer {
    Now(Response),
    Never,
}

impl From<StatusCode> for Answer {
    fn from(status: StatusCode) -> Self {
        Self::Now(status.into_response())
    }
}

impl From<String> for Answer {
    fn from(body: String) -> Self {
        Self::Now(body.into_response())
    }
}

/// An HTTP server on loopback that keeps every request and answers by a script, which gets the request and
/// how many came before it.
pub struct FakeServer {
    pub url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Clone)]
struct Fake {
    seen: Arc<Mutex<Vec<Seen>>>,
    script: Arc<Script>,
}

impl FakeServer {
    pub async fn start(script: impl Fn(&Seen, usize) -> Answer + Send + Sync + 'static) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let app =
            Router::new().fallback(serve).with_state(Fake { seen: seen.clone(), script: Arc::new(script) });
        let task = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { url, seen, task }
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// Requests to `path`.
    pub fn at(&self, path: &str) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| seen.path == path).collect()
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    State(fake): State<Fake>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let seen = Seen { method, path: uri.path().to_owned(), headers, body };
    let before = {
        let mut all = fake.seen.lock().unwrap();
        all.push(seen.clone());
        all.len() - 1
    };
    match (fake.script)(&seen, before) {
        Answer::Now(response) => response,
        Answer::Never => std::future::pending().await,
    }
}

/// Where a manifest is.
pub const MANIFEST: &str = "/.well-known/rap-toolset";

/// A manifest of tools that take any object.
pub fn manifest(endpoint: &str, tools: &[&str]) -> String {
    let tool = |name: &&str| serde_json::json!({"name": name, "description": "d", "inputSchema": {"type": "object"}});
    serde_json::json!({"name": "set", "endpoint": endpoint, "tools": tools.iter().map(tool).collect::<Vec<_>>()})
        .to_string()
}

/// A server that offers `tools` under its own address and answers everything else by `script`.
pub async fn offering(
    tools: &'static [&'static str],
    script: impl Fn(&Seen, usize) -> Answer + Send + Sync + 'static,
) -> FakeServer {
    FakeServer::start(move |seen, before| match seen.path.as_str() {
        MANIFEST => {
            let host = seen.headers["host"].to_str().unwrap();
            Answer::from(manifest(&format!("http://{host}/invoke"), tools))
        }
        _ => script(seen, before),
    })
    .await
}

/// An address on loopback where nothing listens.
pub async fn dead_url() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

/// A queue that keeps what it is sent, as the bodies that would go over the wire.
#[derive(Default)]
pub struct Outbox {
    sent: Mutex<Vec<(String, DedupId)>>,
    pub down: AtomicBool,
}

impl Outbox {
    pub fn sent(&self) -> Vec<(InputMessage, DedupId)> {
        let sent = self.sent.lock().unwrap();
        sent.iter().map(|(body, id)| (InputMessage::parse(body.as_bytes()).unwrap(), id.clone())).collect()
    }

    pub fn take(&self) -> Vec<(InputMessage, DedupId)> {
        let sent = self.sent();
        self.sent.lock().unwrap().clear();
        sent
    }
}

#[async_trait]
impl InputSender for Outbox {
    async fn send(&self, message: &InputMessage, dedup: &DedupId) -> Result<(), QueueError> {
        if self.down.load(Ordering::SeqCst) {
            return Err(QueueError::Unavailable("ordered outage".into()));
        }
        self.sent.lock().unwrap().push((message.to_body().unwrap(), dedup.clone()));
        Ok(())
    }
}

/// Keys and addresses that tests sign with.
pub fn tokens(base_url: &str) -> CallbackTokens {
    let keys = r#"{"active":"k1","k1":"test-key-of-sufficient-length"}"#;
    CallbackTokens::new(CallbackKeys::from_json(keys).unwrap(), base_url)
}

/// A store that can do nothing.
pub struct StoreDown;

fn down<T>() -> Result<T, StoreError> {
    Err(StoreError::Unavailable("ordered outage".into()))
}

#[async_trait]
impl ConversationStore for StoreDown {
    async fn raise_attempts(
        &self,
        _: &ThreadId,
        _: &DedupId,
        _: &dormouse::message::MessageId,
    ) -> Result<u32, StoreError> {
        Err(StoreError::Unavailable("down".to_owned()))
    }

    async fn lower_attempts(&self, _: &ThreadId, _: &DedupId) -> Result<(), StoreError> {
        Err(StoreError::Unavailable("down".to_owned()))
    }

    async fn load(&self, _: &ThreadId, _: &[DedupId]) -> Result<Loaded, StoreError> {
        down()
    }
    async fn commit(&self, _: Commit) -> Result<Committed, StoreError> {
        down()
    }
    async fn compact(&self, _: CompactionCommit) -> Result<Compacted, StoreError> {
        down()
    }
    async fn generation(&self, _: &GenerationId) -> Result<Option<Generation>, StoreError> {
        down()
    }
    async fn read_span(&self, _: &Span) -> Result<Vec<Item>, StoreError> {
        down()
    }
    async fn log(&self, _: &ThreadId, _: Epoch) -> Result<Log, StoreError> {
        down()
    }
    async fn put_log(&self, _: &ThreadId, _: &[Item]) -> Result<(), StoreError> {
        down()
    }
    async fn is_message_processed(&self, _: &ThreadId, _: &DedupId) -> Result<bool, StoreError> {
        down()
    }
    async fn meta(&self, _: &ThreadId) -> Result<Option<Meta>, StoreError> {
        down()
    }
    async fn claim_thread(&self, _: &ThreadId, _: &str, _: i64) -> Result<String, StoreError> {
        down()
    }
    async fn list_threads_of(&self, _: &str, _: usize) -> Result<Vec<ThreadSummary>, StoreError> {
        down()
    }
    async fn list_threads(&self, _: usize) -> Result<Vec<ThreadSummary>, StoreError> {
        down()
    }
    async fn failed_input(&self, _: &ThreadId, _: &MessageId) -> Result<Option<DedupId>, StoreError> {
        down()
    }
    async fn put_claim(&self, _: &str) -> Result<String, StoreError> {
        down()
    }
    async fn claim(&self, _: &str) -> Result<Option<String>, StoreError> {
        down()
    }
}

#[async_trait]
impl StateStore for StoreDown {
    async fn metadata(&self, _: &ThreadId) -> Result<Option<RawJson>, StoreError> {
        down()
    }
    async fn subscription(&self, _: &ThreadId, _: &CallId) -> Result<Option<Subscription>, StoreError> {
        down()
    }
    async fn get_active_subscriptions(&self, _: &ThreadId) -> Result<Vec<CallId>, StoreError> {
        down()
    }
    async fn choice(&self, _: &ThreadId, _: &CallId) -> Result<Option<ChoiceRow>, StoreError> {
        down()
    }
    async fn open_choices(&self, _: &ThreadId) -> Result<Vec<ChoiceRow>, StoreError> {
        down()
    }
    async fn request_stop(&self, _: &ThreadId, _: &Stop) -> Result<(), StoreError> {
        down()
    }
    async fn stop(&self, _: &ThreadId) -> Result<Option<Stop>, StoreError> {
        down()
    }
    async fn put_view(&self, _: &ThreadId, _: &str, _: &RawJson) -> Result<(), StoreError> {
        down()
    }
    async fn views(&self, _: &ThreadId) -> Result<Vec<(String, RawJson)>, StoreError> {
        down()
    }
    async fn manifest(&self, _: &str) -> Result<Option<(String, i64)>, StoreError> {
        down()
    }
    async fn put_manifest(&self, _: &str, _: &str, _: i64) -> Result<(), StoreError> {
        down()
    }
    async fn relatives(
        &self,
        _: &ThreadId,
        _: Kinship,
        _: Option<&ThreadId>,
        _: usize,
    ) -> Result<Vec<ThreadId>, StoreError> {
        down()
    }
    async fn open_children(&self, _: &ThreadId) -> Result<u32, StoreError> {
        down()
    }
    async fn keep_dead_letter(&self, _: &DeadLetter) -> Result<(), StoreError> {
        down()
    }
    async fn dead_letter(&self, _: &ThreadId, _: &MessageId) -> Result<Option<DeadLetter>, StoreError> {
        down()
    }
    async fn dead_letters(&self, _: usize) -> Result<Vec<DeadLetter>, StoreError> {
        down()
    }
    async fn forget_dead_letter(&self, _: &ThreadId, _: &MessageId) -> Result<(), StoreError> {
        down()
    }
}
