//! Content parts, as user messages, tool results and items hold them.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// One part of a message: text, an image, or a kind this version does not know.
#[derive(Clone, Debug, PartialEq)]
pub enum ContentPart {
    /// Plain text.
    Text(String),
    /// An image, inline or by address.
    Image {
        /// Where the bytes are.
        data: ImageData,
        /// The subtype (`png`, `jpeg`, …) or a full media type, as received.
        media_type: Option<String>,
    },
    /// A kind of a newer producer: kept, rendered as a note that it cannot be shown.
    Unknown(Value),
}

/// Whether a text holds nothing that a provider takes for one. What counts as white space differs with the language it
/// is written in: Unicode's, Python's (the separators below U+0020) and JavaScript's (the byte order mark) all count.
pub fn is_blank(text: &str) -> bool {
    text.chars().all(|c| c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}' | '\u{feff}'))
}

/// The bytes of an image: `{"type":"base64"|"url","value":…}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", content = "value", rename_all = "lowercase")]
pub enum ImageData {
    /// Base64 text, standard alphabet.
    Base64(String),
    /// An address that the provider fetches.
    Url(String),
}

impl ImageData {
    /// The base64 text or the address.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Base64(text) | Self::Url(text) => text,
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Known {
    Text {
        text: String,
    },
    Image {
        data: ImageData,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        media_type: Option<String>,
    },
}

impl ContentPart {
    /// A text part.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// Whether the part holds nothing but white space ([`is_blank`]); images and unknown kinds are never blank.
    pub fn is_blank(&self) -> bool {
        matches!(self, Self::Text(text) if is_blank(text))
    }

    /// All text of `parts`, joined by line breaks.
    pub fn join_text(parts: &[ContentPart]) -> String {
        let texts: Vec<&str> = parts
            .iter()
            .filter_map(|part| match part {
                Self::Text(text) => Some(text.as_str()),
                Self::Image { .. } | Self::Unknown(_) => None,
            })
            .collect();
        texts.join("\n")
    }
}

impl Serialize for ContentPart {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => Known::Text { text: text.clone() }.serialize(serializer),
            Self::Image { data, media_type } => {
                Known::Image { data: data.clone(), media_type: media_type.clone() }.serialize(serializer)
            }
            Self::Unknown(value) => value.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for ContentPart {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let known = matches!(value.get("type").and_then(Value::as_str), Some("text" | "image"));
        if !known {
            return Ok(Self::Unknown(value));
        }
        Ok(match serde_json::from_value(value).map_err(serde::de::Error::custom)? {
            Known::Text { text } => Self::Text(text),
            Known::Image { data, media_type } => Self::Image { data, media_type },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f27_white_space_of_any_provider_is_blank_and_nothing_else() {
        for blank in ["", " \n\t", "\u{2003}\u{85}\u{a0}", "\u{1c}\u{1f}", "\u{feff} "] {
            assert!(is_blank(blank), "{blank:?}");
        }
        for text in ["x", " x ", "\u{0}", "\u{200b}", "\u{1b}", "\u{fffe}"] {
            assert!(!is_blank(text), "{text:?}");
        }
    }
}
