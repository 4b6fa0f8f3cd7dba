//! Logging: `tracing`, JSON on Lambda, readable on a terminal. Ids, sizes, outcomes and durations only, never
//! content, arguments, tokens or keys (D35).

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;

/// Environment variable with the filter, e.g. `dormouse=debug`.
pub const LOG_ENV: &str = "DORMOUSE_LOG";

/// How lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One JSON object a line, for log services.
    Json,
    /// For people, on standard error.
    Readable,
}

/// Dependencies that would log content at levels that one turns on to look for something else: genai 0.7.2 logs the
/// bodies of failing providers, rmcp 3.11 messages that it did not expect, the AWS runtime requests and answers. Whatever the filter says, they stay there (D35).
const SILENT: [&str; 13] = [
    "genai=off",
    "aws_config=info",
    "aws_runtime=info",
    "aws_smithy_runtime=info",
    "aws_smithy_runtime_api=info",
    "h2=info",
    "hyper=info",
    "hyper_util=info",
    "lambda_http=info",
    "lambda_runtime=info",
    "lambda_runtime_api_client=info",
    "reqwest=info",
    "rmcp=off",
];

/// Installs the subscriber of the process; a second call has no effect. `default` is the filter where
/// [`LOG_ENV`] is not set.
pub fn init(format: Format, default: &str) {
    let mut filter = EnvFilter::try_from_env(LOG_ENV).unwrap_or_else(|_| EnvFilter::new(default));
    for silent in SILENT {
        filter = filter.add_directive(silent.parse().expect("bug: a constant directive parses"));
    }
    // The end of a span is a line with its durations: one for each slice and each phase of it.
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_span_events(FmtSpan::CLOSE)
        .with_writer(std::io::stderr);
    let result = match format {
        Format::Json => builder.json().with_current_span(true).with_span_list(false).try_init(),
        // A file or a pipe gets no escape sequences.
        Format::Readable => builder.with_target(false).with_ansi(std::io::stderr().is_terminal()).try_init(),
    };
    // Somebody else's subscriber is as good as ours: a library user may have installed one.
    drop(result);
}
