//! The command line, as a person meets it: the real binary, its words and its exit codes.

mod backup;
mod client;
mod config;
mod dlq;
mod fsck;
pub mod harness;
mod help;
mod packages;
mod profile;
mod queue;
mod sim;
mod task;
mod tools;
mod webhook;
mod worker;
