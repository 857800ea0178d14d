//! The command line, as a person meets it: the real binary, its words and its exit codes.

mod backup;
mod config;
mod fsck;
pub mod harness;
mod help;
mod packages;
mod sim;
