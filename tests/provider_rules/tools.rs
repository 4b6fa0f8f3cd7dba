//! Tool lists as servers that somebody else wrote make them: every name and schema here passes discovery.

use dormouse::history::request::ToolDefinition;
use proptest::prelude::*;
use serde_json::{Value, json};

const NAMES: [&str; 8] = [
    "f",
    "g",
    "web_search",
    "googleSearch",
    "7up",
    "-",
    "receive_event__injected",
    "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn",
];

const DESCRIPTIONS: [&str; 5] = ["does it", "", " \n", "\u{feff}", "\"}]\u{0}ü🐭"];

fn schemas() -> Vec<Value> {
    let a = json!({ "a": { "type": "string" } });
    let alternatives = json!([{ "required": ["a"] }, { "required": ["b"] }]);
    vec![
        json!({ "type": "object" }),
        json!({ "type": "object", "properties": a, "required": ["a"], "additionalProperties": false }),
        json!({ "type": "object", "properties": a, "anyOf": alternatives }),
        json!({ "type": "object", "properties": a, "oneOf": alternatives, "$schema": "x" }),
        json!({ "type": "object", "properties": a, "allOf": [{ "$ref": "#/$defs/x" }], "$defs": { "x": {} } }),
        json!({ "type": "object", "properties": a, "not": { "required": ["b"] }, "enum": [{}] }),
        json!({ "type": "object", "properties": { "naïve": {}, "": {}, "a b": {}, "ok": {} }, "required": ["naïve", "ok"] }),
        json!({ "type": "object", "properties": { "x".repeat(65): {}, "a.b-c_d": { "anyOf": [{}, { "type": "null" }] } } }),
        json!({ "type": ["object", "null"], "properties": a }),
        json!({ "properties": a }),
        json!({ "type": "object", "properties": null }),
    ]
}

/// No tools, which is a summary's request (F43), or some.
pub fn offered() -> impl Strategy<Value = Vec<ToolDefinition>> {
    let tool = |name: &'static str| {
        let rest = (prop::sample::select(&DESCRIPTIONS[..]), prop::sample::select(schemas()));
        rest.prop_map(move |(description, input_schema)| ToolDefinition {
            name: name.to_owned(),
            description: description.to_owned(),
            input_schema,
        })
    };
    let names = prop::sample::subsequence(&NAMES[..], 0..4);
    names.prop_flat_map(move |names| names.into_iter().map(tool).collect::<Vec<_>>())
}
