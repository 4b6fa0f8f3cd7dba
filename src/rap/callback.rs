//! What a POST to a callback address does, over the ports alone: no HTTP, no AWS.
//!
//! The token is checked before the body is looked at, and the body's thread and call must be the token's. Then
//! the state of the thread and of the call decides (`reference/rap.md` part 3):
//!
//! | case | status | effect |
//! |---|---|---|
//! | no valid token; another thread or call in the body | 401 | none |
//! | no JSON object, unknown `type`, no ids | 400 | none |
//! | thread unknown or closed, call unknown | 410 | none |
//! | result, consent or choice that cannot be used | 400 | the pending call is settled with an error |
//! | body above [`MAX_CALLBACK_BYTES`] | 413 | the same |
//! | result of a pending call, or late | 200 | queued; the slice tells late from valid |
//! | result of an answered call | 200 | none (F05, F64) |
//! | event, while its call or subscription is open | 200 | queued |
//! | event of an ended subscription | 200 | dropped |
//! | event of a call that never subscribed | 410 | none |
//! | consent or choice of a pending call | 200 | queued |
//! | consent or choice of a settled call | 410 | none |
//! | view | 200 | stored |
//! | store or queue out of order | 503 | none; the server retries |
//!
//! Published servers send each callback once: every 4xx here is for what can never succeed.

use std::sync::Arc;

use super::client::may_answer;
use super::token::CallbackTokens;
use super::wire::{Callback, CallbackKind, Choice, Event, Payload, ToolResult};
use crate::config::Config;
use crate::message::{
    CallId, ContentPart, DedupId, Epoch, InputContent, InputMessage, OAuthRequired, Seq, Synthetic, ThreadId,
    ToolResultInput, UserChoiceRequired,
};
use crate::queue::{InputSender, QueueError};
use crate::store::{Meta, Store, StoreError};

/// Bytes of a callback's body: API Gateway takes 10 MB, but the event that Lambda gets, escaped, only 6 MB.
pub const MAX_CALLBACK_BYTES: usize = 4 * 1024 * 1024;

/// What callbacks need.
#[derive(Clone)]
pub struct CallbackDeps {
    /// Threads, subscriptions and views.
    pub store: Arc<dyn Store>,
    /// The input queue.
    pub sender: Arc<dyn InputSender>,
    /// What the addresses were made with.
    pub tokens: CallbackTokens,
    /// Which hosts an answer may be POSTed to.
    pub config: Arc<Config>,
}

/// One POST to a callback address.
#[derive(Clone, Copy, Debug)]
pub struct CallbackRequest<'a> {
    /// The last part of the path.
    pub token: &'a str,
    /// The body.
    pub body: CallbackBody<'a>,
    /// The header `Idempotency-Key`: events have no id of their own, so without it each POST counts.
    pub idempotency_key: Option<&'a str>,
}

/// A body as far as it was read.
#[derive(Clone, Copy, Debug)]
pub enum CallbackBody<'a> {
    /// All of it.
    Whole(&'a [u8]),
    /// Above [`MAX_CALLBACK_BYTES`], and not read to its end.
    TooLarge,
}

/// What to answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallbackReply {
    /// The HTTP status.
    pub status: u16,
    /// What became of the callback, for the log and the caller.
    pub outcome: &'static str,
    /// What is wrong with the body, for the caller.
    pub detail: Option<String>,
}

impl CallbackReply {
    fn new(status: u16, outcome: &'static str) -> Self {
        Self { status, outcome, detail: None }
    }

    fn bad(detail: impl ToString) -> Self {
        Self { status: 400, outcome: "malformed", detail: Some(detail.to_string()) }
    }
}

const QUEUED: &str = "queued";
const DUPLICATE: &str = "duplicate";
const GONE: (u16, &str) = (410, "gone");

/// A port is out of order: the callback has had no effect.
#[derive(Debug, thiserror::Error)]
enum Unavailable {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// What is known of a call from the thread's state.
enum CallState {
    /// Dispatched, without a result.
    Pending { tool: String },
    /// Its result is parked until the step's others are in.
    Parked,
    /// It has a result, of its own or of the runtime.
    Settled,
    /// The thread never made it.
    Unknown,
}

/// Takes one callback in. Never fails: whatever is wrong is a status.
pub async fn handle(deps: &CallbackDeps, request: CallbackRequest<'_>) -> CallbackReply {
    let (thread, call) = match deps.tokens.verify(request.token) {
        Ok(named) => named,
        Err(error) => {
            tracing::info!(%error, status = 401, "callback");
            return CallbackReply::new(401, "unauthorised");
        }
    };
    let (kind, reply) = match request.body {
        CallbackBody::Whole(body) if body.len() <= MAX_CALLBACK_BYTES => match Callback::parse(body) {
            Ok(callback) => {
                let kind = callback.kind.as_str();
                (kind, take(deps, &callback, &thread, &call, request.idempotency_key).await)
            }
            Err(error) => ("unreadable", Ok(CallbackReply::bad(error))),
        },
        CallbackBody::Whole(_) | CallbackBody::TooLarge => {
            ("too large", too_large(deps, &thread, &call).await)
        }
    };
    let bytes = match request.body {
        CallbackBody::Whole(body) => Some(body.len()),
        CallbackBody::TooLarge => None,
    };
    match reply {
        Ok(reply) => {
            let (status, outcome) = (reply.status, reply.outcome);
            tracing::info!(%thread, %call, kind, bytes, status, outcome, "callback");
            reply
        }
        Err(error) => {
            tracing::error!(%thread, %call, kind, bytes, status = 503, %error, "callback");
            CallbackReply::new(503, "unavailable")
        }
    }
}

async fn take(
    deps: &CallbackDeps,
    callback: &Callback,
    thread: &ThreadId,
    call: &CallId,
    idempotency_key: Option<&str>,
) -> Result<CallbackReply, Unavailable> {
    if &callback.thread != thread || callback.call.as_ref().is_some_and(|named| named != call) {
        return Ok(CallbackReply::new(401, "another thread or call than the token's"));
    }
    let gone = CallbackReply::new(GONE.0, GONE.1);
    let Some(meta) = deps.store.meta(thread).await?.filter(|meta| !meta.closed) else {
        return Ok(gone);
    };
    let state = call_state(&meta, call);
    let payload = match callback.payload() {
        Ok(Payload::Choice(choice)) if may_answer(&deps.config, &choice.response_url).is_none() => {
            Err("response_url is not on the host of a configured tool server".to_owned())
        }
        Ok(payload) => Ok(payload),
        Err(error) => Err(error.to_string()),
    };
    let payload = match payload {
        Ok(payload) => payload,
        Err(reason) => {
            let settles = match callback.kind {
                CallbackKind::ToolResult | CallbackKind::OAuth | CallbackKind::UserChoice => true,
                CallbackKind::SubscriptionEvent | CallbackKind::ViewUpdate => false,
            };
            if settles {
                settle(deps, thread, call, &state, &reason).await?;
            }
            return Ok(CallbackReply::bad(reason));
        }
    };
    match payload {
        Payload::ToolResult(result) => match state {
            CallState::Unknown => Ok(gone),
            CallState::Pending { .. } => send_result(deps, thread, call, result).await,
            // What is parked or settled may be the runtime's word: then the tool's own is a late one.
            CallState::Parked | CallState::Settled => {
                if deps.store.is_message_processed(thread, &result_dedup(thread, call)).await? {
                    return Ok(CallbackReply::new(200, DUPLICATE));
                }
                send_result(deps, thread, call, result).await
            }
        },
        Payload::Event(event) => {
            let open = match state {
                CallState::Pending { .. } | CallState::Parked => true,
                CallState::Unknown => return Ok(gone),
                // Read after META: a result that has left `pending` has its subscription stored already.
                CallState::Settled => match deps.store.subscription(thread, call).await? {
                    Some(subscription) => subscription.active,
                    None => return Ok(gone),
                },
            };
            if !open {
                return Ok(CallbackReply::new(200, "dropped: the subscription has ended"));
            }
            send_event(deps, thread, call, event, idempotency_key).await
        }
        Payload::OAuth { call_id, auth_url } => {
            let content = InputContent::OAuthRequired(OAuthRequired { id: call.clone(), call_id, auth_url });
            ask(deps, thread, call, &state, "rap-oauth", content).await
        }
        Payload::Choice(Choice { call_id, prompt, choices, default, response_url }) => {
            let id = call.clone();
            let content = InputContent::UserChoiceRequired(UserChoiceRequired {
                id,
                call_id,
                prompt,
                choices,
                default,
                response_url,
            });
            ask(deps, thread, call, &state, "rap-user-choice", content).await
        }
        Payload::View { view_type, content } => {
            deps.store.put_view(thread, &view_type, &content).await?;
            Ok(CallbackReply::new(200, "stored"))
        }
    }
}

async fn too_large(
    deps: &CallbackDeps,
    thread: &ThreadId,
    call: &CallId,
) -> Result<CallbackReply, Unavailable> {
    let Some(meta) = deps.store.meta(thread).await?.filter(|meta| !meta.closed) else {
        return Ok(CallbackReply::new(GONE.0, GONE.1));
    };
    settle(deps, thread, call, &call_state(&meta, call), "it is larger than 4 MiB").await?;
    Ok(CallbackReply { status: 413, outcome: "too large", detail: Some("the limit is 4 MiB".to_owned()) })
}

/// Settles a pending call whose answer cannot be used, so that no thread waits for ever. Under the dedup id of
/// its result: whichever of the two is taken first is the call's one result (F05).
async fn settle(
    deps: &CallbackDeps,
    thread: &ThreadId,
    call: &CallId,
    state: &CallState,
    reason: &str,
) -> Result<(), QueueError> {
    let tool = match state {
        CallState::Pending { tool } => tool,
        CallState::Parked | CallState::Settled | CallState::Unknown => return Ok(()),
    };
    let text = format!("Error: the answer of the tool {tool} cannot be used: {reason}");
    let message = InputMessage::tool_result(thread.clone(), call.clone(), vec![ContentPart::Text(text)]);
    deps.sender.send(&message, &result_dedup(thread, call)).await
}

async fn send_result(
    deps: &CallbackDeps,
    thread: &ThreadId,
    call: &CallId,
    result: ToolResult,
) -> Result<CallbackReply, Unavailable> {
    let content = InputContent::ToolResult(ToolResultInput {
        id: call.clone(),
        call_id: result.call_id,
        content: result.parts,
    });
    let mut message = InputMessage::plain(thread.clone(), content);
    message.display_as = result.display_as;
    message.subscription = result.subscription;
    deps.sender.send(&message, &result_dedup(thread, call)).await?;
    Ok(CallbackReply::new(200, QUEUED))
}

async fn send_event(
    deps: &CallbackDeps,
    thread: &ThreadId,
    call: &CallId,
    event: Event,
    idempotency_key: Option<&str>,
) -> Result<CallbackReply, Unavailable> {
    let mut message =
        InputMessage::tool_result(thread.clone(), call.clone(), vec![ContentPart::Text(event.text)]);
    message.synthetic = Some(Synthetic::SubscriptionEvent {
        tool_call_id: call.clone(),
        associative: event.associative,
        r#final: event.r#final,
    });
    let fresh = uuid::Uuid::new_v4().to_string();
    let (origin, key) = idempotency_key.map_or(("post", fresh.as_str()), |key| ("header", key));
    let dedup = DedupId::derive("rap-event", &[thread.as_str(), call.as_str(), origin, key]);
    deps.sender.send(&message, &dedup).await?;
    Ok(CallbackReply::new(200, QUEUED))
}

/// A consent or a choice: only a pending call may ask the user for something, and once.
async fn ask(
    deps: &CallbackDeps,
    thread: &ThreadId,
    call: &CallId,
    state: &CallState,
    kind: &str,
    content: InputContent,
) -> Result<CallbackReply, Unavailable> {
    match state {
        CallState::Pending { .. } => {}
        CallState::Parked | CallState::Settled | CallState::Unknown => {
            return Ok(CallbackReply::new(GONE.0, GONE.1));
        }
    }
    let dedup = DedupId::derive(kind, &[thread.as_str(), call.as_str()]);
    deps.sender.send(&InputMessage::plain(thread.clone(), content), &dedup).await?;
    Ok(CallbackReply::new(200, QUEUED))
}

/// The dedup id of the one result of a call.
pub fn result_dedup(thread: &ThreadId, call: &CallId) -> DedupId {
    DedupId::derive("rap-tool-result", &[thread.as_str(), call.as_str()])
}

fn call_state(meta: &Meta, call: &CallId) -> CallState {
    match meta.pending_call(call) {
        Some(pending) if pending.parked => CallState::Parked,
        Some(pending) => CallState::Pending { tool: pending.name.clone() },
        None if never_made(meta, call) => CallState::Unknown,
        None => CallState::Settled,
    }
}

/// Whether the call's id names a position that the thread has not reached. Anything else may have been a call:
/// the slice has the history and knows.
fn never_made(meta: &Meta, call: &CallId) -> bool {
    let position = call.as_str().strip_prefix('c').and_then(|text| {
        let mut parts = text.splitn(3, '-');
        Some((Epoch(parts.next()?.parse().ok()?), Seq(parts.next()?.parse().ok()?)))
    });
    position.is_some_and(|(epoch, seq)| {
        let minted_here = CallId::mint(&meta.thread, epoch, seq) == *call;
        minted_here && (epoch > meta.epoch || (epoch == meta.epoch && seq >= meta.head))
    })
}
