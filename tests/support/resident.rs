//! Resident threads over the world of the slices: the same store, model and tools, an actor instead of a worker.
#![allow(dead_code, clippy::unwrap_used, reason = "shared by several test binaries, each using a part")]

use std::time::{Duration, Instant};

use dormouse::agent::actor::{ActorOptions, ThreadActor};
use dormouse::agent::{AgentInput, AgentSystem, ReplaySnapshot, ThreadHandle, WriteOutcome};
use dormouse::message::ThreadId;
use dormouse::model::scripted::ScriptedEvent;

use crate::world::{THREAD, World};

/// No answer may take longer, also on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(30);
/// A response that nobody waits for.
pub const LONG_MS: u64 = 120_000;

/// Its threads send to one another inside the process.
pub fn system(world: &World) -> AgentSystem {
    let runtime = &world.runtime;
    AgentSystem::builder()
        .agent("default", runtime.agents.profile("default").unwrap())
        .store(runtime.store.clone())
        .tools(runtime.tools.clone())
        .output(world.output.clone())
        .dead_letters(world.dead.clone())
        .clock(runtime.clock.clone())
        .limits(runtime.limits.clone())
        .build()
        .unwrap()
}

pub fn actor(world: &World) -> ThreadHandle {
    actor_with(world, ActorOptions::default())
}

pub fn actor_with(world: &World, options: ActorOptions) -> ThreadHandle {
    ThreadActor::spawn(&system(world), ThreadId::from(THREAD), options)
}

pub async fn committed(handle: &ThreadHandle, input: impl Into<AgentInput>) {
    let outcome = in_time(handle.push_and_ack(input)).await.unwrap();
    assert_eq!(outcome, WriteOutcome::Committed);
}

pub async fn in_time<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, work).await.expect("it takes too long")
}

pub async fn flushed(handle: &ThreadHandle) {
    in_time(handle.flush()).await.unwrap();
}

/// What a client sees, once it is as `wanted`.
pub async fn snapshot_when(
    handle: &ThreadHandle,
    wanted: impl Fn(&ReplaySnapshot) -> bool,
) -> ReplaySnapshot {
    let started = Instant::now();
    loop {
        let snapshot = in_time(handle.snapshot()).await.unwrap();
        if wanted(&snapshot) {
            return snapshot;
        }
        assert!(started.elapsed() < LIMIT, "it stands at {snapshot:#?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub async fn until(what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < LIMIT, "{what}: it never was");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub fn text(text: &str) -> Vec<ScriptedEvent> {
    vec![ScriptedEvent::Text(text.into()), ScriptedEvent::End("end_turn".into())]
}

pub fn calls(names: &[&str]) -> Vec<ScriptedEvent> {
    let calls = names.iter().map(|name| ScriptedEvent::call("", *name, r#"{"text":"x"}"#));
    calls.chain([ScriptedEvent::End("tool_use".into())]).collect()
}

/// These events, and then nothing for a long time.
pub fn hanging(mut events: Vec<ScriptedEvent>) -> Vec<ScriptedEvent> {
    events.push(ScriptedEvent::DelayMs(LONG_MS));
    events.push(ScriptedEvent::Text(" never".into()));
    events
}

pub fn piece(text: &str) -> ScriptedEvent {
    ScriptedEvent::Text(text.into())
}
