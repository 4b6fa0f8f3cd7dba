//! Which pages may use the routes of AG-UI clients.

use axum::http::{HeaderName, HeaderValue};

use super::{ConfigError, HttpConfig};

/// Checks that origins and headers can be told to a browser.
pub(super) fn check(http: &HttpConfig) -> Result<(), ConfigError> {
    for origin in http.cors_origins.iter().flatten() {
        let is_origin =
            url::Url::parse(origin).is_ok_and(|url| url.origin().ascii_serialization() == *origin);
        if !is_origin || HeaderValue::from_str(origin).is_err() {
            let problem = format!("{origin:?} is no origin; write \"https://app.example\", without a path");
            return Err(ConfigError::field("http.cors_origins", problem));
        }
    }
    for header in &http.cors_headers {
        if HeaderName::try_from(header).is_err() {
            return Err(ConfigError::field("http.cors_headers", format!("{header:?} is no header's name")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_browser_would_send_is_refused() {
        let with = |origin: &str, header: &str| {
            let http = HttpConfig {
                cors_origins: Some(vec![origin.to_owned()]),
                cors_headers: vec![header.to_owned()],
                ..HttpConfig::default()
            };
            check(&http).map_err(|e| e.to_string())
        };
        assert_eq!(with("https://app.example", "x-tenant"), Ok(()));
        assert_eq!(with("http://localhost:3000", "X-Tenant"), Ok(()));
        for origin in ["*", "app.example", "https://app.example/", "https://app.example:443", "https://a\nb"]
        {
            assert!(with(origin, "x").is_err_and(|e| e.contains("http.cors_origins")), "{origin:?}");
        }
        assert!(with("https://app.example", "x tenant").is_err_and(|e| e.contains("http.cors_headers")));
    }
}
