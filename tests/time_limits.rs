//! A tool server may be given a time for its results: what comes later is a note. Over real HTTP, with timers that a
//! test fires by hand, and at the end with the real binary and its delay queue.
#![cfg(feature = "local")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/command.rs"]
mod command;
#[path = "../src/local/demo.rs"]
mod demo;
#[path = "support/rap.rs"]
mod peer;
#[path = "support/timers.rs"]
mod timers;
#[path = "support/world.rs"]
mod world;

use std::sync::Arc;

use axum::http::StatusCode;
use command::Home;
use dormouse::config::{Config, Destructive, ToolServerConfig};
use dormouse::message::{DedupId, InputContent, InputMessage, ItemBody, Outcome, SettledBy};
use dormouse::model::scripted::{ScriptedEvent, ScriptedModel};
use dormouse::queue::QueueError;
use dormouse::rap::{RapTools, http_client};
use dormouse::store::Due;
use dormouse::tools::AgentTools;
use peer::{Answer, FakeServer, tokens};
use serde_json::json;
use timers::Timers;
use world::{Delivery, NOW_MS, World};

/// A world whose tools are those of a real HTTP server.
struct Limited {
    world: World,
    server: FakeServer,
    timers: Arc<Timers>,
}

const SECONDS: u64 = 600;

async fn limited(seconds: Option<u64>, responses: Vec<Vec<ScriptedEvent>>) -> Limited {
    limited_by(ToolServerConfig { result_timeout_seconds: seconds, ..Default::default() }, responses).await
}

async fn limited_by(settings: ToolServerConfig, responses: Vec<Vec<ScriptedEvent>>) -> Limited {
    let server = FakeServer::start(|seen, _| match seen.path.as_str() {
        "/.well-known/rap-toolset" => {
            let endpoint = format!("http://{}/invoke", seen.headers["host"].to_str().unwrap());
            let tool = |name: &str| {
                let annotations = json!({"destructive": name == "drop"});
                json!({"name": name, "description": "d", "inputSchema": {}, "annotations": annotations})
            };
            let tools = ["watch", "look", "drop"].map(tool);
            Answer::from(json!({"name": "s", "endpoint": endpoint, "tools": tools}).to_string())
        }
        _ => StatusCode::OK.into(),
    })
    .await;
    let mut world = World::new(ScriptedModel::script(responses));
    let timers = Arc::new(Timers::default());
    let settings = ToolServerConfig { url: server.url.clone(), ..settings };
    let config = Arc::new(Config {
        tool_servers: [("s".to_owned(), settings)].into(),
        allow_http_hosts: vec!["127.0.0.1".into()],
        ..Config::default()
    });
    let tokens = tokens("https://cb.example");
    let rap = RapTools::new(config.clone(), Arc::new(world.store.clone()), tokens, http_client().unwrap());
    let rap = rap.with_timers(Some(timers.clone()));
    world.runtime.tools = Arc::new(AgentTools::new(config, vec![], vec![Arc::new(rap)]));
    Limited { world, server, timers }
}

impl Limited {
    /// What the n-th timer's message is when the queue hands it out.
    fn fired(&self, at: usize) -> Delivery {
        let (_, message, dedup) = self.timers.set.lock().unwrap()[at].clone();
        Delivery { dedup: dedup.as_str().to_owned(), ..self.world.message(&message) }
    }

    fn set(&self) -> usize {
        self.timers.set.lock().unwrap().len()
    }

    fn cancelled(&self) -> Vec<serde_json::Value> {
        self.server
            .at("/cancel_tool_call")
            .into_iter()
            .map(|seen| seen.json()["tool_call_id"].clone())
            .collect()
    }
}

fn text(text: &str) -> Vec<ScriptedEvent> {
    vec![ScriptedEvent::Text(text.into()), ScriptedEvent::End("end_turn".into())]
}

fn calls(names: &[&str]) -> Vec<ScriptedEvent> {
    let mut events: Vec<ScriptedEvent> =
        names.iter().map(|name| ScriptedEvent::call(*name, *name, "{}")).collect();
    events.push(ScriptedEvent::End("tool_use".into()));
    events
}

const TIMED_OUT: &str = "result: Error: watch did not answer in time. It may still finish.";

#[tokio::test]
async fn rap_54_a_call_without_a_result_in_time_is_settled_and_its_server_is_told() {
    let limited = limited(Some(SECONDS), vec![calls(&["watch"]), text("too late"), text("never")]).await;
    let world = &limited.world;
    let before = jiff::Timestamp::now().as_millisecond();
    world.done(&world.user("go")).await;
    let call = world.pending().await.remove(0);
    assert_eq!(limited.server.at("/invoke").len(), 1);
    let due = limited.timers.set.lock().unwrap()[0].0 - before;
    assert!((600_000..630_000).contains(&due), "{due}");

    world.done(&limited.fired(0)).await;
    assert_eq!(world.story().await[2..], [TIMED_OUT, "assistant: too late"]);
    let items = world.items().await;
    let ItemBody::ToolResult(result) = &items[2].body else { panic!("{:?}", items[2]) };
    assert_eq!((&result.outcome, result.settled_by), (&Outcome::TimedOut, SettledBy::Runtime));
    assert_eq!(limited.cancelled(), [json!(call)]);

    // The same timer once more, as timers do; and the tool's own result, which is a note.
    world.done(&limited.fired(0)).await;
    world.done(&world.result(&call, "green")).await;
    let story = world.story().await;
    assert_eq!(story.len(), 5);
    assert!(story[4].contains("late result of watch") && story[4].ends_with("\ngreen"), "{story:?}");
    assert_eq!((world.model.calls(), limited.cancelled().len()), (2, 1));
}

#[tokio::test]
async fn rap_27_whether_a_destructive_tool_may_run_is_asked_for_no_longer_than_its_server_says() {
    let settings = || ToolServerConfig {
        destructive: Destructive::AskEdit,
        consent_timeout_seconds: Some(SECONDS),
        result_timeout_seconds: Some(10 * SECONDS),
        ..Default::default()
    };
    let missing = "result: Error: nobody has permitted drop in time. It did not run.";
    let asked = limited_by(settings(), vec![calls(&["drop", "look"]), text("as you wish")]).await;
    let world = &asked.world;
    world.done(&world.user("go")).await;
    let terms = world.meta().await.pending.remove(0).terms;
    let due_ms = NOW_MS + 600_000;
    assert_eq!((terms.editable, terms.due), (true, Some(Due::At(due_ms))));
    let questions = asked.timers.all().into_iter().filter(|(_, message, _)| is_dismissal(message));
    let questions: Vec<_> = questions.collect();
    assert_eq!(questions.iter().map(|question| question.0).collect::<Vec<_>>(), [due_ms]);
    let (_, message, dedup) = &questions[0];
    world.done(&Delivery { dedup: dedup.as_str().to_owned(), ..world.message(message) }).await;
    world.done(&world.result(&world.pending().await[0], "seen")).await;
    assert_eq!(world.story().await[3..], [missing, "result: seen", "assistant: as you wish"]);
    assert_eq!((asked.server.at("/invoke").len(), asked.cancelled().len()), (1, 0));

    // A timer that cannot be set now is set by the redelivery; one that never can be leaves no question behind.
    for (failure, handed_back) in [
        (QueueError::Unavailable as fn(String) -> QueueError, 1),
        (QueueError::Refused as fn(String) -> QueueError, 0),
    ] {
        let asked = limited_by(settings(), vec![calls(&["drop"]), text("as you wish")]).await;
        let (world, message) = (&asked.world, asked.world.user("go"));
        *asked.timers.fails.lock().unwrap() = Some(failure);
        assert_eq!(world.deliver(std::slice::from_ref(&message)).await.len(), handed_back);
        *asked.timers.fails.lock().unwrap() = None;
        match handed_back {
            0 => world.settle().await,
            _ => {
                world.done(&message.again()).await;
                world.done(&asked.fired(0)).await;
            }
        }
        assert_eq!(world.story().await[2..], [missing, "assistant: as you wish"]);
    }
}

fn is_dismissal(message: &InputMessage) -> bool {
    matches!(&message.content, InputContent::UserChoiceAnswer(answer) if answer.selected.is_none())
}

#[tokio::test]
async fn rap_54_what_has_its_result_in_time_hears_nothing_of_the_limit() {
    for settle in ["result", "user"] {
        let limited = limited(Some(SECONDS), vec![calls(&["watch"]), text("fine"), text("never")]).await;
        let world = &limited.world;
        world.done(&world.user("go")).await;
        let call = world.pending().await.remove(0);
        match settle {
            "result" => world.done(&world.result(&call, "green")).await,
            _ => world.done(&world.user("never mind")).await,
        }
        let (story, cancelled) = (world.story().await, limited.cancelled().len());
        let commits = world.store.commits();
        world.done(&limited.fired(0)).await;
        assert_eq!(world.story().await, story, "{settle}: no note, no second result");
        assert_eq!((limited.cancelled().len(), world.store.commits()), (cancelled, commits));
    }
    let without = limited(None, vec![calls(&["watch"])]).await;
    without.world.done(&without.world.user("go")).await;
    assert_eq!((without.set(), without.server.at("/invoke").len()), (0, 1), "off by default");
}

#[tokio::test]
async fn rap_54_of_two_calls_the_one_that_is_late_does_not_hold_up_the_other_for_ever() {
    let limited = limited(Some(SECONDS), vec![calls(&["watch", "look"]), text("half")]).await;
    let world = &limited.world;
    world.done(&world.user("go")).await;
    let calls = world.pending().await;
    let sets = limited.timers.set.lock().unwrap().clone();
    let of_watch = sets.iter().position(|(_, message, _)| format!("{message:?}").contains(calls[0].as_str()));
    world.done(&limited.fired(of_watch.unwrap())).await;
    assert_eq!(world.model.calls(), 1, "parked until the other is in");
    assert_eq!(limited.cancelled(), [json!(calls[0])], "its server is told at once");
    // The tool's own result comes while the runtime's is parked.
    world.done(&world.result(&calls[0], "green")).await;
    world.done(&world.result(&calls[1], "seen")).await;
    let story = world.story().await;
    assert!(story.contains(&TIMED_OUT.to_owned()) && story.contains(&"result: seen".to_owned()), "{story:?}");
    assert!(story.iter().any(|line| line.contains("late result of watch")), "{story:?}");
    assert_eq!(story.last().unwrap(), "assistant: half");
}

#[tokio::test]
async fn i4_a_call_that_is_sent_again_has_one_limit_and_one_that_cannot_have_one_is_not_sent() {
    let limited = limited(Some(SECONDS), vec![calls(&["watch"]), text("too late"), text("never")]).await;
    let world = &limited.world;
    let go = world.user("go");
    // The reply behind the commit fails: the redelivery sends the outbox again; then somebody sends it by hand.
    *world.output.failures.lock().unwrap() = 1;
    assert_eq!(world.deliver(std::slice::from_ref(&go)).await.len(), 1);
    world.done(&go.again()).await;
    let call = world.pending().await.remove(0);
    let (resend, dedup) = dormouse::http::resent_by_hand(&world::THREAD.into(), &call);
    world.done(&Delivery { dedup: dedup.as_str().to_owned(), ..world.message(&resend) }).await;
    assert_eq!(limited.server.at("/invoke").len(), limited.set());
    assert!(limited.set() >= 2);
    let ids: Vec<DedupId> = limited.timers.set.lock().unwrap().iter().map(|(_, _, id)| id.clone()).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "one timer, however often it is set: {ids:?}");
    for at in 0..limited.set() {
        world.done(&limited.fired(at)).await;
    }
    assert_eq!(world.story().await[2..], [TIMED_OUT, "assistant: too late"]);

    let limited = self::limited(Some(SECONDS), vec![calls(&["watch"]), text("a pity")]).await;
    *limited.timers.fails.lock().unwrap() = Some(QueueError::Unavailable);
    limited.world.done(&limited.world.user("go")).await;
    limited.world.settle().await;
    assert_eq!(limited.server.at("/invoke").len(), 0, "no call is out without its limit");
    assert_eq!(
        limited.world.story().await[2..],
        ["result: Error: watch did not run: its time limit could not be set", "assistant: a pity"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn rap_54_the_limit_of_the_configuration_goes_through_the_real_delay_queue() {
    let demo = demo::DemoServer::start(0).await.unwrap();
    let home = Home::new();
    let toml = format!(
        "allow_http_hosts = ['127.0.0.1']\n[models.default]\nprovider = 'scripted'\n\
         [tool_servers.demo]\nurl = '{}'\nresult_timeout_seconds = 1\n",
        demo.url()
    );
    std::fs::write(home.path("dormouse.toml"), toml).unwrap();
    let chat = tokio::task::spawn_blocking(move || home.ok(&["chat", r#"call srv_slow {"ms":50000}"#]));
    assert_eq!(chat.await.unwrap(), "result: Error: srv_slow did not answer in time. It may still finish.");
    demo.stop();
}
