//! The drivers of AG-UI clients that somebody else wrote, and the tools that they expect. Without the drivers a test says
//! loudly that it is skipped.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::io::Write;
use std::process::Command;
use std::time::Duration;

#[path = "tool_server.rs"]
mod tools;

use crate::runs;

pub use tools::serve as tool_server;

/// No driver may take longer, on a busy machine.
const LIMIT: Duration = Duration::from_secs(400);
/// Milliseconds for one step of a driver.
const STEP: &str = "30000";

/// Drivers wait for what a browser does at once: one after another they disturb each other less.
static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// An agent with a scripted model and those tools, one of which asks first; it changes what clients share with it.
pub fn config(tools: &str) -> String {
    format!(
        "allow_http_hosts = ['127.0.0.1']\n[models.default]\nprovider = 'scripted'\n\
         [tool_servers.srv]\nurl = '{tools}'\ndestructive = 'ask'\n\
         [agents.default]\nshared_state = true\n"
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
    let mut node = Command::new("node");
    node.current_dir(drivers).args([driver, endpoint, "--timeout", STEP]).args(more);
    let summary = runs::run(&mut node, LIMIT).await;
    eprintln!("{driver}: {summary}");
}
