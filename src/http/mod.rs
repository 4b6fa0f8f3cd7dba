//! The HTTP front: one axum router, the same locally and on Lambda.
//!
//! Locally it is served by `axum::serve`. On Lambda it is handed to `lambda_http::run` as it is: `Router` is a
//! tower `Service` of `http::Request<B>` for any body `B`, and `lambda_http` turns the API Gateway event into
//! such a request and the response back into an event. A stage other than `$default` stands in front of the
//! path there; `AWS_LAMBDA_HTTP_IGNORE_STAGE_IN_PATH=true` takes it away.
//!
//! The path of a callback holds its token and is never logged.

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http_body_util::BodyExt;

use crate::rap::callback::{
    self, CallbackBody, CallbackDeps, CallbackReply, CallbackRequest, MAX_CALLBACK_BYTES,
};

/// Header by which a sender of events says that two POSTs are one.
const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// What is read of a body that is too large before it is answered: a client that is still sending would see a
/// reset connection instead of the answer. API Gateway passes on no more.
const MAX_DRAIN_BYTES: usize = 12 * 1024 * 1024;

/// What the routes need.
#[derive(Clone)]
pub struct HttpDeps {
    /// For `POST /rap/{token}`.
    pub callback: CallbackDeps,
}

/// All routes: `POST /rap/{token}` and `GET /healthz`. Every answer is JSON; an error is `{"error":"…"}`.
pub fn router(deps: HttpDeps) -> Router {
    Router::new()
        .route("/healthz", get(health))
        .route("/rap/{token}", post(rap_callback))
        .fallback(|| async { error(StatusCode::NOT_FOUND, "there is no such address") })
        .method_not_allowed_fallback(|| async {
            error(StatusCode::METHOD_NOT_ALLOWED, "this address does not take that method")
        })
        .with_state(deps)
}

async fn health() -> Response {
    json(StatusCode::OK, "status", "ok")
}

async fn rap_callback(
    State(deps): State<HttpDeps>,
    token: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    // A path that is not UTF-8 is no token; the empty one is refused like any other.
    let token = token.map(|Path(token)| token).unwrap_or_default();
    let body = read(body).await;
    let body = match &body {
        Read::Whole(bytes) => CallbackBody::Whole(bytes),
        Read::TooLarge => CallbackBody::TooLarge,
        Read::Broken => return error(StatusCode::BAD_REQUEST, "the body broke off"),
    };
    let idempotency_key = headers.get(IDEMPOTENCY_KEY).and_then(|value| value.to_str().ok());
    let request = CallbackRequest { token: &token, body, idempotency_key };
    reply(callback::handle(&deps.callback, request).await)
}

enum Read {
    Whole(Vec<u8>),
    TooLarge,
    Broken,
}

async fn read(mut body: Body) -> Read {
    let mut whole = Vec::new();
    let mut seen = 0;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return Read::Broken };
        let Ok(data) = frame.into_data() else { continue };
        seen += data.len();
        if seen <= MAX_CALLBACK_BYTES {
            whole.extend_from_slice(&data);
        } else if seen > MAX_DRAIN_BYTES {
            break;
        } else {
            whole = Vec::new();
        }
    }
    if seen > MAX_CALLBACK_BYTES { Read::TooLarge } else { Read::Whole(whole) }
}

fn reply(reply: CallbackReply) -> Response {
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if status.is_success() {
        return json(status, "status", reply.outcome);
    }
    let mut response = error(status, reply.detail.as_deref().unwrap_or(reply.outcome));
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

fn error(status: StatusCode, text: &str) -> Response {
    json(status, "error", text)
}

fn json(status: StatusCode, member: &str, text: &str) -> Response {
    (status, axum::Json(serde_json::json!({ member: text }))).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compiles only while the router is what `lambda_http` runs.
    #[expect(dead_code, reason = "its types are the proof")]
    fn the_router_runs_on_lambda(
        router: Router,
    ) -> impl std::future::Future<Output = Result<(), lambda_http::Error>> {
        lambda_http::run(router)
    }
}
