//! Which images a request may hold. What one provider refuses would make every later request of its thread fail, so the
//! rule is what all of them take. Bytes that are no such picture become a note where they arrive ([`noted`]); older rows
//! that hold them keep them, and the note stands in the request.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use data_encoding::BASE32_NOPAD;
use sha2::{Digest, Sha256};
use url::Url;

use super::wording;
use crate::message::{ContentPart, ImageData};

/// The longest base64 text of an image: 5 MiB (Bedrock Converse and Anthropic's Messages).
pub const MAX_IMAGE_BASE64: usize = 5 * 1024 * 1024;
/// The most pixels of a side (Bedrock Converse and Anthropic's Messages).
const MAX_IMAGE_SIDE: usize = 8_000;
/// The longest address of an image.
const MAX_IMAGE_URL: usize = 8 * 1024;

/// Parts as they are stored: bytes that no provider takes for a picture become a note. An address stays, whatever it is.
pub fn noted(parts: Vec<ContentPart>) -> Vec<ContentPart> {
    let note = |part| match &part {
        ContentPart::Image { data: data @ ImageData::Base64(_), .. } if !is_acceptable(data) => {
            ContentPart::text(wording::IMAGE_UNUSABLE)
        }
        ContentPart::Image { .. } | ContentPart::Text(_) | ContentPart::Unknown(_) => part,
    };
    parts.into_iter().map(note).collect()
}

/// Whether every provider that takes images takes this one: an https address, or the bytes of a PNG, JPEG, GIF or
/// WebP picture, with a header that says its size, in padded standard base64 within [`MAX_IMAGE_BASE64`].
pub fn is_acceptable(data: &ImageData) -> bool {
    match data {
        ImageData::Url(url) => {
            // The parser mends what a provider refuses, such as `https:x/y`: only what needs no mending goes.
            url.len() <= MAX_IMAGE_URL
                && url.starts_with("https://")
                && url.bytes().all(|byte| byte.is_ascii_graphic())
                && Url::parse(url).is_ok_and(|url| url.has_host())
        }
        ImageData::Base64(text) => {
            text.len() <= MAX_IMAGE_BASE64 && STANDARD.decode(text).is_ok_and(|bytes| is_picture(&bytes))
        }
    }
}

/// A picture of a known kind, whose header is whole and within the limits.
fn is_picture(bytes: &[u8]) -> bool {
    let sides = 1..=MAX_IMAGE_SIDE;
    media_type(bytes).is_some()
        && imagesize::blob_size(bytes)
            .is_ok_and(|size| sides.contains(&size.width) && sides.contains(&size.height))
}

/// The media type of a picture, by how its bytes begin; none for what is no picture that providers take.
fn media_type(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

/// Names an image by its content.
pub(super) fn digest(data: &ImageData) -> String {
    /// Characters of base32: 80 bits tell the images of one thread apart.
    const CHARS: usize = 16;
    let digest = BASE32_NOPAD.encode(&Sha256::digest(data.as_str().as_bytes())).to_ascii_lowercase();
    digest[..CHARS].to_owned()
}

/// The media type of a picture from the first bytes of its base64 text.
pub fn media_type_of_base64(text: &str) -> Option<&'static str> {
    /// Base64 characters that hold the longest signature.
    const HEAD: usize = 16;
    let whole_groups = text.len().min(HEAD) / 4 * 4;
    media_type(&STANDARD.decode(text.get(..whole_groups)?).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(bytes: &[u8]) -> ImageData {
        ImageData::Base64(STANDARD.encode(bytes))
    }

    fn png(width: u32, height: u32) -> Vec<u8> {
        let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
        png.extend([width.to_be_bytes(), height.to_be_bytes()].concat());
        png.extend([8, 6, 0, 0, 0]);
        png
    }

    #[test]
    fn pictures_and_https_addresses_are_taken_and_nothing_else() {
        for picture in [
            png(1, 1).as_slice(),
            &png(8_000, 8_000),
            b"\xff\xd8\xff\xe0\0\x10JFIF\0\x01\x01\0\0\x01\0\x01\0\0\xff\xc0\0\x0b\x08\0\x01\0\x01\x01\x01\x11\0",
            b"GIF89a\x01\0\x01\0\x80\0\0",
            b"RIFF\x22\0\0\0WEBPVP8 \x16\0\0\0\x30\x01\0\x9d\x01\x2a\x01\0\x01\0\x0e\xc0",
        ] {
            assert!(is_acceptable(&encoded(picture)), "{picture:?}");
            let ImageData::Base64(text) = encoded(picture) else { unreachable!() };
            assert_eq!(media_type_of_base64(&text), media_type(picture));
        }
        assert!(is_acceptable(&ImageData::Url("https://img.example/a.png".into())));
        let long = ImageData::Url(format!("https://img.example/{}", "a".repeat(MAX_IMAGE_URL)));
        let mut huge = png(1, 1);
        huge.resize(MAX_IMAGE_BASE64, 0);
        for odd in
            [long, encoded(b""), encoded(b"plain text"), encoded(b"RIFF\0\0\0\0WAVEfmt "), encoded(&huge)]
        {
            assert!(!is_acceptable(&odd));
        }
        for text in ["", " ", "iVBORw0KGgo", "iVBORw0K\nGgo=", "ünïcode", "\u{0}"] {
            assert!(!is_acceptable(&ImageData::Base64(text.into())), "{text:?}");
        }
        for url in [
            "",
            " ",
            "a.png",
            "http://img.example/a.png",
            "https://",
            "https:x/y",
            "HTTPS://x/y",
            "https://x/a b",
            "data:image/png;base64,AA==",
            "file:///a",
        ] {
            assert!(!is_acceptable(&ImageData::Url(url.into())), "{url:?}");
        }
    }

    #[test]
    fn images_ingress_broken_truncated_oversized_and_wrong_ones_become_a_note_and_addresses_stay() {
        let image = |data: ImageData| ContentPart::Image { data, media_type: Some("png".into()) };
        let good = image(encoded(&png(7, 9)));
        let address = image(ImageData::Url("http://img.example/a.png".into()));
        for odd in [
            ImageData::Base64("not base64".into()),
            encoded(&png(1, 1)[..20]),
            encoded(&png(0, 1)),
            encoded(&png(8_001, 1)),
            encoded(&png(1, 8_001)),
            encoded(b"\xff\xd8\xff\xe0 and no more"),
            encoded(b"BM a bitmap"),
            encoded(&[png(1, 1), vec![0; MAX_IMAGE_BASE64]].concat()),
        ] {
            let parts = vec![ContentPart::text("a"), image(odd), good.clone(), address.clone()];
            let stored = noted(parts);
            let note = ContentPart::text(wording::IMAGE_UNUSABLE);
            assert_eq!(stored, [ContentPart::text("a"), note, good.clone(), address.clone()]);
            assert_eq!(noted(stored.clone()), stored, "once");
        }
        // Exactly as much as all of them take.
        let mut full = png(1, 1);
        full.resize(MAX_IMAGE_BASE64 / 4 * 3, 0);
        assert_eq!(encoded(&full).as_str().len(), MAX_IMAGE_BASE64);
        assert!(is_acceptable(&encoded(&full)));
    }
}
