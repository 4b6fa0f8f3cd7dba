//! Peers that somebody else wrote, against the real binary over the wire: a tool server from the crate registry,
//! MCP servers from PyPI over both transports, and boto3 as a producer. Without a peer a test says loudly that it is skipped.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(feature = "local")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// What the MCP server over HTTP wants to see.
const TOKEN: &str = "token-of-a-test-and-long-enough";

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself; either way nothing is left behind.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What an environment variable names; says loudly, past the capture of test output, that there is nothing.
fn peer(variable: &str) -> Option<String> {
    let peer = std::env::var(variable).ok().filter(|peer| !peer.is_empty());
    if peer.is_none() {
        let say = format!("SKIPPED: {variable} is unset, no test against that peer\n");
        std::io::stderr().write_all(say.as_bytes()).unwrap();
    }
    peer
}

fn dormouse(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dormouse"));
    command.current_dir(dir).env_remove("DORMOUSE_MODEL").env("EXCEL_TOKEN", TOKEN).stdin(Stdio::null());
    command
}

fn first_json_line(child: &mut Child) -> serde_json::Value {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = lines.next().expect("the process ended before it was ready").unwrap();
    serde_json::from_str(&line).unwrap_or_else(|e| panic!("{line:?}: {e}"))
}

fn run(mut command: Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn rap_steering_server_is_discovered_called_and_its_result_is_in_the_history() {
    let Some(server) = peer("DORMOUSE_TEST_STEERING") else { return };
    let dir = tempfile::tempdir().unwrap();
    let steering = dir.path().join("project").join(".claude").join("skills");
    std::fs::create_dir_all(&steering).unwrap();
    let scratch = dir.path().join("scratch");
    std::fs::create_dir(&scratch).unwrap();
    let mut child = Command::new(server)
        .env("RAP_EMBEDDED", "1")
        .current_dir(&scratch)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let port = first_json_line(&mut child)["port"].as_u64().unwrap();
    let _server = Running(child);

    let config = format!(
        "allow_http_hosts = ['127.0.0.1']\n[models.default]\nprovider = 'scripted'\n\
         [tool_servers.steering]\nurl = 'http://127.0.0.1:{port}'\n"
    );
    std::fs::write(dir.path().join("dormouse.toml"), config).unwrap();
    let root = dir.path().join("project");
    let prompt = format!("call list_steering {}", serde_json::json!({ "root": root }));
    let mut chat = dormouse(dir.path());
    chat.args(["chat", &prompt]);
    let answer = run(chat);
    assert!(answer.starts_with("result: "), "{answer}");
    assert!(!answer.contains("Error:"), "{answer}");
    let mut show = dormouse(dir.path());
    show.args(["show", "main"]);
    let history = run(show);
    assert!(history.contains("list_steering"), "{history}");
    let result = answer.trim().trim_start_matches("result: ");
    let first_line = result.lines().next().unwrap_or_default();
    assert!(history.contains(first_line), "{first_line:?} is not in\n{history}");

    let mut unknown = dormouse(dir.path());
    unknown.args(["chat", r#"call load_steering {"root":"/nowhere","path":"none.md"}"#]);
    let answer = run(unknown);
    assert!(answer.starts_with("result: "), "a tool's own failure is a result too: {answer}");
}

/// What the agent answers to a text; its own failure is told apart from the tool's.
fn chat(dir: &Path, text: &str) -> String {
    let mut chat = dormouse(dir);
    chat.args(["chat", text]);
    run(chat)
}

/// The demo agent makes a workbook, fills it and reads it back, and gets a tool's own refusal as a result.
fn use_excel(dir: &Path) {
    let made = chat(dir, r#"call create_workbook {"path":"book.xlsx","sheets":["Ledger"]}"#);
    assert!(made.starts_with("result: ") && !made.contains("Error:"), "{made}");
    let row = r#"{"path":"book.xlsx","sheet":"Ledger","at":"A1","rows":[["dormouse",812.5]]}"#;
    let wrote = chat(dir, &format!("call write_range {row}"));
    assert!(wrote.starts_with("result: ") && !wrote.contains("Error:"), "{wrote}");
    let read = chat(dir, r#"call read_range {"path":"book.xlsx","sheet":"Ledger"}"#);
    assert!(read.starts_with("result: ") && read.contains("dormouse") && read.contains("812.5"), "{read}");
    assert!(dir.join("files").join("book.xlsx").is_file(), "the server did the work, not the model");
    let refused = chat(dir, r#"call read_range {"path":"none.xlsx","sheet":"Ledger"}"#);
    assert!(refused.starts_with("result: Error: "), "a tool's own failure is a result too: {refused}");
    let mut show = dormouse(dir);
    show.args(["show", "main"]);
    let history = run(show);
    assert!(history.contains("read_range") && history.contains("812.5"), "{history}");
}

fn mcp_config(dir: &Path, servers: &str) {
    std::fs::create_dir(dir.join("files")).unwrap();
    let head = "allow_http_hosts = ['127.0.0.1']\n[models.default]\nprovider = 'scripted'\n";
    std::fs::write(dir.join("dormouse.toml"), format!("{head}{servers}")).unwrap();
}

#[test]
fn an_mcp_server_from_pypi_is_used_over_stdio() {
    let Some(server) = peer("DORMOUSE_TEST_MCP_EXCEL") else { return };
    let dir = tempfile::tempdir().unwrap();
    let files = dir.path().join("files");
    let command = toml_list(&[&server, "stdio", "--allow-dir", files.to_str().unwrap()]);
    mcp_config(dir.path(), &format!("[mcp_servers.excel]\ncommand = {command}\n"));
    use_excel(dir.path());
}

#[test]
fn an_mcp_server_from_pypi_is_used_over_streamable_http_with_a_token() {
    let Some(server) = peer("DORMOUSE_TEST_MCP_EXCEL") else { return };
    let dir = tempfile::tempdir().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    mcp_config(
        dir.path(),
        &format!("[mcp_servers.excel]\nurl = 'http://127.0.0.1:{port}/mcp'\nbearer_env = 'EXCEL_TOKEN'\n"),
    );
    let child = Command::new(server)
        .args(["streamable-http", "--port", &port.to_string()])
        .arg("--allow-dir")
        .arg(dir.path().join("files"))
        .env("EXCEL_MCP_AUTH_TOKEN", TOKEN)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _server = Running(child);
    for _ in 0..300 {
        if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    use_excel(dir.path());
}

#[test]
fn the_reference_time_server_runs_inside_a_slice_and_in_the_background() {
    let Some(server) = peer("DORMOUSE_TEST_MCP_TIME") else { return };
    for background in ["false", "true"] {
        let dir = tempfile::tempdir().unwrap();
        let command = toml_list(&[&server]);
        let servers = format!("[mcp_servers.time]\ncommand = {command}\nbackground = {background}\n");
        mcp_config(dir.path(), &servers);
        let call =
            r#"call convert_time {"source_timezone":"UTC","time":"12:00","target_timezone":"Asia/Tokyo"}"#;
        let answer = chat(dir.path(), call);
        assert!(answer.starts_with("result: ") && answer.contains("21:00"), "{background}: {answer}");
    }
}

fn toml_list(items: &[&str]) -> String {
    // A list of strings is spelled alike in both.
    serde_json::json!(items).to_string()
}

#[test]
fn a_message_sent_with_boto3_is_answered_on_the_output_queue() {
    let Some(python) = peer("DORMOUSE_TEST_PYTHON") else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut serve = dormouse(dir.path());
    serve.arg("serve").stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = serve.spawn().unwrap();
    let ready = first_json_line(&mut child);
    let _serve = Running(child);
    let part = |name: &str| ready[name].as_str().unwrap_or_else(|| panic!("{name} in {ready}")).to_owned();
    let mut producer = Command::new(python);
    producer
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/boto3_producer.py"))
        .args([part("input_queue"), part("output_queue"), part("sqs")])
        .args(["--text", r#"call srv_echo {"from":"boto3"}"#, "--expect", "result: "])
        .stdin(Stdio::null());
    let answer = run(producer);
    assert!(answer.contains(r#"result: {"from":"boto3"}"#), "{answer}");
}
