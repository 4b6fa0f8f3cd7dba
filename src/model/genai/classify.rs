//! Failures of a provider as the slice acts on them: by status, by header, by typed code.
//!
//! Only [`overflow`](super::overflow) looks at an error's text, because several providers give "the request is too
//! large" no code of its own. Messages carry the status and the provider's codes, never its text, which may
//! repeat the request, and never an address with its query.

use std::time::Duration;

use ::genai::Error as GenaiError;
use ::genai::webc::{Error as WebError, StreamTimeout};
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use reqwest::StatusCode;
use reqwest::header::HeaderMap;
use serde_json::Value;

use super::dialect::api_key_env;
use super::overflow::{is_limit, is_overflow_text, named_limit};
use crate::config::ModelConfig;
use crate::model::{ErrorClass, ModelError};

/// The longest message of an error.
const MAX_MESSAGE_CHARS: usize = 300;
/// The longest code of a provider that a message repeats.
const MAX_CODE_CHARS: usize = 64;
/// A delay beyond this is taken for a mistake of the provider.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(24 * 3600);

/// Classifies the failures of one model.
#[derive(Clone)]
pub(super) struct Classifier {
    provider: String,
    model: String,
    key: String,
}

/// What a provider says about a failure.
#[derive(Default)]
struct Report {
    status: Option<u16>,
    /// Types and codes, most specific first.
    codes: Vec<String>,
    overflow_text: bool,
    /// The window, if it says how large that is.
    limit: Option<u64>,
    /// It speaks of a compaction block.
    names_checkpoint: bool,
    retry_after: Option<Duration>,
}

impl Classifier {
    pub fn new(config: &ModelConfig) -> Self {
        let key = match (&config.api_key_secret, api_key_env(config)) {
            (Some(secret), _) => format!("the secret {secret}"),
            (None, Some(variable)) => variable,
            (None, None) if config.provider.starts_with("bedrock") => "the IAM role".to_owned(),
            (None, None) => "the model's configuration".to_owned(),
        };
        Self { provider: config.provider.clone(), model: config.name.clone(), key }
    }

    /// A stream that ended without its terminal event (F50).
    pub fn cut(&self) -> ModelError {
        self.error(ErrorClass::Transient, "cut the response before its end")
    }

    /// A response that ended by saying that something behind the provider failed.
    pub fn failed_in_stream(&self, reason: &str) -> ModelError {
        self.error(ErrorClass::Transient, &format!("ended the response with {}", code(reason)))
    }

    /// A failure once the request was on its way. What genai 0.7.2 cannot read there, such as the blocks of a tool that
    /// Anthropic runs itself, is no fault of the request.
    pub fn classify_response(&self, error: &GenaiError, failure: Option<&Value>) -> ModelError {
        fn is_unreadable(error: &GenaiError) -> bool {
            match error {
                GenaiError::JsonValueExt(_) | GenaiError::SerdeJson(_) => true,
                GenaiError::WebStream { error, .. } => {
                    error.downcast_ref::<GenaiError>().is_some_and(is_unreadable)
                }
                _ => false,
            }
        }
        match failure {
            None if is_unreadable(error) => {
                self.error(ErrorClass::Transient, "sent a response that cannot be read")
            }
            Some(_) | None => self.classify(error, failure),
        }
    }

    /// `failure` is the provider's error object, where genai passes on only a part of it.
    pub fn classify(&self, error: &GenaiError, failure: Option<&Value>) -> ModelError {
        if let Some(failure) = failure {
            return self.of_failure(failure);
        }
        match error {
            GenaiError::HttpError { status, body, headers, .. } => self.of_http(*status, headers, body),
            GenaiError::ChatResponse { body, .. } => self.of_report(Report::of_body(body)),
            GenaiError::WebStream { error, .. } => match error.downcast_ref::<GenaiError>() {
                Some(inner) => self.classify(inner, None),
                None => self.of_transport(error.as_ref()),
            },
            GenaiError::WebModelCall { webc_error, .. } | GenaiError::WebAdapterCall { webc_error, .. } => {
                self.of_web(webc_error)
            }
            GenaiError::StreamParse { .. } => {
                self.error(ErrorClass::Transient, "sent a response that cannot be read")
            }
            GenaiError::RequiresApiKey { .. }
            | GenaiError::NoAuthResolver { .. }
            | GenaiError::NoAuthData { .. }
            | GenaiError::Resolver { .. } => {
                self.error(ErrorClass::Fatal, &format!("has no usable key: check {}", self.key))
            }
            // Bedrock's credentials are fetched per request: a failing metadata service passes.
            GenaiError::Internal(_) if self.provider.starts_with("bedrock") => {
                self.error(ErrorClass::Transient, "cannot be signed for: no AWS credentials could be loaded")
            }
            // The rest is genai's own: a request that it cannot express.
            _ => self.error(ErrorClass::Refused, "cannot be given this request by the adapter"),
        }
    }

    /// An error object that came within a stream.
    pub fn of_failure(&self, failure: &Value) -> ModelError {
        self.of_report(Report::of_body(failure))
    }

    /// A refusal, as HTTP has it.
    pub fn of_http(&self, status: StatusCode, headers: &HeaderMap, body: &str) -> ModelError {
        let mut report = Report::of_text(body);
        let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
        report.status = Some(status.as_u16());
        report.retry_after = retry_after(header, Timestamp::now());
        // Bedrock's type: `ThrottlingException:http://…`.
        if let Some(kind) = header("x-amzn-errortype") {
            report.codes.insert(0, kind.split(':').next().unwrap_or_default().to_owned());
        }
        self.of_report(report)
    }

    /// A response of 200 that is none.
    pub fn unreadable(&self) -> ModelError {
        self.error(ErrorClass::Transient, "sent a response that cannot be read")
    }

    fn of_web(&self, error: &WebError) -> ModelError {
        match error {
            WebError::ResponseFailedStatus { status, body, headers } => self.of_http(*status, headers, body),
            WebError::Reqwest(error) => self.of_transport(error),
            WebError::ResponseFailedNotJson { .. }
            | WebError::ResponseFailedInvalidJson { .. }
            | WebError::JsonValueExt(_) => {
                self.error(ErrorClass::Transient, "sent a response that cannot be read")
            }
        }
    }

    /// No answer of the provider at all. reqwest's text holds the address, so it is not repeated.
    pub fn of_transport(&self, error: &(dyn std::error::Error + Send + Sync + 'static)) -> ModelError {
        if let Some(timeout) = error.downcast_ref::<StreamTimeout>() {
            let what = match timeout {
                StreamTimeout::Headers => "did not answer in time",
                StreamTimeout::Read => "fell silent in mid response",
            };
            return self.error(ErrorClass::Transient, what);
        }
        let what = match error.downcast_ref::<reqwest::Error>() {
            Some(error) if error.is_builder() => {
                return self.error(ErrorClass::Fatal, "has an address that cannot be used: check base_url");
            }
            Some(error) if error.is_connect() => "cannot be reached",
            Some(error) if error.is_timeout() => "did not answer in time",
            Some(_) | None => "broke the connection",
        };
        self.error(ErrorClass::Transient, what)
    }

    fn of_report(&self, report: Report) -> ModelError {
        let class = report.class();
        let codes = report.codes.iter().map(|text| code(text)).collect::<Vec<_>>().join(", ");
        let what = match (report.status, codes.is_empty()) {
            (Some(status), true) => format!("answered {status}"),
            (Some(status), false) => format!("answered {status} ({codes})"),
            (None, true) => "reported an error".to_owned(),
            (None, false) => format!("reported {codes}"),
        };
        let advice = match (class, report.status) {
            (ErrorClass::Fatal, Some(300..=399)) => ": base_url is not the provider's own address".to_owned(),
            (ErrorClass::Fatal, Some(404)) => {
                format!(": model {} is not known to {}, or base_url is wrong", self.model, self.provider)
            }
            (ErrorClass::Fatal, _) if report.has(&QUOTA_CODES) || report.status == Some(402) => {
                ": the account has no credit left".to_owned()
            }
            (ErrorClass::Fatal, _) => format!(": check the key in {} and what it may use", self.key),
            (ErrorClass::Overflow, _) => ": the request does not fit the model's window".to_owned(),
            (ErrorClass::Checkpoint, _) => {
                ": it does not take its own checkpoint of the conversation".to_owned()
            }
            (ErrorClass::Throttled { .. } | ErrorClass::Transient | ErrorClass::Refused, _) => String::new(),
        };
        let limit = report.limit.filter(|_| class == ErrorClass::Overflow);
        ModelError { limit, ..self.error(class, &format!("{what}{advice}")) }
    }

    fn error(&self, class: ErrorClass, what: &str) -> ModelError {
        let message = format!("{} {what}", self.provider);
        ModelError::new(class, message.chars().take(MAX_MESSAGE_CHARS).collect::<String>())
    }
}

/// Codes that mean the window, whatever the status.
const OVERFLOW_CODES: [&str; 4] = [
    "context_length_exceeded",
    "request_too_large",
    "string_above_max_length",
    "model_max_prompt_tokens_exceeded",
];
/// Codes that mean an empty account; OpenAI sends the first with 429.
const QUOTA_CODES: [&str; 2] = ["insufficient_quota", "billing_error"];
/// Codes that mean the key or the model's name. Gemini sends the last two with 400.
const FATAL_CODES: [&str; 9] = [
    "authentication_error",
    "invalid_api_key",
    "permission_error",
    "not_found_error",
    "model_not_found",
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
    "API_KEY_INVALID",
    "API_KEY_EXPIRED",
];
/// Codes that mean too many requests.
const THROTTLE_CODES: [&str; 9] = [
    "rate_limit_error",
    "rate_limit_exceeded",
    "overloaded_error",
    "overloaded",
    "server_overloaded",
    "RESOURCE_EXHAUSTED",
    "ThrottlingException",
    "ServiceUnavailableException",
    "compaction_unavailable",
];
/// Codes that mean the provider's own checkpoint of a conversation. `compaction_unavailable`, which passes, is none of them.
const CHECKPOINT_CODES: [&str; 4] = [
    "compaction_signature_invalid",
    "compaction_content_mismatch",
    "compaction_block_misplaced",
    "invalid_encrypted_content",
];
/// Codes of an error in mid stream, where no status tells the same.
const REFUSED_CODES: [&str; 6] = [
    "invalid_request_error",
    "content_filter",
    "content_policy_violation",
    "invalid_prompt",
    "INVALID_ARGUMENT",
    "ValidationException",
];

impl Report {
    fn of_text(body: &str) -> Self {
        match serde_json::from_str(body) {
            Ok(body) => Self::of_body(&body),
            Err(_) => {
                Self { overflow_text: is_overflow_text(body), limit: named_limit(body), ..Self::default() }
            }
        }
    }

    /// Reads the error objects of all dialects: `{"error":{type, code, status, message}}`, the inner object
    /// alone, Gemini's list around it, and Bedrock's `{"message"}`.
    fn of_body(body: &Value) -> Self {
        let body = body.as_array().and_then(|list| list.first()).unwrap_or(body);
        let error = body.get("error").filter(|error| error.is_object()).unwrap_or(body);
        let mut report = Self::default();
        for member in ["code", "status", "type"] {
            match &error[member] {
                Value::String(text) if !text.is_empty() && text != "error" => report.codes.push(text.clone()),
                // OpenRouter and Gemini give a status of HTTP as the code.
                Value::Number(number) => {
                    report.status = report.status.or(number.as_u64().and_then(|n| u16::try_from(n).ok()));
                }
                _ => {}
            }
        }
        let details = error["details"].as_array().into_iter().flatten();
        report.codes.extend(details.filter_map(|detail| detail["reason"].as_str()).map(str::to_owned));
        // Anthropic's codes of compaction.
        report.codes.extend(error["details"]["error_code"].as_str().map(str::to_owned));
        let message = error["message"].as_str().or_else(|| body["error"].as_str());
        // A header that is known no more is refused by its name, and so is everything that goes with it.
        report.names_checkpoint =
            message.is_some_and(|text| text.contains("compaction") || text.contains("anthropic-beta"));
        report.overflow_text = message.is_some_and(is_overflow_text);
        // llama.cpp has a member for it.
        report.limit =
            message.and_then(named_limit).or_else(|| error["n_ctx"].as_u64().filter(|n| is_limit(*n)));
        report
    }

    fn has(&self, codes: &[&str]) -> bool {
        self.codes.iter().any(|code| codes.contains(&code.as_str()))
    }

    fn class(&self) -> ErrorClass {
        if self.has(&OVERFLOW_CODES) {
            return ErrorClass::Overflow;
        }
        if self.has(&QUOTA_CODES) || self.has(&FATAL_CODES) {
            return ErrorClass::Fatal;
        }
        let throttled = ErrorClass::Throttled { retry_after: self.retry_after };
        match self.status {
            Some(400 | 422) | None if self.has(&CHECKPOINT_CODES) => ErrorClass::Checkpoint,
            // A block of a type that this model does not know, or with a member too many, has no code.
            Some(400 | 422) if self.names_checkpoint && !self.overflow_text => ErrorClass::Checkpoint,
            Some(429 | 503 | 529) => throttled,
            _ if self.has(&THROTTLE_CODES) => throttled,
            // Redirects are not followed.
            Some(300..=399 | 401..=404) => ErrorClass::Fatal,
            Some(413) => ErrorClass::Overflow,
            // Time-outs and conflicts pass by themselves.
            Some(408 | 409 | 425) => ErrorClass::Transient,
            Some(400..=499) | None if self.overflow_text => ErrorClass::Overflow,
            Some(400..=499) => ErrorClass::Refused,
            None if self.has(&REFUSED_CODES) => ErrorClass::Refused,
            Some(_) | None => ErrorClass::Transient,
        }
    }
}

/// The delay a provider asks for: `retry-after-ms`, then `retry-after` as seconds or as an HTTP date.
fn retry_after<'a>(header: impl Fn(&'static str) -> Option<&'a str>, now: Timestamp) -> Option<Duration> {
    let seconds = |text: &str| {
        text.trim().parse::<f64>().ok().and_then(|number| Duration::try_from_secs_f64(number).ok())
    };
    let delay = header("retry-after-ms").and_then(seconds).map(|delay| delay / 1000).or_else(|| {
        let text = header("retry-after")?;
        seconds(text).or_else(|| {
            // An HTTP date is an RFC 2822 date whose zone is spelled GMT.
            let date = rfc2822::DateTimeParser::new().parse_timestamp(text.trim()).ok()?;
            Some(Duration::try_from(date.duration_since(now)).unwrap_or(Duration::ZERO))
        })
    })?;
    Some(delay.min(MAX_RETRY_AFTER))
}

/// A provider's code as it may be shown: codes are words, so what is none is not repeated.
fn code(text: &str) -> &str {
    let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if text.len() <= MAX_CODE_CHARS && text.chars().all(word) { text } else { "unnamed" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(status: Option<u16>, body: &str) -> ErrorClass {
        let mut report = Report::of_text(body);
        report.status = status.or(report.status);
        report.class()
    }

    #[test]
    fn f51_retry_after_is_read_in_all_its_forms() {
        let now: Timestamp = "2026-11-30T10:00:00Z".parse().unwrap();
        let read = |name: &'static str, value: &'static str| {
            retry_after(|asked| (asked == name).then_some(value), now)
        };
        assert_eq!(read("retry-after", "7"), Some(Duration::from_secs(7)));
        assert_eq!(read("retry-after", "0.5"), Some(Duration::from_millis(500)));
        assert_eq!(read("retry-after-ms", "1500"), Some(Duration::from_millis(1500)));
        assert_eq!(read("retry-after", "Mon, 30 Nov 2026 10:00:20 GMT"), Some(Duration::from_secs(20)));
        assert_eq!(read("retry-after", "Mon, 30 Nov 2026 09:00:00 GMT"), Some(Duration::ZERO));
        for odd in ["", "-1", "soon", "NaN", "inf", "1e300"] {
            assert_eq!(read("retry-after", odd), None, "{odd}");
        }
        assert_eq!(read("retry-after", "99999999999"), Some(MAX_RETRY_AFTER));
    }

    #[test]
    fn errors_are_classed_by_status_and_typed_code() {
        let throttled = ErrorClass::Throttled { retry_after: None };
        for (status, body, expected) in [
            (Some(429), "{}", throttled),
            (Some(529), "not json", throttled),
            (Some(503), "", throttled),
            (Some(429), r#"{"error":{"code":"insufficient_quota"}}"#, ErrorClass::Fatal),
            (Some(500), "", ErrorClass::Transient),
            (Some(502), "<html>", ErrorClass::Transient),
            (Some(408), "", ErrorClass::Transient),
            (Some(401), "", ErrorClass::Fatal),
            (Some(404), r#"{"error":{"code":"model_not_found"}}"#, ErrorClass::Fatal),
            (Some(400), r#"{"error":{"code":"context_length_exceeded"}}"#, ErrorClass::Overflow),
            (Some(413), r#"{"error":{"type":"request_too_large"}}"#, ErrorClass::Overflow),
            (Some(400), r#"{"message":"Input is too long for requested model."}"#, ErrorClass::Overflow),
            (
                Some(400),
                r#"[{"error":{"code":400,"status":"INVALID_ARGUMENT","details":[{"reason":"API_KEY_INVALID"}]}}]"#,
                ErrorClass::Fatal,
            ),
            (Some(400), r#"{"error":{"code":"content_filter"}}"#, ErrorClass::Refused),
            (Some(422), "{}", ErrorClass::Refused),
            (None, r#"{"type":"error","error":{"type":"overloaded_error"}}"#, throttled),
            (None, r#"{"type":"error","error":{"type":"api_error"}}"#, ErrorClass::Transient),
            (None, r#"{"type":"invalid_request_error","code":null}"#, ErrorClass::Refused),
            (None, r#"{"type":"server_error"}"#, ErrorClass::Transient),
            (None, r#"{"code":429,"message":"slow down"}"#, throttled),
            (None, "null", ErrorClass::Transient),
            (
                Some(400),
                r#"{"error":{"type":"invalid_request_error","message":"x","details":{"error_code":"compaction_signature_invalid"}}}"#,
                ErrorClass::Checkpoint,
            ),
            (Some(400), r#"{"error":{"code":"invalid_encrypted_content"}}"#, ErrorClass::Checkpoint),
            (
                Some(400),
                r#"{"error":{"type":"invalid_request_error","message":"messages.0.content.0: Input tag 'compaction' found using 'type' does not match any of the expected tags"}}"#,
                ErrorClass::Checkpoint,
            ),
            (
                Some(529),
                r#"{"error":{"type":"overloaded_error","message":"compaction","details":{"error_code":"compaction_unavailable"}}}"#,
                throttled,
            ),
        ] {
            assert_eq!(class(status, body), expected, "{status:?} {body}");
        }
    }

    #[test]
    fn a_message_repeats_no_text_of_the_provider() {
        let config = ModelConfig::from_spec("openai::gpt-x");
        let mut report = Report::of_text(
            r#"{"error":{"message":"SECRET TEXT","type":"invalid request {\"SECRET\"}","code":"bad_value"}}"#,
        );
        report.status = Some(400);
        let error = Classifier::new(&config).of_report(report);
        assert_eq!(error.message, "openai answered 400 (bad_value, unnamed)");
    }
}
