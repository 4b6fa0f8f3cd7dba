//! How a request to an MCP server failed, in words that may be shown: no address, no token, nothing of a body but
//! the server's own message.

use std::error::Error;
use std::time::Duration;

use rmcp::model::ErrorData;
use rmcp::service::{ClientInitializeError, ServiceError};
use rmcp::transport::DynamicTransportError;
use rmcp::transport::streamable_http_client::{HttpStatusError, StreamableHttpError};

/// Characters of a server's own error message.
const MAX_MESSAGE_CHARS: usize = 1_000;

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    /// No session could be made: the request was not sent.
    #[error("its server cannot be used: {0}")]
    NoSession(String),
    /// The request failed on the way, or its answer did.
    #[error("its server gave no usable answer: {0}")]
    Lost(String),
    /// No answer in time.
    #[error("it did not answer within {} ms", .0.as_millis())]
    TimedOut(Duration),
    /// The server answered with an error of the protocol.
    #[error("its server answered with error {code}: {message}")]
    Refused {
        /// A JSON-RPC code.
        code: i32,
        /// The server's words.
        message: String,
    },
    /// The answer is larger than dormouse takes.
    #[error("its result is larger than {0} bytes")]
    TooLarge(usize),
    /// The server wants something that dormouse does not offer.
    #[error("its server wants {0}, which dormouse does not do")]
    Unsupported(&'static str),
}

impl Failure {
    /// Whether the tool may have run all the same.
    pub fn may_have_run(&self) -> bool {
        match self {
            Self::Lost(_) | Self::TimedOut(_) | Self::TooLarge(_) => true,
            Self::NoSession(_) | Self::Refused { .. } | Self::Unsupported(_) => false,
        }
    }

    /// Whether the session may be at fault: servers say so with codes of their own where 404 was due.
    pub fn spoils_the_session(&self) -> bool {
        const SERVER_ERRORS: std::ops::RangeInclusive<i32> = -32_099..=-32_000;
        matches!(self, Self::Refused { code, .. } if SERVER_ERRORS.contains(code))
    }
}

impl From<ErrorData> for Failure {
    fn from(error: ErrorData) -> Self {
        let message: String = error.message.chars().take(MAX_MESSAGE_CHARS).collect();
        Self::Refused { code: error.code.0, message }
    }
}

impl From<ServiceError> for Failure {
    fn from(error: ServiceError) -> Self {
        match error {
            ServiceError::McpError(error) => error.into(),
            ServiceError::TransportSend(error) => Self::Lost(cause(&error)),
            ServiceError::TransportClosed => Self::Lost("the connection ended".to_owned()),
            ServiceError::Timeout { timeout } => Self::TimedOut(timeout),
            ServiceError::UnexpectedResponse => {
                Self::Lost("its answer is not of the kind asked for".to_owned())
            }
            ServiceError::Cancelled { .. } => Self::Lost("the request was cancelled".to_owned()),
            _ => Self::Lost("the request failed".to_owned()),
        }
    }
}

impl From<ClientInitializeError> for Failure {
    fn from(error: ClientInitializeError) -> Self {
        Self::NoSession(match error {
            ClientInitializeError::TransportError { error, .. } => cause(&error),
            ClientInitializeError::ConnectionClosed(_) => "it ended the connection at once".to_owned(),
            ClientInitializeError::JsonRpcError(error) => Self::from(error).to_string(),
            ClientInitializeError::NoCompatibleProtocolVersion { .. } => {
                "it speaks no version of MCP that dormouse speaks".to_owned()
            }
            _ => "it does not answer as an MCP server does".to_owned(),
        })
    }
}

/// What went wrong on the way. rmcp's and reqwest's own texts name addresses and quote bodies.
fn cause(error: &DynamicTransportError) -> String {
    let mut at: Option<&(dyn Error + 'static)> = Some(error.error.as_ref());
    while let Some(error) = at {
        if let Some(error) = error.downcast_ref::<reqwest::Error>() {
            return http_cause(error).to_owned();
        }
        if let Some(HttpStatusError { status, .. }) = error.downcast_ref() {
            return format!("status {status}");
        }
        match error.downcast_ref::<StreamableHttpError<reqwest::Error>>() {
            Some(StreamableHttpError::Client(error)) => return http_cause(error).to_owned(),
            Some(StreamableHttpError::HttpStatus(error)) => return format!("status {}", error.status),
            Some(StreamableHttpError::AuthRequired(_) | StreamableHttpError::InsufficientScope(_)) => {
                return "it refuses the token, or wants one: see bearer_env".to_owned();
            }
            Some(StreamableHttpError::SessionExpired) => return "it has forgotten the session".to_owned(),
            Some(StreamableHttpError::ResponseBodyTooLarge { max_size }) => {
                return format!("its answer is larger than {max_size} bytes");
            }
            Some(StreamableHttpError::UnexpectedContentType(_)) => {
                return "its answer is of an unexpected content type".to_owned();
            }
            Some(_) | None => at = error.source(),
        }
    }
    "the connection was lost".to_owned()
}

fn http_cause(error: &reqwest::Error) -> &'static str {
    if error.is_timeout() {
        "it did not answer in time"
    } else if error.is_connect() {
        "no connection"
    } else if error.is_redirect() || error.status().is_some_and(|status| status.is_redirection()) {
        "it redirects, and redirects are not followed"
    } else if error.is_status() {
        "it refuses the request"
    } else if error.is_builder() {
        "the request could not be built"
    } else {
        "the connection was lost"
    }
}
