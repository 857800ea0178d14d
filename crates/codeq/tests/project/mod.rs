//! Rules for what codeQ is built from, and documents that are true.

mod dependencies;
mod fuzz;
mod readme;
