//! `GET /openapi.json`. Written by hand: the bodies are few, and a test holds its routes to the router's.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

/// The description of every route, OpenAPI 3.1.
pub(super) const DOCUMENT: &str = include_str!("openapi.json");

pub(super) async fn document() -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], DOCUMENT).into_response()
}
