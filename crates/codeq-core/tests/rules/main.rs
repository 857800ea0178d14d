//! The rules, verb by verb. `harness` checks the structure of the rows after every command; `differential`
//! compares the rules with the naive `model`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that fails should stop where it fails"
)]

mod abandon;
mod bulk;
mod callback;
mod cancel;
mod claim;
mod cleanup;
mod clocks;
mod determinism;
mod differential;
mod digest;
mod enqueue;
mod format;
mod harness;
mod heartbeat;
mod history;
mod idempotency;
mod lease;
mod max_run;
mod mem;
mod model;
mod nack;
mod pause;
mod purge;
mod read;
mod record;
mod recovery;
mod replay;
mod reschedule;
mod retention;
mod structure;
mod submit;
mod sweep;
mod tenancy;
mod topic;
