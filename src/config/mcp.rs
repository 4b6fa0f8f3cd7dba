//! MCP servers in the configuration.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Config, ConfigError};

/// The longest time for one MCP call inside a slice: one fits into the shortest invocation, with its margin.
const MAX_MCP_TIMEOUT_MS: u64 = 45_000;
/// The longest time for one MCP call in the background.
const MAX_MCP_BACKGROUND_MS: u64 = 60 * 60 * 1_000;

/// A tool server that speaks MCP: over streamable HTTP at `url`, or over stdio as the process of `command`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct McpServerConfig {
    /// The endpoint of a server over streamable HTTP.
    pub url: Option<String>,
    /// The environment variable with a bearer token for `url`.
    pub bearer_env: Option<String>,
    /// Program and arguments of a server over stdio. Only on one machine: with the feature `local`.
    pub command: Option<Vec<String>>,
    /// Variables of the process's environment, beside `PATH`, `HOME` and their like. No secrets: see `pass_env`.
    pub env: Option<BTreeMap<String, String>>,
    /// Names of variables that the process gets from dormouse's own environment.
    pub pass_env: Option<Vec<String>>,
    /// Put before the name of each of its tools.
    pub prefix: Option<String>,
    /// Calls run beside the slices and wake their thread when they are done, instead of inside a slice. Only on one
    /// machine: with the feature `local`.
    pub background: bool,
    /// Milliseconds for one call, at most 45,000, default 30,000; in the background at most an hour, default 10
    /// minutes.
    pub timeout_ms: Option<u64>,
}

/// Checks what types alone cannot say.
pub(super) fn check(config: &Config, name: &str, server: &McpServerConfig) -> Result<(), ConfigError> {
    let problem = |field: &str, problem: String| {
        Err(ConfigError::field(format!("mcp_servers.{name}.{field}"), problem))
    };
    if config.tool_servers.contains_key(name) {
        let twice = format!("{name:?} is in tool_servers as well; rename one of them");
        return Err(ConfigError::field(format!("mcp_servers.{name}"), twice));
    }
    match (&server.url, &server.command) {
        (Some(url), None) => {
            config.check_url(&format!("mcp_servers.{name}.url"), url)?;
            if server.env.is_some() || server.pass_env.is_some() {
                return problem("env", "goes with command, not with url".to_owned());
            }
        }
        (None, Some(_)) if cfg!(not(feature = "local")) => {
            let only = "starts a process, which only the `dormouse` command on one machine does; use url";
            return problem("command", only.to_owned());
        }
        (None, Some(command)) => {
            if command.first().is_none_or(String::is_empty) {
                return problem("command", "is empty; name a program, then its arguments".to_owned());
            }
            if server.bearer_env.is_some() {
                return problem("bearer_env", "goes with url; use pass_env".to_owned());
            }
        }
        (None, None) | (Some(_), Some(_)) => {
            return problem("url", "or command must be set, one of the two".to_owned());
        }
    }
    if server.background && cfg!(not(feature = "local")) {
        let only = "needs a process that stays between inputs, so only the `dormouse` command on one machine \
                    has it; leave it out, or put what takes long behind a RAP server";
        return problem("background", only.to_owned());
    }
    let longest = if server.background { MAX_MCP_BACKGROUND_MS } else { MAX_MCP_TIMEOUT_MS };
    if server.timeout_ms.is_some_and(|ms| !(1..=longest).contains(&ms)) {
        return problem("timeout_ms", format!("must be from 1 to {longest} milliseconds"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::parse;

    #[test]
    fn mcp_servers_have_one_transport_and_a_bounded_time() {
        let parse = |rest: &str| parse(&format!("[mcp_servers.m]\n{rest}"));
        let refused = |rest: &str| parse(rest).unwrap_err();
        assert!(parse("url = 'https://m.example/mcp'\nbearer_env = 'T'\nprefix = 'm_'").is_ok());
        assert!(refused("").contains("mcp_servers.m.url"));
        assert!(refused("url = 'https://m.example'\ncommand = ['x']").contains("one of the two"));
        assert!(refused("url = 'http://m.example'").contains("plain http to m.example"));
        assert!(refused("url = 'https://m.example'\nenv = {A='b'}").contains("goes with command"));
        assert!(refused("url = 'https://m.example'\ntimeout_ms = 45001").contains("45000"));
        let both = "url = 'https://m.example'\n[tool_servers.m]\nurl = 'https://r.example'";
        assert!(refused(both).contains("tool_servers as well"));
        let stdio = parse("command = ['x', 'y']\nenv = {A='b'}\npass_env = ['C']");
        let background = parse("url = 'https://m.example'\nbackground = true\ntimeout_ms = 3600000");
        if cfg!(feature = "local") {
            assert!(stdio.is_ok() && background.is_ok());
            assert!(refused("command = []").contains("is empty"));
            assert!(refused("command = ['x']\nbearer_env = 'T'").contains("pass_env"));
        } else {
            assert!(stdio.unwrap_err().contains("mcp_servers.m.command"));
            assert!(background.unwrap_err().contains("mcp_servers.m.background"));
        }
    }
}
