//! Simulated clusters, and the parts that simulate them.

mod bus;
mod executor;
mod openraft;
mod sabotage;
mod seeds;
