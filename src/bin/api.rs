//! The HTTP function: the router behind API Gateway. Thin; everything is in `http`.

use std::sync::Arc;

use dormouse::assembly::{self, Clients, ModelKeys, Reach, Secrets};
use dormouse::config::Config;
use dormouse::slice::NoObserver;
use dormouse::{http, telemetry};

#[tokio::main]
async fn main() -> Result<(), lambda_http::Error> {
    telemetry::init(telemetry::Format::Json, "info");
    let config = Arc::new(Config::load(None)?);
    let shared = aws_config::load_from_env().await;
    let clients = Clients::new(&shared);
    let secrets = Secrets::read(&config, &shared, ModelKeys::Leave).await?;
    let mut assembly =
        assembly::assemble(config.clone(), &clients, &secrets, Vec::new(), Arc::new(NoObserver))?;
    assembly.http.access = assembly::access(&config, &shared, Reach::Network).await?;
    assembly.http.webhooks = assembly::webhook_secrets(&config, &shared).await;
    assembly::warm_up(&assembly.runtime, &clients, &config).await;
    let router = http::router(assembly.http).layer(axum::Extension(http::StreamTime::BUFFERED));
    lambda_http::run(router).await
}
