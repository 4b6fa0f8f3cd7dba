//! What providers refuse, written from their published rules and not from our renderer: one judge for each dialect, over
//! the body of a request as it reached an HTTP server. A rule of which providers say different things is taken at its
//! strictest. Where an API joins or repairs what a client sent, so does the judge, before it looks.

pub mod anthropic;
pub mod bedrock;
pub mod chat;
pub mod gemini;
pub mod responses;

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// Whether a body is taken, or why not.
pub type Verdict = Result<(), String>;

/// The smallest of the providers' limits on a body: Bedrock and Gemini take 20 MB.
pub const MAX_BODY: usize = 20 * 1024 * 1024;
/// "Each image's size must be no more than 3.75 MB" (Bedrock), "5 MB per image" in base64 (Anthropic).
const MAX_BASE64: usize = 5 * 1024 * 1024;

pub fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(otherwise()) }
}

pub fn object<'a>(value: &'a Value, what: &str) -> Result<&'a Map<String, Value>, String> {
    value.as_object().ok_or_else(|| format!("{what} is no object: {value}"))
}

pub fn string<'a>(value: &'a Value, what: &str) -> Result<&'a str, String> {
    value.as_str().ok_or_else(|| format!("{what} is no string: {value}"))
}

/// A list that is not empty.
pub fn list<'a>(value: &'a Value, what: &str) -> Result<&'a [Value], String> {
    let list = value.as_array().ok_or_else(|| format!("{what} is no list: {value}"))?;
    ensure(!list.is_empty(), || format!("{what} is empty"))?;
    Ok(list)
}

/// An object without members that the API does not know ("Extra inputs are not permitted", "Unknown name").
pub fn members<'a>(value: &'a Value, known: &[&str], what: &str) -> Result<&'a Map<String, Value>, String> {
    let members = object(value, what)?;
    match members.keys().find(|name| !known.contains(&name.as_str())) {
        None => Ok(members),
        Some(odd) => Err(format!("{what}: unknown member {odd}")),
    }
}

/// Text that is worth a block. What counts as white space differs with the language a provider is written in: this is
/// Unicode's, Python's (which has the separators below U+0020) and JavaScript's (which has the byte order mark).
pub fn text(value: &Value, what: &str) -> Verdict {
    let white = |c: char| c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c) || c == '\u{feff}';
    ensure(!string(value, what)?.chars().all(white), || format!("{what} is blank"))
}

/// `^[a-zA-Z0-9_-]{1,max}$`
pub fn word(value: &Value, max: usize, what: &str) -> Verdict {
    let word = string(value, what)?;
    let fits = (1..=max).contains(&word.len())
        && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    ensure(fits, || format!("{what} is out of bounds: {word:?}"))
}

/// Padded base64, of the standard alphabet or (`url_safe`) of the other one too.
pub fn base64(text: &str, url_safe: bool, what: &str) -> Verdict {
    let alphabet =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/') || (url_safe && matches!(c, '-' | '_'));
    let body = text.trim_end_matches('=');
    let fits = text.len().is_multiple_of(4) && text.len() - body.len() <= 2 && body.chars().all(alphabet);
    ensure(fits && !body.is_empty(), || format!("{what} is no base64: {text:?}"))
}

/// "Could not process image", "the image was specified using the image/png media type, but the image appears to be a
/// image/jpeg image": base64 of a picture of the type that is said, known by the characters that such begin with.
pub fn picture(media_type: &str, data: &str, taken: &[&str]) -> Verdict {
    base64(data, false, "an image")?;
    ensure(data.len() <= MAX_BASE64, || format!("an image of {} characters", data.len()))?;
    ensure(taken.contains(&media_type), || format!("images of type {media_type:?} are not taken"))?;
    let starts: &[&str] = match media_type {
        "image/png" => &["iVBORw0KGg"],
        "image/jpeg" => &["/9j/"],
        "image/gif" => &["R0lGODdh", "R0lGODlh"],
        "image/webp" => &["UklGR"],
        _ => &[],
    };
    ensure(starts.iter().any(|start| data.starts_with(start)), || format!("an image that is no {media_type}"))
}

/// "Only HTTPS URLs are supported."
pub fn https(url: &str) -> Verdict {
    let host = url.strip_prefix("https://").and_then(|rest| rest.split('/').next());
    ensure(host.is_some_and(|host| !host.is_empty()), || format!("an image at {url:?}"))
}

/// The parameters of a tool: "must be a JSON Schema of 'type: \"object\"'", "does not support oneOf, allOf, or anyOf at
/// the top level" (OpenAI adds enum and not), "object schema missing properties".
pub fn schema(value: &Value, what: &str) -> Verdict {
    let schema = object(value, what)?;
    ensure(schema.get("type") == Some(&Value::from("object")), || format!("{what} has no type object"))?;
    for keyword in ["oneOf", "anyOf", "allOf", "enum", "not"] {
        ensure(!schema.contains_key(keyword), || format!("{what} has {keyword} at the top level"))?;
    }
    object(schema.get("properties").unwrap_or(&Value::Null), "properties").map(|_| ())
}

/// Claude: "Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'".
pub fn property_names(schema: &Value) -> Verdict {
    let properties = object(&schema["properties"], "properties")?;
    let fits = |name: &String| {
        (1..=64).contains(&name.len())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
    };
    ensure(properties.keys().all(fits), || "a property name is out of bounds".to_owned())
}

/// The calls of one message and the results behind it: each call once, each answered once.
#[derive(Default)]
pub struct Pairs {
    all: BTreeSet<String>,
    owed: Vec<String>,
}

impl Pairs {
    pub fn call(&mut self, id: &str) -> Verdict {
        self.owed.push(id.to_owned());
        ensure(self.all.insert(id.to_owned()), || format!("call ids must be unique: {id}"))
    }

    pub fn result(&mut self, id: &str) -> Verdict {
        let at = self.owed.iter().position(|owed| owed == id);
        let at = at.ok_or_else(|| format!("the result {id} answers no call of the message before"))?;
        self.owed.remove(at);
        Ok(())
    }

    /// Nothing is owed any more.
    pub fn settled(&self) -> Verdict {
        ensure(self.owed.is_empty(), || format!("calls without results right behind them: {:?}", self.owed))
    }
}

/// Names of tools: in bounds, each once.
#[derive(Default)]
pub struct Names(BTreeSet<String>);

impl Names {
    pub fn add(&mut self, name: &Value) -> Verdict {
        word(name, 64, "a tool's name")?;
        ensure(self.0.insert(name.to_string()), || format!("tool names must be unique: {name}"))
    }
}
