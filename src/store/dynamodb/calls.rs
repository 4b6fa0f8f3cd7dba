//! One request, repeated in place where repeating helps. The SDK's own retries are off, so this is the only place.

use std::error::Error;
use std::future::Future;
use std::time::Duration;

use aws_sdk_dynamodb::config::http::HttpResponse;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use backon::{BackoffBuilder, ExponentialBuilder};

use super::DynamoStore;
use crate::store::StoreError;

/// Repeats of one request, after the first try.
const REPEATS: usize = 6;
/// The first pause; it doubles, with jitter.
const FIRST_PAUSE: Duration = Duration::from_millis(25);
/// The longest pause: all of them together stay near 3 s, well inside a slice.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Error codes that pass with time. Those of a cancelled transaction's reasons are among them.
const TRANSIENT_CODES: [&str; 13] = [
    "InternalServerError",
    "InternalFailure",
    "ItemCollectionSizeLimitExceeded",
    "LimitExceededException",
    "ProvisionedThroughputExceeded",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "ServiceUnavailable",
    "ThrottlingError",
    "ThrottlingException",
    "TransactionConflict",
    "TransactionConflictException",
    "TransactionInProgressException",
];
/// HTTP statuses from here on are the server's own trouble.
const SERVER_ERRORS: u16 = 500;

/// Why a request failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// May pass: throttled, in conflict, or nobody knows whether it took effect.
    Transient(String),
    /// Stays as it is.
    Refused(String),
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Transient(why) => Self::Unavailable(why),
            Failure::Refused(why) => Self::Refused(why),
        }
    }
}

/// The pauses between tries.
pub(super) fn pauses() -> impl Iterator<Item = Duration> + Send {
    ExponentialBuilder::default()
        .with_min_delay(FIRST_PAUSE)
        .with_max_delay(LONGEST_PAUSE)
        .with_max_times(REPEATS)
        .with_jitter()
        .build()
}

/// Whether an error code, of a request or of a transaction's reason, passes with time.
pub(super) fn is_transient_code(code: &str) -> bool {
    TRANSIENT_CODES.contains(&code)
}

/// What an SDK error means. Its text names codes and causes, never a row: the `Debug` text of a cancelled
/// transaction would quote content.
pub(super) fn failure<E>(operation: &str, error: &SdkError<E, HttpResponse>) -> Failure
where
    E: ProvideErrorMetadata + Error + 'static,
{
    match error {
        SdkError::ServiceError(service) => {
            let code = service.err().code().unwrap_or("no code");
            let why = format!("{operation}: {code}: {}", service.err().message().unwrap_or("no message"));
            if is_transient_code(code) || service.raw().status().as_u16() >= SERVER_ERRORS {
                Failure::Transient(why)
            } else {
                Failure::Refused(why)
            }
        }
        SdkError::ConstructionFailure(_) => Failure::Refused(causes(operation, error)),
        // No answer, or one that could not be read. (`SdkError` may grow; what is new is unknown as well.)
        _ => Failure::Transient(causes(operation, error)),
    }
}

fn causes(operation: &str, error: &dyn Error) -> String {
    let mut text = format!("{operation}: {error}");
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}

impl DynamoStore {
    /// Sends a request once, counted.
    pub(super) async fn once<T>(&self, request: impl Future<Output = T>) -> T {
        let _flight = self.round_trips.as_ref().map(super::RoundTrips::start);
        request.await
    }

    /// Sends a request until it succeeds, is refused, or the repeats are used up.
    pub(super) async fn repeat<T, E, F>(
        &self,
        operation: &'static str,
        request: impl Fn() -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, SdkError<E, HttpResponse>>>,
        E: ProvideErrorMetadata + Error + 'static,
    {
        let mut pauses = pauses();
        loop {
            let error = match self.once(request()).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let why = match failure(operation, &error) {
                refused @ Failure::Refused(_) => return Err(refused.into()),
                Failure::Transient(why) => why,
            };
            match pauses.next() {
                Some(pause) => {
                    tracing::debug!(operation, %why, "the table did not answer; asking again");
                    tokio::time::sleep(pause).await;
                }
                None => return Err(StoreError::Unavailable(why)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i7_repeats_are_bounded_in_number_and_time() {
        let all: Vec<Duration> = pauses().collect();
        assert_eq!(all.len(), REPEATS);
        assert!(all.iter().sum::<Duration>() < Duration::from_secs(8));
    }
}
