//! The client over real sockets: it calls only what is allowed, and no receiver can harm it.

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
