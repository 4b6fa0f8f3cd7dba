//! The store and the queue of a directory, for commands that look or queue: those of the process that has the
//! directory, or its files, opened for a moment; or those of a deployed stack.

use std::sync::Arc;
use std::time::Duration;

use dormouse::assembly::{self, Clients};
use dormouse::config::Config;
use dormouse::local::aws::{EmbeddedAws, EmbeddedOptions};
use dormouse::local::endpoints::{Endpoints, is_in_use};
use dormouse::local::system::start_aws;
use dormouse::queue::InputSender;
use dormouse::queue::sqs::SqsInput;
use dormouse::store::Store;
use dormouse::store::dynamodb::DynamoStore;
use tokio::time::Instant;

use super::args::Global;
use super::{CliError, setup};

/// How long a process that has the directory may take to start or to end.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks at it.
const PAUSE: Duration = Duration::from_millis(100);

/// Who has the directory.
enum Owner {
    /// Another process, which works the queue off.
    Running,
    /// This one, until [`Access::close`].
    Here(EmbeddedAws),
    /// A deployed stack.
    Deployed,
}

/// Store and queue of a directory or a stack.
pub struct Access {
    owner: Owner,
    /// Everything stored.
    pub store: Arc<dyn Store>,
    /// The same, for what an operator does to it.
    pub archive: DynamoStore,
    /// The input queue.
    pub input: SqsInput,
    sqs: aws_sdk_sqs::Client,
    input_queue: String,
}

impl Access {
    /// Finds the running process, or opens the files of the directory, which is made if absent; the deployed stack
    /// with `--aws`.
    pub async fn open(global: &Global) -> Result<Self, CliError> {
        if global.aws {
            return Self::deployed(&setup::read(global)?).await;
        }
        let dir = global.dir.as_path();
        let give_up = Instant::now() + PATIENCE;
        while is_in_use(dir) {
            if let Some(endpoints) = Endpoints::read(dir) {
                let access = Self::new(Owner::Running, &endpoints);
                // The file may be of an earlier process, and this one still starting.
                if access.answers().await {
                    return Ok(access);
                }
            }
            if Instant::now() > give_up {
                return Err(CliError::Failed(format!(
                    "another dormouse has {} but does not answer; wait for it, or stop it",
                    dir.display()
                )));
            }
            tokio::time::sleep(PAUSE).await;
        }
        let dir = dir.to_owned();
        let aws =
            start_aws(|| EmbeddedOptions { dir: Some(dir.clone()), ..EmbeddedOptions::default() }).await?;
        let endpoints = Endpoints::of(&aws);
        Ok(Self::new(Owner::Here(aws), &endpoints))
    }

    /// The same for commands that only look: nothing is made where nothing is.
    pub async fn open_existing(global: &Global) -> Result<Option<Self>, CliError> {
        match global.aws || global.dir.is_dir() {
            true => Self::open(global).await.map(Some),
            false => Ok(None),
        }
    }

    /// With the credentials and the region of the environment.
    async fn deployed(config: &Config) -> Result<Self, CliError> {
        let clients = Clients::new(&aws_config::load_from_env().await);
        let (store, input) = assembly::store_and_input(config, &clients)
            .map_err(|e| CliError::Usage(format!("{e}; with --aws it is one of the stack's outputs")))?;
        let input_queue = config.aws.input_queue_url.clone();
        let archive = DynamoStore::new(clients.dynamodb.clone(), config.aws.table.clone());
        Ok(Self {
            owner: Owner::Deployed,
            store,
            archive,
            input: (*input).clone(),
            sqs: clients.sqs,
            input_queue,
        })
    }

    fn new(owner: Owner, endpoints: &Endpoints) -> Self {
        let clients = endpoints.clients();
        let archive = DynamoStore::new(clients.dynamodb, endpoints.table.clone());
        let store: Arc<dyn Store> = Arc::new(archive.clone());
        let input = SqsInput::new(clients.sqs.clone(), &endpoints.input_queue, store.clone());
        Self { owner, store, archive, input, sqs: clients.sqs, input_queue: endpoints.input_queue.clone() }
    }

    /// Whether another process works the queue off.
    pub fn is_running(&self) -> bool {
        matches!(self.owner, Owner::Running | Owner::Deployed)
    }

    /// Inputs that wait in the queue, of all threads; none if the queue does not say.
    pub async fn queued(&self) -> Option<u64> {
        use aws_sdk_sqs::types::QueueAttributeName as Name;
        let wanted = [Name::ApproximateNumberOfMessages, Name::ApproximateNumberOfMessagesNotVisible];
        let request = self.sqs.get_queue_attributes().queue_url(&self.input_queue);
        let answer = request.set_attribute_names(Some(wanted.to_vec())).send().await.ok()?;
        let attributes = answer.attributes?;
        wanted.iter().map(|name| attributes.get(name)?.parse::<u64>().ok()).sum()
    }

    /// Sends a text, and closes.
    pub async fn send(
        self,
        message: &dormouse::message::InputMessage,
        dedup: &dormouse::message::DedupId,
    ) -> Result<(), CliError> {
        let sent = self.input.send(message, dedup).await;
        self.close().await;
        Ok(sent?)
    }

    /// Leaves the directory as it was found.
    pub async fn close(self) {
        match self.owner {
            Owner::Running | Owner::Deployed => {}
            Owner::Here(aws) => aws.stop().await,
        }
    }

    async fn answers(&self) -> bool {
        self.queued().await.is_some()
    }
}
