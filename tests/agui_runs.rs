//! Runs of attached clients: what a slice makes of a client's request, and what it shows of its work.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "agui_runs/consent.rs"]
mod consent;
#[path = "support/crash.rs"]
mod crash;
#[path = "agui_runs/edges.rs"]
mod edges;
#[path = "agui_runs/endings.rs"]
mod endings;
#[path = "agui_runs/interrupts.rs"]
mod interrupts;
#[path = "agui_runs/state.rs"]
mod state;
#[path = "support/timers.rs"]
mod timers;
#[path = "support/world.rs"]
mod world;

use dormouse::agui::convert::{messages, place};
use dormouse::agui::emit::{End, begin};
use dormouse::agui::wire::{ClientTool, RunConfig};
use dormouse::message::{
    ContentPart, InputContent, InputMessage, ResumeAnswer, RunRecord, RunRequest, ThreadId,
};
use dormouse::model::scripted::{ScriptedEvent, ScriptedModel};
use dormouse::slice::live::LiveRow;
use dormouse::store::memory::CommitFault;
use dormouse::store::{ConversationStore, Cursor, RunChange, RunRow, RunState, RunStore};
use serde_json::Value;
use world::{Delivery, NOW_MS, THREAD, World};

/// Somebody looks for as long as a test lasts.
const FOR_EVER: i64 = NOW_MS + 1_000_000;

fn thread() -> ThreadId {
    ThreadId::from(THREAD)
}

fn world() -> World {
    World::new(ScriptedModel::prompts())
}

fn user(id: &str, text: &str) -> RunRecord {
    RunRecord::User { id: id.to_owned(), parts: vec![ContentPart::text(text)] }
}

fn assistant(id: &str) -> RunRecord {
    RunRecord::Assistant { id: id.to_owned(), calls: Vec::new() }
}

/// Makes the row of a run and the message that begins it, as the HTTP front does.
async fn post(world: &World, run: &str, records: &[RunRecord], attached_until_ms: i64) -> Delivery {
    let tool = |name: &str| ClientTool {
        name: name.to_owned(),
        description: String::new(),
        parameters: serde_json::json!({ "type": "object" }),
    };
    let config = RunConfig { tools: vec![tool("cl_where"), tool("cl_when")], context: Vec::new() };
    let row = RunRow::queued(run, serde_json::to_string(&config).unwrap(), attached_until_ms);
    world.store.put_run(&thread(), &row, NOW_MS).await.unwrap();
    let request = RunRequest {
        run: run.to_owned(),
        records: records.to_vec(),
        append: false,
        resume: None,
        state: None,
    };
    world.message(&InputMessage::plain(thread(), InputContent::Run(request)))
}

async fn run(world: &World, name: &str, records: &[RunRecord]) -> Delivery {
    let delivery = post(world, name, records, FOR_EVER).await;
    world.done(&delivery).await;
    delivery
}

async fn rows(world: &World, run: &str) -> usize {
    world.store.run_events(&thread(), run, Cursor::default()).await.unwrap().len()
}

async fn row(world: &World, run: &str) -> RunRow {
    world.store.run(&thread(), run).await.unwrap().unwrap()
}

async fn end(world: &World, run: &str) -> End {
    serde_json::from_str(&row(world, run).await.end.expect("the run has not ended")).unwrap()
}

/// What a client that reads the rows sees, in short: `text i0-2 alpha`, `call i0-2 cl_where`, `result …`.
async fn shown(world: &World, run: &str) -> Vec<String> {
    let (mut stream, _) = begin(THREAD, run);
    let (mut attempt, mut events) = (0, Vec::new());
    for row in world.store.run_events(&thread(), run, Cursor::default()).await.unwrap() {
        if row.attempt != attempt {
            attempt = row.attempt;
            events.extend(stream.next_slice());
        }
        let live: LiveRow = serde_json::from_str(&row.text).unwrap();
        match live.whole {
            true => events.extend(stream.catch_up(&live.pieces)),
            false => live.pieces.iter().for_each(|piece| events.extend(stream.show(piece))),
        }
    }
    let mut shown: Vec<String> = Vec::new();
    for event in events {
        let event = serde_json::to_value(&event).unwrap();
        let of = |name: &str| event[name].as_str().unwrap().to_owned();
        match event["type"].as_str().unwrap() {
            "TEXT_MESSAGE_START" => shown.push(format!("text {} ", of("messageId"))),
            "REASONING_MESSAGE_START" => shown.push(format!("reasoning {} ", of("messageId"))),
            "TEXT_MESSAGE_CONTENT" | "REASONING_MESSAGE_CONTENT" => {
                shown.last_mut().unwrap().push_str(&of("delta"))
            }
            "TOOL_CALL_START" => shown.push(format!("call {} {}", of("parentMessageId"), of("toolCallName"))),
            "STATE_SNAPSHOT" => shown.push(format!("state {}", event["snapshot"])),
            "STATE_DELTA" => shown.push(format!("delta {}", event["delta"])),
            "TOOL_CALL_RESULT" => shown.push(format!("result {}", of("content"))),
            _ => {}
        }
    }
    shown
}

/// The thread as a client's messages: role and id.
async fn listed(world: &World) -> Vec<String> {
    listed_of(world, &thread()).await
}

async fn listed_of(world: &World, thread: &ThreadId) -> Vec<String> {
    let loaded = world.store.load(thread, &[]).await.unwrap();
    let meta = loaded.meta.unwrap();
    messages(&place(&meta.thread, meta.logs(), &loaded.items))
        .iter()
        .map(|message| {
            let value: Value = serde_json::to_value(message).unwrap();
            format!("{} {}", value["role"].as_str().unwrap(), value["id"].as_str().unwrap())
        })
        .collect()
}

#[tokio::test]
async fn nobody_attached_is_no_row_at_all() {
    let world = world();
    let delivery = post(&world, "r1", &[user("u1", "say alpha")], 0).await;
    world.done(&delivery).await;
    assert_eq!(rows(&world, "r1").await, 0);
    assert_eq!(end(&world, "r1").await, End::Finished);
    assert_eq!(world.story().await, ["user: say alpha", "assistant: alpha"]);
    // A thread without clients has not even a run.
    let plain = World::new(ScriptedModel::prompts());
    plain.done(&plain.user("say alpha")).await;
    assert_eq!(plain.meta().await.run, None);
}

#[tokio::test]
async fn what_is_shown_has_the_ids_that_the_history_shows() {
    let world = world();
    run(&world, "r1", &[user("u1", "think delta")]).await;
    assert_eq!(shown(&world, "r1").await, ["reasoning i0-2-r thinking delta", "text i0-2 delta"]);
    run(&world, "r2", &[user("u1", "think delta"), assistant("i0-2"), user("odd id é", "seen")]).await;
    assert_eq!(shown(&world, "r2").await, ["text i0-5 seen: think delta"]);
    let expected = ["user u1", "reasoning i0-2-r", "assistant i0-2", "user odd id é", "assistant i0-5"];
    assert_eq!(listed(&world).await, expected);
    assert_eq!(world.meta().await.run, None, "an ended run is not under way");
}

#[tokio::test(start_paused = true)]
async fn an_attachment_in_mid_stream_shows_the_text_so_far_once() {
    let world = world();
    let delivery = post(&world, "r1", &[user("u1", "slow 80 word")], 0).await;
    let (running, attaching) = (world.clone(), world.clone());
    let slice = tokio::spawn(async move { running.done(&delivery).await });
    tokio::time::sleep(std::time::Duration::from_millis(1_500)).await;
    assert_eq!(rows(&attaching, "r1").await, 0, "nobody looks yet");
    assert_eq!(attaching.meta().await.run.as_deref(), Some("r1"), "who asks what is under way is told");
    let attach = RunChange::Attach { until_ms: FOR_EVER };
    attaching.store.change_run(&thread(), "r1", &attach, NOW_MS).await.unwrap();
    slice.await.unwrap();
    let rows = world.store.run_events(&thread(), "r1", Cursor::default()).await.unwrap();
    let first: LiveRow = serde_json::from_str(&rows[0].text).unwrap();
    assert!(first.whole && rows.len() > 2, "{} rows", rows.len());
    assert_eq!(shown(&world, "r1").await, [format!("text i0-2 {}", vec!["word"; 80].join(" "))]);
}

#[tokio::test]
async fn a_run_delivered_twice_runs_once() {
    let world = world();
    let delivery = run(&world, "r1", &[user("u1", "say alpha")]).await;
    let before = shown(&world, "r1").await;
    world.done(&delivery.again()).await;
    assert_eq!(shown(&world, "r1").await, before);
    assert_eq!(world.story().await, ["user: say alpha", "assistant: alpha"]);
}

#[tokio::test(start_paused = true)]
async fn a_slice_that_dies_loses_nothing_the_user_said_and_its_text_is_ended() {
    let world = world();
    let delivery = post(&world, "r1", &[user("u1", "slow 40 word")], FOR_EVER).await;
    let (running, first) = (world.clone(), delivery.clone());
    let slice = tokio::spawn(async move { running.done(&first).await });
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    slice.abort();
    assert_eq!(world.story().await, ["user: slow 40 word"], "it is in before the model is asked");
    world.done(&delivery.again()).await;
    let whole = vec!["word"; 40].join(" ");
    assert_eq!(world.story().await, ["user: slow 40 word".to_owned(), format!("assistant: {whole}")]);
    assert_eq!(end(&world, "r1").await, End::Finished);
    let shown = shown(&world, "r1").await;
    assert!(shown.len() == 2 && shown[0].starts_with("text i0-2 word"), "{shown:?}");
    assert_eq!(shown[1], format!("text i0-2.2 {whole}"));
}

#[tokio::test]
async fn a_commit_that_fails_is_done_again_and_the_run_ends_once() {
    let world = world();
    let delivery = post(&world, "r1", &[user("u1", "say alpha")], FOR_EVER).await;
    world.store.fail_commits([CommitFault::Unavailable]);
    assert_eq!(world.deliver(std::slice::from_ref(&delivery)).await.len(), 1);
    world.done(&delivery.again()).await;
    assert_eq!(world.story().await, ["user: say alpha", "assistant: alpha"]);
    assert_eq!(shown(&world, "r1").await, ["text i0-2 alpha"]);
}

#[tokio::test]
async fn a_client_tool_ends_the_run_and_its_result_begins_the_next() {
    let world = world();
    run(&world, "r1", &[user("u1", r#"call cl_where {"q":"x"}"#)]).await;
    assert_eq!(end(&world, "r1").await, End::Finished);
    assert_eq!(shown(&world, "r1").await, ["call i0-2 cl_where"]);
    assert_eq!(world.tools.dispatched().len(), 0, "it went to nobody else");
    let call = world.pending().await.remove(0);
    let given =
        |text: &str| RunRecord::Tool { call: call.as_str().to_owned(), text: text.to_owned(), failed: false };
    let list = [user("u1", "call"), assistant("i0-2"), given("here")];
    run(&world, "r2", &list).await;
    assert_eq!(
        shown(&world, "r2").await,
        ["text i0-4 result: here"],
        "what the client brought is no news for it"
    );
    // Two tabs: an equal second result is harmless, another one changes nothing.
    run(&world, "r3", &[user("u1", "call"), assistant("i0-2"), given("there")]).await;
    assert_eq!(end(&world, "r3").await, End::Unchanged);
    assert_eq!(world.story().await[2..], ["result: here", "assistant: result: here"]);
}

#[tokio::test]
async fn h7_results_in_parts_are_one_continuation() {
    let world = world();
    run(&world, "r1", &[user("u1", r#"both cl_where {"q":"x"} cl_when {"q":"y"}"#)]).await;
    let calls = world.pending().await;
    let given = |at: usize| RunRecord::Tool {
        call: calls[at].as_str().to_owned(),
        text: at.to_string(),
        failed: false,
    };
    let begin = [user("u1", "both"), assistant("i0-2")];
    run(&world, "r2", &[&begin[..], &[given(1)]].concat()).await;
    assert_eq!((end(&world, "r2").await, shown(&world, "r2").await), (End::Finished, vec![]));
    run(&world, "r3", &[&begin[..], &[given(1), given(0)]].concat()).await;
    assert_eq!(shown(&world, "r3").await, ["text i0-6 result: 0, 1"]);
}

#[tokio::test]
async fn h7_several_results_of_one_run_wait_together_for_a_call_of_a_server() {
    let text = |text: &str| vec![ScriptedEvent::Text(text.into()), ScriptedEvent::End("end_turn".into())];
    let mut step: Vec<ScriptedEvent> =
        ["cl_where", "cl_when", "echo"].iter().map(|name| ScriptedEvent::call(*name, *name, "{}")).collect();
    step.push(ScriptedEvent::End("tool_use".into()));
    let world = World::new(ScriptedModel::script(vec![step, text("done")]));
    run(&world, "r1", &[user("u1", "go")]).await;
    let calls = world.pending().await;
    let given =
        |at: usize| RunRecord::Tool { call: calls[at].as_str().into(), text: at.to_string(), failed: false };
    run(&world, "r2", &[user("u1", "go"), assistant("i0-2"), given(1), given(0)]).await;
    let keys: Vec<String> = parked(&world).await;
    assert_eq!(keys.len(), 2, "both wait, each under a key of its own");
    assert_eq!(row(&world, "r2").await.state, RunState::Waiting);
    world.done(&world.result(&calls[2], "2")).await;
    assert_eq!(world.story().await[4..], ["result: 0", "result: 1", "result: 2", "assistant: done"]);
    assert_eq!(end(&world, "r2").await, End::Finished);
    assert_eq!(parked(&world).await, Vec::<String>::new());
}

/// The keys of what is parked.
async fn parked(world: &World) -> Vec<String> {
    let loaded = world.store.load(&thread(), &[]).await.unwrap();
    loaded.parked.into_iter().map(|parked| parked.key).collect()
}

#[tokio::test]
async fn h10_a_new_message_settles_the_clients_open_calls() {
    let world = world();
    run(&world, "r1", &[user("u1", r#"call cl_where {"q":"x"}"#)]).await;
    run(&world, "r2", &[user("u1", "call"), assistant("i0-2"), user("u2", "say alpha")]).await;
    assert_eq!(world.story().await[2..], ["interrupt", "user: say alpha", "assistant: alpha"]);
    assert_eq!(shown(&world, "r2").await[0], "result Tool call cancelled by user");
    assert_eq!(world.pending().await, []);
}

#[tokio::test]
async fn a_server_tool_is_part_of_the_run_and_a_stale_client_is_told_that_it_is_busy() {
    let world = world();
    run(&world, "r1", &[user("u1", r#"look echo {"k":1}"#)]).await;
    assert_eq!(row(&world, "r1").await.state, RunState::Waiting);
    // A client that does not know of the running turn.
    run(&world, "r2", &[user("other", "say alpha")]).await;
    assert!(matches!(end(&world, "r2").await, End::Failed { code, .. } if code == "THREAD_BUSY"));
    let call = world.pending().await.remove(0);
    world.done(&world.result(&call, "{\"k\":1}")).await;
    assert_eq!(end(&world, "r1").await, End::Finished);
    assert_eq!(
        shown(&world, "r1").await,
        ["text i0-2 let me look", "call i0-2 echo", "result {\"k\":1}", "text i0-5 it is {\"k\":1}"]
    );
    assert_eq!(world.story().await.len(), 5, "nothing of the refused run is stored");
}

#[tokio::test]
async fn edits_and_reloads_leave_the_older_branch_to_go_back_to() {
    let world = world();
    run(&world, "r1", &[user("u1", "say alpha")]).await;
    run(&world, "r2", &[user("u1", ""), assistant("i0-2"), user("u2", "say bravo")]).await;
    run(&world, "r3", &[user("u1", ""), assistant("i0-2"), user("u3", "say charlie")]).await;
    assert_eq!(listed(&world).await, ["user u1", "assistant i0-2", "user u3", "assistant i1-2"]);
    run(&world, "r4", &[user("u1", ""), assistant("i0-2"), user("u3", "")]).await;
    assert_eq!(listed(&world).await, ["user u1", "assistant i0-2", "user u3", "assistant i2-1"], "a reload");
    // Back to the branch that the edit left, with the same ids again: they are known there, and nowhere else.
    let older = [user("u1", ""), assistant("i0-2"), user("u2", ""), assistant("i0-4"), user("u4", "seen")];
    run(&world, "r5", &older).await;
    assert_eq!(shown(&world, "r5").await, ["text i3-2 seen: say alpha|say bravo"]);
    assert_eq!(
        listed(&world).await,
        ["user u1", "assistant i0-2", "user u2", "assistant i0-4", "user u4", "assistant i3-2"]
    );
    // The first message edited: nothing of before is left in view.
    run(&world, "r6", &[user("u9", "seen")]).await;
    assert_eq!(listed(&world).await, ["user u9", "assistant i4-2"]);
}

#[tokio::test]
async fn a_model_that_fails_ends_the_run_with_an_error_and_the_next_turn_works() {
    let world = world();
    run(&world, "r1", &[user("u1", "fail boom")]).await;
    let End::Failed { code, message } = end(&world, "r1").await else { panic!() };
    assert!(code == "MODEL_ERROR" && message.contains("boom"), "{code} {message}");
    run(&world, "r2", &[user("u1", "fail boom"), user("u2", "say alpha")]).await;
    assert_eq!(end(&world, "r2").await, End::Finished);
}

#[tokio::test(start_paused = true)]
async fn a_stopped_run_keeps_what_was_said_and_ends_with_abort() {
    let world = world();
    let delivery = post(&world, "r1", &[user("u1", "slow 400 word")], FOR_EVER).await;
    let (running, stopping) = (world.clone(), world.clone());
    let slice = tokio::spawn(async move { running.done(&delivery).await });
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    stopping.store.change_run(&thread(), "r1", &RunChange::Stop, NOW_MS).await.unwrap();
    slice.await.unwrap();
    assert!(matches!(end(&world, "r1").await, End::Failed { code, .. } if code == "abort"));
    let story = world.story().await;
    assert!(story[1].starts_with("assistant: word") && story[1].len() < 1_000, "{}", story[1].len());
}

#[tokio::test]
async fn answers_to_no_question_are_refused_and_nothing_changes() {
    let world = world();
    run(&world, "r1", &[user("u1", "say alpha")]).await;
    world.store.put_run(&thread(), &RunRow::queued("r2", "{}", FOR_EVER), NOW_MS).await.unwrap();
    let answer = ResumeAnswer { interrupt: "nope".to_owned(), resolved: true, payload: None };
    let request = RunRequest {
        run: "r2".to_owned(),
        records: vec![user("u1", ""), user("u2", "say bravo")],
        append: false,
        resume: Some(vec![answer]),
        state: None,
    };
    world.done(&world.message(&InputMessage::plain(thread(), InputContent::Run(request)))).await;
    assert!(matches!(end(&world, "r2").await, End::Failed { code, .. } if code == "UNKNOWN_INTERRUPT_ID"));
    assert_eq!(world.story().await, ["user: say alpha", "assistant: alpha"]);
}
