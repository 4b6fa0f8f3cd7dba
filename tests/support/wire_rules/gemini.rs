//! Gemini `generateContent`: <https://ai.google.dev/api/generate-content>, and its pages on function calling, thought
//! signatures and images. Member names are taken in both of protobuf's spellings.

use serde_json::{Map, Value};

use super::{Verdict, base64, ensure, https, list, members, object, picture, schema, string, text};

/// "PNG, JPEG, WEBP, HEIC, HEIF".
const IMAGES: [&str; 5] = ["image/png", "image/jpeg", "image/webp", "image/heic", "image/heif"];
const BODY: [&str; 5] = ["contents", "systemInstruction", "tools", "toolConfig", "generationConfig"];
/// The kinds of data of which a part has exactly one.
const KINDS: [&str; 5] = ["text", "inlineData", "fileData", "functionCall", "functionResponse"];

/// A call or a response, as far as pairing looks at it.
#[derive(PartialEq)]
struct Named<'a> {
    name: &'a str,
    id: Option<&'a str>,
}

/// `strict_signatures`: the model is a Gemini 3, which refuses a current turn without them.
pub fn judge(body: &Value, strict_signatures: bool) -> Verdict {
    members(body, &BODY, "body")?;
    if let Some(system) = body.get("systemInstruction") {
        list(&system["parts"], "systemInstruction")?
            .iter()
            .try_for_each(|part| text(&part["text"], "system"))?;
    }
    if let Some(tools) = body.get("tools") {
        declarations(list(tools, "tools")?)?;
    }
    let contents = list(&body["contents"], "contents")?;
    let mut owed: Vec<Named<'_>> = Vec::new();
    let (mut before, mut current) = ("", 0);
    for (at, content) in contents.iter().enumerate() {
        members(content, &["role", "parts"], "a content")?;
        let role = string(&content["role"], "role")?;
        let (mut calls, mut responses, mut others) = (Vec::new(), Vec::new(), 0);
        for each in list(&content["parts"], "parts").map_err(|e| format!("content {at}: {e}"))? {
            match part(role, each).map_err(|e| format!("content {at}: {e}"))? {
                (Some(call), _) => calls.push(call),
                (_, Some(response)) => responses.push(response),
                (None, None) => others += 1,
            }
        }
        match role {
            "user" => {
                // "Please ensure that the number of function response parts is equal to the number of function call
                // parts of the function call turn", and that it "comes immediately after a function call turn".
                ensure(responses == owed, || {
                    format!("content {at}: responses do not answer the calls before")
                })?;
                owed.clear();
                if others > 0 {
                    current = at;
                }
            }
            "model" => {
                ensure(owed.is_empty(), || format!("content {at}: calls without responses"))?;
                // "Please ensure that function call turn comes immediately after a user turn or after a function
                // response turn."
                ensure(before == "user", || format!("content {at}: a model turn behind another, or first"))?;
                owed = calls;
            }
            odd => return Err(format!("role {odd}")),
        }
        before = role;
    }
    ensure(owed.is_empty() && before == "user", || "the last content is not user-role".to_owned())?;
    if strict_signatures { signatures(&contents[current..]) } else { Ok(()) }
}

/// "Function call is missing a thought_signature in functionCall parts": the first call of each step of the current
/// turn, which begins with the last user content that is no function response.
fn signatures(turn: &[Value]) -> Verdict {
    for content in turn.iter().filter(|content| content["role"] == "model") {
        let parts = content["parts"].as_array().map_or(&[][..], Vec::as_slice);
        let first = parts.iter().find(|part| data(part, "functionCall").is_some());
        let signed = |part: &Value| part.get("thoughtSignature").is_some_and(Value::is_string);
        ensure(first.is_none_or(signed), || "a call of the current turn without a signature".to_owned())?;
    }
    Ok(())
}

/// A member under its name or the same in snake case.
fn data<'a>(part: &'a Value, name: &str) -> Option<&'a Value> {
    part.get(name).or_else(|| part.get(snake(name)))
}

fn snake(name: &str) -> String {
    let spell = |c: char| match c.is_ascii_uppercase() {
        true => format!("_{}", c.to_ascii_lowercase()),
        false => c.to_string(),
    };
    name.chars().map(spell).collect()
}

/// Judges a part; its call or its response, if it is one.
fn part<'a>(role: &str, part: &'a Value) -> Result<(Option<Named<'a>>, Option<Named<'a>>), String> {
    let all: Map<String, Value> = object(part, "a part")?.clone();
    let known = |name: &String| {
        KINDS.iter().any(|kind| name == kind || *name == snake(kind))
            || name == "thoughtSignature"
            || name == "thought"
    };
    ensure(all.keys().all(known), || format!("a part with an unknown member: {part}"))?;
    let kinds: Vec<&str> = KINDS.into_iter().filter(|kind| data(part, kind).is_some()).collect();
    let [kind] = kinds[..] else { return Err(format!("a part with {} kinds of data", kinds.len())) };
    if let Some(signature) = part.get("thoughtSignature") {
        ensure(role == "model", || "a signature of the user".to_owned())?;
        // A field of bytes.
        base64(string(signature, "thoughtSignature")?, true, "thoughtSignature")?;
    }
    let value = data(part, kind).unwrap_or(&Value::Null);
    match (kind, role) {
        ("text", _) => text(value, "text").map(|()| (None, None)),
        ("inlineData", "user") => {
            let mime = string(data(value, "mimeType").unwrap_or(&Value::Null), "mimeType")?;
            picture(mime, string(&value["data"], "data")?, &IMAGES).map(|()| (None, None))
        }
        ("fileData", "user") => {
            let mime = string(data(value, "mimeType").unwrap_or(&Value::Null), "mimeType")?;
            ensure(IMAGES.contains(&mime), || format!("a file of type {mime}"))?;
            https(string(data(value, "fileUri").unwrap_or(&Value::Null), "fileUri")?).map(|()| (None, None))
        }
        ("functionCall", "model") => {
            members(value, &["name", "args", "id"], "functionCall")?;
            object(&value["args"], "args")?;
            named(value).map(|call| (Some(call), None))
        }
        ("functionResponse", "user") => {
            members(value, &["name", "response", "id"], "functionResponse")?;
            let response = object(&value["response"], "response")?;
            ensure(!response.is_empty(), || "an empty response".to_owned())?;
            named(value).map(|response| (None, Some(response)))
        }
        (odd, role) => Err(format!("{odd} in a content of the {role}")),
    }
}

fn named(value: &Value) -> Result<Named<'_>, String> {
    let name = string(&value["name"], "name")?;
    check_name(name)?;
    let id = value.get("id").map(|id| string(id, "id")).transpose()?;
    ensure(id.is_none_or(|id| !id.is_empty()), || "an empty id".to_owned())?;
    Ok(Named { name, id })
}

/// "Must start with a letter or an underscore. Must be a-z, A-Z, 0-9, or contain underscores, dots and dashes, with a
/// maximum length of 64."
fn check_name(name: &str) -> Verdict {
    let fits = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.len() <= 64
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'));
    ensure(fits, || format!("a function's name is out of bounds: {name:?}"))
}

fn declarations(tools: &[Value]) -> Verdict {
    let mut names = std::collections::BTreeSet::new();
    for tool in tools {
        members(tool, &["functionDeclarations"], "a tool")?;
        for declared in list(&tool["functionDeclarations"], "functionDeclarations")? {
            members(declared, &["name", "description", "parametersJsonSchema"], "a declaration")?;
            let name = string(&declared["name"], "name")?;
            check_name(name)?;
            ensure(names.insert(name), || format!("duplicate function declaration: {name}"))?;
            schema(&declared["parametersJsonSchema"], "parametersJsonSchema")?;
        }
    }
    Ok(())
}
