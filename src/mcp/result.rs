//! What a call returned, as content parts: text and images as they are, a line for everything else.

use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};

use super::failure::Failure;
use crate::message::{ContentPart, ImageData};

/// Bytes of one result's text and data: as much as a callback may bring.
pub(super) const MAX_RESULT_BYTES: usize = 4 * 1024 * 1024;

/// A result of a tool, good or bad.
#[derive(Debug, PartialEq)]
pub(super) enum Returned {
    /// What it returned.
    Content(Vec<ContentPart>),
    /// What it says went wrong.
    ToolError(String),
}

/// Reads a result. Text that follows text is one part. Structured content counts where there is no text: beside text
/// it repeats it.
pub(super) fn read(result: CallToolResult) -> Result<Returned, Failure> {
    let failed = result.is_error == Some(true);
    let mut parts: Vec<ContentPart> = Vec::new();
    for block in result.content {
        match (part(block), parts.last_mut()) {
            (ContentPart::Text(text), Some(ContentPart::Text(before))) => {
                before.push('\n');
                before.push_str(&text);
            }
            (part, _) => parts.push(part),
        }
    }
    let has_text =
        parts.iter().any(|part| matches!(part, ContentPart::Text(text) if !text.trim().is_empty()));
    if let Some(structured) = result.structured_content.filter(|_| !has_text) {
        parts.push(ContentPart::Text(structured.to_string()));
    }
    if parts.iter().map(bytes).sum::<usize>() > MAX_RESULT_BYTES {
        return Err(Failure::TooLarge(MAX_RESULT_BYTES));
    }
    Ok(match failed {
        true => Returned::ToolError(ContentPart::join_text(&parts)),
        false => Returned::Content(parts),
    })
}

fn part(block: ContentBlock) -> ContentPart {
    match block {
        ContentBlock::Text(text) => ContentPart::Text(text.text),
        ContentBlock::Image(image) => self::image(image.data, image.mime_type),
        ContentBlock::Audio(audio) => not_shown("audio", &audio.mime_type, audio.data.len()),
        ContentBlock::Resource(embedded) => match embedded.resource {
            ResourceContents::TextResourceContents { uri, text, .. } => {
                ContentPart::Text(format!("[resource {uri}]\n{text}"))
            }
            ResourceContents::BlobResourceContents { blob, mime_type: Some(kind), .. }
                if kind.starts_with("image/") =>
            {
                self::image(blob, kind)
            }
            ResourceContents::BlobResourceContents { uri, blob, mime_type, .. } => not_shown(
                &format!("resource {uri}"),
                mime_type.as_deref().unwrap_or("unknown type"),
                blob.len(),
            ),
            _ => ContentPart::text("[a resource of an unknown kind]"),
        },
        ContentBlock::ResourceLink(link) => {
            let about = link.description.map(|text| format!(": {text}")).unwrap_or_default();
            ContentPart::Text(format!("[resource {} at {}{about}]", link.name, link.uri))
        }
        _ => ContentPart::text("[content of an unknown kind]"),
    }
}

fn image(base64: String, media_type: String) -> ContentPart {
    ContentPart::Image { data: ImageData::Base64(base64), media_type: Some(media_type) }
}

fn not_shown(what: &str, kind: &str, base64_bytes: usize) -> ContentPart {
    ContentPart::Text(format!("[{what}, {kind}, about {} bytes, not shown]", base64_bytes / 4 * 3))
}

fn bytes(part: &ContentPart) -> usize {
    match part {
        ContentPart::Text(text) => text.len(),
        ContentPart::Image { data: ImageData::Base64(data) | ImageData::Url(data), .. } => data.len(),
        ContentPart::Unknown(value) => value.to_string().len(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(result: Value) -> Result<Returned, Failure> {
        super::read(serde_json::from_value(result).unwrap())
    }

    fn content(result: Value) -> Vec<ContentPart> {
        match read(result).unwrap() {
            Returned::Content(parts) => parts,
            Returned::ToolError(text) => panic!("{text}"),
        }
    }

    #[test]
    fn text_is_joined_images_are_kept_and_the_rest_is_described() {
        let parts = content(json!({"content": [
            {"type": "text", "text": "a"},
            {"type": "text", "text": "b"},
            {"type": "image", "data": "aGk=", "mimeType": "image/png"},
            {"type": "audio", "data": "aGhoaGho", "mimeType": "audio/wav"},
            {"type": "resource", "resource": {"uri": "file:///x", "text": "inside"}},
            {"type": "resource", "resource": {"uri": "file:///y", "mimeType": "image/gif", "blob": "aGk="}},
            {"type": "resource", "resource": {"uri": "file:///z", "blob": "aGk="}},
            {"type": "resource_link", "uri": "file:///l", "name": "l", "description": "a link"},
        ]}));
        let image = |kind: &str| self::image("aGk=".into(), kind.into());
        let expected = [
            ContentPart::text("a\nb"),
            image("image/png"),
            ContentPart::text("[audio, audio/wav, about 6 bytes, not shown]\n[resource file:///x]\ninside"),
            image("image/gif"),
            ContentPart::text(
                "[resource file:///z, unknown type, about 3 bytes, not shown]\n\
                 [resource l at file:///l: a link]",
            ),
        ];
        assert_eq!(parts, expected);
    }

    #[test]
    fn structured_content_counts_where_there_is_no_text() {
        let structured = json!({"n": 1.0});
        let both = json!({"content": [{"type": "text", "text": "one"}], "structuredContent": structured});
        assert_eq!(content(both), [ContentPart::text("one")]);
        let alone = json!({"content": [], "structuredContent": structured});
        assert_eq!(content(alone), [ContentPart::text(r#"{"n":1.0}"#)]);
        assert_eq!(content(json!({"content": []})), []);
    }

    #[test]
    fn an_error_is_its_text_and_what_is_too_large_is_refused() {
        let failed = json!({"content": [{"type": "text", "text": "no such file"}], "isError": true});
        assert_eq!(read(failed), Ok(Returned::ToolError("no such file".into())));
        let large = json!({"content": [{"type": "text", "text": "x".repeat(MAX_RESULT_BYTES + 1)}]});
        assert_eq!(read(large), Err(Failure::TooLarge(MAX_RESULT_BYTES)));
    }
}
