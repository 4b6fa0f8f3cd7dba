//! The streaming function: the routes of AG-UI clients, and the inspector, behind a function URL whose answers are streamed.
//! Thin; everything is in `http`.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::extract::Request;
use axum::middleware;
use dormouse::config::Config;
use dormouse::http::{IamPrincipal, StreamTime};
use dormouse::{assembly, http, telemetry};
use lambda_http::RequestExt;
use lambda_http::request::RequestContext;

/// Of the function's time, what is left when a stream says that it gets no more: a look at the store may take some of it.
const MARGIN: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> Result<(), lambda_http::Error> {
    telemetry::init(telemetry::Format::Json, "info");
    let config = Arc::new(Config::load(None)?);
    let shared = aws_config::load_from_env().await;
    let deps = assembly::http_function(config, &shared).await?;
    let router = http::stream_router(deps).layer(middleware::map_request(of_invocation));
    lambda_http::run_with_streaming_response(router).await
}

/// Tells the router what the invocation knows of a request: how long its answer may take, and who has signed it.
async fn of_invocation(mut request: Request) -> Request {
    let deadline = request.lambda_context_ref().map(|context| context.deadline());
    let principal = request.request_context_ref().and_then(|context| match context {
        RequestContext::ApiGatewayV2(context) => context.authorizer.as_ref()?.iam.as_ref()?.user_arn.clone(),
        _ => None,
    });
    let extensions = request.extensions_mut();
    if let Some(deadline) = deadline {
        let left = deadline.duration_since(SystemTime::now()).unwrap_or_default();
        extensions.insert(StreamTime(left.saturating_sub(MARGIN)));
    }
    if let Some(arn) = principal {
        extensions.insert(IamPrincipal::new(&arn));
    }
    request
}
