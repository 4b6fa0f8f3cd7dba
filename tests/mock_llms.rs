//! Providers that somebody else wrote, against the real binary over real HTTP: aimock (npm, MIT) streams Chat
//! Completions, Responses, Messages, Gemini's and Bedrock's frames as its authors know them from the real APIs. Whole
//! slices: text, reasoning, parallel calls, steps, refusals, streams that are cut. Without it the tests say loudly that
//! they are skipped.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(feature = "local")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mock_llms/fixtures.json");
/// Seconds for an answer, retries and a busy machine included.
const TIMEOUT: &str = "90";
/// The line of aimock's that says where it listens.
const LISTENING: &str = "server listening on ";

/// A provider, and an agent whose model is behind it.
struct Bed {
    server: Child,
    url: String,
    dir: tempfile::TempDir,
}

impl Drop for Bed {
    fn drop(&mut self) {
        // It may have ended by itself; either way nothing is left behind.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

impl Bed {
    /// None, said loudly, where there is no aimock. `base` is the part of its address that a client is told.
    fn start(provider: &str, model: &str, base: &str) -> Option<Self> {
        let Some(aimock) = std::env::var("DORMOUSE_TEST_AIMOCK").ok().filter(|path| !path.is_empty()) else {
            let say = b"SKIPPED: DORMOUSE_TEST_AIMOCK is unset, no test against that peer\n";
            std::io::stderr().write_all(say).unwrap();
            return None;
        };
        let mut server = Command::new(aimock)
            .args(["--port", "0", "--fixtures", FIXTURES, "--strict", "--validate-on-load"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
        let url = lines.find_map(|line| line.unwrap().split_once(LISTENING).map(|(_, url)| url.to_owned()));
        // It says more later, which nobody reads but its pipe must hold.
        std::thread::spawn(move || lines.for_each(drop));
        let url = url.expect("aimock ended before it listened");
        let dir = tempfile::tempdir().unwrap();
        let config = format!(
            "[models.default]\nprovider = '{provider}'\nname = '{model}'\nbase_url = '{url}{base}'\n\
             [agents.default]\nmax_output_tokens = 500\n"
        );
        std::fs::write(dir.path().join("dormouse.toml"), config).unwrap();
        Some(Self { server, url, dir })
    }

    fn dormouse(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dormouse"));
        command
            .current_dir(self.dir.path())
            .env_remove("DORMOUSE_MODEL")
            .args(arguments)
            .stdin(Stdio::null());
        command.output().unwrap()
    }

    /// What the agent answers to `text` on a thread of its own, and the thread's items.
    fn chat(&self, text: &str) -> (String, Vec<Value>) {
        let thread = text.replace(' ', "-");
        let output = self.dormouse(&["chat", "--timeout", TIMEOUT, "--thread", &thread, text]);
        let errors = String::from_utf8_lossy(&output.stderr);
        let answer = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}: {answer}\n{errors}");
        (answer.trim().to_owned(), self.items(&thread))
    }

    fn items(&self, thread: &str) -> Vec<Value> {
        let output = self.dormouse(&["show", "--json", thread]);
        let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
        shown["items"].as_array().unwrap().iter().map(|item| item["item"].clone()).collect()
    }

    /// Requests that the server was sent for `text`, in their order.
    fn requests(&self, text: &str) -> Vec<Value> {
        let path = self.dir.path().join("journal.json");
        fetch(&format!("{}/__aimock/journal", self.url), &path);
        let journal: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let entries = journal.as_array().or(journal["entries"].as_array()).expect("a journal").clone();
        entries.into_iter().filter(|entry| entry["body"].to_string().contains(text)).collect()
    }
}

fn fetch(url: &str, to: &Path) {
    let fetched =
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            reqwest::get(url).await.unwrap().error_for_status().unwrap().bytes().await.unwrap()
        });
    std::fs::write(to, fetched).unwrap();
}

/// The kinds of items beside reasoning, which some models of the Responses API send with everything.
fn kinds(items: &[Value]) -> Vec<&str> {
    items.iter().map(|item| item["kind"].as_str().unwrap()).filter(|kind| *kind != "reasoning").collect()
}

/// What every dialect must do; the reasoning that comes back is the caller's to judge.
fn all(bed: &Bed) {
    let (answer, items) = bed.chat("say hello");
    assert_eq!(answer, "Hello from a server that somebody else wrote: ünïcode and 🐭.");
    assert_eq!(kinds(&items), ["user", "assistant"]);

    let (answer, items) = bed.chat("think hard");
    assert_eq!(answer, "So it is forty-two.");
    assert_eq!((items.len(), &items[1]["kind"]), (3, &Value::from("reasoning")));
    assert_eq!(items[1]["text"], "First this, then that.");

    let (answer, items) = bed.chat("two echoes");
    assert_eq!(answer.lines().last(), Some("Both are back."), "{answer}");
    let middle = ["user", "assistant", "tool_call", "tool_call", "tool_result", "tool_result", "assistant"];
    assert_eq!(kinds(&items), middle);
    let calls: Vec<&Value> = items.iter().filter(|item| item["kind"] == "tool_call").collect();
    for (call, n) in calls.into_iter().zip(["first", "second"]) {
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        assert_eq!(arguments, serde_json::json!({ "n": n }));
        let result =
            items.iter().find(|item| item["kind"] == "tool_result" && item["call_id"] == call["call_id"]);
        let echoed = result.unwrap()["parts"][0]["text"].as_str().unwrap();
        assert_eq!(serde_json::from_str::<Value>(echoed).unwrap(), arguments);
    }

    let (answer, items) = bed.chat("one after the other");
    assert_eq!(answer.lines().last(), Some("Two steps are done."), "{answer}");
    assert_eq!(items.iter().filter(|item| item["kind"] == "tool_result").count(), 2);
    assert_eq!(bed.requests("one after the other").len(), 3, "the model is asked once for each step");
}

/// F50, F51: failures that pass leave nothing behind, and those that do not are told at once.
fn failures(bed: &Bed) {
    let begun = Instant::now();
    let (answer, items) = bed.chat("be throttled");
    assert_eq!(answer, "No longer throttled.");
    assert!(begun.elapsed() >= Duration::from_secs(2), "F51: `retry-after: 2` is kept");
    assert_eq!(kinds(&items), ["user", "assistant"]);

    let (answer, items) = bed.chat("break down");
    assert_eq!((answer.as_str(), kinds(&items)), ("Mended.", vec!["user", "assistant"]));

    let (answer, items) = bed.chat("be cut");
    assert_eq!(answer, "The whole answer.", "F50: nothing of the first one");
    assert_eq!(kinds(&items), ["user", "assistant"]);
    assert_eq!(items[items.len() - 1]["text"], "The whole answer.");

    let output = bed.dormouse(&["chat", "--timeout", TIMEOUT, "--thread", "refused", "be refused"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("check the key"), "{said}");
    assert_eq!(bed.requests("be refused").len(), 1, "a key that is refused is not tried again");
}

#[test]
fn f50_f51_chat_completions_of_aimock() {
    let Some(bed) = Bed::start("openai", "gpt-5.1", "/v1") else { return };
    all(&bed);
    failures(&bed);
}

#[test]
fn f50_f51_responses_of_aimock() {
    let Some(bed) = Bed::start("openai_resp", "gpt-5.1", "/v1") else { return };
    all(&bed);
    failures(&bed);
}

#[test]
fn f40_f50_f51_messages_of_aimock() {
    let Some(bed) = Bed::start("anthropic", "claude-sonnet-4-5", "/v1") else { return };
    all(&bed);
    // What its server signed is stored with the signature; that it goes back is proven in `providers.rs`, because
    // aimock's journal holds requests in a form of its own.
    let items = bed.items("one-after-the-other");
    let signed: Vec<&Value> = items.iter().filter(|item| item["kind"] == "reasoning").collect();
    assert_eq!(signed.len(), 2);
    assert!(signed.iter().all(|item| item["signature"] == "aimock-placeholder-signature"), "{signed:?}");
    failures(&bed);
}

#[test]
fn f42_f50_f51_gemini_of_aimock() {
    let Some(bed) = Bed::start("gemini", "gemini-3-pro-preview", "/v1beta") else { return };
    all(&bed);
    failures(&bed);
}

#[test]
fn f43_f50_f51_bedrock_of_aimock() {
    let Some(bed) = Bed::start("bedrock_api", "anthropic.claude-sonnet-4-5-20250929-v1:0", "/") else {
        return;
    };
    all(&bed);
    failures(&bed);
}
