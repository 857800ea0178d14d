//! The replicated log, its files, and what openraft expects of them; and the tests of an engine, over a cluster of one.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests"
)]
#![allow(clippy::result_large_err, reason = "openraft's error is large")]

mod init;
mod log_store;
mod record;
mod single;
mod start;
mod state_file;
mod suite;

// The tests of `codeq-engine` that do not concern the files, threads and clocks of a single node.
#[path = "../../../codeq-engine/tests/engine/backup.rs"]
mod backup;
#[path = "../../../codeq-engine/tests/engine/boundary.rs"]
mod boundary;
#[path = "../../../codeq-engine/tests/engine/claims.rs"]
mod claims;
#[path = "../../../codeq-engine/tests/engine/faults.rs"]
mod faults;
#[path = "../../../codeq-engine/tests/engine/harness.rs"]
mod harness;
#[path = "../../../codeq-engine/tests/engine/records.rs"]
mod records;
#[path = "../../../codeq-engine/tests/engine/restart.rs"]
mod restart;
#[path = "../../../codeq-engine/tests/engine/shards.rs"]
mod shards;
#[path = "../../../codeq-engine/tests/engine/sizes.rs"]
mod sizes;
