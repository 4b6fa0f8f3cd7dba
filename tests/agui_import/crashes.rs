//! An import that dies anywhere ends as one that does not.

use dormouse::agui::repository::Repository;
use dormouse::history::snapshot::{Snapshot, log_of};
use dormouse::message::{Epoch, Import, InputContent, InputMessage, ThreadId};
use dormouse::store::{ConversationStore, Meta};
use serde_json::{Value, json};

use super::crash::{Mortal, Point};
use super::kept;
use super::world::{Delivery, THREAD, World};

/// As many branches as there may be: an answer, and all of its reloads.
fn fan() -> Value {
    let answers =
        (0..64).map(|n| kept(Some("u1"), &format!("a{n}"), "assistant", json!(format!("answer {n}"))));
    let messages: Vec<Value> = [kept(None, "u1", "user", json!("go"))].into_iter().chain(answers).collect();
    json!({ "headId": "a7", "messages": messages })
}

/// Stores the items and makes the message, as the HTTP front does.
async fn posted(world: &World) -> Delivery {
    let log = log_of("fan");
    let planted = Repository::read(&fan()).unwrap().plant(&log, None, 7).unwrap();
    world.store.put_log(&log, &planted.items).await.unwrap();
    let meta = Meta { next_turn: planted.next_turn, ..Meta::new_root(THREAD.into(), "default", None, 0) };
    world.message(&InputMessage::plain(
        THREAD.into(),
        InputContent::Import(Import {
            log,
            items: planted.items.len() as u64,
            thread: Snapshot::of(&meta, &[]).without_items(),
            branches: planted.branches,
            first: planted.first,
        }),
    ))
}

/// Every row that says what the thread is.
async fn rows(world: &World) -> Vec<String> {
    let thread = ThreadId::from(THREAD);
    let meta = world.meta().await;
    let mut rows = vec![format!("{:?} {:?} {} {:?}", meta.epoch, meta.base, meta.next_turn, meta.turn_id)];
    for epoch in 0..meta.epoch.0 {
        let log = world.store.log(&thread, Epoch(epoch)).await.unwrap();
        rows.push(format!("{epoch} {:?} {:?}", log.base, log.items));
    }
    rows.extend(world.story().await);
    rows
}

#[tokio::test]
async fn i2_an_import_that_dies_anywhere_ends_in_the_same_rows() {
    let calm = Mortal::new().await;
    calm.world.done(&posted(&calm.world).await).await;
    let expected = rows(&calm.world).await;
    assert_eq!(
        (expected.len(), &*expected[66]),
        (67, "assistant: answer 7"),
        "64 branches, and the head again"
    );
    for point in [Point::Load, Point::CommitAsked(1), Point::CommitWritten(1)] {
        let mortal = Mortal::new().await;
        let delivery = posted(&mortal.world).await;
        mortal.killed(point, &delivery).await;
        mortal.world.done(&delivery.again()).await;
        assert_eq!(rows(&mortal.world).await, expected, "{point:?}");
        // It is there whole and once: a second delivery is a duplicate.
        mortal.world.done(&delivery.again()).await;
        assert_eq!(rows(&mortal.world).await, expected, "{point:?}");
        assert_eq!(mortal.world.model.calls(), 0, "no model is asked");
    }
}

#[tokio::test]
async fn i7_an_import_whose_pieces_are_none_of_its_items_is_refused() {
    let world = World::new(dormouse::model::scripted::ScriptedModel::prompts());
    let good = posted(&world).await;
    for (piece, other) in
        [(r#"{"from":0,"to":1}"#, r#"{"from":0,"to":99}"#), (r#"{"from":0,"to":1}"#, r#"{"from":1,"to":1}"#)]
    {
        assert!(good.body.contains(piece));
        let bad = Delivery { body: good.body.replace(piece, other), ..good.clone() };
        world.done(&bad).await;
        assert_eq!(world.store.meta(&THREAD.into()).await.unwrap(), None);
        let told = world.output.sent.lock().unwrap().last().unwrap().text.clone();
        assert!(told.contains("its branches are not made of its items"), "{told}");
    }
    world.done(&good).await;
    assert_eq!(world.story().await, ["user: go", "assistant: answer 7"]);
}
