//! Standing instructions and the prompt of an agent, from its configuration into requests.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/world.rs"]
mod world;

use std::path::Path;
use std::sync::Arc;

use dormouse::config::{AgentConfig, Config, ModelConfig};
use dormouse::history::request::{ModelRequest, RequestMessage};
use dormouse::message::{
    ContentPart, InputContent, InputMessage, ItemBody, Rewind, RewindTarget, SyntheticReason,
};
use dormouse::model::ModelProvider;
use dormouse::model::scripted::{ScriptedErrorClass, ScriptedEvent, ScriptedModel};
use dormouse::slice::ConfiguredAgents;
use world::{THREAD, World};

const TEXT: &str = "Speak like a dormouse.";

/// The agents of a process that starts now.
fn agents(world: &World, agent: AgentConfig) -> Arc<ConfiguredAgents> {
    let mut config = Config::default();
    config.models.insert("default".into(), ModelConfig::from_spec("scripted"));
    config.agents.insert("default".into(), agent);
    let model: Arc<dyn ModelProvider> = world.model.clone();
    Arc::new(ConfiguredAgents::new(Arc::new(config), |_| Ok(model.clone())))
}

fn instructed(file: &Path) -> AgentConfig {
    AgentConfig { project_instructions: Some(file.to_str().unwrap().to_owned()), ..AgentConfig::default() }
}

fn said(text: &str) -> Vec<ScriptedEvent> {
    vec![ScriptedEvent::Text(text.into())]
}

fn first_text(request: &ModelRequest) -> String {
    let RequestMessage::User(parts) = &request.messages[0] else { panic!("{request:?}") };
    ContentPart::join_text(parts)
}

#[tokio::test]
async fn a_conversation_begins_with_its_instructions_once_and_they_are_never_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("AGENTS.md");
    std::fs::write(&file, TEXT).unwrap();
    let mut world = World::new(ScriptedModel::script(vec![said("squeak"), said("again"), said("anew")]));
    world.runtime.agents = agents(&world, instructed(&file));
    world.done(&world.user("hi")).await;
    std::fs::write(&file, "Speak like a lion.").unwrap();
    world.runtime.agents = agents(&world, instructed(&file));
    world.done(&world.user("more")).await;

    let items = world.items().await;
    assert_eq!(items.len(), 5, "{:?}", world.story().await);
    let ItemBody::User(first) = &items[0].body else { panic!("{:?}", items[0]) };
    assert_eq!(first.synthetic_reason, Some(SyntheticReason::ProjectInstructions));
    assert!(!items[0].facts.opens_turn && items[1].facts.opens_turn);
    assert_eq!((items[0].facts.turn, items[1].facts.turn, items[3].facts.turn), (0, 0, 1));
    // Back to the very beginning: what stands before the first turn stays.
    let target = RewindTarget::Turn(0);
    let rewind = Rewind { target, seen: None, then: None };
    let rewind = InputMessage::plain(THREAD.into(), InputContent::Rewind(rewind));
    world.done(&world.message(&rewind)).await;
    world.done(&world.user("anew")).await;
    let requests = world.model.requests();
    let texts: Vec<String> = requests.iter().map(first_text).collect();
    assert_eq!(texts, [format!("{TEXT}\nhi"), format!("{TEXT}\nhi"), format!("{TEXT}\nanew")]);
}

#[tokio::test]
async fn a_first_message_whose_model_fails_leaves_no_second_copy() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("AGENTS.md");
    std::fs::write(&file, TEXT).unwrap();
    let fails = vec![ScriptedEvent::error(ScriptedErrorClass::Fatal, "no key")];
    let mut world = World::new(ScriptedModel::script(vec![fails, said("squeak")]));
    world.runtime.agents = agents(&world, instructed(&file));
    world.done(&world.user("hi")).await;
    world.done(&world.user("still there?")).await;
    let story = world.story().await;
    assert_eq!(
        story,
        [format!("user: {TEXT}").as_str(), "user: hi", "user: still there?", "assistant: squeak"]
    );
}

#[tokio::test]
async fn instructions_that_cannot_be_read_or_are_too_long_name_the_field() {
    let dir = tempfile::tempdir().unwrap();
    let long = dir.path().join("long.md");
    std::fs::write(&long, "x".repeat(64 * 1024 + 1)).unwrap();
    for file in [dir.path().join("missing.md"), long] {
        let mut world = World::new(ScriptedModel::script(vec![said("squeak")]));
        world.runtime.agents = agents(&world, instructed(&file));
        world.done(&world.user("hi")).await;
        let told = world.output.texts();
        assert!(told[0].contains("agents.default.project_instructions"), "{told:?}");
        assert!(world.model.requests().is_empty());
    }
}

#[tokio::test]
async fn the_extra_prompt_follows_the_system_prompt() {
    let prompt = |text: &str| Some(text.to_owned());
    for (system, extra, expected) in [
        (prompt("be brief"), prompt("be kind"), prompt("be brief\n\nbe kind")),
        (None, prompt("be kind"), prompt("be kind")),
        (prompt("be brief"), prompt(" "), prompt("be brief")),
        (None, None, None),
    ] {
        let mut world = World::new(ScriptedModel::script(vec![said("ok")]));
        let agent = AgentConfig { system_prompt: system, extra_prompt: extra, ..AgentConfig::default() };
        world.runtime.agents = agents(&world, agent);
        world.done(&world.user("hi")).await;
        assert_eq!(world.model.requests()[0].system, expected);
    }
}
