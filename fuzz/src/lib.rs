//! What the targets share: the judge of requests, and what a thread must do whatever befell it.

#[path = "../../tests/support/history/provider_rules.rs"]
pub mod provider_rules;
#[path = "../../tests/support/history/say.rs"]
pub mod say;

use dormouse::history::render::{RenderError, RenderOptions};
use dormouse::history::request::ModelRequest;
use dormouse::history::{Accepted, History};
use dormouse::model::genai::fuzzing::bodies;

/// Commits that one sync may need.
const MAX_COMMITS: usize = 64;

/// Panics unless every provider accepts the request (I5); it is also written in every dialect's form.
pub fn judge(request: &ModelRequest) {
    if let Err(why) = provider_rules::judge(request) {
        panic!("{why}\n{:#?}", request.messages);
    }
    bodies(request, true);
    bodies(request, false);
}

/// Judges the request for the next response; false if there is none to be made.
pub fn asks(history: &History, options: &RenderOptions) -> bool {
    match history.render_history(options) {
        Ok(rendered) => judge(&rendered.request),
        Err(RenderError::OpenCalls(_) | RenderError::Empty) => return false,
        Err(RenderError::Invalid(why)) => panic!("our own check refuses it: {why}"),
    }
    true
}

/// Panics unless the thread takes another message of its user, answers it with a call, takes the result and has
/// everything committed (I7).
pub fn goes_on(mut history: History, options: &RenderOptions) {
    assert_eq!(history.accept(&say::user("go on"), &say::arrival(990, "d990")), Accepted::Ready);
    assert!(asks(&history, options), "nothing is asked");
    sync(&mut history);
    let made = say::answer(&mut history, &[say::thinks("hm"), say::signs(), say::calls("", "f", "{}")]);
    assert!(!history.is_settled());
    sync(&mut history);
    let result = say::result(&made[0].call_id, "1");
    assert_eq!(history.accept(&result, &say::arrival(991, "d991")), Accepted::Ready);
    assert!(asks(&history, options), "the result is not shown");
    history.mark_inputs_model_validated();
    sync(&mut history);
    assert!(history.is_settled());
}

fn sync(history: &mut History) {
    for _ in 0..MAX_COMMITS {
        let plan = history.plan();
        let more = plan.more;
        history.apply(plan);
        if !more {
            assert!(!history.has_unsynced());
            return;
        }
    }
    panic!("a sync without an end");
}
