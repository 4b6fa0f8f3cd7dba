//! Where a running dormouse is found: `endpoints.json` in its directory.
//!
//! The file stays when the process ends, because the next one takes the same ports if it can: the address of a
//! callback that is still to come must not change. Whether somebody is behind it is not in the file but in the
//! directory's lock, which ends with its process however that ends.

use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_sqs::config::{Credentials, SharedCredentialsProvider};
use serde::{Deserialize, Serialize};

use super::aws::{EmbeddedAws, REGION};
use crate::assembly::Clients;
use crate::queue::sqs;

/// The file, in the directory.
const ENDPOINTS_FILE: &str = "endpoints.json";
/// The embedded AWS locks this file.
const LOCK_FILE: &str = "lock";

/// Addresses of one local dormouse.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoints {
    /// The HTTP front: callbacks.
    pub http: String,
    /// The endpoint of SQS.
    pub sqs: String,
    /// The endpoint of DynamoDB.
    pub dynamodb: String,
    /// URL of the FIFO queue of inputs.
    pub input_queue: String,
    /// URL of the queue of replies.
    pub output_queue: String,
    /// URL of the FIFO queue of what can never be processed.
    pub dead_letter_queue: String,
    /// The table.
    pub table: String,
    /// The demo tool server, where it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub demo: Option<String>,
}

impl Endpoints {
    /// Those of the embedded AWS alone, without an HTTP front.
    pub fn of(aws: &EmbeddedAws) -> Self {
        Self {
            http: String::new(),
            sqs: aws.sqs_url(),
            dynamodb: aws.dynamodb_url(),
            input_queue: aws.input_queue_url(),
            output_queue: aws.output_queue_url(),
            dead_letter_queue: aws.dead_letter_queue_url(),
            table: aws.table().to_owned(),
            demo: None,
        }
    }

    /// What the last process on `dir` has left, if it is readable.
    pub fn read(dir: &Path) -> Option<Self> {
        serde_json::from_str(&std::fs::read_to_string(dir.join(ENDPOINTS_FILE)).ok()?).ok()
    }

    /// Replaces the file as a whole: a reader sees the old one or the new one.
    pub(super) fn write(&self, dir: &Path) -> io::Result<()> {
        write_whole(&dir.join(ENDPOINTS_FILE), &serde_json::to_string_pretty(self)?)
    }

    /// Clients of the embedded DynamoDB and SQS.
    pub fn clients(&self) -> Clients {
        Clients {
            dynamodb: aws_sdk_dynamodb::Client::new(&sdk_config(&self.dynamodb)),
            sqs: sqs::client(&sdk_config(&self.sqs)),
            scheduler: None,
        }
    }
}

/// Whether a process has `dir`. A directory that is not there, or without a lock, is nobody's.
pub fn is_in_use(dir: &Path) -> bool {
    let Ok(lock) = File::options().write(true).open(dir.join(LOCK_FILE)) else { return false };
    matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock))
}

/// The port of `url` if nobody has it now, else 0, which takes a free one.
pub(super) fn port_again(url: Option<&str>) -> u16 {
    let port = url.and_then(|url| url::Url::parse(url).ok()?.port()).unwrap_or(0);
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_or(0, |_| port)
}

/// Writes a file that only its owner may read, so that no reader and no crash ever sees a part of it.
pub(super) fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let unfinished = path.with_extension("tmp");
    let mut options = File::options();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&unfinished)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&unfinished, path)
}

/// Signatures are not checked, but the SDK sends no request without credentials.
fn sdk_config(endpoint: &str) -> SdkConfig {
    let credentials = Credentials::new("local", "local", None, None, "embedded");
    SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new(REGION))
        .endpoint_url(endpoint)
        .credentials_provider(SharedCredentialsProvider::new(credentials))
        .build()
}
