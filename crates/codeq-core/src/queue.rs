//! A queue in memory: its row, and the order of the tasks at its head.
//!
//! The pending table holds the order of all waiting tasks. A lane keeps the first of them in memory, so
//! that a claim does not read the store; what is behind them is counted, not held. Tasks enter at the back
//! only (every order number is fresh), so a window is complete up to its last entry.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::held::Held;
use crate::keys::{self, QueueId};
use crate::kv::{Direction, KvError, KvRead, Table};
use crate::limits::{PRIORITIES, PRIORITY_MAX};
use crate::rows::QueueRow;

/// A waiting task: its order and its number.
pub(crate) type Waiting = (u64, u64);

/// The head of a queue in the order of claims: smaller comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Head {
    /// 9 minus the priority.
    pub inverse_priority: u8,
    /// The order number.
    pub order: u64,
}

#[derive(Debug)]
pub(crate) struct Queue {
    pub row: QueueRow,
    /// The row differs from the one in the store.
    pub dirty: bool,
    /// The entry of this queue among the tenant's heads.
    pub head: Option<Head>,
    lanes: [Lane; PRIORITIES],
    /// What the tenant holds in all its queues.
    pub held: Arc<Held>,
}

#[derive(Debug, Default)]
struct Lane {
    /// The first waiting tasks, in order.
    window: VecDeque<Waiting>,
    /// How many more wait behind the window.
    tail: u64,
    /// The highest order that was ever in the window: the tail begins after it. A search from the start
    /// would walk over every task that was claimed since the last checkpoint.
    reached: u64,
}

impl Queue {
    /// A queue whose windows are still empty: all that waits is tail.
    pub fn new(row: QueueRow, held: Arc<Held>) -> Queue {
        let mut lanes: [Lane; PRIORITIES] = Default::default();
        for (lane, count) in lanes.iter_mut().zip(row.counts.pending) {
            lane.tail = count;
        }
        Queue { row, dirty: false, head: None, lanes, held }
    }

    /// Adds a task at the back of its priority. Returns whether it entered the window.
    pub fn push(&mut self, priority: u8, waiting: Waiting, window_max: usize) -> bool {
        let lane = self.lane(priority);
        let fits = lane.tail == 0 && lane.window.len() < window_max;
        if fits {
            lane.window.push_back(waiting);
            lane.reached = waiting.0;
        } else {
            lane.tail += 1;
        }
        fits
    }

    /// Removes a task, wherever in the lane it is. Returns whether it was in the window.
    pub fn remove(&mut self, priority: u8, order: u64) -> bool {
        let lane = self.lane(priority);
        match lane.window.binary_search_by_key(&order, |waiting| waiting.0) {
            Ok(at) => {
                lane.window.remove(at);
                true
            }
            Err(_) => {
                lane.tail = lane.tail.saturating_sub(1);
                false
            }
        }
    }

    /// Fills empty windows that have a tail from the store. Returns how many entries came in.
    pub fn refill<K: KvRead + ?Sized>(
        &mut self,
        id: QueueId,
        kv: &K,
        window_max: usize,
    ) -> Result<usize, KvError> {
        let mut filled = 0;
        for (priority, lane) in (0..=PRIORITY_MAX).zip(&mut self.lanes) {
            if lane.tail == 0 || !lane.window.is_empty() {
                continue;
            }
            let mut rows = Vec::new();
            let from = keys::pending(id, priority, lane.reached.saturating_add(1));
            let to = keys::pending(id, priority, u64::MAX);
            kv.scan(Table::Pending, from, to, Direction::Forward, window_max, &mut rows)?;
            if rows.is_empty() {
                let reason = format!("{} tasks are counted but not found", lane.tail);
                return Err(KvError::Corrupt { table: Table::Pending, key: from, reason });
            }
            for (key, value) in &rows {
                let waiting = waiting_of(*key, value);
                lane.window.push_back(waiting);
                lane.reached = waiting.0;
            }
            lane.tail = lane.tail.saturating_sub(rows.len() as u64);
            filled += rows.len();
        }
        Ok(filled)
    }

    /// The task that is claimed next, if the queue may be claimed from.
    pub fn next(&self) -> Option<(Head, Waiting)> {
        let limit = self.row.topic.as_ref().map_or(0, |topic| topic.policy.max_consumers);
        let full = limit != 0 && self.row.counts.in_progress >= u64::from(limit);
        if self.row.paused || full {
            return None;
        }
        (0..=PRIORITY_MAX).zip(&self.lanes).rev().find_map(|(priority, lane)| {
            let waiting = *lane.window.front()?;
            let head = Head { inverse_priority: PRIORITY_MAX - priority, order: waiting.0 };
            Some((head, waiting))
        })
    }

    /// The first task of every priority that has one.
    pub fn fronts(&self) -> impl Iterator<Item = u64> {
        self.lanes.iter().filter_map(|lane| lane.window.front().map(|waiting| waiting.1))
    }

    #[allow(clippy::indexing_slicing, reason = "the index is clamped to the array")]
    fn lane(&mut self, priority: u8) -> &mut Lane {
        &mut self.lanes[usize::from(priority).min(PRIORITIES - 1)]
    }
}

/// The order and number of a pending row. A task that was never requeued has its number as its order, and
/// then the row is empty.
pub(crate) fn waiting_of(key: u128, value: &[u8]) -> Waiting {
    let (_, _, order) = keys::pending_parts(key);
    let seq = value.try_into().map_or(order, u64::from_le_bytes);
    (order, seq)
}
