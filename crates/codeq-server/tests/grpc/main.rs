//! The two streams over real sockets: what `grpc.md` promises, asked for by a client.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests"
)]

mod client;
#[path = "../http/harness.rs"]
#[allow(dead_code, reason = "shared with the tests of HTTP")]
mod harness;

mod a_foreign_client;
mod acks;
mod creates;
mod credits;
mod endings;
mod hello;
mod leniency;
mod load;
mod memory;
mod rates;
mod rights;
mod services;
mod sessions;
mod tokens;
