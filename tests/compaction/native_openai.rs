//! OpenAI's `/responses/compact` over real HTTP: the window that it gives goes first, as it came, beside a summary that everybody
//! can read.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use dormouse::config::ModelConfig;
use dormouse::model::genai::GenaiModel;
use dormouse::model::scripted::ScriptedModel;
use dormouse::model::{Mechanism, ModelProvider, Usage};
use dormouse::slice::{AgentProfile, Summaries};
use dormouse::store::{ConversationStore, Generation};
use serde_json::{Value, json};

use crate::bed::{Agent, WINDOW, long};
use crate::provider_server::{Received, Reply, Server};
use crate::world::{THREAD, World};

const SUMMARY: &str = "[Summary of the conversation up to here.";

/// What goes wrong.
#[derive(Clone, Default)]
struct Faults {
    /// Every compaction is answered so.
    compaction: Option<(u16, Value)>,
    /// Requests with an encrypted item of compaction are refused: by a status, or in the stream.
    refuse: Option<&'static str>,
}

struct Bed {
    world: World,
    server: Server,
    faults: Arc<Mutex<Faults>>,
    agent: Arc<Agent>,
}

fn is_compaction(one: &Received) -> bool {
    one.path == "/v1/responses/compact"
}

fn is_summary(one: &Received) -> bool {
    one.text.contains("You summarise a conversation")
}

/// Items in front, up to the encrypted one.
fn window(one: &Received) -> Vec<Value> {
    let input = one.body["input"].as_array().unwrap();
    let sealed = input.iter().position(|item| item["type"] == "compaction");
    sealed.map(|at| input[..=at].to_vec()).unwrap_or_default()
}

fn stream(text: &str, tokens: usize) -> Reply {
    let event = |kind: &str, mut value: Value| {
        value["type"] = json!(kind);
        format!("event: {kind}\ndata: {value}\n\n")
    };
    let usage = json!({ "input_tokens": tokens, "output_tokens": 9, "total_tokens": tokens + 9 });
    let end = json!({ "id": "r", "object": "response", "created_at": 1, "model": "m", "status": "completed", "output": [],
        "usage": usage });
    Reply::sse(&[
        event("response.created", json!({ "response": {} })),
        event("response.output_text.delta", json!({ "delta": text })),
        event("response.completed", json!({ "response": end })),
    ])
}

fn failed(code: &str) -> Reply {
    let error = json!({ "code": code, "message": "The encrypted content could not be verified." });
    let end = json!({ "id": "r", "object": "response", "status": "failed", "error": error, "output": [] });
    let event = json!({ "type": "response.failed", "response": end });
    Reply::sse(&[format!("event: response.failed\ndata: {event}\n\n")])
}

impl Bed {
    async fn new() -> Self {
        let faults = Arc::<Mutex<Faults>>::default();
        let (script, compacted) = (faults.clone(), AtomicUsize::new(0));
        let server = Server::answering(move |received| {
            let faults = script.lock().unwrap().clone();
            if is_compaction(received) {
                for absent in ["store", "stream", "tools", "previous_response_id", "max_output_tokens"] {
                    assert!(received.body.get(absent).is_none(), "{absent} is no parameter of it");
                }
                if let Some((status, body)) = faults.compaction {
                    return Reply::Status(status, Vec::new(), body.to_string());
                }
                let n = compacted.fetch_add(1, Ordering::Relaxed) + 1;
                let kept = json!({ "id": "m1", "type": "message", "role": "user", "status": "completed",
                    "content": [{ "type": "input_text", "text": "turn 0: kept by the provider" }] });
                let sealed = json!({ "id": "c1", "type": "compaction", "encrypted_content": format!("gAAA{n}=") });
                let usage = json!({ "input_tokens": 6_000, "input_tokens_details": { "cached_tokens": 10 },
                    "output_tokens": 80, "total_tokens": 6_080 });
                let answer = json!({ "id": "rc", "object": "response.compaction", "created_at": 1,
                    "output": [kept, sealed], "usage": usage });
                return Reply::Status(200, vec![("content-type", "application/json")], answer.to_string());
            }
            assert_eq!(received.body["store"], false);
            if !window(received).is_empty() {
                match faults.refuse {
                    Some("status") => {
                        let error = json!({ "code": "invalid_encrypted_content", "message": "no", "type": "invalid_request_error" });
                        return Reply::Status(400, Vec::new(), json!({ "error": error }).to_string());
                    }
                    Some(_) => return failed("invalid_encrypted_content"),
                    None => {}
                }
            }
            let text = match is_summary(received) {
                true => format!("Goal: a portable summary. {}", "It went on. ".repeat(60)),
                false => "fine".to_owned(),
            };
            stream(&text, received.text.len() / 4)
        })
        .await;
        let model = model(&server.url, "gpt-5.1");
        let agent = Arc::new(Agent(Mutex::new(AgentProfile {
            model: model.clone(),
            system_prompt: Some("be brief".into()),
            max_output_tokens: None,
            prune: true,
            compaction: Some(Summaries { native: true, ..Summaries::by(model) }),
        })));
        let mut world = World::new(ScriptedModel::from_fn(|_| panic!("nobody asks it")));
        world.runtime.agents = agent.clone();
        Self { world, server, faults, agent }
    }

    async fn compacted() -> Self {
        let bed = Self::new().await;
        bed.turns(0..18).await;
        bed.world.settle().await;
        bed
    }

    async fn turns(&self, n: std::ops::Range<usize>) {
        for n in n {
            self.world.done(&self.world.user(&long(n))).await;
            assert_eq!(self.world.output.texts().last().unwrap(), "fine", "turn {n}");
        }
    }

    fn compactions(&self) -> Vec<Received> {
        self.server.received().into_iter().filter(is_compaction).collect()
    }

    fn last(&self) -> Received {
        self.server.received().into_iter().rfind(|one| !is_compaction(one) && !is_summary(one)).unwrap()
    }

    async fn newest(&self) -> Generation {
        let newest = self.world.meta().await.compaction.newest.unwrap();
        self.world.store.generation(&newest.id).await.unwrap().unwrap()
    }
}

fn model(url: &str, name: &str) -> Arc<dyn ModelProvider> {
    let config = ModelConfig {
        base_url: Some(url.to_owned()),
        context_window: Some(WINDOW),
        ..ModelConfig::from_spec(&format!("openai_resp::{name}"))
    };
    Arc::new(GenaiModel::new(&config, Some("key".into())).unwrap())
}

#[tokio::test]
async fn native_openai_59_62_a_window_is_kept_beside_the_summary_and_goes_first_on_its_own_route() {
    let bed = Bed::compacted().await;
    let asked = bed.compactions();
    assert!(!asked.is_empty() && asked[0].authorization == "Bearer key");
    assert_eq!(asked[0].body["model"], "gpt-5.1");
    assert_eq!(asked[0].body["instructions"], "be brief");
    assert!(asked[0].text.contains("turn 0:") && !asked[0].text.contains("turn 17:"));
    let generation = bed.newest().await;
    assert!(
        generation.text.starts_with("Goal: a portable summary."),
        "67: whoever cannot read it has the text"
    );
    let native = generation.native.clone().unwrap();
    assert_eq!(native.mechanism, Mechanism::OpenaiCompact);
    assert_eq!(native.usage, Some(Usage { input: 6_000, output: 80, cached: 10 }));
    let items: Vec<Value> =
        native.items.iter().map(|item| serde_json::from_str(item.get()).unwrap()).collect();
    bed.turns(18..19).await;
    let sent = bed.last();
    assert_eq!(window(&sent), items, "as it came, and first");
    assert!(!sent.text.contains(SUMMARY) && !sent.text.contains("turn 1:") && sent.text.contains("turn 17:"));
    // A second pass begins with the newest window.
    if asked.len() > 1 {
        assert_eq!(window(&asked[1]).last().unwrap()["encrypted_content"], "gAAA1=");
    }
    // Another model reads the text; back on its own route it is the window again.
    let own = bed.agent.0.lock().unwrap().clone();
    let other = model(&bed.server.url, "gpt-5.2");
    let compaction = Some(Summaries { native: true, ..Summaries::by(other.clone()) });
    *bed.agent.0.lock().unwrap() = AgentProfile { model: other, compaction, ..own.clone() };
    bed.turns(19..20).await;
    assert!(window(&bed.last()).is_empty() && bed.last().text.contains(SUMMARY));
    assert_eq!(bed.newest().await, generation, "the row is as it was");
    *bed.agent.0.lock().unwrap() = own;
    bed.turns(20..21).await;
    assert_eq!(window(&bed.last()), items);
}

#[tokio::test]
async fn native_openai_92_encrypted_content_that_is_refused_is_dead_whichever_way_it_is_said() {
    for refuse in ["status", "stream"] {
        let bed = Bed::compacted().await;
        bed.faults.lock().unwrap().refuse = Some(refuse);
        let before = bed.server.received().len();
        bed.turns(18..20).await;
        let asked: Vec<bool> =
            bed.server.received()[before..].iter().map(|one| !window(one).is_empty()).collect();
        assert_eq!(asked, [true, false, false], "{refuse}");
        assert!(bed.last().text.contains(SUMMARY));
        let compaction = bed.world.meta().await.compaction;
        assert_eq!(compaction.run.dead, compaction.newest.map(|newest| newest.id));
    }
}

#[tokio::test]
async fn native_openai_63_without_a_window_that_can_be_used_the_summary_is_all_there_is() {
    let large = json!({ "type": "compaction", "encrypted_content": "x".repeat(60_000) });
    for (what, status, body) in [
        ("down", 500, json!({})),
        ("not there", 404, json!({ "error": { "message": "Invalid URL" } })),
        ("refused", 400, json!({ "error": { "code": "bad", "message": "no" } })),
        ("no item", 200, json!({ "output": [{ "type": "message", "role": "user", "content": "x" }] })),
        ("not encrypted", 200, json!({ "output": [{ "type": "compaction", "encrypted_content": "" }] })),
        ("larger than its source", 200, json!({ "output": [large] })),
        ("no JSON of ours", 200, json!([])),
    ] {
        let bed = Bed::new().await;
        bed.faults.lock().unwrap().compaction = Some((status, body));
        bed.turns(0..18).await;
        bed.world.settle().await;
        let generation = bed.newest().await;
        assert!(generation.text.starts_with("Goal: a portable summary."), "{what}");
        assert_eq!(generation.native, None, "{what}");
        assert_eq!(bed.world.meta().await.compaction.run.attempts, 0, "{what}");
        bed.turns(18..19).await;
        assert!(bed.last().text.contains(SUMMARY), "{what}");
    }
}

#[tokio::test]
async fn native_openai_75_a_redaction_takes_what_nobody_can_look_into() {
    use dormouse::thread::{Redaction, redact};
    let bed = Bed::compacted().await;
    assert!(bed.newest().await.native.is_some());
    // The summary does not say it; the encrypted item may.
    redact(&bed.world.store, &THREAD.into(), &Redaction::Text("turn 2: so it goes".into())).await.unwrap();
    assert_eq!(bed.newest().await.native, None);
    bed.turns(18..19).await;
    assert!(window(&bed.last()).is_empty() && bed.last().text.contains(SUMMARY));
}
