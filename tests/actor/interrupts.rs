//! New user text ends what runs: a response that streams, and calls that are out. What was visible stays.

use std::time::Instant;

use dormouse::agent::AgentInput;
use dormouse::history::request::RequestMessage;
use dormouse::message::{ContentPart, InputContent, ItemBody, UserChoiceRequired};
use dormouse::model::scripted::{ScriptedEvent, ScriptedModel};

use crate::resident::{
    LIMIT, actor, calls, committed, flushed, hanging, in_time, piece, snapshot_when, text, until,
};
use crate::world::World;

fn ok() -> Vec<ContentPart> {
    vec![ContentPart::text("ok")]
}

#[tokio::test]
async fn user_text_ends_a_running_response_at_once_and_what_was_visible_is_kept() {
    let world = World::new(ScriptedModel::script(vec![
        hanging(vec![piece("a long "), piece("story")]),
        text("as you like"),
    ]));
    let handle = actor(&world);
    let first = handle.push_user_and_ack("tell me");
    let second = async {
        snapshot_when(&handle, |snapshot| snapshot.partial_text() == "a long story").await;
        let started = Instant::now();
        committed(&handle, "something else").await;
        started.elapsed()
    };
    let (first, took) = tokio::join!(in_time(first), second);
    assert_eq!(
        first.unwrap(),
        dormouse::agent::WriteOutcome::Committed,
        "its text and half an answer are in"
    );
    assert!(took < LIMIT, "nobody waited for the rest of it: {took:?}");
    assert_eq!(
        world.story().await,
        ["user: tell me", "assistant: a long story", "user: something else", "assistant: as you like"]
    );
    let items = world.items().await;
    let ItemBody::Assistant(cut) = &items[1].body else { panic!("{:?}", items[1]) };
    assert_eq!(cut.stop_reason.as_deref(), Some("interrupted"));
    assert_eq!(
        world.output.texts(),
        ["a long story", "as you like"],
        "nobody is told to write again: they have"
    );
}

/// What the first response had shown when the user spoke again, and what of it is then stored.
async fn aborted_after(shown: Vec<ScriptedEvent>, visible: usize) -> (Vec<String>, World) {
    let world = World::new(ScriptedModel::script(vec![hanging(shown), text("second")]));
    let handle = actor(&world);
    handle.push_user("one").unwrap();
    until("the model is asked", || world.model.calls() == 1).await;
    snapshot_when(&handle, |snapshot| snapshot.partial.len() == visible).await;
    committed(&handle, "two").await;
    (world.story().await, world)
}

#[tokio::test]
async fn an_abort_before_any_output_keeps_the_input_and_nothing_else() {
    let (story, world) = aborted_after(vec![], 0).await;
    assert_eq!(story, ["user: one", "user: two", "assistant: second"]);
    let request = world.model.requests().pop().unwrap();
    let parts = vec![ContentPart::text("one"), ContentPart::text("two")];
    let one_message = RequestMessage::User(parts);
    assert!(request.messages.len() == 1, "neighbours are one message: {:?}", request.messages);
    assert_eq!(request.messages[0], one_message);
    assert_eq!(world.output.texts(), ["second"]);
}

#[tokio::test]
async fn an_abort_after_reasoning_keeps_the_input_and_no_reasoning_without_an_answer() {
    let (story, _) = aborted_after(vec![ScriptedEvent::Reasoning("hm".into())], 1).await;
    assert_eq!(story, ["user: one", "user: two", "assistant: second"]);
}

#[tokio::test]
async fn an_abort_after_text_keeps_the_text_and_the_reasoning_before_it() {
    let shown = vec![
        ScriptedEvent::Reasoning("hm".into()),
        ScriptedEvent::Signature("s".into()),
        piece("so far"),
        ScriptedEvent::Reasoning("and then".into()),
    ];
    let (story, world) = aborted_after(shown, 3).await;
    assert_eq!(story, ["user: one", "reasoning: hm", "assistant: so far", "user: two", "assistant: second"]);
    assert_eq!(world.output.texts(), ["so far", "second"]);
}

#[tokio::test]
async fn an_abort_inside_a_call_dispatches_nothing_and_the_model_reads_that_it_did_not_run() {
    let shown = vec![piece("let me see"), ScriptedEvent::call("p", "echo", r#"{"text":"x"}"#)];
    let world = World::new(ScriptedModel::script(vec![hanging(shown), text("second")]));
    let handle = actor(&world);
    handle.push_user("one").unwrap();
    snapshot_when(&handle, |snapshot| snapshot.partial_text() == "let me see").await;
    committed(&handle, "two").await;
    let story = world.story().await;
    assert_eq!(story[..3], ["user: one", "assistant: let me see", r#"call: echo {"text":"x"}"#]);
    assert!(story[3].starts_with("result: ") && story[3].contains("did not run"), "{story:?}");
    assert_eq!(story[4..], ["user: two", "assistant: second"]);
    assert!(world.tools.calls().is_empty(), "nothing was dispatched");
    assert!(world.pending().await.is_empty());
}

#[tokio::test]
async fn user_text_settles_calls_that_are_out_and_keeps_the_results_that_are_in() {
    for done in 0..=3 {
        let world = World::new(ScriptedModel::script(vec![
            calls(&["echo", "other", "echo"]),
            text("next"),
            text("last"),
        ]));
        let handle = actor(&world);
        committed(&handle, "go").await;
        let out = world.tools.calls();
        assert_eq!(out.len(), 3);
        for call in &out[..done] {
            handle.push(AgentInput::result(call.clone(), ok())).unwrap();
        }
        flushed(&handle).await;
        committed(&handle, "stop that").await;
        let mut settled = vec!["result: ok"; done];
        settled.resize(3, "interrupt");
        let call = |name: &str| format!(r#"call: {name} {{"text":"x"}}"#);
        let mut expected = vec!["user: go".to_owned(), call("echo"), call("other"), call("echo")];
        expected.extend(settled.into_iter().map(str::to_owned));
        if done == 3 {
            expected.push("assistant: next".to_owned());
        }
        expected.push("user: stop that".to_owned());
        expected.push(format!("assistant: {}", if done == 3 { "last" } else { "next" }));
        assert_eq!(world.story().await, expected, "{done} of 3 were done");
        assert_eq!(*world.tools.cancelled.lock().unwrap(), out[done..], "who is out is told");
        // What comes late is a note, and asks nobody.
        let asked = world.model.calls();
        for call in &out[done..] {
            committed(&handle, AgentInput::result(call.clone(), ok())).await;
        }
        assert_eq!(world.model.calls(), asked);
    }
}

#[tokio::test]
async fn a_passive_wait_is_ended_by_text_and_what_is_no_text_ends_no_response() {
    let world =
        World::new(ScriptedModel::script(vec![calls(&["nap"]), hanging(vec![piece("hm")]), text("done")]));
    let handle = actor(&world);
    committed(&handle, "sleep").await;
    handle.push_user("wake up").unwrap();
    snapshot_when(&handle, |snapshot| snapshot.partial_text() == "hm").await;
    // A result of the call that was interrupted arrives meanwhile.
    handle.push(AgentInput::result(world.tools.calls()[0].clone(), ok())).unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    let still = handle.snapshot().await.unwrap();
    assert_eq!(still.partial_text(), "hm", "the response goes on");
    committed(&handle, "and now").await;
    assert_eq!(world.story().await.last().unwrap(), "assistant: done");
}

#[tokio::test]
async fn a_response_that_is_stopped_by_request_says_so() {
    let world = World::new(ScriptedModel::script(vec![hanging(vec![piece("half")])]));
    let handle = actor(&world);
    handle.push_user("hi").unwrap();
    snapshot_when(&handle, |snapshot| snapshot.partial_text() == "half").await;
    handle.stop_response().unwrap();
    flushed(&handle).await;
    assert_eq!(world.story().await, ["user: hi", "assistant: half"]);
    assert_eq!(world.output.texts(), ["half", "Stopped, as you asked. Write again to go on."]);
    // One that comes when nothing runs ends nothing later.
    handle.stop_response().unwrap();
    flushed(&handle).await;
}

#[tokio::test]
async fn what_was_said_before_and_is_pushed_once_more_does_not_end_its_own_answer() {
    let world = World::new(ScriptedModel::script(vec![text("one"), hanging(vec![piece("so far")])]));
    let handle = actor(&world);
    let first = AgentInput::user("first");
    committed(&handle, &first).await;
    let second = AgentInput::user("second");
    handle.push(&second).unwrap();
    snapshot_when(&handle, |snapshot| snapshot.partial_text() == "so far").await;
    handle.push(first.again()).unwrap();
    handle.push(second.again()).unwrap();
    handle.stop_response().unwrap();
    flushed(&handle).await;
    assert_eq!(world.story().await, ["user: first", "assistant: one", "user: second", "assistant: so far"]);
    let last = world.output.texts().pop().unwrap();
    assert!(last.starts_with("Stopped, as you asked"), "only that has ended it: {last}");
}

#[tokio::test]
async fn user_text_does_not_wait_until_a_retry_is_due() {
    let throttled = ScriptedEvent::Error(dormouse::model::scripted::ScriptedError {
        class: dormouse::model::scripted::ScriptedErrorClass::Throttled,
        retry_after_ms: Some(60_000),
        message: None,
    });
    let mut world = World::new(ScriptedModel::script(vec![vec![throttled], text("done")]));
    world.runtime.limits.inline_wait = LIMIT * 10;
    let handle = actor(&world);
    handle.push_user("one").unwrap();
    until("the model is asked", || world.model.calls() == 1).await;
    committed(&handle, "two").await;
    assert_eq!(world.story().await, ["user: one", "user: two", "assistant: done"]);
}

#[tokio::test]
async fn an_open_question_is_dismissed_by_text_and_its_tool_gets_the_default() {
    let world = World::new(ScriptedModel::script(vec![calls(&["echo"]), text("as you like")]));
    let handle = actor(&world);
    committed(&handle, "ask me").await;
    let call = world.tools.calls()[0].clone();
    let choice = UserChoiceRequired {
        id: call.clone(),
        call_id: None,
        prompt: "Which?".to_owned(),
        choices: vec!["a".to_owned(), "b".to_owned()],
        default: 1,
        response_url: "https://tool.example/choice".to_owned(),
    };
    committed(&handle, AgentInput::content(InputContent::UserChoiceRequired(choice))).await;
    assert_eq!(handle.snapshot().await.unwrap().choices.len(), 1);
    committed(&handle, "never mind").await;
    assert!(handle.snapshot().await.unwrap().choices.is_empty());
    let answered = world.tools.answered.lock().unwrap().clone();
    assert_eq!(answered, [("https://tool.example/choice".to_owned(), call, 1)]);
    assert_eq!(world.story().await.last().unwrap(), "assistant: as you like");
}

#[tokio::test]
async fn an_answer_to_an_open_question_ends_no_response_and_reaches_its_tool() {
    let world = World::new(ScriptedModel::script(vec![calls(&["echo"]), text("b it is")]));
    let handle = actor(&world);
    committed(&handle, "ask me").await;
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
    committed(&handle, AgentInput::answer(call.clone(), Some(1))).await;
    assert_eq!(world.tools.answered.lock().unwrap()[0].2, 1);
    committed(&handle, AgentInput::result(call, vec![ContentPart::text("b")])).await;
    assert_eq!(world.story().await.last().unwrap(), "assistant: b it is");
}
