//! `GET /inspector`: a page that shows threads, for whoever may read them. It is built from `inspector/` (see its README),
//! and the built files are part of the source, so that a build needs no Node. The page holds no data: what it shows it asks
//! of the routes beside it, under their authorization, and of nobody else (its policy says so to the browser).

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::auth::{Access, is_local};
use super::{ApiError, HttpDeps, NO_ADDRESS};

const PAGE: &str = include_str!("../../inspector/dist/index.html");
const SCRIPT: &str = include_str!("../../inspector/dist/inspector/app.js");
const STYLE: &str = include_str!("../../inspector/dist/inspector/app.css");

/// Everything from here and nothing from elsewhere: what a thread says must not make a browser ask anybody. Images of a
/// conversation are shown from their bytes.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// `GET /inspector`
pub(super) async fn page(State(deps): State<HttpDeps>, headers: HeaderMap) -> Result<Response, ApiError> {
    file(&deps, &headers, "text/html; charset=utf-8", PAGE)
}

/// `GET /inspector/app.js`
pub(super) async fn script(State(deps): State<HttpDeps>, headers: HeaderMap) -> Result<Response, ApiError> {
    file(&deps, &headers, "text/javascript; charset=utf-8", SCRIPT)
}

/// `GET /inspector/app.css`
pub(super) async fn style(State(deps): State<HttpDeps>, headers: HeaderMap) -> Result<Response, ApiError> {
    file(&deps, &headers, "text/css; charset=utf-8", STYLE)
}

/// A file, where there are threads to show. With tokens the page asks for one: a browser sends none by itself.
fn file(
    deps: &HttpDeps,
    headers: &HeaderMap,
    kind: &'static str,
    text: &'static str,
) -> Result<Response, ApiError> {
    match deps.access {
        // No page signs what it asks.
        Access::Closed | Access::Iam => return Err(ApiError::new(StatusCode::NOT_FOUND, NO_ADDRESS)),
        Access::Loopback if !is_local(headers) => {
            return Err(ApiError::new(
                StatusCode::FORBIDDEN,
                "the inspector is there for this machine alone",
            ));
        }
        Access::Loopback | Access::Bearer(_) => {}
    }
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        // The names are the same in every version.
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    Ok((headers, text).into_response())
}
