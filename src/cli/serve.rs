//! `dormouse serve`: everything, until it is told to stop.

use std::io::{self, Write};
use std::sync::Arc;

use dormouse::local::endpoints::Endpoints;
use dormouse::local::system::LocalSystem;
use dormouse::slice::NoObserver;

use super::CliError;
use super::args::{Global, ServeArgs};
use super::setup;
use super::stop::StopSignal;

/// Runs the command.
pub async fn run(global: &Global, serve: ServeArgs) -> Result<(), CliError> {
    let mut stop = StopSignal::listen();
    let mut options = setup::options(global, Arc::new(NoObserver))?;
    (options.http_port, options.sqs_port) = (serve.port, serve.sqs_port);
    options.public_url = serve.public_url.map(public_url).transpose()?;
    let model = setup::model_name(&options.config);
    let system = LocalSystem::start(options).await?;
    announce(system.endpoints(), &model)?;
    stop.asked().await;
    eprintln!("Stopping: running slices may finish. Once more to stop at once; nothing is lost.");
    system.stop().await;
    Ok(())
}

/// An address that callbacks can be POSTed to.
fn public_url(text: String) -> Result<String, CliError> {
    match url::Url::parse(&text) {
        Ok(url) if matches!(url.scheme(), "http" | "https") => Ok(text),
        Ok(_) | Err(_) => Err(CliError::Usage(format!(
            "--public-url {text:?} is no http or https address; write e.g. https://name.tunnel.example"
        ))),
    }
}

fn announce(endpoints: &Endpoints, model: &str) -> io::Result<()> {
    let inspector = format!("{}/inspector", endpoints.http);
    let lines = [
        ("HTTP", &endpoints.http),
        ("inspector", &inspector),
        ("SQS", &endpoints.sqs),
        ("DynamoDB", &endpoints.dynamodb),
        ("input queue", &endpoints.input_queue),
        ("output queue", &endpoints.output_queue),
        ("dead letters", &endpoints.dead_letter_queue),
    ];
    let mut err = io::stderr();
    writeln!(err, "dormouse is up, the default model is {model}. Ctrl-C stops it.")?;
    for (what, url) in lines {
        writeln!(err, "  {what:<13} {url}")?;
    }
    let mut out = io::stdout();
    writeln!(out, "{}", serde_json::to_string(endpoints)?)?;
    out.flush()
}
