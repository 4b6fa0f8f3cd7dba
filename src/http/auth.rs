//! Who asks, and which threads are theirs.
//!
//! A thread belongs to the principal that made it: its `owner`, which for a child is its root's. To everybody else it
//! is not there (404). Without configuration the thread routes are closed, but on a machine's own loopback: whoever
//! reaches that may read the files anyway. A web page may reach it too, in the browser of somebody who visits it, so
//! requests that name another host or come from another origin are refused.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::{ApiError, HttpDeps};
use crate::message::ThreadId;
use crate::store::{Meta, Store};

/// Characters that a bearer token has at least: shorter ones can be guessed.
pub const MIN_TOKEN_CHARS: usize = 16;

/// Who may use the thread routes.
#[derive(Clone)]
pub enum Access {
    /// Nobody.
    Closed,
    /// Whoever is on this machine, for every thread.
    Loopback,
    /// Whoever has a token, for their own threads.
    Bearer(Tokens),
    /// Whoever has signed the request, for the threads of that [`IamPrincipal`].
    Iam,
}

/// Who has signed a request, as whatever serves the router has been told by AWS: an extension of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IamPrincipal(String);

impl IamPrincipal {
    /// By the ARN of who asks. All sessions of a role are one principal: their names are made up by whoever takes it on.
    pub fn new(arn: &str) -> Self {
        let mut parts = arn.splitn(3, '/');
        Self(match (parts.next(), parts.next(), parts.next()) {
            (Some(before), Some(role), Some(_)) if before.ends_with(":assumed-role") => {
                format!("{before}/{role}")
            }
            _ => arn.to_owned(),
        })
    }
}

/// Bearer tokens by principal, kept as digests.
#[derive(Clone)]
pub struct Tokens(Arc<Vec<(String, [u8; 32])>>);

impl Tokens {
    /// Reads `{"principal":"token",…}`.
    ///
    /// # Errors
    /// What is wrong, without any token.
    pub fn from_json(json: &str) -> Result<Self, String> {
        let tokens: BTreeMap<String, String> = serde_json::from_str(json).map_err(|e| {
            format!("is not JSON of the form {{\"principal\":\"token\"}} (line {})", e.line())
        })?;
        if tokens.is_empty() {
            return Err("names no principal".to_owned());
        }
        let mut digests: Vec<(String, [u8; 32])> = Vec::new();
        for (principal, token) in tokens {
            if principal.is_empty() {
                return Err("has an empty principal".to_owned());
            }
            if token.chars().count() < MIN_TOKEN_CHARS {
                return Err(format!(
                    "the token of {principal:?} has fewer than {MIN_TOKEN_CHARS} characters"
                ));
            }
            let digest = digest(&token);
            if let Some((other, _)) = digests.iter().find(|(_, known)| *known == digest) {
                return Err(format!("{other:?} and {principal:?} have the same token"));
            }
            digests.push((principal, digest));
        }
        Ok(Self(Arc::new(digests)))
    }

    /// The principal of a token. All are compared, each in constant time: how long it takes tells nothing.
    fn principal(&self, token: &str) -> Option<&str> {
        let given = digest(token);
        let mut found = None;
        for (principal, known) in self.0.iter() {
            if bool::from(known.ct_eq(&given)) {
                found = Some(principal.as_str());
            }
        }
        found
    }
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// Somebody on this machine: every thread is theirs.
    Operator,
    /// A principal: the threads that they made are theirs.
    Principal(String),
}

impl FromRequestParts<HttpDeps> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, deps: &HttpDeps) -> Result<Self, ApiError> {
        match &deps.access {
            Access::Closed => Err(ApiError::new(StatusCode::NOT_FOUND, super::NO_ADDRESS)),
            Access::Loopback => match is_local(&parts.headers) {
                true => Ok(Self::Operator),
                false => Err(ApiError::new(
                    StatusCode::FORBIDDEN,
                    "without `http.auth` threads are there for this machine alone",
                )),
            },
            Access::Iam => match parts.extensions.get::<IamPrincipal>() {
                Some(IamPrincipal(arn)) if !arn.is_empty() => Ok(Self::Principal(arn.clone())),
                Some(_) | None => {
                    Err(ApiError::new(StatusCode::FORBIDDEN, "the request is not signed for this address"))
                }
            },
            Access::Bearer(tokens) => {
                let token = bearer(&parts.headers);
                match token.and_then(|token| tokens.principal(token)) {
                    Some(principal) => Ok(Self::Principal(principal.to_owned())),
                    None => Err(ApiError::new(StatusCode::UNAUTHORIZED, "a valid bearer token is missing")
                        .with_header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
                }
            }
        }
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Whether a request is meant for this machine, and comes from a page of this machine if it comes from one.
pub(super) fn is_local(headers: &HeaderMap) -> bool {
    let value = |name: header::HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let host = value(header::HOST).is_some_and(|host| is_loopback(&format!("http://{host}")));
    host && value(header::ORIGIN).is_none_or(is_loopback)
}

fn is_loopback(address: &str) -> bool {
    let Ok(url) = url::Url::parse(address) else { return false };
    match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost",
        Some(url::Host::Ipv4(ip)) => ip.is_loopback(),
        Some(url::Host::Ipv6(ip)) => ip.is_loopback(),
        None => false,
    }
}

impl Caller {
    /// Whether a thread that `owner` made is theirs.
    pub(super) fn owns(&self, owner: Option<&str>) -> bool {
        match self {
            Self::Operator => true,
            Self::Principal(principal) => owner == Some(principal),
        }
    }

    /// The state of a thread of theirs. Somebody else's is not there.
    pub(super) async fn thread(&self, store: &dyn Store, thread: &ThreadId) -> Result<Meta, ApiError> {
        let none = || ApiError::new(StatusCode::NOT_FOUND, "there is no such thread");
        let meta = store.meta(thread).await?.ok_or_else(none)?;
        match self.may(store, &meta).await? {
            true => Ok(meta),
            false => Err(none()),
        }
    }

    /// Whether a thread is theirs: a child is its root's.
    pub(super) async fn may(&self, store: &dyn Store, meta: &Meta) -> Result<bool, ApiError> {
        if *self == Self::Operator || meta.root == meta.thread {
            return Ok(self.owns(meta.owner.as_deref()));
        }
        let root = store.meta(&meta.root).await?;
        Ok(root.is_some_and(|root| self.owns(root.owner.as_deref())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_name_their_principal_and_weak_ones_are_refused() {
        let tokens = Tokens::from_json(r#"{"ann":"aaaaaaaaaaaaaaaa","bob":"bbbbbbbbbbbbbbbb"}"#).unwrap();
        assert_eq!(tokens.principal("bbbbbbbbbbbbbbbb"), Some("bob"));
        assert_eq!(tokens.principal("bbbbbbbbbbbbbbb"), None);
        assert_eq!(tokens.principal(""), None);
        let error = |json| Tokens::from_json(json).err().unwrap();
        assert!(error("{}").contains("no principal"));
        assert!(error(r#"{"ann":"short-secret"}"#).contains("\"ann\""));
        assert!(!error(r#"{"ann":"short-secret"}"#).contains("short-secret"));
        assert!(error(r#"{"a":"aaaaaaaaaaaaaaaa","b":"aaaaaaaaaaaaaaaa"}"#).contains("same token"));
        assert!(error("[\"aaaaaaaaaaaaaaaa\"]").contains("principal"));
    }

    #[test]
    fn sessions_of_a_role_are_one_principal() {
        let role = "arn:aws:sts::123456789012:assumed-role/web";
        assert_eq!(IamPrincipal::new(&format!("{role}/one")), IamPrincipal::new(&format!("{role}/two")));
        assert_ne!(IamPrincipal::new(&format!("{role}/one")), IamPrincipal::new(&format!("{role}2/one")));
        let user = "arn:aws:iam::123456789012:user/team/ann";
        assert_eq!(IamPrincipal::new(user), IamPrincipal(user.to_owned()));
    }

    #[test]
    fn only_loopback_addresses_are_this_machine() {
        for local in ["http://localhost:1", "http://127.0.0.1", "http://127.8.0.1:80", "http://[::1]:5"] {
            assert!(is_loopback(local), "{local}");
        }
        for other in ["http://evil.example", "null", "", "http://localhost.evil.example", "http://10.0.0.1"] {
            assert!(!is_loopback(other), "{other}");
        }
    }
}
