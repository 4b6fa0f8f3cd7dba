//! The examples run as their heads say, without a key, and print what they promise.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::{Command, Stdio};

/// Runs an example as a reader would, and returns what it printed. `cargo test` has built it by then.
fn run(example: &str, arguments: &[&str]) -> Vec<String> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["run", "--quiet", "--example", example, "--"]).args(arguments);
    command.current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().ends_with("_API_KEY") {
            command.env_remove(&name);
        }
    }
    let ran = command.output().unwrap();
    let (out, err) =
        (String::from_utf8(ran.stdout).unwrap(), String::from_utf8_lossy(&ran.stderr).into_owned());
    assert!(ran.status.success(), "{example}: {out}\n{err}");
    out.lines().map(str::to_owned).collect()
}

#[test]
fn the_example_of_a_chat_adds_and_remembers() {
    let expected = [
        "> what is 2 + 3?",
        "That is 5.",
        "> and 40 + 2?",
        "That is 42.",
        "> what have I asked?",
        "You have asked 3 questions so far.",
    ];
    assert_eq!(run("chat", &[]), expected);
    assert_eq!(run("chat", &["what is 3 + 4?"]), ["> what is 3 + 4?", "That is 7."]);
}

#[test]
fn the_example_of_resident_threads_answers_streams_and_is_interrupted() {
    let expected = [
        "ana: hello, ana",
        "ben: hello, ben",
        "cleo: hello, cleo",
        "ana: 2 items committed, and streaming",
        "ana: never mind",
        // The text, half an answer, the next text, its answer.
        "ana: 6 items committed",
        "the model was asked 5 times",
    ];
    assert_eq!(run("resident", &[]), expected);
}
