//! The simulator over many seeds, and its checkers over damaged data.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod cluster;
mod directories;
mod install;
mod sabotage;
mod seeds;
mod structure;
