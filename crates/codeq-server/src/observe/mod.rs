//! Seeing it: metrics, traces, logs. Nothing here changes what the server does.

pub use logs::init_logs;
pub use metrics::Metrics;

mod logs;
mod metrics;
