//! reqwest as rmcp's HTTP client, and one thing more.
//!
//! The TypeScript SDK's servers refuse a forgotten session with 400 and a JSON-RPC error that names no request. rmcp
//! 3.11 knows only 404 as a lost session and passes that error on to nobody: the request would wait for its timeout.
//! What names no request was not read as one, so it is safe to send it once more in a new session, as after a 404. To
//! be removed when rmcp does that itself.

use std::collections::HashMap;
use std::sync::Arc;

use reqwest::header::{HeaderName, HeaderValue};
use rmcp::model::{ClientJsonRpcMessage, JsonRpcMessage};
use rmcp::transport::common::client_side_sse::BoxedSseResponse;
use rmcp::transport::streamable_http_client::{
    StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse, StreamableHttpResponseLimits,
};

type Headers = HashMap<HeaderName, HeaderValue>;
type Error = StreamableHttpError<reqwest::Error>;

/// See the module.
#[derive(Clone)]
pub(super) struct HttpClient(pub reqwest::Client);

impl StreamableHttpClient for HttpClient {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<StreamableHttpPostResponse, Error> {
        let limits = StreamableHttpResponseLimits::default();
        self.post_message_with_response_limits(uri, message, session, token, headers, limits).await
    }

    async fn post_message_with_response_limits(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        token: Option<String>,
        headers: Headers,
        limits: StreamableHttpResponseLimits,
    ) -> Result<StreamableHttpPostResponse, Error> {
        let in_session = session.is_some();
        let post = self.0.post_message_with_response_limits(uri, message, session, token, headers, limits);
        match post.await? {
            StreamableHttpPostResponse::Json(JsonRpcMessage::Error(error), _)
                if in_session && error.id.is_none() =>
            {
                Err(StreamableHttpError::SessionExpired)
            }
            response => Ok(response),
        }
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session: Arc<str>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<(), Error> {
        self.0.delete_session(uri, session, token, headers).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<BoxedSseResponse, Error> {
        self.0.get_stream(uri, session, last_event, token, headers).await
    }

    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        token: Option<String>,
        headers: Headers,
        limit: usize,
    ) -> Result<BoxedSseResponse, Error> {
        self.0.get_stream_with_max_sse_event_size(uri, session, last_event, token, headers, limit).await
    }
}
