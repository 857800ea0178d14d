//! The simulator over many seeds, and its checkers over damaged data.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "helpers of tests")]

mod cluster;
mod directories;
mod install;
mod raft_log;
mod sabotage;
mod seeds;
mod structure;
#[path = "../../../codeq-raft/tests/raft/suite.rs"]
mod suite;
