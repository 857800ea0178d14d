//! Rules for the repository: its dependencies, and documents that match the code.

mod arrows;
mod dependencies;
mod docs;
mod examples;
mod fuzz;
mod packages;
