//! Tool names on the wire (F44): what a dialect would refuse, or take for one of its own tools, goes out under
//! a derived name, and comes back as what the request calls it.

use std::borrow::Cow;
use std::collections::HashMap;

use data_encoding::BASE32_NOPAD;
use sha2::{Digest, Sha256};

use crate::history::request::ModelRequest;
use crate::model::ModelEvent;

/// The shortest limit among the dialects (OpenAI, Gemini, Bedrock).
const MAX_CHARS: usize = 64;
/// Characters of a derived name that stem from the original.
const KEPT_CHARS: usize = 48;
/// Characters of base32 that tell derived names apart.
const HASH_CHARS: usize = 12;
/// Names that genai 0.7.2 turns into a tool that the provider runs itself.
const RESERVED: [&str; 5] =
    ["web_search", "googleSearch", "googleSearchRetrieval", "codeExecution", "urlContext"];

/// The tool names of one request.
pub(super) struct ToolNames {
    /// Wire name to the request's name, only where they differ.
    originals: HashMap<String, String>,
}

impl ToolNames {
    pub fn new(request: &ModelRequest) -> Self {
        let originals = request
            .tools
            .iter()
            .filter_map(|tool| match wire_name(&tool.name) {
                Cow::Borrowed(_) => None,
                Cow::Owned(wire) => Some((wire, tool.name.clone())),
            })
            .collect();
        Self { originals }
    }

    /// The name as the provider gets it, in definitions and in history.
    pub fn encode<'a>(&self, name: &'a str) -> Cow<'a, str> {
        wire_name(name)
    }

    /// An event with the request's name of the tool; notes whether it was a call.
    pub fn decode(&self, event: ModelEvent, called: &mut bool) -> ModelEvent {
        match event {
            ModelEvent::ToolCall { provider_id, name, arguments, signature } => {
                *called = true;
                let name = self.originals.get(&name).cloned().unwrap_or(name);
                ModelEvent::ToolCall { provider_id, name, arguments, signature }
            }
            ModelEvent::Text(_)
            | ModelEvent::ReasoningText(_)
            | ModelEvent::ReasoningBlock { .. }
            | ModelEvent::End { .. } => event,
        }
    }
}

fn wire_name(name: &str) -> Cow<'_, str> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    // Gemini wants a letter or an underscore in front.
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if starts_well && name.len() <= MAX_CHARS && name.chars().all(allowed) && !RESERVED.contains(&name) {
        return Cow::Borrowed(name);
    }
    let kept: String = name.chars().map(|c| if allowed(c) { c } else { '_' }).take(KEPT_CHARS).collect();
    let hash = BASE32_NOPAD.encode(&Sha256::digest(name.as_bytes())).to_ascii_lowercase();
    let front = if kept.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') { "" } else { "t_" };
    Cow::Owned(format!("{front}{kept}_{}", &hash[..HASH_CHARS]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::request::ToolDefinition;

    #[test]
    fn rap_22_f44_names_fit_stay_apart_and_come_back() {
        let long = "n".repeat(70);
        let longer = "n".repeat(71);
        let names =
            ["plain", "foo@bar", "foo!bar", long.as_str(), longer.as_str(), "7up", "web_search", "", "🐭"];
        let tools = names.map(|name| ToolDefinition {
            name: name.to_owned(),
            description: String::new(),
            input_schema: serde_json::json!({}),
        });
        let codec = ToolNames::new(&ModelRequest { tools: tools.to_vec(), ..ModelRequest::default() });
        let mut wires = Vec::new();
        for name in names {
            let wire = codec.encode(name).into_owned();
            assert!(wire.len() <= MAX_CHARS && !RESERVED.contains(&wire.as_str()), "{wire}");
            assert!(wire.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-'), "{wire}");
            assert_eq!(codec.encode(&wire), wire, "encoding twice changes nothing");
            let call = ModelEvent::ToolCall {
                provider_id: String::new(),
                name: wire.clone(),
                arguments: String::new(),
                signature: None,
            };
            let mut called = false;
            let ModelEvent::ToolCall { name: back, .. } = codec.decode(call, &mut called) else { panic!() };
            assert_eq!(back, name);
            assert!(called);
            wires.push(wire);
        }
        assert_eq!(wires[0], "plain");
        wires.sort();
        wires.dedup();
        assert_eq!(wires.len(), names.len());
    }
}
