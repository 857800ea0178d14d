//! Result callbacks over real sockets: who is told, how often, with which signature.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests"
)]

#[path = "../grpc/client.rs"]
#[allow(dead_code, reason = "shared with the tests of the streams")]
mod client;
#[path = "../http/harness.rs"]
#[allow(dead_code, reason = "shared with the tests of HTTP")]
mod harness;
mod receiver;

mod admin;
mod dns;
mod documented;
mod endings;
mod large;
mod retries;
mod signatures;
