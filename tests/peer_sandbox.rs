//! `sandbox-local` from the crate registry, a tool server that somebody else wrote and that speaks nearly all of RAP,
//! against the real binary over the wire. Without it, or without git, the test says loudly that it is skipped.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(feature = "local")]

#[path = "support/command.rs"]
mod command;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use command::{Home, LIMIT};
use dormouse::local::endpoints::Endpoints;
use dormouse::message::ThreadId;
use dormouse::store::StateStore;
use dormouse::store::dynamodb::DynamoStore;
use serde_json::{Value, json};

const THREAD: &str = "work";

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself; either way nothing is left behind.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The server's program, if there is one and git as well; says loudly, past the capture of test output, what is missing.
fn peer() -> Option<String> {
    let peer = std::env::var("DORMOUSE_TEST_SANDBOX").ok().filter(|peer| !peer.is_empty());
    let git = Command::new("git").arg("--version").output().is_ok_and(|output| output.status.success());
    if peer.is_none() || !git {
        let missing = if peer.is_none() { "DORMOUSE_TEST_SANDBOX is unset" } else { "there is no git" };
        let say = format!("SKIPPED: {missing}, no test against sandbox-local\n");
        std::io::stderr().write_all(say.as_bytes()).unwrap();
    }
    peer.filter(|_| git)
}

/// A repository with one commit.
fn repository(dir: &Path) {
    std::fs::create_dir(dir).unwrap();
    std::fs::write(dir.join("nest.txt"), "dry grass\nmoss\n").unwrap();
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).current_dir(dir).output().unwrap();
        assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    git(&["init", "--quiet"]);
    git(&["config", "user.name", "Dora Mouse"]);
    git(&["config", "user.email", "dora@dormouse.example"]);
    git(&["add", "."]);
    git(&["commit", "--quiet", "--message", "a nest"]);
}

/// Starts the server without its own confinement of commands: ours are harmless, and bubblewrap is not everywhere.
fn start(program: &str, home: &Home) -> (Running, u64) {
    let mut child = Command::new(program)
        .args(["--enable-sandbox", "false", "--metadata-dir"])
        .arg(home.path("metadata"))
        .current_dir(home.path("scratch"))
        .env("RAP_EMBEDDED", "1")
        .env("RUST_LOG", "info")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let stdout = child.stdout.take().unwrap();
    let running = Running(child);
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"));
    (running, ready["port"].as_u64().unwrap())
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < LIMIT, "{what}: it never was");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A thread of a running dormouse, used by hand: one call at a time, as this server wants it.
struct Thread<'a> {
    home: &'a Home,
    id: &'a str,
}

impl Thread<'_> {
    /// Has the model call a tool, and returns at once.
    fn calls(&self, tool: &str, arguments: &Value) {
        self.home.ok(&["send", &format!("call {tool} {arguments}"), "--thread", self.id]);
    }

    /// The result of the newest call, once there is one, and the model has read it.
    fn result(&self) -> String {
        let answered = |items: &[String]| {
            let call = items.iter().rposition(|item| item.starts_with("tool_call: "));
            let behind = call.map_or(&[][..], |call| &items[call + 1..]);
            behind.first().is_some_and(|item| item.starts_with("tool_result: "))
                && behind.last().is_some_and(|item| item.starts_with("assistant: "))
        };
        let items = self.home.items_when(self.id, answered);
        let result = items.iter().rev().find_map(|item| item.strip_prefix("tool_result: "));
        result.unwrap().to_owned()
    }

    /// Has the model call a tool and waits for what it returns.
    fn call(&self, tool: &str, arguments: &Value) -> String {
        let before = self.items().len();
        self.calls(tool, arguments);
        self.home.items_when(self.id, |items| items.len() > before + 1);
        self.result()
    }

    fn items(&self) -> Vec<String> {
        command::items(&self.home.thread(self.id))
    }

    /// The id of its newest call.
    fn newest_call(&self) -> String {
        let thread = self.home.thread(self.id);
        let items = thread["items"].as_array().unwrap().iter().rev();
        let mut ids = items.filter_map(|item| item["item"]["call_id"].as_str());
        ids.next().unwrap().to_owned()
    }
}

/// The user's side of a question, over HTTP.
struct User {
    url: String,
    http: reqwest::Client,
}

impl User {
    /// Answers the open question as `choose` says, given its choices.
    async fn answers(&self, choose: impl Fn(&[Value]) -> Value) {
        let choices = format!("{}/threads/{THREAD}/choices", self.url);
        let started = Instant::now();
        let question = loop {
            let answer: Value = self.http.get(&choices).send().await.unwrap().json().await.unwrap();
            if let Some(question) = answer["choices"].as_array().and_then(|open| open.first()) {
                break question.clone();
            }
            assert!(started.elapsed() < LIMIT, "no question came");
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        assert!(question["prompt"].as_str().unwrap().starts_with("Allow writing to"), "{question}");
        let answer = json!({ "selected": choose(question["choices"].as_array().unwrap()) });
        let url = format!("{choices}/{}", question["choice_id"].as_str().unwrap());
        assert_eq!(self.http.post(url).json(&answer).send().await.unwrap().status(), 202);
    }
}

#[tokio::test]
async fn sandbox_local_clones_edits_streams_asks_is_cancelled_and_closed() {
    let Some(program) = peer() else { return };
    let home = Home::new();
    std::fs::create_dir(home.path("scratch")).unwrap();
    repository(&home.path("repo"));
    let (_server, port) = start(&program, &home);
    let config = format!(
        "allow_http_hosts = ['127.0.0.1']\n[models.default]\nprovider = 'scripted'\n\
         [tool_servers.sandbox]\nurl = 'http://127.0.0.1:{port}'\n"
    );
    std::fs::write(home.path("dormouse.toml"), config).unwrap();
    let serving = home.serve(&[]);
    let user =
        User { url: serving.endpoints["http"].as_str().unwrap().to_owned(), http: reqwest::Client::new() };
    let work = Thread { home: &home, id: THREAD };

    // A result, and a tool's own refusal.
    let cloned = work.call("clone_repo", &json!({ "repo": home.path("repo") }));
    assert!(!cloned.starts_with("Error:"), "{cloned}");
    let again = work.call("clone_repo", &json!({ "repo": home.path("repo") }));
    assert!(again.starts_with("Error: "), "a tool's own failure is a result too: {again}");

    // A result with a segment for display, and a view before it.
    let edit = json!({"path": "nest.txt", "old_str": "moss", "new_str": "feathers"});
    assert_eq!(work.call("edit_file", &edit), "Replaced text in nest.txt");
    assert!(work.call("read_file", &json!({"path": "nest.txt"})).contains("feathers"));
    let endpoints = Endpoints::read(&home.path(".dormouse")).unwrap();
    let store = DynamoStore::new(endpoints.clients().dynamodb, endpoints.table.clone());
    let views = store.views(&ThreadId::from(THREAD)).await.unwrap();
    let [(kind, view)] = &views[..] else { panic!("{views:?}") };
    let view: Value = serde_json::from_str(view.get()).unwrap();
    assert_eq!((kind.as_str(), &view["files"][0]["path"]), ("diff", &json!("nest.txt")));

    // A command that takes more than five seconds streams its output as events, the last of which ends them.
    let ticks = "for i in 1 2 3 4 5 6 7 8 9; do echo tick $i; sleep 2; done";
    let begun = work.call("execute_command", &json!({ "command": ticks }));
    assert!(begun.contains("still running") && begun.contains("tick 1\n"), "{begun}");
    let items = home.items_when(THREAD, |items| {
        let last =
            items.iter().rposition(|item| item.starts_with("event: ") && item.ends_with("[exit code: 0]"));
        last.is_some_and(|last| items[last..].iter().any(|item| item.starts_with("assistant: ")))
    });
    let output: Vec<&String> = items.iter().filter(|item| item.starts_with("event: ")).collect();
    assert!(output.len() >= 2 && output[0].contains("tick 5"), "{output:?}");
    assert_eq!(store.get_active_subscriptions(&ThreadId::from(THREAD)).await.unwrap(), []);

    // A permission is the user's to give: once, or not.
    let command = json!({"command": "echo granted", "additional_permissions": ["write-orig"]});
    work.calls("execute_command", &command);
    user.answers(|choices| json!(choices.iter().position(|choice| choice == "Yes once").unwrap())).await;
    assert!(work.result().contains("granted"));
    work.calls("execute_command", &command);
    user.answers(|_| Value::Null).await;
    home.items_when(THREAD, |items| items.iter().any(|item| item.contains("denied by user")));

    // A command that is cancelled while it streams: its last event comes after that and has no effect.
    let begun = work.call("execute_command", &json!({"command": "sleep 300"}));
    assert!(begun.contains("still running"), "{begun}");
    let call = work.newest_call();
    let cancelled = work.call("cancel_subscription", &json!({ "tool_call_id": call }));
    assert!(cancelled.contains("cancelled") && !cancelled.starts_with("Error:"), "{cancelled}");

    // One that is interrupted before it streams: the call is settled here, the server is told and stops its process.
    let killed = home.path("killed");
    let command = format!("trap 'touch {}' TERM; sleep 300 & wait", killed.display());
    work.calls("execute_command", &json!({ "command": command }));
    let log = || std::fs::read_to_string(home.path("metadata").join("rap-sandbox.log")).unwrap();
    home.items_when(THREAD, |items| items.last().is_some_and(|item| item.contains("trap")));
    std::thread::sleep(Duration::from_millis(500));
    home.ok(&["send", "say never mind", "--thread", THREAD]);
    home.items_when(THREAD, |items| items.last().is_some_and(|item| item == "assistant: never mind"));
    until("the interrupted command is stopped", || killed.exists());
    assert!(!work.items().iter().any(|item| item.contains("[cancelled]")), "{:#?}", work.items());

    // A child thread closes, and the server hears of it.
    let child = work.call(
        "spawn_thread",
        &json!({"instructions": "say ready", "child_of": [THREAD], "fresh_context": true}),
    );
    let inside = Thread { home: &home, id: &child };
    home.items_when(&child, |items| items.last().is_some_and(|item| item.starts_with("assistant: ")));
    inside.calls("close_thread", &json!({ "thread_id": child }));
    until("the server hears of the closed thread", || {
        log().lines().any(|line| line.contains("received close_thread") && line.contains(&child))
    });
    assert!(serving.terminate().success());
}
