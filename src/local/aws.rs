//! The embedded AWS: DynamoDB and SQS of one dormouse, started and stopped together.
//!
//! Job: own the directory (one process at a time), start both services on loopback, know the names of the queues and
//! their attributes, hand out URLs and clients. The services themselves are in `dynamo` and `sqs`.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_sqs::config::{Credentials, SharedCredentialsProvider};
use serde_json::json;

use super::journal::QueueSpec;
use super::server::ServerThread;
use super::sqs;

/// The region the services say they are in.
pub const REGION: &str = "us-east-1";
/// The account in ARNs and queue URLs.
pub const ACCOUNT_ID: &str = "000000000000";
/// The FIFO queue of inputs.
pub const INPUT_QUEUE: &str = "dormouse-input.fifo";
/// The standard queue of events for whoever watches.
pub const OUTPUT_QUEUE: &str = "dormouse-output";
/// Where inputs end that were received too often.
pub const DEAD_LETTER_QUEUE: &str = "dormouse-dead-letter.fifo";
/// The standard queue of timers.
pub const DELAY_QUEUE: &str = "dormouse-delay";

/// Visibility of an input: the worker's timeout with a margin, as the template sets it.
const INPUT_VISIBILITY_SECONDS: u32 = 120;
/// Deliveries before the queue gives up on an input. dormouse gives up much earlier, by itself.
const MAX_RECEIVE_COUNT: u32 = 100;
/// How long inputs and dead letters are kept: 14 days, AWS's maximum, shorter than a deduplication row lives.
const RETENTION_SECONDS: u32 = 14 * 24 * 60 * 60;
/// The default name of the table.
const DEFAULT_TABLE: &str = "dormouse";

const LOCK_FILE: &str = "lock";
const DYNAMODB_FILE: &str = "dynamodb.db";
const JOURNAL_FILE: &str = "queue.db";

/// Where and how the embedded AWS runs.
#[derive(Clone, Debug)]
pub struct EmbeddedOptions {
    /// The directory of its files, made if absent. `None` keeps everything in memory, for tests.
    pub dir: Option<PathBuf>,
    /// Port of SQS on loopback; 0 takes a free one.
    pub sqs_port: u16,
    /// Port of DynamoDB on loopback; 0 takes a free one.
    pub dynamodb_port: u16,
    /// Name of the table, made if absent.
    pub table: String,
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        Self { dir: None, sqs_port: 0, dynamodb_port: 0, table: DEFAULT_TABLE.to_owned() }
    }
}

/// Why the embedded AWS does not start.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// Another process has the directory.
    #[error("{} is in use by another dormouse; stop that one, or choose another directory", dir.display())]
    DirInUse {
        /// The directory.
        dir: PathBuf,
    },
    /// The directory cannot be made or locked.
    #[error("cannot use {} ({source}); choose a directory on a local disk that this user may write to", dir.display())]
    Dir {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// SQLite takes its path as UTF-8.
    #[error("the path {} is not UTF-8; choose a directory whose path is", dir.display())]
    DirNotUtf8 {
        /// The path.
        dir: PathBuf,
    },
    /// The port cannot be bound.
    #[error(
        "{name} cannot listen on 127.0.0.1:{port} ({source}); free the port, or set another (0 takes a free one)"
    )]
    Port {
        /// Which server.
        name: &'static str,
        /// The port asked for.
        port: u16,
        /// What the system said.
        source: io::Error,
    },
    /// The operating system gave no thread or runtime.
    #[error("{name} got no thread from the system ({source}); look at its limits")]
    Thread {
        /// Which server.
        name: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The server's thread ended before it was ready.
    #[error("{name} ended while it started; its panic is in the log above")]
    Died {
        /// Which server.
        name: &'static str,
    },
    /// The embedded DynamoDB refused.
    #[error(
        "the embedded DynamoDB cannot start ({reason}); if its file is damaged, restore it or move it away"
    )]
    DynamoDb {
        /// What it said.
        reason: String,
    },
    /// The embedded SQS refused.
    #[error("the embedded SQS cannot start: {reason}")]
    Sqs {
        /// What it said.
        reason: String,
    },
}

/// The running services. Dropping it stops them without waiting; [`EmbeddedAws::stop`] waits.
#[derive(Debug)]
pub struct EmbeddedAws {
    dynamodb: ServerThread,
    sqs: ServerThread,
    table: String,
    _lock: Option<Arc<File>>,
}

impl EmbeddedAws {
    /// Starts both services and returns when they answer.
    ///
    /// Every message that was accepted and not deleted is queued again, under its old id, sequence number and receive
    /// count; messages that were in flight are visible at once.
    ///
    /// # Errors
    /// [`LocalError::DirInUse`] while another process (or another value in this one) has the directory; the lock is
    /// the operating system's and ends with the process, however that ends. The other variants say what to do.
    pub async fn start(options: EmbeddedOptions) -> Result<Self, LocalError> {
        let EmbeddedOptions { dir, sqs_port, dynamodb_port, table } = options;
        let lock = dir.as_deref().map(lock_dir).transpose()?.map(Arc::new);
        let file = |name: &str| dir.as_ref().map(|dir| dir.join(name));
        let dynamodb =
            super::dynamo::start(file(DYNAMODB_FILE), dynamodb_port, table.clone(), lock.clone()).await?;
        let sqs = match sqs::start(file(JOURNAL_FILE), sqs_port, queues(), lock.clone()).await {
            Ok(sqs) => sqs,
            Err(error) => {
                dynamodb.stop().await;
                return Err(error);
            }
        };
        tracing::debug!(dynamodb = dynamodb.url(), sqs = sqs.url(), "the embedded AWS is up");
        Ok(Self { dynamodb, sqs, table, _lock: lock })
    }

    /// Stops both services and returns when their files are closed and the directory is free again.
    ///
    /// Requests in flight get a moment to finish, long polls end at once and empty.
    pub async fn stop(self) {
        tokio::join!(self.sqs.stop(), self.dynamodb.stop());
    }

    /// Endpoint of DynamoDB, `http://127.0.0.1:port`.
    pub fn dynamodb_url(&self) -> String {
        self.dynamodb.url()
    }

    /// Endpoint of SQS, `http://127.0.0.1:port`.
    pub fn sqs_url(&self) -> String {
        self.sqs.url()
    }

    /// Name of the table.
    pub fn table(&self) -> &str {
        &self.table
    }

    /// URL of [`INPUT_QUEUE`].
    pub fn input_queue_url(&self) -> String {
        self.queue_url(INPUT_QUEUE)
    }

    /// URL of [`OUTPUT_QUEUE`].
    pub fn output_queue_url(&self) -> String {
        self.queue_url(OUTPUT_QUEUE)
    }

    /// URL of [`DEAD_LETTER_QUEUE`].
    pub fn dead_letter_queue_url(&self) -> String {
        self.queue_url(DEAD_LETTER_QUEUE)
    }

    /// URL of [`DELAY_QUEUE`].
    pub fn delay_queue_url(&self) -> String {
        self.queue_url(DELAY_QUEUE)
    }

    /// A DynamoDB client for this instance.
    pub fn dynamodb_client(&self) -> aws_sdk_dynamodb::Client {
        aws_sdk_dynamodb::Client::new(&sdk_config(self.dynamodb_url()))
    }

    /// An SQS client for this instance.
    pub fn sqs_client(&self) -> aws_sdk_sqs::Client {
        aws_sdk_sqs::Client::new(&sdk_config(self.sqs_url()))
    }

    fn queue_url(&self, name: &str) -> String {
        format!("{}/{ACCOUNT_ID}/{name}", self.sqs_url())
    }
}

/// Signatures are not checked, but the SDK will not send a request without credentials.
fn sdk_config(endpoint: String) -> SdkConfig {
    SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new(REGION))
        .endpoint_url(endpoint)
        .credentials_provider(SharedCredentialsProvider::new(Credentials::new(
            "local", "local", None, None, "embedded",
        )))
        .build()
}

/// Takes the directory for this process, or says who is in the way.
fn lock_dir(dir: &Path) -> Result<File, LocalError> {
    let dir_error = |source| LocalError::Dir { dir: dir.to_owned(), source };
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    // Conversations and callback keys are nobody else's business.
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir).map_err(dir_error)?;
    let lock = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(dir.join(LOCK_FILE))
        .map_err(dir_error)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(LocalError::DirInUse { dir: dir.to_owned() }),
        Err(TryLockError::Error(source)) => Err(dir_error(source)),
    }
}

/// dormouse's queues, as the template makes them on AWS.
fn queues() -> Vec<QueueSpec> {
    let redrive = json!({
        "deadLetterTargetArn": format!("arn:aws:sqs:{REGION}:{ACCOUNT_ID}:{DEAD_LETTER_QUEUE}"),
        "maxReceiveCount": MAX_RECEIVE_COUNT,
    });
    let fifo = [
        ("FifoQueue", "true".to_owned()),
        ("DeduplicationScope", "messageGroup".to_owned()),
        ("FifoThroughputLimit", "perMessageGroupId".to_owned()),
        ("MessageRetentionPeriod", RETENTION_SECONDS.to_string()),
    ];
    let input = fifo.iter().cloned().chain([
        ("VisibilityTimeout", INPUT_VISIBILITY_SECONDS.to_string()),
        ("RedrivePolicy", redrive.to_string()),
    ]);
    // The dead-letter queue comes first: a redrive policy must name a queue that exists.
    vec![
        QueueSpec::new(DEAD_LETTER_QUEUE, fifo.iter().cloned()),
        QueueSpec::new(INPUT_QUEUE, input),
        QueueSpec::new(DELAY_QUEUE, []),
        QueueSpec::new(OUTPUT_QUEUE, []),
    ]
}
