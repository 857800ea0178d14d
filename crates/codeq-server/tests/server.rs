//! The server over real sockets, one module per area. One binary, because linking each takes seconds.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests"
)]

mod callbacks;
#[path = "../../codeq-raft/tests/raft/start.rs"]
mod cluster_of_one;
mod grpc;
mod http;
mod observe;
mod subscriptions;
