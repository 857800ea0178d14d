//! What can be seen of a server: metric texts, log lines, and spans at a real collector.

mod collector;
mod exposition;
mod logs;
mod metrics;
mod tasks;
mod traces;
