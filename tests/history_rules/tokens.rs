//! How much of the window a request fills: the provider's count of the last response and what has come since.

use dormouse::history::context::{ContextTokens, EstimateKind};
use dormouse::model::Usage;

use super::*;

const COUNTED: Usage = Usage { input: 1_000, output: 100, cached: 900 };
/// Characters of a text that is about 100 tokens.
const LONG: usize = 400;

impl Thread {
    fn tokens(&self, usage: Option<Usage>) -> u64 {
        let ContextTokens { tokens, kind } = self.history.context_tokens(usage, 50);
        assert_eq!(kind, if usage.is_some() { EstimateKind::Provider } else { EstimateKind::Bytes4 });
        tokens
    }
}

#[test]
fn tokens_response_items_are_counted_once_and_what_comes_after_them_is_added() {
    let mut thread = Thread::new();
    thread.arrives(&user(&"x".repeat(LONG)));
    let made = thread.model(&[thinks("hm"), signs(), says(&"y".repeat(LONG)), calls("p", "f", "{}")]);
    assert_eq!(thread.tokens(Some(COUNTED)), 1_100, "the response itself is in the count");
    thread.arrives(&result(&made[0], &"z".repeat(LONG)));
    let with_result = thread.tokens(Some(COUNTED));
    assert!((1_200..1_300).contains(&with_result), "a result adds: {with_result}");
    thread.arrives(&user(&"x".repeat(LONG)));
    let with_user = thread.tokens(Some(COUNTED));
    assert!((100..200).contains(&(with_user - with_result)), "a user's text adds: {with_user}");
    // A note that no person wrote: the late result of a call that was interrupted.
    let made = thread.model(&[calls("p", "f", "{}")]);
    thread.arrives(&user("stop"));
    thread.model(&[says("ok")]);
    assert_eq!(thread.tokens(Some(COUNTED)), 1_100, "a response resets");
    thread.arrives(&result(&made[0], &"z".repeat(LONG)));
    let with_note = thread.tokens(Some(COUNTED));
    assert!((1_200..1_300).contains(&with_note), "a synthetic user item adds: {with_note}");
}

#[test]
fn tokens_a_response_that_is_not_committed_yet_is_counted_once_as_well() {
    let mut thread = Thread::new();
    thread.arrives(&user("go"));
    let made = answer(&mut thread.history, &[says(&"y".repeat(LONG)), calls("p", "f", "{}")]);
    assert_eq!(thread.tokens(Some(COUNTED)), 1_100);
    let parts = vec![ContentPart::text("z".repeat(LONG))];
    thread.history.settle(&made[0].call_id, Outcome::Ok, parts, SettledBy::Tool, Layer::Safe, 0);
    assert!((1_200..1_300).contains(&thread.tokens(Some(COUNTED))));
}

#[test]
fn tokens_without_a_count_of_this_view_everything_is_estimated() {
    let mut thread = Thread::new();
    thread.arrives(&user(&"x".repeat(LONG)));
    thread.model(&[says(&"y".repeat(LONG))]);
    let estimate = thread.tokens(None);
    let stored: u64 = thread.rows.items.iter().map(|item| u64::from(item.facts.est_tokens)).sum();
    assert_eq!(estimate, 50 + stored, "prompt and tools, and all items");
    assert!((250..350).contains(&estimate), "{estimate}");
}

#[test]
fn tokens_saturate_and_an_unknown_window_triggers_nothing() {
    let mut thread = Thread::new();
    for turn in 0..20 {
        thread.arrives(&user(&format!("turn {turn}")));
        let made = thread.model(&[calls("p", "f", "{}")]);
        thread.arrives(&result(&made[0], &"z".repeat(20_000)));
        thread.model(&[says("ok")]);
    }
    thread.arrives(&user("and now"));
    let most = Usage { input: u64::MAX, output: u64::MAX, cached: 0 };
    assert_eq!(thread.tokens(Some(most)), u64::MAX);
    assert_eq!(thread.history.context_tokens(None, u64::MAX).tokens, u64::MAX);
    assert!(!thread.history.prune_at_turn_start(0, Some(most), u64::MAX), "window 0");
    assert!(!thread.history.prune_at_turn_start(u64::MAX, Some(COUNTED), 0));
    // Exactly half is not above half.
    let size = thread.tokens(Some(COUNTED));
    assert!(!thread.history.clone().prune_at_turn_start(size * 2, Some(COUNTED), 0));
    assert!(thread.history.prune_at_turn_start(size * 2 - 2, Some(COUNTED), 0), "window / 2 + 1");
}
