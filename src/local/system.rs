//! All of dormouse in one process: the embedded AWS, the HTTP front, the worker, and a demo tool server where none
//! is configured.
//!
//! There is one code path with Lambda: the router is the HTTP function's, the worker's handler is the worker
//! function's and gets the same `SqsEvent`. What differs is endpoints, and that everything starts and stops here.

use std::future::Future;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aws_config::SdkConfig;
use data_encoding::BASE32_NOPAD;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::aws::{EmbeddedAws, EmbeddedOptions, LocalError};
use super::demo::DemoServer;
use super::endpoints::{Endpoints, port_again, write_whole};
use super::interrupts::Interrupting;
use super::poll::poll_queue;
use crate::assembly::{self, Assembly, AssemblyError, Reach, Secrets};
use crate::config::{AgentConfig, AwsConfig, Config, DEFAULT_NAME, ModelConfig, ToolServerConfig};
use crate::http;
use crate::mcp::McpServers;
use crate::queue::InputSender;
use crate::rap::token::CallbackKeys;
use crate::slice::drain::Drain;
use crate::slice::relay::Relay;
use crate::slice::{Observer, Running, Runtime, records};
use crate::store::Store;

/// Time a batch has, below the input queue's visibility of 120 s: a slice is over before its message comes again.
const BATCH_TIME: Duration = Duration::from_secs(110);
/// The name under which the demo tool server is configured.
pub const DEMO_SERVER: &str = "demo";
/// The system prompt of the default agent where there is no configuration.
const DEFAULT_PROMPT: &str = "You are a helpful assistant. Be brief. Use tools when they help.";
/// Loopback, as it stands in addresses.
const LOOPBACK: &str = "127.0.0.1";
/// The file with the keys that sign callback addresses, in the directory.
const KEYS_FILE: &str = "callback-keys.json";
/// Random bytes of a new key.
const KEY_BYTES: usize = 32;
/// How long a directory may still be another process's: one that was just killed, or that only looks at it.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// Between two tries at the lock.
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// Where and how the system runs.
#[derive(Clone)]
pub struct LocalOptions {
    /// The directory of its files, made if absent.
    pub dir: PathBuf,
    /// Port of the HTTP front; none: the one of last time if it is free, else a free one.
    pub http_port: Option<u16>,
    /// Port of SQS; none: as with `http_port`.
    pub sqs_port: Option<u16>,
    /// Where tool servers reach the HTTP front, if not on this machine's loopback: the address of a tunnel.
    pub public_url: Option<String>,
    /// Agents, models and tool servers. Its `aws` section does not count here.
    pub config: Config,
    /// Who watches the slices.
    pub observer: Arc<dyn Observer>,
}

/// Why the system does not start.
#[derive(Debug, thiserror::Error)]
pub enum SystemError {
    /// The directory, a port, or an embedded service.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// The configuration.
    #[error(transparent)]
    Assembly(#[from] AssemblyError),
    /// The kept callback keys were damaged.
    #[error(
        "{} is damaged ({reason}); restore the file, or remove it and lose the results that \
         are still out", path.display()
    )]
    Keys {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file of the directory cannot be read or written.
    #[error("cannot use {} ({source}); mend its permissions, or choose another directory", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// A running system. [`LocalSystem::stop`] ends it in order; dropping it ends it as a crash would.
pub struct LocalSystem {
    aws: EmbeddedAws,
    endpoints: Endpoints,
    runtime: Arc<Runtime>,
    input: Arc<dyn InputSender>,
    /// Nobody is handed inputs or timers any more.
    stop_worker: watch::Sender<()>,
    worker: JoinHandle<()>,
    relay: JoinHandle<()>,
    drain: JoinHandle<()>,
    /// Callbacks are refused: only after the worker, whose last calls may be answered at once.
    stop_http: watch::Sender<()>,
    http: JoinHandle<()>,
    mcp: Arc<McpServers>,
    _demo: Option<DemoServer>,
}

impl LocalSystem {
    /// Starts everything and returns when it answers; queued inputs are worked on from then on.
    ///
    /// # Errors
    /// [`LocalError::DirInUse`] while another process has the directory; the others name what to mend.
    pub async fn start(options: LocalOptions) -> Result<Self, SystemError> {
        let LocalOptions { dir, http_port, sqs_port, public_url, mut config, observer } = options;
        let last = Endpoints::read(&dir);
        let again = |asked: Option<u16>, url: Option<&String>| {
            asked.unwrap_or_else(|| port_again(url.map(String::as_str)))
        };
        // The ports are looked at with each try: while the lock is somebody's, so are they.
        let aws = start_aws(|| EmbeddedOptions {
            dir: Some(dir.clone()),
            sqs_port: again(sqs_port, last.as_ref().map(|last| &last.sqs)),
            dynamodb_port: again(None, last.as_ref().map(|last| &last.dynamodb)),
            ..EmbeddedOptions::default()
        })
        .await?;
        let callback_keys = callback_keys(&dir.join(KEYS_FILE))?;
        let (listener, http_url) =
            bind("HTTP", again(http_port, last.as_ref().map(|last| &last.http))).await?;

        let last_demo = last.and_then(|last| last.demo);
        let demo = match config.tool_servers.is_empty() && config.mcp_servers.is_empty() {
            true => Some(start_demo(again(None, last_demo.as_ref())).await?),
            false => None,
        };
        add_defaults(&mut config, demo.as_ref());
        let endpoints = Endpoints {
            http: http_url,
            demo: demo.as_ref().map(|demo| demo.url().to_owned()),
            ..Endpoints::of(&aws)
        };
        // A tunnel makes the whole of the front reachable.
        let reach = if public_url.is_some() { Reach::Network } else { Reach::Loopback };
        let in_aws = config.http.tokens_secret.is_some()
            || config.webhook_secrets.values().any(|secret| secret.secret.is_some());
        // The user's own account, where something of it is named.
        let account = match in_aws {
            true => aws_config::load_from_env().await,
            false => SdkConfig::builder().build(),
        };
        let access = assembly::access(&config, &account, reach).await?;
        let webhooks = assembly::webhook_secrets(&config, &account).await;
        config.aws = AwsConfig {
            table: endpoints.table.clone(),
            input_queue_url: endpoints.input_queue.clone(),
            output_queue_url: Some(endpoints.output_queue.clone()),
            dead_letter_queue_url: Some(endpoints.dead_letter_queue.clone()),
            delay_queue_url: Some(aws.delay_queue_url()),
            scheduler: None,
            callback_base_url: public_url.unwrap_or_else(|| endpoints.http.clone()),
            callback_keys_secret: None,
            callback_keys_env: None,
        };
        let secrets = Secrets { callback_keys, model_keys: model_keys(&config).await };
        let clients = endpoints.clients();
        let Assembly { runtime, http: mut deps, mcp, relay } =
            assembly::assemble(Arc::new(config), &clients, &secrets, Vec::new(), observer)?;
        (deps.access, deps.webhooks) = (access, webhooks);
        let running = Running::default();
        let input: Arc<dyn InputSender> = Arc::new(Interrupting {
            inner: runtime.input.clone(),
            running: running.clone(),
            store: runtime.store.clone(),
        });
        deps.callback.sender = input.clone();
        if demo.is_some() && endpoints.demo != last_demo {
            forget_demo(&runtime).await;
        }
        mcp.answer_lost_calls().await;

        let (stop_http, http_stopped) = watch::channel(());
        let http = tokio::spawn(async move {
            let serving = axum::serve(listener, http::router(deps));
            if let Err(error) = serving.with_graceful_shutdown(stopped(http_stopped)).await {
                tracing::error!(%error, "the HTTP front has stopped");
            }
        });
        endpoints.write(&dir).map_err(|source| SystemError::File { path: dir.clone(), source })?;
        let runtime = Arc::new(runtime);
        let (stop_worker, worker_stopped) = watch::channel(());
        // The worker polls with a client of its own: the assembly's gives up on a request long before a long poll
        // is over.
        let polling = aws.sqs_client();
        let worker = tokio::spawn(work(
            runtime.clone(),
            running,
            polling.clone(),
            endpoints.input_queue.clone(),
            worker_stopped.clone(),
        ));
        let relay =
            tokio::spawn(forward(relay, polling.clone(), aws.delay_queue_url(), worker_stopped.clone()));
        let drain =
            tokio::spawn(drain(&runtime, polling, endpoints.dead_letter_queue.clone(), worker_stopped));
        Ok(Self {
            aws,
            endpoints,
            runtime,
            input,
            stop_worker,
            worker,
            relay,
            drain,
            stop_http,
            http,
            mcp,
            _demo: demo,
        })
    }

    /// Where it is.
    pub fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// Its store.
    pub fn store(&self) -> Arc<dyn Store> {
        self.runtime.store.clone()
    }

    /// Its input queue. A user's text that is sent through it ends the response that runs.
    pub fn input(&self) -> Arc<dyn InputSender> {
        self.input.clone()
    }

    /// Takes no more inputs, lets running slices finish for a moment, and returns when the directory is free.
    /// What did not finish is done again at the next start.
    pub async fn stop(self) {
        drop(self.stop_worker);
        let (worker, relay, drain) = tokio::join!(self.worker, self.relay, self.drain);
        self.mcp.close().await;
        drop(self.stop_http);
        let http = self.http.await;
        if [worker, relay, drain, http].iter().any(Result::is_err) {
            tracing::error!("a part of dormouse ended with a panic");
        }
        self.aws.stop().await;
    }
}

/// Resolves when the sender is gone.
async fn stopped(mut stop: watch::Receiver<()>) {
    while stop.changed().await.is_ok() {}
}

/// The worker function's handler on the embedded queue.
fn work(
    runtime: Arc<Runtime>,
    running: Running,
    client: aws_sdk_sqs::Client,
    queue_url: String,
    stop: watch::Receiver<()>,
) -> impl Future<Output = ()> {
    let handler = move |event| {
        let (runtime, running) = (runtime.clone(), running.clone());
        async move {
            let deadline = Instant::now() + BATCH_TIME;
            records::process_records_among(&runtime, event, deadline, &running).await
        }
    };
    poll_queue(client, queue_url, handler, stopped(stop))
}

/// The worker function's other handler, on the embedded delay queue.
async fn forward(
    relay: Option<Relay>,
    client: aws_sdk_sqs::Client,
    queue_url: String,
    stop: watch::Receiver<()>,
) {
    let Some(relay) = relay else { return };
    let handler = move |event| {
        let relay = relay.clone();
        async move { relay.process_records(event).await }
    };
    poll_queue(client, queue_url, handler, stopped(stop)).await;
}

/// The drain function's handler on the embedded dead-letter queue.
fn drain(
    runtime: &Runtime,
    client: aws_sdk_sqs::Client,
    queue_url: String,
    stop: watch::Receiver<()>,
) -> impl Future<Output = ()> + use<> {
    let drain =
        Drain { store: runtime.store.clone(), input: runtime.input.clone(), clock: runtime.clock.clone() };
    let handler = move |event| {
        let drain = drain.clone();
        async move { drain.process_records(event).await }
    };
    poll_queue(client, queue_url, handler, stopped(stop))
}

/// Starts the embedded AWS on a directory that may be another process's for a moment.
pub async fn start_aws(options: impl Fn() -> EmbeddedOptions) -> Result<EmbeddedAws, LocalError> {
    let give_up = Instant::now() + LOCK_PATIENCE;
    loop {
        match EmbeddedAws::start(options()).await {
            Err(LocalError::DirInUse { .. }) if Instant::now() < give_up => {
                tokio::time::sleep(LOCK_PAUSE).await;
            }
            started => return started,
        }
    }
}

async fn bind(name: &'static str, port: u16) -> Result<(TcpListener, String), SystemError> {
    let port_error = |source| LocalError::Port { name, port, source };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.map_err(port_error)?;
    let url = format!("http://{}", listener.local_addr().map_err(port_error)?);
    Ok((listener, url))
}

async fn start_demo(port: u16) -> Result<DemoServer, SystemError> {
    let name = "the demo tool server";
    DemoServer::start(port).await.map_err(|source| LocalError::Port { name, port, source }.into())
}

/// Its manifest is kept in the table and names its old address: without this, calls would go there for minutes.
async fn forget_demo(runtime: &Runtime) {
    if let Err(error) = runtime.store.put_manifest(DEMO_SERVER, "{}", 0).await {
        tracing::warn!(%error, "the demo's old manifest is still in use for some minutes");
    }
}

/// What makes an empty configuration answer: a scripted model, a prompt, the demo's tools.
fn add_defaults(config: &mut Config, demo: Option<&DemoServer>) {
    if let Some(demo) = demo {
        let server = ToolServerConfig { url: demo.url().to_owned(), ..ToolServerConfig::default() };
        config.tool_servers.insert(DEMO_SERVER.to_owned(), server);
        if !config.allow_http_hosts.iter().any(|host| host == LOOPBACK) {
            config.allow_http_hosts.push(LOOPBACK.to_owned());
        }
    }
    config.models.entry(DEFAULT_NAME.to_owned()).or_insert_with(|| ModelConfig::from_spec("scripted"));
    config.agents.entry(config.default_agent.clone()).or_insert_with(|| AgentConfig {
        system_prompt: Some(DEFAULT_PROMPT.to_owned()),
        ..AgentConfig::default()
    });
}

/// Keys of models that are kept as secrets in the user's own AWS account.
async fn model_keys(config: &Config) -> std::collections::BTreeMap<String, Result<String, String>> {
    if config.models.values().all(|model| model.api_key_secret.is_none()) {
        return std::collections::BTreeMap::new();
    }
    Secrets::model_keys(config, &aws_config::load_from_env().await).await
}

/// The keys that sign callback addresses: made once, because addresses handed out must stay valid.
fn callback_keys(path: &Path) -> Result<CallbackKeys, SystemError> {
    let file_error = |source| SystemError::File { path: path.to_owned(), source };
    let json = match std::fs::read_to_string(path) {
        Ok(json) => json,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let key = BASE32_NOPAD.encode(&rand::random::<[u8; KEY_BYTES]>()).to_ascii_lowercase();
            let json = json!({ "active": "k1", "k1": key }).to_string();
            write_whole(path, &json).map_err(file_error)?;
            json
        }
        Err(error) => return Err(file_error(error)),
    };
    CallbackKeys::from_json(&json)
        .map_err(|e| SystemError::Keys { path: path.to_owned(), reason: e.to_string() })
}
