//! What was said, queued or called is there after `kill -9`: the real binary, killed and started again on the same
//! directory.

#![cfg(feature = "local")]
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "support/command.rs"]
mod command;

use std::time::Duration;

use axum::routing::{get, post};
use axum::{Json, Router};
use command::{Home, LIMIT};
use serde_json::{Value, json};
use tokio::sync::mpsc;

#[test]
fn i1_i2_a_text_queued_before_a_kill_in_mid_stream_is_answered_once_and_the_thread_remembers() {
    let home = Home::new();
    let serving = home.serve(&[]);
    home.ok(&["send", "say one", "--thread", "t1"]);
    home.items_when("t1", |items| items.len() == 2);
    home.ok(&["send", "slow 100 x", "--thread", "t1"]);
    home.ok(&["send", "say three", "--thread", "t1"]);
    // The stream lasts five seconds; the kill falls into it.
    std::thread::sleep(Duration::from_millis(700));
    serving.kill();
    let before = command::items(&home.thread("t1"));
    assert_eq!(before, ["user: say one", "assistant: one"], "killed before its commit");

    let serving = home.serve(&[]);
    home.items_when("t1", |items| items.contains(&"assistant: three".to_owned()));
    home.ok(&["send", "seen", "--thread", "t1"]);
    let seen = "assistant: seen: say one|slow 100 x|say three".to_owned();
    let items = home.items_when("t1", |items| items.contains(&seen));
    let count = |text: &str| items.iter().filter(|item| *item == text).count();
    for text in
        ["user: say one", "user: slow 100 x", "user: say three", "user: seen", "assistant: one", &seen]
    {
        assert_eq!(count(text), 1, "{text:?} in {items:#?}");
    }
    // One slice for both queued texts, or one each: the slow text is answered by itself only in the second case.
    assert!((7..=8).contains(&items.len()), "{items:#?}");
    assert!(serving.terminate().success());
}

#[test]
fn a_text_sent_while_nothing_runs_is_answered_at_the_next_start() {
    let home = Home::new();
    let sent = home.run(&["send", "say later", "--thread", "t1"]);
    assert!(sent.code == Some(0) && sent.stderr.contains("at the next start"), "{sent:?}");
    let ran = home.run(&["show", "t1"]);
    assert!(ran.code == Some(1) && ran.stderr.contains("1 message is queued"), "{ran:?}");
    let serving = home.serve(&[]);
    let items = home.items_when("t1", |items| items.len() == 2);
    assert_eq!(items, ["user: say later", "assistant: later"]);
    assert!(serving.terminate().success());
    let items = command::items(&home.thread("t1"));
    assert_eq!(items.len(), 2, "nothing twice");
}

/// A tool server that only takes note of its invocations.
async fn tool_server() -> (String, mpsc::UnboundedReceiver<Value>) {
    let (invoked, invocations) = mpsc::unbounded_channel();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let manifest = json!({
        "name": "slow", "description": "Answers some day", "endpoint": format!("{url}/invoke"),
        "tools": [{"name": "some_day", "description": "Answers some day.", "inputSchema": {"type": "object"}}],
    });
    let app = Router::new().route("/.well-known/rap-toolset", get(move || async { Json(manifest) })).route(
        "/invoke",
        post(move |Json(invocation): Json<Value>| async move {
            invoked.send(invocation).unwrap();
        }),
    );
    tokio::spawn(async move { axum::serve(listener, app).await });
    (url, invocations)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callback_of_a_call_made_before_a_kill_is_taken_at_the_same_address_after_it() {
    let (url, mut invocations) = tool_server().await;
    let home = Home::new();
    std::fs::write(home.path("dormouse.toml"), config(&url)).unwrap();

    let serving = home.serve(&[]);
    home.ok(&["send", r#"call some_day {"x":1}"#, "--thread", "t1"]);
    let invocation = tokio::time::timeout(LIMIT, invocations.recv()).await.unwrap().unwrap();
    assert_eq!(invocation["arguments"], json!({"x": 1}));
    home.items_when("t1", |items| items.len() == 2);
    serving.kill();
    let callback = invocation["callback_url"].as_str().unwrap();
    let result = json!({
        "type": "tool_result", "group_id": "t1", "id": invocation["id"], "text": "sunny",
    });
    let http = reqwest::Client::new();
    assert!(http.post(callback).json(&result).send().await.is_err(), "nobody is there now");

    let serving = home.serve(&[]);
    for _ in 0..2 {
        let answer = http.post(callback).json(&result).send().await.unwrap();
        assert_eq!(answer.status(), 200);
    }
    let items = home.items_when("t1", |items| items.len() == 4);
    let told = [
        "user: call some_day {\"x\":1}",
        "tool_call: some_day {\"x\":1}",
        "tool_result: sunny",
        "assistant: result: sunny",
    ];
    assert_eq!(items, told);
    home.ok(&["send", "say done", "--thread", "t1"]);
    let items = home.items_when("t1", |items| items.contains(&"assistant: done".to_owned()));
    assert_eq!(items.len(), 6, "the second callback changed nothing: {items:#?}");
    let calls =
        std::iter::from_fn(|| invocations.try_recv().ok()).filter(|again| again["id"] != invocation["id"]);
    assert_eq!(calls.count(), 0, "an invocation may come twice, but under its own id only");
    assert!(serving.terminate().success());
}

#[test]
fn a_timer_set_before_a_kill_fires_after_it() {
    let home = Home::new();
    let serving = home.serve(&[]);
    home.ok(&["send", r#"call sleep {"seconds": 3}"#, "--thread", "t1"]);
    let set = std::time::Instant::now();
    home.items_when("t1", |items| items.len() == 2);
    serving.kill();
    let before = command::items(&home.thread("t1"));
    assert_eq!(before.len(), 2, "killed while it slept: {before:#?}");

    let serving = home.serve(&[]);
    let items = home.items_when("t1", |items| items.len() == 4);
    assert!(set.elapsed() >= Duration::from_secs(2), "not before its time");
    let told = [
        "user: call sleep {\"seconds\": 3}",
        "tool_call: sleep {\"seconds\": 3}",
        "tool_result: The time is up: 3 seconds have passed.",
        "assistant: result: The time is up: 3 seconds have passed.",
    ];
    assert_eq!(items, told);
    assert!(serving.terminate().success());
    assert_eq!(command::items(&home.thread("t1")).len(), 4, "nothing twice");
}

#[test]
fn a_chat_that_is_killed_leaves_its_text_to_the_next_start() {
    let home = Home::new();
    let mut chat = home.command(&["chat", "slow 100 x"]).stdout(std::process::Stdio::null()).spawn().unwrap();
    // Its text is queued as soon as somebody else sees it in the queue; the stream then lasts five seconds.
    let started = std::time::Instant::now();
    loop {
        let ran = home.run(&["threads"]);
        if ran.stderr.contains("1 message is being worked on") {
            break;
        }
        assert!(started.elapsed() < LIMIT && chat.try_wait().unwrap().is_none(), "{ran:?}");
    }
    chat.kill().unwrap();
    chat.wait().unwrap();
    let serving = home.serve(&[]);
    let items = home.items_when("main", |items| items.len() >= 2);
    assert_eq!(items[0], "user: slow 100 x");
    assert_eq!(items.len(), 2);
    assert!(serving.terminate().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn rap_43_a_chat_shows_where_to_consent_and_goes_on_with_the_result() {
    let (url, mut invocations) = tool_server().await;
    let home = Home::new();
    std::fs::write(home.path("dormouse.toml"), config(&url)).unwrap();
    let stderr = home.path("chat.err");
    let chat = home
        .command(&["chat", "call some_day {}"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::fs::File::create(&stderr).unwrap())
        .spawn()
        .unwrap();
    let invocation = tokio::time::timeout(LIMIT, invocations.recv()).await.unwrap().unwrap();
    let callback = invocation["callback_url"].as_str().unwrap();
    let http = reqwest::Client::new();
    let post = async |body: Value| http.post(callback).json(&body).send().await.unwrap().status();
    let id = &invocation["id"];
    let consent = "https://idp.example/authorize?x=1";
    assert_eq!(post(json!({"type": "oauth", "group_id": "main", "id": id, "auth_url": consent})).await, 200);
    let started = std::time::Instant::now();
    while !std::fs::read_to_string(&stderr).unwrap().contains(consent) {
        assert!(started.elapsed() < LIMIT, "{}", std::fs::read_to_string(&stderr).unwrap());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(
        post(json!({"type": "tool_result", "group_id": "main", "id": id, "text": "sunny"})).await,
        200
    );
    let output = tokio::task::spawn_blocking(|| chat.wait_with_output()).await.unwrap().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "result: sunny\n");
}

fn config(tool_server: &str) -> String {
    format!(
        "allow_http_hosts = ['127.0.0.1']\n[agents.default]\nmodel = 'scripted'\n\
         [tool_servers.slow]\nurl = '{tool_server}'\n"
    )
}
