//! A summariser that fails in every way a provider can, over real HTTP: the state stays as it was, the attempt counts, the
//! message is answered, and so is the next one.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dormouse::config::ModelConfig;
use dormouse::model::ModelProvider;
use dormouse::model::genai::GenaiModel;
use dormouse::model::scripted::ScriptedModel;
use dormouse::slice::{AgentProfile, Summaries};

use crate::bed::{Agent, WINDOW, long};
use crate::messages_api::{Api, Fault};
use crate::world::World;

struct Bed {
    world: World,
    api: Api,
    agent: Arc<Agent>,
}

impl Bed {
    async fn new(window: u64) -> Self {
        let api = Api::start().await;
        let config = ModelConfig {
            base_url: Some(api.url.clone()),
            context_window: Some(window),
            ..ModelConfig::from_spec("anthropic::claude-sonnet-4-5")
        };
        let model = GenaiModel::new(&config, Some("key".into())).unwrap();
        let patience = Duration::from_millis(400);
        let model: Arc<dyn ModelProvider> = Arc::new(model.with_timeouts(patience * 10, patience));
        let agent = Arc::new(Agent(Mutex::new(AgentProfile {
            model: model.clone(),
            system_prompt: Some("be brief".into()),
            max_output_tokens: None,
            prune: true,
            compaction: Some(Summaries::by(model)),
        })));
        let mut world = World::new(ScriptedModel::from_fn(|_| panic!("nobody asks it")));
        world.runtime.agents = agent.clone();
        Self { world, api, agent }
    }

    async fn say(&self, text: &str) -> String {
        self.world.done(&self.world.user(text)).await;
        self.world.output.texts().last().unwrap().clone()
    }
}

#[tokio::test]
async fn outages_20_24_34_whatever_the_summariser_does_the_state_is_intact_and_every_message_is_answered() {
    let refuse = |status, kind| Fault::Refuse(status, kind, "");
    for (what, calls, fault) in [
        ("down", 2, refuse(500, "api_error")),
        ("unavailable", 2, refuse(503, "api_error")),
        ("overloaded", 2, refuse(529, "overloaded_error")),
        ("no key", 1, refuse(401, "authentication_error")),
        ("no such model", 1, refuse(404, "not_found_error")),
        ("refused as a request", 1, refuse(400, "invalid_request_error")),
        ("too long", 2, Fault::Say(400, "prompt is too long: 9000 tokens > 8000 maximum".into())),
        ("declined", 1, Fault::Stop("refusal")),
        ("half of it", 2, Fault::Stop("max_tokens")),
        ("paused", 1, Fault::Stop("pause_turn")),
        ("cut", 2, Fault::Cut),
        ("silent", 2, Fault::Silent),
        ("nothing", 2, Fault::Text(" ".into())),
        ("longer than its source", 2, Fault::Text("so much more to say. ".repeat(4_000))),
    ] {
        let bed = Bed::new(WINDOW).await;
        bed.api.summaries_fail(Some(fault));
        // Nobody works beside the conversation: what is too long is summarised before a reply.
        for n in 0..22 {
            assert_eq!(bed.say(&long(n)).await, format!("echo: turn {n}"), "{what}");
        }
        let compaction = bed.world.meta().await.compaction;
        assert_eq!((compaction.last, &compaction.newest), (0, &None), "{what}: nothing is stored");
        assert_eq!(compaction.run.attempts, 1, "{what}: but the attempt, and it is not tried again at once");
        assert!(compaction.run.failure.is_some(), "{what}");
        assert_eq!(bed.api.summaries(), calls, "{what}: 20: one request for one call");
        let asked: Vec<_> = bed.api.received().into_iter().filter(|one| one.is_summary()).collect();
        let room = |at: usize| asked[at].body["max_tokens"].as_u64().unwrap();
        match what {
            "too long" => assert!(asked[1].text().len() < asked[0].text().len(), "24: a smaller input"),
            "half of it" => {
                assert_eq!(
                    (asked[1].text(), room(1)),
                    (asked[0].text(), room(0) / 2),
                    "23: a shorter target"
                );
            }
            "down" => assert_eq!(asked[1].body, asked[0].body, "28: the same again"),
            _ => {}
        }
        let told = bed.world.output.texts();
        let told = told.iter().filter(|text| text.contains("could not be summarised")).count();
        assert_eq!(told, 1, "{what}: it is said, once");
        assert_eq!(bed.world.items().await.len(), 44, "{what}: nothing is lost");
        let last = bed.api.messages().pop().unwrap();
        assert!(last.text().contains("are left out here") && !last.text().contains("turn 0:"), "{what}");
    }
}

#[tokio::test]
async fn outages_89_a_window_of_1000_and_a_prompt_of_1100_is_no_request_at_all() {
    let mut bed = Bed::new(1_000).await;
    bed.world.runtime.tools = Arc::new(dormouse::tools::Registry::default());
    bed.agent.0.lock().unwrap().system_prompt = Some("x".repeat(4_400));
    for text in ["hello", "are you there?"] {
        let told = bed.say(text).await;
        assert!(
            told.contains("system prompt") && told.contains("500 tokens") && told.contains("1100"),
            "{told}"
        );
    }
    assert_eq!(bed.api.received().len(), 0);
    bed.agent.0.lock().unwrap().system_prompt = None;
    assert_eq!(bed.say("turn 7: go on").await, "echo: turn 7", "the next message is served");
    assert!(bed.api.messages()[0].text().contains("are you there?"), "nothing was lost");
}
