//! What is around the worker function, in this process: the embedded DynamoDB and SQS behind gates, a tool server, the
//! callback's HTTP front, and the queue's side of an invocation.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use aws_sdk_dynamodb::types::AttributeValue;
use aws_sdk_sqs::types::{Message, MessageSystemAttributeName as Attribute};
use dormouse::config::{Config, ToolServerConfig};
use dormouse::http::{Access, HttpDeps, router};
use dormouse::local::aws::{EmbeddedAws, EmbeddedOptions};
use dormouse::message::{CallId, InputMessage, ItemBody, MessageId, ThreadId};
use dormouse::queue::sqs::SqsInput;
use dormouse::rap::callback::CallbackDeps;
use dormouse::rap::token::{CallbackKeys, CallbackTokens};
use dormouse::store::ConversationStore;
use dormouse::store::dynamodb::DynamoStore;
use serde_json::{Value, json};

use crate::gates::{Gate, ToolServer};
use crate::lambda::{Answer, Kind, Worker};

/// The thread that the tests speak to.
pub const THREAD: &str = "th-1";
/// Signs callback addresses; both sides of a test have it.
const KEYS: &str = r#"{"active":"k1","k1":"a-key-for-tests-of-thirty-two-bytes-and-more"}"#;

/// What a conversation has come to; equal for the killed and the unkilled, except for the ids of what derives from
/// the queue's own message ids.
#[derive(Debug, PartialEq)]
pub struct Came {
    pub story: Vec<String>,
    pub calls: Vec<CallId>,
    pub pending: Vec<CallId>,
    pub open: Vec<MessageId>,
    /// One row for each input.
    pub dedup: BTreeSet<String>,
    /// Texts of the output queue, each message id once.
    pub texts: Vec<String>,
    pub dispatched: BTreeMap<String, String>,
    pub cancelled: BTreeSet<String>,
    pub dead: usize,
}

/// One account.
pub struct Cloud {
    pub aws: EmbeddedAws,
    pub dynamodb: Gate,
    pub sqs: Gate,
    pub tools: ToolServer,
    pub queue: aws_sdk_sqs::Client,
    tools_url: String,
    http_url: String,
    store: DynamoStore,
    logs: tempfile::TempDir,
    started: AtomicUsize,
    sent: AtomicUsize,
    /// Everything that was published, by message id.
    published: Mutex<BTreeMap<String, Vec<String>>>,
}

impl Cloud {
    pub async fn start() -> Self {
        let aws = EmbeddedAws::start(EmbeddedOptions::default()).await.unwrap();
        let store = DynamoStore::new(aws.dynamodb_client(), aws.table().to_owned());
        let (tools, tools_url) = ToolServer::start().await;
        // The address is part of what is served there.
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let http_url = format!("http://{}", listener.local_addr().unwrap());
        let front: Arc<DynamoStore> = Arc::new(store.clone());
        let sender = Arc::new(SqsInput::new(aws.sqs_client(), aws.input_queue_url(), front.clone()));
        let tokens = CallbackTokens::new(CallbackKeys::from_json(KEYS).unwrap(), &http_url);
        // As in the functions: questions are taken from the host of a configured tool server.
        let tool_server = ToolServerConfig { url: tools_url.clone(), ..Default::default() };
        let config = Arc::new(Config {
            tool_servers: [("tools".to_owned(), tool_server)].into(),
            allow_http_hosts: vec!["127.0.0.1".to_owned()],
            ..Config::default()
        });
        let callback = CallbackDeps { store: front, sender, tokens, config };
        tokio::spawn(async move {
            axum::serve(
                listener,
                router(HttpDeps { callback, access: Access::Closed, webhooks: Default::default() }),
            )
            .await
            .unwrap()
        });
        Self {
            dynamodb: Gate::before(aws.dynamodb_url()).await,
            sqs: Gate::before(aws.sqs_url()).await,
            tools,
            queue: aws.sqs_client(),
            tools_url,
            http_url,
            store,
            logs: tempfile::tempdir().unwrap(),
            started: AtomicUsize::new(0),
            sent: AtomicUsize::new(0),
            published: Mutex::default(),
            aws,
        }
    }

    /// A new process of the worker, with a scripted model and the tools for notes.
    pub async fn worker(&self) -> Worker {
        let toml = format!(
            "allow_http_hosts = ['127.0.0.1']\n[agents.default]\nmodel = 'scripted'\n\
             [tool_servers.notes]\nurl = '{}'\n",
            self.tools_url
        );
        self.worker_with(toml).await
    }

    /// A new process of the worker.
    pub async fn worker_with(&self, toml: String) -> Worker {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        Worker::start(&self.settings(toml), &self.logs.path().join(format!("worker-{number}.log"))).await
    }

    /// What a function is configured with, as the template does it: inline TOML for what is the user's, variables for names,
    /// and the endpoints of the two services in the variables that the SDKs know.
    pub fn settings(&self, toml: String) -> Vec<(&'static str, String)> {
        vec![
            ("DORMOUSE_CONFIG", toml),
            ("DORMOUSE_AWS__TABLE", self.aws.table().to_owned()),
            ("DORMOUSE_AWS__INPUT_QUEUE_URL", self.aws.input_queue_url()),
            ("DORMOUSE_AWS__OUTPUT_QUEUE_URL", self.aws.output_queue_url()),
            ("DORMOUSE_AWS__DEAD_LETTER_QUEUE_URL", self.aws.dead_letter_queue_url()),
            ("DORMOUSE_AWS__CALLBACK_BASE_URL", self.http_url.clone()),
            ("DORMOUSE_AWS__CALLBACK_KEYS_ENV", "CALLBACK_KEYS".to_owned()),
            ("CALLBACK_KEYS", KEYS.to_owned()),
            ("AWS_ENDPOINT_URL_DYNAMODB", self.dynamodb.url.clone()),
            ("AWS_ENDPOINT_URL_SQS", self.sqs.url.clone()),
        ]
    }

    /// Where processes write their logs.
    pub fn logs(&self) -> std::path::PathBuf {
        self.logs.path().to_owned()
    }

    /// What Lambda does with a queue and one environment of the worker, for as long as it is polled.
    pub async fn serve_with(&self, toml: String) {
        let mut worker = self.worker_with(toml).await;
        loop {
            let messages = self.take(1).await;
            if !messages.is_empty() {
                let answer = worker.invoke(&event(&messages)).await;
                self.acknowledge(&messages, &answer).await;
            }
        }
    }

    /// Queues a person's text.
    pub async fn says(&self, text: &str) {
        let body = InputMessage::user_text(ThreadId::from(THREAD), text).to_body().unwrap();
        self.queues(THREAD, &body).await;
    }

    /// Queues any body.
    pub async fn queues(&self, group: &str, body: &str) {
        let number = self.sent.fetch_add(1, Ordering::Relaxed);
        let request = self.queue.send_message().queue_url(self.aws.input_queue_url()).message_group_id(group);
        request.message_deduplication_id(format!("d-{number}")).message_body(body).send().await.unwrap();
    }

    /// Answers a call where the invocation says.
    pub async fn answers(&self, operation: &str, text: &str) -> reqwest::StatusCode {
        let invocation = self.tools.calls(operation).pop().unwrap();
        let result = json!({
            "type": "tool_result", "group_id": THREAD, "id": invocation["id"], "text": text,
        });
        let url = invocation["callback_url"].as_str().unwrap();
        reqwest::Client::new().post(url).json(&result).send().await.unwrap().status()
    }

    /// Takes a batch from the queue, which has one or gets one soon.
    pub async fn receive(&self) -> Vec<Message> {
        let messages = self.take(10).await;
        assert!(!messages.is_empty(), "the queue is empty");
        messages
    }

    /// What can be received at once.
    pub async fn peek(&self) -> Vec<Message> {
        self.take(0).await
    }

    async fn take(&self, wait_seconds: i32) -> Vec<Message> {
        let received = self
            .queue
            .receive_message()
            .queue_url(self.aws.input_queue_url())
            .max_number_of_messages(10)
            .wait_time_seconds(wait_seconds)
            .message_system_attribute_names(Attribute::All);
        received.send().await.unwrap().messages.unwrap_or_default()
    }

    /// The batch's time is over without an answer: the messages are there again.
    pub async fn time_out(&self, messages: &[Message]) {
        for message in messages {
            let change = self.queue.change_message_visibility().queue_url(self.aws.input_queue_url());
            let change = change.receipt_handle(message.receipt_handle().unwrap());
            change.visibility_timeout(0).send().await.unwrap();
        }
    }

    /// What Lambda does after an answer: deletes what was not reported.
    pub async fn acknowledge(&self, messages: &[Message], answer: &Answer) {
        assert_eq!(answer.kind, Kind::Response, "{answer:?}");
        let failed: Vec<&str> = failed(answer);
        for message in messages.iter().filter(|message| !failed.contains(&message.message_id().unwrap())) {
            let delete = self.queue.delete_message().queue_url(self.aws.input_queue_url());
            delete.receipt_handle(message.receipt_handle().unwrap()).send().await.unwrap();
        }
    }

    /// One batch from the queue through `worker`; nothing of it may be reported.
    pub async fn run(&self, worker: &mut Worker) -> Vec<Message> {
        let messages = self.receive().await;
        let answer = worker.invoke(&event(&messages)).await;
        self.acknowledge(&messages, &answer).await;
        assert!(failed(&answer).is_empty(), "{answer:?}");
        messages
    }

    /// Everything that was published so far: texts by message id, as often as they came.
    pub async fn published(&self) -> BTreeMap<String, Vec<String>> {
        for body in self.drain(&self.aws.output_queue_url()).await {
            let output: Value = serde_json::from_str(&body).unwrap();
            let field = |name: &str| output[name].as_str().unwrap().to_owned();
            self.published.lock().unwrap().entry(field("message_id")).or_default().push(field("text"));
        }
        self.published.lock().unwrap().clone()
    }

    /// The bodies that are in a queue; it is empty afterwards.
    pub async fn drain(&self, url: &str) -> Vec<String> {
        let mut bodies = Vec::new();
        loop {
            let received = self.queue.receive_message().queue_url(url).max_number_of_messages(10);
            let messages = received.send().await.unwrap().messages.unwrap_or_default();
            if messages.is_empty() {
                return bodies;
            }
            for message in messages {
                let delete = self.queue.delete_message().queue_url(url);
                delete.receipt_handle(message.receipt_handle().unwrap()).send().await.unwrap();
                bodies.push(message.body.unwrap());
            }
        }
    }

    /// What is stored, as lines.
    pub async fn story(&self) -> Vec<String> {
        let loaded = self.store.load(&ThreadId::from(THREAD), &[]).await.unwrap();
        loaded.items.iter().map(|item| crate::world::tell(&item.body)).collect()
    }

    pub async fn came(&self) -> Came {
        let loaded = self.store.load(&ThreadId::from(THREAD), &[]).await.unwrap();
        let meta = loaded.meta.unwrap();
        let call =
            |body: ItemBody| if let ItemBody::ToolCall(call) = body { Some(call.call_id) } else { None };
        let published = self.published().await;
        assert!(
            published.values().all(|texts| texts.iter().all(|text| *text == texts[0])),
            "one id, one text: {published:?}"
        );
        let mut texts: Vec<String> = published.into_values().map(|mut texts| texts.remove(0)).collect();
        texts.sort();
        let invoked = self.tools.invoked.lock().unwrap().clone();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let cancelled = self.tools.cancelled.lock().unwrap().iter().cloned().collect();
        Came {
            story: self.story().await,
            calls: loaded.items.into_iter().filter_map(|item| call(item.body)).collect(),
            pending: meta.pending.into_iter().map(|pending| pending.call).collect(),
            open: meta.open,
            dedup: self.dedup_rows().await,
            texts,
            dispatched: invoked.iter().map(|it| (text(&it["id"]), text(&it["operation"]))).collect(),
            cancelled,
            dead: self.drain(&self.aws.dead_letter_queue_url()).await.len(),
        }
    }

    async fn dedup_rows(&self) -> BTreeSet<String> {
        let query = self.aws.dynamodb_client().query().table_name(self.aws.table());
        let query = query
            .key_condition_expression("pk = :pk AND begins_with(sk, :sk)")
            .expression_attribute_values(":pk", AttributeValue::S(format!("T#{THREAD}")))
            .expression_attribute_values(":sk", AttributeValue::S("D#".to_owned()));
        let rows = query.send().await.unwrap().items.unwrap_or_default();
        rows.into_iter().map(|row| row["sk"].as_s().unwrap().clone()).collect()
    }
}

/// Message ids that an answer reports.
pub fn failed(answer: &Answer) -> Vec<&str> {
    let failures = answer.body["batchItemFailures"].as_array().unwrap();
    failures.iter().map(|failure| failure["itemIdentifier"].as_str().unwrap()).collect()
}

/// The event that Lambda makes of a batch.
pub fn event(messages: &[Message]) -> Value {
    let record = |message: &Message| {
        let attributes: BTreeMap<&str, &str> = message
            .attributes()
            .unwrap()
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        json!({
            "messageId": message.message_id(), "receiptHandle": message.receipt_handle(),
            "body": message.body(), "md5OfBody": message.md5_of_body(), "attributes": attributes,
            "messageAttributes": {}, "eventSource": "aws:sqs", "awsRegion": "us-east-1",
            "eventSourceARN": "arn:aws:sqs:us-east-1:000000000000:dormouse-input.fifo",
        })
    };
    json!({ "Records": messages.iter().map(record).collect::<Vec<_>>() })
}

/// How often a message was received.
pub fn receives(message: &Message) -> &str {
    &message.attributes().unwrap()[&Attribute::ApproximateReceiveCount]
}
