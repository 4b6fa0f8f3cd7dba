//! The worker function: SQS batches of inputs, and of timers that are due. Thin; everything is in `slice`.

use std::sync::Arc;
use std::time::Duration;

use aws_lambda_events::event::sqs::SqsEvent;
use dormouse::assembly::{self, Clients, ModelKeys, Secrets};
use dormouse::config::Config;
use dormouse::slice::{NoObserver, records};
use dormouse::telemetry;
use lambda_runtime::{Error, LambdaEvent, service_fn};
use tokio::time::Instant;

/// Counts where the runtime names a deadline that has passed, as some local runners do.
const FALLBACK_TIME: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> Result<(), Error> {
    telemetry::init(telemetry::Format::Json, "info");
    let config = Arc::new(Config::load(None)?);
    let shared = aws_config::load_from_env().await;
    let clients = Clients::new(&shared);
    let secrets = Secrets::read(&config, &shared, ModelKeys::Read).await?;
    let assembly = assembly::assemble(config.clone(), &clients, &secrets, Vec::new(), Arc::new(NoObserver))?;
    let (runtime, relay) = (assembly.runtime, assembly.relay);
    assembly::warm_up(&runtime, &clients, &config).await;
    let (runtime, relay) = (&runtime, &relay);
    lambda_runtime::run(service_fn(move |event: LambdaEvent<SqsEvent>| async move {
        let left = event.context.deadline().duration_since(std::time::SystemTime::now());
        let left = left.ok().filter(|left| !left.is_zero()).unwrap_or(FALLBACK_TIME);
        Ok::<_, Error>(match relay {
            Some(relay) if relay.is_source_of(&event.payload) => relay.process_records(event.payload).await,
            _ => records::process_records(runtime, event.payload, Instant::now() + left).await,
        })
    }))
    .await
}
