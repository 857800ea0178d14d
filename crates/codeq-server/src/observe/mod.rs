//! Observability: metrics, traces and logs. Nothing here changes the server's behaviour.
//!
//! ```text
//! engine ─ Observer ─> Metrics <─ http (answered, rate_limited)      render ─> text (format)
//! tracing events ─> logs (line) ─> log_writer ─> stderr        trace spans ─> export ─> OTLP collector
//! ```

pub use commands::{COMMANDS_MAX, OTHER};
pub use format::Format;
pub use line::{is_unsafe, line};
pub use logs::{LogGuard, LogLevel, init_logs, subscriber};
pub use metrics::Metrics;
pub use refusals::Refused;

pub mod trace;

mod commands;
mod disk;
#[cfg_attr(not(feature = "otlp"), path = "no_export.rs")]
mod export;
mod format;
mod line;
mod log_writer;
mod logs;
mod metrics;
mod process;
mod refusals;
mod scrape;
mod token_refusals;
