//! `[webhook_secrets]`: what the POSTs of other services to an agent's webhooks are signed with.

use axum::http::HeaderName;
use serde::{Deserialize, Serialize};

use super::{Config, ConfigError};

/// Characters of a secret's name: it travels in addresses.
const MAX_NAME_CHARS: usize = 64;

/// A secret that an agent can name for a webhook, by reference.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WebhookSecretConfig {
    /// The environment variable that holds it.
    pub env: Option<String>,
    /// The ARN of a secret (AWS Secrets Manager) whose value is it.
    pub secret: Option<String>,
    /// The header with the HMAC-SHA256 of the body in hex, `sha256=` before it or not; absent: `x-hub-signature-256`
    /// (GitHub and others), else `x-signature-256`.
    pub header: Option<String>,
}

/// Checks what types alone cannot say.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    for (name, secret) in &config.webhook_secrets {
        let problem = |field: &str, problem: &str| {
            Err(ConfigError::field(format!("webhook_secrets.{name}.{field}"), problem))
        };
        if name.is_empty() || name.chars().count() > MAX_NAME_CHARS {
            return Err(ConfigError::field(
                format!("webhook_secrets.{name}"),
                format!("its name must have from 1 to {MAX_NAME_CHARS} characters"),
            ));
        }
        if secret.env.is_some() == secret.secret.is_some() {
            return problem("env", "or secret must be set, one of the two");
        }
        if secret.header.as_ref().is_some_and(|header| header.parse::<HeaderName>().is_err()) {
            return problem("header", "is not the name of a header");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::parse;

    #[test]
    fn a_webhook_secret_is_a_reference() {
        let parse = |rest: &str| parse(&format!("[webhook_secrets.hub]\n{rest}"));
        let config = parse("env = 'HUB_SECRET'\nheader = 'x-sig'").unwrap();
        assert_eq!(config.webhook_secrets["hub"].header.as_deref(), Some("x-sig"));
        assert!(parse("secret = 'arn:aws:secretsmanager:x:1:secret:hub'").is_ok());
        for (toml, says) in [
            ("", "webhook_secrets.hub.env"),
            ("env = 'A'\nsecret = 'arn:x'", "one of the two"),
            ("env = 'A'\nheader = 'not a name'", "webhook_secrets.hub.header"),
            ("value = 'top secret'", "value"),
        ] {
            let error = parse(toml).unwrap_err();
            assert!(error.contains(says), "{toml}: {error}");
        }
    }
}
