//! Rules for what codeQ is built from, and documents that are true.

mod arrows;
mod dependencies;
mod fuzz;
mod packages;
mod readme;
