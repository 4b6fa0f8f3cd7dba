//! A POST to a callback address: any token and any body, against a thread with one pending call.
//!
//! The first line is the token; one that begins with `=` is the genuine one with some bytes changed, each by a
//! pair of place and value. The rest is the body.
#![no_main]

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use dormouse::config::Config;
use dormouse::message::{CallId, DedupId, InputContent, InputMessage, Seq, Synthetic, ThreadId};
use dormouse::queue::{InputSender, QueueError};
use dormouse::rap::wire::{Callback, CallbackKind};
use dormouse::rap::{CallbackBody, CallbackDeps, CallbackKeys, CallbackRequest, CallbackTokens, handle};
use dormouse::store::memory::MemoryStore;
use dormouse::store::{Commit, ConversationStore, Expect, Meta, PendingCall, StateStore};
use libfuzzer_sys::fuzz_target;

const THREAD: &str = "th-1";
const CALL: &str = "c-1";
/// Marks a token that is made from the genuine one.
const MINTED: u8 = b'=';

fuzz_target!(|data: &[u8]| {
    let (head, body) = match data.iter().position(|byte| *byte == b'\n') {
        Some(at) => (&data[..at], &data[at + 1..]),
        None => (data, &[][..]),
    };
    let tokens = tokens();
    let genuine = tokens.token(&ThreadId::from(THREAD), &CallId::from(CALL));
    let token = match head.split_first() {
        Some((&MINTED, edits)) => edited(&genuine, edits),
        Some(_) | None => String::from_utf8_lossy(head).into_owned(),
    };
    // There is one key, and a signed text has one spelling.
    assert_eq!(tokens.verify(&token).is_ok(), token == genuine, "{token}");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(post(tokens, &token, token == genuine, body));
});

fn tokens() -> CallbackTokens {
    let keys = CallbackKeys::from_json(r#"{"active":"k1","k1":"a-key-of-sufficient-length"}"#);
    CallbackTokens::new(keys.expect("keys"), "https://cb.example")
}

fn edited(genuine: &str, edits: &[u8]) -> String {
    let mut bytes = genuine.as_bytes().to_vec();
    for edit in edits.chunks_exact(2) {
        let at = usize::from(edit[0]) % bytes.len();
        bytes[at] = edit[1];
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

async fn post(tokens: CallbackTokens, token: &str, genuine: bool, body: &[u8]) {
    let store = store().await;
    let sent = Arc::new(Sent::default());
    let config = Arc::new(Config { allow_http_hosts: vec!["tool.example".to_owned()], ..Config::default() });
    let deps = CallbackDeps { store: Arc::new(store.clone()), sender: sent.clone(), tokens, config };
    let request = CallbackRequest { token, body: CallbackBody::Whole(body), idempotency_key: None };
    let reply = handle(&deps, request).await;

    let sent = sent.0.lock().expect("a lock").clone();
    let views = store.views(&ThreadId::from(THREAD)).await.expect("a store in memory");
    assert!([200, 400, 401, 410].contains(&reply.status), "{reply:?}");
    assert!(sent.len() + views.len() <= 1, "one callback has one effect");
    for message in &sent {
        assert_eq!(message.group_id, ThreadId::from(THREAD));
        assert_eq!(named(message), Some(CallId::from(CALL)));
        let body = message.to_body().expect("a body");
        assert_eq!(&InputMessage::parse(body.as_bytes()).expect("what is queued can be read"), message);
    }
    let Ok(callback) = Callback::parse(body) else {
        assert_eq!((reply.status, sent.len() + views.len()), (if genuine { 400 } else { 401 }, 0));
        return;
    };
    let ours =
        callback.thread.as_str() == THREAD && callback.call.as_ref().is_none_or(|call| call.as_str() == CALL);
    if !genuine || !ours {
        assert_eq!((reply.status, sent.len() + views.len()), (401, 0), "{reply:?}");
        return;
    }
    let effects = match callback.kind {
        // Whatever they hold: the pending call gets an answer or an error (I7).
        CallbackKind::ToolResult | CallbackKind::OAuth | CallbackKind::UserChoice => 1,
        CallbackKind::SubscriptionEvent | CallbackKind::ViewUpdate => usize::from(reply.status == 200),
    };
    assert_eq!(sent.len() + views.len(), effects, "{reply:?}");
}

/// The call that a queued message concerns.
fn named(message: &InputMessage) -> Option<CallId> {
    match (&message.content, &message.synthetic) {
        (_, Some(Synthetic::SubscriptionEvent { tool_call_id, .. })) => Some(tool_call_id.clone()),
        (InputContent::ToolResult(result), None) => Some(result.id.clone()),
        (InputContent::OAuthRequired(asked), None) => Some(asked.id.clone()),
        (InputContent::UserChoiceRequired(asked), None) => Some(asked.id.clone()),
        _ => None,
    }
}

async fn store() -> MemoryStore {
    let store = MemoryStore::new();
    let mut meta = Meta::new_root(ThreadId::from(THREAD), "default", None, 0);
    meta.token = "t".to_owned();
    meta.pending = vec![PendingCall {
        call: CallId::from(CALL),
        seq: Seq::FIRST,
        name: "f".to_owned(),
        passive: false,
        synchronous: false,
        server: None,
        hold: None,
        terms: Default::default(),
        parked: false,
        cause: Vec::new(),
        user: None,
        extra: Default::default(),
    }];
    let commit = Commit::new(Expect::Absent, meta, 0);
    store.commit(commit).await.expect("a store in memory");
    store
}

#[derive(Default)]
struct Sent(Mutex<Vec<InputMessage>>);

#[async_trait]
impl InputSender for Sent {
    async fn send(&self, message: &InputMessage, _dedup: &DedupId) -> Result<(), QueueError> {
        self.0.lock().expect("a lock").push(message.clone());
        Ok(())
    }
}
