//! The real stream and worker binaries as on AWS: the one behind a stand-in for a function URL with response streaming, the
//! other behind one for the event source of the queue, with the embedded DynamoDB and SQS between them. AG-UI clients that
//! somebody else wrote run against it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(feature = "local")]

#[path = "support/browser.rs"]
mod browser;
#[path = "support/clients.rs"]
mod clients;
#[path = "support/cloud.rs"]
mod cloud;
#[path = "support/function_url.rs"]
mod function_url;
#[path = "support/gates.rs"]
mod gates;
#[path = "support/lambda.rs"]
mod lambda;
#[path = "support/driver.rs"]
mod runs;
#[path = "support/world.rs"]
mod world;

use std::sync::Arc;
use std::time::{Duration, Instant};

use cloud::Cloud;
use function_url::FunctionUrl;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// What an invocation is told it has: longer than any test.
const TIME: Duration = Duration::from_secs(300);
/// Environments of the worker.
const WORKERS: usize = 3;
const ANN: &str = "token-of-ann-0123456789";
const BOB: &str = "token-of-bob-0123456789";

/// A stack is a dozen processes, and the drivers wait for what a browser does at once.
static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// The deployed stack.
struct Stack {
    cloud: Arc<Cloud>,
    front: FunctionUrl,
    config: String,
    workers: Vec<JoinHandle<()>>,
    http: reqwest::Client,
    _turn: tokio::sync::MutexGuard<'static, ()>,
}

impl Stack {
    /// Without workers yet.
    async fn new(auth: &str, more: &str, time: Duration) -> Self {
        let turn = ONE_AT_A_TIME.lock().await;
        let cloud = Arc::new(Cloud::start().await);
        let config = format!("{}{more}", clients::config(&clients::tool_server().await));
        let mut settings = cloud.settings(config.clone());
        settings.push(("DORMOUSE_HTTP__AUTH", auth.to_owned()));
        settings.push(("DORMOUSE_HTTP__TOKENS_ENV", "TOKENS".to_owned()));
        settings.push(("TOKENS", json!({ "ann": ANN, "bob": BOB }).to_string()));
        let binary = env!("CARGO_BIN_EXE_stream");
        let front = FunctionUrl::start(binary, settings, cloud.logs(), time).await;
        Self { _turn: turn, cloud, front, config, workers: Vec::new(), http: reqwest::Client::new() }
    }

    fn work(&mut self) {
        for _ in 0..WORKERS {
            let (cloud, config) = (self.cloud.clone(), self.config.clone());
            self.workers.push(tokio::spawn(async move { cloud.serve_with(config).await }));
        }
    }

    fn url(&self, path: &str) -> String {
        format!("{}/agui/{path}", self.front.url)
    }

    fn post(&self, path: &str, body: &Value) -> reqwest::RequestBuilder {
        self.http.post(self.url(path)).bearer_auth(ANN).json(body)
    }

    /// The events of a run, to its end.
    async fn run(&self, input: &Value) -> Vec<Value> {
        let answer = self.post("agent/default/run", input).send().await.unwrap();
        assert_eq!((answer.status().as_u16(), &answer.headers()["content-type"]), (200, &event_stream()));
        events(&answer.text().await.unwrap())
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        self.workers.iter().for_each(JoinHandle::abort);
    }
}

fn event_stream() -> reqwest::header::HeaderValue {
    reqwest::header::HeaderValue::from_static("text/event-stream")
}

fn input(thread: &str, run: &str, prompt: &str) -> Value {
    let message = json!({ "id": format!("u-{run}"), "role": "user", "content": prompt });
    json!({ "threadId": thread, "runId": run, "messages": [message] })
}

fn events(body: &str) -> Vec<Value> {
    let frames = body.split("\n\n").filter_map(|frame| frame.strip_prefix("data: "));
    frames.map(|frame| serde_json::from_str(frame).unwrap()).collect()
}

fn types(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

async fn drive(driver: &str, more: &[&str]) {
    let Some(drivers) = clients::drivers() else { return };
    let mut stack = Stack::new("bearer", "", TIME).await;
    stack.work();
    let token = format!("authorization: Bearer {ANN}");
    let more = [more, &["--header", &token]].concat();
    clients::drive(&drivers, driver, &stack.url("agent/default/run"), &more).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn http_agent_of_three_versions() {
    drive("http-agent.mjs", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn assistant_ui() {
    drive("assistant-ui.mjs", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn copilot_kit() {
    drive("copilotkit.mjs", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r21_state_of_three_versions() {
    drive("state.mjs", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_inspector_is_behind_the_url_where_it_is_asked_for_and_tools_never_are() {
    let statuses = async |stack: &Stack| {
        let mut statuses = Vec::new();
        for (path, token) in
            [("inspector", ""), ("threads", ""), ("threads", ANN), ("agui/info", ANN), ("healthz", "")]
        {
            let request = stack.http.get(format!("{}/{path}", stack.front.url)).bearer_auth(token);
            statuses.push(request.send().await.unwrap().status().as_u16());
        }
        for path in ["rap/v1.a.b.c.d", "hooks/v1.a.b.c.d"] {
            let request = stack.http.post(format!("{}/{path}", stack.front.url)).body("{}");
            statuses.push(request.send().await.unwrap().status().as_u16());
        }
        statuses
    };
    let stack = Stack::new("bearer", "", TIME).await;
    assert_eq!(
        statuses(&stack).await,
        [404, 404, 404, 200, 200, 404, 404],
        "the routes of AG-UI clients alone"
    );
    drop(stack);
    let mut stack = Stack::new("bearer", "[http]\ninspector = true\n", TIME).await;
    assert_eq!(statuses(&stack).await, [200, 401, 200, 200, 200, 404, 404]);
    let Some(drivers) = browser::drivers() else { return };
    stack.work();
    browser::drive(&drivers, "tokens.mjs", &stack.front.url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_arrives_while_its_model_still_streams_and_a_replay_is_the_same() {
    let mut stack = Stack::new("bearer", "", TIME).await;
    stack.work();
    let posted = input("t", "r1", "slow 100 word");
    let mut answer = stack.post("agent/default/run", &posted).send().await.unwrap();
    let (mut body, mut seen) = (String::new(), Vec::new());
    while let Some(chunk) = answer.chunk().await.unwrap() {
        seen.push(Instant::now());
        body.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    let all = events(&body);
    assert_eq!((types(&all)[0], types(&all).last()), ("RUN_STARTED", Some(&"RUN_FINISHED")));
    // The model takes five seconds.
    let spread = seen.last().unwrap().duration_since(seen[1]);
    assert!(seen.len() > 10 && spread > Duration::from_secs(3), "{} chunks in {spread:?}", seen.len());
    assert_eq!(stack.run(&posted).await, all);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_is_whole_that_is_no_stream_of_events() {
    let stack = Stack::new("bearer", "\n[http]\ncors_origins = ['https://app.example']\n", TIME).await;
    let anonymous = stack.http.post(stack.url("agent/default/run")).json(&input("t", "r", "x"));
    let anonymous = anonymous.header("origin", "https://app.example").send().await.unwrap();
    assert_eq!(anonymous.status(), 401);
    assert_eq!(anonymous.headers()["access-control-allow-origin"], "https://app.example");
    assert_eq!(anonymous.headers().get_all("access-control-allow-origin").iter().count(), 1);
    assert!(anonymous.json::<Value>().await.unwrap()["error"].as_str().unwrap().contains("bearer"));
    let elsewhere = stack.http.get(stack.url("info")).header("origin", "https://evil.example");
    let elsewhere = elsewhere.bearer_auth(ANN).send().await.unwrap();
    assert_eq!(elsewhere.headers().get("access-control-allow-origin"), None);
    assert_eq!(elsewhere.json::<Value>().await.unwrap()["mode"], "sse");
    for (path, status) in [("agent/nobody/run", 404), ("agent/default/run", 400)] {
        let answer = stack.post(path, &json!({ "threadId": "t" })).send().await.unwrap();
        assert_eq!(answer.status(), status, "{path}");
        assert!(answer.json::<Value>().await.unwrap()["error"].is_string(), "{path}");
    }
    // Of the routes for threads and callbacks it has none.
    for path in ["threads", "rap/token", "hooks/token", "openapi.json"] {
        let url = format!("{}/{path}", stack.front.url);
        assert_eq!(stack.http.get(url).bearer_auth(ANN).send().await.unwrap().status(), 404, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_before_the_function_does_and_the_run_goes_on() {
    let time = Duration::from_secs(22);
    let mut stack = Stack::new("bearer", "", time).await;
    let posted = input("t", "r1", "say alpha");
    let started = Instant::now();
    let body = stack.post("agent/default/run", &posted).send().await.unwrap().text().await.unwrap();
    let all = events(&body);
    assert_eq!((types(&all), &all[1]["code"]), (vec!["RUN_STARTED", "RUN_ERROR"], &json!("STREAM_TIMEOUT")));
    assert!(started.elapsed() < time, "{:?}", started.elapsed());
    assert!(body.contains("\n\n: keep-alive\n\n"), "15 seconds without news: {body}");
    // Queued once more, under one id; a worker comes only now.
    stack.work();
    let all = stack.run(&posted).await;
    assert_eq!(types(&all).last(), Some(&"RUN_FINISHED"), "{all:?}");
    let messages = stack.http.get(stack.url("threads/t/messages")).bearer_auth(ANN).send().await.unwrap();
    assert_eq!(messages.json::<Value>().await.unwrap()["messages"].as_array().unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_signed_a_request_has_threads_of_their_own() {
    let mut stack = Stack::new("iam", "", TIME).await;
    stack.work();
    let refused = stack.post("agent/default/run", &input("t", "r0", "x")).send().await.unwrap();
    assert_eq!(refused.status(), 403, "the URL does not ask for signatures");
    stack.front.signed_by("arn:aws:sts::123456789012:assumed-role/web/one");
    let all = stack.run(&input("t", "r1", "say alpha")).await;
    assert_eq!(types(&all).last(), Some(&"RUN_FINISHED"));
    let of = async |arn: &str| {
        stack.front.signed_by(arn);
        let messages = stack.http.get(stack.url("threads/t/messages")).send().await.unwrap();
        messages.json::<Value>().await.unwrap()["messages"].as_array().unwrap().len()
    };
    assert_eq!(of("arn:aws:sts::123456789012:assumed-role/web/two").await, 2);
    assert_eq!(of("arn:aws:iam::123456789012:user/bob").await, 0);
}
