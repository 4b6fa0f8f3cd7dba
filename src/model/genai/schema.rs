//! Schemas of tools as providers take them. One schema that a provider refuses would make every request of its agent
//! fail, and a tool server's schemas are its own business: so the wire copy is cut to what is taken. What a model sends
//! is still checked against the whole schema.

use serde_json::{Map, Value, json};

use super::dialect::Dialect;

/// Anthropic and OpenAI refuse these at the top level; inside of properties they are taken.
const COMPOSITIONS: [&str; 3] = ["oneOf", "anyOf", "allOf"];
/// OpenAI refuses these too.
const CONDITIONS: [&str; 2] = ["enum", "not"];
/// The longest property name that Anthropic takes.
const MAX_PROPERTY_NAME: usize = 64;

/// The parameters of a tool: an object with properties, and nothing else at the top that a provider refuses.
pub(super) fn parameters(schema: &Value, dialect: Dialect) -> Value {
    let mut out = schema.as_object().cloned().unwrap_or_default();
    let mut properties = match out.remove("properties") {
        Some(Value::Object(properties)) => properties,
        Some(_) | None => Map::new(),
    };
    for composition in COMPOSITIONS.iter().filter_map(|keyword| out.remove(*keyword)) {
        // The model still reads what the alternatives are made of.
        for alternative in composition.as_array().into_iter().flatten() {
            for (name, property) in alternative["properties"].as_object().into_iter().flatten() {
                properties.entry(name.clone()).or_insert_with(|| property.clone());
            }
        }
    }
    out.retain(|keyword, _| !CONDITIONS.contains(&keyword.as_str()));
    if matches!(dialect, Dialect::Anthropic | Dialect::Bedrock) {
        properties.retain(|name, _| is_property_name(name));
        if let Some(Value::Array(required)) = out.get_mut("required") {
            required.retain(|name| name.as_str().is_some_and(is_property_name));
        }
    }
    out.insert("type".to_owned(), json!("object"));
    out.insert("properties".to_owned(), Value::Object(properties));
    Value::Object(out)
}

/// `^[a-zA-Z0-9_.-]{1,64}$`
fn is_property_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    (1..=MAX_PROPERTY_NAME).contains(&name.len()) && name.chars().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alternatives_at_the_top_become_properties_and_those_below_stay() {
        let schema = json!({
            "type": "object", "additionalProperties": false,
            "properties": { "a": { "anyOf": [{ "type": "null" }, { "not": {} }] } },
            "oneOf": [{ "properties": { "a": {}, "b": { "type": "string" } } }, { "required": ["a"] }],
            "not": { "required": ["c"] },
        });
        let wire = json!({
            "type": "object", "additionalProperties": false,
            "properties": { "a": { "anyOf": [{ "type": "null" }, { "not": {} }] }, "b": { "type": "string" } },
        });
        assert_eq!(parameters(&schema, Dialect::Chat), wire);
        assert_eq!(parameters(&wire, Dialect::Anthropic), wire, "what is taken stays as it is");
    }

    #[test]
    fn every_schema_is_an_object_with_properties() {
        for odd in [
            json!(null),
            json!(true),
            json!([]),
            json!({}),
            json!({ "type": ["object", "null"], "properties": 1 }),
        ] {
            assert_eq!(
                parameters(&odd, Dialect::Gemini),
                json!({ "type": "object", "properties": {} }),
                "{odd}"
            );
        }
    }

    #[test]
    fn property_names_that_a_dialect_refuses_are_left_out_there() {
        let schema =
            json!({ "type": "object", "properties": { "naïve": {}, "ok": {} }, "required": ["naïve", "ok"] });
        assert_eq!(parameters(&schema, Dialect::Responses), schema);
        let kept = json!({ "type": "object", "properties": { "ok": {} }, "required": ["ok"] });
        assert_eq!(parameters(&schema, Dialect::Anthropic), kept);
        assert_eq!(parameters(&schema, Dialect::Bedrock), kept);
    }
}
