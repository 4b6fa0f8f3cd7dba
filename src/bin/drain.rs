//! The drain function: batches of the dead-letter queue. Thin; everything is in `slice::drain`.

use aws_lambda_events::event::sqs::SqsEvent;
use dormouse::assembly::{self, Clients};
use dormouse::config::Config;
use dormouse::telemetry;
use lambda_runtime::{Error, LambdaEvent, service_fn};

#[tokio::main]
async fn main() -> Result<(), Error> {
    telemetry::init(telemetry::Format::Json, "info");
    let config = Config::load(None)?;
    let clients = Clients::new(&aws_config::load_from_env().await);
    let drain = &assembly::drain(&config, &clients)?;
    lambda_runtime::run(service_fn(move |event: LambdaEvent<SqsEvent>| async move {
        Ok::<_, Error>(drain.process_records(event.payload).await)
    }))
    .await
}
