//! The short form of a long tool result, as old turns show it: its beginning and its end. It is stored beside a result
//! whose text is in rows of its own, so that these need not be read. So is that of a state which is not the newest one.

use super::content::ContentPart;
use super::item::{ItemBody, StateItem, ToolResultItem};
use super::json::RawJson;

/// Characters of text above which an old result is shortened.
pub const EXCERPT_ABOVE: usize = 4_000;
/// Characters that stay at the beginning.
const HEAD: usize = 1_500;
/// And at the end.
const TAIL: usize = 1_500;
/// What stands between them.
pub const EXCERPT_GAP: &str = "\n[… the middle of this result was left out to save room …]\n";
/// What stands for an image of an old result.
pub const IMAGE_CLEARED: &str = "[image left out to save room]";

// An excerpt is always shorter than what it stands for.
const _: () = assert!(HEAD + TAIL + EXCERPT_GAP.len() < EXCERPT_ABOVE);

/// The short form of a result's parts; none if they are short as they are.
pub fn excerpt(parts: &[ContentPart]) -> Option<Vec<ContentPart>> {
    let images = parts.iter().filter(|part| matches!(part, ContentPart::Image { .. })).count();
    let text = ContentPart::join_text(parts);
    let chars = text.chars().count();
    if images == 0 && chars <= EXCERPT_ABOVE {
        return None;
    }
    let short = match chars > EXCERPT_ABOVE {
        true => {
            let head: String = text.chars().take(HEAD).collect();
            let tail: String = text.chars().skip(chars - TAIL).collect();
            format!("{head}{EXCERPT_GAP}{tail}")
        }
        false => text,
    };
    let notes = std::iter::repeat_n(ContentPart::text(IMAGE_CLEARED), images);
    Some(std::iter::once(ContentPart::Text(short)).filter(|part| !part.is_blank()).chain(notes).collect())
}

/// Characters of a result's text.
pub fn text_chars(parts: &[ContentPart]) -> usize {
    ContentPart::join_text(parts).chars().count()
}

/// The short form of an item, and the characters of its text; none for what is never shortened.
pub fn excerpt_of(body: &ItemBody) -> Option<(ItemBody, usize)> {
    let result = match body {
        ItemBody::ToolResult(result) => result,
        // That there was one is all that counts of a state that another one has followed.
        ItemBody::State(item) => {
            let none = StateItem { state: RawJson::empty_object() };
            return Some((ItemBody::State(none), item.state.get().chars().count()));
        }
        _ => return None,
    };
    let parts = excerpt(&result.parts)?;
    let short = ToolResultItem { parts, display_as: None, ..result.clone() };
    Some((ItemBody::ToolResult(short), text_chars(&result.parts)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_cut_between_characters_and_only_if_it_is_long() {
        let text = |length: usize| vec![ContentPart::text("ü".repeat(length))];
        assert_eq!(excerpt(&text(EXCERPT_ABOVE)), None);
        let short = ContentPart::join_text(&excerpt(&text(EXCERPT_ABOVE + 1)).unwrap());
        assert_eq!(short.chars().count(), HEAD + TAIL + EXCERPT_GAP.chars().count());
        assert!(short.starts_with("üü") && short.ends_with("üü"));
        assert_eq!(excerpt(&excerpt(&text(9_000)).unwrap()), None, "an excerpt has none");
    }
}
