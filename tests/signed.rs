//! AWS signatures of requests to tool servers, over real HTTP. The server computes each signature anew from the bytes
//! that it received, by the published rules and not with the signer's crate, and refuses what is not signed so.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/rap.rs"]
mod peer;

use std::io::Write;
use std::sync::{Arc, Mutex};

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::Credentials;
use aws_credential_types::provider::SharedCredentialsProvider;
use axum::http::StatusCode;
use data_encoding::HEXLOWER;
use dormouse::config::{Config, SigV4Config, ToolServerConfig};
use dormouse::message::{CallId, ThreadId};
use dormouse::rap::{RapClient, RapTools, Signer, http_client};
use dormouse::store::memory::MemoryStore;
use dormouse::tools::{AgentTools, Invocation, ToolSet, ToolSource};
use hmac::{Hmac, KeyInit, Mac};
use peer::{Answer, FakeServer, Seen, tokens};
use serde_json::json;
use sha2::{Digest, Sha256};

const KEY_ID: &str = "AKIDEXAMPLE";
const SECRET: &str = "wJalrXUtnFEMI-K7MDENG-bPxRfiCYEXAMPLEKEY";
const SESSION: &str = "FwoGZXIvYXdzEXAMPLESESSIONTOKEN";

fn hmac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

/// The signature that the request must have for its own `Authorization` scope, or why there is none.
fn check(seen: &Seen, service: &str, region: &str) -> Result<(), String> {
    let header = |name: &str| {
        let value = seen.headers.get(name).ok_or_else(|| format!("{name} is missing"))?;
        value.to_str().map(str::to_owned).map_err(|e| e.to_string())
    };
    let authorization = header("authorization")?;
    let fields = authorization.strip_prefix("AWS4-HMAC-SHA256 ").ok_or("another scheme")?;
    let field = |name: &str| {
        let found = fields.split(", ").find_map(|field| field.strip_prefix(&format!("{name}=")));
        found.ok_or_else(|| format!("{name} is missing"))
    };
    let time = header("x-amz-date")?;
    let scope = format!("{}/{region}/{service}/aws4_request", &time[..8]);
    if field("Credential")? != format!("{KEY_ID}/{scope}") {
        return Err(format!("another scope: {}", field("Credential")?));
    }
    if header("x-amz-security-token")? != SESSION {
        return Err("another session".into());
    }
    let signed: Vec<&str> = field("SignedHeaders")?.split(';').collect();
    for needed in ["host", "x-amz-date", "x-amz-security-token"] {
        if !signed.contains(&needed) {
            return Err(format!("{needed} is not signed"));
        }
    }
    if !seen.body.is_empty() && !signed.contains(&"content-type") {
        return Err("content-type is not signed".into());
    }
    let mut canonical = format!("{}\n{}\n\n", seen.method, seen.path);
    for name in &signed {
        canonical.push_str(&format!("{name}:{}\n", header(name)?.trim()));
    }
    canonical.push_str(&format!("\n{}\n{}", signed.join(";"), HEXLOWER.encode(&Sha256::digest(&seen.body))));
    let digest = HEXLOWER.encode(&Sha256::digest(canonical.as_bytes()));
    let to_sign = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{digest}");
    let mut key = format!("AWS4{SECRET}").into_bytes();
    for part in scope.split('/') {
        key = hmac(&key, part);
    }
    match HEXLOWER.encode(&hmac(&key, &to_sign)) == field("Signature")? {
        true => Ok(()),
        false => Err(format!("another signature than that of:\n{canonical}")),
    }
}

/// A server that offers `tool` under `endpoint`, or its own address, and refuses what is not signed for it.
async fn strict(tool: &'static str, endpoint: Option<String>) -> (FakeServer, Arc<Mutex<Vec<String>>>) {
    let refused = Arc::new(Mutex::new(Vec::new()));
    let noted = refused.clone();
    let server = FakeServer::start(move |seen, _| {
        if let Err(why) = check(seen, "execute-api", "eu-central-1") {
            noted.lock().unwrap().push(format!("{} {}: {why}", seen.method, seen.path));
            return StatusCode::FORBIDDEN.into();
        }
        match seen.path.as_str() {
            "/v1/.well-known/rap-toolset" => {
                let own = format!("http://{}/v1/invoke", seen.headers["host"].to_str().unwrap());
                let endpoint = endpoint.clone().unwrap_or(own);
                let tool = json!({"name": tool, "description": "d", "inputSchema": {}});
                Answer::from(json!({"name": "s", "endpoint": endpoint, "tools": [tool]}).to_string())
            }
            _ => StatusCode::OK.into(),
        }
    })
    .await;
    (server, refused)
}

fn config(servers: &[(&str, &str, Option<&str>)]) -> Config {
    let server = |url: &str, region: Option<&str>| ToolServerConfig {
        url: format!("{url}/v1"),
        sigv4: Some(SigV4Config { service: "execute-api".into(), region: region.map(str::to_owned) }),
        ..Default::default()
    };
    Config {
        tool_servers: servers
            .iter()
            .map(|(name, url, region)| (name.to_string(), server(url, *region)))
            .collect(),
        allow_http_hosts: vec!["127.0.0.1".into()],
        ..Config::default()
    }
}

fn credentials(region: Option<&'static str>) -> SdkConfig {
    let credentials = Credentials::new(KEY_ID, SECRET, Some(SESSION.into()), None, "test");
    SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(region.map(Region::from_static))
        .credentials_provider(SharedCredentialsProvider::new(credentials))
        .build()
}

async fn tools(config: Config, shared: SdkConfig) -> ToolSet {
    let config = Arc::new(config);
    let client =
        RapClient::new(config.clone(), http_client().unwrap()).with_signer(Arc::new(Signer::with(shared)));
    let rap = RapTools::over(client, Arc::new(MemoryStore::new()), tokens("https://cb.example"));
    AgentTools::new(config, vec![], vec![Arc::new(rap)]).tools("default", &ThreadId::from("th-1")).await
}

fn call(name: &str) -> Invocation {
    Invocation {
        thread: ThreadId::from("th-1"),
        ancestors: vec![],
        call: CallId::from("c0-7-abc"),
        name: name.into(),
        arguments: r#"{"who":"a private matter"}"#.into(),
        user: None,
        cause: vec![],
        resumed: false,
    }
}

/// Everything that is logged, whatever its level.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn rap_07_d37_all_requests_of_a_server_are_signed_for_it_and_no_other_host_sees_a_signature() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();

    let other = FakeServer::start(|_, _| StatusCode::OK.into()).await;
    let (own, refused) = strict("own", None).await;
    let (away, refused_away) = strict("foreign", Some(format!("{}/invoke", other.url))).await;
    // One region is configured, the other that of the environment.
    let config = config(&[("own", &own.url, Some("eu-central-1")), ("away", &away.url, None)]);
    let set = tools(config, credentials(Some("eu-central-1"))).await;
    assert_eq!(set.problems, Vec::<String>::new(), "{:?}", refused.lock().unwrap());
    let (thread, id) = (ThreadId::from("th-1"), CallId::from("c-1"));
    let tool = set.registry.get("own").unwrap();
    tool.execute(&call("own")).await.unwrap();
    tool.cancel(&thread, &id).await;
    tool.close(&thread).await;
    tool.answer_choice(&format!("{}/v1/answer", own.url), &id, 0).await.unwrap();
    let paths: Vec<String> = own.seen().into_iter().map(|seen| seen.path).collect();
    assert_eq!(
        paths,
        [
            "/v1/.well-known/rap-toolset",
            "/v1/invoke",
            "/v1/cancel_tool_call",
            "/v1/close_thread",
            "/v1/answer"
        ]
    );
    assert_eq!(*refused.lock().unwrap(), Vec::<String>::new());
    // The port is part of the host that is signed: it is not the scheme's own.
    assert!(own.seen().iter().all(|seen| seen.headers["host"].to_str().unwrap().contains(':')));

    set.registry.get("foreign").unwrap().execute(&call("foreign")).await.unwrap();
    assert_eq!(*refused_away.lock().unwrap(), Vec::<String>::new());
    let seen = other.seen();
    assert_eq!(seen.len(), 1);
    assert!(
        ["authorization", "x-amz-security-token", "x-amz-date"]
            .iter()
            .all(|name| !seen[0].headers.contains_key(*name))
    );

    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(log.contains("invocation"), "something was logged");
    for secret in [SECRET, SESSION, "Signature=", "a private matter"] {
        assert!(!log.contains(secret), "{secret} is in the log");
    }
}

#[tokio::test]
async fn rap_07_what_cannot_be_signed_is_not_sent_and_what_is_signed_wrongly_is_refused() {
    let (server, refused) = strict("own", None).await;
    let set = tools(config(&[("own", &server.url, None)]), credentials(None)).await;
    assert!(
        set.problems[0].contains("sigv4.region") && set.registry.get("own").is_none(),
        "{:?}",
        set.problems
    );
    let nobody = SdkConfig::builder().behavior_version(BehaviorVersion::latest()).build();
    let set = tools(config(&[("own", &server.url, Some("eu-central-1"))]), nobody).await;
    assert!(set.problems[0].contains("no AWS credentials"), "{:?}", set.problems);
    assert_eq!(server.seen().len(), 0, "nothing goes out unsigned");

    // The referee is one: another region, and no signature at all.
    let set = tools(config(&[("own", &server.url, Some("us-east-1"))]), credentials(None)).await;
    assert!(set.problems[0].contains("403"), "{:?}", set.problems);
    let unsigned = format!("{}/v1/.well-known/rap-toolset", server.url);
    assert_eq!(reqwest::get(unsigned).await.unwrap().status(), 403);
    assert_eq!(refused.lock().unwrap().len(), 2);
}
