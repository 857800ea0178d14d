//! The replicated log, its files, and what openraft expects of them.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "helpers of tests")]

mod log_store;
