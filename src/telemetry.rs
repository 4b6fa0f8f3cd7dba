//! Logging: `tracing`, JSON on Lambda, readable on a terminal. Ids, sizes, outcomes and durations only, never
//! content, arguments, tokens or keys (D35).

use tracing_subscriber::EnvFilter;

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

/// Installs the subscriber of the process; a second call has no effect. `default` is the filter where
/// [`LOG_ENV`] is not set.
pub fn init(format: Format, default: &str) {
    let filter = EnvFilter::try_from_env(LOG_ENV).unwrap_or_else(|_| EnvFilter::new(default));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let result = match format {
        Format::Json => builder.json().with_current_span(true).with_span_list(false).try_init(),
        Format::Readable => builder.with_target(false).try_init(),
    };
    // Somebody else's subscriber is as good as ours: a library user may have installed one.
    drop(result);
}
