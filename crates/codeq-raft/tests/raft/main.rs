//! The replicated log, its files, and what openraft expects of them.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "helpers of tests")]
#![allow(clippy::result_large_err, reason = "openraft's error is large")]

mod frame;
mod log_store;
mod single;
mod state_file;
mod suite;
