//! When an actor ends, and what a resident system does with its threads. Every test counts the tasks that are alive: its
//! runtime is its own.

use std::time::Duration;

use dormouse::agent::actor::{ActorOptions, ThreadActor};
use dormouse::agent::{
    ActorGone, AgentInput, NotPushed, ReadError, Resident, ResidentError, ResidentOptions,
};
use dormouse::message::{CallId, ContentPart, Epoch, Seq, ThreadId};
use dormouse::model::scripted::{ScriptedEvent, ScriptedModel};

use crate::resident::{
    actor, committed, flushed, hanging, in_time, piece, snapshot_when, system, text, until,
};
use crate::world::{THREAD, World};

fn alive() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

async fn start(world: &World, actor: ActorOptions) -> Resident {
    system(world).start(ResidentOptions { actor, ..ResidentOptions::default() }).await.unwrap()
}

#[tokio::test]
async fn an_actor_ends_with_its_last_handle_when_what_was_pushed_is_done() {
    let slow = |word: &str| vec![ScriptedEvent::DelayMs(50), piece(word)];
    let world = World::new(ScriptedModel::script(vec![slow("one"), slow("two"), slow("three")]));
    let handle = actor(&world);
    let other = handle.clone();
    committed(&handle, "first").await;
    let call = |n: u32| AgentInput::result(format!("c0-9-{n}").as_str().into(), vec![ContentPart::text("x")]);
    other.push_user("second").unwrap();
    for n in 0..5 {
        other.push(call(n)).unwrap();
    }
    drop(handle);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(alive(), 1, "one handle is left");
    drop(other);
    until("the actor ends", || alive() == 0).await;
    assert_eq!(world.story().await, ["user: first", "assistant: one", "user: second", "assistant: two"]);
    assert_eq!(world.output.texts(), ["one", "two"]);
}

#[tokio::test]
async fn whoever_waits_for_an_actor_that_is_gone_is_told_so() {
    let world = World::new(ScriptedModel::script(vec![hanging(vec![piece("x")])]));
    let resident = start(&world, ActorOptions::default()).await;
    let handle = resident.thread(THREAD).await.unwrap();
    let waits = tokio::spawn({
        let handle = handle.clone();
        async move { handle.push_user_and_ack("hi").await }
    });
    snapshot_when(&handle, |snapshot| snapshot.partial_text() == "x").await;
    let flushes = tokio::spawn({
        let handle = handle.clone();
        async move { handle.flush().await }
    });
    tokio::task::yield_now().await;
    in_time(resident.stop(Duration::from_millis(50))).await;
    assert_eq!(in_time(waits).await.unwrap(), Err(ActorGone));
    assert_eq!(in_time(flushes).await.unwrap(), Err(ActorGone));
    assert_eq!(handle.len().await, Err(ReadError::Gone(ActorGone)));
    assert_eq!(handle.push_user("x"), Err(NotPushed::Gone(ActorGone)));
    assert_eq!(handle.push_user_and_ack("x").await, Err(ActorGone));
    assert_eq!(handle.stop_response(), Err(ActorGone));
    assert!(world.store.commits() == 0, "what was dropped in mid-stream has left nothing");
}

#[tokio::test]
async fn an_idle_thread_is_put_down_and_comes_back_with_all_that_it_knew() {
    let world = World::new(ScriptedModel::prompts());
    let options = ActorOptions { idle_after: Duration::from_millis(50), ..ActorOptions::default() };
    let resident = start(&world, options).await;
    let handle = resident.thread(THREAD).await.unwrap();
    committed(&handle, "say one").await;
    drop(handle);
    until("only the router is left", || alive() == 1).await;
    drop(resident.thread("th-nothing-is-said-to").await.unwrap());
    until("also of a thread that nobody speaks to", || alive() == 1).await;
    let handle = resident.thread(THREAD).await.unwrap();
    committed(&handle, "seen").await;
    assert_eq!(handle.len().await, Ok(4));
    assert_eq!(world.output.texts().len(), 2);
    let sent = world.output.sent.lock().unwrap().len();
    assert_eq!(sent, 2, "what was sent is not sent once more");
    // A handle that somebody keeps works on, however long nothing happens.
    tokio::time::sleep(Duration::from_millis(300)).await;
    committed(&handle, "say three").await;
    in_time(resident.stop(Duration::from_secs(5))).await;
    assert_eq!(handle.push_user("x"), Err(NotPushed::Gone(ActorGone)), "also for who has a handle");
    until("the actor has ended", || alive() == 0).await;
}

#[tokio::test]
async fn threads_are_served_beside_each_other_and_speak_to_each_other() {
    let call = |name: &str, arguments: &str| {
        vec![ScriptedEvent::call("p", name, arguments), ScriptedEvent::End("tool_use".into())]
    };
    let parent_id = ThreadId::from(THREAD);
    let child = ThreadId::child(&parent_id, CallId::mint(&parent_id, Epoch(0), Seq(2)).as_str());
    let closing = format!(r#"{{"thread_id":"{child}","report_to_parent":"one two three"}}"#);
    let world = World::with_builtins(ScriptedModel::from_fn(move |request| {
        let asked = format!("{:?}", request.messages.last());
        let all = format!("{:?}", request.messages);
        match () {
            () if asked.contains("please delegate") => call(
                "spawn_thread",
                r#"{"instructions":"count to three","child_of":["th-1"],"fresh_context":true}"#,
            ),
            () if all.contains("count to three") && !all.contains("please delegate") => {
                call("close_thread", &closing)
            }
            () if asked.contains("one two three") => text("it has counted"),
            () => text("fine"),
        }
    }));
    let resident = start(&world, ActorOptions::default()).await;
    let parent = resident.thread(THREAD).await.unwrap();
    let other = resident.thread("th-other").await.unwrap();
    parent.push_user("please delegate").unwrap();
    other.push_user("hi").unwrap();
    snapshot_when(&parent, |snapshot| {
        let last = snapshot.items.last().map(|item| crate::world::tell(&item.body));
        last.as_deref() == Some("assistant: it has counted")
    })
    .await;
    flushed(&other).await;
    assert_eq!(other.last_text().await.unwrap().as_deref(), Some("fine"));
    in_time(resident.stop(Duration::from_secs(5))).await;
}

#[tokio::test]
async fn a_system_is_resident_once_and_bounded() {
    let world = World::new(ScriptedModel::prompts());
    let system = system(&world);
    let options = ResidentOptions { max_active: 2, ..ResidentOptions::default() };
    let resident = system.start(options.clone()).await.unwrap();
    assert_eq!(system.start(options).await.err(), Some(ResidentError::AlreadyResident));
    let one = resident.thread("t1").await.unwrap();
    let _two = resident.thread("t2").await.unwrap();
    assert_eq!(resident.thread("t3").await.err(), Some(ResidentError::Busy(2)));
    let again = resident.thread("t1").await.unwrap();
    committed(&again, "say hi").await;
    assert_eq!(one.last_text().await.unwrap().as_deref(), Some("hi"), "it is the same actor");
    in_time(resident.stop(Duration::from_secs(5))).await;
}

#[tokio::test]
async fn a_step_of_the_caller_and_an_actor_may_serve_one_thread() {
    let world = World::new(ScriptedModel::prompts());
    let system = system(&world);
    let handle = ThreadActor::spawn(&system, ThreadId::from(THREAD), ActorOptions::default());
    for n in 0..4 {
        let step = system.thread(THREAD).step(format!("say step{n}")).await.unwrap();
        assert_eq!(step.texts(), [format!("step{n}")]);
        committed(&handle, format!("say push{n}")).await;
    }
    assert_eq!(world.story().await.len(), 16);
}

#[tokio::test]
async fn i1_inputs_that_meet_an_actor_on_its_way_down_are_done_all_the_same_and_in_order() {
    let world = World::new(ScriptedModel::prompts());
    // Idle at once: every pause between two inputs is a chance to be put down.
    let options = ActorOptions { idle_after: Duration::from_micros(200), ..ActorOptions::default() };
    let resident = start(&world, options).await;
    let threads = ["t1", "t2", "t3"];
    for n in 0..60_u64 {
        for thread in threads {
            resident.thread(thread).await.unwrap().push_user(format!("say {n}")).unwrap();
        }
        if n % 3 != 0 {
            tokio::time::sleep(Duration::from_micros(n * 37 % 900)).await;
        }
    }
    for thread in threads {
        let handle = resident.thread(thread).await.unwrap();
        flushed(&handle).await;
        let story = world.story_of(&ThreadId::from(thread)).await;
        let said: Vec<String> = story.into_iter().filter(|line| line.starts_with("user")).collect();
        assert_eq!(said, (0..60).map(|n| format!("user: say {n}")).collect::<Vec<_>>());
    }
    in_time(resident.stop(Duration::from_secs(5))).await;
    until("nothing is left", || alive() == 0).await;
}

#[tokio::test]
async fn a_system_that_was_stopped_may_be_started_again() {
    let world = World::new(ScriptedModel::prompts());
    let system = system(&world);
    for n in 0..3 {
        let resident = system.start(ResidentOptions::default()).await.unwrap();
        let handle = resident.thread(THREAD).await.unwrap();
        committed(&handle, format!("say {n}")).await;
        in_time(resident.stop(Duration::from_secs(5))).await;
    }
    assert_eq!(world.output.texts(), ["0", "1", "2"]);
}
