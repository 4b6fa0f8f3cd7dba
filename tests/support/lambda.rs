//! A stand-in for the Lambda service: the Runtime API on loopback, for one process of the real worker binary.
//!
//! Source: the Lambda Runtime API of 2018-06-01. `next` blocks until there is an event; a process that is killed
//! leaves its invocation without an answer, as on Lambda.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path as UrlPath, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::Value;
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, Notify, mpsc};
use tokio::task::JoinHandle;

/// No answer may take longer, also on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(60);
/// What an invocation is told it has.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of its log that are shown of a process that is in the way.
const SHOWN_LOG: usize = 4_000;

/// How an invocation, or the start of the process, was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Response,
    Error,
    InitError,
}

/// What the process said of one invocation.
#[derive(Clone, Debug)]
pub struct Answer {
    pub kind: Kind,
    pub request_id: String,
    pub body: Value,
}

struct Api {
    events: Mutex<mpsc::UnboundedReceiver<(String, String)>>,
    handed_out: Notify,
    answers: mpsc::UnboundedSender<Answer>,
    /// Answers arrive, and the process never hears that they did.
    silent: AtomicBool,
}

/// One execution environment.
pub struct Worker {
    child: Child,
    api: Arc<Api>,
    events: mpsc::UnboundedSender<(String, String)>,
    answers: mpsc::UnboundedReceiver<Answer>,
    server: JoinHandle<()>,
    log: PathBuf,
    invoked: usize,
}

impl Worker {
    /// Starts the binary with `settings` and what Lambda sets, and nothing of this process' environment.
    pub async fn start(settings: &[(&str, String)], log: &Path) -> Self {
        let (events, to_hand_out) = mpsc::unbounded_channel();
        let (said, answers) = mpsc::unbounded_channel();
        let api = Arc::new(Api {
            events: Mutex::new(to_hand_out),
            handed_out: Notify::new(),
            answers: said,
            silent: AtomicBool::new(false),
        });
        let app = Router::new()
            .route("/2018-06-01/runtime/invocation/next", get(next))
            .route("/2018-06-01/runtime/invocation/{id}/{kind}", post(answered))
            .route("/2018-06-01/runtime/init/error", post(init_error))
            .with_state(api.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        let child = spawn(env!("CARGO_BIN_EXE_worker"), "worker", &address, settings, log);
        Self { child, api, events, answers, server, log: log.to_owned(), invoked: 0 }
    }

    /// Hands an event out, as soon as the process asks for one; the request id.
    pub async fn begin(&mut self, event: &Value) -> String {
        self.invoked += 1;
        let id = format!("00000000-0000-4000-8000-{:012}", self.invoked);
        self.events.send((id.clone(), event.to_string())).unwrap();
        tokio::select! {
            () = self.api.handed_out.notified() => {}
            status = self.child.wait() => panic!("the worker ended: {status:?}\n{}", self.log()),
            () = tokio::time::sleep(LIMIT) => panic!("the worker takes no event\n{}", self.log()),
        }
        id
    }

    /// The next answer of the process.
    pub async fn answer(&mut self) -> Answer {
        tokio::select! {
            answer = self.answers.recv() => answer.unwrap(),
            status = self.child.wait() => panic!("the worker ended: {status:?}\n{}", self.log()),
            () = tokio::time::sleep(LIMIT) => panic!("the worker does not answer\n{}", self.log()),
        }
    }

    /// One invocation, from its event to its answer.
    pub async fn invoke(&mut self, event: &Value) -> Answer {
        let id = self.begin(event).await;
        let answer = self.answer().await;
        assert_eq!(answer.request_id, id, "{answer:?}");
        answer
    }

    /// Waits until the process has ended by itself; whether well, and its log.
    pub async fn ended(&mut self) -> (bool, String) {
        let status = tokio::time::timeout(LIMIT, self.child.wait()).await.unwrap().unwrap();
        (status.success(), self.log())
    }

    /// The answer, if it comes within `time`.
    pub async fn answer_within(&mut self, time: Duration) -> Option<Answer> {
        tokio::time::timeout(time, self.answer()).await.ok()
    }

    /// From now on the process does not hear that its answer has arrived.
    pub fn hold_answers(&self) {
        self.api.silent.store(true, Ordering::Relaxed);
    }

    /// SIGKILL; returns when the process is gone, with its connections.
    pub async fn kill(mut self) {
        assert!(self.child.try_wait().unwrap().is_none(), "it ended by itself\n{}", self.log());
        self.child.kill().await.unwrap();
        self.server.abort();
    }

    /// The process' id, which stays the same as long as it is the same process.
    pub fn process(&self) -> Option<u32> {
        self.child.id()
    }

    /// The end of its log.
    pub fn log(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let from = log.len().saturating_sub(SHOWN_LOG);
        log.get(from..).unwrap_or(&log).to_owned()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.server.abort();
        if std::thread::panicking() {
            println!("the worker's log:\n{}", self.log());
        }
    }
}

/// Starts a function's binary with `settings` and what Lambda sets, and nothing of this process' environment.
pub fn spawn(binary: &str, name: &str, api: &str, settings: &[(&str, String)], log: &Path) -> Child {
    Command::new(binary)
        .env_clear()
        .envs([
            ("AWS_LAMBDA_RUNTIME_API", api),
            ("AWS_LAMBDA_FUNCTION_NAME", name),
            ("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST"),
            ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "256"),
            ("AWS_LAMBDA_LOG_GROUP_NAME", &format!("/aws/lambda/{name}")),
            ("AWS_LAMBDA_LOG_STREAM_NAME", "one"),
            ("AWS_LAMBDA_INITIALIZATION_TYPE", "on-demand"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test"),
            ("AWS_SESSION_TOKEN", "test"),
        ])
        .envs(settings.iter().map(|(name, value)| (*name, value.as_str())))
        .stdout(std::process::Stdio::null())
        .stderr(File::create(log).unwrap())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// What an invocation's event comes with.
pub fn invocation_headers(name: &str, id: &str, deadline: Duration) -> [(&'static str, String); 5] {
    [
        ("content-type", "application/json".to_owned()),
        ("lambda-runtime-aws-request-id", id.to_owned()),
        ("lambda-runtime-deadline-ms", deadline.as_millis().to_string()),
        (
            "lambda-runtime-invoked-function-arn",
            format!("arn:aws:lambda:us-east-1:123456789012:function:{name}"),
        ),
        (
            "lambda-runtime-trace-id",
            "Root=1-5bef4de7-ad49b0e87f6ef6c87fc2e700;Parent=9a9197af755a6419;Sampled=0".to_owned(),
        ),
    ]
}

async fn next(State(api): State<Arc<Api>>) -> Response {
    let Some((id, event)) = api.events.lock().await.recv().await else { return std::future::pending().await };
    api.handed_out.notify_one();
    let deadline = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + TIMEOUT;
    (invocation_headers("worker", &id, deadline), event).into_response()
}

async fn answered(
    State(api): State<Arc<Api>>,
    UrlPath((id, kind)): UrlPath<(String, String)>,
    body: Bytes,
) -> StatusCode {
    let kind = match kind.as_str() {
        "response" => Kind::Response,
        "error" => Kind::Error,
        _ => return StatusCode::NOT_FOUND,
    };
    api.say(kind, id, &body).await
}

async fn init_error(State(api): State<Arc<Api>>, body: Bytes) -> StatusCode {
    api.say(Kind::InitError, String::new(), &body).await
}

impl Api {
    async fn say(&self, kind: Kind, request_id: String, body: &[u8]) -> StatusCode {
        let body = serde_json::from_slice(body).unwrap_or(Value::Null);
        // Nobody waits for the answers of a test that is over.
        let _ = self.answers.send(Answer { kind, request_id, body });
        if self.silent.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        StatusCode::ACCEPTED
    }
}
