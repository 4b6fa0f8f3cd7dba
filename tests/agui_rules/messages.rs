//! Items as messages, and messages as assistant-ui keeps them.

use dormouse::agui::convert::{messages, repository, thread_messages};
use serde_json::{Value, json};

use crate::view::{Says, log, placed};

fn shown(says: &[Says<'_>]) -> Vec<Value> {
    messages(&placed(&log(0, says))).iter().map(|message| serde_json::to_value(message).unwrap()).collect()
}

#[test]
fn h3_a_response_is_one_message_and_its_results_stand_behind_it() {
    let all = shown(&[
        Says::User("u1"),
        Says::Thought("hm"),
        Says::Text("let me look"),
        Says::Call("c1"),
        Says::Call("c2"),
        Says::Result("c2", "two"),
        Says::Result("c1", "one"),
        Says::Result("c1", "later"),
        Says::Text("it is"),
    ]);
    let call =
        |id: &str| json!({ "id": id, "type": "function", "function": { "name": "tool", "arguments": "{}" } });
    assert_eq!(
        all,
        [
            json!({ "role": "user", "id": "u1", "content": "says u1" }),
            json!({ "role": "reasoning", "id": "i0-2-r", "content": "hm" }),
            json!({ "role": "assistant", "id": "i0-2", "content": "let me look", "toolCalls": [call("c1"), call("c2")] }),
            json!({ "role": "tool", "id": "c1:tool", "toolCallId": "c1", "content": "one" }),
            json!({ "role": "tool", "id": "c2:tool", "toolCallId": "c2", "content": "two" }),
            json!({ "role": "assistant", "id": "i0-9", "content": "it is" }),
        ]
    );
}

#[test]
fn h3_a_failed_call_says_so_in_its_record() {
    let all = shown(&[Says::User("u1"), Says::Call("c1"), Says::Result("c1", "Error: broke")]);
    assert_eq!(all[2]["error"], "Error: broke");
}

#[test]
fn h3_results_fold_into_the_part_of_their_call() {
    let items =
        log(0, &[Says::User("u1"), Says::Text("look"), Says::Call("c1"), Says::Result("c1", "{\"k\":1}")]);
    let thread = thread_messages(&messages(&placed(&items)));
    assert_eq!(thread.len(), 2);
    let part = &thread[1]["content"][1];
    assert_eq!(
        (&part["toolCallId"], &part["result"], &part["isError"]),
        (&json!("c1"), &json!({ "k": 1 }), &json!(false))
    );
    assert_eq!(thread[1]["status"], json!({ "type": "complete", "reason": "unknown" }));
    let open = log(0, &[Says::User("u1"), Says::Call("c1")]);
    let thread = thread_messages(&messages(&placed(&open)));
    assert_eq!(thread[1]["status"]["reason"], "tool-calls", "a page load with a pending call");
}

#[test]
fn h4_branches_are_a_tree_and_the_newest_view_is_its_head() {
    let left = log(0, &[Says::User("u1"), Says::Text("a"), Says::User("u2"), Says::Text("b")]);
    let mut head = left[..2].to_vec();
    head.extend(log(1, &[Says::User("u5"), Says::Text("c")]));
    let views = [messages(&placed(&left)), messages(&placed(&head))];
    let tree = repository(&views);
    let edges: Vec<(Value, Value)> = tree["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| (entry["message"]["id"].clone(), entry["parentId"].clone()))
        .collect();
    let edge = |id: &str, parent: Value| (json!(id), parent);
    assert_eq!(
        edges,
        [
            edge("u1", Value::Null),
            edge("i0-2", json!("u1")),
            edge("u2", json!("i0-2")),
            edge("i0-4", json!("u2")),
            edge("u5", json!("i0-2")),
            edge("i1-2", json!("u5")),
        ]
    );
    assert_eq!(tree["headId"], "i1-2");
    assert_eq!(repository(&[])["headId"], Value::Null);
}
