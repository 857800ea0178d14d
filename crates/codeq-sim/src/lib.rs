//! The seeded simulator, and a checker for every promise.
//!
//! [`simulator::run`] plays one seed: clients with habits drawn from it, the engine's own parts without
//! their threads, virtual time, and a disk that loses, tears, fails and fills up. The [`invariants`] judge
//! the rows and what the clients were told; each is one file, and none of them needs the simulator, so
//! that `fsck` and crash tests of the real program use the same ones, over rows and over a [`ledger`].
//!
//! Nothing here reads a clock, starts a thread or depends on hash order: a seed is a run, and the run of a
//! failing seed is repeated by one command. That the checkers see something is itself tested, by planted
//! bugs ([`sabotage`]).
//!
//! Reading order: `simulator` (one run), `mishap` and `ending` (its other two parts), `server` (the engine
//! moved by hand), `model` (what it is compared with), `plan` and `workload` (what a seed stands for).

pub mod campaign;
pub mod disk;
pub mod invariants;
pub mod ledger;
pub mod model;
pub mod notes;
pub mod plan;
pub mod rng;
pub mod sabotage;
pub mod server;
pub mod simulator;
pub mod workload;

mod ending;
mod mishap;

pub use campaign::{Campaign, Summary, run_campaign};
pub use simulator::{Options, Report, run};
