//! The server over real sockets, an area a module. One binary, because linking one takes seconds.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests"
)]

mod callbacks;
mod grpc;
mod http;
mod observe;
mod subscriptions;
