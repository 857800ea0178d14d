//! Connection slots.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::NetStats;

/// One of the `max_connections` slots, released on drop. Listeners that share a [`NetStats`] share
/// the slots.
pub(crate) struct Slot {
    pub(crate) stats: Arc<NetStats>,
}

impl Slot {
    /// Takes a slot. If none is free, counts the connection as refused and returns `None`.
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
