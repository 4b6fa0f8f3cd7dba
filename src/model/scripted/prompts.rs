//! The prompt-driven script: the newest user text says what the model does.
//!
//! | prompt | behaviour |
//! |---|---|
//! | `say TEXT` | answers TEXT |
//! | `seen` | answers `seen: ` and all earlier user texts of the request, joined with a bar |
//! | `think TEXT` | reasoning that contains TEXT, signed, then answers TEXT |
//! | `slow N WORD` | N deltas of WORD, 50 ms apart |
//! | `fail TEXT` | the call fails; the message contains TEXT |
//! | `call TOOL JSON` | one tool call without text; once results exist: `result: ` and their contents joined with `, ` |
//! | `both TOOL JSON TOOL JSON` | the same with two calls in one step |
//! | `look TOOL JSON` | text `let me look` and the call; once results exist: `it is ` and their contents |
//! | anything else | `echo: ` and the prompt |
//!
//! Arguments are kept as typed, valid JSON or not; a call without them has the arguments `""`. A tool that the
//! request does not offer is called all the same: dealing with that is the slice's task. Text comes in several
//! deltas as soon as it has two characters.

use serde_json::value::RawValue;

use super::{ScriptedErrorClass, ScriptedEvent, ScriptedResponse};
use crate::history::request::{ModelRequest, RequestMessage};
use crate::message::ContentPart;
use crate::model::Usage;

/// Text is cut into about this many deltas.
const DELTAS: usize = 4;
/// The pause before each delta of `slow`.
const SLOW_PAUSE_MS: u64 = 50;
/// A bound on what a typed number can ask for.
const MAX_SLOW_DELTAS: usize = 10_000;
/// How many characters count as a token in the usage it reports.
const CHARS_PER_TOKEN: usize = 4;
/// How the reasoning of `think` is signed, so that it counts as replayable.
const SIGNATURE: &str = "scripted-signature";

/// What the request asks of the script.
pub fn respond(request: &ModelRequest) -> ScriptedResponse {
    let (prompt, earlier, results) = read(request);
    let (verb, rest) = prompt.split_once(char::is_whitespace).unwrap_or((prompt, ""));
    let rest = rest.trim();
    let mut events = match verb {
        "say" if !rest.is_empty() => text(rest),
        "seen" => text(&format!("seen: {}", earlier.join("|"))),
        "think" if !rest.is_empty() => {
            let reasoning = [
                ScriptedEvent::Reasoning(format!("thinking {rest}")),
                ScriptedEvent::Signature(SIGNATURE.into()),
            ];
            reasoning.into_iter().chain(text(rest)).collect()
        }
        "slow" => match slow(rest) {
            Some(events) => events,
            None => text(&format!("echo: {prompt}")),
        },
        "fail" if !rest.is_empty() => return vec![ScriptedEvent::error(ScriptedErrorClass::Refused, rest)],
        "call" | "both" if !results.is_empty() => text(&format!("result: {}", results.join(", "))),
        "look" if !results.is_empty() => text(&format!("it is {}", results.join(", "))),
        "call" if !rest.is_empty() => vec![one_call(rest)],
        "both" if !rest.is_empty() => two_calls(rest),
        "look" if !rest.is_empty() => text("let me look").into_iter().chain([one_call(rest)]).collect(),
        _ => text(&format!("echo: {prompt}")),
    };
    events.push(ScriptedEvent::Usage(usage(request, &events)));
    events
}

/// The newest user text, all earlier ones, and the results that stand behind it.
///
/// Messages alternate, so several inputs may share one message: each text part counts as a text of its own.
fn read(request: &ModelRequest) -> (&str, Vec<&str>, Vec<String>) {
    let mut texts = Vec::new();
    let mut results = Vec::new();
    for message in &request.messages {
        match message {
            RequestMessage::User(parts) => {
                let before = texts.len();
                texts.extend(parts.iter().filter_map(|part| match part {
                    ContentPart::Text(text) => Some(text.as_str()),
                    ContentPart::Image { .. } | ContentPart::Unknown(_) => None,
                }));
                if texts.len() > before {
                    results.clear();
                }
            }
            RequestMessage::Assistant(_) => {}
            RequestMessage::ToolResults(these) => {
                results.extend(these.iter().map(|result| ContentPart::join_text(&result.parts)));
            }
        }
    }
    let prompt = texts.pop().unwrap_or_default().trim();
    (prompt, texts, results)
}

fn text(text: &str) -> ScriptedResponse {
    let chars: Vec<char> = text.chars().collect();
    chars
        .chunks(chars.len().div_ceil(DELTAS).max(1))
        .map(|piece| ScriptedEvent::Text(piece.iter().collect()))
        .collect()
}

fn slow(rest: &str) -> Option<ScriptedResponse> {
    let (count, word) = rest.split_once(char::is_whitespace)?;
    let count = count.parse::<usize>().ok()?.min(MAX_SLOW_DELTAS);
    let mut events = Vec::new();
    for i in 0..count {
        let space = if i == 0 { "" } else { " " };
        events.push(ScriptedEvent::DelayMs(SLOW_PAUSE_MS));
        events.push(ScriptedEvent::Text(format!("{space}{}", word.trim())));
    }
    Some(events)
}

fn one_call(rest: &str) -> ScriptedEvent {
    let (name, arguments) = split_word(rest);
    ScriptedEvent::call("call_0", name, arguments)
}

fn two_calls(rest: &str) -> ScriptedResponse {
    let (name, rest) = split_word(rest);
    // The first value ends where JSON says so; what is no JSON ends at white space.
    let mut values = serde_json::Deserializer::from_str(rest).into_iter::<&RawValue>();
    let (arguments, rest) = match values.next() {
        Some(Ok(value)) => (value.get(), rest[values.byte_offset()..].trim_start()),
        Some(Err(_)) | None => split_word(rest),
    };
    let first = ScriptedEvent::call("call_0", name, arguments);
    let (name, arguments) = split_word(rest);
    if name.is_empty() {
        return vec![first];
    }
    vec![first, ScriptedEvent::call("call_1", name, arguments)]
}

fn split_word(text: &str) -> (&str, &str) {
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    (word, rest.trim_start())
}

/// A usage that grows with the request, for tests of what is triggered by size.
fn usage(request: &ModelRequest, events: &[ScriptedEvent]) -> Usage {
    let of_parts = |parts: &[ContentPart]| ContentPart::join_text(parts).len();
    let input: usize = request
        .messages
        .iter()
        .map(|message| match message {
            RequestMessage::User(parts) => of_parts(parts),
            RequestMessage::Assistant(said) => {
                said.text.as_ref().map_or(0, String::len)
                    + said.calls.iter().map(|call| call.arguments.len()).sum::<usize>()
            }
            RequestMessage::ToolResults(results) => {
                results.iter().map(|result| of_parts(&result.parts)).sum()
            }
        })
        .sum();
    let output: usize = events
        .iter()
        .map(|event| match event {
            ScriptedEvent::Text(text) | ScriptedEvent::Reasoning(text) => text.len(),
            ScriptedEvent::Call(call) => call.arguments.len(),
            ScriptedEvent::Signature(_)
            | ScriptedEvent::Usage(_)
            | ScriptedEvent::End(_)
            | ScriptedEvent::Cut(_)
            | ScriptedEvent::Error(_)
            | ScriptedEvent::DelayMs(_) => 0,
        })
        .sum();
    let tokens = |chars: usize| chars.div_ceil(CHARS_PER_TOKEN) as u64;
    Usage {
        input: tokens(input + request.system.as_ref().map_or(0, String::len)),
        output: tokens(output),
        cached: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::request::{AssistantMessage, RequestCall, RequestResult};
    use crate::message::CallId;

    fn user(text: &str) -> RequestMessage {
        RequestMessage::User(vec![ContentPart::text(text)])
    }

    fn step(results: &[&str]) -> [RequestMessage; 2] {
        let id = |i: usize| CallId::new(format!("c{i}"));
        let calls = (0..results.len())
            .map(|i| RequestCall { id: id(i), name: "f".into(), arguments: "{}".into(), signature: None })
            .collect();
        let results = results
            .iter()
            .enumerate()
            .map(|(i, text)| RequestResult {
                id: id(i),
                name: "f".into(),
                parts: vec![ContentPart::text(*text)],
                is_error: false,
            })
            .collect();
        [
            RequestMessage::Assistant(AssistantMessage { calls, ..AssistantMessage::default() }),
            RequestMessage::ToolResults(results),
        ]
    }

    fn ask(messages: Vec<RequestMessage>) -> ScriptedResponse {
        let mut events = respond(&ModelRequest { messages, ..ModelRequest::default() });
        events.retain(|event| !matches!(event, ScriptedEvent::Usage(_)));
        events
    }

    fn said(events: &[ScriptedEvent]) -> String {
        events
            .iter()
            .filter_map(|e| if let ScriptedEvent::Text(t) = e { Some(t.as_str()) } else { None })
            .collect()
    }

    #[test]
    fn text_comes_in_several_deltas() {
        let events = ask(vec![user("say hi")]);
        assert_eq!((events.len(), said(&events).as_str()), (2, "hi"));
        let events = ask(vec![user("say grüße, 😀 welt")]);
        assert_eq!((events.len(), said(&events).as_str()), (4, "grüße, 😀 welt"));
        assert_eq!(said(&ask(vec![user("hello there")])), "echo: hello there");
        assert_eq!(said(&ask(vec![user("say")])), "echo: say");
    }

    #[test]
    fn seen_lists_every_earlier_user_text() {
        let two = RequestMessage::User(vec![ContentPart::text("b"), ContentPart::text("seen")]);
        assert_eq!(said(&ask(vec![user("a"), step(&["r"])[0].clone(), two])), "seen: a|b");
        assert_eq!(said(&ask(vec![user("seen")])), "seen: ");
    }

    #[test]
    fn think_slow_and_fail() {
        let events = ask(vec![user("think deep")]);
        assert_eq!(events[0], ScriptedEvent::Reasoning("thinking deep".into()));
        assert_eq!(said(&events), "deep");
        let events = ask(vec![user("slow 3 tick")]);
        assert_eq!(events.len(), 6);
        assert_eq!(said(&events), "tick tick tick");
        assert_eq!(
            ask(vec![user("fail all broken")]),
            [ScriptedEvent::error(ScriptedErrorClass::Refused, "all broken")]
        );
    }

    #[test]
    fn f37_calls_keep_their_arguments_as_typed() {
        let typed = r#"{"a":1.0, "c":12345678901234567890123, "s":"x y"}"#;
        assert_eq!(ask(vec![user(&format!("call f {typed}"))]), [ScriptedEvent::call("call_0", "f", typed)]);
        assert_eq!(
            ask(vec![user(&format!("both f {typed} g {{\"b\": 2}}"))]),
            [ScriptedEvent::call("call_0", "f", typed), ScriptedEvent::call("call_1", "g", "{\"b\": 2}")]
        );
        assert_eq!(
            ask(vec![user("both f nojson g {")]),
            [ScriptedEvent::call("call_0", "f", "nojson"), ScriptedEvent::call("call_1", "g", "{")]
        );
        assert_eq!(ask(vec![user("call f")]), [ScriptedEvent::call("call_0", "f", "")]);
        let events = ask(vec![user("look f {}")]);
        assert_eq!(said(&events), "let me look");
        assert_eq!(events.last(), Some(&ScriptedEvent::call("call_0", "f", "{}")));
    }

    #[test]
    fn results_behind_the_prompt_are_answered_and_those_before_it_are_not() {
        let with = |prompt: &str, results: &[&str]| [vec![user(prompt)], step(results).to_vec()].concat();
        assert_eq!(said(&ask(with("both f {} g {}", &["1", "2"]))), "result: 1, 2");
        assert_eq!(said(&ask(with("look f {}", &["sunny"]))), "it is sunny");
        let interrupted = [with("call f {}", &["interrupted"]), vec![user("call g {}")]].concat();
        assert_eq!(ask(interrupted), [ScriptedEvent::call("call_0", "g", "{}")]);
    }
}
