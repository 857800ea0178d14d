//! The invariants of the contract with clients (`docs/spec/semantics.md`), one file each.
//!
//! There are two kinds of checkers, in the same file if an invariant has both: *structural* ones compare a shard's
//! rows with each other ([`check_all`]: for `fsck`, the simulator and crash tests), and ones over the *history* that
//! clients recorded ([`check_history`]). Neither kind knows how the rules work; they know what must be true.

use std::fmt;

use codeq_core::State;
use codeq_core::kv::{KvError, KvRead};
use codeq_engine::shard::Shard;

use crate::ledger::Ledger;

mod histories;
mod rows;

pub mod attempts;
pub mod callbacks;
pub mod counters;
pub mod fences_grow;
pub mod fifo;
pub mod max_run;
pub mod never_early;
pub mod no_task_lost;
pub mod one_live_lease;
pub mod one_place;
pub mod one_task_per_key;
pub mod records;
pub mod replicas_equal;
pub mod retention;
pub mod tenants_apart;
pub mod terminal_is_terminal;

pub use histories::{Claimed, Histories, TaskHistory, TaskOp, Verb};
pub use rows::Rows;

/// A broken invariant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// Number of the invariant in the contract.
    pub invariant: u8,
    /// What was observed.
    pub text: String,
}

impl Violation {
    /// A violation of the invariant of that number.
    pub fn new(invariant: u8, text: impl Into<String>) -> Violation {
        Violation { invariant, text: text.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invariant {}: {}", self.invariant, self.text)
    }
}

/// Checks the rows of all shards of a process.
pub fn check_shards<'a>(what: &str, shards: impl Iterator<Item = &'a Shard>) -> Vec<Violation> {
    let check = |shard: &Shard| {
        let data = shard.data().read();
        let failed = |error: KvError| vec![Violation::new(3, format!("{what}: {error}"))];
        check_all(&data.state, &data.store).unwrap_or_else(failed)
    };
    shards.flat_map(check).collect()
}

/// Checks the rows of one shard, and its state in memory against them.
///
/// Reads every row: for `fsck`, tests and the simulator. An error means that the rows could not be read.
pub fn check_all<K: KvRead + ?Sized>(state: &State, kv: &K) -> Result<Vec<Violation>, KvError> {
    let rows = Rows::read(state, kv)?;
    let mut found = Vec::new();
    for check in [
        one_live_lease::check,
        one_place::check,
        fifo::check,
        terminal_is_terminal::check,
        one_task_per_key::check,
        attempts::check,
        never_early::check,
        retention::check,
        callbacks::check,
        counters::check,
        fences_grow::check,
        records::check,
        max_run::check,
    ] {
        check(&rows, &mut found);
    }
    Ok(found)
}

/// Checks the history that clients recorded.
pub fn check_history(ledger: &Ledger) -> Vec<Violation> {
    let histories = Histories::of(ledger);
    let mut found = Vec::new();
    for check in [
        no_task_lost::check_history,
        one_live_lease::check_history,
        fifo::check_history,
        terminal_is_terminal::check_history,
        one_task_per_key::check_history,
        attempts::check_history,
        never_early::check_history,
        retention::check_history,
        tenants_apart::check_history,
        callbacks::check_history,
        fences_grow::check_history,
        max_run::check_history,
    ] {
        check(&histories, &mut found);
    }
    found
}
