//! The wire: AWS JSON 1.0 in and out. Knows no queue.

use std::borrow::Cow;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use rustack_sqs_model::error::{SqsError, SqsErrorCode};
use rustack_sqs_model::operations::SqsOperation;
use rustack_sqs_model::types::BatchResultErrorEntry;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::local::journal::JournalError;

const CONTENT_TYPE: &str = "application/x-amz-json-1.0";
const TARGET: &str = "x-amz-target";
const TARGET_PREFIX: &str = "AmazonSQS.";
/// The namespace of error names in the JSON protocol.
const SHAPE_PREFIX: &str = "com.amazonaws.sqs#";

/// An error as a client sees it.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    /// The code of the old query protocol: boto3 names its exceptions by it.
    query_code: Cow<'static, str>,
    /// Says what to do; never holds a message's body.
    pub(super) message: String,
}

impl ApiError {
    pub(super) fn internal(message: impl Into<String>) -> Self {
        SqsError::internal_error(message).into()
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        SqsError::invalid_parameter_value(message).into()
    }

    pub(super) fn unsupported(operation: SqsOperation) -> Self {
        SqsError::new(
            SqsErrorCode::UnsupportedOperation,
            format!("{operation} is not served by the embedded SQS."),
        )
        .into()
    }

    /// The body holds characters XML does not have.
    pub(super) fn invalid_contents() -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            query_code: "InvalidMessageContents".into(),
            message: "The message contains characters outside the allowed set.".to_owned(),
        }
    }

    fn is_sender_fault(&self) -> bool {
        self.status.is_client_error()
    }

    /// The error as one entry of a batch's answer.
    pub(super) fn into_entry(self, id: String) -> BatchResultErrorEntry {
        BatchResultErrorEntry {
            id,
            sender_fault: self.is_sender_fault(),
            code: self.query_code.into_owned(),
            message: Some(self.message),
        }
    }

    pub(super) fn into_response(self) -> Response {
        // The JSON protocol names two errors differently from the query protocol, and none with a prefix.
        let shape = match self.query_code.as_ref() {
            "AWS.SimpleQueueService.NonExistentQueue" => "QueueDoesNotExist",
            "QueueAlreadyExists" => "QueueNameExists",
            code => code.rsplit('.').next().unwrap_or(code),
        };
        let fault = if self.is_sender_fault() { "Sender" } else { "Receiver" };
        let body = serde_json::json!({ "__type": format!("{SHAPE_PREFIX}{shape}"), "message": self.message });
        let mut response = respond(self.status, body.to_string());
        if let Ok(value) = HeaderValue::from_str(&format!("{};{fault}", self.query_code)) {
            response.headers_mut().insert("x-amzn-query-error", value);
        }
        response
    }
}

impl From<SqsError> for ApiError {
    fn from(error: SqsError) -> Self {
        Self {
            status: error.code.status_code(),
            query_code: error.code.error_type().into(),
            message: error.message,
        }
    }
}

impl From<JournalError> for ApiError {
    fn from(error: JournalError) -> Self {
        tracing::error!(%error, "the queue's journal failed");
        Self::internal(error.to_string())
    }
}

/// Which operation a request is.
pub(super) fn operation(headers: &HeaderMap) -> Result<SqsOperation, ApiError> {
    let Some(target) = headers.get(TARGET).and_then(|target| target.to_str().ok()) else {
        return Err(SqsError::new(
            SqsErrorCode::MissingAction,
            "This endpoint speaks the AWS JSON 1.0 protocol only, and the request has no X-Amz-Target header. Use a \
             current AWS SDK or CLI: those from before the end of 2023 send the query protocol.",
        )
        .into());
    };
    target
        .strip_prefix(TARGET_PREFIX)
        .and_then(SqsOperation::from_name)
        .ok_or_else(|| SqsError::unknown_operation(target).into())
}

/// Reads a request's body.
pub(super) fn parse<T: DeserializeOwned>(body: &Bytes) -> Result<T, ApiError> {
    // The parser's message would quote the body: the place in it is enough.
    serde_json::from_slice(body).map_err(|error| {
        ApiError::invalid(format!(
            "The request is not the JSON of this operation (line {}, column {}).",
            error.line(),
            error.column()
        ))
    })
}

/// A successful answer.
pub(super) fn success<T: Serialize>(answer: &T) -> Result<Response, ApiError> {
    let json = serde_json::to_string(answer)
        .map_err(|error| ApiError::internal(format!("the answer does not serialize: {error}")))?;
    Ok(respond(StatusCode::OK, json))
}

fn respond(status: StatusCode, json: String) -> Response {
    let mut response = Response::new(Body::from(json));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE));
    if let Ok(id) = HeaderValue::from_str(&uuid::Uuid::new_v4().to_string()) {
        response.headers_mut().insert("x-amzn-requestid", id);
    }
    response
}
