//! Rules for the repository: its dependencies, and documents that match the code.

mod arrows;
mod dependencies;
mod docs;
mod fuzz;
mod packages;
mod readme;
