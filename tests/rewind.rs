//! Rewind, edit and reload: what is hidden, what ends with it, what is refused, and that a crash changes nothing of it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/kills.rs"]
mod kills;
#[path = "support/world.rs"]
mod world;

use dormouse::message::{
    CallId, ContentPart, Epoch, Fork, InputContent, InputMessage, ItemId, Rewind, RewindTarget, Seen, Seq,
    Synthetic, Then, ThreadId,
};
use dormouse::model::scripted::ScriptedModel;
use dormouse::store::{Commit, ConversationStore, Expect, Meta, Span, StateStore};
use kills::{seeded, work_off};
use world::{Delivery, THREAD, World};

fn rewind(world: &World, target: RewindTarget, then: Option<Then>) -> Delivery {
    rewind_seen(world, target, None, then)
}

fn rewind_seen(world: &World, target: RewindTarget, seen: Option<Seen>, then: Option<Then>) -> Delivery {
    let rewind = Rewind { target, seen, then };
    world.message(&InputMessage::plain(ThreadId::from(THREAD), InputContent::Rewind(rewind)))
}

fn say(text: &str) -> Option<Then> {
    Some(Then::Say(vec![ContentPart::text(text)]))
}

/// A thread of the turns `one`, `two`, `three`.
async fn three_turns() -> World {
    let world = World::with_builtins(ScriptedModel::prompts());
    for text in ["say one", "say two", "say three"] {
        world.done(&world.user(text)).await;
    }
    world
}

async fn last_error(world: &World) -> String {
    world.output.sent.lock().unwrap().last().unwrap().text.clone()
}

#[tokio::test]
async fn i8_a_rewind_hides_the_newest_turns_and_deletes_nothing() {
    let world = three_turns().await;
    let before = world.meta().await;
    world.done(&rewind(&world, RewindTarget::Turn(1), None)).await;
    assert_eq!(world.story().await, ["user: say one", "assistant: one"]);
    let meta = world.meta().await;
    assert_eq!((meta.epoch, meta.head, meta.next_turn), (Epoch(1), Seq::FIRST, 1));
    assert_eq!(meta.base.len(), 1);
    assert_eq!(meta.usage, None, "the provider counted what is hidden now");
    assert_eq!(world.model.requests().len(), 3, "a rewind asks nobody");
    // The thread goes on behind what is left, with turn indexes that follow it and call ids of their own.
    world.done(&world.user("seen")).await;
    assert_eq!(
        world.story().await,
        ["user: say one", "assistant: one", "user: seen", "assistant: seen: say one"]
    );
    assert_eq!(world.items().await[2].facts.turn, 1);
    // And the hidden branch is still in its log.
    let fork = Meta {
        base: vec![Span { thread: THREAD.into(), epoch: before.epoch, from: Seq(0), to: Seq(6) }],
        token: "fork".to_owned(),
        ..Meta::new_root("th-2".into(), "default", None, 0)
    };
    world.store.commit(Commit::new(Expect::Absent, fork, world::NOW_MS)).await.unwrap();
    assert_eq!(world.story_of(&"th-2".into()).await.last().unwrap(), "assistant: three");
}

#[tokio::test]
async fn a_rewind_names_its_turn_by_index_by_opener_or_as_the_last_prompt() {
    for (target, left) in [
        (RewindTarget::Turn(0), 0),
        (RewindTarget::Turn(2), 4),
        (RewindTarget::Item(ItemId::at(Epoch(0), Seq(3))), 2),
        (RewindTarget::LastPrompt, 4),
    ] {
        let world = three_turns().await;
        world.done(&rewind(&world, target.clone(), None)).await;
        assert_eq!(world.story().await.len(), left, "{target:?}");
        // Also what is behind a rewind, and twice.
        world.done(&world.user("say again")).await;
        world.done(&rewind(&world, RewindTarget::LastPrompt, None)).await;
        assert_eq!(world.story().await.len(), left, "{target:?}");
    }
}

#[tokio::test]
async fn each_refusal_says_why_and_leaves_the_rows_untouched() {
    let world = three_turns().await;
    let meta = world.meta().await;
    let here = Seen { epoch: meta.epoch, head: meta.head };
    let stale = Seen { head: Seq(2), ..here };
    let id = |epoch, seq| RewindTarget::Item(ItemId::at(Epoch(epoch), Seq(seq)));
    let all = [
        (RewindTarget::Turn(3), None, None, "there is nothing to rewind"),
        (id(0, 2), None, None, "no turn of this thread begins there"),
        (id(7, 1), None, None, "no turn of this thread begins there"),
        (RewindTarget::Turn(1), Some(stale), None, "look again"),
        (RewindTarget::Turn(1), None, say(" \n"), "the new message is empty"),
    ];
    for (target, seen, then, says) in all {
        world.done(&rewind_seen(&world, target.clone(), seen, then)).await;
        let text = last_error(&world).await;
        assert!(text.starts_with("Nothing was rewound: ") && text.contains(says), "{target:?}: {text}");
        assert_eq!(world.meta().await, meta, "{target:?}");
    }
    world.done(&rewind_seen(&world, RewindTarget::Turn(1), Some(here), None)).await;
    assert_eq!(world.story().await.len(), 2);
}

#[tokio::test]
async fn an_edit_replaces_a_turn_and_a_reload_answers_it_again() {
    let world = three_turns().await;
    world.done(&rewind(&world, RewindTarget::Turn(1), say("say deux"))).await;
    let edited = ["user: say one", "assistant: one", "user: say deux", "assistant: deux"];
    assert_eq!(world.story().await, edited);
    world.done(&rewind(&world, RewindTarget::LastPrompt, Some(Then::AnswerAgain))).await;
    assert_eq!(world.story().await, edited, "the same script answers the same");
    assert_eq!(world.meta().await.epoch, Epoch(2));
    assert_eq!(world.model.requests().len(), 5);
    assert_eq!(world.output.texts().last().unwrap(), "deux");
}

#[tokio::test]
async fn what_waits_in_the_hidden_part_ends_with_it() {
    let world = World::with_builtins(ScriptedModel::prompts());
    world.done(&world.user("say one")).await;
    world.done(&world.user("both echo {} other {}")).await;
    let calls = world.tools.calls();
    // One result is parked; an event of the other waits.
    let mut subscribed =
        InputMessage::tool_result(THREAD.into(), calls[0].clone(), vec![ContentPart::text("on")]);
    subscribed.subscription = true;
    world.done(&world.message(&subscribed)).await;
    world.done(&world.message(&event(&calls[0], "late"))).await;
    assert_eq!(world.store.get_active_subscriptions(&THREAD.into()).await.unwrap(), [calls[0].clone()]);
    world.done(&rewind(&world, RewindTarget::LastPrompt, None)).await;
    let meta = world.meta().await;
    assert_eq!((meta.pending.len(), meta.head), (0, Seq::FIRST));
    assert_eq!(*world.tools.cancelled.lock().unwrap(), [calls[1].clone()]);
    assert_eq!(world.store.get_active_subscriptions(&THREAD.into()).await.unwrap(), []);
    let loaded = world.store.load(&THREAD.into(), &[]).await.unwrap();
    assert!(loaded.parked.is_empty(), "{:?}", loaded.parked);
    // What arrives for it afterwards has no effect.
    world.done(&world.result(&calls[1], "too late")).await;
    world.done(&world.message(&event(&calls[0], "later"))).await;
    assert_eq!(world.story().await, ["user: say one", "assistant: one"]);
    assert_eq!(world.model.requests().len(), 2);
}

/// A thread that has made a child, and the child.
async fn with_a_child() -> (World, ThreadId) {
    let world = World::with_builtins(ScriptedModel::prompts());
    let spawn = r#"call spawn_thread {"instructions":"say ready","child_of":["th-1"]}"#;
    world.done(&world.user(spawn)).await;
    world.settle().await;
    let listed = world.store.list_threads(10).await.unwrap();
    let child = listed.into_iter().map(|t| t.thread).find(|id| id.as_str() != THREAD).unwrap();
    (world, child)
}

#[tokio::test]
async fn children_of_the_hidden_part_are_told_to_stop() {
    let (world, child) = with_a_child().await;
    // Its first turn is its parent's to take back.
    let inside = Rewind { target: RewindTarget::Turn(0), seen: None, then: None };
    world.done(&world.message(&InputMessage::plain(child.clone(), InputContent::Rewind(inside)))).await;
    assert!(last_error(&world).await.contains("belongs to the parent thread"));
    world.done(&rewind(&world, RewindTarget::Turn(0), None)).await;
    world.settle().await;
    assert!(world.store.meta(&child).await.unwrap().unwrap().closed);
    assert_eq!(world.store.open_children(&THREAD.into()).await.unwrap(), 0);
    assert_eq!(world.story().await, [] as [&str; 0]);
}

#[tokio::test]
async fn a_thread_closed_by_hand_takes_nothing_and_tells_its_parent() {
    let (world, child) = with_a_child().await;
    let close = |thread: &ThreadId| world.message(&InputMessage::plain(thread.clone(), InputContent::Close));
    world.done(&close(&child)).await;
    world.settle().await;
    assert!(world.store.meta(&child).await.unwrap().unwrap().closed);
    assert!(world.story().await.iter().any(|line| line.contains("has closed")), "{:?}", world.story().await);
    world.done(&world.user("call echo {}")).await;
    world.done(&close(&THREAD.into())).await;
    assert_eq!(*world.tools.cancelled.lock().unwrap(), world.tools.calls());
    let story = world.story().await;
    world.done(&world.user("say hello")).await;
    assert_eq!(world.story().await, story);
}

/// Texts, an edit, a reload and a rewind, in one batch each or all at once.
fn script(world: &World) -> Vec<Delivery> {
    vec![
        world.user("say one"),
        world.user("call echo {}"),
        rewind(world, RewindTarget::LastPrompt, say("say two")),
        rewind(world, RewindTarget::LastPrompt, Some(Then::AnswerAgain)),
        world.user("call add {}"),
        rewind(world, RewindTarget::Turn(2), None),
        world.user("seen"),
    ]
}

#[tokio::test(start_paused = true)]
async fn operations_end_the_same_whatever_is_killed_and_in_whatever_batch_they_come() {
    let calm = World::with_builtins(ScriptedModel::prompts());
    work_off(&calm, script(&calm), || None).await;
    let story = calm.story().await;
    assert_eq!(story.last().unwrap(), "assistant: seen: say one|say two");
    assert_eq!(calm.meta().await.epoch, Epoch(3));
    for seed in 0..60 {
        let world = World::with_builtins(ScriptedModel::prompts());
        work_off(&world, script(&world), seeded(seed)).await;
        assert_eq!(world.story().await, story, "seed {seed}");
        assert_eq!(world.meta().await.epoch, Epoch(3), "seed {seed}");
    }
    let world = World::with_builtins(ScriptedModel::prompts());
    assert!(world.deliver(&script(&world)).await.is_empty());
    // The two texts in front of the first rewind were one slice, whose answer is hidden with the second of them.
    let expected: Vec<_> = story.iter().filter(|line| *line != "assistant: one").cloned().collect();
    assert_eq!(world.story().await, expected);
}

fn event(call: &CallId, text: &str) -> InputMessage {
    let mut event = InputMessage::tool_result(THREAD.into(), CallId::new(""), vec![ContentPart::text(text)]);
    event.synthetic =
        Some(Synthetic::SubscriptionEvent { tool_call_id: call.clone(), associative: true, r#final: false });
    event
}

fn fork(world: &World, source: &str, target: &str, through: Option<u32>) -> Delivery {
    let content = InputContent::Fork(Fork { source: source.into(), through, epoch: None });
    world.message(&InputMessage::plain(target.into(), content))
}

#[tokio::test]
async fn a_fork_reads_by_reference_goes_its_own_way_and_outlives_a_rewind_of_its_source() {
    let world = three_turns().await;
    let twice = fork(&world, THREAD, "th-f", Some(1));
    world.done(&twice).await;
    world.done(&twice.again()).await;
    let two = ["user: say one", "assistant: one", "user: say two", "assistant: two"];
    assert_eq!(world.story_of(&"th-f".into()).await, two);
    let meta = world.store.meta(&"th-f".into()).await.unwrap().unwrap();
    assert_eq!(
        (meta.head, meta.next_turn, meta.parent, meta.agent.as_str()),
        (Seq::FIRST, 2, None, "default")
    );
    world.done(&rewind(&world, RewindTarget::Turn(0), None)).await;
    world.done(&world.message(&InputMessage::user_text("th-f".into(), "seen"))).await;
    let story = world.story_of(&"th-f".into()).await;
    assert_eq!(story.last().unwrap(), "assistant: seen: say one|say two");
    // A fork of the fork, whole; and the fork itself can be rewound into what it inherits.
    world.done(&fork(&world, "th-f", "th-g", None)).await;
    assert_eq!(world.story_of(&"th-g".into()).await, story);
    let back = Rewind { target: RewindTarget::Turn(1), seen: None, then: None };
    world.done(&world.message(&InputMessage::plain("th-f".into(), InputContent::Rewind(back)))).await;
    assert_eq!(world.story_of(&"th-f".into()).await, two[..2]);
    assert_eq!(world.story_of(&"th-g".into()).await, story);
}

#[tokio::test]
async fn a_fork_is_cut_before_a_step_that_waits_and_its_refusals_make_nothing() {
    let world = World::with_builtins(ScriptedModel::prompts());
    world.done(&world.user("say one")).await;
    world.done(&world.user("look echo {}")).await;
    world.done(&fork(&world, THREAD, "th-f", None)).await;
    let story = world.story_of(&"th-f".into()).await;
    assert_eq!(story, ["user: say one", "assistant: one", "user: look echo {}"], "no text without its call");
    assert!(world.store.meta(&"th-f".into()).await.unwrap().unwrap().pending.is_empty());
    for (source, target, through, says) in [
        (THREAD, "th-f", None, "a thread of this name exists"),
        ("th-9", "th-h", None, "there is no thread th-9"),
        (THREAD, "th-h", Some(2), "no turn of this thread begins there"),
    ] {
        world.done(&fork(&world, source, target, through)).await;
        assert!(last_error(&world).await.contains(says), "{says}");
    }
    assert_eq!(world.store.meta(&"th-h".into()).await.unwrap(), None);
    assert_eq!(world.pending().await.len(), 1, "the source still waits");
}

/// A child that is told to end before its first slice has run, and a thread that is closed with inputs parked: whatever
/// comes then is dropped, not handed back for ever.
#[tokio::test]
async fn i7_a_thread_that_is_closed_with_inputs_parked_takes_every_later_message_from_the_queue() {
    let world = World::with_builtins(ScriptedModel::prompts());
    let spawn = serde_json::json!({"instructions": "say child", "child_of": [THREAD]});
    world.done(&world.user(&format!("call spawn_thread {spawn}"))).await;
    let call = world.items().await.iter().find_map(|item| match &item.body {
        dormouse::message::ItemBody::ToolCall(call) => Some(call.call_id.clone()),
        _ => None,
    });
    let child = ThreadId::child(&THREAD.into(), call.unwrap().as_str());
    for content in [InputContent::Close, InputContent::Close, InputContent::Release] {
        world.done(&world.message(&InputMessage::plain(child.clone(), content))).await;
    }
    world.done(&world.message(&InputMessage::user_text(child.clone(), "say more"))).await;
    assert!(world.store.meta(&child).await.unwrap().unwrap().closed);
}
