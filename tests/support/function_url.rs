//! A stand-in for a Lambda function URL with response streaming: a front that makes an event of each request (payload 2.0),
//! hands it to an execution environment of the real binary, which serves one at a time, and passes its answer on as it comes.
//!
//! Source: the Lambda Runtime API of 2018-06-01, response streaming for custom runtimes. An answer is a chunked POST: JSON with
//! status and headers, eight NULs, and the body. Who asked may be gone by then: the function is not told, and goes on.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::process::Child;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::lambda;

/// Environments of one function; more are as many requests at once as no test has.
const MAX_ENVIRONMENTS: usize = 32;
/// Bytes of a log that are shown of a process that is in the way.
const SHOWN_LOG: usize = 1_000;
/// Between the head of an answer and its body.
const DELIMITER: [u8; 8] = [0; 8];
/// Bytes of a request's body.
const MAX_BODY: usize = 6 * 1024 * 1024;

/// The URL, and everything behind it.
pub struct FunctionUrl {
    /// Its base.
    pub url: String,
    function: Arc<Function>,
    server: JoinHandle<()>,
}

struct Function {
    binary: &'static str,
    settings: Vec<(&'static str, String)>,
    logs: PathBuf,
    /// What an invocation is told it has.
    time: Duration,
    /// Whom the URL has found out to be asking, with AWS_IAM.
    iam: Mutex<Option<String>>,
    free: Mutex<Vec<Arc<Environment>>>,
    all: Mutex<Vec<Child>>,
    started: AtomicUsize,
    invoked: AtomicUsize,
}

/// One process, and where its next answer goes.
struct Environment {
    events: mpsc::UnboundedSender<(String, String)>,
    to_hand_out: tokio::sync::Mutex<mpsc::UnboundedReceiver<(String, String)>>,
    waiting: Mutex<Option<Waiting>>,
    time: Duration,
}

struct Waiting {
    head: oneshot::Sender<Head>,
    body: mpsc::UnboundedSender<Bytes>,
}

struct Head {
    status: u16,
    headers: BTreeMap<String, String>,
}

impl FunctionUrl {
    /// Serves `binary` with `settings`; its processes write their logs into `logs`.
    pub async fn start(
        binary: &'static str,
        settings: Vec<(&'static str, String)>,
        logs: PathBuf,
        time: Duration,
    ) -> Self {
        let function = Arc::new(Function {
            binary,
            settings,
            logs,
            time,
            iam: Mutex::default(),
            free: Mutex::default(),
            all: Mutex::default(),
            started: AtomicUsize::new(0),
            invoked: AtomicUsize::new(0),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = Router::new().fallback(invoke).with_state(function.clone());
        let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { url, function, server }
    }

    /// From now on requests come from this principal, as if they were signed.
    pub fn signed_by(&self, arn: &str) {
        *self.function.iam.lock().unwrap() = Some(arn.to_owned());
    }

    /// Environments that were needed at once.
    pub fn environments(&self) -> usize {
        self.function.started.load(Ordering::Relaxed)
    }

    /// The end of what each process has logged.
    pub fn log(&self) -> String {
        let logs = (0..self.environments()).map(|n| {
            let log = std::fs::read_to_string(self.function.log(n)).unwrap_or_default();
            let from = log.len().saturating_sub(SHOWN_LOG);
            log.get(from..).unwrap_or(&log).to_owned()
        });
        logs.collect()
    }
}

impl Drop for FunctionUrl {
    fn drop(&mut self) {
        self.server.abort();
        if std::thread::panicking() {
            println!("the function's logs:\n{}", self.log());
        }
    }
}

impl Function {
    fn log(&self, number: usize) -> PathBuf {
        self.logs.join(format!("function-{number}.log"))
    }

    /// A free environment, or a new one.
    async fn environment(self: &Arc<Self>) -> Arc<Environment> {
        if let Some(free) = self.free.lock().unwrap().pop() {
            return free;
        }
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        assert!(number < MAX_ENVIRONMENTS, "more requests at once than environments");
        let (events, to_hand_out) = mpsc::unbounded_channel();
        let environment = Arc::new(Environment {
            events,
            to_hand_out: tokio::sync::Mutex::new(to_hand_out),
            waiting: Mutex::default(),
            time: self.time,
        });
        let app = Router::new()
            .route("/2018-06-01/runtime/invocation/next", get(next))
            .route("/2018-06-01/runtime/invocation/{id}/{kind}", post(answered))
            .with_state((self.clone(), environment.clone()));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        let child = lambda::spawn(self.binary, "stream", &address, &self.settings, &self.log(number));
        self.all.lock().unwrap().push(child);
        environment
    }

    fn event(&self, request: &axum::http::request::Parts, body: &[u8]) -> Value {
        let headers: BTreeMap<&str, String> = request
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
            .collect();
        let (text, is_base64) = match std::str::from_utf8(body) {
            Ok(text) => (text.to_owned(), false),
            Err(_) => (data_encoding::BASE64.encode(body), true),
        };
        let mut context = json!({
            "accountId": "anonymous", "apiId": "url-id", "domainName": "url-id.lambda-url.us-east-1.on.aws",
            "domainPrefix": "url-id", "requestId": "id", "routeKey": "$default", "stage": "$default",
            "time": "12/Mar/2026:19:03:58 +0000", "timeEpoch": 1_773_342_238_000_u64,
            "http": {
                "method": request.method.as_str(), "path": request.uri.path(), "protocol": "HTTP/1.1",
                "sourceIp": "127.0.0.1", "userAgent": "test",
            },
        });
        if let Some(arn) = &*self.iam.lock().unwrap() {
            context["authorizer"] = json!({ "iam": { "accountId": "123456789012", "userArn": arn } });
        }
        json!({
            "version": "2.0", "routeKey": "$default", "rawPath": request.uri.path(),
            "rawQueryString": request.uri.query().unwrap_or_default(), "headers": headers,
            "requestContext": context, "body": text, "isBase64Encoded": is_base64,
        })
    }
}

/// The front.
async fn invoke(State(function): State<Arc<Function>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let Ok(body) = axum::body::to_bytes(body, MAX_BODY).await else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    let environment = function.environment().await;
    let (head, answered) = oneshot::channel();
    let (chunks, mut streamed) = mpsc::unbounded_channel();
    *environment.waiting.lock().unwrap() = Some(Waiting { head, body: chunks });
    let id = format!("00000000-0000-4000-8000-{:012}", function.invoked.fetch_add(1, Ordering::Relaxed));
    environment.events.send((id, function.event(&parts, &body).to_string())).unwrap();
    let Ok(Ok(head)) = tokio::time::timeout(lambda::LIMIT, answered).await else {
        return StatusCode::BAD_GATEWAY.into_response();
    };
    let stream = async_stream::stream! {
        while let Some(chunk) = streamed.recv().await {
            yield Ok::<_, std::convert::Infallible>(chunk);
        }
    };
    let mut response = Response::new(Body::from_stream(stream));
    *response.status_mut() = StatusCode::from_u16(head.status).unwrap();
    for (name, value) in head.headers {
        let (name, value): (HeaderName, _) = (name.parse().unwrap(), HeaderValue::from_str(&value).unwrap());
        response.headers_mut().append(name, value);
    }
    response
}

type Served = (Arc<Function>, Arc<Environment>);

async fn next(State((_, environment)): State<Served>) -> Response {
    let Some((id, event)) = environment.to_hand_out.lock().await.recv().await else {
        return std::future::pending().await;
    };
    let deadline = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + environment.time;
    (lambda::invocation_headers("stream", &id, deadline), event).into_response()
}

/// An answer, as it comes. The environment is free once it is over.
async fn answered(
    State((function, environment)): State<Served>,
    Path((_, kind)): Path<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> StatusCode {
    let waiting = environment.waiting.lock().unwrap().take();
    let Some(Waiting { head, body: chunks }) = waiting else { return StatusCode::BAD_REQUEST };
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let streams = kind == "response"
        && header("lambda-runtime-function-response-mode") == "streaming"
        && header("content-type") == "application/vnd.awslambda.http-integration-response";
    let mut head = streams.then_some(head);
    let mut before = Vec::new();
    let mut frames = body.into_data_stream();
    while let Some(chunk) = frames.next().await {
        // The process has died: it serves nobody any more.
        let Ok(chunk) = chunk else { return StatusCode::BAD_REQUEST };
        if head.is_none() {
            // Nobody may be there any more.
            let _ = chunks.send(chunk);
            continue;
        }
        before.extend_from_slice(&chunk);
        let Some(at) = before.windows(DELIMITER.len()).position(|window| window == DELIMITER) else {
            continue;
        };
        let told: Value = serde_json::from_slice(&before[..at]).unwrap();
        let headers = told["headers"].as_object().cloned().unwrap_or_default();
        let headers = headers.into_iter().map(|(name, value)| (name, value.as_str().unwrap().to_owned()));
        let status = told["statusCode"].as_u64().and_then(|status| u16::try_from(status).ok()).unwrap();
        if let Some(head) = head.take() {
            let _ = head.send(Head { status, headers: headers.collect() });
        }
        let _ = chunks.send(Bytes::copy_from_slice(&before[at + DELIMITER.len()..]));
    }
    function.free.lock().unwrap().push(environment);
    StatusCode::ACCEPTED
}
