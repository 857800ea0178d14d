//! Simulated clusters: real nodes, each with a disk and clocks of its own, on a network that fails.
//!
//! Reading order: `run` (one run), `episodes` (what goes wrong), `node` (a machine), `clients`, then the checkers
//! `committed` (the reference) and `rules`. Below are `executor` and `bus`: tasks, time and the network.

pub mod bus;
pub mod campaign;
pub mod clients;
pub mod committed;
pub mod executor;
pub mod node;
pub mod rules;
pub mod run;
pub mod sabotage;

mod episodes;

pub use campaign::{Campaign, Summary, run_campaign};
pub use run::{Options, Report, run};
