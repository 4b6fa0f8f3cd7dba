//! A conversation with an agent inside this process: a scripted model, one tool in Rust, no key and no network.
//!
//! ```sh
//! cargo run --example chat                      # plays three questions
//! cargo run --example chat -- 'what is 3 + 4?'  # asks yours
//! ```
//!
//! With a real model, only the line that makes it changes:
//!
//! ```ignore
//! let config = ModelConfig::from_spec("anthropic::claude-sonnet-4-5"); // its key is read from ANTHROPIC_API_KEY
//! let model = dormouse::model::provider(&config, None)?;
//! ```

use std::error::Error;
use std::sync::Arc;

use dormouse::agent::{AgentSystem, FnTool};
use dormouse::history::request::{ModelRequest, RequestMessage};
use dormouse::message::ContentPart;
use dormouse::model::scripted::{ScriptedEvent, ScriptedModel, ScriptedResponse};
use dormouse::slice::DisplayEvent;
use serde_json::json;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let schema = json!({
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"]
    });
    let add = FnTool::new("add", "Adds two whole numbers.", schema, |arguments| async move {
        let number = |name: &str| arguments[name].as_i64().unwrap_or_default();
        Ok(number("a").saturating_add(number("b")).to_string())
    });
    let system = AgentSystem::builder()
        .model(Arc::new(ScriptedModel::from_fn(calculator)), "You add numbers with the tool `add`.")
        .tool(add.safe_to_repeat())
        .on_event(|_, event| match event {
            DisplayEvent::Text(piece) => print!("{piece}"),
            DisplayEvent::Done => println!(),
            _ => {}
        })
        .build()?;
    let thread = system.thread("calculator");
    let mut questions: Vec<String> = std::env::args().skip(1).collect();
    if questions.is_empty() {
        questions = ["what is 2 + 3?", "and 40 + 2?", "what have I asked?"].map(str::to_owned).to_vec();
    }
    for question in questions {
        println!("> {question}");
        // One slice: the model, its tool, the answer, and the commits between them.
        thread.step(question).await?;
    }
    Ok(())
}

/// Stands in for a model: it calls the tool for a sum, says its result, and counts questions.
fn calculator(request: &ModelRequest) -> ScriptedResponse {
    let say =
        |text: String| text.split_inclusive(' ').map(|word| ScriptedEvent::Text(word.to_owned())).collect();
    match request.messages.last() {
        Some(RequestMessage::ToolResults(results)) => {
            let sums: Vec<String> =
                results.iter().map(|result| ContentPart::join_text(&result.parts)).collect();
            say(format!("That is {}.", sums.join(", ")))
        }
        Some(RequestMessage::User(parts)) => {
            let asked = ContentPart::join_text(parts);
            let numbers: Vec<i64> =
                asked.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect();
            match numbers[..] {
                [a, b] => vec![ScriptedEvent::call("", "add", json!({"a": a, "b": b}).to_string())],
                _ => {
                    let questions = request.messages.iter().filter(|m| matches!(m, RequestMessage::User(_)));
                    say(format!("You have asked {} questions so far.", questions.count()))
                }
            }
        }
        Some(RequestMessage::Assistant(_)) | None => say("I am listening.".to_owned()),
    }
}
