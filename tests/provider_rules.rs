//! I5 to the last byte: arbitrary stored histories, damaged ones among them, are rendered, given to the real adapter of
//! every dialect and sent over real HTTP to a server that judges the body by the provider's own rules
//! (`support/wire_rules`). `PROPTEST_CASES` sets the number of histories; each is sent in every dialect. The long run:
//!
//! ```sh
//! PROPTEST_CASES=100000 cargo test --release --test provider_rules -- --nocapture
//! ```
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
// The server needs what the feature `local` brings to axum.
#![cfg(feature = "local")]

#[path = "provider_rules/bodies.rs"]
mod bodies;
#[path = "support/history/damaged.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod damaged;
#[path = "provider_rules/tools.rs"]
mod tools;
#[path = "support/wire_rules/mod.rs"]
mod wire_rules;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, Uri};
use axum::serve::ListenerExt;
use dormouse::config::ModelConfig;
use dormouse::history::History;
use dormouse::history::render::{RenderError, RenderOptions};
use dormouse::history::request::{ModelRequest, ToolDefinition};
use dormouse::message::{Item, ItemBody, ItemFacts, Seq, ThreadId};
use dormouse::model::ModelProvider;
use dormouse::model::genai::GenaiModel;
use dormouse::store::{Loaded, Meta};
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};
use serde_json::{Value, json};
use wire_rules::{MAX_BODY, Verdict};

/// Histories of one run, unless `PROPTEST_CASES` says otherwise.
const CASES: u32 = 1_000;
/// What the server's refusal says of a body that nothing is wrong with.
const GOOD: &str = "the_body_is_good";
const BAD: &str = "the_body_is_bad";

/// A dialect: what the configuration calls it, and a model whose name switches the strictest rules on.
#[derive(Clone, Copy, Debug)]
struct Dialect {
    provider: &'static str,
    model: &'static str,
    judge: fn(&Value) -> Verdict,
}

const DIALECTS: [Dialect; 5] = [
    Dialect { provider: "anthropic", model: "claude-sonnet-4-5", judge: wire_rules::anthropic::judge },
    Dialect { provider: "openai", model: "gpt-4.1", judge: wire_rules::chat::judge },
    Dialect { provider: "openai_resp", model: "gpt-5.1", judge: wire_rules::responses::judge },
    Dialect {
        provider: "gemini",
        model: "gemini-3-pro-preview",
        judge: |body| wire_rules::gemini::judge(body, true),
    },
    Dialect {
        provider: "bedrock_api",
        model: "global.openai.gpt-5.6-terra",
        judge: wire_rules::bedrock::judge,
    },
];

/// What the server found wrong, in the order of arrival.
type Findings = Arc<Mutex<Vec<(String, Value)>>>;

#[derive(Clone, Default)]
struct Judge {
    findings: Findings,
    /// Bytes that the next bodies may have: those that are counted where it is decided whether images have room.
    counted: Arc<AtomicUsize>,
}

/// Judges the body by the dialect that the path begins with, and answers with a refusal: nothing has to be streamed.
async fn answer(State(judge): State<Judge>, uri: Uri, body: Bytes) -> (StatusCode, String) {
    let dialect = DIALECTS.iter().find(|dialect| uri.path().split('/').nth(1) == Some(dialect.provider));
    let parsed: Result<Value, _> = serde_json::from_slice(&body);
    let verdict = match (dialect, &parsed) {
        (Some(_), _) if body.len() > MAX_BODY => Err(format!("a body of {} bytes", body.len())),
        (Some(_), _) if body.len() > judge.counted.load(Ordering::Relaxed) => {
            Err(format!("a body of {} bytes, {:?} were counted", body.len(), judge.counted))
        }
        (Some(dialect), Ok(body)) => (dialect.judge)(body),
        (None, _) => Err(format!("no provider at {uri}")),
        (_, Err(e)) => Err(format!("no JSON: {e}")),
    };
    let code = match verdict {
        Ok(()) => GOOD,
        Err(why) => {
            judge.findings.lock().unwrap().push((format!("{uri}: {why}"), parsed.unwrap_or_default()));
            BAD
        }
    };
    (StatusCode::BAD_REQUEST, json!({ "error": { "code": code, "message": "" } }).to_string())
}

/// The server, and the adapter of each dialect for a model that takes images and for one that does not.
struct Bed {
    runtime: tokio::runtime::Runtime,
    judge: Judge,
    models: Vec<[Arc<GenaiModel>; 2]>,
}

impl Bed {
    fn start() -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let judge = Judge::default();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router =
            Router::new().fallback(answer).layer(DefaultBodyLimit::disable()).with_state(judge.clone());
        // Else head and body of an answer wait for each other.
        let listener = listener.tap_io(|connection| connection.set_nodelay(true).unwrap());
        runtime.spawn(async move { axum::serve(listener, router).await });
        let model = |dialect: &Dialect, images: bool| {
            let config = ModelConfig {
                base_url: Some(format!("{url}/{}/v1", dialect.provider)),
                image_input: images,
                ..ModelConfig::from_spec(&format!("{}::{}", dialect.provider, dialect.model))
            };
            let patience = Duration::from_secs(60);
            let model = GenaiModel::new(&config, Some("key".to_owned())).unwrap();
            Arc::new(model.with_timeouts(patience, patience))
        };
        let models = DIALECTS.iter().map(|dialect| [model(dialect, false), model(dialect, true)]).collect();
        Self { runtime, judge, models }
    }

    /// Sends one request in every dialect at once; what any of them found wrong.
    fn judge(&self, request: &ModelRequest, images: bool) -> Verdict {
        self.judge.counted.store(request.bytes(), Ordering::Relaxed);
        let ask = |models: &[Arc<GenaiModel>; 2]| {
            let (model, request) = (models[usize::from(images)].clone(), request.clone());
            self.runtime.spawn(async move { model.stream(request).await.err().map(|error| error.message) })
        };
        let answers = self.runtime.block_on(futures::future::join_all(self.models.iter().map(ask)));
        let findings = std::mem::take(&mut *self.judge.findings.lock().unwrap());
        if let Some((why, body)) = findings.first() {
            return Err(format!("{why}\n{body:#}"));
        }
        for (dialect, answer) in DIALECTS.iter().zip(answers) {
            let said = answer.unwrap().unwrap_or_default();
            if !said.contains(GOOD) {
                return Err(format!(
                    "{}: the server was not asked, or not heard: {said:?}",
                    dialect.provider
                ));
            }
        }
        Ok(())
    }
}

/// A thread as the store gives it back.
fn stored(items: &[ItemBody]) -> History {
    let thread = ThreadId::new("t");
    let mut meta = Meta::new_root(thread.clone(), "agent", None, 0);
    meta.head = Seq::FIRST.plus(items.len());
    let item =
        |(n, body): (usize, &ItemBody)| Item::fresh(Seq::FIRST.plus(n), body.clone(), ItemFacts::default());
    let items = items.iter().enumerate().map(item).collect();
    History::new(thread, Loaded { meta: Some(meta), items, ..Loaded::default() })
}

fn options(tools: Vec<ToolDefinition>, image_input: bool, system: Option<String>) -> RenderOptions {
    RenderOptions { system, model: damaged::MODEL.into(), image_input, tools, max_output_tokens: Some(100) }
}

#[test]
fn i5_whatever_is_stored_reaches_every_provider_as_a_body_that_it_takes() {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(CASES);
    let bed = Bed::start();
    let (mut sent, mut empty) = (0_u64, 0_u64);
    let counts = Mutex::new((&mut sent, &mut empty));
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let case = (damaged::history(), tools::offered(), any::<bool>(), prop::option::of(damaged::text()));
    let outcome = TestRunner::new(config).run(&case, |(items, tools, images, system)| {
        let rendered = stored(&items).render_history(&options(tools, images, system));
        let request = match rendered {
            Ok(rendered) => rendered.request,
            Err(RenderError::Empty) => {
                *counts.lock().unwrap().1 += 1;
                return Ok(());
            }
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        };
        *counts.lock().unwrap().0 += DIALECTS.len() as u64;
        bed.judge(&request, images)
            .map_err(|why| TestCaseError::fail(format!("{why}\n{:#?}", request.messages)))
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
    println!("{cases} histories, {empty} of them empty: {sent} requests, all taken");
    assert!(sent > u64::from(cases), "most histories must make a request");
}

#[test]
fn each_rule_refuses_what_breaks_it() {
    for (dialect, judge) in DIALECTS.iter().map(|dialect| (dialect.provider, dialect.judge)) {
        let good = bodies::good(dialect);
        assert_eq!(judge(&good), Ok(()), "{dialect}");
        let mut refused = 0;
        for (at, value) in bodies::bad(dialect) {
            let body = bodies::with(&good, at, value.clone());
            assert!(judge(&body).is_err(), "{dialect}: {at} = {value} is taken");
            refused += 1;
        }
        assert!(refused >= 15, "{dialect}: {refused} rules are tried");
    }
}
