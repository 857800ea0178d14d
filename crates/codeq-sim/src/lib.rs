//! The seeded simulator, and a checker for every guarantee.
//!
//! [`simulator::run`] runs one seed: clients whose behaviour the seed decides, the engine's own parts without their
//! threads, virtual time, and a disk that loses and tears writes, fails and fills up. The [`invariants`] check the rows
//! and what the clients were told, which is in a [`ledger`]. Each invariant is one file, and none of them needs the
//! simulator, so `fsck` and the crash tests of the real program use the checkers of the rows as well.
//!
//! Nothing here reads a clock, starts a thread or depends on hash order: a seed determines a run, and one command
//! repeats a failing one. Planted bugs ([`sabotage`]) test that the checkers notice them.
//!
//! Reading order: `simulator` (one run), `mishap` (its faults), `ending` (how it ends), `server` (the engine, driven step
//! by step), `model` (the reference), `plan` and `workload` (what a seed stands for). `cluster` simulates whole clusters.

pub mod campaign;
pub mod cluster;
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
