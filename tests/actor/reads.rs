//! What is read: in order with what is pushed, and in mid-stream.

use std::sync::Arc;

use dormouse::agent::{AgentInput, ReadError, Running};
use dormouse::message::{
    ContentPart, InputContent, ItemBody, RawJson, Rewind, Seq, ThreadId, UserChoiceRequired,
};
use dormouse::model::scripted::{ScriptedEvent, ScriptedModel};
use dormouse::store::StateStore;

use crate::resident::{actor, calls, committed, flushed, hanging, piece, snapshot_when, text, until};
use crate::world::{THREAD, World, tell};

#[tokio::test]
async fn an_empty_thread_reads_as_nothing() {
    let world = World::new(ScriptedModel::prompts());
    let handle = actor(&world);
    assert_eq!((handle.len().await, handle.is_empty().await), (Ok(0), Ok(true)));
    assert_eq!(handle.last_text().await, Ok(None));
    assert_eq!(handle.item_at(Seq(1)).await, Ok(None));
    assert_eq!(handle.item_at(Seq(0)).await, Ok(None));
    assert_eq!(handle.pending().await, Ok(vec![]));
    let snapshot = handle.snapshot().await.unwrap();
    assert!(!snapshot.exists && snapshot.items.is_empty() && snapshot.accepted.is_empty());
    assert_eq!((snapshot.head, snapshot.running), (Seq(1), Running::Nothing));
    assert_eq!(world.store.commits(), 0, "looking writes nothing");
}

#[tokio::test]
async fn pushes_and_reads_keep_their_order() {
    let world = World::new(ScriptedModel::script(vec![hanging(vec![piece("x")]), text("all")]));
    let handle = actor(&world);
    let mut pushed = Vec::new();
    for n in 0..4 {
        pushed.push(handle.push(AgentInput::user(format!("m{n}"))).unwrap());
        // Whatever is done by now: the read sees everything that was pushed before it, and in order.
        let snapshot = handle.snapshot().await.unwrap();
        let committed = snapshot.items.iter().filter_map(|item| item.facts.dedup.clone());
        let seen: Vec<_> = committed.chain(snapshot.accepted.iter().map(|(id, _)| id.clone())).collect();
        assert_eq!(seen, pushed);
    }
    flushed(&handle).await;
    let said: Vec<String> = world.story().await.into_iter().filter(|line| line.starts_with("user")).collect();
    assert_eq!(said, ["user: m0", "user: m1", "user: m2", "user: m3"]);
}

#[tokio::test]
async fn narrow_reads_say_what_is_committed() {
    let world = World::new(ScriptedModel::script(vec![calls(&["echo", "other"]), text("done")]));
    let handle = actor(&world);
    committed(&handle, "hi").await;
    assert_eq!(handle.len().await, Ok(3));
    assert_eq!(handle.pending().await.unwrap().len(), 2);
    assert_eq!(handle.last_text().await, Ok(None));
    for call in world.tools.calls() {
        committed(&handle, AgentInput::result(call, vec![ContentPart::text("ok")])).await;
    }
    assert_eq!(handle.last_text().await, Ok(Some("done".to_owned())));
    assert_eq!(handle.pending().await, Ok(vec![]));
    let told = |seq| {
        let handle = handle.clone();
        async move { handle.item_at(Seq(seq)).await.unwrap().map(|item| tell(&item.body)) }
    };
    assert_eq!(told(1).await.as_deref(), Some("user: hi"));
    assert_eq!(told(6).await.as_deref(), Some("assistant: done"));
    assert_eq!((told(0).await, told(7).await), (None, None));
}

#[tokio::test]
async fn a_client_that_attaches_in_mid_stream_gets_history_partial_response_views_and_choices() {
    let events = vec![ScriptedEvent::Reasoning("hm".into()), piece("par"), piece("tial")];
    let world = World::new(ScriptedModel::script(vec![calls(&["nap"]), hanging(events), text("after")]));
    let handle = actor(&world);
    committed(&handle, "hi").await;
    let thread = ThreadId::from(THREAD);
    let view = RawJson::parse(r#"{"n": 1}"#).unwrap();
    world.store.put_view(&thread, "board", &view).await.unwrap();
    let call = world.tools.calls()[0].clone();
    let choice = UserChoiceRequired {
        id: call.clone(),
        call_id: None,
        prompt: "Which?".to_owned(),
        choices: vec!["a".to_owned(), "b".to_owned()],
        default: 0,
        response_url: "https://tool.example/choice".to_owned(),
    };
    committed(&handle, AgentInput::content(InputContent::UserChoiceRequired(choice))).await;
    let asked = handle.snapshot().await.unwrap();
    assert_eq!((asked.choices.len(), asked.choices[0].prompt.as_str()), (1, "Which?"));
    assert_eq!(asked.pending[0].call, call);
    assert_eq!(asked.views, [("board".to_owned(), view)]);

    let id = handle.push(AgentInput::user("go on")).unwrap();
    let live = snapshot_when(&handle, |snapshot| snapshot.partial_text() == "partial").await;
    assert_eq!(live.running, Running::Slice);
    assert_eq!(live.accepted.iter().map(|(id, _)| id.clone()).collect::<Vec<_>>(), [id]);
    assert!(
        matches!(&live.partial[..], [ItemBody::Reasoning(_), ItemBody::Assistant(_)]),
        "{:?}",
        live.partial
    );
    let told: Vec<String> = live.bodies().map(tell).collect();
    assert_eq!(told.last().unwrap(), "assistant: partial");
    assert!(!told.contains(&"user: go on".to_owned()), "what is not committed is not shown as if it were");

    // What was captured stays what it was, whatever becomes of the thread.
    let captured = live.clone();
    handle.stop_response().unwrap();
    flushed(&handle).await;
    let rewind = Rewind { target: dormouse::message::RewindTarget::Turn(0), seen: None, then: None };
    committed(&handle, AgentInput::content(InputContent::Rewind(rewind))).await;
    assert_eq!(captured, live);
    let after = handle.snapshot().await.unwrap();
    assert!(after.items.is_empty() && after.epoch > live.epoch, "{after:?}");
    assert!(after.partial.is_empty() && after.accepted.is_empty());
    assert!(!Arc::ptr_eq(&after.items, &live.items));
    committed(&handle, "again").await;
    assert_eq!(handle.last_text().await, Ok(Some("after".to_owned())));
    assert_eq!(
        handle.item_at(Seq(1)).await.unwrap().map(|item| tell(&item.body)).as_deref(),
        Some("user: again")
    );
}

#[tokio::test]
async fn what_a_retry_discards_is_not_shown_any_more() {
    let cut = vec![piece("wrong"), ScriptedEvent::DelayMs(1_000), ScriptedEvent::Cut(true)];
    let world = World::new(ScriptedModel::script(vec![cut, hanging(vec![piece("right")]), text("x")]));
    let handle = actor(&world);
    handle.push_user("hi").unwrap();
    snapshot_when(&handle, |snapshot| snapshot.partial_text() == "wrong").await;
    let second = snapshot_when(&handle, |snapshot| snapshot.partial_text().contains("right")).await;
    assert_eq!(second.partial_text(), "right");
    handle.stop_response().unwrap();
    flushed(&handle).await;
}

#[tokio::test]
async fn reading_while_the_store_is_down_says_so_and_the_next_read_works() {
    let world = World::new(ScriptedModel::prompts());
    let handle = actor(&world);
    world.store.fail_loads(1);
    assert!(matches!(handle.len().await, Err(ReadError::Store(_))));
    assert_eq!(handle.len().await, Ok(0));
}

#[tokio::test]
async fn a_thread_that_stands_where_it_is_known_to_stand_is_not_read_again() {
    let world = World::new(ScriptedModel::prompts());
    let handle = actor(&world);
    committed(&handle, "say one").await;
    // Every whole load fails from here on: only what is known and point look-ups are left.
    world.store.fail_loads(usize::MAX);
    committed(&handle, "say two").await;
    committed(&handle, "seen").await;
    world.store.fail_loads(0);
    assert_eq!(world.story().await.len(), 6);
    until("every reply is out", || world.output.texts().len() == 3).await;
}
