//! A real tool server over HTTP: it acknowledges, works, and POSTs its result to the callback address, more or less
//! as it should.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::faults::{Fault, Faults};
use crate::rng::Rng;

/// A result is POSTed until it is taken, at most so often.
const MAX_POSTS: usize = 30;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// A call's acknowledgement is lost at most so often: a runtime that gives up on the third attempt is right.
const MAX_LOST_ACKS: usize = 2;
/// Milliseconds that a tool works, and that a late one does.
const WORK_MS: usize = 30;
const LATE_MS: usize = 1500;
const POST_TIMEOUT: Duration = Duration::from_secs(20);

/// One invocation as it arrived.
#[derive(Clone, Debug, Deserialize)]
pub struct Invoked {
    pub group_id: String,
    pub id: String,
    pub operation: String,
    pub arguments: Value,
    callback_url: String,
}

pub struct ToolServer {
    pub url: String,
    shared: Arc<Shared>,
}

struct Shared {
    endpoint: OnceLock<String>,
    http: reqwest::Client,
    faults: Arc<Faults>,
    invoked: Mutex<BTreeMap<String, Vec<Invoked>>>,
    times: Mutex<HashMap<String, usize>>,
    /// Results that are on their way.
    working: AtomicUsize,
    /// What a callback address said to a result that it did not take.
    refused: Mutex<Vec<String>>,
}

impl ToolServer {
    pub async fn start(faults: Arc<Faults>) -> Self {
        let shared = Arc::new(Shared {
            endpoint: OnceLock::new(),
            http: reqwest::Client::builder().timeout(POST_TIMEOUT).build().unwrap(),
            faults,
            invoked: Mutex::default(),
            times: Mutex::default(),
            working: AtomicUsize::new(0),
            refused: Mutex::default(),
        });
        let app = Router::new()
            .route("/.well-known/rap-toolset", get(manifest))
            .route("/invoke", post(invoke))
            .route("/cancel_tool_call", post(|| async { StatusCode::OK }))
            .with_state(shared.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        shared.endpoint.set(format!("{url}/invoke")).unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { url, shared }
    }

    pub fn is_idle(&self) -> bool {
        self.shared.working.load(Ordering::SeqCst) == 0
    }

    /// What it was sent for each thread.
    pub fn invoked(&self) -> BTreeMap<String, Vec<Invoked>> {
        self.shared.invoked.lock().unwrap().clone()
    }

    pub fn refused(&self) -> Vec<String> {
        self.shared.refused.lock().unwrap().clone()
    }
}

async fn manifest(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let tool = |name| {
        json!({"name": name, "description": "Says what it was given.", "inputSchema": {
            "type": "object", "required": ["key"], "properties": {"key": {"type": "string"}},
        }})
    };
    let endpoint = shared.endpoint.get().unwrap();
    Json(json!({
        "name": "load", "description": "Takes load", "endpoint": endpoint, "tools": [tool("note"), tool("mark")],
    }))
}

async fn invoke(State(shared): State<Arc<Shared>>, Json(invoked): Json<Invoked>) -> StatusCode {
    let faults = &shared.faults;
    let group = invoked.group_id.clone();
    shared.invoked.lock().unwrap().entry(group).or_default().push(invoked.clone());
    let before = {
        let mut times = shared.times.lock().unwrap();
        let times = times.entry(invoked.id.clone()).or_default();
        *times += 1;
        *times - 1
    };
    let acknowledgement = match before < MAX_LOST_ACKS && faults.strike(Fault::ToolAckLost) {
        true => StatusCode::SERVICE_UNAVAILABLE,
        false => StatusCode::OK,
    };
    let mut dice = faults.dice();
    if before == 0 && faults.strike(Fault::ToolEarly) {
        // Not given up where the one that asked is gone.
        shared.answer(&invoked, Duration::ZERO).await.unwrap();
    } else if before == 0 || dice.below(2) == 0 {
        // The same call again is not run again, but a tool may well answer again.
        let late = faults.strike(Fault::ToolLate);
        drop(shared.answer(&invoked, work(&mut dice, late)));
    }
    if faults.strike(Fault::ToolTwice) {
        drop(shared.answer(&invoked, work(&mut dice, false)));
    }
    acknowledgement
}

fn work(dice: &mut Rng, late: bool) -> Duration {
    let ms = dice.below(if late { LATE_MS } else { WORK_MS });
    Duration::from_millis(u64::try_from(ms).unwrap())
}

impl Shared {
    fn answer(self: &Arc<Self>, invoked: &Invoked, after: Duration) -> JoinHandle<()> {
        let (shared, invoked) = (self.clone(), invoked.clone());
        self.working.fetch_add(1, Ordering::SeqCst);
        tokio::spawn(async move {
            shared.deliver(&invoked, after).await;
            shared.working.fetch_sub(1, Ordering::SeqCst);
        })
    }

    async fn deliver(&self, invoked: &Invoked, after: Duration) {
        tokio::time::sleep(after).await;
        let key = invoked.arguments["key"].as_str().unwrap_or_default();
        let result = json!({
            "type": "tool_result", "group_id": invoked.group_id, "id": invoked.id,
            "text": format!("{} {key}", invoked.operation),
        });
        let mut pause = FIRST_PAUSE;
        let mut last = String::new();
        for _ in 0..MAX_POSTS {
            match self.http.post(&invoked.callback_url).json(&result).send().await {
                Ok(response) if response.status() == StatusCode::OK => return,
                Ok(response) => last = response.status().to_string(),
                Err(error) => last = error.to_string(),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        self.refused.lock().unwrap().push(format!("{}: {last}", invoked.id));
    }
}
