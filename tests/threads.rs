//! Child threads: made in their parent's commit, woken, reporting, closed; and events with threads of their own. Also
//! when slices are killed anywhere (F68, D4, D15).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/kills.rs"]
mod kills;
#[path = "support/world.rs"]
mod world;

use std::collections::BTreeMap;

use dormouse::history::request::{ModelRequest, RequestMessage};
use dormouse::message::{CallId, ContentPart, InputMessage, ItemBody, Synthetic, ThreadId};
use dormouse::model::scripted::{ScriptedEvent, ScriptedModel, prompts};
use dormouse::store::memory::CommitFault;
use dormouse::store::{ConversationStore, StateStore, ThreadKind};
use kills::{seeded, work_off};
use serde_json::{Value, json};
use world::{THREAD, World};

/// The texts of a request's last message, and of all of them.
fn texts(message: &RequestMessage) -> String {
    match message {
        RequestMessage::User(parts) => ContentPart::join_text(parts),
        RequestMessage::Assistant(assistant) => assistant.text.clone().unwrap_or_default(),
        RequestMessage::ToolResults(results) => {
            results.iter().map(|result| ContentPart::join_text(&result.parts)).collect::<Vec<_>>().join("\n")
        }
    }
}

fn call(name: &str, arguments: Value) -> Vec<ScriptedEvent> {
    vec![ScriptedEvent::call("call_0", name, arguments.to_string())]
}

/// Who a child is told that it is: its id and its stack. The last word counts: it inherits its ancestors'.
fn myself(request: &ModelRequest) -> Option<(String, Value)> {
    let all = request.messages.iter().map(texts).collect::<Vec<_>>().join("\n");
    let (_, own) = all.rsplit_once("You are the child thread ")?;
    let (id, rest) = own.split_once("; your stack of threads is ")?;
    let (stack, _) = rest.split_once(". Do this")?;
    Some((id.to_owned(), serde_json::from_str(stack).unwrap()))
}

/// `descend N` makes a child that descends N - 1; the last one reports and closes, and so does each one above when
/// its child has. Everything else is as the prompts say.
fn descending() -> ScriptedModel {
    ScriptedModel::from_fn(|request| {
        let last = request.messages.last().map(texts).unwrap_or_default();
        let own = myself(request);
        let depth = |text: &str| -> Option<u32> {
            let (_, rest) = text.rsplit_once("descend ")?;
            rest.split_whitespace().next()?.parse().ok()
        };
        if last.contains("has closed. Its report:") {
            let done = last.lines().last().unwrap().to_owned();
            return match own {
                Some((id, _)) => {
                    call("close_thread", json!({"thread_id": id, "report_to_parent": format!("{done}+")}))
                }
                None => vec![ScriptedEvent::Text(format!("all is done: {done}"))],
            };
        }
        if last.starts_with("th-") {
            return vec![ScriptedEvent::Text("it is at work".to_owned())];
        }
        match (depth(&last), own) {
            (Some(0), Some((id, _))) => {
                call("close_thread", json!({"thread_id": id, "report_to_parent": "deep"}))
            }
            (Some(n), own) => {
                let stack = own.map_or(json!([THREAD]), |(_, stack)| stack);
                let instructions = format!("descend {}", n - 1);
                call("spawn_thread", json!({"instructions": instructions, "child_of": stack}))
            }
            (None, _) => prompts::respond(request),
        }
    })
}

/// Every thread by its id: kind, whether it is closed, its own story, and what was published.
async fn outcome(world: &World) -> (BTreeMap<String, Vec<String>>, BTreeMap<String, String>) {
    let mut threads = BTreeMap::new();
    for summary in world.store.list_threads(1_000).await.unwrap() {
        let meta = world.store.meta(&summary.thread).await.unwrap().unwrap();
        assert!(meta.pending.is_empty(), "{}: {:?}", summary.thread, meta.pending);
        let mut story = vec![format!("{:?} closed {}", meta.kind, meta.closed)];
        story.extend(world.story_of(&summary.thread).await);
        threads.insert(summary.thread.as_str().to_owned(), story);
    }
    let output = world.output.sent.lock().unwrap().clone();
    (threads, output.into_iter().map(|message| (message.message_id, message.text)).collect())
}

#[tokio::test]
async fn f68_a_child_is_made_in_its_parents_commit_works_reports_and_closes() {
    let world = World::with_builtins(descending());
    world.done(&world.user("descend 1")).await;
    let spawned = world.meta().await;
    let item = &world.items().await[1];
    let ItemBody::ToolCall(call) = &item.body else { panic!("{item:?}") };
    let child = ThreadId::child(&ThreadId::from(THREAD), call.call_id.as_str());
    assert!(spawned.pending.is_empty(), "the parent has its answer at once");
    let meta = world.store.meta(&child).await.unwrap().unwrap();
    assert_eq!((meta.kind, meta.parent.clone().unwrap().as_str()), (ThreadKind::Child, THREAD));
    assert_eq!(world.store.open_children(&ThreadId::from(THREAD)).await.unwrap(), 1);
    world.settle().await;
    let story = world.story_of(&child).await;
    assert_eq!(story[0], "user: descend 1", "it knows what was said before it was made");
    assert!(story[1].starts_with("call: spawn_thread"), "{story:?}");
    assert!(story[2].contains(&format!("You are the child thread {child}")), "{story:?}");
    assert!(story[3].starts_with("call: close_thread"), "{story:?}");
    assert!(world.store.meta(&child).await.unwrap().unwrap().closed);
    assert_eq!(world.store.open_children(&ThreadId::from(THREAD)).await.unwrap(), 0);
    let story = world.story().await;
    assert!(story.iter().any(|line| line.starts_with("event: ") && line.contains("deep")), "{story:?}");
    assert_eq!(story.last().unwrap(), "assistant: all is done: deep");
    // A child's own output names it.
    let texts = world.output.texts();
    assert!(texts.iter().any(|text| text.starts_with(&format!("[{child}] "))), "{texts:?}");
    // Closed, it takes nothing any more.
    world.done(&world.message(&InputMessage::user_text(child.clone(), "say hello"))).await;
    assert_eq!(world.story_of(&child).await.len(), 5);
}

#[tokio::test]
async fn f68_a_child_whose_commit_was_lost_is_never_made_and_the_next_idea_counts() {
    let spawn = |instructions: &str| {
        let arguments = json!({"instructions": instructions, "child_of": [THREAD]});
        call("spawn_thread", arguments)
    };
    let say = |text: &str| vec![ScriptedEvent::Text(text.to_owned())];
    let world = World::with_builtins(ScriptedModel::script(vec![
        spawn("count sheep"),
        // Asked again after the crash, the model thinks otherwise.
        spawn("count stars"),
        say("it is at work"),
        say("three stars"),
    ]));
    let first = world.user("help me sleep");
    world.store.fail_commits([CommitFault::Unavailable]);
    assert_eq!(world.deliver(std::slice::from_ref(&first)).await.len(), 1, "it is handed back");
    assert_eq!(world.store.list_threads(10).await.unwrap().len(), 0, "no child without its parent's commit");
    // The next time its commit is made, and the process dies before it has sent anything.
    *world.output.failures.lock().unwrap() = 1;
    assert_eq!(world.deliver(std::slice::from_ref(&first.again())).await.len(), 1);
    assert_eq!(world.store.list_threads(10).await.unwrap().len(), 2, "the child is there with the commit");
    world.done(&first.again().again()).await;
    world.settle().await;
    let listed = world.store.list_threads(10).await.unwrap();
    assert_eq!(listed.len(), 2, "one child");
    let item = &world.items().await[1];
    let ItemBody::ToolCall(made_by) = &item.body else { panic!("{item:?}") };
    let child = ThreadId::child(&ThreadId::from(THREAD), made_by.call_id.as_str());
    let story = world.story_of(&child).await;
    assert!(story.iter().any(|line| line.contains("count stars")), "{story:?}");
    assert!(!story.iter().any(|line| line.contains("count sheep")), "{story:?}");
    assert_eq!(story.iter().filter(|line| line.starts_with("assistant")).count(), 1, "woken once: {story:?}");
}

#[tokio::test]
async fn rap_thread_tools_refuse_in_words_what_makes_no_sense() {
    let world = World::with_builtins(ScriptedModel::prompts());
    let refusals = [
        (r#"call spawn_thread {"instructions":"x","child_of":["other"]}"#, "whose stack is"),
        (r#"call spawn_thread {"child_of":["th-1"]}"#, "instructions"),
        (r#"call report_to_parent {"report":"x"}"#, "root thread"),
        (r#"call close_thread {"thread_id":"th-1"}"#, "root thread"),
        (r#"call close_thread {}"#, "thread_id"),
        (r#"call send_message_to_child {"thread_id":"th-9","message":"x"}"#, "no child th-9"),
        (r#"call cancel_subscription {"tool_call_id":"c0-1-x"}"#, "no active subscription"),
    ];
    for (text, says) in refusals {
        world.done(&world.user(text)).await;
        let story = world.story().await;
        let result = story.iter().rev().find(|line| line.starts_with("result: ")).unwrap();
        assert!(result.starts_with("result: Error: ") && result.contains(says), "{text}: {result}");
    }
    assert!(world.input.sent.lock().unwrap().is_empty());
    assert_eq!(world.store.list_threads(10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn children_are_at_most_eight_deep_and_the_deepest_is_told() {
    let world = World::with_builtins(descending());
    world.done(&world.user("descend 9")).await;
    world.settle().await;
    let threads = world.store.list_threads(100).await.unwrap();
    assert_eq!(threads.len(), 9, "the root and eight below it");
    let mut refused = 0;
    for thread in &threads {
        let story = world.story_of(&thread.thread).await;
        refused += usize::from(story.iter().any(|line| line.contains("threads are at most 8 deep")));
    }
    assert_eq!(refused, 1);
}

#[tokio::test]
async fn a_parent_writes_to_its_child_and_a_child_reports_without_closing() {
    let world = World::with_builtins(ScriptedModel::from_fn(|request| {
        let last = request.messages.last().map(texts).unwrap_or_default();
        match myself(request) {
            Some(_) if last.contains("go deeper") => {
                call("report_to_parent", json!({"report": "deeper now"}))
            }
            Some(_) => vec![ScriptedEvent::Text("ready".to_owned())],
            None if last.contains("A report of the child") => {
                vec![ScriptedEvent::Text("I heard it".to_owned())]
            }
            None => prompts::respond(request),
        }
    }));
    world
        .done(
            &world.user(
                r#"call spawn_thread {"instructions":"wait","child_of":["th-1"],"fresh_context":true}"#,
            ),
        )
        .await;
    world.settle().await;
    let listed = world.store.list_threads(10).await.unwrap();
    let child = listed.iter().map(|summary| summary.thread.clone()).find(|id| id.as_str() != THREAD).unwrap();
    let story = world.story_of(&child).await;
    assert!(story[0].starts_with("call: spawn_thread"), "fresh: nothing of the parent's: {story:?}");
    let text = format!(r#"call send_message_to_child {{"thread_id":"{child}","message":"go deeper"}}"#);
    world.done(&world.user(&text)).await;
    world.settle().await;
    let story = world.story_of(&child).await;
    assert!(story.iter().any(|line| line == "event: go deeper"), "{story:?}");
    let story = world.story().await;
    assert!(story.iter().any(|line| line.contains("deeper now")), "{story:?}");
    assert_eq!(story.last().unwrap(), "assistant: I heard it");
    assert!(!world.store.meta(&child).await.unwrap().unwrap().closed);
}

/// A thread that is subscribed by a call of `echo`.
async fn subscribed(model: ScriptedModel) -> (World, CallId) {
    let world = World::with_builtins(model);
    world.done(&world.user("call echo {}")).await;
    let call = world.tools.calls()[0].clone();
    let thread = ThreadId::from(THREAD);
    let mut result = InputMessage::tool_result(thread, call.clone(), vec![ContentPart::text("on")]);
    result.subscription = true;
    world.done(&world.message(&result)).await;
    (world, call)
}

fn event(call: &CallId, text: &str, last: bool) -> InputMessage {
    let parts = vec![ContentPart::text(text)];
    let mut event = InputMessage::tool_result(ThreadId::from(THREAD), CallId::new(""), parts);
    event.synthetic =
        Some(Synthetic::SubscriptionEvent { tool_call_id: call.clone(), associative: false, r#final: last });
    event
}

#[tokio::test]
async fn rap_39_40_d4_an_event_has_a_child_of_its_own_once_and_the_parent_is_not_disturbed() {
    let (world, call) = subscribed(ScriptedModel::from_fn(|request| {
        let last = request.messages.last().map(texts).unwrap_or_default();
        let all = request.messages.iter().map(texts).collect::<Vec<_>>().join("\n");
        match all.contains("made for one event") {
            true => vec![ScriptedEvent::Text(format!("handled {last}"))],
            false => prompts::respond(request),
        }
    }))
    .await;
    // While the parent waits for something else.
    world.done(&world.user("call other {}")).await;
    let before = world.story().await;
    let first = world.message(&event(&call, "build 1 broke", false));
    world.done(&first).await;
    world.done(&first.again()).await;
    world.done(&world.message(&event(&call, "build 2 broke", true))).await;
    assert_eq!(world.story().await, before, "the parent is not run");
    assert_eq!(world.store.get_active_subscriptions(&ThreadId::from(THREAD)).await.unwrap(), []);
    let texts = world.output.texts().len();
    world.settle().await;
    assert_eq!(world.output.texts().len(), texts, "its output is not for the user");
    let children: Vec<_> = world
        .store
        .list_threads(10)
        .await
        .unwrap()
        .into_iter()
        .filter(|summary| summary.thread.as_str() != THREAD)
        .collect();
    assert_eq!(children.len(), 2, "one event, one child");
    let mut answers = Vec::new();
    for child in children {
        let meta = world.store.meta(&child.thread).await.unwrap().unwrap();
        assert_eq!((meta.kind, meta.origin.as_ref()), (ThreadKind::Event, Some(&call)));
        answers.push(world.story_of(&child.thread).await.last().unwrap().clone());
    }
    answers.sort();
    assert_eq!(answers, ["assistant: handled build 1 broke", "assistant: handled build 2 broke"]);
    // The subscription is over.
    world.done(&world.message(&event(&call, "build 3 broke", false))).await;
    assert_eq!(world.store.list_threads(10).await.unwrap().len(), 3);
}

#[tokio::test]
async fn rap_41_a_cancelled_subscription_takes_no_events_and_its_server_is_told() {
    let (world, call) = subscribed(ScriptedModel::prompts()).await;
    world.done(&world.user(&format!(r#"call cancel_subscription {{"tool_call_id":"{call}"}}"#))).await;
    assert_eq!(*world.tools.cancelled.lock().unwrap(), std::slice::from_ref(&call));
    assert_eq!(world.store.get_active_subscriptions(&ThreadId::from(THREAD)).await.unwrap(), []);
    let story = world.story().await;
    world.done(&world.message(&event(&call, "late", false))).await;
    assert_eq!(world.story().await, story);
    assert_eq!(world.store.list_threads(10).await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn f68_d15_children_eight_deep_each_reporting_end_the_same_whatever_is_killed() {
    let calm = World::with_builtins(descending());
    work_off(&calm, vec![calm.user("descend 8")], || None).await;
    let expected = outcome(&calm).await;
    assert_eq!(expected.0.len(), 9);
    let told = "all is done: deep+++++++";
    assert!(expected.1.values().any(|text| text == told), "{:?}", expected.1);
    for seed in 0..60_u64 {
        let world = World::with_builtins(descending());
        work_off(&world, vec![world.user("descend 8")], seeded(seed)).await;
        assert!(
            outcome(&world).await == expected,
            "seed {seed}: {:#?}\n{expected:#?}",
            outcome(&world).await
        );
        let open = world.store.open_children(&ThreadId::from(THREAD)).await.unwrap();
        assert_eq!(open, 0, "seed {seed}");
    }
}
