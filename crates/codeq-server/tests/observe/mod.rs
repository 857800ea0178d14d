//! Observability: metric texts, log lines, and spans at a real collector.

mod collector;
mod exposition;
pub mod logs;
mod metrics;
mod tasks;
mod traces;
