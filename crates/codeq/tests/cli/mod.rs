//! The command line, as a person uses it: the real binary, its output and its exit codes.

mod backup;
mod change;
pub mod client;
mod config;
mod dlq;
mod every;
mod fsck;
pub mod harness;
pub mod help;
mod hostile;
mod packages;
mod profile;
mod queue;
mod sim;
mod task;
mod terminal;
mod tools;
mod top;
mod webhook;
mod worker;
