//! Whole slices, from an SQS event to what is stored, sent and dispatched. Each test is named by the invariant
//! (`i3_…`) or the field case (`f09_…`) that it keeps.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/world.rs"]
mod world;

use std::sync::Arc;
use std::time::Duration;

use dormouse::history::request::RequestMessage;
use dormouse::message::{
    CallId, ContentPart, InputContent, InputMessage, Item, ItemBody, RawJson, Synthetic, ThreadId,
};
use dormouse::model::scripted::{ScriptedErrorClass, ScriptedEvent, ScriptedModel};
use dormouse::store::memory::CommitFault;
use dormouse::store::{Commit, ConversationStore, Expect, Meta};
use dormouse::tools::ToolError;
use world::{Delivery, THREAD, World};

fn text(text: &str) -> Vec<ScriptedEvent> {
    vec![ScriptedEvent::Text(text.into()), ScriptedEvent::End("end_turn".into())]
}

fn calls(calls: &[(&str, &str, &str)]) -> Vec<ScriptedEvent> {
    let mut events: Vec<ScriptedEvent> =
        calls.iter().map(|(id, name, arguments)| ScriptedEvent::call(*id, *name, *arguments)).collect();
    events.push(ScriptedEvent::End("tool_use".into()));
    events
}

fn world(responses: Vec<Vec<ScriptedEvent>>) -> World {
    World::new(ScriptedModel::script(responses))
}

#[tokio::test]
async fn a_user_text_is_answered_stored_and_published() {
    let world = world(vec![text("hello")]);
    world.done(&world.user("hi")).await;
    assert_eq!(world.story().await, ["user: hi", "assistant: hello"]);
    assert_eq!(world.output.texts(), ["hello"]);
    assert_eq!(world.store.commits(), 1, "a plain slice is one commit");
    let requests = world.model.requests();
    assert_eq!(requests[0].system.as_deref(), Some("be brief"));
    assert_eq!(requests[0].messages, [RequestMessage::User(vec![ContentPart::text("hi")])]);
}

#[tokio::test]
async fn a_call_sleeps_and_its_result_wakes_the_thread() {
    let world = world(vec![calls(&[("p1", "echo", r#"{"text":"x"}"#)]), text("done")]);
    world.done(&world.user("hi")).await;
    let dispatched = world.tools.dispatched();
    assert_eq!(dispatched.len(), 1);
    assert_eq!(dispatched[0].arguments, r#"{"text":"x"}"#);
    world.done(&world.result(&dispatched[0].call, "ok")).await;
    assert_eq!(
        world.story().await,
        ["user: hi", r#"call: echo {"text":"x"}"#, "result: ok", "assistant: done"]
    );
    assert_eq!(world.output.texts(), [r#"[echo({"text":"x"})]"#, "done"]);
    assert!(world.pending().await.is_empty());
}

#[tokio::test]
async fn d34_metadata_comes_back_and_the_users_name_goes_with_the_call() {
    let world = world(vec![calls(&[("p", "echo", "{}")]), text("done")]);
    let mut message = InputMessage::user_text(ThreadId::from(THREAD), "hi");
    message.metadata = Some(RawJson::parse(r#"{"user_id":"u-1","n":1.0}"#).unwrap());
    world.done(&world.message(&message)).await;
    assert_eq!(world.tools.dispatched()[0].user.as_deref(), Some("u-1"));
    world.done(&world.result(&world.tools.calls()[0], "ok")).await;
    let sent = world.output.sent.lock().unwrap().clone();
    assert!(sent.iter().all(|message| message.metadata.get() == r#"{"user_id":"u-1","n":1.0}"#));
    assert_eq!(world.meta().await.owner.as_deref(), Some("u-1"));
}

// I1: nothing is acknowledged that was not done.

#[tokio::test(start_paused = true)]
async fn rap_52_i1_d1_a_model_failure_hands_the_message_back_and_stores_nothing() {
    let failure = || vec![ScriptedEvent::error(ScriptedErrorClass::Transient, "503")];
    let world = world((0..11).map(|_| failure()).collect());
    let message = world.user("hi");
    assert_eq!(
        world.deliver(std::slice::from_ref(&message)).await,
        std::slice::from_ref(&message.message_id)
    );
    assert_eq!(world.model.calls(), 11, "10 retries in all");
    assert_eq!(world.store.commits(), 0);
    assert_eq!(world.delays.set.lock().unwrap().len(), 1, "its visibility was set");
}

#[tokio::test]
async fn rap_51_i1_d3_a_store_failure_hands_the_message_back() {
    for fault in [CommitFault::Unavailable] {
        let world = world(vec![text("one"), text("two")]);
        let message = world.user("hi");
        world.store.fail_commits([fault]);
        assert_eq!(world.deliver(std::slice::from_ref(&message)).await.len(), 1);
        assert!(world.output.texts().is_empty(), "nothing was published");
        world.done(&message.again()).await;
        assert_eq!(world.story().await, ["user: hi", "assistant: two"]);
    }
    let world = world(vec![text("one")]);
    world.store.fail_loads(1);
    let message = world.user("hi");
    assert_eq!(world.deliver(std::slice::from_ref(&message)).await.len(), 1);
    world.done(&message.again()).await;
}

#[tokio::test]
async fn i1_d7_d8_what_cannot_be_read_is_kept_with_its_reason_or_handed_back() {
    let world = world(vec![text("hello"), text("again")]);
    world.done(&world.user("hi")).await;
    let bad = Delivery { body: "not json".into(), ..world.user("x") };
    let wrong_group =
        Delivery { group: THREAD.into(), ..world.message(&InputMessage::user_text("th-9".into(), "x")) };
    let good = world.user("still there?");
    assert!(world.deliver(&[bad.clone(), wrong_group.clone(), good]).await.is_empty());
    let kept = world.dead.kept.lock().unwrap().clone();
    assert_eq!(kept.len(), 2);
    assert!(kept[0].1.contains("not an InputMessage") && kept[1].1.contains("th-9"), "{kept:?}");
    assert_eq!(world.output.texts().last().unwrap(), "again", "the thread is served");
    assert_eq!(world.output.texts().iter().filter(|text| text.contains("could not be read")).count(), 2);

    *world.dead.failures.lock().unwrap() = 1;
    let bad = Delivery { body: "{}".into(), ..world.user("x") };
    let behind = world.user("y");
    let failed = world.deliver(&[bad.clone(), behind.clone()]).await;
    assert_eq!(failed, [bad.message_id, behind.message_id], "not kept, so not acknowledged; order holds");
}

#[tokio::test]
async fn i1_a_message_of_a_newer_version_is_handed_back_untouched() {
    let world = world(vec![]);
    let newer = Delivery { body: r#"{"schema":2,"what":"ever"}"#.into(), ..world.user("x") };
    assert_eq!(world.deliver(std::slice::from_ref(&newer)).await, [newer.message_id]);
    assert!(world.dead.kept.lock().unwrap().is_empty());
}

// I2: nothing twice.

#[tokio::test]
async fn i2_a_redelivery_changes_nothing_and_asks_nobody() {
    let world = world(vec![calls(&[("p", "echo", "{}")]), text("done")]);
    let user = world.user("hi");
    world.done(&user).await;
    world.done(&user.again()).await;
    let call = world.tools.calls()[0].clone();
    assert!(world.tools.calls().iter().all(|again| *again == call), "resent under the same id");
    let result = world.result(&call, "ok");
    world.done(&result).await;
    let dispatched = world.tools.calls().len();
    world.done(&result.again()).await;
    world.done(&user.again()).await;
    // Under another message id it is still the same input, and resumes nothing.
    world.done(&Delivery { message_id: "m-99".into(), ..result }).await;
    assert_eq!(world.story().await, ["user: hi", "call: echo {}", "result: ok", "assistant: done"]);
    assert_eq!(world.model.calls(), 2);
    assert_eq!(world.tools.calls().len(), dispatched, "an answered call is not sent again");
    assert_eq!(world.output.texts().len(), 2);
}

#[tokio::test]
async fn rap_53_i2_a_commit_whose_answer_was_lost_is_known_again() {
    let world = world(vec![text("one"), text("two")]);
    world.store.fail_commits([CommitFault::AnswerLost]);
    let message = world.user("hi");
    let failed = world.deliver(std::slice::from_ref(&message)).await;
    if !failed.is_empty() {
        world.done(&message.again()).await;
    }
    assert_eq!(world.story().await, ["user: hi", "assistant: one"]);
    assert_eq!(world.output.texts(), ["one"], "the outbox was resumed");
}

// I3, I4: durable before visible; no orphan.

#[tokio::test]
async fn i4_a_failed_send_is_resumed_by_the_redelivery_without_asking_the_model() {
    let world = world(vec![calls(&[("p", "echo", "{}")]), text("done")]);
    *world.output.failures.lock().unwrap() = 1;
    let message = world.user("hi");
    assert_eq!(world.deliver(std::slice::from_ref(&message)).await.len(), 1);
    assert!(world.tools.calls().is_empty());
    world.done(&message.again()).await;
    assert_eq!(world.tools.calls().len(), 1);
    assert_eq!(world.output.texts(), ["[echo({})]"]);
    assert_eq!(world.model.calls(), 1);
    assert_eq!(world.store.commits(), 2, "the turn, and what strikes the outbox of a redelivered message");
    world.done(&world.result(&world.tools.calls()[0], "ok")).await;
    assert_eq!(world.tools.calls().len(), 1, "the next message sends nothing again");
}

#[tokio::test]
async fn f65_i1_a_result_behind_a_parked_answer_in_its_place_is_a_note() {
    let world = world(vec![calls(&[("p", "echo", "{}"), ("q", "other", "{}")]), text("done")]);
    world.tools.failures.lock().unwrap().push(ToolError::Unavailable("echo did not answer".into()));
    world.done(&world.user("hi")).await;
    world.settle().await;
    let ids = world.tools.calls();
    // The tool had got the call after all, and its sibling is still at work.
    world.done(&world.result(&ids[0], "real")).await;
    world.done(&world.result(&ids[1], "fine")).await;
    let story = world.story().await;
    assert!(story[3].contains("late result of echo") && story[3].ends_with("\nreal"), "{story:?}");
    assert_eq!(story[4..], ["result: Error: echo did not answer", "result: fine", "assistant: done"]);
}

#[tokio::test(start_paused = true)]
async fn i1_an_input_that_stands_twice_in_a_batch_counts_only_with_its_effect() {
    let failure = || vec![ScriptedEvent::error(ScriptedErrorClass::Transient, "503")];
    let mut script = vec![calls(&[("p", "echo", "{}")])];
    script.extend((0..11).map(|_| failure()));
    script.push(text("hello"));
    let world = world(script);
    world.done(&world.user("hi")).await;
    // The barrier commits the interruption; the text behind it is not in yet, so neither is its id.
    let first = world.user("never mind");
    let second = Delivery { dedup: first.dedup.clone(), ..world.user("never mind") };
    assert_eq!(world.deliver(&[first.clone(), second.clone()]).await.len(), 2);
    world.done(&first.again()).await;
    world.done(&second.again()).await;
    assert_eq!(world.story().await[2..], ["interrupt", "user: never mind", "assistant: hello"]);
}

#[tokio::test]
async fn i1_a_text_that_was_refused_is_not_taken_when_its_batch_comes_again_in_pieces() {
    let world = world(vec![text("hello")]);
    let mut refused = InputMessage::user_text(THREAD.into(), "to nobody");
    refused.metadata = RawJson::parse(r#"{"agent":"nobody"}"#).ok();
    let (refused, good) = (world.message(&refused), world.user("hi"));
    // The refusal is out; the reply behind the commit fails.
    let first = world.clone();
    let failing = tokio::spawn(async move {
        while first.output.texts().is_empty() {
            tokio::task::yield_now().await;
        }
        *first.output.failures.lock().unwrap() = 1;
    });
    assert_eq!(world.deliver(&[refused.clone(), good.clone()]).await.len(), 2);
    failing.await.unwrap();
    world.done(&refused.again()).await;
    world.done(&good.again()).await;
    assert_eq!(world.story().await, ["user: hi", "assistant: hello"]);
    assert_eq!(world.output.texts()[1..], ["hello"]);
}

#[tokio::test]
async fn i4_what_is_published_again_under_one_id_is_the_same_whatever_was_settled_since() {
    let mut script = vec![calls(&[("p", "pay", "{}"), ("q", "nothing", "{}")])];
    script.extend((0..8).map(|_| text("done")));
    let world = world(script);
    let mut message = world.user("hi");
    world.tools.fail_commit_after_run(world.store.clone());
    assert_eq!(world.deliver(std::slice::from_ref(&message)).await.len(), 1);
    for _ in 2..=5 {
        message = message.again();
        world.store.fail_commits([CommitFault::Unavailable]);
        assert_eq!(world.deliver(std::slice::from_ref(&message)).await.len(), 1);
    }
    // Given up on: its call is answered as lost, and the next slice sends what is owed once more.
    world.done(&message.again()).await;
    world.settle().await;
    let sent = world.output.sent.lock().unwrap().clone();
    let of_call: Vec<_> = sent.iter().filter(|m| m.message_id == sent[0].message_id).collect();
    assert!(of_call.len() > 1 && of_call.iter().all(|m| m.text == "[pay({})]"), "{sent:?}");
}

#[tokio::test]
async fn rap_05_i3_d25_a_dispatch_that_finally_fails_becomes_a_result_through_the_queue() {
    let world = world(vec![calls(&[("p", "echo", "{}")]), text("sorry")]);
    world.tools.failures.lock().unwrap().push(ToolError::Failed("echo answered 404".into()));
    world.done(&world.user("hi")).await;
    assert_eq!(world.pending().await.len(), 1);
    world.settle().await;
    assert_eq!(
        world.story().await,
        ["user: hi", "call: echo {}", "result: Error: echo answered 404", "assistant: sorry"]
    );
}

#[tokio::test]
async fn i3_synchronous_tools_run_after_their_commit_and_the_model_goes_on() {
    let world = world(vec![calls(&[("p", "add", r#"{"text":"1"}"#)]), text("done")]);
    world.done(&world.user("hi")).await;
    assert_eq!(
        world.story().await,
        ["user: hi", r#"call: add {"text":"1"}"#, r#"result: ran {"text":"1"}"#, "assistant: done"]
    );
    assert_eq!(world.store.commits(), 2);
    assert!(world.meta().await.open.is_empty());
}

#[tokio::test]
async fn i2_an_unfinished_slice_goes_on_from_its_commit_and_reruns_only_what_is_safe() {
    for (tool, expected, runs) in [
        ("add", "result: ran {}", 2),
        ("pay", "result: Error: the result of pay was lost. It is not known whether it ran.", 1),
    ] {
        let world = world(vec![calls(&[("p", tool, "{}")]), text("never stored"), text("done")]);
        let message = world.user("hi");
        // The first commit holds the call; the one with its result fails.
        world.tools.fail_commit_after_run(world.store.clone());
        assert_eq!(world.deliver(std::slice::from_ref(&message)).await.len(), 1);
        assert_eq!(world.story().await, ["user: hi".to_owned(), format!("call: {tool} {{}}")]);
        assert_eq!(world.meta().await.open.len(), 1);
        world.done(&message.again()).await;
        let story = world.story().await;
        assert_eq!(story[2..], [expected.to_owned(), "assistant: done".to_owned()]);
        assert_eq!(world.tools.ran.lock().unwrap().len(), runs);
        assert!(world.meta().await.open.is_empty());
    }
}

#[tokio::test]
async fn i7_a_synchronous_call_with_an_asynchronous_sibling_goes_on_after_a_crash() {
    let world = world(vec![calls(&[("a", "add", "{}"), ("b", "echo", "{}")]), text("done")]);
    let message = world.user("hi");
    // The first commit holds both calls; the one with the synchronous result fails.
    world.tools.fail_commit_after_run(world.store.clone());
    assert_eq!(world.deliver(std::slice::from_ref(&message)).await.len(), 1);
    assert_eq!(world.story().await.len(), 3);
    world.done(&message.again()).await;
    assert_eq!(world.story().await[3..], ["result: ran {}"]);
    assert_eq!(world.tools.calls().len(), 1, "the redelivery resumed the outbox");
    world.done(&world.result(&world.tools.calls()[0], "B")).await;
    assert_eq!(world.story().await[4..], ["result: B", "assistant: done"]);
}

#[tokio::test]
async fn i7_an_input_that_is_only_parked_leaves_open_what_another_slice_has_begun() {
    // A batch came again in pieces: an event in front of the message whose slice died with `pay` open.
    let world = world(vec![
        calls(&[("p", "echo", "{}")]),
        calls(&[("q", "pay", "{}")]),
        text("lost"),
        text("heard"),
        text("done"),
    ]);
    world.done(&world.user("hi")).await;
    let call = world.tools.calls()[0].clone();
    let of_call =
        |text: &str| InputMessage::tool_result(THREAD.into(), call.clone(), vec![ContentPart::text(text)]);
    let mut result = of_call("ok");
    result.subscription = true;
    let mut event = of_call("news");
    event.synthetic =
        Some(Synthetic::SubscriptionEvent { tool_call_id: call.clone(), associative: true, r#final: false });
    let (event, result) = (world.message(&event), world.message(&result));
    world.tools.fail_commit_after_run(world.store.clone());
    assert_eq!(world.deliver(std::slice::from_ref(&result)).await.len(), 1);
    world.done(&event).await;
    assert_eq!(world.meta().await.open.len(), 1);
    world.done(&result.again()).await;
    world.settle().await;
    assert!(world.pending().await.is_empty(), "{:?}", world.story().await);
    assert!(world.story().await.iter().any(|line| line == "event: news"));
}

// I5: whatever arrives, the request is valid (the properties are in history_properties.rs).

#[tokio::test]
async fn rap_50_f65_i5_user_text_interrupts_and_the_late_result_is_a_note() {
    let world = world(vec![calls(&[("p", "echo", "{}")]), text("fine"), text("later")]);
    world.done(&world.user("hi")).await;
    let call = world.tools.calls()[0].clone();
    world.done(&world.user("never mind")).await;
    assert_eq!(*world.tools.cancelled.lock().unwrap(), std::slice::from_ref(&call));
    world.done(&world.result(&call, "ok")).await;
    let story = world.story().await;
    assert_eq!(story[..5], ["user: hi", "call: echo {}", "interrupt", "user: never mind", "assistant: fine"]);
    assert!(story[5].contains("late result of echo") && story[5].ends_with("\nok"), "{story:?}");
    assert_eq!(world.model.calls(), 2, "a late result asks nobody");
    world.done(&world.user("and now?")).await;
    let RequestMessage::ToolResults(results) = &world.model.requests()[2].messages[2] else { panic!() };
    assert!(ContentPart::join_text(&results[0].parts).contains("may have taken effect"));
}

// I6: one writer.

#[tokio::test]
async fn f57_i6_of_two_workers_with_one_message_one_commits_and_one_dispatches() {
    let world = world(vec![calls(&[("p", "echo", "{}")]), calls(&[("q", "other", "{}")])]);
    let message = world.user("hi");
    let batch = [message];
    let (a, b) = tokio::join!(world.deliver(&batch), world.deliver(&batch));
    assert!(a.is_empty() && b.is_empty());
    assert_eq!(world.store.commits(), 1);
    let names: Vec<String> = world.tools.dispatched().into_iter().map(|call| call.name).collect();
    assert!(names.windows(2).all(|pair| pair[0] == pair[1]), "{names:?}");
    assert_eq!(world.pending().await.len(), 1);
}

#[tokio::test]
async fn rap_49_f60_i6_a_lost_race_starts_over_and_keeps_both_messages_in_order() {
    let world = world(vec![text("one"), text("two"), text("three")]);
    let (first, second) = (world.user("a"), world.user("b"));
    let (first_batch, second_batch) = ([first], [second]);
    let (a, b) = tokio::join!(world.deliver(&first_batch), world.deliver(&second_batch));
    assert!(a.is_empty() && b.is_empty());
    let story = world.story().await;
    assert_eq!(story.len(), 4);
    assert_eq!(story.iter().filter(|line| line.starts_with("user")).count(), 2);
    assert_eq!(world.output.texts().len(), 2);
}

// Field cases.

#[tokio::test]
async fn f04_of_several_stored_results_the_first_counts_and_the_rest_is_left_out() {
    let world = world(vec![text("fine")]);
    stored(&world, &[
        r#"{"kind":"user","parts":[{"type":"text","text":"go"}]}"#,
        r#"{"kind":"tool_call","call_id":"a","name":"echo","arguments":"{}"}"#,
        r#"{"kind":"tool_result","call_id":"a","outcome":"ok","parts":[{"type":"text","text":"1"}],"settled_by":"tool"}"#,
        r#"{"kind":"tool_result","call_id":"a","outcome":"ok","parts":[{"type":"text","text":"2"}],"settled_by":"tool"}"#,
        r#"{"kind":"tool_result","call_id":"zzz","outcome":"ok","parts":[],"settled_by":"tool"}"#,
        r#"{"kind":"tool_call","call_id":"b","name":"echo","arguments":"{}"}"#,
    ])
    .await;
    world.done(&world.user("hi")).await;
    let request = world.model.requests()[0].clone();
    let results: Vec<String> = request
        .messages
        .iter()
        .filter_map(|message| match message {
            RequestMessage::ToolResults(results) => Some(ContentPart::join_text(&results[0].parts)),
            RequestMessage::User(_) | RequestMessage::Assistant(_) => None,
        })
        .collect();
    assert_eq!(results.len(), 2);
    assert_eq!(results[0], "1");
    assert!(results[1].contains("lost"), "the missing one is settled as an error: {results:?}");
}

#[tokio::test]
async fn rap_14_f05_the_first_result_wins_whatever_id_the_second_comes_under() {
    let world = world(vec![calls(&[("p", "echo", "{}")]), text("done")]);
    world.done(&world.user("hi")).await;
    let call = world.tools.calls()[0].clone();
    world.done(&world.result(&call, "Error: broke")).await;
    world.done(&Delivery { dedup: "another".into(), ..world.result(&call, "ok") }).await;
    assert_eq!(world.story().await[2..], ["result: Error: broke", "assistant: done"]);
}

#[tokio::test]
async fn f06_calls_with_one_provider_id_or_none_are_both_dispatched_and_both_answered() {
    for id in ["x", ""] {
        let world = world(vec![
            calls(&[(id, "echo", r#"{"text":"A"}"#), (id, "echo", r#"{"text":"B"}"#)]),
            text("done"),
        ]);
        world.done(&world.user("hi")).await;
        let ids = world.tools.calls();
        assert_eq!(ids.len(), 2);
        assert_ne!(ids[0], ids[1]);
        for (call, answer) in ids.iter().zip(["a", "b"]) {
            world.done(&world.result(call, answer)).await;
        }
        assert_eq!(world.story().await[3..], ["result: a", "result: b", "assistant: done"]);
    }
}

#[tokio::test]
async fn f07_a_provider_id_that_repeats_in_a_later_turn_is_a_new_call() {
    let world = world(vec![
        calls(&[("call_0", "echo", r#"{"text":"1"}"#)]),
        text("one"),
        calls(&[("call_0", "echo", r#"{"text":"2"}"#)]),
        text("two"),
    ]);
    for turn in 0..2 {
        world.done(&world.user("go")).await;
        let call = world.tools.calls()[turn].clone();
        world.done(&world.result(&call, "ok")).await;
    }
    let ids = world.tools.calls();
    assert_eq!(ids.len(), 2);
    assert_ne!(ids[0], ids[1]);
    assert_eq!(world.output.texts().last().unwrap(), "two");
}

#[tokio::test]
async fn f09_results_in_two_records_ask_the_model_once_and_stand_next_to_their_calls() {
    for together in [false, true] {
        let world = world(vec![calls(&[("a", "echo", "{}"), ("b", "other", "{}")]), text("done")]);
        world.done(&world.user("hi")).await;
        let ids = world.tools.calls();
        let (late, early) = (world.result(&ids[1], "B"), world.result(&ids[0], "A"));
        match together {
            true => assert!(world.deliver(&[late.clone(), early.clone()]).await.is_empty()),
            false => {
                world.done(&late).await;
                assert_eq!(world.model.calls(), 1, "parked");
                assert_eq!(world.pending().await.len(), 2);
                world.done(&late.again()).await;
                world.done(&early).await;
            }
        }
        assert_eq!(world.model.calls(), 2);
        assert_eq!(world.story().await[3..], ["result: A", "result: B", "assistant: done"]);
        let messages = &world.model.requests()[1].messages;
        let RequestMessage::ToolResults(results) = &messages[2] else { panic!("{messages:?}") };
        assert_eq!(
            results.iter().map(|result| &result.id).collect::<Vec<_>>(),
            ids.iter().collect::<Vec<_>>()
        );
        let loaded = world.store.load(&ThreadId::from(THREAD), &[]).await.unwrap();
        assert!(loaded.parked.is_empty());
        world.done(&late.again()).await;
        assert_eq!(world.model.calls(), 2);
    }
}

#[tokio::test]
async fn f11_a_leading_result_is_left_out_of_the_request() {
    let world = world(vec![text("hello")]);
    stored(&world, &[
        r#"{"kind":"tool_result","call_id":"a","outcome":"ok","parts":[{"type":"text","text":"1"}],"settled_by":"tool"}"#,
    ])
    .await;
    world.done(&world.user("hi")).await;
    assert_eq!(world.model.requests()[0].messages, [RequestMessage::User(vec![ContentPart::text("hi")])]);
}

#[tokio::test]
async fn f14_no_placeholder_result_is_ever_stored() {
    let world = world(vec![calls(&[("p", "echo", "{}")]), text("done")]);
    world.done(&world.user("hi")).await;
    assert_eq!(world.story().await, ["user: hi", "call: echo {}"]);
    world.done(&world.result(&world.tools.calls()[0], "real")).await;
    let story = world.story().await;
    assert_eq!(story.iter().filter(|line| line.starts_with("result")).collect::<Vec<_>>(), ["result: real"]);
}

#[tokio::test]
async fn f27_an_empty_answer_is_neither_stored_nor_sent_and_the_user_is_told() {
    let world = world(vec![
        vec![ScriptedEvent::Text("  \n".into()), ScriptedEvent::End("end_turn".into())],
        vec![ScriptedEvent::End("end_turn".into())],
        text("here"),
    ]);
    world.done(&world.user("one")).await;
    world.done(&world.user("two")).await;
    world.done(&world.user("hi")).await;
    assert_eq!(world.story().await, ["user: one", "user: two", "user: hi", "assistant: here"]);
    let texts = world.output.texts();
    assert_eq!(texts.iter().filter(|text| text.contains("empty answer")).count(), 2, "{texts:?}");
    assert_eq!(world.model.requests()[2].messages.len(), 1, "neighbours merge");
}

#[tokio::test]
async fn f29_a_blank_result_is_stored_blank_and_shown_as_no_output() {
    let world = world(vec![calls(&[("p", "echo", "{}")]), text("done")]);
    world.done(&world.user("hi")).await;
    world.done(&world.result(&world.tools.calls()[0], "")).await;
    assert_eq!(world.story().await[2], "result: ");
    let RequestMessage::ToolResults(results) = &world.model.requests()[1].messages[2] else { panic!() };
    assert_eq!(results[0].parts, [ContentPart::text("(no output)")]);
}

#[tokio::test]
async fn f30_blank_user_text_is_refused_with_a_clear_error() {
    let world = world(vec![]);
    for blank in ["", "  \n"] {
        world.done(&world.user(blank)).await;
    }
    assert_eq!(world.store.commits(), 0);
    assert!(world.output.texts().iter().all(|text| text.contains("empty")));
    assert_eq!(world.output.texts().len(), 2);
}

#[tokio::test]
async fn rap_15_f33_text_with_nul_and_with_six_literal_characters_comes_back_as_it_was() {
    let world = world(vec![calls(&[("p", "echo", "{}")]), text("done")]);
    world.done(&world.user("hi")).await;
    let odd = "x\u{0}y\\u0000z\u{FFFE}";
    world.done(&world.result(&world.tools.calls()[0], odd)).await;
    let RequestMessage::ToolResults(results) = &world.model.requests()[1].messages[2] else { panic!() };
    assert_eq!(results[0].parts, [ContentPart::text(odd)]);
}

#[tokio::test]
async fn f37_arguments_reach_store_and_tool_to_the_byte() {
    let arguments = r#"{"a":1.0,"b":0.1,"c":12345678901234567890123,"z":1,"y":2}"#;
    let world = world(vec![calls(&[("p", "echo", arguments)])]);
    world.done(&world.user("hi")).await;
    assert_eq!(world.tools.dispatched()[0].arguments, arguments);
    let items = world.items().await;
    let ItemBody::ToolCall(call) = &items[1].body else { panic!() };
    assert_eq!(call.arguments, arguments);
}

#[tokio::test]
async fn f47_a_call_without_arguments_gets_the_empty_object() {
    let world = world(vec![calls(&[("p", "echo", "")]), text("done")]);
    world.done(&world.user("hi")).await;
    assert_eq!(world.tools.dispatched()[0].arguments, "{}");
    world.done(&world.result(&world.tools.calls()[0], "ok")).await;
    let RequestMessage::Assistant(message) = &world.model.requests()[1].messages[1] else { panic!() };
    assert_eq!(message.calls[0].arguments, "{}");
}

#[tokio::test]
async fn f49_calls_of_a_response_that_was_cut_are_never_dispatched() {
    let cut = || {
        vec![
            ScriptedEvent::call("a", "echo", r#"{"text":"whole"}"#),
            ScriptedEvent::call("b", "echo", r#"{}"#),
            ScriptedEvent::End("max_tokens".into()),
        ]
    };
    let world = world(vec![cut(), cut(), cut(), text("never")]);
    world.done(&world.user("hi")).await;
    assert!(world.tools.calls().is_empty());
    assert_eq!(world.model.calls(), 3, "bounded");
    assert!(world.output.texts().last().unwrap().contains("Write again"), "the user is told");
    let RequestMessage::ToolResults(results) = &world.model.requests()[1].messages[2] else { panic!() };
    assert!(results.iter().all(|result| ContentPart::join_text(&result.parts).contains("output limit")));
    assert!(world.pending().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn f50_a_stream_without_its_end_leaves_no_trace_and_is_retried() {
    let world = world(vec![
        vec![
            ScriptedEvent::Text("half".into()),
            ScriptedEvent::call("a", "echo", "{}"),
            ScriptedEvent::Cut(true),
        ],
        vec![
            ScriptedEvent::call("a", "echo", "{}"),
            ScriptedEvent::error(ScriptedErrorClass::Transient, "x"),
        ],
        text("whole"),
    ]);
    world.done(&world.user("hi")).await;
    assert_eq!(world.story().await, ["user: hi", "assistant: whole"]);
    assert!(world.tools.calls().is_empty());
    assert_eq!(world.output.texts(), ["whole"]);
}

#[tokio::test(start_paused = true)]
async fn f51_a_short_throttle_is_waited_for_and_a_long_one_goes_back_with_its_delay() {
    let throttled = |ms| {
        vec![ScriptedEvent::Error(dormouse::model::scripted::ScriptedError {
            class: ScriptedErrorClass::Throttled,
            retry_after_ms: Some(ms),
            message: None,
        })]
    };
    let world = world(vec![throttled(2_000), text("here"), throttled(7_000)]);
    world.done(&world.user("hi")).await;
    assert_eq!(world.output.texts(), ["here"]);
    let message = world.user("again");
    assert_eq!(world.deliver(std::slice::from_ref(&message)).await.len(), 1);
    let (_, delay) = world.delays.set.lock().unwrap()[0].clone();
    assert_eq!(delay, Duration::from_secs(7));
}

#[tokio::test(start_paused = true)]
async fn f59_the_worker_stops_itself_before_its_time_is_up() {
    let world = world(vec![vec![ScriptedEvent::DelayMs(600_000), ScriptedEvent::End("end_turn".into())]]);
    let message = world.user("hi");
    let failed = world.deliver_within(std::slice::from_ref(&message), Duration::from_secs(30)).await;
    assert_eq!(failed, [message.message_id]);
    assert_eq!(world.store.commits(), 0);
}

#[tokio::test]
async fn f62_a_result_in_the_dispatching_batch_finds_its_call_committed() {
    // The answer queues behind the slice; here it stands in the queue before the slice has ended.
    let world = world(vec![calls(&[("p", "echo", "{}")]), text("done")]);
    let user = world.user("hi");
    world.done(&user).await;
    let result = world.result(&world.tools.calls()[0], "fast");
    assert!(world.deliver(&[user.again(), result]).await.is_empty());
    assert_eq!(world.story().await, ["user: hi", "call: echo {}", "result: fast", "assistant: done"]);
}

#[tokio::test]
async fn rap_30_38_i7_bad_calls_are_answered_and_bounded_and_the_thread_takes_the_next_message() {
    let bad = || {
        calls(&[
            ("a", "nothing", "{}"),
            ("b", "receive_event__injected", "{}"),
            ("c", "echo", r#"{"text":7}"#),
        ])
    };
    let world = world(vec![bad(), bad(), bad(), text("back")]);
    world.done(&world.user("hi")).await;
    assert!(world.tools.calls().is_empty());
    assert!(world.output.texts().last().unwrap().contains("Write again"));
    world.done(&world.user("hello?")).await;
    assert_eq!(world.output.texts().last().unwrap(), "back");
}

#[tokio::test]
async fn i7_a_model_that_cannot_be_used_is_told_to_the_user_and_the_message_is_kept() {
    let world = world(vec![
        vec![ScriptedEvent::error(ScriptedErrorClass::Fatal, "the key is wrong: set X_KEY")],
        text("now it works"),
    ]);
    world.done(&world.user("one")).await;
    assert!(world.output.texts()[0].contains("set X_KEY"));
    world.done(&world.user("two")).await;
    assert_eq!(world.story().await, ["user: one", "user: two", "assistant: now it works"]);
}

#[tokio::test]
async fn i7_i8_a_refused_or_oversized_message_stays_out_of_requests_and_in_the_history() {
    for class in [ScriptedErrorClass::Refused, ScriptedErrorClass::Overflow] {
        let world = world(vec![
            vec![ScriptedEvent::error(class, "no")],
            calls(&[("p", "echo", "{}")]),
            vec![ScriptedEvent::error(class, "no")],
            text("without it"),
        ]);
        world.done(&world.user("bad")).await;
        assert!(world.output.texts()[0].ends_with("no") || world.output.texts()[0].contains("(no)"));
        world.done(&world.user("good")).await;
        world.done(&world.result(&world.tools.calls()[0], "bad result")).await;
        assert_eq!(
            world.story().await,
            ["user: bad", "user: good", "call: echo {}", "result: bad result", "assistant: without it"],
            "nothing is rewritten"
        );
        let last = format!("{:?}", world.model.requests()[3]);
        assert!(!last.contains("bad"), "{last}");
        assert!(last.contains("left out") && last.contains("cannot be shown"), "{last}");
    }
}

#[tokio::test]
async fn rap_13_d32_unknown_threads_and_unknown_calls_leave_no_trace() {
    let world = world(vec![text("hello")]);
    world.done(&world.result(&CallId::from("c0-1-x"), "stray")).await;
    assert_eq!(world.store.commits(), 0, "only user text makes a thread (D32)");
    world.done(&world.user("hi")).await;
    world.done(&world.result(&CallId::from("c0-1-x"), "stray")).await;
    assert_eq!(world.story().await, ["user: hi", "assistant: hello"]);
}

#[tokio::test]
async fn rap_49_f53_several_threads_of_a_batch_are_served_and_one_failing_leaves_the_others() {
    let model = ScriptedModel::prompts();
    let world = World::new(model);
    let to = |thread: &str, text: &str| world.message(&InputMessage::user_text(ThreadId::from(thread), text));
    let newer = Delivery { body: r#"{"schema":2}"#.into(), ..to("b", "x") };
    let behind = to("b", "say two");
    let failed =
        world.deliver(&[to("a", "say one"), newer.clone(), to("c", "say three"), behind.clone()]).await;
    assert_eq!(failed, [newer.message_id, behind.message_id]);
    let mut texts = world.output.texts();
    texts.sort();
    assert_eq!(texts, ["one", "three"]);
}

#[tokio::test]
async fn a_claim_check_is_followed_and_a_lost_one_is_kept_for_an_operator() {
    let world = world(vec![text("read")]);
    let large = InputMessage::user_text(ThreadId::from(THREAD), "x".repeat(300_000)).to_body().unwrap();
    let digest = world.store.put_claim(&large).await.unwrap();
    let claim = |digest: String| {
        let content = InputContent::ClaimCheck(dormouse::message::ClaimCheck { digest });
        world.message(&InputMessage::plain(ThreadId::from(THREAD), content))
    };
    world.done(&claim(digest)).await;
    assert_eq!(world.items().await[0].raw.len() / 100_000, 3);
    world.done(&claim("gone".into())).await;
    assert_eq!(world.dead.kept.lock().unwrap().len(), 1);
}

/// Puts rows into the thread as an older or a broken version may have left them.
async fn stored(world: &World, rows: &[&str]) {
    let mut meta = Meta::new_root(ThreadId::from(THREAD), "default", None, 0);
    meta.head = dormouse::message::Seq(rows.len() as u64 + 1);
    meta.token = "old".into();
    let items = rows
        .iter()
        .enumerate()
        .map(|(at, raw)| {
            Item::stored(dormouse::message::Seq(at as u64 + 1), Arc::<str>::from(*raw), Default::default())
        })
        .collect();
    let commit = Commit { items, ..Commit::new(Expect::Absent, meta, 0) };
    world.store.commit(commit).await.unwrap();
}

#[tokio::test]
async fn f52_behind_the_first_input_that_fails_nothing_of_its_thread_is_looked_at() {
    let world = World::new(ScriptedModel::prompts());
    let newer = Delivery { body: r#"{"schema":99,"group_id":"th-1"}"#.to_owned(), ..world.user("x") };
    let batch = [world.user("say one"), newer, world.user("say three")];
    assert_eq!(world.deliver(&batch).await, [batch[1].message_id.clone(), batch[2].message_id.clone()]);
    assert_eq!(world.story().await, ["user: say one", "assistant: one"]);
    assert_eq!(world.model.calls(), 1, "nobody was asked about the third");
}

#[tokio::test]
async fn f58_an_id_counts_once_for_days_and_two_equal_texts_are_two() {
    let world = World::new(ScriptedModel::prompts());
    let first = world.user("yes");
    world.done(&first).await;
    // Hours later the queue has forgotten the id; the thread has not.
    let again = Delivery { dedup: first.dedup.clone(), ..world.user("yes") };
    world.done(&again).await;
    assert_eq!(world.story().await.len(), 2, "the producer sent it again");
    world.done(&world.user("yes")).await;
    let story = world.story().await;
    assert_eq!(
        story.iter().filter(|line| *line == "user: yes").count(),
        2,
        "the user said it again: {story:?}"
    );
}

#[tokio::test]
async fn i7_d26_a_thread_that_keeps_causing_itself_is_stopped_and_takes_the_next_message() {
    let mut world = World::new(ScriptedModel::from_fn(|request| {
        let goes_on = !format!("{:?}", request.messages.last()).contains("enough");
        if goes_on { calls(&[("p", "echo", "{}")]) } else { text("at last") }
    }));
    world.runtime.limits.self_caused_slices = 5;
    // No call ever gets out: dormouse's own error result wakes the thread, and its model calls again.
    *world.tools.failures.lock().unwrap() = vec![ToolError::Failed("echo is gone".into()); 100];
    world.done(&world.user("hi")).await;
    world.settle().await;
    assert_eq!(world.tools.calls().len(), 6, "one for the user, five of its own");
    assert!(world.output.texts().last().unwrap().contains("Write again"), "{:?}", world.output.texts());
    world.done(&world.user("enough")).await;
    assert_eq!(world.output.texts().last().unwrap(), "at last");
}

#[tokio::test]
async fn rap_43_consent_and_a_text_in_one_batch_are_both_heard() {
    let world = world(vec![calls(&[("p", "echo", "{}")]), text("as you like")]);
    world.done(&world.user("hi")).await;
    let call = world.tools.calls()[0].clone();
    let consent = |call: &CallId| {
        let (id, auth_url) = (call.clone(), "https://idp.example/authorize".to_owned());
        let content =
            InputContent::OAuthRequired(dormouse::message::OAuthRequired { id, call_id: None, auth_url });
        world.message(&InputMessage::plain(ThreadId::from(THREAD), content))
    };
    let batch = [consent(&call), world.user("never mind"), consent(&call)];
    assert!(world.deliver(&batch).await.is_empty());
    let consents = |texts: &[String]| texts.iter().filter(|text| text.contains("idp.example")).count();
    let texts = world.output.texts();
    assert_eq!((consents(&texts), texts.last().unwrap().as_str()), (1, "as you like"), "{texts:?}");
    assert_eq!(
        world.story().await,
        ["user: hi", "call: echo {}", "interrupt", "user: never mind", "assistant: as you like"],
        "consent is no part of the history"
    );
    // Of a call that has its result, or that this thread never made.
    for of in [&call, &CallId::from("c0-9-none")] {
        world.done(&consent(of)).await;
    }
    assert_eq!(consents(&world.output.texts()), 1);
    assert_eq!(world.model.calls(), 2, "nobody is asked because of it");
}
