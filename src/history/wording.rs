//! Every text that the runtime itself puts before a model, in one place. Models imitate and remember these:
//! changing one is a decision, and a test freezes them.

use crate::message::Outcome;

/// A result that holds nothing.
pub const NO_OUTPUT: &str = "(no output)";
/// An image for a model that takes none.
pub const IMAGE_OMITTED: &str = "[image omitted: this model takes no images]";
/// A content kind that this version does not know.
pub const UNKNOWN_CONTENT: &str = "[content of an unknown kind omitted]";
/// The history would not begin with a user-role message.
pub const START: &str = "(the conversation goes on from here)";
/// The history would not end with a user-role message.
pub const CONTINUE: &str = "(please continue)";
/// What stands for a user's message that the window does not hold.
pub const TOO_LARGE: &str = "[a message was left out: it is too large for the model's context window]";
/// What stands for a message that could not be processed.
pub const GIVEN_UP: &str = "[a message was left out: it could not be processed]";
/// What settles a call whose result could not be processed.
pub const RESULT_GIVEN_UP: &str =
    "Error: the tool's result arrived but could not be processed. It has taken effect.";
/// What stands for a message that the provider refuses.
pub const REFUSED: &str = "[a message was left out: the model's provider refused it]";
/// What stands for a tool result that cannot be sent.
pub const RESULT_LEFT_OUT: &str =
    "Error: the tool's result cannot be shown: it is too large for the model, or its provider refused it.";

/// A call was settled by user text.
pub fn interrupted_by_user(tool: &str) -> String {
    format!(
        "Error: {tool} was interrupted by a message of the user before its result arrived. It may have taken \
         effect."
    )
}

/// A call was settled by an event or a report.
pub fn interrupted_by_event(tool: &str) -> String {
    format!(
        "Error: {tool} was interrupted by an incoming event before its result arrived. It may have taken effect."
    )
}

/// A call has no result and nobody is working on it.
pub fn lost(tool: &str) -> String {
    format!("Error: the result of {tool} was lost. It is not known whether it ran.")
}

/// The model's output stopped inside the step.
pub fn truncated(tool: &str) -> String {
    format!(
        "Error: {tool} did not run: the response reached its output limit before the call was complete. Use \
         shorter arguments or fewer calls."
    )
}

/// The user ended the response that the call was part of.
pub fn stopped(tool: &str) -> String {
    format!("Error: {tool} did not run: the user stopped the response.")
}

/// The model called a tool that does not exist, or a reserved name.
pub fn unknown_tool(tool: &str, known: &[String]) -> String {
    match known.is_empty() {
        true => format!("Error: there is no tool {tool:?}, and no other tool either."),
        false => format!("Error: there is no tool {tool:?}. Tools: {}.", known.join(", ")),
    }
}

/// The arguments do not fit.
pub fn bad_arguments(problem: &str) -> String {
    format!("Error: {problem}. The tool did not run.")
}

/// More calls than a step may hold.
pub fn too_many_calls(tool: &str, most: usize) -> String {
    format!("Error: {tool} did not run: a step may hold at most {most} calls.")
}

/// The real result of a call that was settled before.
pub fn late_result(tool: &str, call: &str, text: &str) -> String {
    format!("[late result of {tool}, call {call}, which was answered in its place before]\n{text}")
}

/// What the model reads where a stored outcome has no text of its own.
pub fn blank_outcome(outcome: &Outcome, tool: &str) -> String {
    match outcome {
        Outcome::Ok | Outcome::Unknown(_) => NO_OUTPUT.to_owned(),
        Outcome::Error => format!("Error: {tool} failed without saying why."),
        Outcome::Interrupted => interrupted_by_user(tool),
        Outcome::Halted => format!("Error: {tool} was stopped before its result arrived."),
        Outcome::Lost => lost(tool),
        Outcome::Refused => format!("Error: {tool} was not permitted. It did not run."),
        Outcome::TimedOut => format!("Error: {tool} did not answer in time. It may still finish."),
        Outcome::Truncated => truncated(tool),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_a_model_reads_are_frozen() {
        let all = [
            NO_OUTPUT.to_owned(),
            interrupted_by_user("t"),
            interrupted_by_event("t"),
            lost("t"),
            truncated("t"),
            unknown_tool("t", &["a".into(), "b".into()]),
            bad_arguments("x"),
            stopped("t"),
            late_result("t", "c", "r"),
        ]
        .join("\n");
        assert_eq!(
            all,
            "(no output)\n\
             Error: t was interrupted by a message of the user before its result arrived. It may have taken effect.\n\
             Error: t was interrupted by an incoming event before its result arrived. It may have taken effect.\n\
             Error: the result of t was lost. It is not known whether it ran.\n\
             Error: t did not run: the response reached its output limit before the call was complete. Use shorter arguments or fewer calls.\n\
             Error: there is no tool \"t\". Tools: a, b.\n\
             Error: x. The tool did not run.\n\
             Error: t did not run: the user stopped the response.\n\
             [late result of t, call c, which was answered in its place before]\nr"
        );
    }
}
