//! AWS Signature Version 4 of requests to tool servers that want it: a Lambda function URL or an API with IAM
//! authorisation. What may be signed is the client's business: only requests to the origin that the server is
//! configured under (D37).

use std::time::{Duration, SystemTime};

use aws_config::{BehaviorVersion, SdkConfig};
use aws_credential_types::Credentials;
use aws_credential_types::provider::ProvideCredentials;
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::sync::{Mutex, OnceCell};
use url::Url;

use crate::config::SigV4Config;

/// Credentials that end sooner are not used any more.
const FRESH: Duration = Duration::from_secs(5 * 60);
/// The longest wait for the process's credentials.
const CREDENTIALS_TIMEOUT: Duration = Duration::from_secs(5);

/// Signs with the process's own AWS credentials, which are looked for when the first request wants them.
#[derive(Default)]
pub struct Signer {
    shared: OnceCell<SdkConfig>,
    /// Credentials that expire are fetched anew only then: where they come from may be a service.
    kept: Mutex<Option<Credentials>>,
}

/// Why a request is not signed, in words that may be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SigningError {
    /// They may be there in a moment.
    #[error("it could not be signed: there are no AWS credentials")]
    NoCredentials,
    /// Neither configured nor in the environment.
    #[error("it could not be signed: sigv4.region is missing, and AWS_REGION is not set")]
    NoRegion,
    /// What cannot be signed cannot be sent.
    #[error("it could not be signed")]
    Unsignable,
}

impl Signer {
    /// With credentials and region of `shared` instead of the environment's.
    pub fn with(shared: SdkConfig) -> Self {
        Self { shared: OnceCell::new_with(Some(shared)), kept: Mutex::default() }
    }

    /// The headers that a request needs besides `headers`, which are signed with it.
    pub(super) async fn sign(
        &self,
        scope: &SigV4Config,
        method: &str,
        url: &Url,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<HeaderMap, SigningError> {
        let load = || aws_config::load_defaults(BehaviorVersion::latest());
        let shared = self.shared.get_or_init(load).await;
        let default = shared.region().map(|region| region.as_ref());
        let region = scope.region.as_deref().or(default).ok_or(SigningError::NoRegion)?;
        let identity = self.credentials(shared).await?.into();
        let unsignable = |_| SigningError::Unsignable;
        let params = v4::SigningParams::builder()
            .identity(&identity)
            .region(region)
            .name(&scope.service)
            .time(SystemTime::now())
            .settings(SigningSettings::default())
            .build()
            .map_err(|_| SigningError::Unsignable)?
            .into();
        let body = SignableBody::Bytes(body);
        let request = SignableRequest::new(method, url.as_str(), headers.iter().copied(), body);
        let request = request.map_err(unsignable)?;
        // The crate traces what it signs, and that is what a tool is asked.
        let quiet = tracing::subscriber::NoSubscriber::default();
        let signed =
            tracing::subscriber::with_default(quiet, || sign(request, &params)).map_err(unsignable)?;
        let (instructions, _) = signed.into_parts();
        let header = |(name, value): (&str, &str)| {
            let mut value = HeaderValue::from_str(value).ok()?;
            value.set_sensitive(true);
            Some((HeaderName::from_bytes(name.as_bytes()).ok()?, value))
        };
        instructions.headers().map(header).collect::<Option<HeaderMap>>().ok_or(SigningError::Unsignable)
    }

    async fn credentials(&self, shared: &SdkConfig) -> Result<Credentials, SigningError> {
        let mut kept = self.kept.lock().await;
        let soon = SystemTime::now() + FRESH;
        if let Some(credentials) = kept.as_ref().filter(|it| it.expiry().is_some_and(|expiry| expiry > soon))
        {
            return Ok(credentials.clone());
        }
        let provider = shared.credentials_provider().ok_or(SigningError::NoCredentials)?;
        let provided = tokio::time::timeout(CREDENTIALS_TIMEOUT, provider.provide_credentials()).await;
        match provided {
            Ok(Ok(credentials)) => {
                *kept = Some(credentials.clone());
                Ok(credentials)
            }
            Ok(Err(_)) | Err(_) => Err(SigningError::NoCredentials),
        }
    }
}
