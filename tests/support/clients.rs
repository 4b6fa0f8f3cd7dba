//! The drivers of AG-UI clients that somebody else wrote, and the tools that they expect. Without the drivers a test says
//! loudly that it is skipped.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[path = "tool_server.rs"]
mod tools;

pub use tools::serve as tool_server;

/// No driver may take longer, on a busy machine.
const LIMIT: Duration = Duration::from_secs(400);
/// Milliseconds for one step of a driver.
const STEP: &str = "30000";

/// Drivers wait for what a browser does at once: one after another they disturb each other less.
static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// An agent with a scripted model and those tools, one of which asks first.
pub fn config(tools: &str) -> String {
    format!(
        "allow_http_hosts = ['127.0.0.1']\n[models.default]\nprovider = 'scripted'\n\
         [tool_servers.srv]\nurl = '{tools}'\ndestructive = 'ask'\n"
    )
}

/// Where the drivers are, if there are any.
pub fn drivers() -> Option<String> {
    let drivers = std::env::var("DORMOUSE_TEST_AGUI").ok().filter(|path| !path.is_empty());
    if drivers.is_none() {
        let say = b"SKIPPED: DORMOUSE_TEST_AGUI is unset, no test against AG-UI clients\n";
        std::io::stderr().write_all(say).unwrap();
    }
    drivers
}

/// Runs one driver to its end; what it says is the failure.
pub async fn drive(drivers: &str, driver: &str, endpoint: &str, more: &[&str]) {
    let _turn = ONE_AT_A_TIME.lock().await;
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("driver.log");
    let out = std::fs::File::create(&log).unwrap();
    let mut child = Command::new("node")
        .current_dir(drivers)
        .args([driver, endpoint, "--timeout", STEP])
        .args(more)
        .stdin(Stdio::null())
        .stdout(out.try_clone().unwrap())
        .stderr(out)
        .spawn()
        .unwrap();
    let started = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if started.elapsed() > LIMIT => {
                child.kill().unwrap();
                child.wait().unwrap();
                break None;
            }
            None => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    };
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(status.is_some_and(|status| status.success()), "{driver}:\n{said}");
    let summary = said.lines().last().unwrap_or_default();
    assert!(summary.ends_with(" 0 failed") && !summary.starts_with("0 "), "{driver}:\n{said}");
    eprintln!("{driver}: {summary}");
}
