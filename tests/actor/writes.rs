//! What is pushed: when it is acknowledged, what a failed write leaves, and who else may write.

use std::time::Duration;

use dormouse::agent::actor::ActorOptions;
use dormouse::agent::{AgentInput, NotPushed, ResidentOptions, WriteOutcome};
use dormouse::message::{ContentPart, DedupId, ThreadId};
use dormouse::model::scripted::{ScriptedErrorClass, ScriptedEvent, ScriptedModel};
use dormouse::store::memory::CommitFault;
use dormouse::store::{ConversationStore, StateStore};

use crate::resident::{
    actor, actor_with, calls, committed, flushed, hanging, in_time, piece, system, text, until,
};
use crate::world::{Delivery, THREAD, World};

fn world(responses: Vec<Vec<ScriptedEvent>>) -> World {
    World::new(ScriptedModel::script(responses))
}

#[tokio::test]
async fn i1_an_input_is_acknowledged_after_its_commit_and_not_before() {
    let world = world(vec![hanging(vec![piece("hello")])]);
    let handle = actor(&world);
    let input = AgentInput::user("hi");
    let mut ack = Box::pin(handle.push_and_ack(&input));
    let streaming = crate::resident::snapshot_when(&handle, |snapshot| !snapshot.partial.is_empty());
    tokio::select! {
        biased;
        early = &mut ack => panic!("acknowledged without a commit: {early:?}"),
        _ = streaming => {}
    }
    assert_eq!(world.store.commits(), 0, "the model still speaks");
    handle.stop_response().unwrap();
    assert_eq!(in_time(ack).await.unwrap(), WriteOutcome::Committed);
    assert!(world.store.is_message_processed(&ThreadId::from(THREAD), &input.id).await.unwrap());
    assert_eq!(world.story().await, ["user: hi", "assistant: hello"]);
    assert_eq!(world.output.texts()[0], "hello");
}

#[tokio::test]
async fn i2_an_input_has_effect_once_however_often_it_is_pushed() {
    let world = world(vec![text("one")]);
    let handle = actor(&world);
    let input = AgentInput::user("hi").with_id("my-id");
    for _ in 0..3 {
        committed(&handle, &input).await;
    }
    committed(&handle, input.again()).await;
    assert_eq!(world.story().await, ["user: hi", "assistant: one"]);
    assert_eq!(world.model.calls(), 1);
}

#[tokio::test]
async fn a_failed_write_leaves_what_was_known_and_hands_the_input_back() {
    let world = world(vec![text("one"), text("lost"), text("two")]);
    let handle = actor(&world);
    committed(&handle, "first").await;
    let before = handle.snapshot().await.unwrap();
    world.store.fail_commits([CommitFault::Unavailable]);
    let second = AgentInput::user("second");
    let outcome = in_time(handle.push_and_ack(&second)).await.unwrap();
    let WriteOutcome::NotCommitted { why, .. } = outcome else { panic!("{outcome:?}") };
    assert!(why.contains("unavailable"), "{why}");
    assert_eq!(handle.snapshot().await.unwrap(), before, "memory never runs ahead");
    assert_eq!(world.output.texts(), ["one"], "nothing left that is not committed");
    // The actor has let go of it: it is whose it was, who gives it in again.
    flushed(&handle).await;
    assert_eq!(world.story().await, ["user: first", "assistant: one"]);
    committed(&handle, &second).await;
    assert_eq!(world.story().await, ["user: first", "assistant: one", "user: second", "assistant: two"]);
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_looked_up_and_its_reply_goes_out() {
    let world = world(vec![text("one")]);
    let handle = actor(&world);
    world.store.fail_commits([CommitFault::AnswerLost]);
    committed(&handle, "hi").await;
    assert_eq!(world.story().await, ["user: hi", "assistant: one"]);
    // What the commit had promised is owed, not forgotten (I4): the actor goes on by itself.
    flushed(&handle).await;
    assert_eq!(world.output.texts(), ["one"]);
    assert_eq!(world.model.calls(), 1, "what is committed is not asked again");
    assert_eq!(handle.len().await.unwrap(), 2, "and memory has caught up");
}

#[tokio::test]
async fn a_store_that_cannot_be_asked_makes_an_outcome_indeterminate_and_the_input_still_has_effect_once() {
    for fault in [CommitFault::AnswerLost, CommitFault::Unavailable] {
        let world = world(vec![text("zero"), hanging(vec![piece("one")]), text("one")]);
        let handle = actor(&world);
        committed(&handle, "say zero").await;
        let input = AgentInput::user("say one");
        world.store.fail_commits([fault]);
        let ack = handle.push_and_ack(&input);
        let failing = async {
            crate::resident::snapshot_when(&handle, |snapshot| !snapshot.partial.is_empty()).await;
            world.store.fail_look_ups(3);
            handle.stop_response().unwrap();
        };
        let (outcome, ()) = tokio::join!(in_time(ack), failing);
        let outcome = outcome.unwrap();
        assert!(matches!(outcome, WriteOutcome::Indeterminate { .. }), "{fault:?}: {outcome:?}");
        flushed(&handle).await;
        let story = ["user: say zero", "assistant: zero", "user: say one", "assistant: one"];
        assert_eq!(world.story().await, story, "{fault:?}");
        assert_eq!(world.output.texts()[..2], ["zero", "one"], "{fault:?}");
        committed(&handle, input.again()).await;
        assert_eq!(world.story().await, story, "{fault:?}: pushed again it changes nothing");
    }
}

#[tokio::test]
async fn what_nobody_waits_for_is_tried_again_until_it_is_done() {
    let world = world(vec![text("lost"), text("one")]);
    let handle = actor(&world);
    world.store.fail_commits([CommitFault::Unavailable]);
    handle.push_user("hi").unwrap();
    flushed(&handle).await;
    assert_eq!(world.story().await, ["user: hi", "assistant: one"]);
    assert_eq!(world.output.texts(), ["one"]);
}

#[tokio::test]
async fn i7_an_input_that_always_fails_is_given_up_on_and_the_next_one_is_answered() {
    let mut world = World::new(ScriptedModel::from_fn(|request| {
        match format!("{:?}", request.messages.last()).contains("poison") {
            true => vec![ScriptedEvent::error(ScriptedErrorClass::Transient, "it never works")],
            false => text("fine"),
        }
    }));
    world.runtime.limits.retries = 0;
    world.runtime.limits.attempts = 2;
    let handle = actor(&world);
    handle.push_user("poison").unwrap();
    handle.push_user("hi").unwrap();
    in_time(handle.flush()).await.unwrap();
    let texts = world.output.texts();
    assert!(texts[0].contains("could not be processed"), "{texts:?}");
    assert_eq!(texts.last().unwrap(), "fine");
}

#[tokio::test]
async fn a_panic_of_a_tool_costs_an_attempt_and_not_the_thread() {
    use dormouse::agent::actor::ThreadActor;
    use dormouse::agent::{AgentSystem, FnTool};
    let model = ScriptedModel::from_fn(|request| match request.messages.len() {
        1 => calls(&["explode"]),
        _ => text("that went wrong"),
    });
    let tool = FnTool::new("explode", "Panics.", serde_json::json!({"type": "object"}), |_| async {
        panic!("on purpose");
    });
    let system =
        AgentSystem::builder().model(std::sync::Arc::new(model), "be brief").tool(tool).build().unwrap();
    let handle = ThreadActor::spawn(&system, ThreadId::from(THREAD), ActorOptions::default());
    handle.push_user("go").unwrap();
    flushed(&handle).await;
    assert_eq!(handle.last_text().await.unwrap().as_deref(), Some("that went wrong"));
}

#[tokio::test]
async fn i6_after_another_writer_the_actor_reads_again_and_no_update_is_lost() {
    let world = world(vec![text("one"), text("from a worker"), text("three")]);
    let handle = actor(&world);
    committed(&handle, "first").await;
    world.done(&world.user("second")).await;
    committed(&handle, "third").await;
    assert_eq!(
        world.story().await,
        [
            "user: first",
            "assistant: one",
            "user: second",
            "assistant: from a worker",
            "user: third",
            "assistant: three"
        ]
    );
    assert_eq!(handle.len().await.unwrap(), 6, "it knows all of it");
    let last = world.model.requests().pop().unwrap();
    assert!(format!("{:?}", last.messages).contains("from a worker"), "and has shown it to the model");
}

#[tokio::test]
async fn i6_an_actor_whose_commit_loses_the_race_discards_its_turn_and_starts_over() {
    let late = hanging(vec![piece("too late")]);
    let world = world(vec![text("one"), late, text("from a worker"), text("three")]);
    let handle = actor(&world);
    committed(&handle, "first").await;
    let ack = handle.push_user_and_ack("third");
    let other = async {
        until("the actor asks", || world.model.calls() == 2).await;
        world.done(&world.user("second")).await;
        // Its response is over, and its commit comes too late.
        handle.stop_response().unwrap();
    };
    let (outcome, ()) = tokio::join!(in_time(ack), other);
    assert_eq!(outcome.unwrap(), WriteOutcome::Committed);
    assert_eq!(
        world.story().await,
        [
            "user: first",
            "assistant: one",
            "user: second",
            "assistant: from a worker",
            "user: third",
            "assistant: three"
        ]
    );
    assert_eq!(world.output.texts(), ["one", "from a worker", "three"], "the loser has said nothing");
}

#[tokio::test]
async fn i2_i6_two_actors_on_one_thread_take_every_input_once() {
    let world = World::new(ScriptedModel::prompts());
    let (one, two) = (actor(&world), actor(&world));
    let push = |handle: dormouse::agent::ThreadHandle, name: &'static str| async move {
        for n in 0..8 {
            handle.push_user(format!("say {name}{n}")).unwrap();
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        flushed(&handle).await;
    };
    tokio::join!(push(one.clone(), "a"), push(two.clone(), "b"));
    let story = world.story().await;
    for name in ["a", "b"] {
        let of = |line: &&String| line.starts_with(&format!("user: say {name}"));
        let said: Vec<&String> = story.iter().filter(of).collect();
        let expected: Vec<String> = (0..8).map(|n| format!("user: say {name}{n}")).collect();
        assert_eq!(said, expected.iter().collect::<Vec<_>>(), "each once, in its order");
    }
    let (seen_by_one, seen_by_two) = (one.snapshot().await.unwrap(), two.snapshot().await.unwrap());
    let longer = seen_by_one.items.len().max(seen_by_two.items.len());
    assert_eq!(longer, story.len(), "whoever came last knows all");
}

#[tokio::test]
async fn a_flush_returns_when_all_that_was_pushed_before_is_committed() {
    let world = World::new(ScriptedModel::prompts());
    let handle = actor(&world);
    for n in 0..5 {
        handle.push_user(format!("say {n}")).unwrap();
    }
    flushed(&handle).await;
    let said = world.story().await.iter().filter(|line| line.starts_with("user")).count();
    assert_eq!(said, 5);
    // Without anything to wait for it returns at once.
    flushed(&handle).await;
}

#[tokio::test]
async fn the_queue_of_an_actor_is_bounded_for_who_pushes_and_a_place_is_given_back() {
    let world = world(vec![hanging(vec![piece("x")])]);
    let handle = actor_with(&world, ActorOptions { capacity: 2, ..ActorOptions::default() });
    let nothing =
        |n: u32| AgentInput::result(format!("c0-9-none{n}").as_str().into(), vec![ContentPart::text("x")]);
    handle.push_user("hi").unwrap();
    until("the model is asked", || world.model.calls() == 1).await;
    handle.push(nothing(1)).unwrap();
    assert_eq!(handle.push(nothing(2)), Err(NotPushed::Full(2)));
    let mut waits = Box::pin(handle.push_and_ack(nothing(3)));
    let early = tokio::time::timeout(Duration::from_millis(100), &mut waits).await;
    assert!(early.is_err(), "there is no place: {early:?}");
    handle.stop_response().unwrap();
    assert_eq!(in_time(waits).await.unwrap(), WriteOutcome::Committed);
    handle.push(nothing(2)).unwrap();
    flushed(&handle).await;
}

#[tokio::test]
async fn i4_an_actor_goes_on_with_what_a_process_before_it_has_left() {
    // The calls are committed and not sent, as a kill leaves them: no queue delivers that message again.
    let world = world(vec![calls(&["echo"]), text("done")]);
    let id = DedupId::from("in-before");
    let left =
        Delivery { message_id: id.as_str().to_owned(), dedup: id.as_str().to_owned(), ..world.user("hi") };
    *world.output.failures.lock().unwrap() = 1;
    assert_eq!(world.deliver(&[left]).await.len(), 1, "handed back, its promises unkept");
    assert!(world.tools.calls().is_empty());
    let handle = actor(&world);
    until("the call went out", || world.tools.calls().len() == 1).await;
    assert_eq!(world.output.texts(), [r#"[echo({"text":"x"})]"#]);
    committed(&handle, AgentInput::result(world.tools.calls()[0].clone(), vec![ContentPart::text("ok")]))
        .await;
    assert_eq!(world.output.texts().last().unwrap(), "done");
}

#[tokio::test]
async fn i4_an_actor_finishes_a_slice_that_a_process_before_it_had_begun() {
    let world = world(vec![calls(&["add"]), hanging(vec![]), text("done")]);
    let options = ResidentOptions::default();
    let resident = system(&world).start(options.clone()).await.unwrap();
    let handle = resident.thread(THREAD).await.unwrap();
    handle.push_user("hi").unwrap();
    until("the tool has run, and the model is asked about it", || world.model.calls() == 2).await;
    in_time(resident.stop(Duration::ZERO)).await;
    assert!(!world.meta().await.open.is_empty(), "its slice has committed something and is not finished");
    // Another process, and nobody says anything: looking is enough.
    let resident = system(&world).start(options).await.unwrap();
    let handle = resident.thread(THREAD).await.unwrap();
    flushed(&handle).await;
    let story = world.story().await;
    assert_eq!(story.last().unwrap(), "assistant: done", "{story:?}");
    assert_eq!(world.output.texts().last().unwrap(), "done");
    assert!(world.meta().await.open.is_empty());
    in_time(resident.stop(Duration::from_secs(5))).await;
}

#[tokio::test(start_paused = true)]
async fn i7_an_input_that_is_handed_back_for_ever_is_put_aside_and_its_user_is_told() {
    let world = World::new(ScriptedModel::from_fn(|request| {
        match format!("{:?}", request.messages.last()).contains("too much") {
            true => vec![ScriptedEvent::Error(dormouse::model::scripted::ScriptedError {
                class: ScriptedErrorClass::Throttled,
                retry_after_ms: Some(60_000),
                message: None,
            })],
            false => text("fine"),
        }
    }));
    let handle = actor(&world);
    let id = handle.push_user("too much").unwrap();
    handle.flush().await.unwrap();
    assert!(world.model.calls() >= 100, "a throttle is nobody's fault: {}", world.model.calls());
    let thread = ThreadId::from(THREAD);
    let letter = world.store.dead_letter(&thread, &id.as_str().into()).await.unwrap().unwrap();
    assert!(letter.body.contains("too much"), "{letter:?}");
    let texts = world.output.texts();
    assert!(texts[0].contains("put aside for an operator"), "{texts:?}");
    handle.push_user("hi").unwrap();
    handle.flush().await.unwrap();
    assert_eq!(world.output.texts().last().unwrap(), "fine");
}

/// Faults come as a seed says; the clock is the test's, so that nobody waits for the delays between tries.
#[tokio::test(start_paused = true)]
async fn i1_i2_through_any_faults_of_the_store_every_input_has_effect_once_and_in_order() {
    for seed in 0..20_u64 {
        let world = World::new(ScriptedModel::prompts());
        let handle = actor(&world);
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let mut expected = Vec::new();
        for n in 0..12 {
            let fault = match random(6) {
                0 => Some(CommitFault::Unavailable),
                1 => Some(CommitFault::AnswerLost),
                2 => Some(CommitFault::LostRace),
                _ => None,
            };
            world.store.fail_commits(fault);
            world.store.fail_loads(usize::from(random(5) == 0));
            world.store.fail_look_ups(usize::from(random(8) == 0));
            handle.push_user(format!("say {n}")).unwrap();
            expected.push(format!("user: say {n}"));
            if random(2) == 0 {
                handle.flush().await.unwrap();
            }
        }
        handle.flush().await.unwrap();
        world.store.fail_loads(0);
        let story = world.story().await;
        let said: Vec<&String> = story.iter().filter(|line| line.starts_with("user: ")).collect();
        assert_eq!(said, expected.iter().collect::<Vec<_>>(), "seed {seed}: {story:#?}");
        assert_eq!(story.last().unwrap(), "assistant: 11", "seed {seed}");
        let answers: Vec<String> =
            story.iter().filter_map(|line| line.strip_prefix("assistant: ")).map(str::to_owned).collect();
        assert_eq!(world.output.texts(), answers, "seed {seed}: what is committed is said, and nothing else");
        assert_eq!(handle.len().await.unwrap(), story.len(), "seed {seed}: memory is what the store is");
    }
}
