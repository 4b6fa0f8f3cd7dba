//! MCP servers as tools, from an SQS event to what the model reads: against a scripted server for everything that can
//! go wrong. `tests/peers.rs` has the servers that somebody else wrote.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/mcp.rs"]
mod mcp;
#[path = "support/world.rs"]
mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use dormouse::config::{Config, McpServerConfig};
use dormouse::mcp::McpServers;
use dormouse::message::{ItemBody, Outcome, ThreadId};
use dormouse::model::scripted::{ScriptedEvent, ScriptedModel};
use dormouse::rap::http_client;
use dormouse::store::memory::CommitFault;
use dormouse::store::{ConversationStore, StateStore};
use dormouse::tools::{AgentTools, Execution, Rerun, ToolSet};
use mcp::{Answer, Refusal, ScriptedMcp, reading, text, tool};
use serde_json::{Value, json};
use world::{THREAD, World};

/// What a test sets differently.
fn at(url: &str) -> McpServerConfig {
    McpServerConfig { url: Some(url.to_owned()), timeout_ms: Some(5_000), ..McpServerConfig::default() }
}

fn background(url: &str) -> McpServerConfig {
    McpServerConfig { background: true, ..at(url) }
}

fn config(servers: &[(&str, McpServerConfig)]) -> Config {
    let mcp_servers = servers.iter().map(|(name, server)| (name.to_string(), server.clone())).collect();
    let config = Config { mcp_servers, allow_http_hosts: vec!["127.0.0.1".into()], ..Config::default() };
    config.check().unwrap();
    config
}

/// Another process of the same world: its tools are those of `servers`.
fn process(world: &mut World, servers: &[(&str, McpServerConfig)]) -> Arc<McpServers> {
    let config = Arc::new(config(servers));
    let store = Arc::new(world.store.clone());
    let mcp = Arc::new(McpServers::new(&config, store, http_client().unwrap(), world.input.clone()));
    world.runtime.tools = Arc::new(AgentTools::new(config, vec![], vec![mcp.clone()]));
    mcp
}

fn model(steps: &[(&str, &str)]) -> ScriptedModel {
    let call = |(name, arguments): &(&str, &str)| {
        vec![ScriptedEvent::call("p", *name, *arguments), ScriptedEvent::End("tool_use".into())]
    };
    let mut responses: Vec<_> = steps.iter().map(call).collect();
    responses.push(vec![ScriptedEvent::Text("done".into())]);
    ScriptedModel::script(responses)
}

async fn tools_of(world: &World) -> ToolSet {
    world.runtime.tools.tools("default", &ThreadId::from("th-1")).await
}

fn names(set: &ToolSet) -> Vec<String> {
    set.registry.iter().map(|tool| tool.definition().name.clone()).collect()
}

/// The results of the thread's calls, with how each ended.
async fn results(world: &World) -> Vec<(Outcome, String)> {
    let items = world.items().await;
    let result = |body: &ItemBody| match body {
        ItemBody::ToolResult(result) => {
            Some((result.outcome.clone(), dormouse::message::ContentPart::join_text(&result.parts)))
        }
        _ => None,
    };
    items.iter().filter_map(|item| result(&item.body)).collect()
}

#[tokio::test]
async fn i3_a_call_runs_in_the_slice_after_its_commit_and_the_model_reads_the_result() {
    let mut world = World::new(model(&[("echo", r#"{"a":1.0}"#)]));
    let store = world.store.clone();
    let server = ScriptedMcp::start(vec![tool("echo")], move |params| {
        let store = store.clone();
        Box::pin(async move {
            let meta = store.meta(&ThreadId::from(THREAD)).await.unwrap().unwrap();
            assert_eq!(meta.pending.len(), 1, "the call left before its commit");
            text(params["arguments"].to_string())
        })
    })
    .await;
    process(&mut world, &[("m", at(&server.url))]);
    world.done(&world.user("hi")).await;
    let story = [r#"user: hi"#, r#"call: echo {"a":1.0}"#, r#"result: {"a":1.0}"#, "assistant: done"];
    assert_eq!(world.story().await, story);
    assert!(world.pending().await.is_empty());
    assert_eq!(server.seen("tools/call").len(), 1);
    assert_eq!(server.seen("tools/call")[0]["name"], "echo");
    let offered = &world.model.requests()[0].tools;
    assert_eq!(offered[0].description, "the tool echo");
    assert_eq!(offered[0].input_schema, json!({"type": "object"}));
}

#[tokio::test]
async fn whatever_goes_wrong_with_a_call_is_a_result_that_the_model_reads() {
    let cases = [
        ("fails", "Error: no such file"),
        ("fails_silently", "Error: the tool failed and does not say why"),
        ("denies", "error -32602: bad params"),
        ("breaks", "status 500"),
        ("strays", "unexpected content type"),
        ("asks", "to ask the user something"),
        ("hangs", "did not answer within 400 ms. It is not known whether it ran."),
        ("odd", "its server gave no usable answer"),
    ];
    let steps: Vec<(&str, &str)> = cases.iter().map(|(name, _)| (*name, "{}")).collect();
    let mut world = World::new(model(&steps));
    let tools = cases.iter().map(|(name, _)| tool(name)).collect();
    let server = ScriptedMcp::start(tools, |params| {
        Box::pin(async move {
            let failed = |content: Value| Answer::Result(json!({"content": content, "isError": true}));
            match params["name"].as_str().unwrap() {
                "fails" => failed(json!([{"type": "text", "text": "Error: no such file"}])),
                "fails_silently" => failed(json!([])),
                "denies" => Answer::Error(-32602, "bad params"),
                "breaks" => Answer::Status(StatusCode::INTERNAL_SERVER_ERROR),
                "strays" => Answer::Page("<html>secret</html>"),
                "asks" => Answer::Result(json!({"resultType": "input_required", "inputRequests": {}})),
                "odd" => Answer::Result(json!({"tools": []})),
                _ => Answer::Never,
            }
        })
    })
    .await;
    process(&mut world, &[("m", McpServerConfig { timeout_ms: Some(400), ..at(&server.url) })]);
    world.done(&world.user("hi")).await;
    let results = results(&world).await;
    assert_eq!(results.len(), cases.len());
    for ((name, expected), (outcome, text)) in cases.iter().zip(&results) {
        assert_eq!(outcome, &Outcome::Error, "{name}: {text}");
        assert!(text.starts_with("Error: ") && text.contains(expected), "{name}: {text}");
        assert!(
            !text.contains("Error: Error") && !text.contains("127.0.0.1") && !text.contains("secret"),
            "{text}"
        );
    }
    assert_eq!(world.output.texts().last().unwrap(), "done");
    // Who has given up says so.
    server.seen_soon("notifications/cancelled", 1).await;
}

#[tokio::test]
async fn the_pages_of_a_list_are_followed_and_odd_tools_are_left_out_and_reported() {
    let server = ScriptedMcp::echoing(vec![]).await;
    let many: Vec<Value> = (0..300).map(|n| tool(&format!("t{n:03}"))).collect();
    server.inner().pages = vec![
        json!([tool("files.read/all"), tool("a b"), {"name": "list", "inputSchema": {"type": "array"}}]),
        json!([tool("twice"), tool("twice"), {"name": "odd", "inputSchema": {"properties": {"x": {"type": "no"}}}}]),
        Value::Array(many),
        json!([tool("never_reached")]),
    ];
    let mut world = World::new(model(&[("m_files.read/all", "")]));
    process(&mut world, &[("m", McpServerConfig { prefix: Some("m_".into()), ..at(&server.url) })]);
    let set = tools_of(&world).await;
    // Of the first 256 four are left out.
    assert_eq!(names(&set).len(), 252);
    assert_eq!(names(&set)[..2], ["m_files.read/all", "m_t000"]);
    for left_out in ["\"m_a b\"", "\"m_list\"", "two tools m_twice", "\"m_odd\"", "only the first 256"] {
        assert!(set.problems.iter().any(|line| line.contains(left_out)), "{left_out}: {:?}", set.problems);
    }
    assert_eq!(set.problems.len(), 5);
    // The server is called by its own name for the tool.
    world.done(&world.user("hi")).await;
    assert_eq!(server.seen("tools/call")[0]["name"], "files.read/all");
    assert_eq!(results(&world).await, [(Outcome::Ok, "{}".to_owned())]);
}

#[tokio::test]
async fn a_list_is_kept_for_other_processes_and_outlives_its_server() {
    let server = ScriptedMcp::echoing(vec![reading("look"), tool("act")]).await;
    let mut world = World::new(model(&[("look", "{}")]));
    process(&mut world, &[("m", at(&server.url))]);
    let set = tools_of(&world).await;
    assert_eq!(names(&set), ["act", "look"]);
    let execution = |name: &str| set.registry.get(name).unwrap().execution();
    assert_eq!(execution("look"), Execution::Synchronous(Rerun::Safe));
    assert_eq!(execution("act"), Execution::Synchronous(Rerun::Never));
    tools_of(&world).await;
    assert_eq!(server.seen("tools/list").len(), 1, "cached in the process");

    let mut other = world.clone();
    process(&mut other, &[("m", at(&server.url))]);
    assert_eq!(names(&tools_of(&other).await), ["act", "look"]);
    assert_eq!(server.seen("initialize").len(), 1, "a kept list costs no connection");

    // It is old, and the server is down: better than nothing, and the call says what is wrong.
    let (kept, _) = world.store.manifest("mcp:m").await.unwrap().unwrap();
    world.store.put_manifest("mcp:m", &kept, 0).await.unwrap();
    let url = server.url.clone();
    drop(server);
    process(&mut world, &[("m", at(&url))]);
    world.done(&world.user("hi")).await;
    let (outcome, said) = results(&world).await.remove(0);
    assert_eq!(outcome, Outcome::Error);
    assert!(said.contains("its server cannot be used: no connection"), "{said}");

    // Under another address the copy is nobody's.
    process(&mut world, &[("m", at(&format!("{url}/other")))]);
    let set = tools_of(&world).await;
    assert!(names(&set).is_empty());
    assert!(set.problems[0].starts_with("MCP server m: its tools cannot be listed"), "{:?}", set.problems);
    assert!(!set.problems[0].contains("127.0.0.1"));
}

#[tokio::test]
async fn tools_that_have_changed_are_offered_at_the_next_step() {
    let server = ScriptedMcp::echoing(vec![tool("old")]).await;
    let mut world = World::new(model(&[]));
    process(&mut world, &[("m", at(&server.url))]);
    assert_eq!(names(&tools_of(&world).await), ["old"]);
    server.change(vec![tool("new")]).await;
    let mut found = Vec::new();
    for _ in 0..500 {
        found = names(&tools_of(&world).await);
        if found == ["new"] {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(found, ["new"]);
    assert_eq!(server.seen("tools/list").len(), 2, "listed again once");
}

#[tokio::test]
async fn a_server_that_forgets_its_sessions_gets_a_new_one() {
    for refusal in [Refusal::NotFound, Refusal::Nameless, Refusal::Named] {
        let server = ScriptedMcp::echoing(vec![tool("echo")]).await;
        let mut world = World::new(model(&[("echo", r#"{"n":1}"#), ("echo", r#"{"n":2}"#)]));
        process(&mut world, &[("m", at(&server.url))]);
        tools_of(&world).await;
        server.inner().sessions.clear();
        server.inner().refusal = refusal;
        world.done(&world.user("hi")).await;
        let texts: Vec<String> = results(&world).await.into_iter().map(|(_, text)| text).collect();
        match refusal {
            Refusal::NotFound | Refusal::Nameless => assert_eq!(texts[0], r#"{"n":1}"#),
            // It may as well be the tool's own error: that call fails.
            Refusal::Named => assert!(texts[0].contains("no such session"), "{texts:?}"),
        }
        assert_eq!(texts[1], r#"{"n":2}"#);
        assert_eq!(server.seen("initialize").len(), 2);
    }
}

#[tokio::test]
async fn an_open_call_runs_again_only_where_its_annotations_allow_it() {
    for (listed, calls, outcome) in [(tool("t"), 1, Outcome::Lost), (reading("t"), 2, Outcome::Ok)] {
        let mut world = World::new(model(&[("t", "{}")]));
        let (store, first) = (world.store.clone(), Arc::new(AtomicBool::new(true)));
        let server = ScriptedMcp::start(vec![listed], move |_| {
            // The commit of the first result fails: it is not known whether the call ran.
            if first.swap(false, Ordering::SeqCst) {
                store.fail_commits([CommitFault::Unavailable]);
            }
            Box::pin(async { text("ran") })
        })
        .await;
        process(&mut world, &[("m", at(&server.url))]);
        let message = world.user("hi");
        assert_eq!(world.deliver(std::slice::from_ref(&message)).await.len(), 1, "handed back");
        world.done(&message.again()).await;
        assert_eq!(results(&world).await[0].0, outcome);
        assert_eq!(server.seen("tools/call").len(), calls);
    }
}

#[tokio::test]
async fn i1_results_that_are_in_when_the_time_is_up_are_kept() {
    let both = vec![
        ScriptedEvent::call("p", "quick", "{}"),
        ScriptedEvent::call("q", "slow", "{}"),
        ScriptedEvent::End("tool_use".into()),
    ];
    let mut world = World::new(ScriptedModel::script(vec![both, vec![ScriptedEvent::Text("done".into())]]));
    let server = ScriptedMcp::start(vec![tool("quick"), tool("slow")], |params| {
        Box::pin(async move { if params["name"] == "quick" { text("was quick") } else { Answer::Never } })
    })
    .await;
    process(&mut world, &[("m", at(&server.url))]);
    let message = world.user("hi");
    let margin = world.runtime.limits.deadline_margin;
    let failed = world.deliver_within(std::slice::from_ref(&message), margin + Duration::from_secs(2)).await;
    assert_eq!(failed.len(), 1, "handed back");
    world.done(&message.again()).await;
    let results = results(&world).await;
    assert_eq!(results[0], (Outcome::Ok, "was quick".to_owned()));
    assert_eq!(results[1].0, Outcome::Lost);
    assert_eq!(server.seen("tools/call").len(), 2, "none ran twice");
    assert_eq!(world.output.texts().last().unwrap(), "done");
}

#[tokio::test]
async fn a_background_call_outlasts_its_slice_and_its_result_wakes_the_thread() {
    let mut world = World::new(model(&[("slow", r#"{"n":1}"#)]));
    let server = ScriptedMcp::start(vec![tool("slow")], |params| {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(300)).await;
            text(params["arguments"].to_string())
        })
    })
    .await;
    process(&mut world, &[("m", background(&server.url))]);
    let message = world.user("hi");
    world.done(&message).await;
    assert_eq!(world.pending().await.len(), 1, "the slice is over, the call is not");
    // A redelivery while it runs is the same call.
    world.done(&message.again()).await;
    for _ in 0..500 {
        if !world.input.sent.lock().unwrap().is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    world.settle().await;
    let story = ["user: hi", r#"call: slow {"n":1}"#, r#"result: {"n":1}"#, "assistant: done"];
    assert_eq!(world.story().await, story);
    assert_eq!(server.seen("tools/call").len(), 1);
}

#[tokio::test]
async fn a_background_call_that_nobody_waits_for_is_cancelled() {
    let mut world = World::new(model(&[("slow", "{}")]));
    let server = ScriptedMcp::start(vec![tool("slow")], |_| Box::pin(async { Answer::Never })).await;
    process(&mut world, &[("m", background(&server.url))]);
    world.done(&world.user("hi")).await;
    server.seen_soon("tools/call", 1).await;
    world.done(&world.user("never mind")).await;
    server.seen_soon("notifications/cancelled", 1).await;
    assert!(world.input.sent.lock().unwrap().is_empty());
    assert!(world.pending().await.is_empty());
}

#[tokio::test]
async fn i7_a_background_call_that_died_with_its_process_is_answered_as_lost() {
    let mut world = World::new(model(&[("slow", "{}")]));
    let server = ScriptedMcp::start(vec![tool("slow")], |_| Box::pin(async { Answer::Never })).await;
    let first = process(&mut world, &[("m", background(&server.url))]);
    let message = world.user("hi");
    world.done(&message).await;
    server.seen_soon("tools/call", 1).await;
    first.close().await;
    assert!(world.input.sent.lock().unwrap().is_empty(), "what died says nothing");

    // Its message may come once more, and the next process looks for what was left: one answer comes of both.
    let second = process(&mut world, &[("m", background(&server.url))]);
    second.answer_lost_calls().await;
    world.done(&message.again()).await;
    world.settle().await;
    let (outcome, said) = results(&world).await.remove(0);
    assert!(said.contains("the result of slow was lost"), "{outcome:?} {said}");
    assert_eq!(server.seen("tools/call").len(), 1, "it did not run twice");
    assert_eq!(world.story().await.last().unwrap(), "assistant: done");
    second.answer_lost_calls().await;
    assert!(world.input.sent.lock().unwrap().is_empty(), "nothing is left behind");
}

#[tokio::test]
async fn a_token_goes_to_its_server_and_one_that_is_missing_is_reported() {
    let server = ScriptedMcp::echoing(vec![tool("echo")]).await;
    let mut world = World::new(model(&[]));
    let with = |name: &str| McpServerConfig { bearer_env: Some(name.to_owned()), ..at(&server.url) };
    // A variable that every test has.
    process(&mut world, &[("m", with("CARGO_PKG_NAME"))]);
    assert_eq!(names(&tools_of(&world).await), ["echo"]);
    assert!(server.inner().headers.iter().all(|headers| headers["authorization"] == "Bearer dormouse"));

    let mut world = World::new(model(&[]));
    process(&mut world, &[("m", with("DORMOUSE_NO_SUCH_VARIABLE"))]);
    let problems = tools_of(&world).await.problems;
    assert!(problems[0].contains("DORMOUSE_NO_SUCH_VARIABLE"), "{problems:?}");
}

#[tokio::test]
async fn two_servers_with_one_name_for_a_tool_need_a_prefix() {
    let (a, b) = (ScriptedMcp::echoing(vec![tool("t")]).await, ScriptedMcp::echoing(vec![tool("t")]).await);
    let mut world = World::new(model(&[]));
    process(&mut world, &[("a", at(&a.url)), ("b", at(&b.url))]);
    let set = tools_of(&world).await;
    assert!(names(&set).is_empty());
    assert!(set.problems[0].contains("a and b all offer a tool t"), "{:?}", set.problems);
    let prefixed = McpServerConfig { prefix: Some("b_".into()), ..at(&b.url) };
    process(&mut world, &[("a", at(&a.url)), ("b", prefixed)]);
    assert_eq!(names(&tools_of(&world).await), ["b_t", "t"]);
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let server = ScriptedMcp::echoing(vec![tool("echo")]).await;
    let target = server.url.clone();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let app = axum::Router::new().fallback(move || {
        let target = target.clone();
        async move { axum::response::Redirect::temporary(&target) }
    });
    let task = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    let mut world = World::new(model(&[]));
    process(&mut world, &[("m", at(&url))]);
    assert_eq!(tools_of(&world).await.problems.len(), 1);
    assert!(server.inner().seen.is_empty());
    task.abort();
}
