//! Puts a process together from its configuration: clients, stores, queues, tools, agents. The Lambda functions
//! and local mode share it; they differ in endpoints and observers only.

use std::collections::BTreeMap;
use std::sync::Arc;

use aws_config::SdkConfig;

use crate::config::{Config, ConfigError, HttpAuth, ModelConfig};
use crate::http::auth::Tokens;
use crate::http::{Access, HttpDeps, WebhookSecrets};
use crate::mcp::McpServers;
use crate::model::{ErrorClass, ModelError};
use crate::queue::delay::SqsDelay;
use crate::queue::scheduler::{self, SchedulerTimers, Schedules};
use crate::queue::sqs::{SqsDeadLetters, SqsInput, SqsOutput, SqsRedelivery};
use crate::queue::{DeadLetters, OutputSender, QueueError, TimerSender};
use crate::rap::RapTools;
use crate::rap::callback::CallbackDeps;
use crate::rap::token::{CallbackKeys, CallbackTokens};
use crate::slice::drain::Drain;
use crate::slice::relay::Relay;
use crate::slice::{ConfiguredAgents, Limits, Observer, Runtime, SystemClock};
use crate::store::Store;
use crate::store::dynamodb::DynamoStore;
use crate::tools::{AgentTools, Tool};

/// What keeps a process from starting. Each says which setting to mend.
#[derive(Debug, thiserror::Error)]
pub enum AssemblyError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A secret cannot be read.
    #[error("the secret {arn} of `{field}` cannot be read: {reason}")]
    Secret {
        /// The field that names it.
        field: String,
        /// Which one.
        arn: String,
        /// Why.
        reason: String,
    },
    /// The callback keys are unusable.
    #[error("the callback keys are unusable: {0}")]
    Keys(String),
    /// The HTTP client cannot be made.
    #[error("the HTTP client cannot be made: {0}")]
    Http(String),
}

/// Clients of a process, made once.
#[derive(Clone)]
pub struct Clients {
    /// DynamoDB.
    pub dynamodb: aws_sdk_dynamodb::Client,
    /// SQS.
    pub sqs: aws_sdk_sqs::Client,
    /// EventBridge Scheduler, where there is one.
    pub scheduler: Option<aws_sdk_scheduler::Client>,
}

impl Clients {
    /// Clients of the environment's account, or of `AWS_ENDPOINT_URL`.
    pub fn new(shared: &SdkConfig) -> Self {
        Self {
            dynamodb: aws_sdk_dynamodb::Client::new(shared),
            sqs: crate::queue::sqs::client(shared),
            scheduler: Some(scheduler::client(shared)),
        }
    }
}

/// What is secret, read once at start.
#[derive(Clone)]
pub struct Secrets {
    /// Signs callback addresses.
    pub callback_keys: CallbackKeys,
    /// Model keys by the ARN of their secret; an error is told when the model is asked.
    pub model_keys: BTreeMap<String, Result<String, String>>,
}

impl Secrets {
    /// Reads the callback keys, and the keys of all models if `with_models`.
    pub async fn read(
        config: &Config,
        shared: &SdkConfig,
        with_models: ModelKeys,
    ) -> Result<Self, AssemblyError> {
        let client = aws_sdk_secretsmanager::Client::new(shared);
        let json = match (&config.aws.callback_keys_secret, &config.aws.callback_keys_env) {
            (Some(arn), _) => secret(&client, arn).await.map_err(|reason| AssemblyError::Secret {
                field: "aws.callback_keys_secret".to_owned(),
                arn: arn.clone(),
                reason,
            })?,
            (None, Some(name)) => std::env::var(name).map_err(|_| {
                ConfigError::field("aws.callback_keys_env", format!("the variable {name} is not set"))
            })?,
            (None, None) => {
                return Err(ConfigError::field(
                    "aws.callback_keys_secret",
                    "is missing, and so is aws.callback_keys_env; callbacks cannot be signed",
                )
                .into());
            }
        };
        let model_keys = match with_models {
            ModelKeys::Read => Self::model_keys(config, shared).await,
            ModelKeys::Leave => BTreeMap::new(),
        };
        Ok(Self { callback_keys: keys(&json)?, model_keys })
    }

    /// Reads the keys of all models that name a secret, by its ARN.
    pub async fn model_keys(config: &Config, shared: &SdkConfig) -> BTreeMap<String, Result<String, String>> {
        let client = aws_sdk_secretsmanager::Client::new(shared);
        let mut keys = BTreeMap::new();
        for arn in config.models.values().filter_map(|model| model.api_key_secret.as_ref()) {
            keys.insert(arn.clone(), secret(&client, arn).await);
        }
        keys
    }

    /// The key of a model, as far as it comes from a secret.
    fn model_key(&self, model: &ModelConfig) -> Result<Option<String>, ModelError> {
        let Some(arn) = &model.api_key_secret else { return Ok(None) };
        match self.model_keys.get(arn) {
            Some(Ok(key)) => Ok(Some(key.clone())),
            Some(Err(reason)) => Err(ModelError::new(
                ErrorClass::Fatal,
                format!("the secret of `api_key_secret` cannot be read: {reason}"),
            )),
            None => Err(ModelError::new(ErrorClass::Fatal, "the secret of `api_key_secret` was not read")),
        }
    }
}

/// What a function behind an address of AWS serves: the same for all of them, which routes it serves apart. Its connections are
/// open, and who may ask is decided.
///
/// # Errors
/// As [`assemble`] and [`access`]; a secret that cannot be read.
pub async fn http_function(config: Arc<Config>, shared: &SdkConfig) -> Result<HttpDeps, AssemblyError> {
    let clients = Clients::new(shared);
    let secrets = Secrets::read(&config, shared, ModelKeys::Leave).await?;
    let observer = Arc::new(crate::slice::NoObserver);
    let mut assembly = assemble(config.clone(), &clients, &secrets, Vec::new(), observer)?;
    assembly.http.access = access(&config, shared, Reach::Network).await?;
    warm_up(&assembly.runtime, &clients, &config).await;
    Ok(assembly.http)
}

/// Whether a process asks models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelKeys {
    /// The worker does.
    Read,
    /// The HTTP front does not, and has no right to their keys.
    Leave,
}

/// Parses callback keys.
pub fn keys(json: &str) -> Result<CallbackKeys, AssemblyError> {
    CallbackKeys::from_json(json).map_err(|e| AssemblyError::Keys(e.to_string()))
}

/// Where the HTTP front can be reached from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// This machine alone.
    Loopback,
    /// Other machines.
    Network,
}

/// Who may use the thread routes, by the configuration.
///
/// # Errors
/// Tokens that cannot be read or are too weak, or no authentication where others can reach the routes.
pub async fn access(config: &Config, shared: &SdkConfig, reach: Reach) -> Result<Access, AssemblyError> {
    let http = &config.http;
    match (http.auth, reach) {
        (None | Some(HttpAuth::None), Reach::Loopback) => return Ok(Access::Loopback),
        (None, Reach::Network) => return Ok(Access::Closed),
        (Some(HttpAuth::None), Reach::Network) => {
            let problem = "is \"none\", but others can reach this address; leave it out, or set \"bearer\"";
            return Err(ConfigError::field("http.auth", problem).into());
        }
        (Some(HttpAuth::Iam), Reach::Loopback) => {
            let problem = "is \"iam\", but only a function URL of AWS checks signatures";
            return Err(ConfigError::field("http.auth", problem).into());
        }
        (Some(HttpAuth::Iam), Reach::Network) => return Ok(Access::Iam),
        (Some(HttpAuth::Bearer), Reach::Loopback | Reach::Network) => {}
    }
    let (field, json) = match (&http.tokens_secret, &http.tokens_env) {
        (Some(arn), _) => {
            let field = "http.tokens_secret";
            let read = secret(&aws_sdk_secretsmanager::Client::new(shared), arn).await;
            let error = |reason| AssemblyError::Secret { field: field.to_owned(), arn: arn.clone(), reason };
            (field, read.map_err(error)?)
        }
        (None, Some(name)) => {
            let field = "http.tokens_env";
            let unset = |_| ConfigError::field(field, format!("the variable {name} is not set"));
            (field, std::env::var(name).map_err(unset)?)
        }
        (None, None) => {
            return Err(
                ConfigError::field("http.tokens_secret", "is missing, and so is http.tokens_env").into()
            );
        }
    };
    let tokens = Tokens::from_json(&json).map_err(|problem| ConfigError::field(field, problem))?;
    Ok(Access::Bearer(tokens))
}

/// The secrets that webhooks are signed with. One that cannot be read refuses what needs it; the rest of the front
/// works.
pub async fn webhook_secrets(config: &Config, shared: &SdkConfig) -> WebhookSecrets {
    let mut secrets = WebhookSecrets::default();
    for (name, from) in &config.webhook_secrets {
        let read = match (&from.env, &from.secret) {
            (Some(variable), _) => {
                std::env::var(variable).map_err(|_| format!("the variable {variable} is not set"))
            }
            (None, Some(arn)) => secret(&aws_sdk_secretsmanager::Client::new(shared), arn).await,
            (None, None) => Err("it is no reference".to_owned()),
        };
        if let Err(reason) = &read {
            tracing::error!(name, reason, "the secret of a webhook cannot be read; what it signs is refused");
        }
        let header = from.header.as_ref().and_then(|header| header.parse().ok());
        secrets = secrets.with(name, read.ok(), header);
    }
    secrets
}

async fn secret(client: &aws_sdk_secretsmanager::Client, arn: &str) -> Result<String, String> {
    use aws_sdk_secretsmanager::error::ProvideErrorMetadata;
    let value = client.get_secret_value().secret_id(arn).send().await;
    let value = value.map_err(|e| e.code().unwrap_or("no answer").to_owned())?;
    value.secret_string().map(str::to_owned).ok_or_else(|| "it holds no text".to_owned())
}

/// The parts of a process that speak to the outside.
pub struct Assembly {
    /// For slices.
    pub runtime: Runtime,
    /// For the router. Its thread routes are closed until [`access`] says who may use them, and webhooks that are signed
    /// are refused until [`webhook_secrets`] are there.
    pub http: HttpDeps,
    /// To be closed at the end, where there is one.
    pub mcp: Arc<McpServers>,
    /// For the delay queue, where there is one.
    pub relay: Option<Relay>,
}

/// Assembles a process.
///
/// # Errors
/// A field of `config` that is missing or makes no sense.
pub fn assemble(
    config: Arc<Config>,
    clients: &Clients,
    secrets: &Secrets,
    builtins: Vec<Arc<dyn Tool>>,
    observer: Arc<dyn Observer>,
) -> Result<Assembly, AssemblyError> {
    let aws = &config.aws;
    let (store, input) = store_and_input(&config, clients)?;
    if aws.callback_base_url.is_empty() {
        return Err(ConfigError::field("aws.callback_base_url", "is missing").into());
    }
    let output: Arc<dyn OutputSender> = match &aws.output_queue_url {
        Some(url) => Arc::new(SqsOutput::new(clients.sqs.clone(), url)),
        None => Arc::new(NoOutput),
    };
    let dead_letters: Arc<dyn DeadLetters> = match &aws.dead_letter_queue_url {
        Some(url) => Arc::new(SqsDeadLetters::new(clients.sqs.clone(), url, store.clone())),
        None => Arc::new(NoDeadLetters),
    };
    let tokens = CallbackTokens::new(secrets.callback_keys.clone(), &aws.callback_base_url);
    let http = crate::rap::http_client().map_err(|e| AssemblyError::Http(e.to_string()))?;
    let mcp = Arc::new(McpServers::new(&config, store.clone(), http.clone(), input.clone()));
    let delay = aws.delay_queue_url.as_ref().map(|url| SqsDelay::new(clients.sqs.clone(), url));
    let relay = aws.delay_queue_url.as_ref().zip(delay.clone()).map(|(url, delay)| Relay {
        queue_name: url.rsplit('/').next().unwrap_or_default().to_owned(),
        input: input.clone(),
        timers: Arc::new(delay),
        dead_letters: dead_letters.clone(),
        redelivery: Arc::new(SqsRedelivery::new(clients.sqs.clone(), url)),
        clock: Arc::new(SystemClock),
    });
    let timers = delay.map(|delay| timers(&config, clients, delay));
    let limited = config.tool_servers.iter().find_map(|(name, server)| {
        let (field, _) = server.limits().next()?;
        Some(format!("tool_servers.{name}.{field}"))
    });
    if let Some(field) = limited.filter(|_| timers.is_none()) {
        return Err(ConfigError::field(field, "needs `aws.delay_queue_url`, which is missing").into());
    }
    let rap = RapTools::new(config.clone(), store.clone(), tokens.clone(), http).with_timers(timers.clone());
    let waiting = crate::tools::builtin::waiting(timers);
    let webhooks =
        crate::tools::builtin::webhooks(tokens.clone(), config.webhook_secrets.keys().cloned().collect());
    let own = crate::tools::builtin::all(&store).into_iter().chain(waiting).chain([webhooks]);
    let builtins = own.chain(builtins).collect();
    let tools = AgentTools::new(config.clone(), builtins, vec![Arc::new(rap), mcp.clone()])
        .sharing(crate::tools::builtin::shared_state(&store));
    let agents = ConfiguredAgents::new(config.clone(), |model| {
        crate::model::provider(model, secrets.model_key(model)?)
    });
    let runtime = Runtime {
        agents: Arc::new(agents),
        tools: Arc::new(tools),
        input: input.clone(),
        output,
        dead_letters,
        redelivery: Arc::new(SqsRedelivery::new(clients.sqs.clone(), &aws.input_queue_url)),
        observer,
        clock: Arc::new(SystemClock),
        limits: Limits::default(),
        store: store.clone(),
    };
    let callback = CallbackDeps { store, sender: input, tokens, config };
    let http = HttpDeps { callback, access: Access::Closed, webhooks: WebhookSecrets::default() };
    Ok(Assembly { runtime, http, mcp, relay })
}

/// Timers over the delay queue, and over Scheduler where it is configured.
fn timers(config: &Config, clients: &Clients, delay: SqsDelay) -> Arc<dyn TimerSender> {
    match config.aws.scheduler.as_ref().zip(clients.scheduler.as_ref()) {
        Some((scheduler, client)) => {
            let schedules = Schedules {
                group: scheduler.group.clone(),
                role_arn: scheduler.role_arn.clone(),
                delay_queue_arn: scheduler.queue_arn.clone(),
                dead_letter_arn: scheduler.dead_letter_arn.clone(),
            };
            Arc::new(SchedulerTimers::new(delay, client.clone(), schedules))
        }
        None => Arc::new(delay),
    }
}

/// Store and input queue: all that somebody needs who only puts messages on the queue.
///
/// # Errors
/// A field of `config` that is missing.
pub fn store_and_input(
    config: &Config,
    clients: &Clients,
) -> Result<(Arc<dyn Store>, Arc<SqsInput>), ConfigError> {
    let aws = &config.aws;
    for (field, value) in [("aws.table", &aws.table), ("aws.input_queue_url", &aws.input_queue_url)] {
        if value.is_empty() {
            return Err(ConfigError::field(field, "is missing"));
        }
    }
    let store: Arc<dyn Store> = Arc::new(DynamoStore::new(clients.dynamodb.clone(), aws.table.clone()));
    let input = Arc::new(SqsInput::new(clients.sqs.clone(), &aws.input_queue_url, store.clone()));
    Ok((store, input))
}

/// Assembles the drain of the dead-letter queue.
///
/// # Errors
/// A field of `config` that is missing.
pub fn drain(config: &Config, clients: &Clients) -> Result<Drain, ConfigError> {
    let (store, input) = store_and_input(config, clients)?;
    Ok(Drain { store, input, clock: Arc::new(SystemClock) })
}

/// Opens the connections that the first invocation will need, while the function initialises. What fails here
/// fails again, and visibly, when it is needed.
pub async fn warm_up(runtime: &Runtime, clients: &Clients, config: &Config) {
    let thread = crate::message::ThreadId::from("warm-up");
    let queue = clients.sqs.get_queue_attributes().queue_url(&config.aws.input_queue_url).send();
    let (table, queue) = tokio::join!(runtime.store.meta(&thread), queue);
    tracing::debug!(table = table.is_ok(), queue = queue.is_ok(), "connections opened");
}

/// Nobody reads output: replies stay in the history.
struct NoOutput;

#[async_trait::async_trait]
impl OutputSender for NoOutput {
    async fn send(&self, _message: &crate::message::OutputMessage) -> Result<(), QueueError> {
        Ok(())
    }
}

/// No dead-letter queue is configured: what can never be processed is handed back for ever, never dropped.
struct NoDeadLetters;

#[async_trait::async_trait]
impl DeadLetters for NoDeadLetters {
    async fn keep(
        &self,
        _thread: &crate::message::ThreadId,
        _message_id: &str,
        _body: &str,
        _reason: &str,
    ) -> Result<(), QueueError> {
        Err(QueueError::Refused("`aws.dead_letter_queue_url` is not set".to_owned()))
    }
}
