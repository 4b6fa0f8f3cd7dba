//! Calls and results: one each, next to each other, whatever arrives or was stored.

use super::*;

#[test]
fn f01_user_text_settles_an_open_call_before_itself() {
    let (mut thread, made) = Thread::calling(1);
    assert_eq!(thread.arrives(&user("hi")), Accepted::Ready);
    assert_eq!(thread.request(), ["U go", "A [f0]", &format!("R f0={}", by_user("f0")), "U hi"]);
    thread.sync();
    // The marker is durable before the model is asked; the text is not, it may be what overflows the window.
    assert_eq!(thread.kinds(), ["user", "tool_call", "interrupt"]);
    assert!(thread.rows.meta.pending.is_empty());
    let cancelled = thread.history.take_interrupted_tool_calls();
    assert_eq!(cancelled.iter().map(|pending| &pending.call).collect::<Vec<_>>(), [&made[0]]);
    assert!(thread.history.take_interrupted_tool_calls().is_empty(), "each is told once");
}

#[test]
fn f04_the_first_result_of_a_stored_call_counts_and_orphans_are_left_out() {
    let thread = Thread::with_rows(vec![
        stored_user("go"),
        stored_call("a", "{}"),
        stored_call("b", "{}"),
        stored_result("a", "1"),
        stored_result("a", "2"),
        stored_result("zzz", "3"),
    ]);
    let lost = wording::lost("f");
    assert_eq!(thread.request(), ["U go", "A [f][f]", &format!("R f=1, f={lost}")]);
    assert_eq!(thread.rendered().orphan_results, 2);
}

#[test]
fn f06_two_calls_of_one_response_under_one_provider_id_or_none_are_two_calls() {
    for provider_id in ["x", ""] {
        let mut thread = Thread::new();
        thread.arrives(&user("read both"));
        let made = thread
            .model(&[calls(provider_id, "read", r#"{"f":"A"}"#), calls(provider_id, "read", r#"{"f":"B"}"#)]);
        assert_eq!(made.len(), 2);
        assert_ne!(made[0], made[1]);
        assert_eq!(thread.arrives(&result(&made[1], "b")), Accepted::Parked);
        assert_eq!(thread.arrives(&result(&made[0], "a")), Accepted::Ready);
        assert_eq!(thread.request(), ["U read both", "A [read][read]", "R read=a, read=b"]);
        let Some(RequestMessage::Assistant(said)) = thread.rendered().request.messages.into_iter().nth(1)
        else {
            panic!("no calls");
        };
        assert_eq!(said.calls[0].arguments, r#"{"f":"A"}"#);
        assert_eq!(said.calls[1].arguments, r#"{"f":"B"}"#);
    }
}

#[test]
fn f06_stored_rows_that_share_a_call_id_get_a_deterministic_second_one() {
    let thread = Thread::with_rows(vec![
        stored_user("go"),
        stored_call("x", "{}"),
        stored_call("x", "{}"),
        stored_result("x", "1"),
    ]);
    let ids = |rendered: Rendered| -> Vec<String> {
        let RequestMessage::Assistant(said) = &rendered.request.messages[1] else { panic!("no calls") };
        said.calls.iter().map(|call| call.id.as_str().to_owned()).collect()
    };
    assert_eq!(ids(thread.rendered()), ["x", "x_2"]);
    assert_eq!(ids(thread.rendered()), ids(thread.rendered()));
    assert_eq!(thread.request()[2], format!("R f=1, f={}", wording::lost("f")));
}

#[test]
fn f07_a_provider_id_of_an_earlier_turn_is_a_new_call() {
    let mut thread = Thread::new();
    thread.arrives(&user("one"));
    let first = thread.model(&[calls("call_0", "f", r#"{"n":1}"#)]);
    thread.arrives(&result(&first[0], "1"));
    let second = thread.model(&[calls("call_0", "f", r#"{"n":2}"#)]);
    assert_ne!(first, second);
    assert_eq!(thread.history.open_calls().map(|pending| &pending.call).collect::<Vec<_>>(), [&second[0]]);
    assert_eq!(thread.arrives(&result(&second[0], "2")), Accepted::Ready);
    assert_eq!(thread.request(), ["U one", "A [f]", "R f=1", "A [f]", "R f=2"]);
}

#[test]
fn f09_the_model_is_asked_once_after_all_results_and_reads_them_in_call_order() {
    let (mut thread, made) = Thread::calling(2);
    assert_eq!(thread.arrives(&result(&made[1], "b")), Accepted::Parked);
    thread.ends();
    assert_eq!(thread.kinds(), ["user", "tool_call", "tool_call"], "a parked result is no item");
    assert!(thread.rows.meta.pending[1].parked);
    let refused = thread.history.render_history(&options());
    assert_eq!(refused, Err(RenderError::OpenCalls(vec![made[0].clone(), made[1].clone()])));
    assert_eq!(thread.arrives(&result(&made[0], "a")), Accepted::Ready);
    assert_eq!(thread.request(), ["U go", "A [f0][f1]", "R f0=a, f1=b"]);
    thread.model(&[says("done")]);
    assert_eq!(thread.kinds(), ["user", "tool_call", "tool_call", "tool_result", "tool_result", "assistant"]);
    assert!(thread.rows.parked.is_empty());
}

#[test]
fn f11_a_result_at_the_start_is_left_out_and_counted() {
    let thread = Thread::with_rows(vec![stored_result("a", "1"), stored_user("hi")]);
    assert_eq!(thread.request(), ["U hi"]);
    assert_eq!(thread.rendered().orphan_results, 1);
}

#[test]
fn f14_no_placeholder_is_stored_for_a_call_that_is_out() {
    let (mut thread, made) = Thread::calling(1);
    assert_eq!(thread.kinds(), ["user", "tool_call"]);
    assert_eq!(
        thread.history.render_history(&options()),
        Err(RenderError::OpenCalls(made.clone())),
        "and nothing is asked meanwhile"
    );
    thread.arrives(&result(&made[0], "real"));
    thread.model(&[says("ok")]);
    let results: Vec<&Item> =
        thread.rows.items.iter().filter(|item| item.body.kind() == "tool_result").collect();
    assert_eq!(results.len(), 1);
    let ItemBody::ToolResult(stored) = &results[0].body else { panic!("no result") };
    assert_eq!((text(&stored.parts).as_str(), stored.settled_by), ("real", SettledBy::Tool));
}

#[test]
fn text_that_was_stored_between_a_call_and_its_result_is_read_behind_them() {
    let thread = Thread::with_rows(vec![
        stored_user("go"),
        stored_call("a", "{}"),
        stored_user("and?"),
        stored_answer("wait"),
        stored_result("a", "1"),
    ]);
    assert_eq!(thread.request(), ["U go", "A [f]", "R f=1", "U and?", "A wait", "U (please continue)"]);
}

#[test]
fn a_stored_call_without_result_or_pending_entry_is_lost_wherever_it_stands() {
    let rows = [stored_call("a", "{}"), stored_user("x"), stored_call("b", "{}"), stored_answer("y")];
    let thread = Thread::with_rows(rows.to_vec());
    let lost = format!("R f={}", wording::lost("f"));
    assert_eq!(
        thread.request(),
        [
            "U (the conversation goes on from here)",
            "A [f]",
            &lost,
            "U x",
            "A [f]",
            &lost,
            "A y",
            "U (please continue)"
        ]
    );
}

#[test]
fn a_call_that_is_open_stays_open_whatever_stands_behind_it() {
    // Were the event taken for an interruption, the model would be asked at once, and the real result, when it
    // comes, would be left out for ever.
    let event = ItemBody::parse(
        r#"{"kind":"event","call_id":"ev-1","reason":"subscription_event","original_tool_name":"s","original_tool_call_id":"s","original_args":"{}","parts":[{"type":"text","text":"ding"}]}"#,
    );
    let items = [stored_user("go"), stored_call("a", "{}"), event];
    let (open, id) = (|call| [call].into_iter().collect(), CallId::new("a"));
    let refused = dormouse::history::render::render(items.iter(), &open(&id), &options());
    assert_eq!(refused, Err(RenderError::OpenCalls(vec![id])));
}

#[test]
fn rows_of_unknown_kind_survive_and_are_not_sent() {
    let raw = r#"{"kind":"dream","depth":1.0,"z":1,"a":2}"#;
    let items = vec![
        Item::fresh(Seq(1), stored_user("hi"), ItemFacts::default()),
        Item::stored(Seq(2), raw, ItemFacts::default()),
    ];
    let mut rows = Rows { items, ..Rows::default() };
    rows.meta.head = Seq(3);
    let mut thread = Thread { history: rows.load(), rows, sent: 0 };
    assert_eq!(thread.rendered().unknown_rows, 1);
    thread.arrives(&user("again"));
    thread.model(&[says("yes")]);
    assert_eq!(&*thread.rows.items[1].raw, raw, "byte for byte");
    assert_eq!(thread.history.committed()[1].raw, thread.rows.items[1].raw);
}

#[test]
fn repair_a_clean_thread_and_a_damaged_one_are_projected_without_a_write_and_the_same_twice() {
    for rows in [
        vec![stored_user("no calls"), stored_answer("ok"), stored_user("and?")],
        vec![stored_user("go"), stored_call("a", "{}"), stored_result("a", "1")],
        vec![stored_user("go"), stored_call("lost", "{}"), stored_user("hi")],
    ] {
        let thread = Thread::with_rows(rows);
        let first = thread.request();
        assert!(!thread.history.has_unsynced() && !thread.history.has_unvalidated());
        assert!(thread.history.plan().is_empty());
        assert_eq!(thread.request(), first);
    }
}

#[test]
fn repair_a_result_far_from_its_call_is_read_next_to_it() {
    let far = |between: Vec<ItemBody>| {
        let rows = vec![stored_user("go"), stored_call("a", "{}")];
        Thread::with_rows(rows.into_iter().chain(between).chain([stored_result("a", "1")]).collect())
            .request()
    };
    assert_eq!(far(vec![stored_user("hi")]), ["U go", "A [f]", "R f=1", "U hi"]);
    assert_eq!(far(vec![stored_answer("so")])[..3], ["U go", "A [f]", "R f=1"]);
    assert_eq!(
        far(vec![stored_user("hi"), stored_answer("so"), stored_user("later")]),
        ["U go", "A [f]", "R f=1", "U hi", "A so", "U later"]
    );
}
