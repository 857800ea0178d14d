//! Code that reads bytes from outside, wrapped in functions of those bytes. Each must return: a panic is a bug.

pub mod commands;
pub mod configuration;
pub mod cursors;
pub mod filters;
pub mod framing;
pub mod log;
pub mod rows;
pub mod tokens;

/// A function that is fuzzed, and inputs to start from.
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
    pub seeds: fn() -> Vec<Vec<u8>>,
}

macro_rules! targets {
    ($($name:ident),*) => {
        [$(Target { name: stringify!($name), run: $name::run, seeds: $name::seeds }),*]
    };
}

/// All targets.
pub const TARGETS: [Target; 8] =
    targets![commands, configuration, cursors, filters, framing, log, rows, tokens];
