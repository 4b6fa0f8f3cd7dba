//! Callback addresses: `{base}/rap/{token}`, where the token names one call of one thread and is signed; and those of
//! webhooks, `{base}/hooks/{token}`, whose tokens also say how a POST is checked and where its event goes.
//!
//! A token is `v1.kid.thread.call.mac`, that of a webhook `hook1.kid.thread.call.options.mac`, each part after the first
//! in base64url without padding; `mac` is HMAC-SHA256, under the key `kid`, over all before it as sent. The first part,
//! which the MAC covers, is what a token is for: one kind is worthless where the other is asked for. It does not expire:
//! what a POST may still do is decided by the state of its call, and a key verifies until it is removed.

use std::collections::BTreeMap;
use std::fmt;

use data_encoding::BASE64URL_NOPAD;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::message::{CallId, ThreadId};

/// The first part of a callback's token.
const CALLBACK: &str = "v1";
/// The first part of a webhook's token.
const HOOK: &str = "hook1";
/// Longer tokens are refused unread. A thread id of 128 and a call id of 64 characters make about 330.
const MAX_TOKEN_BYTES: usize = 2_048;
/// Bytes of a usable key; a shorter one is a placeholder that somebody forgot.
pub const MIN_KEY_BYTES: usize = 16;
/// The member of the keys' JSON that names the signing key.
const ACTIVE: &str = "active";
/// The member that holds the keys in the nested form.
const KEYS: &str = "keys";

type HmacSha256 = Hmac<Sha256>;

/// The keys that sign and verify callback tokens, by key id. `Debug` shows ids only.
#[derive(Clone)]
pub struct CallbackKeys {
    active: String,
    keys: BTreeMap<String, Vec<u8>>,
}

/// Why callback keys cannot be used. Never holds a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    /// Not the expected JSON.
    #[error("the callback keys are not JSON of the form {{\"active\":\"k1\",\"k1\":\"<text>\"}}")]
    Malformed,
    /// `active` names no key.
    #[error("the callback keys have no key {0:?}, which `active` names")]
    NoActive(String),
    /// A key is too short to sign with.
    #[error("the callback key {0:?} is shorter than {MIN_KEY_BYTES} bytes; use a random text of 32 or more")]
    TooShort(String),
}

impl CallbackKeys {
    /// Reads `{"active":"k1","k1":"<text>","k2":"…"}`, or the same with the keys inside `"keys":{…}`. The
    /// bytes of a key's text are the key.
    pub fn from_json(json: &str) -> Result<Self, KeysError> {
        let mut members: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(json.trim()).map_err(|_| KeysError::Malformed)?;
        let active = match members.remove(ACTIVE) {
            Some(serde_json::Value::String(active)) => active,
            Some(_) | None => return Err(KeysError::Malformed),
        };
        if let Some(serde_json::Value::Object(nested)) = members.get(KEYS) {
            members = nested.clone();
        }
        let mut keys = BTreeMap::new();
        for (id, value) in members {
            let serde_json::Value::String(text) = value else { return Err(KeysError::Malformed) };
            if text.len() < MIN_KEY_BYTES {
                return Err(KeysError::TooShort(id));
            }
            keys.insert(id, text.into_bytes());
        }
        if !keys.contains_key(&active) {
            return Err(KeysError::NoActive(active));
        }
        Ok(Self { active, keys })
    }

    /// The id of the key that signs new tokens.
    pub fn active(&self) -> &str {
        &self.active
    }

    fn mac(&self, id: &str, signed: &str) -> Option<HmacSha256> {
        // HMAC takes keys of any length: the error cannot occur.
        let mut mac = HmacSha256::new_from_slice(self.keys.get(id)?).ok()?;
        mac.update(signed.as_bytes());
        Some(mac)
    }
}

impl fmt::Debug for CallbackKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallbackKeys")
            .field("active", &self.active)
            .field("ids", &self.keys.keys().collect::<Vec<_>>())
            .finish()
    }
}

/// A webhook, as its address says it: nothing else is kept of it but that its subscription is active.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Whose events its POSTs are.
    pub thread: ThreadId,
    /// The call that asked for it, which is the subscription.
    pub call: CallId,
    /// How it works.
    pub options: HookOptions,
}

/// How a webhook works. Signed with its address, so that nobody else can change it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookOptions {
    /// The name, in the configuration, of the secret that its POSTs are signed with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Its events belong into the thread's own conversation rather than a child thread each.
    pub associative: bool,
}

/// Makes and checks callback addresses.
#[derive(Clone, Debug)]
pub struct CallbackTokens {
    keys: CallbackKeys,
    base_url: String,
}

/// Why a token is refused; all of them are a 401.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Not of the form of a token.
    #[error("the token is malformed")]
    Malformed,
    /// Signed by a key that was removed, or never was.
    #[error("the token's key is unknown")]
    UnknownKey,
    /// The signature is not ours.
    #[error("the token is forged")]
    Forged,
}

impl CallbackTokens {
    /// Addresses below `base_url`, e.g. the API's address.
    pub fn new(keys: CallbackKeys, base_url: impl Into<String>) -> Self {
        let mut base_url = base_url.into();
        base_url.truncate(base_url.trim_end_matches('/').len());
        Self { keys, base_url }
    }

    /// The address to which the results of `call` of `thread` are POSTed. The same for equal arguments as long
    /// as the active key does not change.
    pub fn url(&self, thread: &ThreadId, call: &CallId) -> String {
        format!("{}/rap/{}", self.base_url, self.token(thread, call))
    }

    /// The token alone.
    pub fn token(&self, thread: &ThreadId, call: &CallId) -> String {
        self.sign(CALLBACK, &[thread.as_str(), call.as_str()])
    }

    /// The thread and the call that `token` was made for.
    pub fn verify(&self, token: &str) -> Result<(ThreadId, CallId), TokenError> {
        let [thread, call] = self.open(CALLBACK, token)?;
        Ok((ThreadId::new(thread), CallId::new(call)))
    }

    /// The address of a webhook. The same for equal arguments as long as the active key does not change.
    pub fn hook_url(&self, hook: &Hook) -> String {
        format!("{}/hooks/{}", self.base_url, self.hook_token(hook))
    }

    /// The token of a webhook alone.
    pub fn hook_token(&self, hook: &Hook) -> String {
        let options = serde_json::to_string(&hook.options).expect("bug: options serialise");
        self.sign(HOOK, &[hook.thread.as_str(), hook.call.as_str(), &options])
    }

    /// The webhook that `token` was made for.
    pub fn verify_hook(&self, token: &str) -> Result<Hook, TokenError> {
        let [thread, call, options] = self.open(HOOK, token)?;
        // Ours, but of a version that knows other options.
        let options = serde_json::from_str(&options).map_err(|_| TokenError::Malformed)?;
        Ok(Hook { thread: ThreadId::new(thread), call: CallId::new(call), options })
    }

    fn sign(&self, purpose: &str, parts: &[&str]) -> String {
        let active = self.keys.active();
        let mut signed = purpose.to_owned();
        for part in [active].iter().chain(parts) {
            signed.push('.');
            signed.push_str(&BASE64URL_NOPAD.encode(part.as_bytes()));
        }
        let mac = self.keys.mac(active, &signed).expect("bug: the active key is always among the keys");
        format!("{signed}.{}", BASE64URL_NOPAD.encode(&mac.finalize().into_bytes()))
    }

    /// The parts of a token of this purpose, key id and MAC taken off.
    fn open<const PARTS: usize>(&self, purpose: &str, token: &str) -> Result<[String; PARTS], TokenError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::Malformed);
        }
        let (signed, mac) = token.rsplit_once('.').ok_or(TokenError::Malformed)?;
        let mut parts = signed.split('.');
        if parts.next() != Some(purpose) {
            return Err(TokenError::Malformed);
        }
        let key = text_part(parts.next().ok_or(TokenError::Malformed)?)?;
        let expected = self.keys.mac(&key, signed).ok_or(TokenError::UnknownKey)?;
        let mac = BASE64URL_NOPAD.decode(mac.as_bytes()).map_err(|_| TokenError::Malformed)?;
        // Compares in constant time.
        expected.verify_slice(&mac).map_err(|_| TokenError::Forged)?;
        let parts: Vec<String> = parts.map(text_part).collect::<Result<_, _>>()?;
        parts.try_into().map_err(|_| TokenError::Malformed)
    }
}

fn text_part(part: &str) -> Result<String, TokenError> {
    let bytes = BASE64URL_NOPAD.decode(part.as_bytes()).map_err(|_| TokenError::Malformed)?;
    String::from_utf8(bytes).map_err(|_| TokenError::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const K1: &str = "0123456789abcdef-one";
    const K2: &str = "0123456789abcdef-two";

    fn tokens(json: &str) -> CallbackTokens {
        CallbackTokens::new(CallbackKeys::from_json(json).unwrap(), "https://cb.example/base/")
    }

    #[test]
    fn rap_08_a_token_names_its_thread_and_call_whatever_characters_they_hold() {
        let tokens = tokens(&format!(r#"{{"active":"k1","k1":"{K1}"}}"#));
        for (thread, call) in [("th-1", "c0-1-x"), ("a.b/c d", "ü.😀"), (&"t".repeat(128) as &str, "")] {
            let (thread, call) = (ThreadId::from(thread), CallId::from(call));
            let url = tokens.url(&thread, &call);
            let token = url.strip_prefix("https://cb.example/base/rap/").unwrap();
            assert!(token.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)), "{token}");
            assert_eq!(tokens.verify(token), Ok((thread, call)));
        }
    }

    #[test]
    fn f63_a_token_that_is_cut_changed_or_recombined_is_refused() {
        let tokens = tokens(&format!(r#"{{"active":"k1","k1":"{K1}"}}"#));
        let token = tokens.token(&ThreadId::from("th-1"), &CallId::from("c-1"));
        let other = tokens.token(&ThreadId::from("th-2"), &CallId::from("c-1"));
        for end in 0..token.len() {
            assert!(tokens.verify(&token[..end]).is_err(), "cut at {end}");
        }
        let mac = token.rsplit_once('.').unwrap().1;
        let swapped = format!("{}.{mac}", other.rsplit_once('.').unwrap().0);
        assert_eq!(tokens.verify(&swapped), Err(TokenError::Forged));
        assert_eq!(tokens.verify(&format!("{token}.x")), Err(TokenError::Malformed));
        assert_eq!(tokens.verify(&token.replacen("v1", "v2", 1)), Err(TokenError::Malformed));
        assert_eq!(tokens.verify(&"x".repeat(1 << 20)), Err(TokenError::Malformed));
        assert_eq!(tokens.verify("v1.é.é.é.é"), Err(TokenError::Malformed));
    }

    #[test]
    fn an_old_key_verifies_until_it_is_removed() {
        let (thread, call) = (ThreadId::from("t"), CallId::from("c"));
        let old = tokens(&format!(r#"{{"active":"k1","k1":"{K1}"}}"#)).token(&thread, &call);
        let rotated = tokens(&format!(r#"{{"active":"k2","keys":{{"k1":"{K1}","k2":"{K2}"}}}}"#));
        assert_ne!(rotated.token(&thread, &call), old);
        assert_eq!(rotated.verify(&old), Ok((thread, call)));
        let removed = tokens(&format!(r#"{{"active":"k2","k2":"{K2}"}}"#));
        assert_eq!(removed.verify(&old), Err(TokenError::UnknownKey));
        let replaced = tokens(&format!(r#"{{"active":"k1","k1":"{K2}"}}"#));
        assert_eq!(replaced.verify(&old), Err(TokenError::Forged));
    }

    #[test]
    fn d31_a_token_of_one_kind_is_worthless_where_the_other_is_asked_for() {
        let tokens = tokens(&format!(r#"{{"active":"k1","k1":"{K1}"}}"#));
        let hook = |secret: Option<&str>, associative| Hook {
            thread: ThreadId::from("th-1"),
            call: CallId::from("c-1"),
            options: HookOptions { secret: secret.map(str::to_owned), associative },
        };
        for hook in [hook(None, true), hook(Some("git hüb"), false)] {
            let url = tokens.hook_url(&hook);
            let token = url.strip_prefix("https://cb.example/base/hooks/").unwrap();
            assert_eq!(tokens.verify_hook(token), Ok(hook.clone()));
            assert_eq!(tokens.verify(token), Err(TokenError::Malformed));
            // With the other kind in front, the MAC is not over that.
            assert_eq!(tokens.verify(&token.replacen(HOOK, CALLBACK, 1)), Err(TokenError::Forged));
            for end in 0..token.len() {
                assert!(tokens.verify_hook(&token[..end]).is_err(), "cut at {end}");
            }
        }
        let callback = tokens.token(&ThreadId::from("th-1"), &CallId::from("c-1"));
        assert_eq!(tokens.verify_hook(&callback), Err(TokenError::Malformed));
        assert_eq!(tokens.verify_hook(&callback.replacen(CALLBACK, HOOK, 1)), Err(TokenError::Forged));
        // Without its secret, a webhook would take anything.
        let (checked, open) =
            (tokens.hook_token(&hook(Some("s"), true)), tokens.hook_token(&hook(None, true)));
        let (mac, unsigned) = (checked.rsplit_once('.').unwrap().1, open.rsplit_once('.').unwrap().0);
        assert_eq!(tokens.verify_hook(&format!("{unsigned}.{mac}")), Err(TokenError::Forged));
    }

    #[test]
    fn unusable_keys_are_refused_and_never_shown() {
        let error = |json: &str| CallbackKeys::from_json(json).unwrap_err();
        assert_eq!(error("not json"), KeysError::Malformed);
        assert_eq!(error(&format!(r#"{{"k1":"{K1}"}}"#)), KeysError::Malformed);
        assert_eq!(error(&format!(r#"{{"active":"k2","k1":"{K1}"}}"#)), KeysError::NoActive("k2".into()));
        assert_eq!(error(r#"{"active":"k1","k1":"short"}"#), KeysError::TooShort("k1".into()));
        let keys = CallbackKeys::from_json(&format!(r#"{{"active":"k1","k1":"{K1}"}}"#)).unwrap();
        assert!(!format!("{keys:?}").contains(K1));
    }
}
