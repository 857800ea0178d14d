//! The engine on a real disk, with its threads.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests"
)]

mod backup;
mod boundary;
mod claims;
mod clocks;
mod directory;
mod faults;
mod harness;
mod maintenance;
mod records;
mod replay;
mod restart;
mod shards;
mod sizes;
mod start;
