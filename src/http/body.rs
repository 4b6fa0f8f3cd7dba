//! Bodies of requests: read up to a bound, and parsed with an error that a person can act on.

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;

use super::ApiError;
use crate::message::json;
use crate::rap::callback::MAX_CALLBACK_BYTES;

/// Bytes of a body that are read. One bound for all routes: what Lambda can be handed, escaped.
pub(super) const MAX_BODY_BYTES: usize = MAX_CALLBACK_BYTES;
/// What is read of a body that is too large before it is answered: a client that is still sending would see a
/// reset connection instead of the answer. API Gateway passes on no more.
const MAX_DRAIN_BYTES: usize = 12 * 1024 * 1024;

/// A body as far as it was read.
pub(super) enum Read {
    Whole(Vec<u8>),
    TooLarge,
    Broken,
}

pub(super) async fn read(mut body: Body) -> Read {
    let mut whole = Vec::new();
    let mut seen = 0;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return Read::Broken };
        let Ok(data) = frame.into_data() else { continue };
        seen += data.len();
        if seen <= MAX_BODY_BYTES {
            whole.extend_from_slice(&data);
        } else if seen > MAX_DRAIN_BYTES {
            break;
        } else {
            whole = Vec::new();
        }
    }
    if seen > MAX_BODY_BYTES { Read::TooLarge } else { Read::Whole(whole) }
}

/// Reads and parses a JSON body. Lone surrogates and invalid UTF-8 are mended.
pub(super) async fn parse<T: DeserializeOwned>(headers: &HeaderMap, body: Body) -> Result<T, ApiError> {
    let bytes = json_bytes(headers, body).await?;
    serde_json::from_str(&json::mend(&bytes)).map_err(|e| ApiError::bad(format!("the body: {e}")))
}

/// Reads a body that says it is JSON.
pub(super) async fn json_bytes(headers: &HeaderMap, body: Body) -> Result<Vec<u8>, ApiError> {
    if !is_json(headers) {
        let text = "the body must be JSON, with content-type: application/json";
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
    }
    match read(body).await {
        Read::Whole(bytes) => Ok(bytes),
        Read::TooLarge => Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "the limit is 4 MiB")),
        Read::Broken => Err(ApiError::bad("the body broke off")),
    }
}

/// Whether the content type is JSON's, parameters aside.
fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
}
