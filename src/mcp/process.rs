//! A server as a process: started in a quiet corner, with no more of dormouse's environment than it needs.

use std::process::Stdio;

use rmcp::transport::TokioChildProcess;
use tokio::process::Command;

use crate::config::McpServerConfig;

/// What a process needs to find its files and programs. Everything else, dormouse's keys among it, it gets by
/// `pass_env` only.
const COMMON: [&str; 13] = [
    "HOME",
    "LANG",
    "LC_ALL",
    "LOGNAME",
    "PATH",
    "SHELL",
    "SYSTEMROOT",
    "TEMP",
    "TERM",
    "TMP",
    "TMPDIR",
    "TZ",
    "USER",
];

/// Starts the process. It ends with its transport: its input is closed, then it is asked, then killed.
pub(super) fn start(settings: &McpServerConfig, command: &[String]) -> std::io::Result<TokioChildProcess> {
    let (program, arguments) = command.split_first().ok_or(std::io::ErrorKind::InvalidInput)?;
    let mut process = Command::new(program);
    process.args(arguments).env_clear().kill_on_drop(true);
    // The terminal's Ctrl-C is for dormouse, which lets running calls finish first.
    #[cfg(unix)]
    process.process_group(0);
    let passed = settings.pass_env.iter().flatten().map(String::as_str);
    for name in COMMON.into_iter().chain(passed) {
        if let Some(value) = std::env::var_os(name) {
            process.env(name, value);
        }
    }
    process.envs(settings.env.iter().flatten());
    // What it says on standard error may be content, and a terminal belongs to the chat.
    let (process, _) = TokioChildProcess::builder(process).stderr(Stdio::null()).spawn()?;
    Ok(process)
}
