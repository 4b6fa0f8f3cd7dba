//! Messages in, threads out.

use std::collections::BTreeMap;

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use super::auth::Caller;
use super::{ApiError, HttpDeps, IDEMPOTENCY_KEY, body};
use crate::message::{
    ContentPart, DedupId, Epoch, InputContent, InputMessage, Item, ItemId, LeftOut, RawJson, ThreadId,
};
use crate::slice::{Clock, SystemClock};
use crate::store::{Meta, PendingCall, ThreadSummary};
use crate::thread::load_branch;

/// SQS's bound on a message group, which a thread id is.
const MAX_THREAD_CHARS: usize = 128;
/// Characters of an id under which a message is taken once.
const MAX_DEDUP_CHARS: usize = 256;
/// Parts of one message.
const MAX_PARTS: usize = 32;
/// Threads of a list, unless fewer are asked for.
const LISTED_THREADS: usize = 50;
/// Items of a page, unless fewer are asked for.
const LISTED_ITEMS: usize = 100;
/// Items or threads that can be asked for at once.
const MAX_LIMIT: usize = 200;
/// Bytes of items after which a page ends: Lambda returns at most 6 MB.
pub(super) const MAX_PAGE_BYTES: usize = 2 * 1024 * 1024;

/// A message, as it is POSTed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewMessage {
    text: Option<String>,
    content: Option<Vec<ContentPart>>,
    metadata: Option<Members>,
    dedup_id: Option<String>,
}

/// An object whose values stay as they were written.
pub(super) type Members = BTreeMap<String, RawJson>;

/// What was queued.
#[derive(Serialize)]
pub(super) struct Queued {
    pub thread_id: ThreadId,
    pub dedup_id: DedupId,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    limit: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PageQuery {
    after: Option<u64>,
    limit: Option<usize>,
    epoch: Option<Epoch>,
}

/// The thread that a path names, if SQS can carry it.
pub(super) fn thread_id(text: &str) -> Result<ThreadId, ApiError> {
    if (1..=MAX_THREAD_CHARS).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic()) {
        return Ok(ThreadId::from(text));
    }
    let rule = "a thread id is 1 to 128 ASCII letters, digits and punctuation";
    Err(ApiError::bad(rule))
}

pub(super) fn path<T>(path: Result<Path<T>, PathRejection>) -> Result<T, ApiError> {
    path.map(|Path(part)| part).map_err(|_| ApiError::bad("the address is not UTF-8"))
}

pub(super) fn query<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, ApiError> {
    query.map(|Query(query)| query).map_err(|e| ApiError::bad(e.body_text()))
}

pub(super) fn limit(asked: Option<usize>, usual: usize) -> Result<usize, ApiError> {
    match asked.unwrap_or(usual) {
        limit @ 1..=MAX_LIMIT => Ok(limit),
        _ => Err(ApiError::bad(format!("limit must be from 1 to {MAX_LIMIT}"))),
    }
}

/// `POST /threads/{id}/messages`
pub(super) async fn send(
    State(deps): State<HttpDeps>,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<Queued>), ApiError> {
    let thread = thread_id(&path(id)?)?;
    let message: NewMessage = body::parse(&headers, body).await?;
    let content = content(message.text, message.content)?;
    let key = idempotency_key(&headers, message.dedup_id)?;
    let known = known(&deps, &caller, &thread).await?;
    if known.as_ref().is_some_and(|meta| meta.closed) {
        return Err(ApiError::new(StatusCode::CONFLICT, "the thread is closed"));
    }
    let input = InputMessage {
        metadata: metadata(&caller, message.metadata, known.as_ref())?,
        ..InputMessage::plain(thread.clone(), content)
    };
    if let Some(agent) = input.agent().filter(|_| known.is_none()) {
        deps.callback.config.agent(&agent).map_err(|_| ApiError::bad("metadata.agent names no agent"))?;
    }
    // What cannot be read again must not be queued: it would be a dead letter, far from whoever sent it.
    let text = input.to_body().map_err(|e| ApiError::bad(e.to_string()))?;
    InputMessage::parse(text.as_bytes()).map_err(|e| ApiError::bad(e.to_string()))?;
    let dedup_id = DedupId::derive("http", &[thread.as_str(), &key]);
    deps.callback.sender.send(&input, &dedup_id).await?;
    tracing::info!(%thread, dedup = %dedup_id, bytes = text.len(), "message queued");
    Ok((StatusCode::ACCEPTED, Json(Queued { thread_id: thread, dedup_id })))
}

pub(super) fn content(
    text: Option<String>,
    content: Option<Vec<ContentPart>>,
) -> Result<InputContent, ApiError> {
    let mut parts = match (text, content) {
        (Some(text), None) => vec![ContentPart::Text(text)],
        (None, Some(parts)) => parts,
        (Some(_), Some(_)) | (None, None) => {
            return Err(ApiError::bad("the body needs one of `text` and `content`"));
        }
    };
    if parts.iter().any(|part| matches!(part, ContentPart::Unknown(_))) {
        return Err(ApiError::bad("content: a part is of type text or image"));
    }
    if parts.len() > MAX_PARTS {
        return Err(ApiError::bad(format!("content: at most {MAX_PARTS} parts")));
    }
    if parts.iter().all(ContentPart::is_blank) {
        return Err(ApiError::bad("the message is empty"));
    }
    Ok(match (parts.len(), parts.pop()) {
        // As every producer writes them.
        (1, Some(ContentPart::Text(text))) => InputContent::Text(text),
        (1, Some(ContentPart::Image { data, media_type })) => InputContent::Image { data, media_type },
        (_, last) => {
            parts.extend(last);
            InputContent::Parts(parts)
        }
    })
}

/// What makes two POSTs one; of a POST without it there is only one.
pub(super) fn idempotency_key(headers: &HeaderMap, dedup_id: Option<String>) -> Result<String, ApiError> {
    let header = match headers.get(IDEMPOTENCY_KEY) {
        Some(value) => {
            let text = value.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_graphic()));
            let rule = "Idempotency-Key is of printable ASCII characters without spaces";
            Some(text.ok_or_else(|| ApiError::bad(rule))?.to_owned())
        }
        None => None,
    };
    let key = match (dedup_id, header) {
        (Some(id), Some(header)) if id != header => {
            return Err(ApiError::bad("dedup_id and Idempotency-Key differ; send one of them"));
        }
        (Some(key), _) | (None, Some(key)) => key,
        (None, None) => return Ok(Uuid::new_v4().to_string()),
    };
    match key.chars().count() {
        1..=MAX_DEDUP_CHARS => Ok(key),
        _ => Err(ApiError::bad(format!("dedup_id is of 1 to {MAX_DEDUP_CHARS} characters"))),
    }
}

/// The thread, if it exists; the name of one that does not is claimed for a principal, so that of two who make the
/// same thread at once one is told that it is not theirs.
pub(super) async fn known(
    deps: &HttpDeps,
    caller: &Caller,
    thread: &ThreadId,
) -> Result<Option<Meta>, ApiError> {
    let store = &*deps.callback.store;
    let theirs = match (store.meta(thread).await?, caller) {
        (Some(meta), _) => caller.may(store, &meta).await?.then_some(Some(meta)),
        (None, Caller::Operator) => Some(None),
        (None, Caller::Principal(principal)) => {
            let owner = store.claim_thread(thread, principal, SystemClock.now_ms()).await?;
            (owner == *principal).then_some(None)
        }
    };
    theirs.ok_or_else(|| ApiError::new(StatusCode::NOT_FOUND, "there is no such thread"))
}

/// The message's metadata. That of a principal always says who speaks, whatever the body says; without a body's own
/// the thread's stays, which a message's would replace.
pub(super) fn metadata(
    caller: &Caller,
    given: Option<Members>,
    thread: Option<&Meta>,
) -> Result<Option<RawJson>, ApiError> {
    let write = |members: &Members| {
        let text = serde_json::to_string(members).map_err(|e| ApiError::bad(e.to_string()))?;
        RawJson::parse(&text).map(Some).map_err(|e| ApiError::bad(e.to_string()))
    };
    let Caller::Principal(principal) = caller else {
        return given.as_ref().map_or(Ok(None), write);
    };
    let kept = || {
        let kept = thread.and_then(|meta| meta.metadata.as_ref());
        kept.and_then(|raw| serde_json::from_str::<Members>(raw.get()).ok())
    };
    let mut members = given.or_else(kept).unwrap_or_default();
    let user = RawJson::parse(&json!(principal).to_string()).map_err(|e| ApiError::bad(e.to_string()))?;
    members.insert("user_id".to_owned(), user);
    write(&members)
}

/// `GET /threads`
pub(super) async fn list(
    State(deps): State<HttpDeps>,
    caller: Caller,
    asked: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let limit = limit(query(asked)?.limit, LISTED_THREADS)?;
    let store = &deps.callback.store;
    let threads = match &caller {
        Caller::Operator => store.list_threads(limit).await?,
        Caller::Principal(principal) => store.list_threads_of(principal, limit).await?,
    };
    let threads: Vec<Value> = threads.iter().map(summary).collect();
    Ok(Json(json!({ "threads": threads })))
}

pub(super) fn summary(thread: &ThreadSummary) -> Value {
    json!({
        "thread_id": thread.thread,
        "agent": thread.agent,
        "created_at_ms": thread.created_at_ms,
        "closed": thread.closed,
        "head": thread.head,
        "pending": thread.pending,
        "kind": thread.kind,
        "root": thread.root,
        "parent": thread.parent,
        "origin": thread.origin,
        "forked_from": thread.forked_from,
        "epoch": thread.epoch,
    })
}

/// Items in front of a thread's view that belong to its parent: what a child inherits.
pub(super) fn foreign(meta: &Meta) -> usize {
    let inherited = meta.base.iter().take_while(|span| meta.parent.is_some() && span.thread != meta.thread);
    let items: u64 = inherited.map(|span| span.to.0.saturating_sub(span.from.0)).sum();
    usize::try_from(items).unwrap_or(usize::MAX)
}

/// `GET /threads/{id}`
pub(super) async fn show(
    State(deps): State<HttpDeps>,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
    asked: Result<Query<PageQuery>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let thread = thread_id(&path(id)?)?;
    let asked = query(asked)?;
    let limit = limit(asked.limit, LISTED_ITEMS)?;
    caller.thread(&*deps.callback.store, &thread).await?;
    let none =
        || ApiError::new(StatusCode::NOT_FOUND, "there is no such thread, or it has no log of that epoch");
    let loaded = load_branch(&*deps.callback.store, &thread, asked.epoch).await?.ok_or_else(none)?;
    let meta = loaded.meta.ok_or_else(none)?;
    let logs: Vec<_> = meta.logs().collect();
    let foreign = foreign(&meta);
    let after = usize::try_from(asked.after.unwrap_or_default()).unwrap_or(usize::MAX);
    let own = loaded.items.iter().zip(&logs).skip(foreign);
    let mut items: Vec<Value> = Vec::new();
    let mut bytes = 0;
    let mut next = None;
    for (position, (item, (_, epoch))) in (1..).zip(own).skip(after) {
        if items.len() == limit || bytes > MAX_PAGE_BYTES {
            next = Some(position - 1);
            break;
        }
        bytes += item.raw.len();
        items.push(shown(*epoch, item));
    }
    Ok(Json(json!({
        "thread_id": meta.thread,
        "root": meta.root,
        "parent": meta.parent,
        "agent": meta.agent,
        "owner": meta.owner,
        "created_at_ms": meta.created_at_ms,
        "closed": meta.closed,
        "epoch": meta.epoch,
        "head": meta.head,
        "pending": meta.pending.iter().map(pending).collect::<Vec<_>>(),
        "parked": loaded.parked.len(),
        "inherited": foreign,
        "items": items,
        "next": next,
    })))
}

/// A pending call, for a client.
pub(super) fn pending(call: &PendingCall) -> Value {
    json!({ "call_id": call.call, "seq": call.seq, "name": call.name, "parked": call.parked })
}

fn shown(epoch: Epoch, item: &Item) -> Value {
    let body = match Value::from(item) {
        Value::Null => json!({ "kind": item.body.kind() }),
        body => body,
    };
    json!({
        "seq": item.seq,
        "id": ItemId::at(epoch, item.seq),
        "turn": item.facts.turn,
        "created_at_ms": item.facts.created_at_ms,
        "user": item.facts.user,
        "epoch": epoch,
        "opens_turn": item.facts.opens_turn,
        "cause": item.facts.cause,
        "tokens": item.facts.est_tokens,
        "left_out": item.facts.left_out.map(LeftOut::tag),
        "item": body,
    })
}
