//! The seeded simulator and the checkers.
pub mod disk;
pub mod rng;
