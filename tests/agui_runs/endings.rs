//! Every run ends, and says how: whatever becomes of its message, its worker, its thread or its model.

use std::time::Duration;

use dormouse::message::{InputContent, InputMessage};
use dormouse::model::ModelInfo;
use dormouse::model::scripted::{ScriptedEvent, ScriptedModel};
use dormouse::store::{RunChange, RunStore};
use dormouse::thread::{MAX_BRANCH_ITEMS, load_branch, load_branches};

use super::*;
use crate::crash::{Mortal, Point};

async fn change(world: &World, run: &str, change: RunChange) {
    world.store.change_run(&thread(), run, &change, NOW_MS).await.unwrap();
}

async fn failed(world: &World, run: &str) -> String {
    match end(world, run).await {
        End::Failed { code, .. } => code,
        other => panic!("{other:?}"),
    }
}

fn aborted() -> RunChange {
    RunChange::End(serde_json::to_string(&End::failed("abort", "stopped")).unwrap())
}

#[tokio::test]
async fn a_stopped_run_that_waits_for_a_tool_takes_its_result_and_asks_no_model() {
    // The row was ended while the run waited; or it was told to stop just as its slice came to its end, unheeding.
    for stopped in [aborted(), RunChange::Stop] {
        let world = world();
        run(&world, "r1", &[user("u1", r#"look echo {"k":1}"#)]).await;
        change(&world, "r1", stopped.clone()).await;
        let (call, asked) = (world.pending().await.remove(0), world.model.calls());
        world.done(&world.result(&call, "late")).await;
        assert_eq!(world.model.calls(), asked, "{stopped:?}: its user has ended it");
        assert_eq!(world.story().await.last().unwrap(), "result: late", "{stopped:?}: nothing is lost");
        assert_eq!((failed(&world, "r1").await.as_str(), world.meta().await.run), ("abort", None));
        run(&world, "r2", &[user("u1", ""), assistant("i0-2"), user("u2", "say alpha")]).await;
        assert_eq!(world.story().await.last().unwrap(), "assistant: alpha", "{stopped:?}");
        assert_eq!(end(&world, "r2").await, End::Finished);
    }
}

#[tokio::test]
async fn a_stopped_run_that_waits_for_two_tools_asks_no_model_when_the_last_has_answered() {
    for stopped in [aborted(), RunChange::Stop] {
        let world = world();
        run(&world, "r1", &[user("u1", r#"both echo {"k":1} other {"k":2}"#)]).await;
        change(&world, "r1", stopped.clone()).await;
        let (calls, asked) = (world.pending().await, world.model.calls());
        for (at, call) in calls.iter().enumerate() {
            let result = world.result(call, &format!("late {at}"));
            world.done(&result).await;
            world.done(&result.again()).await;
        }
        assert_eq!(world.model.calls(), asked, "{stopped:?}: its user has ended it");
        assert_eq!((failed(&world, "r1").await.as_str(), world.meta().await.run), ("abort", None));
        world.done(&world.user("say alpha")).await;
        assert_eq!(world.output.texts().last().unwrap(), "alpha");
    }
}

#[tokio::test]
async fn a_message_for_a_thread_whose_run_was_stopped_is_answered() {
    let world = world();
    run(&world, "r1", &[user("u1", r#"look echo {"k":1}"#)]).await;
    change(&world, "r1", aborted()).await;
    world.done(&world.user("say alpha")).await;
    assert_eq!(world.output.texts().last().unwrap(), "alpha");
    assert_eq!(world.meta().await.run, None);
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_row_is_ended_while_its_model_streams_stops_there() {
    let world = world();
    let delivery = post(&world, "r1", &[user("u1", "slow 400 word")], FOR_EVER).await;
    let running = world.clone();
    let slice = tokio::spawn(async move { running.done(&delivery).await });
    tokio::time::sleep(Duration::from_secs(2)).await;
    change(&world, "r1", aborted()).await;
    slice.await.unwrap();
    let said = world.story().await.pop().unwrap();
    assert!(said.starts_with("assistant: word") && said.matches("word").count() < 100, "{said}");
    assert_eq!((failed(&world, "r1").await.as_str(), world.meta().await.run), ("abort", None));
}

#[tokio::test]
async fn a_run_that_is_told_to_stop_before_it_begins_keeps_what_was_said() {
    let world = world();
    let delivery = post(&world, "r1", &[user("u1", "say alpha")], FOR_EVER).await;
    change(&world, "r1", RunChange::Stop).await;
    world.done(&delivery).await;
    assert_eq!((world.story().await, world.model.calls()), (vec!["user: say alpha".to_owned()], 0));
    assert_eq!(failed(&world, "r1").await, "abort");
}

#[tokio::test]
async fn a_request_of_many_messages_that_dies_between_its_commits_begins_once() {
    let mortal = Mortal::new().await;
    let world = &mortal.world;
    let texts: Vec<RunRecord> = (1..=60).map(|n| user(&format!("u{n}"), &format!("say {n}"))).collect();
    let delivery = post(world, "r1", &texts, FOR_EVER).await;
    mortal.killed(Point::CommitWritten(1), &delivery).await;
    let stored = world.story().await.len();
    assert!(stored > 0 && stored < 60, "the first of several commits: {stored}");
    assert_eq!(world.meta().await.run.as_deref(), Some("r1"));
    world.done(&delivery.again()).await;
    assert_eq!(end(world, "r1").await, End::Finished);
    let story = world.story().await;
    assert_eq!((story.len(), &*story[59], &*story[60]), (61, "user: say 60", "assistant: 60"));
}

#[tokio::test]
async fn what_the_model_does_not_answer_is_an_error_of_the_run() {
    let end_of = |stop: &str| ScriptedEvent::End(stop.into());
    let cut = vec![ScriptedEvent::Text("half an".into()), end_of("max_tokens")];
    for response in [vec![end_of("refusal")], cut, vec![end_of("end_turn")]] {
        let world = World::new(ScriptedModel::script(vec![response.clone()]));
        run(&world, "r1", &[user("u1", "go")]).await;
        assert_eq!(failed(&world, "r1").await, "MODEL_ERROR", "{response:?}");
    }
    // A window into which nothing fits.
    let info = ModelInfo { context_window: Some(1_000), ..ModelInfo::default() };
    let world = World::new(ScriptedModel::prompts().with_info(info));
    run(&world, "r1", &[user("u1", &"much ".repeat(4_000))]).await;
    assert_eq!((failed(&world, "r1").await.as_str(), world.model.calls()), ("MODEL_ERROR", 0));
}

#[tokio::test]
async fn a_run_of_a_closed_thread_ends() {
    let world = world();
    run(&world, "r1", &[user("u1", r#"look echo {"k":1}"#)]).await;
    world.done(&world.message(&InputMessage::plain(thread(), InputContent::Close))).await;
    assert_eq!(failed(&world, "r1").await, "abort", "the one that waited");
    run(&world, "r2", &[user("u1", ""), user("u2", "say alpha")]).await;
    assert_eq!(failed(&world, "r2").await, "INTERNAL", "one that comes too late");
    let late = post(&world, "r3", &[user("u3", "say bravo")], FOR_EVER).await;
    world.dies(&late).await;
    assert_eq!(failed(&world, "r3").await, "INTERNAL", "one that died on the queue");
}

#[tokio::test]
async fn a_run_for_an_agent_that_is_not_there_ends() {
    let world = world();
    let delivery = post(&world, "r1", &[user("u1", "say alpha")], FOR_EVER).await;
    let mut message = InputMessage::parse(delivery.body.as_bytes()).unwrap();
    message.metadata = Some(dormouse::message::RawJson::parse(r#"{"agent":"nobody"}"#).unwrap());
    world.done(&world.message(&message)).await;
    assert_eq!(failed(&world, "r1").await, "INTERNAL");
}

#[tokio::test]
async fn a_run_is_not_worked_on_without_what_its_client_brought() {
    let world = world();
    let delivery = post(&world, "r1", &[user("u1", r#"call cl_where {"q":"x"}"#)], FOR_EVER).await;
    world.store.fail_run_changes(1);
    assert_eq!(world.deliver(std::slice::from_ref(&delivery)).await.len(), 1, "handed back");
    assert_eq!(world.model.calls(), 0, "it would have been asked without the client's tools");
    world.done(&delivery.again()).await;
    assert_eq!(shown(&world, "r1").await, ["call i0-2 cl_where"]);
}

#[tokio::test]
async fn a_run_whose_message_dies_ends_however_far_its_worker_came() {
    for point in [Point::CommitAsked(1), Point::CommitWritten(1), Point::Streaming(1)] {
        let mortal = Mortal::new().await;
        let world = &mortal.world;
        let delivery = post(world, "r1", &[user("u1", "say alpha")], FOR_EVER).await;
        mortal.killed(point, &delivery).await;
        world.dies(&delivery).await;
        assert_eq!(failed(world, "r1").await, "WORKER_LOST", "{point:?}");
        assert_eq!(world.meta().await.run, None, "{point:?}");
    }
    // A message of somebody else, which cuts the run short.
    let mortal = Mortal::new().await;
    let world = &mortal.world;
    run(world, "r1", &[user("u1", r#"look echo {"k":1}"#)]).await;
    let text = world.user("say alpha");
    mortal.killed(Point::Streaming(1), &text).await;
    assert_eq!(world.story().await.last().unwrap(), "interrupt", "the barrier is behind it");
    assert_eq!(world.meta().await.run.as_deref(), Some("r1"));
    world.dies(&text).await;
    assert_eq!(failed(world, "r1").await, "WORKER_LOST");
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_given_up_on_midway_ends() {
    let mortal = Mortal::new().await;
    let world = &mortal.world;
    let mut delivery = post(world, "r1", &[user("u1", "say alpha")], FOR_EVER).await;
    mortal.killed(Point::Streaming(1), &delivery).await;
    for _ in 0..4 {
        delivery = delivery.again();
        mortal.killed(Point::Streaming(1), &delivery).await;
    }
    world.done(&delivery.again()).await;
    assert_eq!(failed(world, "r1").await, "WORKER_LOST");
    world.settle().await;
    assert_eq!(world.meta().await.run, None);
}

#[tokio::test]
async fn branches_are_read_once_each_and_no_more_of_them_than_is_bounded() {
    let world = world();
    run(&world, "r0", &[user("u0", "say alpha")]).await;
    for n in 1..=6 {
        run(&world, &format!("r{n}"), &[user("u0", ""), assistant("i0-2"), user(&format!("u{n}"), "say x")])
            .await;
    }
    let meta = world.meta().await;
    let all = load_branches(&world.store, &meta, MAX_BRANCH_ITEMS).await.unwrap();
    let all: Vec<_> = all.iter().collect();
    assert_eq!(all.len() as u32, meta.epoch.0);
    for branch in &all {
        let whole = load_branch(&world.store, &thread(), Some(branch.epoch)).await.unwrap().unwrap();
        assert_eq!(branch.items, whole.items.iter().collect::<Vec<_>>(), "{}", branch.epoch);
        let logs: Vec<_> = whole.meta.as_ref().unwrap().logs().collect();
        assert_eq!(branch.logs, logs, "{}", branch.epoch);
    }
    let few = load_branches(&world.store, &meta, 3).await.unwrap();
    let few: Vec<u32> = few.iter().map(|branch| branch.epoch.0).collect();
    assert!(few.len() < all.len() && few.contains(&(meta.epoch.0 - 1)), "the newest ones: {few:?}");
}
