//! The server as a process: started, used over sockets, killed, terminated, started again.

mod artifacts;
mod backup;
mod bench;
mod callbacks;
mod check;
mod descriptors;
mod finish;
pub mod http;
mod kill;
mod ledger;
mod load;
mod logs;
pub mod node;
pub mod random;
mod reload;
mod start;
mod task;
mod terminate;
