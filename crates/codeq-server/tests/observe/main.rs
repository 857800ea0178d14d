//! What can be seen of a server: metric texts, log lines, and spans at a real collector.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests"
)]

mod collector;
mod costs;
mod exposition;
mod logs;
mod metrics;
mod tasks;
mod traces;
