//! Simulated clusters, and the parts that simulate them.

mod executor;
mod network;
mod openraft;
mod sabotage;
mod seeds;
mod traps;
mod traps_leaders;
mod traps_levels;
mod traps_reads;
mod traps_rows;
mod traps_time;
mod traps_transitions;
