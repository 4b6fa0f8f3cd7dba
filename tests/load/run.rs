//! One run: several workers on the queue, a tool server, the callback's HTTP front, and people who speak.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_lambda_events::event::sqs::{SqsBatchResponse, SqsEvent};
use aws_sdk_sqs::types::{MessageSystemAttributeName as Attribute, QueueAttributeName};
use dormouse::assembly::{Assembly, Secrets, assemble};
use dormouse::config::{AgentConfig, AwsConfig, Config, DEFAULT_NAME, ModelConfig, ToolServerConfig};
use dormouse::local::poll::poll_queue;
use dormouse::message::{InputMessage, OutputMessage, ThreadId};
use dormouse::rap::token::CallbackKeys;
use dormouse::slice::{NoObserver, Runtime, records};
use dormouse::store::dynamodb::DynamoStore;
use futures::future::join_all;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use crate::evidence::{Evidence, Published, collect};
use crate::faults::{Fault, Faults};
use crate::judge::{Finding, Wrong, judge};
use crate::plan::{Message, Pace, Plan, ThreadPlan};
use crate::stack::Stack;
use crate::tools::ToolServer;
use crate::wire::{self, Copies, Wire};

/// Processes of the worker.
const WORKERS: usize = 4;
/// What an invocation has, below the queue's visibility.
const BATCH_TIME: Duration = Duration::from_secs(100);
/// A worker that dies does so within this time of a batch.
const CRASH_WITHIN_MS: usize = 120;
/// Visibility that is left over after a crash, in seconds.
const AFTER_CRASH_SECONDS: i32 = 1;
/// A producer sends a message until it is accepted, at most so often.
const MAX_SENDS: usize = 20;
const SEND_PAUSE: Duration = Duration::from_millis(50);
/// Everything is at rest when it was so often in a row.
const LOOKS: usize = 3;
const LOOK_PAUSE: Duration = Duration::from_millis(300);
/// How long the output queue is asked for more at once, in seconds.
const OUTPUT_WAIT_SECONDS: i32 = 1;
const KEYS: &str = r#"{"active":"k1","k1":"a-key-for-tests-of-thirty-two-bytes-and-more"}"#;

/// What a run has measured and found.
pub struct Outcome {
    pub stack: &'static str,
    pub faults: Arc<Faults>,
    pub evidence: BTreeMap<String, Evidence>,
    pub findings: Vec<Finding>,
    pub slices: usize,
    pub redeliveries: usize,
    /// From the first message sent to the last slice.
    pub busy: Duration,
    /// With the start, and until everything was at rest and read.
    pub wall: Duration,
    /// From a message's sending to its reply on the output queue, ascending.
    pub latencies: Vec<Duration>,
}

/// What the workers have done.
#[derive(Default)]
struct Meter {
    slices: AtomicUsize,
    redeliveries: AtomicUsize,
    delivered: Mutex<HashSet<String>>,
    last_slice: Mutex<Option<Instant>>,
}

pub async fn run(plan: &Plan, stack: &Stack) -> Outcome {
    let started = Instant::now();
    let deadline = started + plan.time;
    let faults = Arc::new(Faults::new(plan.seed, plan.faulty));
    let copies = Arc::new(Copies::default());
    let tools = ToolServer::start(faults.clone()).await;
    let meter = Arc::new(Meter::default());
    let (stop, stopped) = watch::channel(());

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = config(stack, &tools.url, &format!("http://{}", listener.local_addr().unwrap()));
    let process = |number| Wire::new(faults.clone(), copies.clone(), number).client();
    let front = assembly(&config, stack, process(WORKERS));
    tokio::spawn(async move { axum::serve(listener, dormouse::http::router(front.http)).await.unwrap() });

    let mut workers = JoinSet::new();
    for number in 0..WORKERS {
        let runtime = Arc::new(assembly(&config, stack, process(number)).runtime);
        let polling = stack.polling(process(number));
        let worker =
            Worker { runtime, meter: meter.clone(), faults: faults.clone(), queue: visibility(stack) };
        let handler = move |event| worker.clone().handle(event);
        let mut stopped = stopped.clone();
        let stop = async move { while stopped.changed().await.is_ok() {} };
        workers.spawn(poll_queue(polling, stack.input.clone(), handler, stop));
    }

    let (people, seats): (Vec<_>, BTreeMap<_, _>) = plan
        .threads
        .iter()
        .map(|thread| {
            let (seat, replies) = mpsc::unbounded_channel();
            ((thread, replies), (thread.id.clone(), seat))
        })
        .unzip();
    let (stop_reader, reader_stopped) = watch::channel(());
    let reader = stack.polling(wire::plain());
    let reader = tokio::spawn(read_output(reader, stack.output.clone(), seats, reader_stopped));
    let speaking = Instant::now();
    let producer = Producer { queue: stack.clients(process(WORKERS + 1)).sqs, url: stack.input.clone() };
    let active = Semaphore::new(plan.active);
    let spoken = join_all(people.into_iter().map(|(thread, replies)| {
        let (producer, active) = (&producer, &active);
        async move {
            let _turn = active.acquire().await.unwrap();
            (thread.id.clone(), producer.speak(thread, replies, deadline).await)
        }
    }))
    .await;
    let rest = timeout_at(deadline, at_rest(stack, &tools)).await.is_ok();
    drop(stop);
    while workers.join_next().await.is_some() {}
    drop(stop_reader);
    let published = reader.await.unwrap();

    let mut latencies = Vec::new();
    let mut unanswered = BTreeMap::new();
    for (id, spoken) in spoken {
        latencies.extend(spoken.latencies);
        unanswered.extend(spoken.unanswered.map(|text| (id, text)));
    }
    latencies.sort();
    let store = DynamoStore::new(stack.clients(wire::plain()).dynamodb, stack.table.clone());
    let evidence = collect(plan, &store, published, tools.invoked(), unanswered).await;
    let mut findings: Vec<Finding> =
        plan.threads.iter().flat_map(|thread| judge(thread, &evidence[&thread.id])).collect();
    let mut find = |wrong, what| findings.push(Finding { thread: String::new(), wrong, what });
    if !rest {
        find(Wrong::Unfinished, format!("not at rest after {:?}", plan.time));
    }
    dead_letters(stack)
        .await
        .into_iter()
        .for_each(|body| find(Wrong::Lost, format!("a dead letter: {body}")));
    tools.refused().into_iter().for_each(|what| find(Wrong::Lost, format!("a result was not taken: {what}")));
    let last = meter.last_slice.lock().unwrap().unwrap_or(speaking);
    Outcome {
        stack: stack.name,
        faults,
        evidence,
        findings,
        slices: meter.slices.load(Ordering::Relaxed),
        redeliveries: meter.redeliveries.load(Ordering::Relaxed),
        busy: last - speaking,
        wall: started.elapsed(),
        latencies,
    }
}

fn config(stack: &Stack, tools: &str, front: &str) -> Arc<Config> {
    let tools = ToolServerConfig { url: tools.to_owned(), ..ToolServerConfig::default() };
    Arc::new(Config {
        agents: [(DEFAULT_NAME.to_owned(), AgentConfig::default())].into(),
        models: [(DEFAULT_NAME.to_owned(), ModelConfig::from_spec("scripted"))].into(),
        tool_servers: [("load".to_owned(), tools)].into(),
        allow_http_hosts: vec!["127.0.0.1".to_owned()],
        aws: AwsConfig {
            table: stack.table.clone(),
            input_queue_url: stack.input.clone(),
            output_queue_url: Some(stack.output.clone()),
            dead_letter_queue_url: Some(stack.dead.clone()),
            callback_base_url: front.to_owned(),
            callback_keys_secret: None,
            callback_keys_env: None,
            ..AwsConfig::default()
        },
        ..Config::default()
    })
}

/// A process as `bin/worker` and `bin/api` make it.
fn assembly(config: &Arc<Config>, stack: &Stack, http: aws_sdk_sqs::config::SharedHttpClient) -> Assembly {
    let secrets =
        Secrets { callback_keys: CallbackKeys::from_json(KEYS).unwrap(), model_keys: BTreeMap::new() };
    assemble(config.clone(), &stack.clients(http), &secrets, Vec::new(), Arc::new(NoObserver)).unwrap()
}

/// The input queue, for whoever ends a visibility.
#[derive(Clone)]
struct Visibility {
    client: aws_sdk_sqs::Client,
    url: String,
}

fn visibility(stack: &Stack) -> Visibility {
    Visibility { client: stack.polling(wire::plain()), url: stack.input.clone() }
}

#[derive(Clone)]
struct Worker {
    runtime: Arc<Runtime>,
    meter: Arc<Meter>,
    faults: Arc<Faults>,
    queue: Visibility,
}

impl Worker {
    /// The worker function's handler, measured, and killed now and then.
    async fn handle(self, event: SqsEvent) -> SqsBatchResponse {
        self.meter.count(&event);
        let records = event.records.clone();
        let processing = records::process_records(&self.runtime, event, Instant::now() + BATCH_TIME);
        let response = match self.faults.strike(Fault::WorkerCrashed) {
            false => Some(processing.await),
            true => {
                let ms = u64::try_from(self.faults.dice().below(CRASH_WITHIN_MS)).unwrap();
                timeout(Duration::from_millis(ms), processing).await.ok()
            }
        };
        *self.meter.last_slice.lock().unwrap() = Some(Instant::now());
        if let Some(response) = response {
            return response;
        }
        // Nobody deletes anything, and after a while the messages are there again.
        for handle in records.iter().filter_map(|record| record.receipt_handle.as_ref()) {
            let Visibility { client, url } = &self.queue;
            let change = client.change_message_visibility().queue_url(url).receipt_handle(handle);
            // The other worker that had it may have deleted it.
            let _ = change.visibility_timeout(AFTER_CRASH_SECONDS).send().await;
        }
        let mut response = SqsBatchResponse::default();
        response.set_failures(records.into_iter().filter_map(|record| record.message_id));
        response
    }
}

impl Meter {
    /// As the handler cuts a batch: a slice for the fresh records of a thread, and one for each that came again.
    fn count(&self, event: &SqsEvent) {
        let mut fresh = HashSet::new();
        let mut slices = 0;
        let mut delivered = self.delivered.lock().unwrap();
        for record in &event.records {
            let attribute = |name: &str| record.attributes.get(name).cloned().unwrap_or_default();
            let again = attribute("ApproximateReceiveCount").parse().unwrap_or(1) > 1;
            slices += usize::from(again || fresh.insert(attribute("MessageGroupId")));
            if !delivered.insert(record.message_id.clone().unwrap_or_default()) {
                self.redeliveries.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.slices.fetch_add(slices, Ordering::Relaxed);
    }
}

/// A person's side of the input queue.
struct Producer {
    queue: aws_sdk_sqs::Client,
    url: String,
}

#[derive(Default)]
struct Spoken {
    latencies: Vec<Duration>,
    unanswered: Option<String>,
}

impl Producer {
    async fn speak(
        &self,
        thread: &ThreadPlan,
        mut replies: mpsc::UnboundedReceiver<String>,
        deadline: Instant,
    ) -> Spoken {
        let mut spoken = Spoken::default();
        for (at, message) in thread.messages.iter().enumerate() {
            let sent = Instant::now();
            self.send(thread, at, message).await;
            if thread.pace == Pace::Burst {
                continue;
            }
            let reply = message.replies.last().unwrap();
            let heard = async {
                while let Some(text) = replies.recv().await {
                    if text == *reply {
                        return true;
                    }
                }
                false
            };
            if !timeout_at(deadline, heard).await.unwrap_or(false) {
                spoken.unanswered = Some(message.text.clone());
                break;
            }
            spoken.latencies.push(sent.elapsed());
        }
        spoken
    }

    /// Sends until the queue has said that it has the message, under one deduplication id.
    async fn send(&self, thread: &ThreadPlan, at: usize, message: &Message) {
        let body =
            InputMessage::user_text(ThreadId::from(thread.id.as_str()), &message.text).to_body().unwrap();
        for _ in 0..MAX_SENDS {
            let request = self.queue.send_message().queue_url(&self.url).message_body(&body);
            let request =
                request.message_group_id(&thread.id).message_deduplication_id(format!("{}.{at}", thread.id));
            if request.send().await.is_ok() {
                return;
            }
            tokio::time::sleep(SEND_PAUSE).await;
        }
        panic!("the queue does not take {:?}", message.text);
    }
}

/// Reads the output queue until everything has stopped and it is empty; passes the texts on to who waits for them.
async fn read_output(
    client: aws_sdk_sqs::Client,
    url: String,
    seats: BTreeMap<String, mpsc::UnboundedSender<String>>,
    stopped: watch::Receiver<()>,
) -> BTreeMap<String, Vec<Published>> {
    let mut published: BTreeMap<String, Vec<Published>> = BTreeMap::new();
    let mut read = 0;
    loop {
        let over = stopped.has_changed().is_err();
        let request = client.receive_message().queue_url(&url).max_number_of_messages(10);
        let request = request.wait_time_seconds(OUTPUT_WAIT_SECONDS);
        let request = request.message_system_attribute_names(Attribute::All);
        let messages = request.send().await.unwrap().messages.unwrap_or_default();
        if messages.is_empty() && over {
            return published;
        }
        let mut done = client.delete_message_batch().queue_url(&url);
        let some = !messages.is_empty();
        for (at, message) in messages.into_iter().enumerate() {
            let attributes = message.attributes.unwrap_or_default();
            let sent = attributes.get(&Attribute::SentTimestamp).and_then(|sent| sent.parse().ok()).unwrap();
            let output: OutputMessage = serde_json::from_str(&message.body.unwrap()).unwrap();
            let thread = output.thread_id.as_str().to_owned();
            if let Some(seat) = seats.get(&thread) {
                // Who has heard everything may have left.
                let _ = seat.send(output.text.clone());
            }
            published.entry(thread).or_default().push(Published::new(output, (sent, read)));
            read += 1;
            let entry = aws_sdk_sqs::types::DeleteMessageBatchRequestEntry::builder().id(at.to_string());
            done = done.entries(entry.receipt_handle(message.receipt_handle.unwrap()).build().unwrap());
        }
        if some {
            done.send().await.unwrap();
        }
    }
}

/// Returns when nothing is queued, worked on, or about to come back.
async fn at_rest(stack: &Stack, tools: &ToolServer) {
    let client = stack.polling(wire::plain());
    let mut looks = 0;
    while looks < LOOKS {
        let queued =
            client.get_queue_attributes().queue_url(&stack.input).attribute_names(QueueAttributeName::All);
        let attributes = queued.send().await.unwrap().attributes.unwrap_or_default();
        let count = |name| attributes.get(&name).and_then(|count| count.parse::<u64>().ok()).unwrap();
        let queued = count(QueueAttributeName::ApproximateNumberOfMessages)
            + count(QueueAttributeName::ApproximateNumberOfMessagesNotVisible);
        looks = if queued == 0 && tools.is_idle() { looks + 1 } else { 0 };
        tokio::time::sleep(LOOK_PAUSE).await;
    }
}

async fn dead_letters(stack: &Stack) -> Vec<String> {
    let client = stack.polling(wire::plain());
    let received = client.receive_message().queue_url(&stack.dead).max_number_of_messages(10).send().await;
    let messages = received.unwrap().messages.unwrap_or_default();
    messages.into_iter().filter_map(|message| message.body).collect()
}
