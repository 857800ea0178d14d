//! Replaces `export.rs` in a build without the `otlp` feature.

use opentelemetry_sdk::trace::SdkTracerProvider;

use crate::config::TracingConfig;

/// Returns `None`, or an error with advice if a collector is configured.
pub fn provider(config: &TracingConfig) -> Result<Option<SdkTracerProvider>, String> {
    match &config.otlp_endpoint {
        None => Ok(None),
        Some(_) => Err("tracing.otlpEndpoint is set, but this build cannot send traces: \
                        build codeq with `--features otlp`"
            .to_owned()),
    }
}
