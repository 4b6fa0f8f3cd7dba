//! Against a provider over real HTTP: the bytes of the requests, and a stream that is cut by new user text.

use std::sync::Arc;
use std::time::Duration;

use aws_lambda_events::event::sqs::{SqsEvent, SqsMessage};
use dormouse::agent::actor::{ActorOptions, ThreadActor};
use dormouse::agent::{AgentInput, AgentSystem};
use dormouse::config::ModelConfig;
use dormouse::message::{ContentPart, InputMessage, ThreadId};
use dormouse::model::genai::GenaiModel;
use dormouse::model::scripted::ScriptedModel;
use dormouse::slice::AgentProfile;
use dormouse::slice::records::process_records;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::provider_server::{Received, Reply, Server};
use crate::resident::{committed, flushed, snapshot_when};
use crate::world::{THREAD, World};

fn data(value: Value) -> String {
    format!("data: {value}\n\n")
}

fn delta(delta: Value) -> String {
    let choice = json!({"index": 0, "delta": delta, "finish_reason": null});
    data(json!({"id": "x", "object": "chat.completion.chunk", "choices": [choice]}))
}

fn end(reason: &str) -> [String; 2] {
    let choice = json!({"index": 0, "delta": {}, "finish_reason": reason});
    [data(json!({"id": "x", "choices": [choice]})), "data: [DONE]\n\n".to_owned()]
}

fn says(text: &str) -> Reply {
    let [finish, done] = end("stop");
    Reply::sse(&[delta(json!({"role": "assistant", "content": text})), finish, done])
}

fn calls(name: &str, arguments: &str) -> Reply {
    let function = json!({"name": name, "arguments": arguments});
    let call = json!({"index": 0, "id": "call_x", "type": "function", "function": function});
    let [finish, done] = end("tool_calls");
    Reply::sse(&[delta(json!({"role": "assistant", "tool_calls": [call]})), finish, done])
}

/// A system whose model is behind `server`, over a store and tools of its own.
fn system(server: &Server) -> (AgentSystem, World) {
    let world = World::new(ScriptedModel::prompts());
    let config =
        ModelConfig { base_url: Some(server.url.clone()), ..ModelConfig::from_spec("openai::test-model") };
    let model = Arc::new(GenaiModel::new(&config, Some("sk-test".to_owned())).unwrap());
    let system_prompt = Some("be brief".to_owned());
    let system = AgentSystem::builder()
        .agent("default", AgentProfile { model, system_prompt, max_output_tokens: None, prune: true })
        .store(world.runtime.store.clone())
        .tools(world.runtime.tools.clone())
        .output(world.output.clone())
        .clock(world.runtime.clock.clone())
        .build()
        .unwrap();
    (system, world)
}

async fn by_slice(system: &AgentSystem, world: &World, message: &InputMessage) {
    let mut event = SqsEvent::default();
    let record: SqsMessage = world.record(&world.message(message));
    event.records = vec![record];
    let deadline = Instant::now() + Duration::from_secs(300);
    let response = process_records(system.runtime(), event, deadline).await;
    assert!(response.batch_item_failures.is_empty(), "{response:?}");
}

#[tokio::test]
async fn a_provider_gets_the_same_bytes_from_an_actor_and_from_slices() {
    let replies = || {
        vec![
            says("hello"),
            calls("add", r#"{"text": "1.0 + ü"}"#),
            says("done"),
            calls("echo", "{}"),
            says("it is back"),
        ]
    };
    let said = ["hi", "add something", "and now slowly"];
    let mut sent: Vec<Vec<Received>> = Vec::new();
    for by_actor in [false, true] {
        let server = Server::start(replies()).await;
        let (system, world) = system(&server);
        let thread = ThreadId::from(THREAD);
        let handle = by_actor.then(|| ThreadActor::spawn(&system, thread.clone(), ActorOptions::default()));
        let mut messages: Vec<InputMessage> =
            said.iter().map(|text| InputMessage::user_text(thread.clone(), *text)).collect();
        for at in 0..=said.len() {
            if at == said.len() {
                let call = world.tools.calls()[0].clone();
                let parts = vec![ContentPart::text("ok")];
                messages.push(InputMessage::tool_result(thread.clone(), call, parts));
            }
            match &handle {
                Some(handle) => committed(handle, messages[at].clone()).await,
                None => by_slice(&system, &world, &messages[at]).await,
            }
        }
        assert_eq!(world.output.texts().last().unwrap(), "it is back");
        sent.push(server.received());
    }
    assert_eq!((sent[0].len(), sent[1].len()), (5, 5));
    for (one, other) in sent[0].iter().zip(&sent[1]) {
        assert_eq!(one.path, other.path);
        // The order of the keys counts: a provider's cache goes by bytes.
        assert_eq!(one.body.to_string(), other.body.to_string());
    }
}

#[tokio::test]
async fn user_text_cuts_a_stream_of_a_provider_that_says_nothing_more() {
    let pieces =
        [delta(json!({"role": "assistant", "content": "once upon"})), delta(json!({"content": " a time"}))];
    let hangs = Reply::Silent(pieces.iter().map(|piece| piece.clone().into_bytes()).collect());
    let server = Server::start(vec![hangs, says("as you like")]).await;
    let (system, world) = system(&server);
    let handle = ThreadActor::spawn(&system, ThreadId::from(THREAD), ActorOptions::default());
    handle.push_user("tell me a story").unwrap();
    let live = snapshot_when(&handle, |snapshot| snapshot.partial_text() == "once upon a time").await;
    assert!(live.items.is_empty());
    committed(&handle, AgentInput::user("not that one")).await;
    flushed(&handle).await;
    assert_eq!(
        world.story().await,
        [
            "user: tell me a story",
            "assistant: once upon a time",
            "user: not that one",
            "assistant: as you like"
        ]
    );
    let second = &server.received()[1].body["messages"];
    let roles: Vec<&str> = second.as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "user"], "and the model reads what it had said");
}
