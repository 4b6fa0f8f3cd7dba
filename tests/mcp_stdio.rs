//! MCP servers as processes: started when they are needed, again when they have died, ended with dormouse.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(all(feature = "local", unix))]

#[path = "support/command.rs"]
mod command;

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use command::Home;
use dormouse::config::{Config, McpServerConfig};
use dormouse::mcp::McpServers;
use dormouse::message::{CallId, ContentPart, DedupId, InputMessage, ThreadId};
use dormouse::queue::{InputSender, QueueError};
use dormouse::rap::http_client;
use dormouse::store::memory::MemoryStore;
use dormouse::tools::{Invocation, Tool, ToolError, ToolServers};

const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mcp_stdio_server.py");

/// A Python that is there; says loudly, past the capture of test output, that there is none.
fn python() -> Option<String> {
    let named = std::env::var("DORMOUSE_TEST_PYTHON").ok().filter(|python| !python.is_empty());
    let python = named.unwrap_or_else(|| "python3".to_owned());
    let runs = std::process::Command::new(&python).arg("--version").output();
    if runs.is_ok_and(|output| output.status.success()) {
        return Some(python);
    }
    std::io::stderr().write_all(b"SKIPPED: there is no python3, no test against a process\n").unwrap();
    None
}

struct NoQueue;

#[async_trait::async_trait]
impl InputSender for NoQueue {
    async fn send(&self, _: &InputMessage, _: &DedupId) -> Result<(), QueueError> {
        panic!("nothing runs in the background here");
    }
}

fn servers(settings: McpServerConfig) -> McpServers {
    let config = Config { mcp_servers: BTreeMap::from([("m".to_owned(), settings)]), ..Config::default() };
    config.check().unwrap();
    McpServers::new(&config, Arc::new(MemoryStore::new()), http_client().unwrap(), Arc::new(NoQueue))
}

fn scripted(python: &str) -> McpServerConfig {
    let command = Some(vec![python.to_owned(), SERVER.to_owned()]);
    McpServerConfig { command, timeout_ms: Some(20_000), ..McpServerConfig::default() }
}

async fn tool(servers: &McpServers, name: &str) -> Arc<dyn Tool> {
    let offer = servers.offer("m").await.unwrap();
    offer.tools.iter().find(|tool| tool.definition().name == name).unwrap().clone()
}

async fn call(servers: &McpServers, name: &str) -> Result<String, ToolError> {
    let invocation = Invocation {
        thread: ThreadId::from("th-1"),
        ancestors: vec![],
        call: CallId::from("c0-1-x"),
        name: name.into(),
        arguments: "{}".into(),
        user: None,
        cause: vec![],
        resumed: false,
    };
    let output = tool(servers, name).await.execute_synchronous(&invocation).await?;
    Ok(ContentPart::join_text(&output.parts))
}

fn lives(pid: &str) -> bool {
    std::process::Command::new("kill").args(["-0", pid]).output().unwrap().status.success()
}

#[tokio::test]
async fn a_process_is_kept_started_again_when_it_has_died_and_ended_at_the_end() {
    let Some(python) = python() else { return };
    let servers = servers(scripted(&python));
    let first = call(&servers, "pid").await.unwrap();
    assert_eq!(call(&servers, "pid").await.unwrap(), first, "one process for all calls");
    let death = call(&servers, "die").await.unwrap_err().to_string();
    assert!(death.contains("It is not known whether it ran."), "{death}");
    let second = call(&servers, "pid").await.unwrap();
    assert_ne!(first, second);
    assert!(lives(&second));
    servers.close().await;
    assert!(!lives(&first) && !lives(&second), "no process is left behind");
    let after = call(&servers, "pid").await.unwrap_err().to_string();
    assert!(after.contains("dormouse is stopping"), "{after}");
}

#[tokio::test]
async fn i7_a_process_that_dies_again_and_again_is_left_in_peace() {
    let Some(python) = python() else { return };
    let servers = servers(scripted(&python));
    let mut deaths = Vec::new();
    for _ in 0..7 {
        deaths.push(call(&servers, "die").await.unwrap_err().to_string());
    }
    assert!(deaths[4].contains("the connection ended"), "{deaths:?}");
    assert!(deaths[5].contains("left in peace"), "{deaths:?}");
    assert!(deaths[6].contains("left in peace"), "{deaths:?}");
    servers.close().await;
}

#[tokio::test]
async fn a_process_that_cannot_be_started_costs_its_tools_and_is_reported() {
    let Some(python) = python() else { return };
    let nowhere = Some(vec!["/no/such/program".to_owned()]);
    let missing = McpServerConfig { command: nowhere, ..McpServerConfig::default() };
    let dying = McpServerConfig {
        env: Some(BTreeMap::from([("DIES_AT_ONCE".to_owned(), "1".to_owned())])),
        ..scripted(&python)
    };
    for (settings, why) in [(missing, "cannot be started"), (dying, "cannot be used")] {
        let servers = servers(settings);
        let problem = servers.offer("m").await.err().unwrap();
        assert!(
            problem.starts_with("MCP server m: its tools cannot be listed") && problem.contains(why),
            "{problem}"
        );
        servers.close().await;
    }
}

#[tokio::test]
async fn a_process_gets_of_the_environment_what_it_needs_and_what_it_is_given() {
    let Some(python) = python() else { return };
    let settings = McpServerConfig {
        env: Some(BTreeMap::from([("GIVEN".to_owned(), "yes".to_owned())])),
        // A variable that every test has.
        pass_env: Some(vec!["CARGO_PKG_NAME".to_owned()]),
        ..scripted(&python)
    };
    let servers = servers(settings);
    let env: serde_json::Value = serde_json::from_str(&call(&servers, "env").await.unwrap()).unwrap();
    assert_eq!((&env["GIVEN"], &env["CARGO_PKG_NAME"]), (&"yes".into(), &"dormouse".into()));
    assert!(env["PATH"].is_string());
    assert!(env["CARGO_MANIFEST_DIR"].is_null() && env["CARGO_PKG_VERSION"].is_null(), "{env}");
    servers.close().await;
}

#[test]
fn i7_a_background_call_that_was_under_way_at_kill_9_is_answered_at_the_next_start() {
    let Some(python) = python() else { return };
    let home = Home::new();
    let server = serde_json::json!([python, SERVER]);
    let config = format!(
        "[models.default]\nprovider = 'scripted'\n[mcp_servers.m]\ncommand = {server}\nbackground = true\n"
    );
    std::fs::write(home.path("dormouse.toml"), config).unwrap();
    let serving = home.serve(&[]);
    home.ok(&["send", "call nap {}"]);
    home.items_when("main", |items| items.iter().any(|item| item.starts_with("tool_call: nap")));
    // The call is stored before it is let out: a moment for that.
    std::thread::sleep(Duration::from_millis(500));
    serving.kill();
    let serving = home.serve(&[]);
    let items = home.items_when("main", |items| items.iter().any(|item| item.starts_with("assistant: ")));
    assert!(items.iter().any(|item| item.contains("the result of nap was lost")), "{items:#?}");
    assert!(serving.terminate().success());
}

/// What a subscriber would have written.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn d35_what_a_process_says_on_standard_error_and_what_it_returns_is_not_logged() {
    let Some(python) = python() else { return };
    let written = Written::default();
    let sink = written.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter("dormouse=trace")
        .with_ansi(false)
        .with_writer(move || sink.clone())
        .finish();
    let guard = tracing::subscriber::set_default(subscriber);
    let servers = servers(scripted(&python));
    assert_eq!(call(&servers, "shout").await.unwrap(), "shouted");
    tokio::time::sleep(Duration::from_millis(100)).await;
    servers.close().await;
    drop(guard);
    let log = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
    assert!(log.contains("MCP call") && log.contains("tool=\"shout\""), "{log}");
    assert!(!log.contains("secret") && !log.contains("shouted"), "{log}");
}
