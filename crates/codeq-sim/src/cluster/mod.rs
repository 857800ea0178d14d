//! Simulated clusters: real nodes, each with a disk and clocks of its own, on a network that fails.
//!
//! Reading order: `run` (one run), `episodes` (its faults), `repair` (the calm after each of them), `node` (a machine),
//! `clients`, then the checkers: `look` (which checks run when), `committed` (the reference), `rules` (Raft and time),
//! `disks` (durability) and `moves` (what observers are told). `script` runs a test step by step instead of by a seed.
//! Everything runs on `executor` (tasks and time) and `bus` (the network).

pub mod bus;
pub mod campaign;
pub mod clients;
pub mod committed;
pub mod executor;
pub mod node;
pub mod rules;
pub mod run;
pub mod sabotage;
pub mod script;
pub mod script_clients;

mod disks;
mod episodes;
mod look;
mod moves;
mod repair;

pub use campaign::{Campaign, Summary, run_campaign};
pub use run::{Options, Report, run};
