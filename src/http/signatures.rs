//! The secrets that webhooks are signed with, and the check of a signature: HMAC-SHA256 over the body as it was sent.

use std::collections::BTreeMap;
use std::fmt;

use axum::http::{HeaderMap, HeaderName};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Where a signature is looked for if the configuration does not say: GitHub's header, which many use, then a plain one.
const HEADERS: [&str; 2] = ["x-hub-signature-256", "x-signature-256"];
/// What may stand before the hex digits.
const SCHEME: &str = "sha256=";

/// The secrets by the names under which agents ask for them. `Debug` shows names only.
#[derive(Clone, Default)]
pub struct WebhookSecrets {
    by_name: BTreeMap<String, Signing>,
}

#[derive(Clone)]
struct Signing {
    /// None: it could not be read, so nothing that needs it is taken (D33).
    secret: Option<Vec<u8>>,
    header: Option<HeaderName>,
}

/// Why a POST is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Its signature is missing or not ours.
    Signature,
    /// There is nothing to check it with.
    NoSecret,
}

impl WebhookSecrets {
    /// Adds a secret as it was read; an empty one cannot check anything and counts as not read.
    pub fn with(mut self, name: &str, secret: Option<String>, header: Option<HeaderName>) -> Self {
        let secret = secret.map(String::into_bytes).filter(|secret| !secret.is_empty());
        self.by_name.insert(name.to_owned(), Signing { secret, header });
        self
    }

    /// Whether `body` was signed with the secret called `name`.
    pub(super) fn check(&self, name: &str, headers: &HeaderMap, body: &[u8]) -> Result<(), Refused> {
        let Some(Signing { secret: Some(secret), header }) = self.by_name.get(name) else {
            return Err(Refused::NoSecret);
        };
        let given = match header {
            Some(header) => headers.get(header),
            None => HEADERS.iter().find_map(|header| headers.get(*header)),
        };
        let given = given.and_then(|given| given.to_str().ok()).ok_or(Refused::Signature)?.trim();
        let digits = given.strip_prefix(SCHEME).unwrap_or(given);
        let mac = data_encoding::HEXLOWER_PERMISSIVE.decode(digits.as_bytes());
        let mac = mac.map_err(|_| Refused::Signature)?;
        // HMAC takes keys of any length: the error cannot occur.
        let mut expected = Hmac::<Sha256>::new_from_slice(secret).map_err(|_| Refused::NoSecret)?;
        expected.update(body);
        // Compares in constant time.
        expected.verify_slice(&mac).map_err(|_| Refused::Signature)
    }
}

impl fmt::Debug for WebhookSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.by_name.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// GitHub's own example: docs.github.com, "Validating webhook deliveries".
    const SECRET: &str = "It's a Secret to Everybody";
    const BODY: &[u8] = b"Hello, World!";
    const DIGITS: &str = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";

    fn check(header: &'static str, value: &str) -> Result<(), Refused> {
        let mine = Some(HeaderName::from_static("x-mine"));
        let secrets = WebhookSecrets::default().with("hub", Some(SECRET.into()), None).with(
            "mine",
            Some(SECRET.into()),
            mine,
        );
        let mut headers = HeaderMap::new();
        headers.insert(header, value.parse().unwrap());
        assert!(!format!("{secrets:?}").contains(SECRET));
        secrets.check(if header == "x-mine" { "mine" } else { "hub" }, &headers, BODY)
    }

    #[test]
    fn a_signature_is_taken_in_the_usual_spellings_and_no_other() {
        for header in ["x-hub-signature-256", "x-signature-256", "x-mine"] {
            assert_eq!(check(header, &format!("sha256={DIGITS}")), Ok(()), "{header}");
            assert_eq!(check(header, &DIGITS.to_uppercase()), Ok(()), "{header}");
            let wrong = DIGITS.replace('7', "8");
            for bad in [wrong.as_str(), &DIGITS[..62], "", "sha256=", "sha1=00", "not hex at all"] {
                assert_eq!(check(header, bad), Err(Refused::Signature), "{header}: {bad}");
            }
        }
        assert_eq!(check("x-hub-signature", DIGITS), Err(Refused::Signature), "that header is for SHA-1");
    }

    #[test]
    fn d33_a_secret_that_is_not_there_refuses_all() {
        let secrets =
            WebhookSecrets::default().with("lost", None, None).with("empty", Some(String::new()), None);
        let mut headers = HeaderMap::new();
        headers.insert("x-signature-256", DIGITS.parse().unwrap());
        for name in ["lost", "empty", "removed"] {
            assert_eq!(secrets.check(name, &headers, BODY), Err(Refused::NoSecret), "{name}");
        }
    }
}
