//! RAP tool servers in the configuration.

use serde::{Deserialize, Serialize};

use super::{Config, ConfigError};

/// The longest time for one request to a tool server: three of them fit into an invocation.
const MAX_TIMEOUT_MS: u64 = 15_000;
/// The longest time that a call may be given, for its result or for the user's word: a year, as for a sleep.
const MAX_LIMIT_SECONDS: u64 = 366 * 24 * 60 * 60;

/// A tool server that speaks RAP.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ToolServerConfig {
    /// The base address; `{url}/.well-known/rap-toolset` is its manifest.
    pub url: String,
    /// The environment variable with a bearer token for this server alone.
    pub bearer_env: Option<String>,
    /// Its calls of one thread go out one after the other: the next when the one before has its result.
    pub serial: bool,
    /// Milliseconds for one request to it, at most 15,000; default 10,000.
    pub timeout_ms: Option<u64>,
    /// Seconds that a call waits for its result, at most a year; then the model reads that it timed out, and the server
    /// that nobody waits for it any more. Default: a call waits for ever.
    pub result_timeout_seconds: Option<u64>,
    /// Seconds that the user is given to say whether a destructive call may run, at most a year; then it does not. Default:
    /// for ever.
    pub consent_timeout_seconds: Option<u64>,
    /// The SHA-256 (hex) that its manifest must have; absent: any.
    pub manifest_sha256: Option<String>,
    /// Requests to it are signed with the process's own AWS credentials. Not together with `bearer_env`.
    pub sigv4: Option<SigV4Config>,
    /// What to do before a tool is called that is annotated as destructive.
    pub destructive: Destructive,
}

impl ToolServerConfig {
    /// Its time limits that need a timer, by field.
    pub fn limits(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let limits = [
            ("result_timeout_seconds", self.result_timeout_seconds),
            ("consent_timeout_seconds", self.consent_timeout_seconds),
        ];
        limits.into_iter().filter_map(|(field, seconds)| Some((field, seconds?)))
    }
}

/// AWS Signature Version 4.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SigV4Config {
    /// What is signed for: `execute-api` for API Gateway, `lambda` for a function URL.
    pub service: String,
    /// The region; absent: that of the environment.
    #[serde(default)]
    pub region: Option<String>,
}

/// What to do before a destructive call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Destructive {
    /// Nothing: it goes out like any other.
    #[default]
    Off,
    /// The user is asked, and without a word of theirs it does not run.
    Ask,
    /// The same, and whoever allows it may change its arguments.
    AskEdit,
}

/// Checks what types alone cannot say.
pub(super) fn check(config: &Config, name: &str, server: &ToolServerConfig) -> Result<(), ConfigError> {
    let problem =
        |field: &str, problem: &str| Err(ConfigError::field(format!("tool_servers.{name}.{field}"), problem));
    if server.timeout_ms.is_some_and(|ms| !(1..=MAX_TIMEOUT_MS).contains(&ms)) {
        return problem("timeout_ms", &format!("must be from 1 to {MAX_TIMEOUT_MS} milliseconds"));
    }
    for (field, seconds) in server.limits() {
        if !(1..=MAX_LIMIT_SECONDS).contains(&seconds) {
            return problem(field, &format!("must be from 1 to {MAX_LIMIT_SECONDS} seconds, a year"));
        }
    }
    if let Some(sigv4) = &server.sigv4 {
        if server.bearer_env.is_some() {
            return problem("sigv4", "cannot go with bearer_env; leave one of them out");
        }
        if sigv4.service.is_empty() {
            return problem("sigv4.service", "is empty; it is `execute-api`, `lambda` or the like");
        }
    }
    config.check_url(&format!("tool_servers.{name}.url"), &server.url)?;
    Ok(())
}
