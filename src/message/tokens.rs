//! Estimates of tokens, where no provider has counted: a quarter of the bytes, and images by their size in pixels.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::content::{ContentPart, ImageData};
use super::item::ItemBody;

/// Bytes that count as one token.
const BYTES_PER_TOKEN: usize = 4;
/// The least and the most that an image counts; the most also where its size is not known.
const IMAGE_TOKENS: std::ops::RangeInclusive<u64> = 85..=5_000;
/// Base64 characters in which an image's header is looked for: its first 64 KiB, rounded down to whole groups.
const HEADER_CHARS: usize = 64 * 1024 / 3 * 4;

/// The estimate of `bytes` of text, rounded up.
pub fn of_bytes(bytes: usize) -> u64 {
    bytes.div_ceil(BYTES_PER_TOKEN) as u64
}

/// The estimate of an item whose stored text has `bytes`. Image data counts by its pixels, not by its length.
pub fn of_item(body: &ItemBody, bytes: usize) -> u64 {
    // No request holds it.
    if matches!(body, ItemBody::State(_)) {
        return 0;
    }
    let images = body.parts().iter().filter_map(|part| match part {
        ContentPart::Image { data, .. } => Some(data),
        ContentPart::Text(_) | ContentPart::Unknown(_) => None,
    });
    let (mut data, mut tokens) = (0, 0);
    for image in images {
        data += image.as_str().len();
        tokens += of_image(image);
    }
    of_bytes(bytes.saturating_sub(data)).saturating_add(tokens)
}

/// `width * height / 750`, a fifth more.
fn of_image(image: &ImageData) -> u64 {
    let size = match image {
        ImageData::Url(_) => None,
        ImageData::Base64(text) => {
            let head = text.get(..text.len().min(HEADER_CHARS) / 4 * 4);
            let bytes = head.and_then(|head| STANDARD.decode(head).ok());
            bytes.and_then(|bytes| imagesize::blob_size(&bytes).ok())
        }
    };
    let Some(size) = size else { return *IMAGE_TOKENS.end() };
    let pixels = (size.width as u64).saturating_mul(size.height as u64);
    pixels.saturating_mul(12).div_ceil(7_500).clamp(*IMAGE_TOKENS.start(), *IMAGE_TOKENS.end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::UserItem;

    #[test]
    fn text_counts_a_quarter_of_its_bytes_and_an_image_its_pixels() {
        assert_eq!([0, 3, 4, 5].map(of_bytes), [0, 1, 1, 2]);
        // A PNG header that says 1,000 by 1,000.
        let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
        png.extend(1_000_u32.to_be_bytes());
        png.extend(1_000_u32.to_be_bytes());
        png.extend([8, 6, 0, 0, 0]);
        let image = ImageData::Base64(STANDARD.encode(&png));
        assert_eq!(of_image(&image), 1_600);
        assert_eq!(of_image(&ImageData::Base64("AAAA".into())), 5_000);
        let long = ImageData::Base64(format!("{}{}", STANDARD.encode(&png[..24]), "A".repeat(1_000_000)));
        let body = ItemBody::User(UserItem {
            parts: vec![ContentPart::Image { data: long, media_type: None }],
            ..UserItem::default()
        });
        assert!(of_item(&body, body.to_raw().len()) < 2_000, "never by the length of its data");
    }
}
