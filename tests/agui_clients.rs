//! AG-UI clients that somebody else wrote, in all versions that count, against the real binary: HttpAgent, assistant-ui in a
//! DOM, CopilotKit's core. The drivers are in `agui-clients/`; each records what it saw and puts it through the published
//! verifiers. Without them a test says loudly that it is skipped.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(feature = "local")]

#[path = "support/clients.rs"]
mod clients;
#[path = "support/command.rs"]
mod command;
#[path = "support/driver.rs"]
mod runs;

use std::process::Command;
use std::time::Duration;

use command::{Home, Serving};
use serde_json::{Value, json};

/// The real binary with those tools and the scripted model; none, said loudly, where there are no drivers.
async fn serve(home: &Home) -> Option<(Serving, String)> {
    let drivers = clients::drivers()?;
    std::fs::write(home.path("dormouse.toml"), clients::config(&clients::tool_server().await)).unwrap();
    Some((home.serve(&[]), drivers))
}

/// Runs one driver to its end; what it says is the failure.
async fn drive(driver: &str, more: &[&str]) {
    let home = Home::new();
    let Some((serving, drivers)) = serve(&home).await else { return };
    let endpoint = format!("{}/agui/agent/default/run", serving.endpoints["http"].as_str().unwrap());
    clients::drive(&drivers, driver, &endpoint, more).await;
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
async fn assistant_ui_brings_what_only_it_has() {
    drive("assistant-ui-import.mjs", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn copilot_kit() {
    drive("copilotkit.mjs", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r21_state_of_three_versions() {
    drive("state.mjs", &[]).await;
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
        ("question", "call srv_ask {}"),
        ("consent", "call srv_consent {}"),
        ("view", "call srv_view {}"),
        ("error", "fail boom"),
    ] {
        let body = keep(name, stream_of(&run, &input(name, "run", prompt)).await);
        if name == "batch" {
            let finished = body.find("RUN_FINISHED").unwrap();
            assert!(body.find("TOOL_CALL_RESULT").is_some_and(|result| result < finished), "{body}");
        }
        let expected = match name {
            "guarded" => r#""reason":"tool_call""#,
            "question" => r#""reason":"input_required""#,
            "consent" => r#""metadata":{"authUrl":"https://idp.example/authorize"}"#,
            "view" => {
                r#""CUSTOM","name":"dormouse:view","value":{"view_type":"diff","content":{"patch":null"#
            }
            _ => "",
        };
        assert!(body.contains(expected), "{name}: {body}");
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
