//! Simulated clusters: real nodes, each with a disk and clocks of its own, on a network that fails.
//!
//! Reading order: `run` (one run), `episodes` (its faults), `repair` (the calm after each of them), `node` (a machine),
//! `clients`, then the checkers: `checks` (which of them run when), `committed` (the reference), `rules` (Raft and
//! time), `disks` (durability) and `transitions` (what observers are told). `script` runs a test step by step instead of by a
//! seed. Everything runs on `executor` (tasks and time) and `network`.

pub mod campaign;
pub mod clients;
pub mod committed;
pub mod executor;
pub mod network;
pub mod node;
pub mod rules;
pub mod run;
pub mod sabotage;
pub mod script;
pub mod script_clients;

mod checks;
mod disks;
mod episodes;
mod repair;
mod transitions;

pub use campaign::{Campaign, Summary, run_campaign};
pub use run::{Options, Report, run};
