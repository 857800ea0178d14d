//! The places that connections take.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::NetStats;

/// A place among the connections of all listeners that share their numbers, given back when dropped.
pub(crate) struct Slot {
    pub(crate) stats: Arc<NetStats>,
}

impl Slot {
    /// `None` when all are taken; then the connection is counted as refused.
    pub(crate) fn take(most: usize, stats: &Arc<NetStats>) -> Option<Self> {
        let one_more = |open| (open < most).then_some(open + 1);
        if stats.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_err() {
            stats.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        stats.accepted.fetch_add(1, Ordering::Relaxed);
        Some(Self { stats: Arc::clone(stats) })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.stats.open.fetch_sub(1, Ordering::Relaxed);
    }
}
