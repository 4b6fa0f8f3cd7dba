//! The real `dormouse` binary in a directory of its own, with every wait bounded.

#![allow(dead_code, reason = "each test file uses its part of it")]

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::Value;

/// No command and no answer may take longer, also on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(60);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(50);

/// A temporary directory: the working directory of its commands, with their `.dormouse` in it.
pub struct Home {
    dir: tempfile::TempDir,
}

/// What a command left.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Home {
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The binary, without settings and keys of whoever runs the tests.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dormouse"));
        command.args(args).current_dir(self.dir.path()).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("DORMOUSE_") || text.ends_with("_API_KEY") {
                command.env_remove(&name);
            }
        }
        command
    }

    /// Runs to the end.
    pub fn run(&self, args: &[&str]) -> Ran {
        self.run_command(self.command(args))
    }

    /// Runs a prepared command to the end.
    pub fn run_command(&self, mut command: Command) -> Ran {
        let name = uuid::Uuid::new_v4().simple().to_string();
        let (out, err) = (self.path(&format!("{name}.out")), self.path(&format!("{name}.err")));
        let mut child =
            command.stdout(File::create(&out).unwrap()).stderr(File::create(&err).unwrap()).spawn().unwrap();
        let status = end_of(&mut child);
        let read = |path| std::fs::read_to_string(path).unwrap();
        Ran { code: status.code(), stdout: read(out), stderr: read(err) }
    }

    /// Runs a command that must succeed, and returns its standard output without the last line break.
    pub fn ok(&self, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!(ran.code, Some(0), "{args:?}: {ran:?}");
        ran.stdout.trim_end().to_owned()
    }

    /// Starts `serve` and waits until it is ready.
    pub fn serve(&self, args: &[&str]) -> Serving {
        self.serve_with(args, &[])
    }

    /// The same with variables in its environment.
    pub fn serve_with(&self, args: &[&str], env: &[(&str, &str)]) -> Serving {
        let mut command = self.command(&[&["serve"], args].concat());
        command.envs(env.iter().copied());
        let stderr = self.path("serve.err");
        let log = File::options().create(true).append(true).open(&stderr).unwrap();
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        let (line, ready) = mpsc::channel();
        std::thread::spawn(move || {
            let mut first = String::new();
            BufReader::new(stdout).read_line(&mut first).unwrap();
            line.send(first).unwrap();
        });
        let line = ready.recv_timeout(LIMIT).unwrap();
        let endpoints = serde_json::from_str(&line)
            .unwrap_or_else(|e| panic!("{e}: {line:?} {}", std::fs::read_to_string(stderr).unwrap()));
        Serving { child, endpoints }
    }

    /// A thread as `show --json` has it; null if there is none.
    pub fn thread(&self, thread: &str) -> Value {
        let ran = self.run(&["show", thread, "--json"]);
        match ran.code {
            Some(0) => serde_json::from_str(&ran.stdout).unwrap(),
            _ => Value::Null,
        }
    }

    /// The items of a thread as `kind: text`, once `enough` says so.
    pub fn items_when(&self, thread: &str, enough: impl Fn(&[String]) -> bool) -> Vec<String> {
        let started = Instant::now();
        loop {
            let items = items(&self.thread(thread));
            if enough(&items) {
                return items;
            }
            assert!(started.elapsed() < LIMIT, "thread {thread} stands at {items:#?}");
            std::thread::sleep(PAUSE);
        }
    }
}

/// The items of a thread as `kind: text`.
pub fn items(thread: &Value) -> Vec<String> {
    let Some(items) = thread["items"].as_array() else { return Vec::new() };
    let text = |item: &Value| match item["kind"].as_str().unwrap() {
        "user" | "tool_result" | "event" => item["parts"][0]["text"].as_str().unwrap_or_default().to_owned(),
        "assistant" => item["text"].as_str().unwrap().to_owned(),
        "tool_call" => format!("{} {}", item["name"].as_str().unwrap(), item["arguments"].as_str().unwrap()),
        "interrupt" => String::new(),
        other => panic!("{other}"),
    };
    items
        .iter()
        .map(|item| &item["item"])
        .map(|item| format!("{}: {}", item["kind"].as_str().unwrap(), text(item)))
        .collect()
}

/// A running `serve`. Dropping it kills it.
pub struct Serving {
    child: Child,
    /// What it said when it was ready.
    pub endpoints: Value,
}

impl Serving {
    /// SIGKILL: no handler runs.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM, and how it ended.
    pub fn terminate(mut self) -> ExitStatus {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        end_of(&mut self.child)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn end_of(child: &mut Child) -> ExitStatus {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if started.elapsed() > LIMIT {
            let _ = child.kill();
            panic!("the command has not ended in {LIMIT:?}");
        }
        std::thread::sleep(PAUSE);
    }
}
