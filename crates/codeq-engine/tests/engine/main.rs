//! The engine on a real disk, with its threads.

mod backup;
mod claims;
mod faults;
mod harness;
mod restart;
mod shards;
