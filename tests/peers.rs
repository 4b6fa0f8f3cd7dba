//! Peers that somebody else wrote, against the real binary over the wire: a tool server from the crate registry,
//! and boto3 as a producer. Without a peer a test says loudly that it is skipped.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(feature = "local")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

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
    command.current_dir(dir).env_remove("DORMOUSE_MODEL").stdin(Stdio::null());
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
