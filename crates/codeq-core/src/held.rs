//! What a tenant holds in a shard: the sum over its queues, kept so that a quota is checked without adding them
//! up.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::rows::{Counts, TaskRow};

/// The sums of one tenant. Its queues share them. Only the shard's writer changes them, and whoever reads has the
/// shard's lock: the numbers are atomic because they are shared, not because anybody races.
#[derive(Debug, Default)]
pub(crate) struct Held {
    tasks: AtomicU64,
    bytes: AtomicU64,
    stored: AtomicU64,
}

/// What a tenant holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Tasks that are not finished.
    pub tasks: u64,
    /// Their payload bytes.
    pub bytes: u64,
    /// What all tasks hold, finished ones included, until retention removes them.
    pub stored_bytes: u64,
}

impl Held {
    /// A task enters a place.
    pub fn add(&self, row: &TaskRow) {
        if !row.place.is_terminal() {
            grow(&self.tasks, 1);
            grow(&self.bytes, u64::from(row.size));
        }
        grow(&self.stored, row.stored_bytes());
    }

    /// A task leaves a place.
    pub fn remove(&self, row: &TaskRow) {
        if !row.place.is_terminal() {
            shrink(&self.tasks, 1);
            shrink(&self.bytes, u64::from(row.size));
        }
        shrink(&self.stored, row.stored_bytes());
    }

    /// A queue is loaded.
    pub fn add_all(&self, counts: &Counts) {
        grow(&self.tasks, counts.live());
        grow(&self.bytes, counts.live_bytes);
        grow(&self.stored, counts.stored_bytes);
    }

    /// The sums.
    pub fn holdings(&self) -> Holdings {
        Holdings {
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
