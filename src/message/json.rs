//! JSON at the edges: what other people send is mended, what goes on a queue is escaped, and what must stay
//! byte for byte as it came is kept as raw text.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// JSON text kept exactly as it was received: number spelling, key order and duplicate keys included (F37).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawJson(Box<str>);

impl RawJson {
    /// Keeps `text` if it is one valid JSON value.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str::<&RawValue>(text).map(|raw| Self(raw.get().into()))
    }

    /// The empty object.
    pub fn empty_object() -> Self {
        Self("{}".into())
    }

    /// The same value without line breaks, which are somebody's layout: inside of strings they are escaped.
    #[must_use]
    pub fn on_one_line(&self) -> Self {
        Self(self.0.replace(['\n', '\r'], " ").into())
    }

    /// Whether both are one value, whatever their spelling.
    pub fn is_same(&self, other: &Self) -> bool {
        let value = |raw: &Self| serde_json::from_str::<serde_json::Value>(&raw.0).ok();
        self == other || value(self).is_some_and(|known| value(other) == Some(known))
    }

    /// The text.
    pub fn get(&self) -> &str {
        &self.0
    }

    /// A string member of an object, if there is one.
    pub fn str_field(&self, name: &str) -> Option<String> {
        let value: serde_json::Value = serde_json::from_str(&self.0).ok()?;
        value.get(name)?.as_str().map(str::to_owned)
    }
}

impl Serialize for RawJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_str(&self.0).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RawJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(|raw| Self(raw.get().into()))
    }
}

/// Whether there is something below the last level that may be.
pub fn is_deeper(value: &serde_json::Value, levels: usize) -> bool {
    let Some(below) = levels.checked_sub(1) else { return value.is_array() || value.is_object() };
    match value {
        serde_json::Value::Array(values) => values.iter().any(|value| is_deeper(value, below)),
        serde_json::Value::Object(fields) => fields.values().any(|value| is_deeper(value, below)),
        serde_json::Value::Null
        | serde_json::Value::Bool(_)
        | serde_json::Value::Number(_)
        | serde_json::Value::String(_) => false,
    }
}

/// Bytes from outside as text that serde_json can read: invalid UTF-8 and escapes of lone surrogates, which
/// JSON writers of other languages emit, become U+FFFD (F31). A leading byte order mark is dropped.
pub fn mend(bytes: &[u8]) -> Cow<'_, str> {
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
    match String::from_utf8_lossy(bytes) {
        Cow::Borrowed(text) => mend_surrogates(text),
        Cow::Owned(text) => match mend_surrogates(&text) {
            Cow::Borrowed(_) => Cow::Owned(text),
            Cow::Owned(mended) => Cow::Owned(mended),
        },
    }
}

fn mend_surrogates(text: &str) -> Cow<'_, str> {
    let bytes = text.as_bytes();
    let mut out: Option<String> = None;
    let mut copied = 0;
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] != b'\\' {
            at += 1;
            continue;
        }
        match escape_unit(bytes, at) {
            Some(unit) if is_high(unit) && escape_unit(bytes, at + 6).is_some_and(is_low) => at += 12,
            Some(unit) if is_high(unit) || is_low(unit) => {
                let out = out.get_or_insert_with(|| String::with_capacity(text.len()));
                out.push_str(&text[copied..at]);
                out.push_str("\\ufffd");
                at += 6;
                copied = at;
            }
            // An escape of one character: its second byte may itself be a backslash, so skip both.
            _ => at += 2,
        }
    }
    match out {
        None => Cow::Borrowed(text),
        Some(mut out) => {
            out.push_str(&text[copied..]);
            Cow::Owned(out)
        }
    }
}

/// The UTF-16 unit of a `\uXXXX` escape at `at`.
fn escape_unit(bytes: &[u8], at: usize) -> Option<u16> {
    let escape = bytes.get(at..at + 6)?;
    if !escape.starts_with(b"\\u") || !escape[2..].iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u16::from_str_radix(std::str::from_utf8(&escape[2..]).ok()?, 16).ok()
}

fn is_high(unit: u16) -> bool {
    (0xD800..0xDC00).contains(&unit)
}

fn is_low(unit: u16) -> bool {
    (0xDC00..0xE000).contains(&unit)
}

/// Serialises for SQS, whose character set leaves out U+FFFE and U+FFFF: serde_json writes those raw, so they
/// are escaped here (F32). They can only stand inside strings, so the replacement is sound.
pub fn to_queue_body<T: Serialize + ?Sized>(value: &T) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string(value)?.replace('\u{FFFE}', "\\ufffe").replace('\u{FFFF}', "\\uffff"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f31_lone_surrogates_become_the_replacement_character_and_pairs_stay() {
        let read = |text: &str| serde_json::from_str::<String>(&mend(text.as_bytes())).unwrap();
        assert_eq!(read(r#""a\ud83dz""#), "a\u{FFFD}z");
        assert_eq!(read(r#""a\ude00z""#), "a\u{FFFD}z");
        assert_eq!(read(r#""\ud83d\ude00""#), "😀");
        assert_eq!(read(r#""\ud83d\ud83d\ude00""#), "\u{FFFD}😀");
        assert_eq!(read(r#""\\ud83d""#), "\\ud83d", "six literal characters are no escape");
        assert_eq!(read(r#""\\\ud83d""#), "\\\u{FFFD}");
        assert!(matches!(mend(b"\"plain\""), Cow::Borrowed(_)));
        assert_eq!(mend(b"\xEF\xBB\xBF\"\xFFx\""), "\"\u{FFFD}x\"");
        for cut in ["\"\\", "\"\\u", "\"\\ud8", "\"\\ud83d\\u", "\"\\ud83d\\"] {
            mend(cut.as_bytes());
        }
    }

    #[test]
    fn f32_what_goes_on_the_queue_stays_within_its_character_set() {
        let text = "\u{FFFE}\u{FFFF}\u{7}\u{0}é😀";
        let body = to_queue_body(text).unwrap();
        assert!(
            body.chars().all(|c| matches!(c, '\t' | '\n' | '\r' | '\u{20}'..='\u{FFFD}' | '\u{10000}'..))
        );
        assert_eq!(serde_json::from_str::<String>(&body).unwrap(), text);
    }

    #[test]
    fn f37_raw_json_is_kept_to_the_byte() {
        let text = r#"{"a":1.0,"b":0.1,"c":12345678901234567890123,"z":1,"y":2,"z":3}"#;
        let raw: RawJson = serde_json::from_str(text).unwrap();
        assert_eq!(raw.get(), text);
        assert_eq!(serde_json::to_string(&raw).unwrap(), text);
    }
}
