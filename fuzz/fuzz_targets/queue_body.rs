//! A body of the input queue, as any producer may write it, delivered to a thread that waits for two calls.
//!
//! It is done, kept as a dead letter or handed back, by the reason that its parser gives; what was read survives
//! being written and read again; and its thread takes the next message (I1, I7, I9).
#![no_main]

#[path = "../../tests/support/world.rs"]
mod world;

use dormouse::history::request::{ModelRequest, RequestMessage};
use dormouse::message::{ContentPart, InputContent, InputError, InputMessage, ThreadId};
use dormouse::model::scripted::{ScriptedEvent, ScriptedModel};
use dormouse_fuzz::judge;
use libfuzzer_sys::fuzz_target;
use world::{Delivery, THREAD, World};

/// The text on which the model makes its calls.
const START: &str = "start";
/// What it says to everything else.
const ANSWER: &str = "ok";

fuzz_target!(|body: &[u8]| {
    if let Ok(message) = InputMessage::parse(body) {
        survives(&message);
    }
    // A body of SQS is text.
    let body = String::from_utf8_lossy(body);
    let time = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    time.expect("a runtime").block_on(deliver(&body));
});

fn survives(message: &InputMessage) {
    let body = message.to_body().expect("what was read can be written");
    let allowed = |c| matches!(c, '\t' | '\n' | '\r' | '\u{20}'..='\u{FFFD}' | '\u{10000}'..);
    assert!(body.chars().all(allowed), "outside SQS's character set: {body:?}");
    assert_eq!(&InputMessage::parse(body.as_bytes()).expect("what was written can be read"), message);
}

async fn deliver(body: &str) {
    let world = World::new(ScriptedModel::from_fn(respond));
    world.done(&world.user(START)).await;
    let parsed = InputMessage::parse(body.as_bytes());
    let thread = parsed.as_ref().map_or(ThreadId::from(THREAD), |message| message.group_id.clone());
    let delivery = Delivery {
        message_id: "m-7".to_owned(),
        group: thread.as_str().to_owned(),
        dedup: "d-7".to_owned(),
        receive_count: 1,
        body: body.to_owned(),
    };
    let handed_back = world.deliver(&[delivery]).await.len();
    let kept = world.dead.kept.lock().expect("a lock").len();
    match &parsed {
        Err(InputError::NewerSchema { .. }) => assert_eq!((handed_back, kept), (1, 0)),
        Err(InputError::Malformed(_) | InputError::UnknownContent(_)) => {
            assert_eq!((handed_back, kept), (0, 1))
        }
        // Of a body that nobody has stored.
        Ok(InputMessage { content: InputContent::ClaimCheck(_), .. }) => {
            assert_eq!((handed_back, kept), (0, 1))
        }
        Ok(_) => assert_eq!(handed_back, 0),
    }
    world.settle().await;
    for (thread, must_answer) in [(ThreadId::from(THREAD), true), (thread, false)] {
        let before = world.output.sent.lock().expect("a lock").len();
        world.done(&world.message(&InputMessage::user_text(thread.clone(), "go on"))).await;
        let sent = world.output.sent.lock().expect("a lock");
        let new: Vec<_> = sent[before..].iter().filter(|message| message.thread_id == thread).collect();
        assert!(!new.is_empty(), "thread {thread} says nothing more");
        assert!(!must_answer || new.iter().any(|message| message.text == ANSWER), "{new:?}");
    }
}

fn respond(request: &ModelRequest) -> Vec<ScriptedEvent> {
    judge(request);
    let starts = matches!(request.messages.as_slice(), [RequestMessage::User(parts)] if parts[..] == [ContentPart::text(START)]);
    match starts {
        true => vec![
            ScriptedEvent::call("p", "echo", "{}"),
            ScriptedEvent::call("p", "nap", "{}"),
            ScriptedEvent::End("tool_use".to_owned()),
        ],
        false => vec![ScriptedEvent::Text(ANSWER.to_owned()), ScriptedEvent::End("end_turn".to_owned())],
    }
}
