//! Where webhooks go, over real sockets: only where they may, and without harm from whoever is there.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests"
)]

mod addresses;
mod dialling;
mod posts;
mod random;
mod receivers;
mod support;
mod tls;
