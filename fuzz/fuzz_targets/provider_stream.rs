//! A provider's stream in each dialect, frame by frame, as a server gone wrong may send it.
//!
//! The first byte is the dialect. What follows are blocks, with an empty line between two, of server-sent events:
//! `event:` and `data:` lines. A `text:` or `think:` line is what genai made of the frames before, and `refuse:` a
//! refusal with this status, `header:` lines and the data as its body.
//!
//! A stream ends in one end or one error, and a response that ended leaves a history that every provider accepts
//! (I5, I9).
#![no_main]

use dormouse::history::History;
use dormouse::history::render::RenderOptions;
use dormouse::history::request::{ModelRequest, ToolDefinition};
use dormouse::model::ModelEvent;
use dormouse::model::genai::fuzzing::{Piece, read_response};
use dormouse::store::Loaded;
use dormouse::tools::no_arguments;
use dormouse_fuzz::{goes_on, say};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((dialect, stream)) = data.split_first() else { return };
    let stream = String::from_utf8_lossy(stream).replace('\r', "");
    let pieces = stream.split("\n\n").flat_map(pieces).collect();
    // A name that no dialect takes goes out under another, and has to come back.
    let tool = |name: &str| ToolDefinition {
        name: name.to_owned(),
        description: String::new(),
        input_schema: no_arguments(),
    };
    let tools = vec![tool("f"), tool("foo@bar")];
    let request = ModelRequest { tools: tools.clone(), ..ModelRequest::default() };
    let answer = read_response(usize::from(dialect.wrapping_sub(b'0')), &request, pieces);

    let mut history = History::new(say::thread(), Loaded::default());
    history.accept(&say::user("hi"), &say::arrival(0, "d0"));
    let (last, before) = answer.split_last().expect("a stream ends in something");
    for event in before {
        match event {
            Ok(ModelEvent::End { .. }) => panic!("something follows the end: {answer:?}"),
            Ok(event) => history.buffer(event),
            Err(error) => panic!("something follows an error: {error}"),
        }
    }
    let calls = match last {
        Ok(ModelEvent::End { stop, .. }) => {
            history.flush_turn_trimming_reasoning("m", stop.as_str(), None, 0)
        }
        Ok(event) => panic!("a stream stops in {event:?}"),
        Err(error) => {
            assert!(error.message.chars().count() <= 300 && !error.message.contains('\n'), "{error}");
            history.discard_turn();
            Vec::new()
        }
    };
    for (n, call) in calls.iter().enumerate() {
        history.accept(&say::result(&call.call_id, "done"), &say::arrival(1 + n, &format!("r{n}")));
    }
    let options = RenderOptions { model: "m".to_owned(), tools, ..RenderOptions::default() };
    goes_on(history, &options);
});

/// What one block of the stream holds.
fn pieces(block: &str) -> Vec<Piece> {
    let (mut event, mut data, mut headers, mut refused) = (None, None, Vec::new(), None);
    let mut pieces = Vec::new();
    for line in block.lines() {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => event = Some(value.to_owned()),
            "data" => {
                let data: &mut String = data.get_or_insert_default();
                if !data.is_empty() {
                    data.push('\n');
                }
                data.push_str(value);
            }
            "text" => pieces.push(Piece::Text(value.to_owned())),
            "think" => pieces.push(Piece::Reasoning(value.to_owned())),
            "refuse" => refused = value.parse().ok(),
            "header" => {
                headers.extend(value.split_once(':').map(|(name, value)| (name.to_owned(), value.to_owned())))
            }
            _ => {}
        }
    }
    match (refused, data) {
        (Some(status), data) => pieces.push(Piece::Refusal(status, headers, data.unwrap_or_default())),
        (None, Some(data)) => pieces.insert(0, Piece::Frame(event, data)),
        (None, None) => {}
    }
    pieces
}
