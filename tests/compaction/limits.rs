//! A provider that says how large its window is, each in its own words, over real HTTP: the thread keeps to it from then on.

use std::sync::Arc;

use dormouse::config::ModelConfig;
use dormouse::model::genai::GenaiModel;
use dormouse::model::scripted::ScriptedModel;
use dormouse::model::{ModelError, ModelProvider};
use dormouse::slice::{AgentProfile, Agents, Summaries};
use serde_json::json;

use crate::bed::long;
use crate::provider_server::{Reply, Server};
use crate::replies::{Said, reply};
use crate::world::World;

/// What the provider takes.
const LIMIT: usize = 12_000;

struct Agent(Arc<dyn ModelProvider>);

impl Agents for Agent {
    fn default_agent(&self) -> &str {
        "default"
    }

    fn knows(&self, agent: &str) -> bool {
        agent == "default"
    }

    fn profile(&self, _agent: &str) -> Result<AgentProfile, ModelError> {
        Ok(AgentProfile {
            model: self.0.clone(),
            system_prompt: Some("be brief".into()),
            max_output_tokens: Some(2_000),
            prune: true,
            compaction: Some(Summaries::by(self.0.clone())),
        })
    }
}

/// How each says that a request is too large, and whether it says what would not be.
fn too_large(provider: &str, tokens: usize) -> (Reply, bool) {
    let refused = |status, body: serde_json::Value| Reply::Status(status, Vec::new(), body.to_string());
    match provider {
        "openai" => {
            let message = format!(
                "This model's maximum context length is {LIMIT} tokens. However, your messages resulted in {tokens} tokens."
            );
            let error = json!({ "message": message, "type": "invalid_request_error", "code": "context_length_exceeded" });
            (refused(400, json!({ "error": error })), true)
        }
        "openai_resp" => {
            let message = "Your input exceeds the context window of this model. Please adjust your input and try again.";
            let error = json!({ "message": message, "type": "invalid_request_error", "code": "context_length_exceeded" });
            (refused(400, json!({ "error": error })), false)
        }
        "anthropic" => {
            let message = format!("prompt is too long: {tokens} tokens > {LIMIT} maximum");
            let error = json!({ "type": "invalid_request_error", "message": message });
            (refused(400, json!({ "type": "error", "error": error })), true)
        }
        "gemini" => {
            let message = format!(
                "The input token count ({tokens}) exceeds the maximum number of tokens allowed ({LIMIT})."
            );
            let error = json!({ "code": 400, "message": message, "status": "INVALID_ARGUMENT" });
            (refused(400, json!({ "error": error })), true)
        }
        _ => (refused(400, json!({ "message": "Input is too long for requested model." })), false),
    }
}

#[tokio::test]
async fn ladder_a_limit_that_a_provider_names_is_kept_to_from_then_on_in_all_five_dialects() {
    for (provider, model) in [
        ("openai", "gpt-4.1"),
        ("openai_resp", "gpt-5.1"),
        ("anthropic", "claude-sonnet-4-5"),
        ("gemini", "gemini-3-pro-preview"),
        ("bedrock_api", "global.openai.gpt-5.6-terra"),
    ] {
        let server = Server::answering(move |received| {
            let tokens = received.text.len() / 4;
            if tokens > LIMIT {
                return too_large(provider, tokens).0;
            }
            let text = match received.text.contains("You summarise a conversation") {
                true => format!("Goal: a summary. {}", "It went on. ".repeat(60)),
                false => "fine".to_owned(),
            };
            reply(provider, &Said { n: 0, text: &text, calls: &[] })
        })
        .await;
        // Nobody has configured a window.
        let config = ModelConfig {
            base_url: Some(server.url.clone()),
            ..ModelConfig::from_spec(&format!("{provider}::{model}"))
        };
        let genai = Arc::new(GenaiModel::new(&config, Some("key".into())).unwrap());
        let mut world = World::new(ScriptedModel::from_fn(|_| panic!("nobody asks it")));
        world.runtime.agents = Arc::new(Agent(genai));
        for n in 0..40 {
            world.done(&world.user(&long(n))).await;
            assert_eq!(world.output.texts().last().unwrap(), "fine", "{provider}, turn {n}");
        }
        let received = server.received();
        let refused = received.iter().filter(|one| one.text.len() / 4 > LIMIT).count();
        let meta = world.meta().await;
        assert!(meta.compaction.last >= 1, "{provider}: it is compacted");
        if too_large(provider, 0).1 {
            assert_eq!(refused, 1, "{provider}: once is enough");
            let window = meta.window.unwrap();
            assert_eq!((window.model.as_str(), window.tokens), (model, LIMIT as u64));
        } else {
            assert_eq!(meta.window, None, "{provider} names none");
            // It is found out anew whenever the history has grown again: never more than once for a message.
            assert!((1..=20).contains(&refused), "{provider}: {refused}");
        }
        assert_eq!(world.items().await.iter().filter(|item| item.facts.opens_turn).count(), 40);
    }
}
