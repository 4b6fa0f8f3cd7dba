//! The HTTP function: the router behind API Gateway. Thin; everything is in `http`.

use std::sync::Arc;

use dormouse::config::Config;
use dormouse::{assembly, http, telemetry};

#[tokio::main]
async fn main() -> Result<(), lambda_http::Error> {
    telemetry::init(telemetry::Format::Json, "info");
    let config = Arc::new(Config::load(None)?);
    let shared = aws_config::load_from_env().await;
    let mut deps = assembly::http_function(config.clone(), &shared).await?;
    deps.webhooks = assembly::webhook_secrets(&config, &shared).await;
    lambda_http::run(http::router(deps).layer(axum::Extension(http::StreamTime::BUFFERED))).await
}
