//! Which schemas arguments are checked against: those whose check is known to end soon.
//!
//! A JSON schema can cost exponential time: it may refer to itself twice for one value, chain references that double at
//! each link, or nest alternatives that are each tried again to say why they failed. A tool server is not trusted with
//! that (I7). So the work of a schema is bounded before it is compiled; above the bound the arguments go to the tool
//! unchecked, as they do for a tool without a schema.

use serde_json::{Map, Value};

/// The most subschemas that may be applied to one value, each alternative counted twice: once to try it and once to
/// explain it. Schemas of published tools need some hundreds.
const MAX_WORK: u64 = 100_000;
/// Links of references and nesting that are followed; beyond lies a schema that refers to itself.
const MAX_DEPTH: usize = 64;

/// Keywords whose subschemas look at parts of the value, each part once.
const PARTS: [&str; 5] = ["items", "additionalProperties", "additionalItems", "prefixItems", "propertyNames"];
/// Those that hold them by name.
const NAMED_PARTS: [&str; 2] = ["properties", "patternProperties"];
/// Keywords with names or with no subschemas below them that apply.
const INERT: [&str; 7] = ["$defs", "definitions", "const", "enum", "default", "examples", "example"];
/// Keywords that look again at what others have looked at.
const AGAIN: [&str; 2] = ["unevaluatedProperties", "unevaluatedItems"];
/// References whose target is known only while a value is checked.
const DYNAMIC: [&str; 2] = ["$dynamicRef", "$recursiveRef"];

/// Whether checking a value against the schema ends within [`MAX_WORK`] for each of the value's nodes.
pub(super) fn is_bounded(schema: &Value) -> bool {
    let mut left = MAX_WORK;
    spend(schema, schema, 1, 0, &mut left).is_some()
}

/// Takes the work of `schema`, done `times`, from what is left; none if that is too little.
fn spend(root: &Value, schema: &Value, times: u64, depth: usize, left: &mut u64) -> Option<()> {
    *left = left.checked_sub(times)?;
    if depth == MAX_DEPTH {
        return None;
    }
    match schema {
        Value::Object(members) => spend_members(root, members, times, depth, left),
        // A list of subschemas, or of plain values, which cost what they count.
        Value::Array(list) => list.iter().try_for_each(|schema| spend(root, schema, times, depth + 1, left)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Some(()),
    }
}

fn spend_members(
    root: &Value,
    members: &Map<String, Value>,
    times: u64,
    depth: usize,
    left: &mut u64,
) -> Option<()> {
    let times = if AGAIN.iter().any(|keyword| members.contains_key(*keyword)) {
        times.checked_mul(2)?
    } else {
        times
    };
    for (keyword, below) in members {
        match keyword.as_str() {
            "$ref" => {
                let target = below.as_str()?.strip_prefix('#').and_then(|at| root.pointer(at))?;
                spend(root, target, times, depth + 1, left)?;
            }
            known if DYNAMIC.contains(&known) => return None,
            known if INERT.contains(&known) => {}
            known if NAMED_PARTS.contains(&known) => {
                for part in below.as_object()?.values() {
                    spend(root, part, times, depth + 1, left)?;
                }
            }
            known if PARTS.contains(&known) => spend(root, below, times, depth + 1, left)?,
            // Alternatives, conditions, and what a newer draft may bring.
            _ => spend(root, below, times.checked_mul(2)?, depth + 1, left)?,
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ordinary_schemas_are_checked() {
        for schema in [
            json!({}),
            json!({"type": "object", "properties": {"a": {"type": "string", "enum": ["x", "y"]}}, "required": ["a"]}),
            json!({"properties": {"at": {"$ref": "#/$defs/point"}}, "$defs": {"point": {"type": "array",
                "prefixItems": [{"type": "number"}, {"type": "number"}]}}}),
            json!({"oneOf": [{"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}, {"not": {}}]}),
            // A property may be called like a keyword.
            json!({"properties": {"$ref": {"type": "string"}, "anyOf": {"type": "array", "items": {"type": "string"}}}}),
        ] {
            assert!(is_bounded(&schema), "{schema}");
        }
    }

    #[test]
    fn i7_schemas_whose_check_may_not_end_are_not() {
        let chained = |links: usize| {
            let mut defs = serde_json::Map::new();
            for n in 0..links {
                let next = json!({"$ref": format!("#/$defs/{}", n + 1)});
                defs.insert(n.to_string(), json!({"allOf": [next, next]}));
            }
            defs.insert(links.to_string(), json!({"type": "object"}));
            json!({"$ref": "#/$defs/0", "$defs": defs})
        };
        let mut nested = json!({"type": "string"});
        for _ in 0..30 {
            nested = json!({"anyOf": [nested]});
        }
        assert!(is_bounded(&chained(2)));
        for schema in [
            json!({"properties": {"a": {"$ref": "#"}}}),
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}}),
            json!({"$dynamicRef": "#node"}),
            json!({"$ref": "#/nowhere"}),
            json!({"$ref": "other.json"}),
            chained(40),
            nested,
        ] {
            assert!(!is_bounded(&schema), "{schema}");
        }
    }
}
