//! What a request asks for, by where it stands.

use dormouse::agui::branch::{Cut, Decision, DecisionKind, decide, locate};
use dormouse::message::Epoch;
use proptest::prelude::*;

use crate::view::{Says, log, request, view};

/// A decision in short: its kind, where it cuts, what is said, what results it takes.
fn short(decision: &Decision) -> String {
    let cut = decision.cut.map_or("-".to_owned(), |Cut { epoch, keep }| format!("{epoch}:{keep}"));
    let said: Vec<&str> = decision.say.iter().map(|said| said.id.as_str()).collect();
    let results: Vec<&str> = decision.results.iter().map(|given| given.call.as_str()).collect();
    format!("{:?} {cut} [{}] [{}]", decision.kind, said.join(" "), results.join(" "))
}

/// Two turns: u1 answered by i0-2, u2 answered by i0-4.
fn two_turns() -> Vec<(Epoch, dormouse::message::Item)> {
    log(0, &[Says::User("u1"), Says::Text("a"), Says::User("u2"), Says::Text("b")])
}

#[test]
fn r11_what_a_request_asks_for() {
    let items = two_turns();
    let head = [view(0, &items)];
    for (records, expected) in [
        // The next turn, as HttpAgent, as a client that lost its own list's middle, and with several lost posts.
        (vec!["u1", "i0-2", "u2", "i0-4", "u3"], "Say - [u3] []"),
        (vec!["u1", "u2", "u3"], "Say - [u3] []"),
        (vec!["u1", "i0-2", "u2", "i0-4", "u3", "u4"], "Say - [u3 u4] []"),
        // An edit keeps the whole turn before it where its answer is shown, else the message alone.
        (vec!["u1", "i0-2", "u9"], "Say 0:2 [u9] []"),
        (vec!["u1", "u9"], "Say 0:1 [u9] []"),
        // Of the first message, and of a client that knows nothing (R12).
        (vec!["u9"], "Say 0:0 [u9] []"),
        // Reload of the last and of the first turn.
        (vec!["u1", "i0-2", "u2"], "Reload 0:3 [] []"),
        (vec!["u1"], "Reload 0:1 [] []"),
        // The same list again, and an empty one.
        (vec!["u1", "i0-2", "u2", "i0-4"], "Nothing - [] []"),
        (vec![], "Nothing - [] []"),
        // An unknown message before a known one is ignored.
        (vec!["u1", "i0-2", "u7", "u2", "i0-4"], "Say 0:2 [u7] []"),
    ] {
        assert_eq!(short(&decide(&head, &request(&records))), expected, "{records:?}");
    }
    let mut append = request(&["u9"]);
    append.append = true;
    assert_eq!(short(&decide(&head, &append)), "Say - [u9] []", "a caller that keeps no history");
}

#[test]
fn r9_content_and_assistant_ids_of_the_request_never_change_anything() {
    let items = two_turns();
    let head = [view(0, &items)];
    let folded = request(&["u1", "i0-2", "u2", "i0-9 folded", "u3"]);
    assert_eq!(short(&decide(&head, &folded)), "Say - [u3] []");
}

#[test]
fn r11_5_results_of_open_calls_continue_and_others_are_nothing() {
    let items = log(0, &[Says::User("u1"), Says::Call("c1"), Says::Call("c2")]);
    let head = [view(0, &items)];
    assert_eq!(short(&decide(&head, &request(&["u1", "i0-2", "=c1"]))), "Continue - [] [c1]");
    assert_eq!(
        short(&decide(&head, &request(&["u1", "i0-2", "=c1", "=c2", "=c1"]))),
        "Continue - [] [c1 c2]"
    );
    assert_eq!(short(&decide(&head, &request(&["u1", "i0-2", "=c9"]))), "Nothing - [] []");
    let answered = log(0, &[Says::User("u1"), Says::Call("c1"), Says::Result("c1", "r"), Says::Text("done")]);
    assert_eq!(short(&decide(&[view(0, &answered)], &request(&["u1", "i0-2", "=c1"]))), "Nothing - [] []");
    // H10: what is in the request already is taken before the rest is cancelled.
    assert_eq!(short(&decide(&head, &request(&["u1", "i0-2", "=c1", "u2"]))), "Say - [u2] [c1]");
}

#[test]
fn r10_an_older_branch_is_found_by_its_users_and_by_what_is_shown() {
    // The log that the edit of u2 left, and the one it made: it inherits u1 and its answer.
    let left = two_turns();
    let mut head = left[..2].to_vec();
    head.extend(log(1, &[Says::User("u5"), Says::Text("c")]));
    let views = [view(0, &left), view(1, &head)];
    let go = |records: &[&str]| short(&decide(&views, &request(records)));
    assert_eq!(go(&["u1", "i0-2", "u5", "i1-2", "u6"]), "Say - [u6] []");
    assert_eq!(go(&["u1", "i0-2", "u2", "i0-4", "u6"]), "Say 0:4 [u6] []");
    assert_eq!(go(&["u1", "i0-2", "u2"]), "Reload 0:3 [] []", "reload on an older branch");
    assert_eq!(go(&["u1", "i0-2"]), "Nothing - [] []");
    // An older answer of the same user message: the same users, told apart by what is shown of the model.
    let mut again = left[..3].to_vec();
    again.extend(log(1, &[Says::Text("other")]));
    let views = [view(0, &left), view(1, &again)];
    assert_eq!(short(&decide(&views, &request(&["u1", "i0-2", "u2", "i0-4", "u6"]))), "Say 0:4 [u6] []");
    assert_eq!(short(&decide(&views, &request(&["u1", "i0-2", "u2", "i1-1", "u6"]))), "Say - [u6] []");
    assert_eq!(locate(&views, &request(&["u1", "u2"])).view, 1, "among equals the newest");
}

#[test]
fn an_empty_thread_takes_everything_new_once() {
    assert_eq!(short(&decide(&[], &request(&["u1", "u2", "u1"]))), "Say - [u1 u2] []");
    assert_eq!(short(&decide(&[view(0, &[])], &request(&["i0-1", "u1"]))), "Say - [u1] []");
}

proptest! {
    /// Nothing in a request can cut behind the end, take a result twice, or say something twice.
    #[test]
    fn no_request_is_misread(records in prop::collection::vec("(u[0-9]|=c[0-3]|i0-[0-9])", 0..12)) {
        let items = log(0, &[Says::User("u1"), Says::Text("a"), Says::User("u2"), Says::Call("c1"), Says::Call("c2")]);
        let views = [view(0, &items)];
        let records: Vec<&str> = records.iter().map(String::as_str).collect();
        let decision = decide(&views, &request(&records));
        prop_assert!(decision.cut.is_none_or(|cut| cut.keep < items.len()));
        let mut said: Vec<&str> = decision.say.iter().map(|said| said.id.as_str()).collect();
        said.sort_unstable();
        said.dedup();
        prop_assert_eq!(said.len(), decision.say.len());
        prop_assert!(said.iter().all(|id| !["u1", "u2"].contains(id) || decision.cut.is_some()));
        prop_assert!(decision.results.len() <= 2);
        prop_assert_eq!(decision.kind == DecisionKind::Say, !decision.say.is_empty());
    }
}
