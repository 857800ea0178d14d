//! Worker subscriptions: a real server, real receivers on loopback.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests"
)]

#[path = "../http/harness.rs"]
#[allow(dead_code, reason = "shared with the tests of HTTP")]
mod harness;
mod receiver;

mod bounds;
mod modes;
mod rules;
mod triggers;
