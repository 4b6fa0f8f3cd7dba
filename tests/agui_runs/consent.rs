//! The user's word on whether a call may run: with other arguments than the model's, and in time (H9).

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use dormouse::message::{CallId, DedupId, ItemBody, ItemId, Resend};
use dormouse::slice::Clock;
use dormouse::store::{Commit, Due, Expect, Hold, Terms};
use dormouse::thread::{Redaction, redact};
use serde_json::json;

use super::edges::{code, guard, guarded, hold_on, interrupts, resume};
use super::interrupts::{ask, chosen, given_up, interrupt};
use super::*;
use crate::crash::{Mortal, Point};
use crate::timers::Timers;

const EDITABLE: Terms = Terms { editable: true, consent_ms: None, result_ms: None, due: None };
const MINUTE: i64 = 60_000;

async fn editable(hold: Hold) -> World {
    let mut world = world();
    hold_on(&mut world, hold, EDITABLE).await;
    world
}

fn said(interrupt: &str, payload: Value) -> ResumeAnswer {
    ResumeAnswer { interrupt: interrupt.to_owned(), resolved: true, payload: Some(payload) }
}

fn edited(interrupt: &str, arguments: Value) -> ResumeAnswer {
    said(interrupt, json!({ "approved": true, "editedArgs": arguments }))
}

/// What went out, each once however often it did.
fn sent(world: &World) -> Vec<(String, String)> {
    let mut sent: Vec<_> =
        world.tools.dispatched().into_iter().map(|call| (call.name, call.arguments)).collect();
    sent.dedup();
    sent
}

#[tokio::test]
async fn h9_edited_arguments_are_offered_only_where_the_server_takes_them() {
    for (world, offered) in [(guarded().await, None), (editable(Hold::Consent).await, Some("object"))] {
        run(&world, "r1", &[user("u1", r#"look echo {"text":"x"}"#)]).await;
        let schema = interrupt(&world, "r1").await.response_schema.unwrap();
        let mut expected = json!({
            "type": "object",
            "properties": { "approved": { "type": "boolean" }, "reason": { "type": "string" } },
            "required": ["approved"],
        });
        if let Some(kind) = offered {
            expected["properties"]["editedArgs"] = json!({ "type": kind });
        }
        assert_eq!(schema, expected);
    }
}

#[tokio::test]
async fn h9_edited_arguments_replace_the_models_as_a_whole_and_the_model_is_told() {
    let world = editable(Hold::Consent).await;
    run(&world, "r1", &[user("u1", r#"look echo {"text":"x","more":1}"#)]).await;
    let asked = interrupts(&world, "r1").await.remove(0);
    let told = world.story().await;
    for (name, arguments, why) in [
        ("list", json!([1]), "no object"),
        ("misfit", json!({ "text": 7 }), "/text"),
        ("large", json!({ "text": "x".repeat(70_000) }), "above"),
    ] {
        resume(&world, name, vec![edited(&asked, arguments)], &[user("u1", "")]).await;
        let End::Failed { code, message } = end(&world, name).await else { panic!() };
        assert!(code == "INVALID_PAYLOAD" && message.contains(why), "{name}: {code} {message}");
    }
    assert_eq!((world.story().await, sent(&world)), (told.clone(), vec![]), "nothing has changed");
    resume(&world, "r2", vec![edited(&asked, json!({ "text": "y" }))], &[user("u1", "")]).await;
    let out = [("echo".to_owned(), r#"{"text":"y"}"#.to_owned())];
    assert_eq!(sent(&world), out);
    let call = world.pending().await.remove(0);
    let again = InputMessage::plain(thread(), InputContent::Resend(Resend { id: call.clone() }));
    world.done(&world.message(&again)).await;
    assert_eq!((sent(&world), world.tools.calls().len()), (out.to_vec(), 2), "sent by hand once more");
    world.done(&world.result(&call, "done")).await;
    let story = world.story().await;
    assert_eq!(story[..3], told, "what the model has said stays as it is");
    assert!(story[3].contains("other arguments") && story[3].ends_with(r#"{"text":"y"}]"#), "{}", story[3]);
    let request = format!("{:?}", world.model.requests().last().unwrap());
    let (result, note) = (request.find("done").unwrap(), request.find("with other arguments").unwrap());
    assert!(result < note, "behind its result, so that every provider takes it: {request}");
    assert_eq!(shown(&world, "r2").await[0], "result done", "the tool's own, as it came");
}

#[tokio::test]
async fn h9_a_refusal_says_why_and_what_it_has_edited_does_not_count() {
    let world = editable(Hold::Consent).await;
    run(&world, "r1", &[user("u1", r#"call echo {"text":"x"}"#)]).await;
    let asked = interrupts(&world, "r1").await.remove(0);
    let payload = json!({ "approved": false, "reason": "not today", "editedArgs": { "text": 7 } });
    resume(&world, "r2", vec![said(&asked, payload)], &[user("u1", "")]).await;
    let expected =
        "result: Error: echo was not permitted by the user. It did not run. The user says: not today";
    assert_eq!((world.story().await[2].as_str(), sent(&world)), (expected, vec![]));
}

/// Two calls of a serial server are permitted at once, the second one with other arguments, and a slice is killed on the way.
async fn killed(at: usize, point: Option<Point>) -> (Vec<String>, Vec<(String, String)>) {
    let mut mortal = Mortal::new().await;
    hold_on(&mut mortal.world, Hold::ConsentThenTurn, EDITABLE).await;
    let world = &mortal.world;
    run(world, "r1", &[user("u1", r#"both echo {"text":"a"} other {"text":"b"}"#)]).await;
    let asked = interrupts(world, "r1").await;
    world.store.put_run(&thread(), &RunRow::queued("r2", "{}", FOR_EVER), NOW_MS).await.unwrap();
    let answers =
        vec![said(&asked[0], json!({ "approved": true })), edited(&asked[1], json!({ "text": "c" }))];
    let records = vec![user("u1", "")];
    let request =
        RunRequest { run: "r2".to_owned(), records, append: false, resume: Some(answers), state: None };
    for step in 0..3 {
        let delivery = match step {
            0 => world.message(&InputMessage::plain(thread(), InputContent::Run(request.clone()))),
            _ => world.result(&world.tools.calls().pop().unwrap(), &format!("r{step}")),
        };
        match point.filter(|_| at == step) {
            Some(point) => {
                mortal.killed(point, &delivery).await;
                world.done(&delivery.again()).await;
            }
            None => world.done(&delivery).await,
        }
    }
    assert_eq!(end(world, "r2").await, End::Finished);
    (world.story().await, sent(world))
}

#[tokio::test]
async fn i4_h9_edited_arguments_go_out_wherever_a_slice_dies_also_in_their_turn() {
    let expected = killed(9, None).await;
    let out = [("echo".to_owned(), r#"{"text":"a"}"#), ("other".to_owned(), r#"{"text":"c"}"#)];
    assert_eq!(expected.1, out.map(|(name, arguments)| (name, arguments.to_owned())));
    for (at, point) in [
        (0, Point::Load),
        (0, Point::CommitAsked(1)),
        (0, Point::CommitWritten(1)),
        (0, Point::CallTaken("echo")),
        (1, Point::CommitAsked(1)),
        (1, Point::CommitWritten(1)),
        (1, Point::CallAsked("other")),
        (1, Point::CallTaken("other")),
        (2, Point::CommitAsked(1)),
    ] {
        assert_eq!(killed(at, Some(point)).await, expected, "{point:?} of step {at}");
    }
}

#[tokio::test]
async fn h9_redaction_takes_edited_arguments_too_and_the_models_own_do_not_come_back() {
    for whole in [false, true] {
        let world = editable(Hold::ConsentThenTurn).await;
        run(&world, "r1", &[user("u1", r#"both echo {"text":"a"} other {"text":"b"}"#)]).await;
        let asked = interrupts(&world, "r1").await;
        let secret = edited(&asked[1], json!({ "text": "hunter2 is it" }));
        resume(&world, "r2", vec![said(&asked[0], json!({ "approved": true })), secret], &[user("u1", "")])
            .await;
        let items = world.items().await;
        let note =
            items.iter().rfind(|item| matches!(&item.body, ItemBody::User(user) if user.edited.is_some()));
        let what = match whole {
            true => Redaction::Item(ItemId::at(dormouse::message::Epoch(0), note.unwrap().seq)),
            false => Redaction::Text("hunter2".to_owned()),
        };
        redact(&world.store, &thread(), &what).await.unwrap();
        let stored: Vec<String> = world.items().await.iter().map(|item| item.raw.to_string()).collect();
        assert!(stored.iter().all(|raw| !raw.contains("hunter2")), "{stored:?}");
        world.done(&world.result(&world.tools.calls().pop().unwrap(), "ok")).await;
        let last = sent(&world).pop().unwrap().1;
        assert_eq!(last, if whole { "{}" } else { r#"{"text":"[redacted] is it"}"# });
    }
}

/// A clock that a test sets.
struct At(AtomicI64);

impl Clock for At {
    fn now_ms(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A world whose questions and calls have a minute.
async fn limited() -> (World, Arc<Timers>, Arc<At>) {
    let mut world = world();
    let terms = Terms { consent_ms: Some(MINUTE), result_ms: Some(2 * MINUTE), ..Terms::default() };
    let timers = hold_on(&mut world, Hold::Consent, terms).await;
    let clock = Arc::new(At(AtomicI64::new(NOW_MS)));
    world.runtime.clock = clock.clone();
    (world, timers, clock)
}

fn fired(world: &World, timers: &Timers, at: usize) -> Delivery {
    let (_, message, dedup) = timers.all()[at].clone();
    Delivery { dedup: dedup.as_str().to_owned(), ..world.message(&message) }
}

fn iso(ms: i64) -> Option<String> {
    Some(jiff::Timestamp::from_millisecond(ms).unwrap().to_string())
}

#[tokio::test]
async fn h9_a_question_has_its_time_and_the_thread_goes_on_when_that_is_up() {
    let (world, timers, clock) = limited().await;
    run(&world, "r1", &[user("u1", r#"both echo {"k":1} other {"k":2}"#)]).await;
    let End::Interrupted { interrupts: told } = end(&world, "r1").await else { panic!() };
    assert!(told.iter().all(|told| told.expires_at == iso(NOW_MS + MINUTE)), "{told:?}");
    assert_eq!(timers.all().iter().map(|timer| timer.0).collect::<Vec<_>>(), [NOW_MS + MINUTE; 2]);
    clock.0.store(NOW_MS + MINUTE, Ordering::Relaxed);
    let (good, bad) = (said(&told[0].id, json!({ "approved": true })), said(&told[1].id, json!({})));
    // What is missing is said before what is too late, and that before what is no answer; given up is too late as well.
    for (name, answers, expected) in [
        ("one", vec![good.clone()], "PARTIAL_RESUME"),
        ("late", vec![good.clone(), bad], "INTERRUPT_EXPIRED"),
        ("away", vec![given_up(&told[0].id), given_up(&told[1].id)], "INTERRUPT_EXPIRED"),
    ] {
        resume(&world, name, answers, &[user("u1", "")]).await;
        assert_eq!(code(&world, name).await, expected, "{name}");
    }
    assert_eq!((world.story().await.len(), sent(&world)), (3, vec![]), "nothing has changed");
    for at in [0, 1] {
        world.done(&fired(&world, &timers, at)).await;
        world.done(&Delivery { message_id: format!("m-again-{at}"), ..fired(&world, &timers, at) }).await;
    }
    let none = |tool: &str| format!("result: Error: nobody has permitted {tool} in time. It did not run.");
    assert_eq!(world.story().await[3..5], [none("echo"), none("other")]);
    assert!(world.story().await[5].starts_with("assistant: "), "the model goes on");
    resume(&world, "after", vec![good], &[user("u1", "")]).await;
    assert_eq!(code(&world, "after").await, "INTERRUPT_EXPIRED", "it was not taken");
    assert_eq!((sent(&world), world.pending().await), (vec![], vec![]));
}

#[tokio::test]
async fn h9_a_timer_of_a_question_that_has_its_answer_is_nothing_to_anybody() {
    let (world, timers, clock) = limited().await;
    run(&world, "r1", &[user("u1", r#"look echo {"k":1}"#)]).await;
    let told = interrupt(&world, "r1").await;
    clock.0.store(NOW_MS + MINUTE - 1, Ordering::Relaxed);
    resume(&world, "r2", vec![said(&told.id, json!({ "approved": true }))], &[user("u1", "")]).await;
    let (story, output) = (world.story().await, world.output.texts());
    world.done(&fired(&world, &timers, 0)).await;
    assert_eq!((world.story().await, world.output.texts()), (story, output));
    // What it asks once it is out has the time of its result.
    let call = world.tools.calls().remove(0);
    ask(&world, &call, &["a", "b"], 0).await;
    let told = interrupt(&world, "r2").await;
    let due = NOW_MS + 3 * MINUTE - 1;
    assert_eq!(told.expires_at, iso(due));
    clock.0.store(due, Ordering::Relaxed);
    let late = || vec![chosen(call.as_str(), json!("a"))];
    resume(&world, "late", late(), &[user("u1", "")]).await;
    assert_eq!(code(&world, "late").await, "INTERRUPT_EXPIRED");
    let dedup = DedupId::derive("timed-out", &[THREAD, call.as_str()]);
    world.done(&Delivery { dedup: dedup.as_str().to_owned(), ..world.result(&call, "too late") }).await;
    assert!(world.story().await.last().unwrap().starts_with("assistant: "), "{:?}", world.story().await);
    resume(&world, "after", late(), &[user("u1", "")]).await;
    assert_eq!(code(&world, "after").await, "INTERRUPT_EXPIRED");
    assert!(world.tools.answered.lock().unwrap().is_empty());
}

#[tokio::test]
async fn h9_an_expiry_that_cannot_be_read_is_an_error_and_the_thread_can_be_spoken_to() {
    let (world, _, _) = limited().await;
    run(&world, "r1", &[user("u1", r#"look echo {"k":1}"#)]).await;
    let told = interrupt(&world, "r1").await;
    let mut meta = world.meta().await;
    let expect = Expect::At { epoch: meta.epoch, head: meta.head, token: meta.token.clone() };
    meta.pending[0].terms = serde_json::from_value(json!({ "due": "tomorrow" })).unwrap();
    assert!(matches!(meta.pending[0].terms.due, Some(Due::Unreadable(_))));
    meta.token = "x".to_owned();
    world.store.commit(Commit::new(expect, meta, NOW_MS)).await.unwrap();
    let answer = vec![said(&told.id, json!({ "approved": true }))];
    resume(&world, "r2", answer, &[user("u1", "")]).await;
    assert_eq!((code(&world, "r2").await.as_str(), sent(&world)), ("INTERRUPT_EXPIRED", vec![]));
    world.done(&world.user("say alpha")).await;
    assert_eq!(world.story().await.last().unwrap(), "assistant: alpha");
}

#[tokio::test]
async fn h9_without_a_limit_nothing_expires_and_nothing_is_stored_for_it() {
    let world = guarded().await;
    run(&world, "r1", &[user("u1", r#"look echo {"k":1}"#)]).await;
    assert_eq!(interrupt(&world, "r1").await.expires_at, None);
    let stored = serde_json::to_value(&world.meta().await.pending[0]).unwrap();
    assert_eq!(stored.get("terms"), None, "{stored}");
    let call = CallId::new(stored["call"].as_str().unwrap());
    assert_eq!(CallId::of_choice(&call.permission()), call);
}

#[tokio::test(start_paused = true)]
async fn h9_who_gives_up_on_an_input_ends_no_question_and_the_next_slice_sets_its_time() {
    let mut mortal = Mortal::new().await;
    let terms = Terms { consent_ms: Some(MINUTE), ..Terms::default() };
    let timers = guard(&mut mortal.world, "echo", terms).await;
    let world = &mortal.world;
    let mut delivery = post(world, "r1", &[user("u1", r#"both echo {"k":1} pay {}"#)], FOR_EVER).await;
    mortal.killed(Point::Ran("pay"), &delivery).await;
    // What is asked is committed on the way to a synchronous call that nobody dares to run again.
    for _ in 0..4 {
        delivery = delivery.again();
        mortal.killed(Point::OutputAsked, &delivery).await;
    }
    world.done(&delivery.again()).await;
    let dismissals = |world: &World| {
        let sent = world.input.sent.lock().unwrap();
        sent.iter()
            .filter(|(message, _)| matches!(message.content, InputContent::UserChoiceAnswer(_)))
            .count()
    };
    assert_eq!(dismissals(world), 0, "nobody was asked for long");
    world.settle().await;
    assert_eq!(dismissals(world), 0);
    let open = world.meta().await.pending.into_iter().filter(|call| call.needs_consent()).count();
    assert_eq!((open, timers.all().len()), (1, 1), "it is open, and has its time");
}
