//! The server as a process: started, used over sockets, killed, terminated, started again.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]
#![allow(clippy::panic, clippy::indexing_slicing, reason = "helpers of tests")]

mod artifacts;
mod backup;
mod bench;
mod callbacks;
mod check;
mod descriptors;
mod finish;
mod http;
mod kill;
mod ledger;
mod load;
mod logs;
mod node;
mod random;
mod reload;
mod start;
mod task;
mod terminate;
