//! Sets up log lines and spans.

use std::time::Duration;

use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::{Metadata, Subscriber};
use tracing_subscriber::filter::{EnvFilter, FilterExt, FilterFn, LevelFilter, filter_fn};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::{Registry, reload};

use super::line::Line;
use super::log_writer::LogWriter;
use super::{export, trace};
use crate::config::Config;

/// How long the process waits for its last spans to be sent.
const FLUSH_MAX: Duration = Duration::from_secs(5);

/// Installs the process's subscriber: log lines to stderr and, if configured, spans to an OTLP
/// collector. Call it once per process. The guard flushes both when dropped.
pub fn init_logs(config: &Config) -> Result<LogGuard, String> {
    let writer = LogWriter::stderr(config.log_format)
        .map_err(|error| format!("log lines cannot be written to stderr: {error}"))?;
    let (subscriber, mut guard) = subscriber(config, writer.clone())?;
    guard.writer = Some(writer);
    tracing::subscriber::set_global_default(subscriber)
        .map_err(|_| "logs are set up already".to_owned())?;
    // The default hook writes to stderr directly, and would block on its reader.
    std::panic::set_hook(Box::new(|panic| {
        tracing::error!(target: "codeq::panic", "{panic}");
    }));
    Ok(guard)
}

/// The subscriber of [`init_logs`], with lines going to `writer`.
pub fn subscriber<W>(
    config: &Config,
    writer: W,
) -> Result<(impl Subscriber + Send + Sync + use<W>, LogGuard), String>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let (level, handle) = reload::Layer::new(filter(&config.log_level)?);
    // Log lines do not show spans, so without a collector spans are disabled and cost nothing.
    let events = filter_fn(|meta: &Metadata<'_>| !is_trace(meta));
    let lines = tracing_subscriber::fmt::layer()
        .event_format(Line(config.log_format))
        .with_ansi(false)
        .with_writer(writer)
        // These errors go to stderr, and that write panics if stderr is what failed.
        .log_internal_errors(false)
        .with_filter(level.and(events.with_max_level_hint(LevelFilter::TRACE)));
    let provider = export::provider(&config.tracing)?;
    let spans = provider.as_ref().map(|provider| {
        tracing_opentelemetry::layer()
            .with_tracer(provider.tracer("codeq"))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false)
    });
    // Keep the filter even without the layer: a missing layer without a filter would enable every
    // span.
    let wanted = spans_if(spans.is_some());
    let subscriber = tracing_subscriber::registry().with(lines).with(spans.with_filter(wanted));
    Ok((subscriber, LogGuard { provider, writer: None, level: LogLevel(handle) }))
}

/// Enables the spans of [`trace`], whatever the log level, or none.
fn spans_if(on: bool) -> FilterFn<impl Fn(&Metadata<'_>) -> bool> {
    let level = if on { LevelFilter::INFO } else { LevelFilter::OFF };
    filter_fn(move |meta: &Metadata<'_>| on && is_trace(meta)).with_max_level_hint(level)
}

fn is_trace(meta: &Metadata<'_>) -> bool {
    meta.is_span() && meta.target() == trace::TARGET
}

/// Flushes log lines and spans when dropped, for a few seconds at most.
#[derive(Debug)]
pub struct LogGuard {
    provider: Option<SdkTracerProvider>,
    writer: Option<LogWriter>,
    level: LogLevel,
}

impl LogGuard {
    /// A handle to change the log level.
    pub fn level(&self) -> LogLevel {
        self.level.clone()
    }
}

/// Changes the log level while the process runs.
#[derive(Debug, Clone)]
pub struct LogLevel(reload::Handle<EnvFilter, Registry>);

impl LogLevel {
    /// Sets a level or a filter, in the format of the `logLevel` setting.
    pub fn set(&self, level: &str) -> Result<(), String> {
        let filter = filter(level)?;
        self.0.reload(filter).map_err(|error| format!("the log level cannot be set: {error}"))
    }
}

fn filter(level: &str) -> Result<EnvFilter, String> {
    EnvFilter::builder().parse(level).map_err(|error| format!("invalid logLevel: {error}"))
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        if let Some(provider) = &self.provider {
            // Spans that cannot be sent by now are lost. The exporter has logged it.
            let _ = provider.shutdown_with_timeout(FLUSH_MAX);
        }
        if let Some(writer) = &self.writer {
            writer.flush();
        }
    }
}
