//! The SDK against a real server, with and without failures of the network and the server.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests and their helpers"
)]

mod api;
mod examples;
mod kill;
mod ledger;
mod outages;
mod producer;
mod proxy;
mod shutdown;
mod support;
mod tls;
mod tokens;
mod worker;
