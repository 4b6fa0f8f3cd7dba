//! RAP towards tool servers, over real HTTP on loopback: discovery, invocations, notices, and the wire format
//! against `rap-protocol` as an independent peer.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../src/local/demo.rs"]
mod demo;
#[path = "support/logged.rs"]
mod logged;
#[path = "support/rap.rs"]
mod support;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use axum::http::StatusCode;
use dormouse::config::{AgentConfig, Config, ToolServerConfig};
use dormouse::http::{Access, HttpDeps, router};
use dormouse::message::{CallId, ContentPart, InputContent, InputMessage, Seq, ThreadId};
use dormouse::rap::discovery::MANIFEST_TTL;
use dormouse::rap::wire::{Callback, Manifest, Payload};
use dormouse::rap::{CallbackDeps, RapClient, RapTools, http_client};
use dormouse::store::memory::MemoryStore;
use dormouse::store::{Commit, ConversationStore, Expect, Hold, Meta, PendingCall, StateStore, Store};
use dormouse::tools::{
    AgentTools, Execution, Invocation, Rerun, Tool, ToolDefinition, ToolError, ToolSet, ToolSource, Waiting,
    no_arguments,
};
use logged::Logged;
use serde_json::{Value, json};
use support::{Answer, FakeServer, MANIFEST, Outbox, StoreDown, dead_url, manifest, offering, tokens};

/// A built-in tool that does nothing.
struct Builtin(ToolDefinition);

#[async_trait]
impl Tool for Builtin {
    fn definition(&self) -> &ToolDefinition {
        &self.0
    }
    fn execution(&self) -> Execution {
        Execution::Synchronous(Rerun::Safe)
    }
    async fn execute(&self, _: &Invocation) -> Result<(), ToolError> {
        Ok(())
    }
}

fn builtin(name: &str) -> Arc<dyn Tool> {
    Arc::new(Builtin(ToolDefinition {
        name: name.into(),
        description: "built in".into(),
        input_schema: no_arguments(),
    }))
}

fn config(servers: &[(&str, &str)]) -> Config {
    let server =
        |url: &str| ToolServerConfig { url: url.into(), timeout_ms: Some(300), ..Default::default() };
    Config {
        tool_servers: servers.iter().map(|(name, url)| (name.to_string(), server(url))).collect(),
        allow_http_hosts: vec!["127.0.0.1".into()],
        ..Config::default()
    }
}

fn source(config: Config, store: impl Store + 'static) -> AgentTools {
    let config = Arc::new(config);
    let rap =
        RapTools::new(config.clone(), Arc::new(store), tokens("https://cb.example"), http_client().unwrap());
    AgentTools::new(config, vec![builtin("sleep")], vec![Arc::new(rap)])
}

fn client(config: Config) -> RapClient {
    RapClient::new(Arc::new(config), http_client().unwrap())
}

async fn tools_of(source: &AgentTools) -> ToolSet {
    source.tools("default", &ThreadId::from("th-1")).await
}

fn names(set: &ToolSet) -> Vec<String> {
    set.registry.iter().map(|tool| tool.definition().name.clone()).collect()
}

fn call(name: &str, arguments: &str) -> Invocation {
    Invocation {
        thread: ThreadId::from("th-2"),
        ancestors: vec![ThreadId::from("th-0"), ThreadId::from("th-1")],
        call: CallId::from("c0-7-abc"),
        name: name.into(),
        arguments: arguments.into(),
        user: Some("u-9".into()),
        cause: vec![],
        resumed: false,
    }
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64
}

// Discovery.

#[tokio::test]
async fn rap_19_tools_of_all_servers_and_the_built_in_ones_make_one_registry() {
    let a = offering(&["watch", "build"], |_, _| StatusCode::OK.into()).await;
    let b = offering(&["grep"], |_, _| StatusCode::OK.into()).await;
    // A trailing slash makes no difference.
    let source = source(config(&[("a", &a.url), ("b", &format!("{}/", b.url))]), MemoryStore::new());
    let set = tools_of(&source).await;
    assert_eq!(names(&set), ["build", "grep", "sleep", "watch"]);
    assert_eq!(set.problems, Vec::<String>::new());
    let watch = set.registry.get("watch").unwrap();
    assert_eq!(watch.server(), Some("a"));
    assert_eq!(watch.execution(), Execution::Asynchronous(Waiting::Active));
    assert!(set.registry.of_server("b").is_some());
    // Cached in the process: the second look costs no request.
    tools_of(&source).await;
    assert_eq!((a.at(MANIFEST).len(), b.at(MANIFEST).len()), (1, 1));
}

#[tokio::test]
async fn an_agent_gets_the_servers_it_names_each_once() {
    let a = offering(&["watch"], |_, _| StatusCode::OK.into()).await;
    let mut config = config(&[("a", &a.url), ("b", &a.url)]);
    let only = AgentConfig { tool_servers: Some(vec!["a".into(), "a".into()]), ..Default::default() };
    config.agents.insert("picky".into(), only);
    let none = AgentConfig { tool_servers: Some(vec![]), ..Default::default() };
    config.agents.insert("alone".into(), none);
    let source = source(config, MemoryStore::new());
    let root = ThreadId::from("th-1");
    let picky = source.tools("picky", &root).await;
    assert_eq!((names(&picky), picky.problems.len()), (vec!["sleep".into(), "watch".into()], 0));
    assert_eq!(names(&source.tools("alone", &root).await), ["sleep"]);
    let nobody = source.tools("nobody", &root).await;
    assert_eq!(names(&nobody), ["sleep"]);
    assert!(nobody.problems[0].contains("nobody"), "{:?}", nobody.problems);
}

#[tokio::test]
async fn rap_20_clashes_are_reported_and_neither_side_is_exposed_but_built_in_names_win() {
    let a =
        offering(&["grep", "sleep", "own_a", "receive_event__injected"], |_, _| StatusCode::OK.into()).await;
    let b = offering(&["grep", "own_b"], |_, _| StatusCode::OK.into()).await;
    let set = tools_of(&source(config(&[("a", &a.url), ("b", &b.url)]), MemoryStore::new())).await;
    assert_eq!(names(&set), ["own_a", "own_b", "sleep"]);
    assert_eq!(set.registry.get("sleep").unwrap().server(), None);
    let problem = |tool: &str| set.problems.iter().find(|problem| problem.contains(tool)).unwrap().clone();
    assert!(problem("grep").contains("a and b"), "{}", problem("grep"));
    assert!(problem("sleep").contains("server a"), "{}", problem("sleep"));
    assert!(problem("receive_event__injected").contains("server a"));
    assert_eq!(set.problems.len(), 3);
    assert!(set.problems.iter().all(|problem| !problem.contains('\n')));
}

#[tokio::test]
async fn rap_21_a_manifest_that_breaks_a_rule_loads_nothing_of_its_set_and_costs_no_other() {
    let bad = FakeServer::start(|_, _| manifest("https://x.example", &["ok", "not ok"]).into()).await;
    let http = FakeServer::start(|_, _| manifest("http://elsewhere.example/invoke", &["x"]).into()).await;
    let text = FakeServer::start(|_, _| "<html>".to_owned().into()).await;
    let bytes =
        FakeServer::start(|_, _| Answer::Now(axum::response::IntoResponse::into_response(vec![b'{', 0xFF])))
            .await;
    let large = FakeServer::start(|_, _| " ".repeat(1024 * 1024 + 1).into()).await;
    let good = offering(&["good"], |_, _| StatusCode::OK.into()).await;
    let servers = [
        ("bad", &*bad.url),
        ("http", &*http.url),
        ("text", &*text.url),
        ("bytes", &*bytes.url),
        ("large", &*large.url),
        ("good", &*good.url),
    ];
    let store = MemoryStore::new();
    let set = tools_of(&source(config(&servers), store.clone())).await;
    assert_eq!(names(&set), ["good", "sleep"]);
    for (server, reason) in [
        ("bad", "not ok"),
        ("http", "elsewhere.example"),
        ("text", "expected value"),
        ("bytes", "key must be a string"),
        ("large", "larger"),
    ] {
        let named = format!("Tool server {server}:");
        let problem = set.problems.iter().find(|problem| problem.starts_with(&named)).unwrap();
        assert!(problem.contains(reason), "{problem}");
        assert_eq!(store.manifest(server).await.unwrap(), None, "nothing bad is cached");
    }
    assert_eq!(set.problems.len(), 5);
}

#[tokio::test]
async fn rap_24_a_server_that_is_down_keeps_its_last_good_copy_and_is_reported_without_one() {
    let dead = dead_url().await;
    let hangs = FakeServer::start(|_, _| Answer::Never).await;
    let broken = FakeServer::start(|_, _| StatusCode::INTERNAL_SERVER_ERROR.into()).await;
    let moved = FakeServer::start(|_, _| {
        let mut response = axum::response::Response::new(axum::body::Body::empty());
        *response.status_mut() = StatusCode::FOUND;
        response.headers_mut().insert("location", "/elsewhere".parse().unwrap());
        Answer::Now(response)
    })
    .await;
    let servers =
        [("dead", &*dead), ("hangs", &*hangs.url), ("broken", &*broken.url), ("moved", &*moved.url)];

    let set = tools_of(&source(config(&servers), MemoryStore::new())).await;
    assert_eq!(names(&set), ["sleep"]);
    for (server, cause) in
        [("dead", "no connection"), ("hangs", "in time"), ("broken", "500"), ("moved", "redirects")]
    {
        let problem =
            set.problems.iter().find(|problem| problem.contains(&format!("server {server}:"))).unwrap();
        assert!(
            problem.contains(cause) && problem.contains(&format!("tool_servers.{server}.url")),
            "{problem}"
        );
        assert!(!problem.contains("http"), "no address: {problem}");
    }
    assert!(moved.at("/elsewhere").is_empty(), "redirects are not followed");

    // The same servers with copies that have long expired.
    let store = MemoryStore::new();
    for (server, _) in servers {
        let copy = manifest("https://b.example/invoke", &[server]);
        store.put_manifest(server, &copy, 1).await.unwrap();
    }
    let source = source(config(&servers), store);
    let set = tools_of(&source).await;
    assert_eq!(names(&set), ["broken", "dead", "hangs", "moved", "sleep"]);
    assert_eq!(set.problems, Vec::<String>::new());
    // A failed server is left in peace for a while: no slice waits for it again.
    tools_of(&source).await;
    assert_eq!(hangs.seen().len(), 2, "one request of each source");
}

#[tokio::test]
async fn rap_23_a_stored_copy_counts_until_it_expires() {
    let server = offering(&["new"], |_, _| StatusCode::OK.into()).await;
    let store = MemoryStore::new();
    let old = manifest("https://b.example/invoke", &["old"]);
    let ttl = MANIFEST_TTL.as_millis() as i64;
    let with_age = async |age: i64| {
        store.put_manifest("a", &old, now_ms() - age).await.unwrap();
        names(&tools_of(&source(config(&[("a", &server.url)]), store.clone())).await)
    };
    assert_eq!(with_age(1_000).await, ["old", "sleep"]);
    assert_eq!(server.seen().len(), 0);
    assert_eq!(with_age(ttl + 1).await, ["new", "sleep"]);
    assert_eq!(with_age(-2 * ttl).await, ["new", "sleep"], "a copy from the future does not count for ever");
    // What was fetched is what other processes now read.
    assert_eq!(server.seen().len(), 2);
    let (stored, at) = store.manifest("a").await.unwrap().unwrap();
    assert!(stored.contains("\"new\"") && (now_ms() - at) < 60_000);
    // A stored copy that this version refuses is no copy.
    store.put_manifest("a", "{}", now_ms()).await.unwrap();
    assert_eq!(
        names(&tools_of(&source(config(&[("a", &server.url)]), store.clone())).await),
        ["new", "sleep"]
    );
}

#[tokio::test]
async fn rap_24_a_store_that_is_down_costs_the_cache_and_nothing_else() {
    let server = offering(&["watch"], |_, _| StatusCode::OK.into()).await;
    let set = tools_of(&source(config(&[("a", &server.url)]), StoreDown)).await;
    assert_eq!((names(&set), set.problems.len()), (vec!["sleep".into(), "watch".into()], 0));
}

#[tokio::test]
async fn rap_25_a_pinned_manifest_that_changed_is_refused() {
    let server = offering(&["watch"], |_, _| StatusCode::OK.into()).await;
    let mut config = config(&[("a", &server.url)]);
    config.tool_servers.get_mut("a").unwrap().manifest_sha256 = Some("0".repeat(64));
    let set = tools_of(&source(config, MemoryStore::new())).await;
    assert_eq!(names(&set), ["sleep"]);
    assert!(set.problems[0].contains("manifest_sha256"), "{:?}", set.problems);
}

// Invocations.

async fn dispatch(server: &FakeServer, config: Config, call: &Invocation) -> Result<(), ToolError> {
    let set = tools_of(&source(config, MemoryStore::new())).await;
    assert!(set.registry.get(&call.name).is_some(), "{:?} {:?}", set.problems, server.url);
    set.registry.get(&call.name).unwrap().execute(call).await
}

#[tokio::test]
async fn rap_28_31_f37_an_invocation_says_what_the_protocol_asks_and_its_arguments_are_kept_to_the_byte() {
    let server = offering(&["watch"], |_, _| StatusCode::OK.into()).await;
    let arguments = r#"{"a":1.0,"b":0.1,"c":12345678901234567890123,"z":1,"y":2,"z":3}"#;
    dispatch(&server, config(&[("a", &server.url)]), &call("watch", arguments)).await.unwrap();
    let seen = server.at("/invoke").remove(0);
    assert_eq!(seen.headers["content-type"], "application/json");
    assert!(seen.text().contains(&format!("\"arguments\":{arguments},")), "{}", seen.text());
    let callback_url = tokens("https://cb.example").url(&ThreadId::from("th-2"), &CallId::from("c0-7-abc"));
    let body = seen.json();
    assert_eq!(
        without(body.clone(), "arguments"),
        json!({"operation": "watch", "id": "c0-7-abc", "call_id": null, "callback_url": callback_url,
               "group_id": "th-2", "thread_ancestors": ["th-0", "th-1"]})
    );
    // The independent peer reads it.
    let read: rap_protocol::RapInvocation = serde_json::from_slice(&seen.body).unwrap();
    assert_eq!(read.operation, "watch");
    assert_eq!(read.group_id.to_string(), "th-2");
    assert_eq!(read.thread_ancestors.unwrap().len(), 2);

    // On a root, with the user's id allowed, and with arguments that a provider streamed as nothing (F47).
    let mut config = config(&[("a", &server.url)]);
    config.send_user_id = true;
    let root = Invocation { ancestors: vec![], ..call("watch", "") };
    dispatch(&server, config.clone(), &root).await.unwrap();
    let body = server.at("/invoke").remove(1).json();
    assert_eq!((&body["thread_ancestors"], &body["user_id"]), (&Value::Null, &json!("u-9")));
    assert_eq!(body["arguments"], json!({}));
    dispatch(&server, config, &Invocation { user: None, ..root }).await.unwrap();
    assert!(server.at("/invoke").remove(2).json().get("user_id").is_none());
}

#[tokio::test]
async fn rap_02_20_22_a_call_goes_to_the_endpoint_of_its_own_set_and_case_counts() {
    let a = offering(&["grep"], |_, _| StatusCode::OK.into()).await;
    let elsewhere = FakeServer::start(|_, _| StatusCode::OK.into()).await;
    let set = manifest(&format!("{}/deep/down?x=1", elsewhere.url), &["Grep", "GREP"]);
    let b = FakeServer::start(move |_, _| set.clone().into()).await;
    let set = tools_of(&source(config(&[("a", &a.url), ("b", &b.url)]), MemoryStore::new())).await;
    assert_eq!((names(&set).len(), set.problems.len()), (4, 0), "{:?}", set.problems);
    for name in ["grep", "Grep", "GREP"] {
        set.registry.get(name).unwrap().execute(&call(name, "{}")).await.unwrap();
    }
    let operations = |server: &FakeServer, path: &str| -> Vec<Value> {
        server.at(path).iter().map(|seen| seen.json()["operation"].clone()).collect()
    };
    assert_eq!(operations(&a, "/invoke"), ["grep"]);
    assert_eq!(operations(&elsewhere, "/deep/down"), ["Grep", "GREP"]);
    assert_eq!(b.seen().len(), 1, "the manifest alone");
}

#[tokio::test]
async fn rap_32_d35_an_invocation_is_logged_with_its_outcome_and_without_what_it_says() {
    let server = offering(&["watch"], |_, before| match before {
        0 | 1 => StatusCode::OK.into(),
        _ => StatusCode::FORBIDDEN.into(),
    })
    .await;
    let set = tools_of(&source(config(&[("builds", &server.url)]), MemoryStore::new())).await;
    let tool = set.registry.get("watch").unwrap();
    let logged = Logged::here();
    let secret = r#"{"password":"hunter2"}"#;
    tool.execute(&call("watch", secret)).await.unwrap();
    tool.execute(&call("watch", secret)).await.unwrap_err();
    let log = logged.text();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("invocation")).collect();
    assert_eq!(lines.len(), 2, "{log}");
    for (line, acknowledged) in lines.iter().zip(["acknowledged=true", "acknowledged=false"]) {
        for part in ["thread=th-2", "call=c0-7-abc", "builds", "watch", "bytes=22", "ms=", acknowledged] {
            assert!(line.contains(part), "{part} is not in {line}");
        }
    }
    // Also on the lowest level: neither arguments, nor the token of the callback, nor the user.
    let ours = |line: &&str| line.contains("dormouse::");
    let callback = tokens("").token(&ThreadId::from("th-2"), &CallId::from("c0-7-abc"));
    for line in log.lines().filter(ours) {
        for secret in ["hunter2", &callback, "cb.example", "u-9", "http://"] {
            assert!(!line.contains(secret), "{secret} is in {line}");
        }
    }
}

fn without(mut body: Value, member: &str) -> Value {
    body.as_object_mut().unwrap().remove(member);
    body
}

#[tokio::test]
async fn rap_03_any_2xx_is_an_acknowledgement_and_its_body_is_not_read() {
    for status in [200, 201, 202, 204] {
        let server = offering(&["t"], move |_, _| StatusCode::from_u16(status).unwrap().into()).await;
        assert_eq!(dispatch(&server, config(&[("a", &server.url)]), &call("t", "{}")).await, Ok(()));
        assert_eq!(server.at("/invoke").len(), 1);
    }
}

#[tokio::test]
async fn rap_04_what_passes_is_tried_three_times_with_the_same_id_and_growing_waits() {
    for status in [500, 502, 503, 504, 429] {
        let server = offering(&["t"], move |_, _| StatusCode::from_u16(status).unwrap().into()).await;
        let started = std::time::Instant::now();
        let error = dispatch(&server, config(&[("a", &server.url)]), &call("t", "{}")).await.unwrap_err();
        assert!(started.elapsed() >= Duration::from_millis(800), "200 ms and 600 ms at least");
        let ToolError::Unavailable(text) = &error else { panic!("{error:?}") };
        assert!(text.contains("tool t") && text.contains(&status.to_string()), "{text}");
        let bodies: Vec<_> = server.at("/invoke").into_iter().map(|seen| seen.body).collect();
        assert_eq!(bodies.len(), 3);
        assert!(bodies.iter().all(|body| *body == bodies[0]), "the same id and the same body each time");
    }
    let server = offering(&["t"], |_, before| match before {
        0..=2 => StatusCode::SERVICE_UNAVAILABLE.into(),
        _ => StatusCode::OK.into(),
    })
    .await;
    assert_eq!(dispatch(&server, config(&[("a", &server.url)]), &call("t", "{}")).await, Ok(()));
}

#[tokio::test]
async fn rap_04_05_a_refusal_is_final_and_its_text_is_for_the_model() {
    for status in [400, 401, 403, 404, 409, 422, 301, 307] {
        let server = offering(&["t"], move |seen, _| match seen.path.as_str() {
            "/invoke" => {
                let mut response = axum::response::Response::new("secret stack trace".into());
                *response.status_mut() = StatusCode::from_u16(status).unwrap();
                response.headers_mut().insert("location", "/elsewhere".parse().unwrap());
                Answer::Now(response)
            }
            _ => StatusCode::OK.into(),
        })
        .await;
        let error = dispatch(&server, config(&[("a", &server.url)]), &call("t", "{}")).await.unwrap_err();
        let ToolError::Failed(text) = &error else { panic!("{error:?}") };
        assert!(text.contains("tool t") && text.contains(&status.to_string()), "{text}");
        assert!(!text.contains("http") && !text.contains("secret"), "{text}");
        assert_eq!((server.at("/invoke").len(), server.at("/elsewhere").len()), (1, 0), "status {status}");
    }
}

#[tokio::test]
async fn rap_04_d25_a_server_that_hangs_or_is_gone_is_tried_again_and_the_cause_is_plain() {
    let server = offering(&["t"], |_, _| Answer::Never).await;
    let error = dispatch(&server, config(&[("a", &server.url)]), &call("t", "{}")).await.unwrap_err();
    assert!(matches!(&error, ToolError::Unavailable(text) if text.contains("in time")), "{error:?}");
    assert_eq!(server.at("/invoke").len(), 3);

    let gone = dead_url().await;
    let store = MemoryStore::new();
    store.put_manifest("a", &manifest(&format!("{gone}/invoke"), &["t"]), now_ms()).await.unwrap();
    let set = tools_of(&source(config(&[("a", &gone)]), store)).await;
    let error = set.registry.get("t").unwrap().execute(&call("t", "{}")).await.unwrap_err();
    let ToolError::Unavailable(text) = &error else { panic!("{error:?}") };
    assert!(text.contains("no connection") && !text.contains("127.0.0.1"), "{text}");
}

#[tokio::test]
async fn rap_07_a_bearer_token_goes_to_its_own_server_and_nowhere_else() {
    // cargo sets this variable for tests; setting one of our own would be unsafe.
    const TOKEN_ENV: &str = "CARGO_PKG_NAME";
    let own = offering(&["own"], |_, _| StatusCode::OK.into()).await;
    let other = FakeServer::start(|_, _| StatusCode::OK.into()).await;
    let elsewhere = manifest(&format!("{}/invoke", other.url), &["foreign"]);
    let sends_away = FakeServer::start(move |_, _| elsewhere.clone().into()).await;
    let mut config = config(&[("own", &own.url), ("away", &sends_away.url)]);
    for server in config.tool_servers.values_mut() {
        server.bearer_env = Some(TOKEN_ENV.into());
    }
    let source = source(config.clone(), MemoryStore::new());
    let set = tools_of(&source).await;
    set.registry.get("own").unwrap().execute(&call("own", "{}")).await.unwrap();
    set.registry.get("foreign").unwrap().execute(&call("foreign", "{}")).await.unwrap();
    set.registry.get("own").unwrap().cancel(&ThreadId::from("t"), &CallId::from("c")).await;
    assert_eq!(own.seen().len(), 3);
    assert!(own.seen().iter().all(|seen| seen.headers["authorization"] == "Bearer dormouse"));
    assert_eq!(other.seen().len(), 1);
    assert!(other.seen()[0].headers.get("authorization").is_none(), "another origin");

    config.tool_servers.get_mut("own").unwrap().bearer_env = Some("DORMOUSE_NO_SUCH_VARIABLE".into());
    let set = tools_of(&self::source(config, MemoryStore::new())).await;
    assert!(set.problems[0].contains("DORMOUSE_NO_SUCH_VARIABLE"), "{:?}", set.problems);
    assert!(set.registry.get("own").is_none());
}

#[tokio::test]
async fn a_serial_server_has_its_calls_wait_for_their_turn() {
    let (one, all) =
        (offering(&["one"], |_, _| StatusCode::OK.into()), offering(&["all"], |_, _| StatusCode::OK.into()));
    let (one, all) = (one.await, all.await);
    let mut config = config(&[("one", &one.url), ("all", &all.url)]);
    config.tool_servers.get_mut("one").unwrap().serial = true;
    assert!(config.check().is_ok());
    let set = tools_of(&source(config, MemoryStore::new())).await;
    assert_eq!(set.registry.get("one").unwrap().hold(), Some(Hold::Turn));
    assert_eq!(set.registry.get("all").unwrap().hold(), None);
}

// Notices and answers.

#[tokio::test]
async fn rap_46_47_notices_go_to_the_base_address_once_and_wait_for_nobody() {
    let ok = offering(&["t"], |_, _| StatusCode::OK.into()).await;
    let broken = offering(&["u"], |_, _| StatusCode::INTERNAL_SERVER_ERROR.into()).await;
    let hangs = offering(&["v"], |_, _| Answer::Never).await;
    let config = config(&[("ok", &ok.url), ("broken", &broken.url), ("hangs", &hangs.url)]);
    let source = source(config.clone(), MemoryStore::new());
    let set = tools_of(&source).await;
    let (thread, call) = (ThreadId::from("th-2"), CallId::from("c-1"));
    let started = std::time::Instant::now();
    for tool in ["t", "u"] {
        set.registry.get(tool).unwrap().cancel(&thread, &call).await;
    }
    assert_eq!(ok.at("/cancel_tool_call")[0].json(), json!({"thread_id": "th-2", "tool_call_id": "c-1"}));
    for tool in set.registry.one_of_each_server() {
        tool.close(&thread).await;
    }
    assert_eq!(ok.at("/close_thread")[0].json(), json!({"thread_id": "th-2"}));
    for server in [&ok, &broken, &hangs] {
        assert_eq!(server.at("/close_thread").len(), 1, "one attempt");
    }
    assert_eq!(broken.at("/cancel_tool_call").len(), 1);
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
}

#[tokio::test]
async fn rap_44_an_answer_is_posted_to_a_configured_host_only() {
    let server = offering(&["t"], |_, _| StatusCode::OK.into()).await;
    let client = client(config(&[("a", &server.url)]));
    let choice = CallId::from("c-1");
    let url = format!("{}/answer?x=1", server.url);
    client.answer_choice(&url, &choice, 1).await.unwrap();
    assert_eq!(server.at("/answer")[0].json(), json!({"id": "c-1", "selected": 1}));
    let port = server.url.rsplit_once(':').unwrap().1;
    for foreign in ["https://evil.example/".to_owned(), format!("http://localhost:{port}/answer"), "x".into()]
    {
        let error = client.answer_choice(&foreign, &choice, 1).await.unwrap_err();
        assert!(!error.to_string().contains("evil"), "{error}");
    }
    assert_eq!(server.seen().len(), 1);
}

// The wire against an independent peer.

#[test]
fn what_rap_protocol_writes_is_read() {
    use rap_protocol::{
        DiffContent, DisplaySegment, ImageContent, RapCallback, RapOAuth, RapSubscriptionEvent,
        RapToolResult, RapToolResultContent, RapUserChoice, RapViewUpdate,
    };
    let read = |callback: RapCallback| {
        let callback = Callback::parse(serde_json::to_string(&callback).unwrap().as_bytes()).unwrap();
        assert_eq!(callback.thread.as_str(), "th-2");
        (callback.call.clone().map(|call| call.as_str().to_owned()), callback.payload().unwrap())
    };
    let result = RapToolResult {
        group_id: "th-2".to_owned().into(),
        id: "c-1".to_owned().into(),
        call_id: Some("p-1".to_owned().into()),
        text: Some("text".into()),
        content: Some(vec![
            RapToolResultContent::Text { text: "a".into() },
            RapToolResultContent::Image { data: "AAAA".into(), media_type: "image/png".into() },
        ]),
        display_as: Some(vec![
            DisplaySegment::Text("shown".into()),
            DisplaySegment::Diff(DiffContent { path: "f".into(), patch: "---".into() }),
            DisplaySegment::Image(ImageContent { data: "AAAA".into(), media_type: "image/png".into() }),
        ]),
        subscription: Some(true),
    };
    let (call, payload) = read(RapCallback::ToolResult(result));
    assert_eq!(call.as_deref(), Some("c-1"));
    let Payload::ToolResult(result) = payload else { panic!("{payload:?}") };
    assert_eq!((result.parts.len(), result.subscription, result.call_id.as_deref()), (2, true, Some("p-1")));
    let display = result.display_as.unwrap();
    let segments: Vec<DisplaySegment> = serde_json::from_str(display.get()).unwrap();
    assert_eq!(segments.len(), 3, "what is passed on is what the peer reads");

    let (call, payload) = read(RapCallback::SubscriptionEvent(RapSubscriptionEvent {
        group_id: "th-2".to_owned().into(),
        tool_call_id: "c-1".to_owned().into(),
        text: "green".into(),
        associative: true,
        r#final: None,
    }));
    assert_eq!(call.as_deref(), Some("c-1"));
    assert!(matches!(payload, Payload::Event(event) if event.associative && !event.r#final));

    let (_, payload) = read(RapCallback::OAuth(RapOAuth {
        group_id: "th-2".to_owned().into(),
        id: "c-1".to_owned().into(),
        call_id: None,
        auth_url: "https://idp.example/".into(),
    }));
    assert!(matches!(payload, Payload::OAuth { call_id: None, .. }));

    let (_, payload) = read(RapCallback::UserChoice(RapUserChoice {
        group_id: "th-2".to_owned().into(),
        id: "c-1".to_owned().into(),
        call_id: None,
        prompt: "?".into(),
        choices: vec!["a".into(), "b".into()],
        default: 1,
        response_url: "https://b.example/".into(),
    }));
    assert!(matches!(payload, Payload::Choice(choice) if choice.default == 1 && choice.choices.len() == 2));

    let (call, payload) = read(RapCallback::ViewUpdate(RapViewUpdate {
        group_id: "th-2".to_owned().into(),
        view_type: "diff".into(),
        content: json!({"patch": ""}),
    }));
    assert_eq!(call, None);
    assert!(matches!(payload, Payload::View { view_type, .. } if view_type == "diff"));
}

#[test]
fn a_manifest_is_read_the_same_by_both_sides() {
    let text = r#"{"name":"builds","endpoint":"https://b.example/invoke","tools":[{"name":"watch_build",
        "description":"Follow a build","inputSchema":{"type":"object","properties":{"build":{"type":"integer"}},
        "required":["build"]},"annotations":{"longRunning":true,"example.com/x":[1]},"displayScript":"args.build"}],
        "needsMigration":true}"#;
    let ours: Manifest = serde_json::from_str(text).unwrap();
    let theirs: rap_protocol::ToolsetManifest = serde_json::from_str(text).unwrap();
    let (a, b) = (serde_json::to_value(&ours).unwrap(), serde_json::to_value(&theirs).unwrap());
    assert_eq!(a, b);
    let back: rap_protocol::ToolsetManifest = serde_json::from_value(a).unwrap();
    assert_eq!(back.tools[0].name, "watch_build");
    let back: Manifest = serde_json::from_value(b).unwrap();
    assert_eq!(back, ours);
}

// The whole way round: discovery, dispatch, a real peer, the callback, the queue.

async fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..500 {
        if let Some(found) = look() {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it did not come");
}

#[tokio::test]
async fn f62_the_demo_servers_results_come_back_as_inputs() {
    let demo = demo::DemoServer::start(0).await.unwrap();
    let store = MemoryStore::new();
    let thread = ThreadId::from("th-2");
    let calls = [
        ("c-echo", "srv_echo", r#"{"b":1.0,"a":"é"}"#, r#"{"b":1.0,"a":"é"}"#),
        ("c-fail", "srv_fail", "{}", "Error: tool broke"),
        ("c-slow", "srv_slow", r#"{"ms":50}"#, r#"{"ms":50}"#),
        ("c-time", "srv_time", "{}", "20"),
    ];
    let mut meta = Meta::new_root(thread.clone(), "default", None, 0);
    meta.token = "seed".into();
    meta.pending = calls
        .iter()
        .map(|(call, name, _, _)| PendingCall {
            call: CallId::from(*call),
            seq: Seq(1),
            name: name.to_string(),
            passive: false,
            synchronous: false,
            server: Some("demo".into()),
            hold: None,
            terms: Default::default(),
            parked: false,
            cause: vec![],
            user: None,
            extra: serde_json::Map::new(),
        })
        .collect();
    let commit = Commit::new(Expect::Absent, meta, 0);
    store.commit(commit).await.unwrap();

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let tokens = tokens(&format!("http://{}", listener.local_addr().unwrap()));
    let config = Arc::new(config(&[("demo", demo.url())]));
    let outbox = Arc::new(Outbox::default());
    let callback = CallbackDeps {
        store: Arc::new(store.clone()),
        sender: outbox.clone(),
        tokens: tokens.clone(),
        config: config.clone(),
    };
    let app = router(HttpDeps { callback, access: Access::Closed, webhooks: Default::default() });
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });

    let rap = Arc::new(RapTools::new(config.clone(), Arc::new(store), tokens, http_client().unwrap()));
    let source = AgentTools::new(config, vec![], vec![rap.clone()]);
    let set = tools_of(&source).await;
    assert_eq!(names(&set), ["srv_echo", "srv_fail", "srv_slow", "srv_time"]);
    assert!(set.registry.check_arguments("srv_slow", "{}").is_err(), "its schema is checked");
    for (id, name, arguments, _) in calls {
        let invocation = Invocation { call: CallId::from(id), ..call(name, arguments) };
        set.registry.get(name).unwrap().execute(&invocation).await.unwrap();
    }
    let sent = until(|| Some(outbox.sent()).filter(|sent| sent.len() == calls.len())).await;
    for (id, _, _, expected) in calls {
        let text = sent.iter().find_map(|(message, _)| answer_to(message, id)).unwrap();
        assert!(text.starts_with(expected), "{id}: {text}");
    }

    // A cancelled call of the demo never answers.
    outbox.take();
    let slow = Invocation { call: CallId::from("c-slow"), ..call("srv_slow", r#"{"ms":300}"#) };
    let tool = set.registry.get("srv_slow").unwrap();
    tool.execute(&slow).await.unwrap();
    tool.cancel(&slow.thread, &slow.call).await;
    tool.close(&slow.thread).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(outbox.take(), vec![]);
    demo.stop();
}

fn answer_to(message: &InputMessage, call: &str) -> Option<String> {
    match &message.content {
        InputContent::ToolResult(result) if result.id.as_str() == call => {
            Some(ContentPart::join_text(&result.content))
        }
        _ => None,
    }
}
