//! The command line, as a person meets it: the real binary, its words and its exit codes.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests")]

mod backup;
mod config;
mod fsck;
mod harness;
mod help;
mod sim;
