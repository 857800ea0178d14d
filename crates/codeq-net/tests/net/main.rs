//! The accept loop over real sockets: what it serves, and what it refuses.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests"
)]

mod drain;
mod frames;
mod h1;
mod h2;
mod process;
mod smuggling;
mod support;
mod time;
mod tls;
