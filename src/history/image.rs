//! Which stored images a request may hold. What one provider refuses would make every later request of its thread
//! fail, so the rule is what all of them take; the row keeps what arrived.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use url::Url;

use crate::message::ImageData;

/// The longest base64 text of an image: 5 MiB (Bedrock Converse and Anthropic's Messages).
pub const MAX_IMAGE_BASE64: usize = 5 * 1024 * 1024;
/// The longest address of an image.
const MAX_IMAGE_URL: usize = 8 * 1024;

/// Whether every provider that takes images takes this one: an https address, or the bytes of a PNG, JPEG, GIF or
/// WebP picture in padded standard base64 within [`MAX_IMAGE_BASE64`].
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
            text.len() <= MAX_IMAGE_BASE64
                && STANDARD.decode(text).is_ok_and(|bytes| media_type(&bytes).is_some())
        }
    }
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

    #[test]
    fn pictures_and_https_addresses_are_taken_and_nothing_else() {
        for picture in [
            b"\x89PNG\r\n\x1a\n0123".as_slice(),
            b"\xff\xd8\xff\xe000000000",
            b"GIF89a0123456789",
            b"RIFF\0\0\0\0WEBPVP8 ",
        ] {
            assert!(is_acceptable(&encoded(picture)), "{picture:?}");
            let ImageData::Base64(text) = encoded(picture) else { unreachable!() };
            assert_eq!(media_type_of_base64(&text), media_type(picture));
        }
        assert!(is_acceptable(&ImageData::Url("https://img.example/a.png".into())));
        let long = ImageData::Url(format!("https://img.example/{}", "a".repeat(MAX_IMAGE_URL)));
        let mut huge = b"\x89PNG\r\n\x1a\n".to_vec();
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
}
