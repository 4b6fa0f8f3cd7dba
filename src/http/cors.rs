//! Which pages of other origins may use the routes of AG-UI clients. It is said here and nowhere else: what stands in front of
//! the router, a gateway or a function URL, must not say it as well, since a browser refuses an answer that has it twice.

use axum::http::{HeaderName, HeaderValue, Method, header};
use tower_http::cors::{AllowOrigin, Any, CorsLayer};

use super::IDEMPOTENCY_KEY;
use crate::config::HttpConfig;

/// Seconds for which a browser remembers what it may do.
const MAX_AGE: std::time::Duration = std::time::Duration::from_secs(600);

/// What is said, if it is said here.
pub(super) fn layer(http: &HttpConfig) -> Option<CorsLayer> {
    let origin = match &http.cors_origins {
        None => AllowOrigin::from(Any),
        Some(origins) if origins.is_empty() => return None,
        Some(origins) => {
            AllowOrigin::list(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()))
        }
    };
    let usual = [header::CONTENT_TYPE, header::AUTHORIZATION, header::ACCEPT];
    let usual = usual.into_iter().chain([HeaderName::from_static(IDEMPOTENCY_KEY)]);
    let more = http.cors_headers.iter().filter_map(|name| HeaderName::try_from(name).ok());
    let layer = CorsLayer::new()
        .allow_origin(origin)
        .allow_methods([Method::GET, Method::POST, Method::OPTIONS])
        .allow_headers(usual.chain(more).collect::<Vec<_>>())
        .max_age(MAX_AGE);
    Some(layer)
}
