//! Edge cases of clients, in the order of `docs/ag-ui.md`.

use std::sync::Arc;

use async_trait::async_trait;
use dormouse::message::{CallId, DedupId, Fork, InputContent, InputMessage, ResumeAnswer};
use dormouse::model::scripted::{ScriptedError, ScriptedErrorClass, ScriptedEvent, ScriptedModel};
use dormouse::queue::{QueueError, TimerSender};
use dormouse::store::memory::CommitFault;
use dormouse::store::{Hold, RunStore, Terms};
use dormouse::tools::{Execution, Invocation, Registry, Tool, ToolDefinition, ToolError};
use serde_json::json;

use super::*;
use crate::timers::Timers;

/// A fake whose calls wait for something.
struct Held {
    tool: Arc<dyn Tool>,
    hold: Hold,
    terms: Terms,
    timers: Arc<Timers>,
}

#[async_trait]
impl Tool for Held {
    fn definition(&self) -> &ToolDefinition {
        self.tool.definition()
    }
    fn execution(&self) -> Execution {
        self.tool.execution()
    }
    fn server(&self) -> Option<&str> {
        self.tool.server()
    }
    fn hold(&self) -> Option<Hold> {
        Some(self.hold)
    }
    fn terms(&self) -> Terms {
        self.terms.clone()
    }
    async fn set_expiry(
        &self,
        due_ms: i64,
        message: &InputMessage,
        dedup: &DedupId,
    ) -> Result<(), QueueError> {
        self.timers.schedule(due_ms, message, dedup).await
    }
    async fn execute(&self, call: &Invocation) -> Result<(), ToolError> {
        self.tool.execute(call).await
    }
    async fn cancel(&self, thread: &ThreadId, call: &CallId) {
        self.tool.cancel(thread, call).await;
    }
    async fn answer_choice(&self, url: &str, choice: &CallId, selected: usize) -> Result<(), ToolError> {
        self.tool.answer_choice(url, choice, selected).await
    }
}

/// A world whose tools' calls wait for `hold`.
pub async fn held(hold: Hold) -> World {
    let mut world = world();
    hold_on(&mut world, hold, Terms::default()).await;
    world
}

/// Has the calls of one of a world's tools wait for the user's word, on those terms.
pub async fn guard(world: &mut World, name: &str, terms: Terms) -> Arc<Timers> {
    let offered = world.runtime.tools.tools("default", &thread()).await.registry;
    let plain: Vec<_> = offered.iter().filter(|tool| tool.definition().name != name).cloned().collect();
    let timers = hold_on(world, Hold::Consent, terms).await;
    let held = world.runtime.tools.tools("default", &thread()).await.registry;
    world.runtime.tools = Arc::new(Registry::new(plain.into_iter().chain(held.get(name).cloned())));
    timers
}

/// Has the calls of a world's tools wait for `hold`, on those terms.
pub async fn hold_on(world: &mut World, hold: Hold, terms: Terms) -> Arc<Timers> {
    let timers = Arc::new(Timers::default());
    let offered = world.runtime.tools.tools("default", &thread()).await.registry;
    let tools = offered.iter().map(|tool| {
        let (tool, terms, timers) = (tool.clone(), terms.clone(), timers.clone());
        Arc::new(Held { tool, hold, terms, timers }) as Arc<dyn Tool>
    });
    world.runtime.tools = Arc::new(Registry::new(tools.collect::<Vec<_>>()));
    timers
}

/// A world whose tools ask first.
pub async fn guarded() -> World {
    held(Hold::Consent).await
}

pub async fn resume(world: &World, name: &str, answers: Vec<ResumeAnswer>, records: &[RunRecord]) {
    world.store.put_run(&thread(), &RunRow::queued(name, "{}", FOR_EVER), NOW_MS).await.unwrap();
    let records = records.to_vec();
    let request =
        RunRequest { run: name.to_owned(), records, append: false, resume: Some(answers), state: None };
    world.done(&world.message(&InputMessage::plain(thread(), InputContent::Run(request)))).await;
}

pub fn approved(interrupt: &str, approved: bool) -> ResumeAnswer {
    let payload = Some(json!({ "approved": approved }));
    ResumeAnswer { interrupt: interrupt.to_owned(), resolved: true, payload }
}

pub async fn interrupts(world: &World, run: &str) -> Vec<String> {
    match end(world, run).await {
        End::Interrupted { interrupts } => interrupts.into_iter().map(|interrupt| interrupt.id).collect(),
        other => panic!("{other:?}"),
    }
}

pub async fn code(world: &World, run: &str) -> String {
    match end(world, run).await {
        End::Failed { code, .. } => code,
        other => panic!("{other:?}"),
    }
}

fn given(call: &CallId, text: &str) -> RunRecord {
    RunRecord::Tool { call: call.as_str().to_owned(), text: text.to_owned(), failed: false }
}

#[tokio::test]
async fn a_run_that_fails_in_mid_text_ends_and_a_reload_answers_the_turn() {
    let broken = ScriptedError { class: ScriptedErrorClass::Fatal, retry_after_ms: None, message: None };
    let half = vec![ScriptedEvent::Text("half".into()), ScriptedEvent::Error(broken)];
    let whole = vec![ScriptedEvent::Text("whole".into()), ScriptedEvent::End("end_turn".into())];
    let world = World::new(ScriptedModel::script(vec![half, whole]));
    run(&world, "r1", &[user("u1", "go")]).await;
    assert_eq!(
        (code(&world, "r1").await.as_str(), shown(&world, "r1").await),
        ("MODEL_ERROR", vec!["text i0-2 half".to_owned()])
    );
    // The client still shows what was said, and asks for it again.
    run(&world, "r2", &[user("u1", "go")]).await;
    assert_eq!(world.story().await, ["user: go", "assistant: whole"]);
    assert_eq!(end(&world, "r2").await, End::Finished);
}

#[tokio::test]
async fn two_posts_that_race_on_one_head_are_decided_one_after_the_other() {
    let world = world();
    run(&world, "r1", &[user("u1", "say alpha")]).await;
    let delivery =
        post(&world, "r2", &[user("u1", ""), assistant("i0-2"), user("u2", "say bravo")], FOR_EVER).await;
    world.store.fail_commits([CommitFault::LostRace]);
    world.done(&delivery).await;
    assert_eq!(end(&world, "r2").await, End::Finished);
    assert_eq!(world.story().await[2..], ["user: say bravo", "assistant: bravo"], "once");
}

#[tokio::test]
async fn a_user_id_is_a_name_and_nothing_else() {
    let world = world();
    run(&world, "r1", &[user("u1", "say alpha")]).await;
    // Known under this id with another text: what is stored stays. And one that is called as an answer is.
    run(&world, "r2", &[user("u1", "other words"), assistant("i0-2"), user("i0-2", "seen")]).await;
    assert_eq!(
        world.story().await,
        ["user: say alpha", "assistant: alpha", "user: seen", "assistant: seen: say alpha"]
    );
    assert_eq!(listed(&world).await, ["user u1", "assistant i0-2", "user i0-2", "assistant i0-4"]);
}

#[tokio::test]
async fn an_edit_and_a_reload_leave_the_clients_open_calls_behind() {
    for again in [vec![user("u9", "say alpha")], vec![user("u1", "call")]] {
        let world = world();
        run(&world, "r1", &[user("u1", r#"call cl_where {"q":"x"}"#)]).await;
        let open = world.pending().await.remove(0);
        run(&world, "r2", &again).await;
        assert_eq!(end(&world, "r2").await, End::Finished);
        assert!(!world.pending().await.contains(&open), "it is not waited for any more");
        // The tool's result comes all the same, from a client that shows the branch which was left.
        let asked = world.model.calls();
        run(&world, "r3", &[user("u1", "call"), assistant("i0-2"), given(&open, "late")]).await;
        assert_eq!(
            (end(&world, "r3").await, world.model.calls()),
            (End::Finished, asked),
            "it starts nothing"
        );
        let told = world.story().await.pop().unwrap();
        assert!(
            told.contains("late result of cl_where") && told.ends_with("late"),
            "a note, as of any tool: {told}"
        );
    }
}

#[tokio::test]
async fn one_resume_answers_every_interrupt_once_and_in_any_order() {
    let world = guarded().await;
    run(&world, "r1", &[user("u1", r#"both echo {"k":1} other {"k":2}"#)]).await;
    let asked = interrupts(&world, "r1").await;
    assert_eq!((asked.len(), world.tools.dispatched().len()), (2, 0));
    // Refused as a whole, each time.
    let good = |at: usize| approved(&asked[at], true);
    let lost = ResumeAnswer { interrupt: "nope".to_owned(), resolved: true, payload: None };
    let empty = ResumeAnswer { interrupt: String::new(), resolved: true, payload: None };
    let bare = ResumeAnswer { payload: None, ..good(0) };
    let with = |payload: Value| ResumeAnswer { payload: Some(payload), ..good(0) };
    for (name, answers, expected) in [
        ("one", vec![good(0)], "PARTIAL_RESUME"),
        ("unknown", vec![good(0), lost], "UNKNOWN_INTERRUPT_ID"),
        ("twice", vec![good(0), good(1), good(0)], "INTERRUPT_RESUME_ERROR"),
        ("empty", vec![good(0), good(1), empty], "INTERRUPT_RESUME_ERROR"),
        ("payload", vec![bare, good(1)], "INVALID_PAYLOAD"),
        ("approved", vec![with(json!({ "approved": "yes" })), good(1)], "INVALID_PAYLOAD"),
        ("reason", vec![with(json!({ "approved": false, "reason": 7 })), good(1)], "INVALID_PAYLOAD"),
        // To run it unedited would be what nobody has approved.
        ("edited", vec![with(json!({ "approved": true, "editedArgs": {} })), good(1)], "INVALID_PAYLOAD"),
        ("none", vec![], "PARTIAL_RESUME"),
    ] {
        resume(&world, name, answers, &[user("u1", "")]).await;
        assert_eq!(code(&world, name).await, expected, "{name}");
    }
    run(&world, "said", &[user("u1", ""), user("u2", "say x")]).await;
    assert_eq!(code(&world, "said").await, "PENDING_INTERRUPTS");
    assert_eq!((world.tools.dispatched().len(), world.story().await.len()), (0, 3), "nothing has changed");
    // In another order than they were asked; one is denied.
    resume(&world, "r2", vec![approved(&asked[1], false), good(0)], &[user("u1", "")]).await;
    let sent: Vec<String> = world.tools.dispatched().into_iter().map(|call| call.name).collect();
    assert_eq!(
        (sent.as_slice(), row(&world, "r2").await.state),
        (&["echo".to_owned()][..], RunState::Waiting)
    );
    let call = world.pending().await.remove(0);
    world.done(&world.result(&call, "1")).await;
    assert_eq!(end(&world, "r2").await, End::Finished);
    let told = world.story().await;
    // The same answers once more, also as if nobody had heard of the first ones.
    resume(&world, "r3", vec![good(0), approved(&asked[1], false)], &[user("u1", "")]).await;
    assert!(matches!(end(&world, "r3").await, End::Unchanged | End::Finished));
    assert_eq!((world.tools.dispatched().len(), world.story().await), (1, told), "the tool ran once");
}

#[tokio::test]
async fn who_steers_away_gives_every_interrupt_up_and_goes_on() {
    let world = guarded().await;
    run(&world, "r1", &[user("u1", r#"call echo {"k":1}"#)]).await;
    let asked = interrupts(&world, "r1").await;
    let given_up = ResumeAnswer { interrupt: asked[0].clone(), resolved: false, payload: None };
    resume(&world, "r2", vec![given_up], &[user("u1", ""), assistant("i0-2"), user("u2", "say bravo")]).await;
    assert_eq!(world.story().await.last().unwrap(), "assistant: bravo");
    assert_eq!((end(&world, "r2").await, world.tools.dispatched().len()), (End::Finished, 0));
}

#[tokio::test]
async fn a_continuation_of_a_run_that_has_failed_keeps_its_result() {
    let text = |text: &str| vec![ScriptedEvent::Text(text.into()), ScriptedEvent::End("end_turn".into())];
    let broken = ScriptedError { class: ScriptedErrorClass::Fatal, retry_after_ms: None, message: None };
    let call = vec![ScriptedEvent::call("c", "cl_where", "{}"), ScriptedEvent::End("tool_use".into())];
    let world =
        World::new(ScriptedModel::script(vec![call, vec![ScriptedEvent::Error(broken)], text("done")]));
    run(&world, "r1", &[user("u1", "go")]).await;
    let call = world.pending().await.remove(0);
    let list = [user("u1", "go"), assistant("i0-2"), given(&call, "here")];
    run(&world, "r2", &list).await;
    assert_eq!(code(&world, "r2").await, "MODEL_ERROR");
    assert_eq!(world.story().await.last().unwrap(), "result: here", "it stays");
    // Nothing new, but a turn that was never answered.
    run(&world, "r3", &list).await;
    assert_eq!(
        (world.story().await.last().unwrap().as_str(), end(&world, "r3").await),
        ("assistant: done", End::Finished)
    );
}

#[tokio::test]
async fn a_fork_and_its_source_go_on_and_are_edited_apart() {
    let world = world();
    run(&world, "r1", &[user("u1", "say alpha")]).await;
    let (fork, source) = (ThreadId::from("th-2"), thread());
    let content = InputContent::Fork(Fork { source: source.clone(), through: None, epoch: None });
    world.done(&world.message(&InputMessage::plain(fork.clone(), content))).await;
    let on_fork = async |name: &str, records: Vec<RunRecord>| {
        world.store.put_run(&fork, &RunRow::queued(name, "{}", FOR_EVER), NOW_MS).await.unwrap();
        let request = RunRequest { run: name.to_owned(), records, append: false, resume: None, state: None };
        world.done(&world.message(&InputMessage::plain(fork.clone(), InputContent::Run(request)))).await;
        let row = world.store.run(&fork, name).await.unwrap().unwrap();
        assert_eq!(row.end.as_deref(), Some(r#"{"type":"finished"}"#), "{name}");
        listed_of(&world, &fork).await
    };
    // What is inherited has ids of its own; those of users stay.
    let inherited = [user("u1", ""), assistant("f1-i0-2")];
    let listed = on_fork("r1", [&inherited[..], &[user("u2", "seen")]].concat()).await;
    assert_eq!(listed, ["user u1", "assistant f1-i0-2", "user u2", "assistant i0-2"]);
    run(&world, "r2", &[user("u1", ""), assistant("i0-2"), user("u3", "say bravo")]).await;
    assert_eq!(world.story().await[2..], ["user: say bravo", "assistant: bravo"]);
    // An edit of what the fork has said, then of what it has inherited; and back again.
    let listed = on_fork("r3", [&inherited[..], &[user("u4", "seen")]].concat()).await;
    assert_eq!(listed[2..], ["user u4", "assistant i1-2"]);
    let listed = on_fork("r4", vec![user("u5", "seen")]).await;
    assert_eq!(listed, ["user u5", "assistant i2-2"]);
    let listed =
        on_fork("r5", [&inherited[..], &[user("u2", ""), assistant("i0-2"), user("u6", "seen")]].concat())
            .await;
    assert_eq!(
        listed,
        ["user u1", "assistant f1-i0-2", "user u2", "assistant i0-2", "user u6", "assistant i3-2"]
    );
    assert_eq!(world.story().await.len(), 4, "the source knows nothing of it");
}
