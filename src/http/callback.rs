//! `POST /rap/{token}`: where tools send their results.

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;

use super::body::{Read, read};
use super::{HttpDeps, IDEMPOTENCY_KEY, error, json};
use crate::rap::callback::{self, CallbackBody, CallbackReply, CallbackRequest};

pub(super) async fn receive(
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
