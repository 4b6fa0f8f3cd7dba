//! The SQS endpoint: our front over `rustack-sqs`, durable and with AWS's numbers.
//!
//! `rustack-sqs` does what a queue does in memory: groups, visibility, long polls, receipt handles, delays. It holds
//! *tickets* (see [`super::journal`]); the front holds the truth: it writes a message down before the answer to its
//! sender leaves, deduplicates, numbers and counts, and moves what was received too often to the dead-letter queue.
//!
//! Spoken here: the AWS JSON 1.0 protocol, which every AWS SDK of today uses (the old query protocol is refused with a
//! message that says so). Signatures are not checked. Not served: moving messages out of a dead-letter queue by task.
//!
//! Known differences to AWS, all of `rustack-sqs` 0.12.0: a receive returns at most one message of a group (AWS:
//! several, in order); groups are served in the alphabetical order of their ids; a FIFO queue's own `DelaySeconds` is
//! ignored. And one of ours: a FIFO queue keeps its messages whatever their age, so that an input queued before a long
//! holiday is still there after it; standard queues drop theirs at the end of their retention.
//!
//! | file | holds |
//! |---|---|
//! | `queues` | create, delete, purge, attributes |
//! | `send` | validation and acceptance |
//! | `receive` | receive, delete, visibility, dead letters |
//! | `wire` | errors and answers as JSON |

mod queues;
mod receive;
mod send;
mod wire;

use std::collections::HashMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::HeaderMap;
use axum::response::Response;
use rustack_sqs_core::config::SqsConfig;
use rustack_sqs_core::handler::RustackSqsHandler;
use rustack_sqs_core::provider::RustackSqs;
use rustack_sqs_http::dispatch::dispatch_operation;
use rustack_sqs_model::input::SendMessageInput;
use rustack_sqs_model::operations::SqsOperation;
use tokio::sync::watch;

use super::aws::{ACCOUNT_ID, LocalError, REGION};
use super::journal::{Journal, JournalError, QueueSpec, Seq};
use super::server::{ServerThread, Serving};
use queues::Queue;
use wire::ApiError;

/// Largest message, body and attributes together, and largest batch: 1 MiB, AWS's limit since 2025.
const MAX_MESSAGE_BYTES: usize = 1024 * 1024;
/// Largest request: a batch of [`MAX_MESSAGE_BYTES`] whose every character is escaped in JSON, with room to spare.
const MAX_REQUEST_BYTES: usize = 16 * 1024 * 1024;
/// How often messages past their retention and old deduplication ids are deleted.
const SWEEP: Duration = Duration::from_secs(60);

/// Starts SQS with `builtin` queues and everything the journal still holds. Without a file nothing survives.
pub(super) async fn start(
    file: Option<PathBuf>,
    port: u16,
    builtin: Vec<QueueSpec>,
    lock: Option<Arc<File>>,
) -> Result<ServerThread, LocalError> {
    ServerThread::start("dormouse-sqs", port, lock, move |listener, address, stop| async move {
        let sqs_error = |reason: String| LocalError::Sqs { reason };
        let journal = Journal::open(file.as_deref()).map_err(|error| sqs_error(error.to_string()))?;
        let (closing, closed) = watch::channel(false);
        let front = Arc::new(Front::new(journal, address.port(), closed));
        front.restore(builtin).await.map_err(|error| sqs_error(error.message))?;
        let sweeping = Arc::clone(&front);
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(SWEEP);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                sweeping.sweep().await;
            }
        });
        let router =
            Router::new().fallback(answer).layer(DefaultBodyLimit::max(MAX_REQUEST_BYTES)).with_state(front);
        let stop = async move {
            stop.await;
            let _ = closing.send(true);
        };
        Ok(Box::pin(async move {
            if let Err(error) = axum::serve(listener, router).with_graceful_shutdown(stop).await {
                tracing::error!(%error, "the embedded SQS ended");
            }
        }) as Serving)
    })
    .await
}

/// Everything a request needs.
struct Front {
    provider: Arc<RustackSqs>,
    /// For the operations in which messages do not occur.
    unchanged: RustackSqsHandler,
    journal: Arc<Journal>,
    queues: RwLock<HashMap<String, Arc<Queue>>>,
    /// One queue is made or deleted at a time.
    administration: tokio::sync::Mutex<()>,
    /// Becomes true when the server stops: long polls end.
    closing: watch::Receiver<bool>,
}

impl Front {
    fn new(journal: Journal, port: u16, closing: watch::Receiver<bool>) -> Self {
        let provider = Arc::new(RustackSqs::new(SqsConfig {
            skip_signature_validation: true,
            default_region: REGION.to_owned(),
            account_id: ACCOUNT_ID.to_owned(),
            host: "127.0.0.1".to_owned(),
            port,
        }));
        Self {
            unchanged: RustackSqsHandler::new(Arc::clone(&provider)),
            provider,
            journal: Arc::new(journal),
            queues: RwLock::default(),
            administration: tokio::sync::Mutex::default(),
            closing,
        }
    }

    /// Makes the queues and queues the tickets of all messages again, in the order of acceptance.
    async fn restore(&self, builtin: Vec<QueueSpec>) -> Result<(), ApiError> {
        let builtin_names: Vec<String> = builtin.iter().map(|spec| spec.name.clone()).collect();
        for spec in builtin {
            self.open_queue(spec).await?;
        }
        let mut stored = self.journal(Journal::queues).await?;
        stored.retain(|spec| !builtin_names.contains(&spec.name));
        // A policy may name a queue that comes later in the alphabet: first those without one.
        stored.sort_by_key(|spec| spec.attributes.contains_key(queues::REDRIVE_POLICY));
        for spec in stored {
            self.reopen_queue(spec).await;
        }
        let waiting = self.journal(Journal::waiting).await?;
        let now = now_ms();
        let mut queued = 0_usize;
        for message in waiting {
            let Some(queue) = self.queue_named(&message.queue) else {
                tracing::warn!(queue = message.queue, seq = %message.seq, "a message's queue is gone; it stays on disk");
                continue;
            };
            // Rounded up: a timer may be late, never early.
            let delay_ms = u64::try_from(message.due_ms.saturating_sub(now)).unwrap_or(0);
            let delay =
                u32::try_from(delay_ms.div_ceil(1000)).unwrap_or(u32::MAX).min(send::MAX_DELAY_SECONDS);
            self.enqueue(&queue, message.seq, message.group_id, delay).await?;
            queued += 1;
        }
        if queued > 0 {
            tracing::info!(messages = queued, "queued again what was waiting when the last process ended");
        }
        Ok(())
    }

    /// Makes a queue of an earlier process again. One that cannot be made must not keep the others away.
    async fn reopen_queue(&self, mut spec: QueueSpec) {
        let Err(error) = self.open_queue(spec.clone()).await else { return };
        let had_policy = spec.attributes.remove(queues::REDRIVE_POLICY).is_some();
        tracing::warn!(
            queue = spec.name,
            error = error.message,
            had_policy,
            "a queue comes back without its policy"
        );
        if let Err(error) = self.open_queue(spec.clone()).await {
            tracing::error!(
                queue = spec.name,
                error = error.message,
                "a queue is not back; its messages stay on disk"
            );
        }
    }

    /// Hands a ticket to `rustack-sqs`. The message must be in the journal.
    async fn enqueue(
        &self,
        queue: &Queue,
        seq: Seq,
        group: Option<String>,
        delay: u32,
    ) -> Result<(), ApiError> {
        let ticket = seq.to_string();
        let fifo = queue.is_fifo();
        let input = SendMessageInput {
            queue_url: queue.url.clone(),
            // The ticket is unique, so `rustack-sqs` never deduplicates: the journal did.
            message_deduplication_id: fifo.then(|| ticket.clone()),
            message_body: ticket,
            message_group_id: group.filter(|_| fifo),
            delay_seconds: i32::try_from(delay).ok().filter(|_| !fifo),
            ..SendMessageInput::default()
        };
        self.provider.send_message(input).await?;
        Ok(())
    }

    /// Runs a piece of journal work off the async workers.
    async fn journal<T, F>(&self, work: F) -> Result<T, ApiError>
    where
        F: FnOnce(&Journal) -> Result<T, JournalError> + Send + 'static,
        T: Send + 'static,
    {
        let journal = Arc::clone(&self.journal);
        match tokio::task::spawn_blocking(move || work(&journal)).await {
            Ok(result) => Ok(result?),
            Err(error) => Err(ApiError::internal(format!("the journal's task ended: {error}"))),
        }
    }

    fn queue_named(&self, name: &str) -> Option<Arc<Queue>> {
        self.queues.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    async fn sweep(&self) {
        let queues: Vec<_> =
            self.queues.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        for queue in queues {
            let now = now_ms();
            let before = queue.retention_ms().map(|retention| now - retention);
            let name = queue.name.clone();
            // The tickets of deleted messages are dropped when somebody receives them.
            match self.journal(move |journal| journal.sweep(&name, before, now)).await {
                Ok(0) => {}
                Ok(expired) => {
                    tracing::warn!(queue = queue.name, expired, "messages were past their retention")
                }
                Err(error) => tracing::warn!(queue = queue.name, error = error.message, "the sweep failed"),
            }
        }
    }
}

/// Answers one HTTP request.
async fn answer(State(front): State<Arc<Front>>, headers: HeaderMap, body: Bytes) -> Response {
    let result = match wire::operation(&headers) {
        Err(error) => Err(error),
        // A long poll ends with its client. Everything else runs to its end even if the client hangs up: half of a
        // send (in the journal, not in the queue) would be a message nobody sees until the next start.
        Ok(SqsOperation::ReceiveMessage) => receive::receive(&front, &body).await,
        Ok(operation) => match tokio::spawn(perform(Arc::clone(&front), operation, body)).await {
            Ok(result) => result,
            Err(error) => Err(ApiError::internal(format!("the operation's task ended: {error}"))),
        },
    };
    result.unwrap_or_else(|error| error.into_response())
}

async fn perform(front: Arc<Front>, operation: SqsOperation, body: Bytes) -> Result<Response, ApiError> {
    match operation {
        SqsOperation::SendMessage => send::send(&front, &body).await,
        SqsOperation::SendMessageBatch => send::send_batch(&front, &body).await,
        SqsOperation::ReceiveMessage => receive::receive(&front, &body).await,
        SqsOperation::DeleteMessage => receive::delete(&front, &body).await,
        SqsOperation::DeleteMessageBatch => receive::delete_batch(&front, &body).await,
        SqsOperation::ChangeMessageVisibility => receive::change_visibility(&front, &body).await,
        SqsOperation::ChangeMessageVisibilityBatch => receive::change_visibility_batch(&front, &body).await,
        SqsOperation::CreateQueue => front.create_queue(&body).await,
        SqsOperation::DeleteQueue => front.delete_queue(&body).await,
        SqsOperation::PurgeQueue => front.purge_queue(&body).await,
        SqsOperation::GetQueueAttributes => front.get_queue_attributes(&body).await,
        SqsOperation::SetQueueAttributes => front.set_queue_attributes(&body).await,
        SqsOperation::GetQueueUrl
        | SqsOperation::ListQueues
        | SqsOperation::TagQueue
        | SqsOperation::UntagQueue
        | SqsOperation::ListQueueTags
        | SqsOperation::AddPermission
        | SqsOperation::RemovePermission => {
            Ok(dispatch_operation(&front.unchanged, operation, body).await?.map(axum::body::Body::new))
        }
        SqsOperation::ListDeadLetterSourceQueues
        | SqsOperation::StartMessageMoveTask
        | SqsOperation::CancelMessageMoveTask
        | SqsOperation::ListMessageMoveTasks => Err(ApiError::unsupported(operation)),
    }
}

/// Wall-clock time: the journal's times must mean something to the next process.
fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}
