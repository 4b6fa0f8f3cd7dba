//! A thread as a whole: exported and imported, its hidden branches, redaction and deletion.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/kills.rs"]
mod kills;
#[path = "support/world.rs"]
mod world;

use dormouse::history::snapshot::Snapshot;
use dormouse::message::{
    CallId, Epoch, Fork, InputContent, InputMessage, ItemId, Rewind, RewindTarget, Seq, ThreadId,
};
use dormouse::model::scripted::ScriptedModel;
use dormouse::store::{ArchiveStore, ConversationStore};
use dormouse::thread::{DeleteError, RedactError, Redaction, delete, load_branch, redact, store_snapshot};
use world::{Delivery, THREAD, World};

const COPY: &str = "th-copy";

fn on(world: &World, thread: &str, content: InputContent) -> Delivery {
    world.message(&InputMessage::plain(ThreadId::from(thread), content))
}

/// A thread with a call and its result, behind a rewind.
async fn world() -> World {
    let world = World::with_builtins(ScriptedModel::prompts());
    for text in ["say one", "say secret-42", r#"call recall {"search":"secret-42"}"#] {
        world.done(&world.user(text)).await;
    }
    let rewind = Rewind { target: RewindTarget::Turn(1), seen: None, then: None };
    world.done(&on(&world, THREAD, InputContent::Rewind(rewind))).await;
    world.done(&world.user("say two")).await;
    world
}

async fn export(world: &World, thread: &str, epoch: Option<u32>) -> Snapshot {
    let loaded = load_branch(&world.store, &thread.into(), epoch.map(Epoch)).await.unwrap().unwrap();
    Snapshot::of(&loaded.meta.unwrap(), &loaded.items)
}

async fn import(world: &World, snapshot: &Snapshot, thread: &str) {
    let json = serde_json::to_string(snapshot).unwrap();
    let import = store_snapshot(&world.store, Snapshot::parse(&json).unwrap()).await.unwrap();
    world.done(&on(world, thread, InputContent::Import(import))).await;
}

fn raws(snapshot: &Snapshot) -> Vec<String> {
    snapshot.items.iter().map(|item| item.item.as_ref().unwrap().get().to_owned()).collect()
}

#[tokio::test]
async fn i8_an_export_is_imported_to_the_byte_and_goes_on() {
    let world = world().await;
    let snapshot = export(&world, THREAD, None).await;
    import(&world, &snapshot, COPY).await;
    let copy = export(&world, COPY, None).await;
    assert_eq!(raws(&copy), raws(&snapshot));
    assert_eq!((copy.next_turn, &copy.agent, copy.items.len()), (2, &snapshot.agent, 4));
    for (a, b) in copy.items.iter().zip(&snapshot.items) {
        assert_eq!((a.turn, a.opens_turn, a.created_at_ms), (b.turn, b.opens_turn, b.created_at_ms));
    }
    // It is a thread like any other: it answers, and is rewound into what it was made of.
    let said = InputMessage::user_text(COPY.into(), "say three");
    world.done(&world.message(&said)).await;
    assert_eq!(world.story_of(&COPY.into()).await.last().unwrap(), "assistant: three");
    let rewind = Rewind { target: RewindTarget::Turn(1), seen: None, then: None };
    world.done(&on(&world, COPY, InputContent::Rewind(rewind))).await;
    assert_eq!(world.story_of(&COPY.into()).await, ["user: say one", "assistant: one"]);
    assert_eq!(world.story().await.len(), 4, "the other one is as it was");
}

#[tokio::test]
async fn i2_an_import_is_done_once_and_only_where_nothing_is() {
    let world = world().await;
    let snapshot = export(&world, THREAD, None).await;
    let ready = store_snapshot(&world.store, snapshot.clone()).await.unwrap();
    let delivery = on(&world, COPY, InputContent::Import(ready.clone()));
    world.done(&delivery).await;
    let before = world.store.meta(&COPY.into()).await.unwrap().unwrap();
    world.done(&delivery).await;
    assert_eq!(world.store.meta(&COPY.into()).await.unwrap().unwrap().head, before.head);
    let last = || world.output.sent.lock().unwrap().last().unwrap().text.clone();
    world.done(&on(&world, THREAD, InputContent::Import(ready.clone()))).await;
    assert!(last().contains("a thread of this name exists"), "{}", last());
    // Items that are not stored would make a thread that nothing can load.
    let mut lost = ready;
    lost.items += 1;
    world.done(&on(&world, "th-lost", InputContent::Import(lost))).await;
    assert!(last().contains("import it again"), "{}", last());
    assert_eq!(world.store.meta(&"th-lost".into()).await.unwrap(), None);
}

#[tokio::test]
async fn i7_a_thread_of_a_newer_version_waits_for_it_and_loses_nothing() {
    let world = world().await;
    let mut snapshot = export(&world, THREAD, None).await;
    snapshot.extra.insert("requires".into(), serde_json::json!(["hologram"]));
    import(&world, &snapshot, COPY).await;
    let asked = world.model.requests().len();
    let said = world.message(&InputMessage::user_text(COPY.into(), "say no"));
    assert_eq!(world.deliver(std::slice::from_ref(&said)).await.len(), 1, "it is handed back");
    assert_eq!(world.model.requests().len(), asked, "what it hides is unknown here: nothing is sent");
    let copy = export(&world, COPY, None).await;
    assert_eq!((copy.extra, copy.items.len()), (snapshot.extra, 4));
}

#[tokio::test]
async fn i8_a_hidden_branch_is_exported_and_forked_back() {
    let world = world().await;
    let hidden = export(&world, THREAD, Some(0)).await;
    assert!(raws(&hidden).iter().any(|raw| raw.contains("secret-42")));
    assert_eq!(hidden.next_turn, 3);
    let fork = Fork { source: THREAD.into(), through: Some(1), epoch: Some(Epoch(0)) };
    world.done(&on(&world, COPY, InputContent::Fork(fork))).await;
    assert_eq!(world.story_of(&COPY.into()).await.last().unwrap(), "assistant: secret-42");
    // A branch of a branch: what a rewind leaves is read with what it inherited.
    let rewind = Rewind { target: RewindTarget::Turn(0), seen: None, then: None };
    world.done(&on(&world, THREAD, InputContent::Rewind(rewind))).await;
    assert_eq!(raws(&export(&world, THREAD, Some(1)).await).len(), 4);
    assert!(load_branch(&world.store, &THREAD.into(), Some(Epoch(9))).await.unwrap().is_none());
    let fork = Fork { source: THREAD.into(), through: None, epoch: Some(Epoch(9)) };
    world.done(&on(&world, "th-none", InputContent::Fork(fork))).await;
    assert_eq!(world.store.meta(&"th-none".into()).await.unwrap(), None);
}

#[tokio::test]
async fn a_redacted_text_is_in_no_row_export_or_request() {
    let world = world().await;
    let thread = ThreadId::from(THREAD);
    world.done(&world.user("secret-42 again")).await;
    let changed = redact(&world.store, &thread, &Redaction::Text("secret-42".into())).await.unwrap();
    assert!(changed >= 4, "{changed}");
    for epoch in [None, Some(0), Some(1)] {
        let export = serde_json::to_string(&export(&world, THREAD, epoch).await).unwrap();
        assert!(!export.contains("secret-42"), "{export}");
        assert!(epoch.is_none() || export.contains("[redacted]"));
    }
    world.done(&world.user("say on")).await;
    let request = format!("{:?}", world.model.requests().last().unwrap());
    assert!(request.contains("[redacted] again") && !request.contains("secret-42"), "{request}");
    assert_eq!(redact(&world.store, &thread, &Redaction::Text("secret-42".into())).await.unwrap(), 0);
    let error = redact(&world.store, &thread, &Redaction::Text(" a ".into())).await.unwrap_err();
    assert!(matches!(error, RedactError::TooShort));
}

#[tokio::test]
async fn i5_a_redacted_item_keeps_its_place_and_its_call() {
    let world = World::with_builtins(ScriptedModel::prompts());
    world.done(&world.user(r#"call recall {"search":"hunter2"}"#)).await;
    let thread = ThreadId::from(THREAD);
    let items = world.items().await;
    let call = items.iter().find(|item| item.body.kind() == "tool_call").unwrap();
    let result = items.iter().find(|item| item.body.kind() == "tool_result").unwrap();
    for item in [call, result] {
        let id = ItemId::at(Epoch(0), item.seq);
        assert_eq!(redact(&world.store, &thread, &Redaction::Item(id)).await.unwrap(), 1);
    }
    world.done(&world.user("say on")).await;
    let none = redact(&world.store, &thread, &Redaction::Item(ItemId::at(Epoch(7), Seq(1)))).await;
    assert!(matches!(none, Err(RedactError::NoItem(_))));
    let again = world.items().await;
    assert_eq!(again.len(), items.len() + 2);
    assert!(
        again
            .iter()
            .zip(&items)
            .all(|(a, b)| (a.seq, a.body.kind(), &a.facts) == (b.seq, b.body.kind(), &b.facts))
    );
}

/// A slice that has read the text before it was redacted cannot write it afterwards.
#[tokio::test]
async fn i6_a_slice_that_is_under_way_loses_its_race_to_a_redaction() {
    let world = world().await;
    let thread = ThreadId::from(THREAD);
    let before = world.meta().await;
    redact(&world.store, &thread, &Redaction::Text("absent-text".into())).await.unwrap();
    let after = world.meta().await;
    assert_ne!(before.token, after.token);
    assert_eq!((before.head, before.epoch, after.usage), (after.head, after.epoch, None));
}

#[tokio::test]
async fn a_thread_is_deleted_with_its_children_once_all_are_closed() {
    let world = World::with_builtins(ScriptedModel::prompts());
    let spawn = serde_json::json!({"instructions": "say child", "child_of": [THREAD]});
    world.done(&world.user(&format!("call spawn_thread {spawn}"))).await;
    let spawn = world.items().await.iter().find_map(|item| match &item.body {
        dormouse::message::ItemBody::ToolCall(call) => Some(call.call_id.clone()),
        _ => None,
    });
    let spawn: CallId = spawn.unwrap();
    let child = ThreadId::child(&THREAD.into(), spawn.as_str());
    assert!(world.store.meta(&child).await.unwrap().is_some());
    let open = delete(&world.store, &THREAD.into()).await.unwrap_err();
    assert!(matches!(open, DeleteError::Open(_)), "{open}");
    let error = delete(&world.store, &child).await.unwrap_err();
    assert!(matches!(error, DeleteError::Child(..)), "{error}");
    world.done(&on(&world, THREAD, InputContent::Close)).await;
    let error = delete(&world.store, &THREAD.into()).await.unwrap_err();
    assert!(matches!(&error, DeleteError::Open(thread) if *thread == child), "{error}");
    world.done(&on(&world, child.as_str(), InputContent::Close)).await;
    let deleted = delete(&world.store, &THREAD.into()).await.unwrap();
    assert_eq!(deleted.erased, [child.clone(), THREAD.into()]);
    for thread in [THREAD.into(), child] {
        let loaded = world.store.load(&thread, &[]).await.unwrap();
        assert!(loaded.items.is_empty() && loaded.meta.unwrap().closed);
        assert!(world.store.log(&thread, Epoch(0)).await.unwrap().items.is_empty());
    }
    // A late message makes nothing again.
    world.done(&world.user("say ghost")).await;
    assert!(world.items().await.is_empty());
}

#[tokio::test]
async fn what_a_fork_inherits_outlives_its_source_until_it_is_deleted_itself() {
    let world = world().await;
    let fork = Fork { source: THREAD.into(), through: None, epoch: None };
    world.done(&on(&world, COPY, InputContent::Fork(fork))).await;
    world.done(&on(&world, THREAD, InputContent::Close)).await;
    let deleted = delete(&world.store, &THREAD.into()).await.unwrap();
    assert_eq!((deleted.erased.len(), deleted.kept), (0, vec![ThreadId::from(THREAD)]));
    assert_eq!(world.story_of(&COPY.into()).await.last().unwrap(), "assistant: two");
    world.done(&world.message(&InputMessage::user_text(COPY.into(), "say on"))).await;
    world.done(&on(&world, COPY, InputContent::Close)).await;
    delete(&world.store, &COPY.into()).await.unwrap();
    let deleted = delete(&world.store, &THREAD.into()).await.unwrap();
    assert_eq!(deleted.kept, [], "nobody inherits it any more");
    assert!(world.store.log(&THREAD.into(), Epoch(0)).await.unwrap().items.is_empty());
}

#[tokio::test]
async fn the_rows_of_a_snapshot_go_with_the_last_thread_that_was_made_of_it() {
    let world = world().await;
    let snapshot = export(&world, THREAD, None).await;
    for copy in ["c-1", "c-2"] {
        import(&world, &snapshot, copy).await;
        world.done(&on(&world, copy, InputContent::Close)).await;
    }
    let log = snapshot.log();
    assert_eq!(world.store.heirs(&log).await.unwrap().len(), 2);
    delete(&world.store, &"c-1".into()).await.unwrap();
    assert_eq!(world.story_of(&"c-2".into()).await.len(), 4);
    delete(&world.store, &"c-2".into()).await.unwrap();
    assert!(world.store.log(&log, Epoch(0)).await.unwrap().items.is_empty());
}

#[tokio::test]
async fn i2_imports_and_forks_of_branches_end_the_same_wherever_they_are_killed() {
    let document = export(&world().await, THREAD, None).await;
    let run = |seed: Option<u64>| {
        let document = document.clone();
        async move {
            let world = world().await;
            let import = store_snapshot(&world.store, document).await.unwrap();
            let fork = Fork { source: THREAD.into(), through: None, epoch: Some(Epoch(0)) };
            let queue = vec![
                on(&world, COPY, InputContent::Import(import)),
                world.message(&InputMessage::user_text(COPY.into(), "seen")),
                on(&world, "th-f", InputContent::Fork(fork)),
                world.message(&InputMessage::user_text("th-f".into(), "seen")),
                on(&world, COPY, InputContent::Close),
            ];
            match seed {
                Some(seed) => kills::work_off(&world, queue, kills::seeded(seed)).await,
                None => kills::work_off(&world, queue, || None).await,
            }
            (world.story_of(&COPY.into()).await, world.story_of(&"th-f".into()).await)
        }
    };
    let calm = run(None).await;
    assert_eq!(calm.0.last().unwrap(), "assistant: seen: say one|say two");
    for seed in 0..40 {
        assert_eq!(run(Some(seed)).await, calm, "seed {seed}");
    }
}
