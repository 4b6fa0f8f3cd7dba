//! All of dormouse in this process, on a directory of its own: the embedded queues and table, the HTTP front, the worker.
//! What goes in is put on the real queue as other people's producers write it; what comes out is read from the table and
//! from the output queue.
#![allow(dead_code, clippy::unwrap_used, reason = "shared by several test binaries, each using a part")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use dormouse::config::{Config, ToolServerConfig};
use dormouse::local::system::{LocalOptions, LocalSystem};
use dormouse::message::ThreadId;
use dormouse::slice::{NoObserver, Observer};
use dormouse::store::Store;
use serde_json::{Value, json};
use tokio::sync::Mutex;

/// No answer may take longer, also on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);

pub struct Stack {
    pub system: LocalSystem,
    pub http: reqwest::Client,
    sqs: aws_sdk_sqs::Client,
    sent: AtomicUsize,
    /// Everything that the output queue has given so far.
    received: Mutex<Vec<Value>>,
    _dir: tempfile::TempDir,
}

/// A configuration with these tool servers and the scripted model that does what the prompts say.
pub fn config(servers: &[(&str, &str)]) -> Config {
    let server = |url: &str| ToolServerConfig { url: url.to_owned(), ..ToolServerConfig::default() };
    Config {
        tool_servers: servers.iter().map(|(name, url)| ((*name).to_owned(), server(url))).collect(),
        allow_http_hosts: vec!["127.0.0.1".to_owned()],
        ..Config::default()
    }
}

/// A user's text exactly as existing producers write it, with its explicit nulls.
pub fn said(thread: &str, text: &str) -> Value {
    queued(thread, json!({"type": "text", "text": text}))
}

/// Any content in the same frame.
pub fn queued(thread: &str, content: Value) -> Value {
    json!({"content": content, "group_id": thread, "metadata": null, "synthetic": null, "display_as": null,
           "subscription": false})
}

impl Stack {
    pub async fn start(config: Config) -> Self {
        Self::start_watched(config, Arc::new(NoObserver)).await
    }

    pub async fn start_watched(config: Config, observer: Arc<dyn Observer>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let system =
            LocalSystem::start(LocalOptions { observer, ..options(dir.path(), config) }).await.unwrap();
        let sqs = system.endpoints().clients().sqs;
        let (sent, received) = (AtomicUsize::new(0), Mutex::default());
        Self { system, http: reqwest::Client::new(), sqs, sent, received, _dir: dir }
    }

    pub fn store(&self) -> Arc<dyn Store> {
        self.system.store()
    }

    /// Queues a body in the group that it names, under this dedup id.
    pub async fn queue(&self, body: &Value, dedup: &str) {
        let request = self.sqs.send_message().queue_url(&self.system.endpoints().input_queue);
        let request = request.message_group_id(body["group_id"].as_str().unwrap());
        request.message_deduplication_id(dedup).message_body(body.to_string()).send().await.unwrap();
    }

    /// Queues a user's text.
    pub async fn says(&self, thread: &str, text: &str) {
        let number = self.sent.fetch_add(1, Ordering::Relaxed);
        self.queue(&said(thread, text), &format!("said-{number}")).await;
    }

    /// POSTs a callback, and its status.
    pub async fn callback(&self, url: &str, body: &Value) -> u16 {
        self.http.post(url).json(body).send().await.unwrap().status().as_u16()
    }

    /// The history of a thread in short; nothing of one that is not there.
    pub async fn story(&self, thread: &str) -> Vec<String> {
        let loaded = self.store().load(&ThreadId::from(thread), &[]).await.unwrap();
        loaded.items.iter().map(|item| crate::world::tell(&item.body)).collect()
    }

    /// The history, once `enough` says so.
    pub async fn story_when(&self, thread: &str, enough: impl Fn(&[String]) -> bool) -> Vec<String> {
        let started = Instant::now();
        loop {
            let story = self.story(thread).await;
            if enough(&story) {
                return story;
            }
            assert!(started.elapsed() < LIMIT, "thread {thread} stands at {story:#?}");
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The history, once its last entry is this one.
    pub async fn story_ending(&self, thread: &str, last: &str) -> Vec<String> {
        self.story_when(thread, |story| story.last().is_some_and(|line| line == last)).await
    }

    /// The messages of the output queue, in the order in which they came, once one of them is as `wanted`.
    pub async fn outputs_when(&self, wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
        let started = Instant::now();
        let mut received = self.received.lock().await;
        loop {
            if received.iter().any(&wanted) {
                return received.clone();
            }
            assert!(started.elapsed() < LIMIT, "the output queue gave {received:#?}");
            let queue = &self.system.endpoints().output_queue;
            let request = self.sqs.receive_message().queue_url(queue).max_number_of_messages(10);
            for message in request.send().await.unwrap().messages.unwrap_or_default() {
                received.push(serde_json::from_str(&message.body.unwrap()).unwrap());
                let handle = message.receipt_handle.unwrap();
                self.sqs.delete_message().queue_url(queue).receipt_handle(handle).send().await.unwrap();
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Everything that the table holds, as text: what is stored somewhere is in it.
    pub async fn table(&self) -> String {
        let endpoints = self.system.endpoints();
        let scan = endpoints.clients().dynamodb.scan().table_name(&endpoints.table).consistent_read(true);
        let scanned = scan.send().await.unwrap();
        assert!(scanned.last_evaluated_key.is_none(), "a test's table is one page");
        format!("{:?}", scanned.items())
    }
}

fn options(dir: &Path, config: Config) -> LocalOptions {
    LocalOptions {
        dir: dir.to_owned(),
        http_port: None,
        sqs_port: None,
        public_url: None,
        config,
        observer: Arc::new(NoObserver),
    }
}

/// What `look` finds, as soon as it finds something.
pub async fn found<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(started.elapsed() < LIMIT, "it did not come");
        tokio::time::sleep(PAUSE).await;
    }
}
