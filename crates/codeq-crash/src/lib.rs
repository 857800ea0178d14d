//! Crash tests of the engine on a real disk: whatever was acknowledged is still there afterwards.
//!
//! ```text
//! kill, power ─> driver (a process: engine, clients, ledger) ─ crash ─> verify (a process: engine, expectations)
//! log_damage  ─> copies of a directory with a damaged log: everything is there, or the open fails
//! damage      ─> the same with damaged stores and manifests, and with files missing or swapped
//! fault, full ─> a disk whose N-th operation fails, or that is full
//! ```
//!
//! Reading order: `ledger` (what clients record), `expectations` (what follows from it), `judge` (the comparison),
//! `driver`, `verify`, then the loops.

pub mod campaign;
pub mod client;
pub mod damage;
pub mod driver;
pub mod expectations;
pub mod fault;
pub mod faulty;
pub mod full;
pub mod held_clock;
pub mod judge;
pub mod kill;
pub mod ledger;
pub mod log_damage;
pub mod mount;
pub mod power;
pub mod setup;
pub mod small;
pub mod sys;
pub mod verify;
