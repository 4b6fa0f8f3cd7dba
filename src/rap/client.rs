//! Requests to tool servers: invocations and answers (retried), notices (not retried).
//!
//! No redirect is followed, no body of an answer is read, and no error names an address: the text of an error
//! goes to the model, and an address may hold a secret. A server's bearer token, or a signature for it, goes to its own
//! origin alone.

use std::sync::Arc;
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use reqwest::{Method, StatusCode};
use serde::Serialize;
use url::Url;

use super::signing::{Signer, SigningError};
use super::wire::{CancelToolCall, ChoiceAnswer, CloseThread, InvocationBody};
use crate::config::{Config, ToolServerConfig};
use crate::message::{CallId, ThreadId};
use crate::tools::ToolError;

/// Attempts of one invocation.
const ATTEMPTS: usize = 3;
/// The wait before the second attempt, at most doubled by jitter; each further wait is longer by
/// [`WAIT_FACTOR`].
const FIRST_WAIT: Duration = Duration::from_millis(200);
/// How waits grow.
const WAIT_FACTOR: f32 = 3.0;
/// One request, where the server's configuration gives no time.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_millis(10_000);
/// One notice: closing and cancelling wait for nobody.
pub const NOTICE_TIMEOUT: Duration = Duration::from_secs(2);
/// The type of every body.
const JSON: &str = "application/json";
/// Establishing a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The HTTP client that tool servers are to be spoken to with: it follows no redirects, since the target of one
/// was never checked against the configuration. Make one a process and share it.
pub fn http_client() -> Result<reqwest::Client, reqwest::Error> {
    reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .user_agent(concat!("dormouse/", env!("CARGO_PKG_VERSION")))
        .build()
}

/// Speaks to the tool servers of the configuration.
#[derive(Clone)]
pub struct RapClient {
    http: reqwest::Client,
    config: Arc<Config>,
    signer: Arc<Signer>,
}

/// How one request failed, in words that may be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestError {
    /// What happened: a status or a cause.
    pub cause: String,
    /// Whether the same request may succeed in a moment.
    pub passes: bool,
}

impl RapClient {
    /// A client over `http`, which should be [`http_client`].
    pub fn new(config: Arc<Config>, http: reqwest::Client) -> Self {
        Self { http, config, signer: Arc::default() }
    }

    /// Signs with `signer` instead of the credentials of the environment.
    pub fn with_signer(self, signer: Arc<Signer>) -> Self {
        Self { signer, ..self }
    }

    /// The configuration.
    pub fn config(&self) -> &Arc<Config> {
        &self.config
    }

    /// POSTs an invocation to `endpoint` of `server` until it is acknowledged: at most three attempts, all with
    /// the same body. Any 2xx is an acknowledgement.
    ///
    /// The error's text is for the model: the tool's name and a status or cause.
    pub async fn invoke(
        &self,
        server: &str,
        endpoint: &Url,
        invocation: &InvocationBody<'_>,
    ) -> Result<(), ToolError> {
        let tool = invocation.operation;
        let body = to_body(invocation).map_err(|e| ToolError::Failed(format!("{tool}: {e}")))?;
        let timeout = self.timeout(server);
        (|| self.post(Some(server), endpoint.clone(), body.clone(), timeout))
            .retry(waits())
            .when(|error| error.passes)
            .notify(|error, _| tracing::info!(server, tool, cause = error.cause, "invocation is tried again"))
            .await
            .map_err(|error| match error.passes {
                true => ToolError::Unavailable(format!(
                    "the tool {tool} could not be reached after {ATTEMPTS} attempts: {}",
                    error.cause
                )),
                false => ToolError::Failed(format!("the tool {tool} refused the call: {}", error.cause)),
            })
    }

    /// Tells `server` that nobody waits for `call` any more. One attempt; the outcome is only logged.
    pub async fn cancel_tool_call(&self, server: &str, thread: &ThreadId, call: &CallId) {
        let notice = CancelToolCall { thread_id: thread, tool_call_id: call };
        self.notify(server, "cancel_tool_call", &notice, thread).await;
    }

    /// Tells `server` that `thread` has closed. One attempt; the outcome is only logged.
    pub async fn close_thread(&self, server: &str, thread: &ThreadId) {
        self.notify(server, "close_thread", &CloseThread { thread_id: thread }, thread).await;
    }

    /// POSTs the user's answer to a choice. `response_url` was checked when the choice came in and is checked
    /// again here, since the configuration may have changed. At most three attempts, all with the same body.
    pub async fn answer_choice(
        &self,
        response_url: &str,
        choice: &CallId,
        selected: usize,
    ) -> Result<(), ToolError> {
        let failed = |cause: String| ToolError::Failed(format!("the answer could not be delivered: {cause}"));
        let url = may_answer(&self.config, response_url)
            .ok_or_else(|| failed("its address is not one of a configured tool server".to_owned()))?;
        let body = to_body(&ChoiceAnswer { id: choice, selected }).map_err(|e| failed(e.to_string()))?;
        let server = self.config.tool_servers.iter().find(|(_, server)| same_origin(server, &url));
        let server = server.map(|(name, _)| name.as_str());
        (|| self.post(server, url.clone(), body.clone(), DEFAULT_TIMEOUT))
            .retry(waits())
            .when(|error| error.passes)
            .await
            .map_err(|error| failed(error.cause))
    }

    /// GETs `url` of `server`. A body above `limit` bytes is left unread and returned as far as it came, longer
    /// than `limit`: judging it is the caller's.
    pub(super) async fn get(
        &self,
        server: &str,
        url: Url,
        timeout: Duration,
        limit: usize,
    ) -> Result<Vec<u8>, RequestError> {
        let request = self.request(Some(server), Method::GET, url, None).await?;
        let mut response = request.timeout(timeout).send().await.map_err(RequestError::sending)?;
        accept(response.status())?;
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(RequestError::sending)? {
            body.extend_from_slice(&chunk);
            if body.len() > limit {
                break;
            }
        }
        Ok(body)
    }

    /// The time of one request to `server`.
    pub(super) fn timeout(&self, server: &str) -> Duration {
        let configured = self.config.tool_servers.get(server).and_then(|server| server.timeout_ms);
        configured.map_or(DEFAULT_TIMEOUT, Duration::from_millis)
    }

    async fn notify<T: Serialize>(&self, server: &str, notice: &str, body: &T, thread: &ThreadId) {
        let url = self.config.tool_servers.get(server).and_then(|config| below(&config.url, notice));
        let (Some(url), Ok(body)) = (url, to_body(body)) else {
            tracing::warn!(server, notice, %thread, "notice not sent: the server is not configured");
            return;
        };
        match self.post(Some(server), url, body, NOTICE_TIMEOUT).await {
            Ok(()) => tracing::debug!(server, notice, %thread, "notice sent"),
            Err(error) => tracing::info!(server, notice, %thread, cause = error.cause, "notice failed"),
        }
    }

    async fn post(
        &self,
        server: Option<&str>,
        url: Url,
        body: bytes::Bytes,
        timeout: Duration,
    ) -> Result<(), RequestError> {
        let request = self.request(server, Method::POST, url, Some(body)).await?.timeout(timeout);
        accept(request.send().await.map_err(RequestError::sending)?.status())
    }

    /// A request with a JSON body, if it has one, and with the server's authentication if `url` is on the server's
    /// own origin: no other host sees any of it.
    async fn request(
        &self,
        server: Option<&str>,
        method: Method,
        url: Url,
        body: Option<bytes::Bytes>,
    ) -> Result<reqwest::RequestBuilder, RequestError> {
        let mut request = self.http.request(method.clone(), url.clone());
        let headers: &[(&str, &str)] = match &body {
            Some(body) => {
                request = request.header(reqwest::header::CONTENT_TYPE, JSON).body(body.clone());
                &[("content-type", JSON)]
            }
            None => &[],
        };
        let server = server.and_then(|name| self.config.tool_servers.get(name));
        let Some(server) = server.filter(|server| same_origin(server, &url)) else { return Ok(request) };
        if let Some(scope) = &server.sigv4 {
            let body = body.as_deref().unwrap_or_default();
            let signed = self.signer.sign(scope, method.as_str(), &url, headers, body).await;
            return Ok(request.headers(signed.map_err(RequestError::signing)?));
        }
        Ok(match server.bearer_env.as_ref().and_then(|name| std::env::var(name).ok()) {
            Some(token) => request.bearer_auth(token),
            None => request,
        })
    }
}

impl RequestError {
    fn signing(error: SigningError) -> Self {
        Self { cause: error.to_string(), passes: error == SigningError::NoCredentials }
    }

    fn final_one(cause: String) -> Self {
        Self { cause, passes: false }
    }

    fn sending(error: reqwest::Error) -> Self {
        // reqwest's own text names the address.
        let cause = if error.is_timeout() {
            "it did not answer in time"
        } else if error.is_connect() {
            "no connection"
        } else if error.is_builder() {
            return Self::final_one("the request could not be built".to_owned());
        } else {
            "the connection was lost"
        };
        Self { cause: cause.to_owned(), passes: true }
    }
}

/// The waits between the attempts of one request.
fn waits() -> ExponentialBuilder {
    // Without backon's `std` feature its own seed is a constant: all slices would wait in step.
    ExponentialBuilder::default()
        .with_min_delay(FIRST_WAIT)
        .with_factor(WAIT_FACTOR)
        .with_max_times(ATTEMPTS - 1)
        .with_jitter()
        .with_jitter_seed(rand::random())
}

fn accept(status: StatusCode) -> Result<(), RequestError> {
    if status.is_success() {
        return Ok(());
    }
    let passes = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
    let cause = match status.canonical_reason() {
        _ if status.is_redirection() => format!("status {}, and redirects are not followed", status.as_u16()),
        Some(reason) => format!("status {} {reason}", status.as_u16()),
        None => format!("status {}", status.as_u16()),
    };
    Err(RequestError { cause, passes })
}

fn to_body<T: Serialize>(value: &T) -> Result<bytes::Bytes, serde_json::Error> {
    Ok(serde_json::to_vec(value)?.into())
}

fn same_origin(server: &ToolServerConfig, url: &Url) -> bool {
    Url::parse(&server.url).is_ok_and(|own| own.origin() == url.origin())
}

/// `{base}/{path}`; none if `base` is no address.
pub(super) fn below(base: &str, path: &str) -> Option<Url> {
    Url::parse(&format!("{}/{path}", base.trim_end_matches('/'))).ok()
}

/// `url`, if an answer may be POSTed there: an address that dormouse may speak to, on the host of a configured
/// tool server.
pub(super) fn may_answer(config: &Config, url: &str) -> Option<Url> {
    let url = config.check_url("response_url", url).ok()?;
    let hosts = config.tool_servers.values().filter_map(|server| Url::parse(&server.url).ok());
    hosts.into_iter().any(|server| server.host() == url.host()).then_some(url)
}
