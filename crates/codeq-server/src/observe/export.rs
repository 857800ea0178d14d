//! Exports spans to an OpenTelemetry collector: OTLP over HTTP with protobuf, in batches.

use std::future::{Future, ready};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_otlp::{Protocol, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracerProvider, SpanData, SpanExporter,
};
use tokio::runtime::Runtime;
use url::Url;

use crate::config::TracingConfig;

/// Maximum spans waiting for export. More are dropped.
const QUEUE_MAX: usize = 8_192;
/// Maximum spans per request.
const BATCH_MAX: usize = 512;
/// Maximum time a span waits for its batch to fill.
const BATCH_DELAY: Duration = Duration::from_secs(2);
/// Time limit of an export request.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(4);

/// The tracer provider, or `None` if no collector is configured.
pub fn provider(config: &TracingConfig) -> Result<Option<SdkTracerProvider>, String> {
    let url = config.traces_url().map_err(|why| format!("tracing.otlpEndpoint {why}"))?;
    let Some(url) = url else {
        return Ok(None);
    };
    if !(0.0..=1.0).contains(&config.sample_ratio) {
        return Err("tracing.sampleRatio must be from 0 to 1".to_owned());
    }
    let exporter = Exporter::new(&url)?;
    let batches = BatchConfigBuilder::default()
        .with_max_queue_size(QUEUE_MAX)
        .with_max_export_batch_size(BATCH_MAX)
        .with_scheduled_delay(BATCH_DELAY)
        .build();
    let processor = BatchSpanProcessor::builder(exporter).with_batch_config(batches).build();
    let resource = Resource::builder()
        .with_service_name(config.service_name.clone())
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build();
    let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(config.sample_ratio)));
    let builder = SdkTracerProvider::builder().with_span_processor(processor);
    Ok(Some(builder.with_sampler(sampler).with_resource(resource).build()))
}

/// The OTLP exporter with its own runtime: batches are sent from a thread without one, and must
/// still be sent after the server's runtime has stopped.
#[derive(Debug)]
struct Exporter {
    otlp: opentelemetry_otlp::SpanExporter,
    /// `Some` until the drop.
    runtime: Option<Runtime>,
    failing: AtomicBool,
}

impl Exporter {
    fn new(url: &Url) -> Result<Exporter, String> {
        let failed = |error: &dyn std::fmt::Display| format!("cannot export traces: {error}");
        // No idle connections: the runtime does not run between batches.
        let client = reqwest::Client::builder()
            .timeout(EXPORT_TIMEOUT)
            .pool_max_idle_per_host(0)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| failed(&error))?;
        let otlp = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(url.as_str())
            .with_timeout(EXPORT_TIMEOUT)
            .build()
            .map_err(|error| failed(&error))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = Some(runtime.map_err(|error| failed(&error))?);
        Ok(Exporter { otlp, runtime, failing: AtomicBool::new(false) })
    }

    /// Logs when exports start to fail and when they work again, not every batch.
    fn log_change(&self, result: &OTelSdkResult) {
        match (self.failing.swap(result.is_err(), Ordering::Relaxed), result) {
            (false, Err(error)) => {
                tracing::warn!(target: "codeq::trace", %error, "cannot send spans, dropping them");
            }
            (true, Ok(())) => tracing::info!(target: "codeq::trace", "sending spans again"),
            _ => {}
        }
    }
}

impl SpanExporter for Exporter {
    fn export(&self, batch: Vec<SpanData>) -> impl Future<Output = OTelSdkResult> + Send {
        let result = match &self.runtime {
            Some(runtime) => runtime.block_on(self.otlp.export(batch)),
            None => Ok(()),
        };
        self.log_change(&result);
        ready(result)
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.otlp.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.otlp.set_resource(resource);
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Do not wait for a DNS lookup that hangs.
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_settings_are_refused_without_repeating_secrets() {
        let with = |endpoint: &str, sample_ratio| {
            let otlp_endpoint = Some(endpoint.to_owned());
            provider(&TracingConfig { otlp_endpoint, sample_ratio, ..TracingConfig::default() })
        };
        for bad in ["http://user:secret@x", "http://x/?token=secret", "http://x/#secret"] {
            let error = with(bad, 1.0).unwrap_err();
            assert!(!error.contains("secret"), "{error}");
        }
        assert!(with("http://127.0.0.1:1", f64::NAN).is_err());
    }
}
