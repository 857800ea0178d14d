//! Simulated clusters: real nodes, each with a disk and clocks of its own, on a network that fails.

pub mod bus;
pub mod executor;
