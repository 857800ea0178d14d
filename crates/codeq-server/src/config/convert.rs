//! Converts the configuration into the types that other modules and crates need.

use codeq_core::settings::Settings;
use codeq_core::task_backoff::{Backoff, Growth};
use url::Url;

use super::model::{BackoffPolicy, Config, Durability, TracingConfig};

impl Config {
    /// Defaults for the queue rules.
    pub fn settings(&self) -> Settings {
        Settings {
            max_attempts: self.max_attempts_default,
            backoff: Backoff {
                growth: self.backoff_policy.growth(),
                base: millis(self.backoff_base_seconds),
                max: millis(self.backoff_max_seconds),
            },
            retention: millis(self.retention_seconds),
            callback_attempts: self.result_webhook_max_attempts,
            callback_base: millis(self.result_webhook_base_backoff_seconds),
            callback_max: millis(self.result_webhook_max_backoff_seconds),
            dead_letter_retention: millis(self.retention.dead_letter_seconds),
        }
    }

    /// How to validate tokens.
    pub fn auth_settings(&self) -> codeq_auth::Settings {
        codeq_auth::Settings {
            producers: self.producer_auth.clone(),
            workers: self.worker_auth.clone(),
            producers_may_work: self.allow_producer_as_worker,
        }
    }

    /// Engine options. Options that are not configurable keep their defaults.
    pub fn engine_options(&self) -> codeq_engine::Options {
        codeq_engine::Options {
            shards: self.shards,
            durability: match self.durability {
                Durability::Fsync => codeq_engine::Durability::Fsync,
                Durability::Os => codeq_engine::Durability::Os,
            },
            settings: self.settings(),
            ..codeq_engine::Options::default()
        }
    }
}

impl BackoffPolicy {
    fn growth(self) -> Growth {
        match self {
            BackoffPolicy::Fixed => Growth::Fixed,
            BackoffPolicy::Linear => Growth::Linear,
            BackoffPolicy::Exponential => Growth::Exponential,
            BackoffPolicy::ExpEqualJitter => Growth::ExponentialEqualJitter,
            BackoffPolicy::ExpFullJitter => Growth::ExponentialFullJitter,
        }
    }
}

impl TracingConfig {
    /// The collector's URL for traces: `otlpEndpoint` with the path that the specification appends. `None` if there is no
    /// collector. The error says what is wrong with the address.
    pub fn traces_url(&self) -> Result<Option<Url>, &'static str> {
        let Some(endpoint) = &self.otlp_endpoint else { return Ok(None) };
        let mut url = Url::parse(endpoint).map_err(|_| "is not a URL")?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err("is not http or https");
        }
        // A URL can show up in error messages.
        if !url.username().is_empty() || url.password().is_some() {
            return Err("has credentials (put them in OTEL_EXPORTER_OTLP_HEADERS)");
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err("has a query or a fragment");
        }
        url.path_segments_mut()
            .map_err(|()| "cannot have a path")?
            .pop_if_empty()
            .extend(["v1", "traces"]);
        Ok(Some(url))
    }
}

fn millis(seconds: u64) -> u64 {
    seconds.saturating_mul(1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(endpoint: &str) -> Result<Option<Url>, &'static str> {
        let otlp_endpoint = Some(endpoint.to_owned());
        TracingConfig { otlp_endpoint, ..TracingConfig::default() }.traces_url()
    }

    #[test]
    fn spans_go_to_the_path_of_the_specification() {
        for (endpoint, url) in [
            ("http://localhost:4318", "http://localhost:4318/v1/traces"),
            ("http://localhost:4318/", "http://localhost:4318/v1/traces"),
            ("https://c.example/otlp/", "https://c.example/otlp/v1/traces"),
        ] {
            assert_eq!(of(endpoint).unwrap().unwrap().as_str(), url);
        }
        assert_eq!(TracingConfig::default().traces_url(), Ok(None));
    }

    #[test]
    fn bad_collectors_are_refused() {
        for bad in ["localhost:4318", "ftp://x", "", "http://u:p@x", "http://x/?a=b", "http://x/#y"]
        {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
