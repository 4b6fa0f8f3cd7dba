//! Putting a system together, and driving it a step at a time.

use std::sync::{Arc, Mutex};

use dormouse::agent::{AgentEvent, AgentInput, AgentSystem, BuildError, FnTool};
use dormouse::config::{Config, ToolServerConfig};
use dormouse::message::{CallId, ContentPart, Epoch, Seq, ThreadId};
use dormouse::model::scripted::{ScriptedErrorClass, ScriptedEvent, ScriptedModel};
use dormouse::slice::{AgentProfile, DisplayEvent};
use dormouse::store::ConversationStore;
use dormouse::store::memory::{CommitFault, MemoryStore};
use futures::StreamExt;
use serde_json::json;

use crate::resident::{calls, in_time, piece, text};
use crate::world::{World, tell};

fn scripted(responses: Vec<Vec<ScriptedEvent>>) -> Arc<ScriptedModel> {
    Arc::new(ScriptedModel::script(responses))
}

fn adds() -> FnTool {
    let schema = json!({
        "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"]
    });
    FnTool::new("add", "Adds two numbers.", schema, |arguments| async move {
        let number = |name: &str| arguments[name].as_i64().unwrap_or_default();
        Ok((number("a") + number("b")).to_string())
    })
}

fn calls_add(arguments: &str) -> Vec<ScriptedEvent> {
    vec![ScriptedEvent::call("p", "add", arguments), ScriptedEvent::End("tool_use".into())]
}

#[tokio::test]
async fn a_step_answers_runs_tools_and_tells_what_it_did() {
    let model = scripted(vec![calls_add(r#"{"a":2,"b":3}"#), text("five"), text("again")]);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let watching = seen.clone();
    let system = AgentSystem::builder()
        .model(model.clone(), "be brief")
        .tool(adds())
        .on_event(move |thread, event| watching.lock().unwrap().push((thread.clone(), event.clone())))
        .build()
        .unwrap();
    let mut events = system.events();
    let step = system.thread("t1").step("2+3?").await.unwrap();
    assert_eq!(step.texts(), [r#"[add({"a":2,"b":3})]"#, "five"]);
    assert!(step.open_calls.is_empty());
    let shown = |event: &AgentEvent| match event {
        AgentEvent::Shown { event, .. } => Some(event.clone()),
        AgentEvent::Output(_) | AgentEvent::Missed { .. } | _ => None,
    };
    let of_step: Vec<DisplayEvent> = step.events.iter().filter_map(shown).collect();
    assert!(of_step.contains(&DisplayEvent::Text("five".into())) && of_step.contains(&DisplayEvent::Done));
    let seen: Vec<_> = seen.lock().unwrap().drain(..).collect();
    assert_eq!(
        seen.iter().map(|(_, event)| event.clone()).collect::<Vec<_>>(),
        of_step,
        "observers see the same"
    );
    assert!(seen.iter().all(|(thread, _)| *thread == ThreadId::from("t1")));
    for expected in &step.events {
        assert_eq!(in_time(events.next()).await.as_ref(), Some(expected), "and so does the stream");
    }
    assert_eq!(model.requests()[0].system.as_deref(), Some("be brief"));
}

#[tokio::test]
async fn a_step_that_fails_is_done_again_and_has_effect_once() {
    let fails = vec![ScriptedEvent::error(ScriptedErrorClass::Transient, "not now")];
    let store = MemoryStore::new();
    let limits = dormouse::slice::Limits { retries: 0, ..Default::default() };
    let model = scripted(vec![fails, text("one"), text("lost")]);
    let system = AgentSystem::builder()
        .model(model.clone(), "")
        .store(Arc::new(store.clone()))
        .limits(limits)
        .build()
        .unwrap();
    let thread = system.thread("t1");
    let input = AgentInput::user("hi");
    let error = thread.step(&input).await.unwrap_err();
    assert!(error.why.contains("not now"), "{error}");
    assert_eq!(store.commits(), 0);
    assert_eq!(thread.step(input.again()).await.unwrap().texts(), ["one"]);
    assert_eq!(thread.step(input.again().again()).await.unwrap().texts(), Vec::<&str>::new(), "a duplicate");
    let second = AgentInput::user("more");
    store.fail_commits([CommitFault::AnswerLost]);
    thread.step(&second).await.unwrap_err();
    let resumed = thread.step(second.again()).await.unwrap();
    assert_eq!(resumed.texts(), ["lost"], "what the lost commit had promised is sent");
    assert_eq!(model.calls(), 3);
}

#[tokio::test]
async fn an_asynchronous_call_is_open_until_its_result_is_given_in() {
    let world = World::new(ScriptedModel::script(vec![calls(&["echo"]), text("done")]));
    let system = crate::resident::system(&world);
    let thread = system.thread("t1");
    let step = thread.step("go").await.unwrap();
    assert_eq!(step.open_calls, world.tools.calls());
    let result = AgentInput::result(step.open_calls[0].clone(), vec![ContentPart::text("ok")]);
    let step = thread.step(result).await.unwrap();
    assert_eq!((step.texts(), step.open_calls.len()), (vec!["done"], 0));
}

#[tokio::test]
async fn a_step_streams_its_events_and_a_dropped_stream_leaves_nothing() {
    let slow = vec![piece("a"), ScriptedEvent::DelayMs(60_000), piece("b")];
    let store = MemoryStore::new();
    let model = scripted(vec![slow, vec![piece("x"), piece("y")]]);
    let system = AgentSystem::builder().model(model, "").store(Arc::new(store.clone())).build().unwrap();
    let thread = system.thread("t1");
    let input = AgentInput::user("hi");
    let mut stream = thread.stream(&input);
    while let Some(event) = in_time(stream.next()).await {
        if matches!(event.unwrap(), AgentEvent::Shown { event: DisplayEvent::Text(_), .. }) {
            break;
        }
    }
    drop(stream);
    assert_eq!(store.commits(), 0);
    let events: Vec<AgentEvent> =
        in_time(thread.stream(input.again()).map(Result::unwrap).collect::<Vec<_>>()).await;
    let pieces: Vec<String> = events
        .iter()
        .filter_map(|event| match event {
            AgentEvent::Shown { event: DisplayEvent::Text(text), .. } => Some(text.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(pieces, ["x", "y"]);
    assert!(matches!(events.last(), Some(AgentEvent::Shown { event: DisplayEvent::Done, .. })), "{events:?}");
}

#[tokio::test]
async fn settling_runs_what_threads_have_sent_to_one_another() {
    let call = |name: &str, arguments: &str| {
        vec![ScriptedEvent::call("p", name, arguments), ScriptedEvent::End("tool_use".into())]
    };
    let parent = ThreadId::from("t1");
    let child = ThreadId::child(&parent, CallId::mint(&parent, Epoch(0), Seq(2)).as_str());
    let model = scripted(vec![
        call("spawn_thread", r#"{"instructions":"count","child_of":["t1"],"fresh_context":true}"#),
        text("delegated"),
        call("close_thread", &format!(r#"{{"thread_id":"{child}","report_to_parent":"one two"}}"#)),
        text("it has counted"),
    ]);
    let store = MemoryStore::new();
    let system = AgentSystem::builder().model(model, "").store(Arc::new(store.clone())).build().unwrap();
    let step = system.thread("t1").step("go").await.unwrap();
    assert_eq!(step.texts().last(), Some(&"delegated"));
    let settled = in_time(system.settle()).await.unwrap();
    assert!(
        settled.iter().any(|event| matches!(event, AgentEvent::Output(out) if out.text == "it has counted"))
    );
    let items = store.load(&ThreadId::from("t1"), &[]).await.unwrap().items;
    assert_eq!(items.last().map(|item| tell(&item.body)).as_deref(), Some("assistant: it has counted"));
    assert!(in_time(system.settle()).await.unwrap().is_empty(), "nothing is left");
}

#[tokio::test]
async fn agents_are_chosen_by_metadata_and_come_from_code_or_configuration() {
    let config: Config = {
        let mut config = Config::default();
        config.models.insert("echoes".to_owned(), dormouse::config::ModelConfig::from_spec("scripted"));
        let agent = dormouse::config::AgentConfig { model: Some("echoes".to_owned()), ..Default::default() };
        config.agents.insert("configured".to_owned(), agent);
        config
    };
    let profile = |word: &str| AgentProfile {
        model: scripted(vec![text(word)]),
        system_prompt: None,
        max_output_tokens: None,
        prune: true,
        compaction: None,
    };
    let system = AgentSystem::builder()
        .agent("first", profile("I am first"))
        .agent("second", profile("I am second"))
        .config(config)
        .build()
        .unwrap();
    let to = |agent: &str| {
        let metadata = dormouse::message::RawJson::parse(&format!(r#"{{"agent":"{agent}"}}"#)).unwrap();
        AgentInput::user("say who").with_metadata(metadata)
    };
    assert_eq!(system.thread("a").step("hi").await.unwrap().texts(), ["I am first"]);
    assert_eq!(system.thread("b").step(to("second")).await.unwrap().texts(), ["I am second"]);
    assert_eq!(system.thread("c").step(to("configured")).await.unwrap().texts(), ["who"]);
    let refused = system.thread("d").step(to("nobody")).await.unwrap();
    assert!(refused.texts()[0].contains("nobody"), "{refused:?}");
}

#[test]
fn what_cannot_be_put_together_says_what_to_do() {
    assert!(matches!(AgentSystem::builder().build().err(), Some(BuildError::NoAgent)));
    let mut config = Config::default();
    let server = ToolServerConfig { url: "https://builds.example".to_owned(), ..Default::default() };
    config.tool_servers.insert("builds".to_owned(), server);
    let error = AgentSystem::builder().config(config).build().err().unwrap().to_string();
    assert!(error.contains("builds") && error.contains("AgentSystem::over"), "{error}");
}

#[tokio::test]
async fn i4_what_a_failed_step_had_committed_is_sent_although_its_caller_turns_to_something_else() {
    let world = World::new(ScriptedModel::script(vec![calls(&["echo"]), text("then this")]));
    let system = crate::resident::system(&world);
    let thread = system.thread("t1");
    *world.output.failures.lock().unwrap() = 1;
    let error = thread.step("do it").await.unwrap_err();
    assert!(error.why.contains("unavailable"), "{error}");
    assert!(world.tools.calls().is_empty(), "its call is committed and has not left");
    // A result for a call that nobody knows is handled without a word, but the slice sends what is owed first.
    let nothing = AgentInput::result("c0-9-none".into(), vec![ContentPart::text("x")]);
    thread.step(nothing).await.unwrap();
    assert_eq!(world.tools.calls().len(), 1);
    assert_eq!(world.output.texts(), [r#"[echo({"text":"x"})]"#]);
}

#[tokio::test]
async fn i4_a_step_after_a_crash_begins_with_what_was_left() {
    let hangs = vec![ScriptedEvent::DelayMs(crate::resident::LONG_MS)];
    let world = World::new(ScriptedModel::script(vec![calls(&["add"]), hangs, text("done")]));
    let system = crate::resident::system(&world);
    let thread = system.thread("t1");
    let mut stream = thread.stream("hi");
    let begun = async {
        while world.model.calls() < 2 {
            tokio::select! {
                event = stream.next() => drop(event.unwrap().unwrap()),
                () = tokio::time::sleep(std::time::Duration::from_millis(5)) => {}
            }
        }
    };
    in_time(begun).await;
    drop(stream);
    assert!(!world.store.meta(&ThreadId::from("t1")).await.unwrap().unwrap().open.is_empty());
    let told = in_time(thread.resume()).await.unwrap();
    assert!(told.iter().any(|event| matches!(event, AgentEvent::Output(out) if out.text == "done")));
    assert!(in_time(thread.resume()).await.unwrap().len() <= 1, "and then nothing is left to do");
    assert_eq!(world.model.calls(), 3);
    assert_eq!(system.thread("t-none").resume().await.unwrap(), []);
}

/// Wherever a step is dropped, the next one of this process, whatever it is for, first sends what was committed.
#[tokio::test]
async fn i4_what_a_dropped_step_has_committed_is_sent_by_the_next_one() {
    let mut after_commit = 0;
    for polls in 1..80 {
        let world = World::new(ScriptedModel::script(vec![text("one"), text("two"), text("three")]));
        let system = crate::resident::system(&world);
        let thread = system.thread("t1");
        let mut stream = thread.stream("first");
        let mut context = std::task::Context::from_waker(futures::task::noop_waker_ref());
        for _ in 0..polls {
            if let std::task::Poll::Ready(None) = stream.as_mut().poll_next(&mut context) {
                break;
            }
        }
        drop(stream);
        let committed = world.store.meta(&ThreadId::from("t1")).await.unwrap().is_some();
        in_time(thread.step("second")).await.unwrap();
        let sent: Vec<String> =
            world.output.sent.lock().unwrap().iter().map(|out| out.text.clone()).collect();
        if committed {
            assert!(sent.iter().any(|text| text == "one"), "dropped after {polls} polls: {sent:?}");
            after_commit += 1;
        }
    }
    assert!(after_commit > 3, "it was dropped between commit and reply as well");
}
