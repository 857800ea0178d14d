//! Observability: metric texts, log lines, and spans at a real collector.

mod collector;
mod exposition;
mod logs;
mod metrics;
mod tasks;
mod traces;
