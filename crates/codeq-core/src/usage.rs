//! How much of its quotas a tenant uses in a shard: totals over its queues, kept up to date so that a quota check need
//! not add them up.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::rows::{Counts, TaskRow};

/// The totals of one tenant, shared by its queues. Only the shard's thread changes them, and readers hold the shard's
/// lock. They are atomic only so that they can be changed behind an `Arc`: there are no races.
#[derive(Debug, Default)]
pub(crate) struct UsageCounters {
    tasks: AtomicU64,
    bytes: AtomicU64,
    stored: AtomicU64,
}

/// A tenant's totals at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tasks that are not finished.
    pub tasks: u64,
    /// Their payload bytes.
    pub bytes: u64,
    /// Bytes of all tasks, including finished ones until retention removes them.
    pub stored_bytes: u64,
}

impl UsageCounters {
    /// Counts a task that enters a place.
    pub fn add(&self, row: &TaskRow) {
        if !row.place.is_terminal() {
            grow(&self.tasks, 1);
            grow(&self.bytes, u64::from(row.size));
        }
        grow(&self.stored, row.stored_bytes());
    }

    /// Subtracts a task that leaves a place.
    pub fn remove(&self, row: &TaskRow) {
        if !row.place.is_terminal() {
            shrink(&self.tasks, 1);
            shrink(&self.bytes, u64::from(row.size));
        }
        shrink(&self.stored, row.stored_bytes());
    }

    /// Adds the counters of a queue that was just loaded.
    pub fn add_all(&self, counts: &Counts) {
        grow(&self.tasks, counts.live());
        grow(&self.bytes, counts.live_bytes);
        grow(&self.stored, counts.stored_bytes);
    }

    /// The current totals.
    pub fn current(&self) -> Usage {
        Usage {
            tasks: self.tasks.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            stored_bytes: self.stored.load(Ordering::Relaxed),
        }
    }
}

fn grow(sum: &AtomicU64, by: u64) {
    sum.store(sum.load(Ordering::Relaxed).saturating_add(by), Ordering::Relaxed);
}

fn shrink(sum: &AtomicU64, by: u64) {
    sum.store(sum.load(Ordering::Relaxed).saturating_sub(by), Ordering::Relaxed);
}
