//! What a run pauses for, and how it is answered (H9): what a tool asks, and consent at an address. Whether a call may run
//! is asked in `edges`.

use dormouse::agui::wire::Interrupt;
use dormouse::history::request::RequestMessage;
use dormouse::message::{CallId, OAuthRequired, UserChoiceRequired};
use dormouse::store::{Hold, StateStore, Terms};
use dormouse::thread::{Redaction, redact};
use serde_json::json;

use super::edges::{approved, code, guard, guarded, held, interrupts, resume};
use super::*;
use crate::crash::{Mortal, Point};

const ANSWER_URL: &str = "https://b.example/answer";
const AUTH_URL: &str = "https://idp.example/authorize?secret=x";

/// The tool of `call` asks something.
pub async fn ask(world: &World, call: &CallId, choices: &[&str], default: usize) {
    let choice = UserChoiceRequired {
        id: call.clone(),
        call_id: None,
        prompt: "Which one?".to_owned(),
        choices: choices.iter().map(|choice| (*choice).to_owned()).collect(),
        default,
        response_url: ANSWER_URL.to_owned(),
    };
    world
        .done(&world.message(&InputMessage::plain(thread(), InputContent::UserChoiceRequired(choice))))
        .await;
}

async fn ask_consent(world: &World, call: &CallId) {
    let oauth = OAuthRequired { id: call.clone(), call_id: None, auth_url: AUTH_URL.to_owned() };
    world.done(&world.message(&InputMessage::plain(thread(), InputContent::OAuthRequired(oauth)))).await;
}

pub fn chosen(interrupt: &str, selected: Value) -> ResumeAnswer {
    let payload = Some(json!({ "selected": selected }));
    ResumeAnswer { interrupt: interrupt.to_owned(), resolved: true, payload }
}

pub fn given_up(interrupt: &str) -> ResumeAnswer {
    ResumeAnswer { interrupt: interrupt.to_owned(), resolved: false, payload: None }
}

pub async fn interrupt(world: &World, run: &str) -> Interrupt {
    match end(world, run).await {
        End::Interrupted { interrupts } if interrupts.len() == 1 => interrupts[0].clone(),
        other => panic!("{other:?}"),
    }
}

/// A run that waits for the answer to `echo`'s question.
async fn asked(choices: &[&str], default: usize) -> (World, CallId) {
    let world = world();
    run(&world, "r1", &[user("u1", r#"look echo {"k":1}"#)]).await;
    let call = world.pending().await.remove(0);
    ask(&world, &call, choices, default).await;
    (world, call)
}

fn answered(world: &World) -> Vec<(String, CallId, usize)> {
    world.tools.answered.lock().unwrap().clone()
}

#[tokio::test]
async fn h9_a_question_of_a_tool_pauses_the_run_and_its_answer_goes_to_the_tool_once() {
    let (world, call) = asked(&["Drop", "Keep", "Keep"], 1).await;
    let told = interrupt(&world, "r1").await;
    assert_eq!(
        serde_json::to_value(&told).unwrap(),
        json!({
            "id": call, "reason": "input_required", "message": "Which one?", "toolCallId": call,
            "responseSchema": {
                "type": "object",
                "properties": {
                    "selected": { "type": "string", "enum": ["Drop", "Keep", "Keep (2)"], "default": "Keep" }
                },
                "required": ["selected"],
            },
        })
    );
    let id = call.as_str();
    let bare = ResumeAnswer { payload: None, ..chosen(id, json!(0)) };
    for (name, answer) in
        [("bare", bare), ("other", chosen(id, json!("Nope"))), ("index", chosen(id, json!(1)))]
    {
        resume(&world, name, vec![answer], &[user("u1", "")]).await;
        assert_eq!(code(&world, name).await, "INVALID_PAYLOAD", "{name}");
    }
    assert_eq!(answered(&world), [], "nothing has changed");
    let good = || vec![chosen(id, json!("Keep (2)"))];
    resume(&world, "r2", good(), &[user("u1", "")]).await;
    let posted = [(ANSWER_URL.to_owned(), call.clone(), 2)];
    assert_eq!((answered(&world), world.tools.calls().len()), (posted.to_vec(), 1));
    assert_eq!(row(&world, "r2").await.state, RunState::Waiting, "the tool goes on");
    // The same answer while the tool works: who asks now is shown what comes of it.
    resume(&world, "r3", good(), &[user("u1", "")]).await;
    assert_eq!((end(&world, "r2").await, row(&world, "r3").await.state), (End::Finished, RunState::Waiting));
    world.done(&world.result(&call, "kept")).await;
    assert_eq!(shown(&world, "r3").await, ["result kept", "text i0-5 it is kept"]);
    // And once it is done; another answer is not what was said.
    resume(&world, "r4", good(), &[user("u1", "")]).await;
    assert_eq!(end(&world, "r4").await, End::Unchanged);
    resume(&world, "r5", vec![chosen(id, json!("Drop"))], &[user("u1", "")]).await;
    assert_eq!(code(&world, "r5").await, "UNKNOWN_INTERRUPT_ID");
    assert_eq!((answered(&world), world.tools.calls().len()), (posted.to_vec(), 1));
}

#[tokio::test]
async fn h9_a_question_that_is_given_up_is_the_default_and_who_steers_away_interrupts_the_call() {
    let (world, call) = asked(&["Drop", "Keep"], 1).await;
    resume(&world, "r2", vec![given_up(call.as_str())], &[user("u1", "")]).await;
    assert_eq!(answered(&world), [(ANSWER_URL.to_owned(), call.clone(), 1)]);
    world.done(&world.result(&call, "kept")).await;
    assert_eq!(end(&world, "r2").await, End::Finished);
    let (world, call) = asked(&["Drop", "Keep"], 1).await;
    let away = [user("u1", ""), assistant("i0-2"), user("u2", "say bravo")];
    resume(&world, "r2", vec![given_up(call.as_str())], &away).await;
    assert_eq!(world.story().await[3..], ["interrupt", "user: say bravo", "assistant: bravo"]);
    assert_eq!((answered(&world).len(), end(&world, "r2").await), (1, End::Finished));
    assert_eq!(world.tools.cancelled.lock().unwrap()[..], [call]);
}

#[tokio::test]
async fn h9_a_message_an_edit_and_a_reload_are_refused_while_a_question_is_open() {
    let (world, call) = asked(&["Drop", "Keep"], 1).await;
    let told = world.story().await;
    let message = [user("u1", ""), assistant("i0-2"), user("u2", "say x")];
    for (name, records) in [
        ("message", &message[..]),
        ("edit", &[user("u9", "say x")]),
        ("reload", &[user("u1", "")]),
        ("nothing", &message[..2]),
    ] {
        run(&world, name, records).await;
        assert_eq!(code(&world, name).await, "PENDING_INTERRUPTS", "{name}");
    }
    assert_eq!((world.story().await, answered(&world)), (told, vec![]));
    resume(&world, "r2", vec![chosen(call.as_str(), json!("Keep"))], &[user("u1", "")]).await;
    assert_eq!(answered(&world).len(), 1, "a good one all the same");
}

#[tokio::test]
async fn h9_a_run_with_a_call_at_work_pauses_when_nothing_but_questions_is_open() {
    let world = world();
    run(&world, "r1", &[user("u1", r#"both echo {"k":1} other {"k":2}"#)]).await;
    let calls = world.pending().await;
    ask(&world, &calls[0], &["a", "b"], 0).await;
    assert_eq!(row(&world, "r1").await.state, RunState::Waiting, "the other one works");
    world.done(&world.result(&calls[1], "2")).await;
    assert_eq!(interrupt(&world, "r1").await.id, calls[0].as_str());
    resume(&world, "r2", vec![chosen(calls[0].as_str(), json!("b"))], &[user("u1", "")]).await;
    world.done(&world.result(&calls[0], "1")).await;
    assert_eq!(shown(&world, "r2").await[..2], ["result 1", "text i0-6 result: 1, 2"]);
    assert_eq!(end(&world, "r2").await, End::Finished);
}

#[tokio::test]
async fn h9_a_client_that_was_told_of_no_question_goes_on_as_from_any_call() {
    let world = world();
    run(&world, "r1", &[user("u1", r#"both echo {"k":1} other {"k":2}"#)]).await;
    let calls = world.pending().await;
    ask(&world, &calls[0], &["a", "b"], 1).await;
    // The run has not ended: its client knows of a call at work, and leaves it.
    run(&world, "r2", &[user("u1", ""), assistant("i0-2"), user("u2", "say alpha")]).await;
    assert_eq!(code(&world, "r1").await, "abort");
    assert_eq!(world.story().await[3..], ["interrupt", "interrupt", "user: say alpha", "assistant: alpha"]);
    assert_eq!(answered(&world), [(ANSWER_URL.to_owned(), calls[0].clone(), 1)], "it is told the default");
}

#[tokio::test]
async fn h9_a_call_that_waits_for_its_turn_behind_one_that_asks_does_not_hold_up_the_pause() {
    let world = held(Hold::Turn).await;
    run(&world, "r1", &[user("u1", r#"both echo {"k":1} other {"k":2}"#)]).await;
    let first = world.tools.calls().remove(0);
    ask(&world, &first, &["a"], 0).await;
    assert_eq!(interrupt(&world, "r1").await.id, first.as_str());
    resume(&world, "r2", vec![chosen(first.as_str(), json!("a"))], &[user("u1", "")]).await;
    for _ in 0..2 {
        world.done(&world.result(&world.tools.calls().pop().unwrap(), "ok")).await;
    }
    assert_eq!((end(&world, "r2").await, world.tools.calls().len()), (End::Finished, 2));
}

#[tokio::test]
async fn h9_answers_come_together_with_what_the_clients_own_tools_have_brought() {
    let world = world();
    run(&world, "r1", &[user("u1", r#"both echo {"k":1} cl_where {"q":"x"}"#)]).await;
    let calls = world.pending().await;
    ask(&world, &calls[0], &["a"], 0).await;
    assert_eq!(interrupt(&world, "r1").await.id, calls[0].as_str());
    let given = RunRecord::Tool { call: calls[1].as_str().into(), text: "here".into(), failed: false };
    // A result that its client made up for a call of a server is none.
    let forged = RunRecord::Tool { call: calls[0].as_str().into(), text: "forged".into(), failed: false };
    let answer = vec![chosen(calls[0].as_str(), json!("a"))];
    resume(&world, "r2", answer, &[user("u1", ""), assistant("i0-2"), forged, given]).await;
    world.done(&world.result(&calls[0], "there")).await;
    assert_eq!(world.story().await[3..], ["result: there", "result: here", "assistant: result: there, here"]);
    assert_eq!(end(&world, "r2").await, End::Finished);
}

#[tokio::test]
async fn h9_the_same_answers_at_once_run_the_tool_once_and_both_streams_end() {
    let world = guarded().await;
    run(&world, "r1", &[user("u1", r#"look echo {"k":1}"#)]).await;
    let asked = interrupts(&world, "r1").await.remove(0);
    let mut batch = Vec::new();
    for name in ["r2", "r3"] {
        world.store.put_run(&thread(), &RunRow::queued(name, "{}", FOR_EVER), NOW_MS).await.unwrap();
        let request = RunRequest {
            run: name.to_owned(),
            records: vec![user("u1", "")],
            append: false,
            resume: Some(vec![approved(&asked, true)]),
            state: None,
        };
        batch.push(world.message(&InputMessage::plain(thread(), InputContent::Run(request))));
    }
    assert!(world.deliver(&batch).await.is_empty());
    let call = world.tools.calls().remove(0);
    world.done(&world.result(&call, "1")).await;
    assert_eq!((end(&world, "r2").await, end(&world, "r3").await), (End::Finished, End::Finished));
    assert_eq!((world.tools.calls().len(), world.pending().await), (1, vec![]));
    assert_eq!(shown(&world, "r3").await, ["result 1", "text i0-5 it is 1"]);
}

#[tokio::test]
async fn h9_a_step_behind_an_answered_one_pauses_again() {
    let world = guarded().await;
    run(&world, "r1", &[user("u1", r#"look echo {"k":1}"#)]).await;
    let permission = interrupts(&world, "r1").await.remove(0);
    resume(&world, "r2", vec![approved(&permission, true)], &[user("u1", "")]).await;
    let call = world.tools.calls().remove(0);
    ask(&world, &call, &["a", "b"], 0).await;
    assert_eq!(interrupt(&world, "r2").await.id, call.as_str());
    // The first answer again, from a client that has lost the end of that run: it is told what is open now.
    resume(&world, "r3", vec![approved(&permission, true)], &[user("u1", "")]).await;
    assert_eq!(interrupt(&world, "r3").await.id, call.as_str());
    resume(&world, "r4", vec![approved(&permission, true), chosen(call.as_str(), json!("a"))], &[]).await;
    assert_eq!(
        code(&world, "r4").await,
        "UNKNOWN_INTERRUPT_ID",
        "one that is over is not among the open ones"
    );
    resume(&world, "r5", vec![chosen(call.as_str(), json!("a"))], &[user("u1", "")]).await;
    world.done(&world.result(&call, "1")).await;
    assert_eq!((end(&world, "r5").await, answered(&world).len()), (End::Finished, 1));
}

#[tokio::test]
async fn h9_consent_at_an_address_pauses_the_run_and_the_address_is_kept_no_longer_than_it_is_asked() {
    let world = world();
    run(&world, "r1", &[user("u1", r#"look echo {"k":1}"#)]).await;
    let call = world.pending().await.remove(0);
    ask_consent(&world, &call).await;
    let told = interrupt(&world, "r1").await;
    assert_eq!((told.reason.as_str(), told.tool_call_id.as_deref()), ("dormouse:oauth", Some(call.as_str())));
    assert!(!row(&world, "r1").await.end.unwrap().contains("idp.example"), "not with how the run ended");
    let kept = world.store.open_choices(&thread()).await.unwrap();
    assert!(kept.len() == 1 && kept[0].body.contains(AUTH_URL), "{kept:?}");
    run(&world, "said", &[user("u1", ""), assistant("i0-2"), user("u2", "say x")]).await;
    assert_eq!(code(&world, "said").await, "PENDING_INTERRUPTS");
    let given = ResumeAnswer { resolved: true, ..given_up(&told.id) };
    resume(&world, "r2", vec![given.clone()], &[user("u1", "")]).await;
    assert_eq!(row(&world, "r2").await.state, RunState::Waiting);
    world.done(&world.result(&call, "1")).await;
    assert_eq!(shown(&world, "r2").await, ["result 1", "text i0-5 it is 1"]);
    assert_eq!((world.store.open_choices(&thread()).await.unwrap(), world.tools.calls().len()), (vec![], 1));
    // The tool does not wait for the client: whoever says so late is shown what came of it.
    run(&world, "r3", &[user("u1", ""), assistant("i0-2"), assistant("i0-5"), user("u2", "look echo {}")])
        .await;
    let call = world.pending().await.remove(0);
    ask_consent(&world, &call).await;
    let told = interrupt(&world, "r3").await;
    world.done(&world.result(&call, "2")).await;
    assert_eq!(world.store.open_choices(&thread()).await.unwrap(), []);
    let given = ResumeAnswer { resolved: true, ..given_up(&told.id) };
    resume(&world, "r4", vec![given], &[user("u1", ""), user("u2", "")]).await;
    assert_eq!(end(&world, "r4").await, End::Unchanged);
}

#[tokio::test]
async fn h9_consent_that_is_not_given_ends_its_call_and_the_server_is_told() {
    let world = world();
    run(&world, "r1", &[user("u1", r#"look echo {"k":1}"#)]).await;
    let call = world.pending().await.remove(0);
    ask_consent(&world, &call).await;
    let told = interrupt(&world, "r1").await;
    resume(&world, "r2", vec![given_up(&told.id)], &[user("u1", "")]).await;
    let story = world.story().await;
    assert!(story[3].contains("did not give the consent that echo asked for"), "{story:?}");
    assert_eq!((end(&world, "r2").await, world.pending().await), (End::Finished, vec![]));
    assert_eq!(*world.tools.cancelled.lock().unwrap(), std::slice::from_ref(&call));
    world.done(&world.result(&call, "late")).await;
    assert!(world.story().await.last().unwrap().contains("late result of echo"), "a note, as of any call");
}

/// A call that asks, answered, with a slice killed on the way: the history, what the tool heard, how the run ended.
async fn killed(point: Option<Point>) -> (Vec<String>, Vec<(String, CallId, usize)>, usize, End) {
    let mortal = Mortal::new().await;
    let world = &mortal.world;
    run(world, "r1", &[user("u1", r#"look echo {"k":1}"#)]).await;
    let call = world.pending().await.remove(0);
    ask(world, &call, &["a", "b"], 0).await;
    world.store.put_run(&thread(), &RunRow::queued("r2", "{}", FOR_EVER), NOW_MS).await.unwrap();
    let request = RunRequest {
        run: "r2".to_owned(),
        records: vec![user("u1", "")],
        append: false,
        resume: Some(vec![chosen(call.as_str(), json!("b"))]),
        state: None,
    };
    let delivery = world.message(&InputMessage::plain(thread(), InputContent::Run(request)));
    match point {
        Some(point) => {
            mortal.killed(point, &delivery).await;
            world.done(&delivery.again()).await;
        }
        None => world.done(&delivery).await,
    }
    world.done(&world.result(&call, "1")).await;
    let mut heard = answered(world);
    heard.dedup();
    (world.story().await, heard, crate::crash::distinct(&world.tools.calls()).len(), end(world, "r2").await)
}

#[tokio::test]
async fn i4_h9_an_answer_gets_to_the_tool_wherever_a_slice_dies() {
    let expected = killed(None).await;
    assert_eq!((expected.1.len(), expected.2, &expected.3), (1, 1, &End::Finished));
    for point in
        [Point::Load, Point::CommitAsked(1), Point::CommitWritten(1), Point::OutputAsked, Point::OutputSent]
    {
        assert_eq!(killed(Some(point)).await, expected, "{point:?}");
    }
}

/// Answers whatever is asked with a plain yes.
fn granted(interrupt: &str) -> ResumeAnswer {
    ResumeAnswer { resolved: true, ..given_up(interrupt) }
}

#[tokio::test]
async fn h9_more_questions_than_a_commit_ends_are_asked_one_batch_after_the_other() {
    let world = World::new(ScriptedModel::from_fn(|request| {
        match request.messages.iter().any(|message| matches!(message, RequestMessage::ToolResults(_))) {
            true => vec![ScriptedEvent::Text("done".into()), ScriptedEvent::End("end_turn".into())],
            false => (0..12).map(|n| ScriptedEvent::call(format!("p{n}"), "echo", "{}")).collect(),
        }
    }));
    run(&world, "r1", &[user("u1", "go")]).await;
    let calls = world.pending().await;
    for call in &calls {
        ask_consent(&world, call).await;
    }
    let first = interrupts(&world, "r1").await;
    assert_eq!((calls.len(), first.len()), (12, 10));
    resume(&world, "r2", first.iter().map(|id| granted(id)).collect(), &[user("u1", "")]).await;
    assert_eq!(world.store.open_choices(&thread()).await.unwrap().len(), 2);
    for call in calls.iter().filter(|call| first.contains(&call.authorization().as_str().to_owned())) {
        world.done(&world.result(call, "1")).await;
    }
    let rest = interrupts(&world, "r2").await;
    assert_eq!(rest.len(), 2);
    // The first batch once more changes nothing.
    resume(&world, "r3", first.iter().map(|id| granted(id)).collect(), &[user("u1", "")]).await;
    assert_eq!(interrupts(&world, "r3").await, rest);
    // Nor is it a way around the others.
    let says = [user("u1", ""), assistant("i0-2"), user("u2", "go on")];
    resume(&world, "said", first.iter().map(|id| granted(id)).collect(), &says).await;
    assert_eq!(code(&world, "said").await, "UNKNOWN_INTERRUPT_ID");
    resume(&world, "r4", rest.iter().map(|id| granted(id)).collect(), &[user("u1", "")]).await;
    for call in world.pending().await {
        world.done(&world.result(&call, "1")).await;
    }
    assert_eq!(end(&world, "r4").await, End::Finished);
    assert_eq!(world.story().await.last().unwrap(), "assistant: done");
}

#[tokio::test]
async fn h9_consent_that_the_tool_has_used_already_spoils_no_other_answer() {
    let mut world = world();
    guard(&mut world, "echo", Terms::default()).await;
    run(&world, "r1", &[user("u1", r#"both echo {"k":1} other {"k":2}"#)]).await;
    let pending = world.meta().await.pending;
    let other = pending.iter().find(|call| call.name == "other").unwrap().call.clone();
    ask_consent(&world, &other).await;
    let asked = interrupts(&world, "r1").await;
    assert_eq!(asked.len(), 2, "{asked:?}");
    // Its client is told of no result: it answers all that it was asked.
    world.done(&world.result(&other, "2")).await;
    let answers = asked.iter().map(|id| match id.ends_with("oauth") {
        true => granted(id),
        false => approved(id, true),
    });
    resume(&world, "r2", answers.collect(), &[user("u1", "")]).await;
    assert_eq!(row(&world, "r2").await.state, RunState::Waiting, "{:?}", row(&world, "r2").await.end);
    let echo = world.pending().await.remove(0);
    assert!(world.tools.calls().contains(&echo), "it is out");
    world.done(&world.result(&echo, "1")).await;
    assert_eq!(end(&world, "r2").await, End::Finished);
}

#[tokio::test]
async fn h9_a_call_that_only_waits_hides_no_question() {
    let mut world = world();
    guard(&mut world, "echo", Terms::default()).await;
    run(&world, "r1", &[user("u1", r#"both echo {"k":1} nap {}"#)]).await;
    let asked = interrupts(&world, "r1").await;
    resume(&world, "r2", vec![approved(&asked[0], true)], &[user("u1", "")]).await;
    assert_eq!(row(&world, "r2").await.state, RunState::Waiting);
}

#[tokio::test]
async fn what_was_asked_is_redacted_where_the_run_ended_with_it() {
    let world = guarded().await;
    run(&world, "r1", &[user("u1", r#"look echo {"k":"hunter-2"}"#)]).await;
    assert!(row(&world, "r1").await.end.unwrap().contains("hunter-2"));
    redact(&world.store, &thread(), &Redaction::Text("hunter-2".into())).await.unwrap();
    let told = interrupt(&world, "r1").await;
    assert!(told.message.unwrap().contains("[redacted]"), "it is still an end");
    assert!(!format!("{:?}", world.meta().await).contains("hunter-2"));
}

#[tokio::test]
async fn h9_what_takes_the_place_of_a_moot_question_is_asked_next() {
    let world = World::new(ScriptedModel::from_fn(|request| {
        match request.messages.iter().any(|message| matches!(message, RequestMessage::ToolResults(_))) {
            true => vec![ScriptedEvent::Text("done".into()), ScriptedEvent::End("end_turn".into())],
            false => (0..11).map(|n| ScriptedEvent::call(format!("p{n}"), "echo", "{}")).collect(),
        }
    }));
    run(&world, "r1", &[user("u1", "go")]).await;
    let calls = world.pending().await;
    for call in &calls {
        ask_consent(&world, call).await;
    }
    let told = interrupts(&world, "r1").await;
    world.done(&world.result(&calls[0], "1")).await;
    resume(&world, "r2", told.iter().map(|id| granted(id)).collect(), &[user("u1", "")]).await;
    assert_eq!(row(&world, "r2").await.state, RunState::Waiting, "nine were answered and work");
    for call in &calls[1..10] {
        world.done(&world.result(call, "1")).await;
    }
    assert_eq!(interrupts(&world, "r2").await, [calls[10].authorization().as_str()]);
}
