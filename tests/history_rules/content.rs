//! Text, arguments and reasoning: nothing blank is sent, nothing real is changed.

use super::*;

#[test]
fn f27_an_empty_answer_is_neither_stored_nor_sent() {
    for empty in [vec![], vec![says("")], vec![says(" \n"), says("\t")], vec![thinks("hm"), signs()]] {
        let mut thread = Thread::new();
        thread.arrives(&user("first"));
        thread.model(&empty);
        assert_eq!(thread.kinds(), ["user"]);
        assert_eq!(thread.arrives(&user("hi")), Accepted::Ready);
        assert_eq!(thread.request(), ["U first | hi"]);
    }
}

#[test]
fn f27_blank_rows_of_an_older_time_are_not_sent() {
    let thread = Thread::with_rows(vec![
        stored_user(""),
        stored_answer("  "),
        stored_call("a", "{}"),
        stored_answer("\n"),
        stored_result("a", "1"),
    ]);
    assert_eq!(thread.request(), ["U (the conversation goes on from here)", "A [f]", "R f=1"]);
}

#[test]
fn f29_a_blank_result_is_stored_blank_and_read_as_no_output() {
    for blank in ["", " \n"] {
        let (mut thread, made) = Thread::calling(1);
        assert_eq!(thread.arrives(&result(&made[0], blank)), Accepted::Ready);
        assert_eq!(thread.request(), ["U go", "A [f0]", "R f0=(no output)"]);
        thread.model(&[says("ok")]);
        let ItemBody::ToolResult(stored) = &thread.rows.items[2].body else { panic!("no result") };
        assert_eq!(stored.parts, [ContentPart::text(blank)]);
    }
}

#[test]
fn f30_blank_user_text_is_refused_and_changes_nothing() {
    let (mut thread, _) = Thread::calling(1);
    for blank in ["", "  \n"] {
        assert_eq!(thread.arrives(&user(blank)), Accepted::Blank);
    }
    assert!(!thread.history.has_unsynced() && !thread.history.has_unvalidated());
    assert_eq!(thread.history.open_calls().count(), 1, "a refused text interrupts nothing");
}

#[test]
fn f47_stored_empty_arguments_read_as_an_empty_object() {
    let thread = Thread::with_rows(vec![stored_user("go"), stored_call("a", ""), stored_result("a", "1")]);
    let RequestMessage::Assistant(said) = &thread.rendered().request.messages[1] else { panic!("no call") };
    assert_eq!(said.calls[0].arguments, "{}");
    assert_eq!(thread.request()[2], "R f=1");
}

#[test]
fn f37_arguments_are_stored_as_they_came_and_malformed_ones_are_explained() {
    let raw = r#"{"a":1.0,"b":0.1,"c":12345678901234567890123,"z":1,"y":2}"#;
    let mut thread = Thread::new();
    thread.arrives(&user("go"));
    thread.model(&[calls("p", "f", raw), calls("p", "f", r#"{"a":"#)]);
    let arguments = |item: &Item| match &item.body {
        ItemBody::ToolCall(call) => Some(call.arguments.clone()),
        _ => None,
    };
    let stored: Vec<String> = thread.rows.items.iter().filter_map(arguments).collect();
    assert_eq!(stored, [raw, r#"{"a":"#]);

    let old = Thread::with_rows(vec![stored_user("go"), stored_call("a", raw), stored_call("b", r#"{"a":"#)]);
    let rendered = old.rendered();
    let RequestMessage::Assistant(said) = &rendered.request.messages[1] else { panic!("no call") };
    assert_eq!(said.calls[0].arguments, raw);
    assert_eq!(said.calls[1].arguments, "{}");
    assert!(old.request()[2].contains("the arguments were no valid JSON"));
}

#[test]
fn f38_reasoning_goes_back_if_it_is_signed() {
    let shown = |signature| {
        let rows = vec![stored_user("go"), stored_reasoning("m", signature), stored_answer("so")];
        Thread::with_rows(rows).request()[1].clone()
    };
    assert_eq!(shown(Some("sig")), "A (thinks) so");
    assert_eq!(shown(None), "A so");
    assert_eq!(shown(Some("")), "A so", "an empty signature is none");
}

#[test]
fn f39_reasoning_of_another_model_stays_out() {
    let rows = vec![stored_user("go"), stored_reasoning("other", Some("sig")), stored_answer("so")];
    assert_eq!(Thread::with_rows(rows).request(), ["U go", "A so", "U (please continue)"]);
}

#[test]
fn f40_a_turns_reasoning_goes_back_whole_or_not_at_all() {
    let turn = |first: ItemBody, second: ItemBody| {
        vec![
            stored_user("go"),
            first,
            stored_call("a", "{}"),
            stored_result("a", "1"),
            second,
            stored_answer("so"),
            stored_user("on"),
            stored_reasoning("m", Some("sig")),
            stored_answer("well"),
        ]
    };
    let own = || stored_reasoning("m", Some("sig"));
    let whole = Thread::with_rows(turn(own(), own())).request();
    assert_eq!(whole[1..5], ["A (thinks) [f]", "R f=1", "A (thinks) so", "U on"]);
    for lost in [stored_reasoning("other", Some("sig")), stored_reasoning("m", None)] {
        for rows in [turn(lost.clone(), own()), turn(own(), lost)] {
            let request = Thread::with_rows(rows).request();
            assert_eq!(request[1..5], ["A [f]", "R f=1", "A so", "U on"]);
            assert_eq!(request[5], "A (thinks) well", "another turn's is whole");
        }
    }
}

#[test]
fn f39_f42_the_signature_of_a_call_goes_back_to_the_model_that_signed_it() {
    let signature = |model: &str, signature: &str| {
        let ItemBody::ToolCall(mut call) = stored_call("a", "{}") else { panic!() };
        (call.model, call.signature) = (model.to_owned(), Some(signature.to_owned()));
        let thread = Thread::with_rows(vec![stored_user("go"), ItemBody::ToolCall(call)]);
        let RequestMessage::Assistant(said) = &thread.rendered().request.messages[1] else { panic!() };
        said.calls[0].signature.clone()
    };
    assert_eq!(signature("m", "sig").as_deref(), Some("sig"));
    assert_eq!(signature("other", "sig"), None);
    assert_eq!(signature("m", " "), None, "an empty signature is none");
}

#[test]
fn reasoning_that_nothing_follows_is_neither_stored_nor_sent() {
    let mut thread = Thread::new();
    thread.arrives(&user("go"));
    thread.model(&[thinks("a"), signs(), says("so"), thinks("b"), signs()]);
    assert_eq!(thread.kinds(), ["user", "reasoning", "assistant"]);

    let old = vec![stored_user("go"), stored_reasoning("m", Some("sig")), stored_user("hi")];
    assert_eq!(Thread::with_rows(old).request(), ["U go | hi"]);
}

#[test]
fn reasoning_comes_first_in_its_message_and_belongs_to_the_call_behind_it() {
    let mut thread = Thread::new();
    thread.arrives(&user("go"));
    let made = thread.model(&[thinks("hm"), signs(), says("let me look"), calls("p", "f", "{}")]);
    assert_eq!(thread.kinds(), ["user", "reasoning", "assistant", "tool_call"]);
    thread.arrives(&result(&made[0], "1"));
    assert_eq!(thread.request(), ["U go", "A (thinks) let me look[f]", "R f=1"]);
}

#[test]
fn a_discarded_turn_leaves_nothing_and_the_inputs_it_proved_stay_validated() {
    let mut thread = Thread::new();
    thread.arrives(&user("go"));
    let before = thread.request();
    thread.history.mark_inputs_model_validated();
    for streamed in [thinks("hm"), says("half an ans"), calls("p", "f", "{}")] {
        thread.history.buffer(&streamed);
    }
    thread.history.discard_turn();
    assert_eq!(thread.request(), before);
    assert!(thread.history.is_settled(), "a call that was not flushed was never made");
    thread.model(&[says("whole")]);
    assert_eq!(thread.request(), ["U go", "A whole", "U (please continue)"]);
}

#[test]
fn the_current_turn_view_is_the_history_followed_by_what_streams() {
    let mut thread = Thread::new();
    thread.arrives(&user("one"));
    thread.model(&[says("1")]);
    thread.arrives(&user("two"));
    for piece in [says("t"), says("w"), says("o")] {
        thread.history.buffer(&piece);
    }
    let view: Vec<String> = thread.history.current_turn_view("m").iter().map(ItemBody::to_raw).collect();
    assert_eq!(view.len(), 4);
    assert!(view[2].contains(r#""text":"two""#), "unvalidated inputs are in it: {}", view[2]);
    assert!(view[3].contains(r#""text":"two""#), "pieces of text are one: {}", view[3]);
}

#[test]
fn items_reasoning_siblings_keep_their_order_whatever_each_of_them_holds() {
    let block = |text: &str, signature: Option<&str>, provider: Option<&str>| {
        ItemBody::Reasoning(ReasoningItem {
            model: "m".into(),
            text: text.into(),
            signature: signature.map(str::to_owned),
            provider: provider.map(|block| dormouse::message::RawJson::parse(block).unwrap()),
        })
    };
    let sealed = r#"{"type":"redacted_thinking","data":"YWJj"}"#;
    let thread = Thread::with_rows(vec![
        stored_user("go"),
        block("both", Some("s1"), None),
        block("", Some("encrypted only"), None),
        block("", None, Some(sealed)),
        block("both again", Some("s2"), None),
        stored_answer("ok"),
        stored_user("and?"),
    ]);
    let RequestMessage::Assistant(said) = &thread.rendered().request.messages[1] else { panic!("no answer") };
    let seen: Vec<(&str, Option<&str>)> = said
        .reasoning
        .iter()
        .map(|reasoning| (reasoning.text.as_str(), reasoning.signature.as_deref()))
        .collect();
    assert_eq!(
        seen,
        [("both", Some("s1")), ("", Some("encrypted only")), ("", None), ("both again", Some("s2"))]
    );
    assert_eq!(said.reasoning[2].provider.as_ref().unwrap().get(), sealed, "byte for byte");
    // One that is text only proves nothing: it takes the rest of its turn with it.
    let thread = Thread::with_rows(vec![
        stored_user("go"),
        block("both", Some("s1"), None),
        block("text only", None, None),
        stored_answer("ok"),
        stored_user("and?"),
    ]);
    assert_eq!(thread.request(), ["U go", "A ok", "U and?"]);
}

#[test]
fn items_a_call_that_the_provider_ran_keeps_its_place_over_many_turns() {
    let searched = |query: &str| {
        ItemBody::BackendToolCall(dormouse::message::BackendToolCallItem {
            tool_type: "web_search".into(),
            provider: dormouse::message::RawJson::parse(r#"{"type":"web_search_call"}"#).unwrap(),
            summary: format!("[searched the web for {query}]"),
        })
    };
    let thread = Thread::with_rows(vec![
        stored_user("one"),
        searched("a"),
        stored_answer("first"),
        stored_user("two"),
        stored_answer("before"),
        searched("b"),
        stored_call("c", "{}"),
        stored_result("c", "1"),
        searched("c"),
        stored_user("three"),
    ]);
    assert_eq!(
        thread.request(),
        [
            "U one",
            "A [searched the web for a] | first",
            "U two",
            "A before | [searched the web for b][f]",
            "R f=1",
            "A [searched the web for c]",
            "U three"
        ]
    );
}
