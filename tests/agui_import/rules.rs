//! What is made of a conversation that a client kept, message by message (H3) and as a tree (H4). Pure.

use dormouse::agui::repository::{ImportError, Repository};
use dormouse::message::{Item, ItemBody};
use serde_json::{Value, json};

use super::{kept, shows, user, world};

/// The branches of an import, each as a story: what was said, with the client's id where it has one.
fn stories(body: &Value) -> Vec<Vec<String>> {
    let planted = Repository::read(body).unwrap().plant(&"log".into(), None, 7).unwrap();
    let tell = |item: &Item| {
        let id = item.facts.dedup.as_ref().map(|id| id.as_str().trim_start_matches("agui:0:").to_owned());
        format!("{}{}", id.map(|id| format!("{id} ")).unwrap_or_default(), world::tell(&item.body))
    };
    let branch = |pieces: &Vec<dormouse::message::Piece>| {
        let of =
            |piece: &dormouse::message::Piece| &planted.items[piece.from.0 as usize..piece.to.0 as usize];
        pieces.iter().flat_map(of).map(tell).collect()
    };
    planted.branches.iter().map(branch).collect()
}

/// The only branch.
fn story(body: &Value) -> Vec<String> {
    let mut stories = stories(body);
    assert_eq!(stories.len(), 1, "{stories:?}");
    stories.remove(0)
}

fn said(parent: Option<&str>, id: &str) -> Value {
    kept(parent, id, if id.starts_with('u') { "user" } else { "assistant" }, json!(id))
}

fn tool(id: &str, call: &str, content: &str) -> Value {
    json!({ "id": id, "role": "tool", "toolCallId": call, "content": content })
}

fn calls(id: &str, calls: &[&str]) -> Value {
    let call = |call: &&str| json!({ "id": call, "type": "function", "function": { "name": "f", "arguments": "{}" } });
    json!({ "id": id, "role": "assistant", "toolCalls": calls.iter().map(call).collect::<Vec<_>>() })
}

#[test]
fn h3_a_list_becomes_a_chain_and_bad_records_spoil_nothing() {
    let list = json!([
        { "id": "s", "role": "system", "content": "be brief" },
        { "id": "u1", "role": "user", "content": "hi" },
        null, 7, [], { "role": 3 }, { "id": "x" }, { "id": "d", "role": "developer", "content": "d" },
        { "id": "act", "role": "activity", "activityType": "t", "content": {} },
        { "id": "a1", "role": "assistant", "content": "hello" },
        { "role": "user", "content": "no id" },
        { "role": "assistant", "content": "", "toolCalls": [] },
        { "role": "assistant", "content": "neither" },
    ]);
    let expected = ["u1 user: hi", "a1 assistant: hello", "user: no id", "assistant: neither"];
    assert_eq!(story(&list), expected);
    assert_eq!(story(&json!({ "messages": list, "headId": null })), expected);
}

#[test]
fn h3_results_find_their_calls_before_behind_and_far_away() {
    // Behind, and in front; a second result for a call changes nothing.
    let list = json!([
        tool("t0", "c2", "early"),
        user("u", "x"),
        calls("a1", &["c1", "c2"]),
        tool("t1", "c1", "one"),
        tool("t2", "c1", "two")
    ]);
    assert_eq!(story(&list), ["u user: x", "a1 call: f {}", "call: f {}", "result: one", "result: early"]);
    // Far, over other turns; of two calls with one id the newest that has none.
    let list = json!([
        calls("a1", &["c"]),
        user("u1", "x"),
        calls("a2", &["c"]),
        user("u2", "y"),
        tool("t1", "c", "one"),
        tool("t2", "c", "two")
    ]);
    assert_eq!(
        story(&list),
        ["a1 call: f {}", "result: two", "u1 user: x", "a2 call: f {}", "result: one", "u2 user: y"]
    );
    // Without an owner it stands for itself.
    let orphans =
        json!([user("u", "x"), tool("t1", "c", "one"), tool("t2", "c", "two"), tool("", "d", "three")]);
    assert_eq!(
        story(&orphans),
        ["u user: x", "t1:assistant call: tool ", "result: one", "d:assistant call: tool ", "result: three"]
    );
    // Duplicates within a message are one; calls without an id are their own.
    assert_eq!(story(&json!([calls("a", &["c", "c", "", ""])])).len(), 6);
}

#[test]
fn h3_records_are_read_in_every_spelling() {
    let list = json!([
        { "id": "u", "role": "user", "content": [{ "type": "text", "text": "look" }, { "type": "image", "source": { "type": "url", "value": "https://x/y.png" } }] },
        { "id": "a", "role": "assistant", "content": null, "tool_calls": [{ "tool_call_id": "c", "function": { "name": " ", "arguments": { "k": 1 } } }] },
        { "id": "t", "role": "tool", "tool_call_id": "c", "content": [{ "type": "text", "text": "in" }, { "type": "text", "text": "parts" }], "error": "it failed" },
        { "id": "b", "role": "assistant", "toolCalls": [{ "id": "d", "function": { "name": "g", "arguments": "{broken" } }] },
        { "role": "tool", "toolCallId": "d", "result": { "n": 1 }, "content": "not this", "status": "error" },
    ]);
    let planted = Repository::read(&list).unwrap().plant(&"log".into(), None, 7).unwrap();
    let told: Vec<String> = planted.items.iter().map(|item| world::tell(&item.body)).collect();
    assert_eq!(
        told,
        ["user: look", r#"call: tool {"k":1}"#, "result: in\nparts", "call: g {broken", r#"result: {"n":1}"#]
    );
    let ItemBody::User(user) = &planted.items[0].body else { panic!() };
    assert_eq!(user.parts.len(), 2);
    let ItemBody::ToolCall(call) = &planted.items[1].body else { panic!() };
    assert_eq!(call.provider_id, "c", "what its client called it");
    for at in [2, 4] {
        let ItemBody::ToolResult(result) = &planted.items[at].body else { panic!() };
        assert_eq!(result.outcome, dormouse::message::Outcome::Error);
    }
}

#[test]
fn h3_what_a_user_attached_is_an_image_or_named() {
    let parts = json!([
        { "type": "image", "image": "data:image/png;base64,iVBORw0KGgo=" },
        { "type": "image", "image": "https://x/y.jpg" },
        { "type": "file", "data": "data:application/pdf;base64,JVBERi0=", "mimeType": "application/pdf", "filename": "a.pdf" },
        { "type": "audio", "source": { "type": "data", "value": "AA==", "mimeType": "audio/wav" } },
        { "type": "binary", "mimeType": "image/gif", "data": "R0lGODdh" },
    ]);
    let mut entry = kept(None, "u", "user", json!("see"));
    entry["message"]["attachments"] = json!([{ "content": parts }, { "content": "odd" }, 3]);
    let planted =
        Repository::read(&json!({ "messages": [entry] })).unwrap().plant(&"log".into(), None, 7).unwrap();
    let ItemBody::User(user) = &planted.items[0].body else { panic!() };
    let shown: Vec<String> = user.parts.iter().map(|part| serde_json::to_string(part).unwrap()).collect();
    assert_eq!(
        shown,
        [
            r#"{"type":"text","text":"see"}"#,
            r#"{"type":"image","data":{"type":"base64","value":"iVBORw0KGgo="},"media_type":"png"}"#,
            r#"{"type":"image","data":{"type":"url","value":"https://x/y.jpg"}}"#,
            r#"{"type":"text","text":"[file a.pdf was left out]"}"#,
            r#"{"type":"text","text":"[audio audio/wav was left out]"}"#,
            r#"{"type":"image","data":{"type":"base64","value":"R0lGODdh"},"media_type":"gif"}"#,
            r#"{"type":"text","text":"odd"}"#,
        ]
    );
}

#[test]
fn h3_reasoning_belongs_to_the_answer_that_it_stands_before() {
    let thought = |id: &str, text: &str| json!({ "id": id, "role": "reasoning", "content": text });
    let list = json!([
        user("u", "x"), thought("r1", "one"), thought("r2", " "), thought("r3", "three"), calls("a1", &["c"]), tool("t", "c", "ok"),
        { "id": "r4", "role": "reasoning", "content": "", "encryptedValue": "blob" },
        thought("r5", "five"), { "id": "a2", "role": "assistant", "content": "done" }, thought("r6", "last"),
    ]);
    assert_eq!(
        story(&list),
        [
            "u user: x",
            "a1 reasoning: one\nthree",
            "call: f {}",
            "result: ok",
            "a2 reasoning: five",
            "assistant: done",
            "reasoning: last",
        ]
    );
    // Answers that nothing stands between are one response; its id is the first one's.
    let two = json!([user("u", "x"), { "id": "a1", "role": "assistant", "content": "one" }, { "id": "a2", "role": "assistant", "content": "two" }]);
    assert_eq!(story(&two), ["u user: x", "a1 assistant: one\ntwo"]);
}

#[test]
fn h4_messages_come_in_any_order_and_each_leaf_is_a_branch() {
    let tree = [said(None, "u1"), said(Some("u1"), "a1"), said(Some("a1"), "u2"), said(Some("u1"), "a2")];
    let one = ["u1 user: u1", "a1 assistant: a1", "u2 user: u2"].map(str::to_owned).to_vec();
    let other = ["u1 user: u1", "a2 assistant: a2"].map(str::to_owned).to_vec();
    let forth = json!({ "messages": tree, "headId": "u2" });
    assert_eq!(
        stories(&forth),
        [one.clone(), other.clone(), one.clone()],
        "the head last, also where it is there"
    );
    let back: Vec<&Value> = tree.iter().rev().collect();
    assert_eq!(stories(&json!({ "messages": back, "headId": "u2" })), [other.clone(), one.clone()]);
    // Without a head it is the last of the list, and one within a branch is a branch.
    assert_eq!(stories(&json!({ "messages": tree })), [one.clone(), other.clone()]);
    assert_eq!(stories(&json!({ "messages": tree, "headId": null })).last(), Some(&other));
    let within = stories(&json!({ "messages": tree, "headId": "u1" }));
    assert_eq!(within, [one, other, vec!["u1 user: u1".to_owned()]]);
    // Several roots, as after an edit of the first message.
    let roots = json!({ "messages": [said(None, "u1"), said(None, "u2"), said(Some("u2"), "a2")] });
    assert_eq!(stories(&roots).len(), 2);
}

#[test]
fn h4_what_makes_no_tree_is_a_chain_by_position() {
    let chain = vec!["u1 user: u1".to_owned(), "a1 assistant: a1".to_owned(), "u2 user: u2".to_owned()];
    let tree = |parents: [Option<&str>; 3]| {
        let [one, two, three] = parents;
        json!({ "messages": [said(one, "u1"), said(two, "a1"), said(three, "u2")] })
    };
    for parents in [
        [None, Some("gone"), Some("a1")],
        [Some("u2"), Some("u1"), Some("a1")],
        [Some("u1"), Some("u1"), None],
        [None, Some("a1"), Some("u1")],
        [None, None, Some("")],
    ] {
        assert_eq!(story(&tree(parents)), chain, "{parents:?}");
    }
    for head in [json!("gone"), json!(7), json!({})] {
        let mut body = tree([None, Some("u1"), None]);
        body["headId"] = head;
        assert_eq!(story(&body), chain);
    }
    // A repeated id keeps its first place and takes its last content.
    let mut again = said(None, "a1");
    again["message"]["content"][0]["text"] = json!("anew");
    let twice =
        json!({ "messages": [said(None, "u1"), said(Some("u1"), "a1"), said(Some("a1"), "u2"), again] });
    assert_eq!(story(&twice), ["u1 user: u1", "a1 assistant: anew", "u2 user: u2"]);
    let list = json!([user("u1", "x"), shows("a1"), user("u1", "y")]);
    assert_eq!(story(&list), ["u1 user: y", "a1 assistant: whatever"]);
    // One name for two speakers is the user's.
    assert_eq!(story(&json!([shows("n"), user("n", "x")])), ["assistant: whatever", "n user: x"]);
}

#[test]
fn h4_what_was_never_sent_or_says_nothing_is_left_out_of_the_tree() {
    let system = kept(Some("u1"), "s", "system", json!("be brief"));
    let pending = "__optimistic__1";
    let tree = json!({ "headId": "__optimistic__2", "messages": [
        said(None, "u1"), system, said(Some("s"), "a1"), said(Some("s"), pending), said(Some(pending), "u2"),
        said(Some("u2"), "__optimistic__2"),
    ]});
    assert_eq!(
        stories(&tree),
        [vec!["u1 user: u1", "a1 assistant: a1"], vec!["u1 user: u1", "u2 user: u2"]],
        "what followed it follows the nearest real one; so does the head"
    );
    assert_eq!(story(&json!([user(pending, "x"), user("u1", "y")])), ["u1 user: y"]);
    let nothing = json!({ "headId": pending, "messages": [said(None, pending), said(Some(pending), "u1")] });
    assert_eq!(story(&nothing), ["u1 user: u1"], "a head without a real one before it is the last one");
    assert_eq!(Repository::read(&json!([user(pending, "x")])), Err(ImportError::Nothing));
}

#[test]
fn h4_where_parents_are_named_a_message_needs_an_id() {
    for id in [json!(null), json!(""), json!(3)] {
        let mut two = said(Some("u1"), "a1");
        two["message"]["id"] = id;
        let error = Repository::read(&json!({ "messages": [said(None, "u1"), two] })).unwrap_err();
        assert_eq!(error, ImportError::NoId(1));
    }
    let error =
        Repository::read(&json!({ "messages": [said(None, "u1"), { "parentId": "u1" }] })).unwrap_err();
    assert_eq!(
        error.to_string(),
        "messages[1].message.id is missing or empty: where parents are named, every message needs one"
    );
}
