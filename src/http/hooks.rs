//! `POST /hooks/{token}`: the webhooks that agents have asked for. Each POST is an event of the call that did.
//!
//! | case | status | effect |
//! |---|---|---|
//! | no valid token | 401 | none |
//! | body above [`MAX_CALLBACK_BYTES`] | 413 | none |
//! | its secret cannot be read (D33) | 503 | none; the service tries again |
//! | it has a secret, and the signature is missing or wrong | 401 | none |
//! | thread unknown or closed, subscription ended | 410 | none; services stop sending |
//! | else | 200 | queued |
//! | store or queue out of order | 503 | none; the service tries again |
//!
//! The token is checked before anything else is looked at, and the signature before any row is read. The text of the
//! event is the body as it came: whatever it says, it is a tool's text to the model.

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};

use super::body::{Read, read};
use super::signatures::Refused;
use super::{ApiError, HttpDeps, IDEMPOTENCY_KEY, error, json};
use crate::history::wording;
use crate::message::{ContentPart, DedupId, InputMessage, Synthetic};
use crate::rap::Hook;
#[cfg(doc)]
use crate::rap::callback::MAX_CALLBACK_BYTES;

/// Headers that name a delivery, the same when it is sent again: the standard one, that of Standard Webhooks, GitHub's.
const DELIVERY_IDS: [&str; 3] = [IDEMPOTENCY_KEY, "webhook-id", "x-github-delivery"];

pub(super) async fn receive(
    State(deps): State<HttpDeps>,
    token: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    // A path that is not UTF-8 is no token; the empty one is refused like any other.
    let token = token.map(|Path(token)| token).unwrap_or_default();
    // Read in any case: a service that is still sending would see a broken connection instead of the answer.
    let body = read(body).await;
    let hook = match deps.callback.tokens.verify_hook(&token) {
        Ok(hook) => hook,
        Err(reason) => {
            tracing::info!(error = %reason, status = 401, "webhook");
            return error(StatusCode::UNAUTHORIZED, "unauthorised");
        }
    };
    let bytes = match &body {
        Read::Whole(body) => Some(body.len()),
        Read::TooLarge | Read::Broken => None,
    };
    let response = match take(&deps, &hook, &headers, body).await {
        Ok(()) => json(StatusCode::OK, "status", "queued"),
        Err(refused) => refused.into_response(),
    };
    let Hook { thread, call, .. } = &hook;
    tracing::info!(%thread, %call, bytes, status = response.status().as_u16(), "webhook");
    response
}

async fn take(deps: &HttpDeps, hook: &Hook, headers: &HeaderMap, body: Read) -> Result<(), ApiError> {
    let body = match body {
        Read::Whole(body) => body,
        Read::TooLarge => return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "the limit is 4 MiB")),
        Read::Broken => return Err(ApiError::bad("the body broke off")),
    };
    if let Some(name) = &hook.options.secret {
        deps.webhooks.check(name, headers, &body).map_err(|refused| match refused {
            Refused::Signature => {
                ApiError::new(StatusCode::UNAUTHORIZED, "the signature is missing or wrong")
            }
            Refused::NoSecret => {
                tracing::error!(
                    secret = name,
                    "the secret of a webhook cannot be read, so all its POSTs are refused"
                );
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the signature cannot be checked now")
            }
        })?;
    }
    let Hook { thread, call, options } = hook;
    let store = &deps.callback.store;
    let open = store.meta(thread).await?.is_some_and(|meta| !meta.closed);
    // An address is told only after the commit that subscribes, so there is no row that is still to come.
    if !open || !store.subscription(thread, call).await?.is_some_and(|subscription| subscription.active) {
        return Err(ApiError::new(StatusCode::GONE, "gone"));
    }
    let text = String::from_utf8_lossy(&body);
    let text = if text.trim().is_empty() { wording::EMPTY_WEBHOOK } else { &text };
    let mut message = InputMessage::tool_result(thread.clone(), call.clone(), vec![ContentPart::text(text)]);
    message.synthetic = Some(Synthetic::SubscriptionEvent {
        tool_call_id: call.clone(),
        associative: options.associative,
        r#final: false,
    });
    let fresh = uuid::Uuid::new_v4().to_string();
    let named = DELIVERY_IDS.iter().find_map(|name| Some((*name, headers.get(*name)?.to_str().ok()?)));
    let (origin, id) = named.unwrap_or(("post", &fresh));
    let dedup = DedupId::derive("webhook", &[thread.as_str(), call.as_str(), origin, id]);
    Ok(deps.callback.sender.send(&message, &dedup).await?)
}
