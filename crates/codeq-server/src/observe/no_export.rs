//! In place of `export.rs` in a build without the feature `otlp`.

use opentelemetry_sdk::trace::SdkTracerProvider;

use crate::config::TracingConfig;

/// None, or what to do about a collector that is configured.
pub fn provider(config: &TracingConfig) -> Result<Option<SdkTracerProvider>, String> {
    match &config.otlp_endpoint {
        None => Ok(None),
        Some(_) => Err("tracing.otlpEndpoint is set, but this build cannot send traces: \
                        build codeq with `--features otlp`"
            .to_owned()),
    }
}
