//! AG-UI clients that somebody else wrote, in all versions that count, against the real binary: HttpAgent, assistant-ui in a
//! DOM, CopilotKit's core. The drivers are in `agui-clients/`; each records what it saw and puts it through the published
//! verifiers. Without them a test says loudly that it is skipped.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(feature = "local")]

#[path = "support/command.rs"]
mod command;
#[path = "support/tool_server.rs"]
mod tools;

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use command::{Home, Serving};
use serde_json::{Value, json};

/// No driver may take longer, on a busy machine.
const LIMIT: Duration = Duration::from_secs(400);
/// Milliseconds for one step of a driver.
const STEP: &str = "30000";

/// Drivers wait for what a browser does at once: one after another they disturb each other less.
static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// The real binary with those tools and the scripted model; none, said loudly, where there are no drivers.
async fn serve(home: &Home) -> Option<(Serving, String)> {
    let Some(drivers) = std::env::var("DORMOUSE_TEST_AGUI").ok().filter(|path| !path.is_empty()) else {
        let say = b"SKIPPED: DORMOUSE_TEST_AGUI is unset, no test against AG-UI clients\n";
        std::io::stderr().write_all(say).unwrap();
        return None;
    };
    let tools = tools::serve().await;
    let config = format!(
        "allow_http_hosts = ['127.0.0.1']\n[models.default]\nprovider = 'scripted'\n\
         [tool_servers.srv]\nurl = '{tools}'\ndestructive = 'ask'\n"
    );
    std::fs::write(home.path("dormouse.toml"), config).unwrap();
    Some((home.serve(&[]), drivers))
}

/// Runs one driver to its end; what it says is the failure.
async fn drive(driver: &str, more: &[&str]) {
    let _turn = ONE_AT_A_TIME.lock().await;
    let home = Home::new();
    let Some((serving, drivers)) = serve(&home).await else { return };
    let endpoint = format!("{}/agui/agent/default/run", serving.endpoints["http"].as_str().unwrap());
    let log = home.path("driver.log");
    let out = std::fs::File::create(&log).unwrap();
    let mut child = Command::new("node")
        .current_dir(&drivers)
        .args([driver, &endpoint, "--timeout", STEP])
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

#[tokio::test(flavor = "multi_thread")]
async fn http_agent_of_three_versions() {
    drive("http-agent.mjs", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn assistant_ui() {
    drive("assistant-ui.mjs", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn copilot_kit() {
    drive("copilotkit.mjs", &[]).await;
}

/// What a page's fetch gets, as it stands on the wire.
async fn stream_of(url: &str, body: &Value) -> String {
    let answer = reqwest::Client::new().post(url).json(body).send().await.unwrap();
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    assert_eq!(answer.headers()["cache-control"], "no-cache");
    answer.text().await.unwrap()
}

/// Bodies that were recorded, through the published schemas and verifiers of all versions, and what no client checks: an
/// end, no null, integers, only events that all of them know.
#[tokio::test(flavor = "multi_thread")]
async fn recorded_streams_pass_every_published_verifier() {
    let home = Home::new();
    let Some((serving, drivers)) = serve(&home).await else { return };
    let base = format!("{}/agui", serving.endpoints["http"].as_str().unwrap());
    let run = format!("{base}/agent/default/run");
    let client_tool = json!([{ "name": "cl_where", "description": "" }]);
    let input = |thread: &str, run: &str, prompt: &str| {
        json!({
            "threadId": thread, "runId": run, "tools": client_tool,
            "messages": [{ "id": format!("u-{thread}"), "role": "user", "content": prompt }],
        })
    };
    let mut files = Vec::new();
    let mut keep = |name: &str, body: String| {
        assert!(!body.contains('\r') && body.ends_with("\n\n"), "{name}: {body:?}");
        let file = home.path(&format!("{name}.sse"));
        std::fs::write(&file, &body).unwrap();
        files.push(file);
        body
    };
    for (name, prompt) in [
        ("text", "say é \u{2028} \"quoted\""),
        ("reasoning", "think delta"),
        ("server-tool", r#"look srv_echo {"k":1}"#),
        ("failing-tool", r#"call srv_fail {"k":1}"#),
        ("batch", r#"both srv_echo {"k":1} cl_where {"q":"x"}"#),
        ("no-such-tool", "call nobody {}"),
        ("broken-arguments", "call srv_echo {"),
        ("guarded", r#"call srv_guarded {"k":2}"#),
        ("error", "fail boom"),
    ] {
        let body = keep(name, stream_of(&run, &input(name, "run", prompt)).await);
        if name == "batch" {
            let finished = body.find("RUN_FINISHED").unwrap();
            assert!(body.find("TOOL_CALL_RESULT").is_some_and(|result| result < finished), "{body}");
        }
    }
    let replayed = keep("replay", stream_of(&run, &input("text", "run", "say something else")).await);
    assert_eq!(
        replayed,
        std::fs::read_to_string(home.path("text.sse")).unwrap(),
        "a known run is shown again"
    );
    // Refusals about the thread are streams too.
    keep("pending", stream_of(&run, &input("guarded", "again", "say x")).await);
    keep("connect", stream_of(&format!("{base}/agent/default/connect"), &input("batch", "c", "")).await);
    // A run that is under way is followed by a second client, and ended by a third.
    let slow = input("slow", "run", "slow 200 word");
    let (first, second) = (
        tokio::spawn({
            let (run, slow) = (run.clone(), slow.clone());
            async move { stream_of(&run, &slow).await }
        }),
        async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            stream_of(&run, &slow).await
        },
    );
    let stop = async {
        tokio::time::sleep(Duration::from_secs(4)).await;
        let url = format!("{base}/agent/default/stop/slow");
        reqwest::Client::new().post(url).send().await.unwrap().json::<Value>().await.unwrap()
    };
    let (first, second, stopped) = tokio::join!(first, second, stop);
    assert_eq!(stopped, json!({ "stopped": true }));
    let text = |body: &str| {
        let deltas = body.lines().filter_map(|line| {
            let event: Value = serde_json::from_str(line.strip_prefix("data: ")?).unwrap();
            (event["type"] == "TEXT_MESSAGE_CONTENT").then(|| event["delta"].as_str().unwrap().to_owned())
        });
        deltas.collect::<String>()
    };
    let (first, second) = (keep("slow", first.unwrap()), keep("slow-second", second));
    assert_eq!(text(&first), text(&second), "who comes later sees the same text, once");
    assert!(first.contains("\"abort\"") && text(&first).len() < 900, "{}", text(&first).len());

    let checked =
        Command::new("node").current_dir(&drivers).arg("verify-events.mjs").args(&files).output().unwrap();
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(checked.status.success(), "{said}{}", String::from_utf8_lossy(&checked.stderr));
}
