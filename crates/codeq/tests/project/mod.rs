//! Rules for what codeQ is built from, and documents that are true.

mod arrows;
mod dependencies;
mod docs;
mod fuzz;
mod packages;
mod readme;
