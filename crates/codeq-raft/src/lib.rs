//! codeQ replicated: openraft over codeQ's own log, rules and stores.
//!
//! Every replica, the leader too, applies what is committed and nothing else. A leader gathers requests into one entry
//! for all shards, openraft replicates it, and [`codeq_engine::replica::Replica`] applies it on every node; on the node
//! that proposed it, it also answers the requests. Only this crate and its simulator know openraft. Comments refer to the
//! rules A1 to A5 of `ARCHITECTURE.md`, which keep answers right when leaders change.
//!
//! Nothing here opens a socket, and only [`engine`] starts threads: messages go through a [`transport::Transport`], tasks
//! and timers through [`runtime`], files through [`codeq_disk::Disk`]. So the simulator runs whole clusters in one thread.

pub mod applied;
pub mod engine;
pub mod fault;
pub mod init;
pub mod journal_record;
pub mod log_store;
pub mod node;
pub mod runtime;
pub mod snapshot;
pub mod state_file;
pub mod transport;
pub mod types;

mod checkpoint;
mod gates;
mod journal;
mod leader;
mod machine;
mod network;
mod read;
mod room;
mod shared;
mod storage;
mod time;
