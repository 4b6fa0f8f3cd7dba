//! One server's session: made when it is first needed, kept for the process's lifetime, made anew when it is gone.
//!
//! Over HTTP, rmcp itself starts a new session where the server has forgotten the old one (404). A process over stdio
//! is started again when it has died; how often is bounded.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rmcp::handler::client::ClientHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities, ClientConfig,
    Implementation, JsonObject, ListToolsResult, PaginatedRequestParams,
};
use rmcp::service::{NotificationContext, RoleClient, RunningService, ServiceError, ServiceExt};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::common::client_side_sse::ExponentialBackoff;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::failure::Failure;
use super::http::HttpClient;
use super::result::MAX_RESULT_BYTES;
use crate::config::McpServerConfig;

/// One call, where the server's configuration gives no time.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// One call in the background, where the server's configuration gives no time.
const DEFAULT_BACKGROUND_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// Making a session over HTTP.
const HTTP_START: Duration = Duration::from_secs(10);
/// Starting a process, which may have much to load, and making a session with it.
const STDIO_START: Duration = Duration::from_secs(30);
/// Ending a session.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(8);
/// Looks at whether a session is let go of that is to end, and the pause between two.
const CLOSE_LOOKS: usize = 50;
const CLOSE_PAUSE: Duration = Duration::from_millis(20);
/// Sessions that may be made within [`STARTS_WINDOW`], over HTTP and as processes: a server that dies again and again
/// is left in peace.
const MAX_HTTP_STARTS: usize = 30;
const MAX_STDIO_STARTS: usize = 5;
/// See [`MAX_STDIO_STARTS`].
const STARTS_WINDOW: Duration = Duration::from_secs(60);
/// Timeouts in a row after which a session is made anew: what holds it up may end with it. A process loses more by that
/// than a session over HTTP does.
const MAX_HTTP_TIMEOUTS: u32 = 1;
const MAX_STDIO_TIMEOUTS: u32 = 3;
/// Requests that one session may have under way over HTTP.
const MAX_REQUESTS: usize = 64;
/// Tries to open a broken stream of notifications again, and the longest wait between two.
const MAX_REOPENS: usize = 8;
const MAX_REOPEN_WAIT: Duration = Duration::from_secs(30);
/// Bytes of one message: a result in JSON and base64 with room for its envelope.
const MAX_MESSAGE_BYTES: usize = 2 * MAX_RESULT_BYTES;

/// A configured server and the session with it.
pub(super) struct Connection {
    server: String,
    settings: McpServerConfig,
    http: HttpClient,
    /// Held while a session is made, so that it is made once.
    slot: Mutex<Slot>,
    changed: Arc<AtomicBool>,
}

#[derive(Default)]
struct Slot {
    session: Option<Arc<Session>>,
    starts: VecDeque<Instant>,
    closed: bool,
}

struct Session {
    service: RunningService<RoleClient, Client>,
    /// In a row.
    timeouts: AtomicU32,
    max_timeouts: u32,
    spoiled: AtomicBool,
}

/// dormouse as the server sees it: no sampling, no elicitation, no roots.
struct Client {
    changed: Arc<AtomicBool>,
}

impl ClientHandler for Client {
    fn get_info(&self) -> ClientConfig {
        let implementation = Implementation::new("dormouse", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), implementation)
    }

    async fn on_tool_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.changed.store(true, Ordering::SeqCst);
    }
}

impl Connection {
    pub fn new(server: &str, settings: McpServerConfig, http: reqwest::Client) -> Self {
        Self {
            server: server.to_owned(),
            settings,
            http: HttpClient(http),
            slot: Mutex::default(),
            changed: Arc::default(),
        }
    }

    /// The server's name in the configuration.
    pub fn server(&self) -> &str {
        &self.server
    }

    pub fn settings(&self) -> &McpServerConfig {
        &self.settings
    }

    /// The time of one call.
    pub fn call_timeout(&self) -> Duration {
        match self.settings.timeout_ms {
            Some(ms) => Duration::from_millis(ms),
            None if self.settings.background => DEFAULT_BACKGROUND_TIMEOUT,
            None => DEFAULT_TIMEOUT,
        }
    }

    /// The time of making a session.
    fn start_timeout(&self) -> Duration {
        if self.settings.command.is_some() { STDIO_START } else { HTTP_START }
    }

    /// Whether the server has said, since this was last asked, that its tools have changed.
    pub fn take_changed(&self) -> bool {
        self.changed.swap(false, Ordering::SeqCst)
    }

    /// Calls a tool by the server's own name for it. All of it takes no longer than [`Self::call_timeout`]; an
    /// unanswered call is cancelled, also when this future is dropped.
    pub async fn call(&self, tool: &str, arguments: JsonObject) -> Result<CallToolResult, Failure> {
        let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        let (session, limit) = self.begin(self.call_timeout()).await?;
        let response = timeout(limit, session.service.call_tool_once(params)).await;
        let response = session.judge(response.map_err(|_| self.call_timeout()))?;
        match response {
            CallToolResponse::Complete(result) => Ok(result),
            CallToolResponse::InputRequired(_) => Err(Failure::Unsupported("to ask the user something")),
            CallToolResponse::Task(_) => Err(Failure::Unsupported("to be asked for the result later")),
            _ => Err(Failure::Unsupported("something of a newer version of MCP")),
        }
    }

    /// One page of the server's tools.
    pub async fn page(&self, cursor: Option<String>) -> Result<ListToolsResult, Failure> {
        let params = cursor.map(|cursor| PaginatedRequestParams::default().with_cursor(Some(cursor)));
        let (session, limit) = self.begin(self.start_timeout()).await?;
        let page = timeout(limit, session.service.list_tools(params)).await;
        session.judge(page.map_err(|_| self.start_timeout()))
    }

    /// Ends the session and, over stdio, the process; there is no other after it.
    pub async fn close(&self) {
        let session = {
            let mut slot = self.slot.lock().await;
            slot.closed = true;
            slot.session.take()
        };
        let Some(mut session) = session else { return };
        // Whoever still waits for an answer gets none, and lets go of the session.
        session.service.cancellation_token().cancel();
        for _ in 0..CLOSE_LOOKS {
            match Arc::try_unwrap(session) {
                Ok(mut session) => {
                    if !matches!(session.service.close_with_timeout(CLOSE_TIMEOUT).await, Ok(Some(_))) {
                        tracing::warn!(server = self.server, "the session did not end in time");
                    }
                    return;
                }
                Err(held) => session = held,
            }
            tokio::time::sleep(CLOSE_PAUSE).await;
        }
    }

    /// The session for a request that may take `limit`, and what is left of that.
    async fn begin(&self, limit: Duration) -> Result<(Arc<Session>, Duration), Failure> {
        let begun = Instant::now();
        match timeout(limit, self.session()).await {
            Ok(session) => Ok((session?, limit.saturating_sub(begun.elapsed()))),
            Err(_) => Err(Failure::NoSession("it did not start in time".to_owned())),
        }
    }

    /// The session; made if there is none that can be used. One that is put aside ends when its last request does.
    async fn session(&self) -> Result<Arc<Session>, Failure> {
        let mut slot = self.slot.lock().await;
        if slot.closed {
            return Err(Failure::NoSession("dormouse is stopping".to_owned()));
        }
        if let Some(session) = slot.session.as_ref().filter(|session| session.is_usable()) {
            return Ok(session.clone());
        }
        slot.session = None;
        let now = Instant::now();
        while slot.starts.front().is_some_and(|start| now.duration_since(*start) > STARTS_WINDOW) {
            slot.starts.pop_front();
        }
        let (max_starts, max_timeouts) = match self.settings.command {
            Some(_) => (MAX_STDIO_STARTS, MAX_STDIO_TIMEOUTS),
            None => (MAX_HTTP_STARTS, MAX_HTTP_TIMEOUTS),
        };
        if slot.starts.len() >= max_starts {
            let text = "it has ended too often and is left in peace for a minute";
            return Err(Failure::NoSession(text.to_owned()));
        }
        slot.starts.push_back(now);
        let started = timeout(self.start_timeout(), self.start()).await;
        let result =
            started.unwrap_or_else(|_| Err(Failure::NoSession("it did not start in time".to_owned())));
        tracing::info!(
            server = self.server,
            ms = now.elapsed().as_millis() as u64,
            ok = result.is_ok(),
            "MCP session"
        );
        let session = Arc::new(Session {
            service: result?,
            timeouts: AtomicU32::new(0),
            max_timeouts,
            spoiled: AtomicBool::new(false),
        });
        slot.session = Some(session.clone());
        Ok(session)
    }

    async fn start(&self) -> Result<RunningService<RoleClient, Client>, Failure> {
        let client = Client { changed: self.changed.clone() };
        match (&self.settings.url, &self.settings.command) {
            (Some(url), _) => {
                let transport =
                    StreamableHttpClientTransport::with_client(self.http.clone(), self.http_settings(url)?);
                Ok(client.serve(transport).await?)
            }
            (None, Some(command)) => self.start_process(client, command).await,
            (None, None) => Err(Failure::NoSession("it has neither url nor command".to_owned())),
        }
    }

    fn http_settings(&self, url: &str) -> Result<StreamableHttpClientTransportConfig, Failure> {
        let mut reopen = ExponentialBackoff::default();
        (reopen.max_times, reopen.max_delay) = (Some(MAX_REOPENS), Some(MAX_REOPEN_WAIT));
        let mut settings = StreamableHttpClientTransportConfig::with_uri(url)
            .max_concurrent_requests(MAX_REQUESTS)
            .max_json_response_size(MAX_MESSAGE_BYTES)
            .max_sse_event_size(MAX_MESSAGE_BYTES);
        settings.retry_config = Arc::new(reopen);
        if let Some(name) = &self.settings.bearer_env {
            let token = std::env::var(name).map_err(|_| {
                Failure::NoSession(format!(
                    "the environment variable {name}, which is to hold its token, is not set"
                ))
            })?;
            settings = settings.auth_header(token);
        }
        Ok(settings)
    }

    #[cfg(feature = "local")]
    async fn start_process(
        &self,
        client: Client,
        command: &[String],
    ) -> Result<RunningService<RoleClient, Client>, Failure> {
        let process = super::process::start(&self.settings, command).map_err(|error| {
            // The program's name comes from the configuration; what the system says names nothing else.
            Failure::NoSession(format!("its process cannot be started ({})", error.kind()))
        })?;
        Ok(client.serve(process).await?)
    }

    #[cfg(not(feature = "local"))]
    async fn start_process(
        &self,
        _client: Client,
        _command: &[String],
    ) -> Result<RunningService<RoleClient, Client>, Failure> {
        Err(Failure::Unsupported("a process of its own"))
    }
}

impl Session {
    fn is_usable(&self) -> bool {
        !self.service.is_transport_closed()
            && self.timeouts.load(Ordering::SeqCst) < self.max_timeouts
            && !self.spoiled.load(Ordering::SeqCst)
    }

    /// What became of a request, and whether the session is to be put aside for it. The outer error is the time that
    /// ran out.
    fn judge<T>(&self, answer: Result<Result<T, ServiceError>, Duration>) -> Result<T, Failure> {
        let answer = answer.map_err(Failure::TimedOut).and_then(|answer| answer.map_err(Failure::from));
        match &answer {
            Err(Failure::TimedOut(_)) => {
                self.timeouts.fetch_add(1, Ordering::SeqCst);
            }
            Err(failure) if failure.spoils_the_session() => self.spoiled.store(true, Ordering::SeqCst),
            Ok(_) | Err(_) => self.timeouts.store(0, Ordering::SeqCst),
        }
        answer
    }
}
