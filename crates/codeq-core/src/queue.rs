//! A queue in memory: its row, and the order of its first tasks.
//!
//! The pending table holds the order of all pending tasks. For each priority, a window keeps the first of them in
//! memory, so that a claim does not read the store; the tasks behind the window are only counted. Tasks enter at the
//! back only (every order number is new), so a window has no gaps.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::keys::{self, Order, QueueId, Seq};
use crate::kv::{Direction, KvError, KvRead, Table};
use crate::limits::{PRIORITIES, PRIORITY_MAX};
use crate::rows::QueueRow;
use crate::usage::UsageCounters;

/// A pending task: its order number and its task number.
pub(crate) type Waiting = (Order, Seq);

/// The head of a queue; heads sort in claim order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Head {
    /// 9 minus the priority.
    pub inverse_priority: u8,
    /// The order number within the priority.
    pub order: Order,
}

#[derive(Debug)]
pub(crate) struct Queue {
    pub row: QueueRow,
    /// The row differs from the one in the store.
    pub dirty: bool,
    /// The queue's entry in the tenant's set of heads.
    pub head: Option<Head>,
    levels: [PriorityLevel; PRIORITIES],
    /// Number of tasks behind the windows of all priorities.
    tails: u64,
    /// Totals of the tenant over all its queues.
    pub usage: Arc<UsageCounters>,
}

#[derive(Debug, Default)]
struct PriorityLevel {
    /// The first pending tasks, in order.
    window: VecDeque<Waiting>,
    /// Number of tasks behind the window.
    tail: u64,
    /// The highest order number that was ever in the window; the tail starts after it. A scan from the beginning would
    /// visit every task claimed since the last checkpoint.
    reached: Order,
}

impl Queue {
    /// Starts with empty windows: every pending task is in a tail.
    pub fn new(row: QueueRow, usage: Arc<UsageCounters>) -> Queue {
        let mut levels: [PriorityLevel; PRIORITIES] = Default::default();
        let tails = row.counts.ready();
        for (level, count) in levels.iter_mut().zip(row.counts.pending) {
            level.tail = count;
        }
        Queue { row, dirty: false, head: None, levels, tails, usage }
    }

    /// Adds a task at the back of its priority. Returns whether it entered the window.
    pub fn push(&mut self, priority: u8, waiting: Waiting, window_max: usize) -> bool {
        let level = self.level(priority);
        let fits = level.tail == 0 && level.window.len() < window_max;
        if fits {
            level.window.push_back(waiting);
            level.reached = waiting.0;
        } else {
            level.tail += 1;
            self.tails += 1;
        }
        fits
    }

    /// Removes a task from the window or the tail. Returns whether it was in the window.
    pub fn remove(&mut self, priority: u8, order: Order) -> bool {
        let level = self.level(priority);
        match level.window.binary_search_by_key(&order, |waiting| waiting.0) {
            Ok(at) => {
                level.window.remove(at);
                true
            }
            Err(_) => {
                level.tail = level.tail.saturating_sub(1);
                self.tails = self.tails.saturating_sub(1);
                false
            }
        }
    }

    /// Refills empty windows from the store. Returns how many entries were added.
    pub fn refill<K: KvRead + ?Sized>(
        &mut self,
        id: QueueId,
        kv: &K,
        window_max: usize,
    ) -> Result<usize, KvError> {
        if self.tails == 0 {
            return Ok(0);
        }
        let mut filled = 0;
        for (priority, level) in (0..=PRIORITY_MAX).zip(&mut self.levels) {
            if level.tail == 0 || !level.window.is_empty() {
                continue;
            }
            let mut rows = Vec::new();
            let from = keys::pending(id, priority, level.reached.next());
            let to = keys::pending(id, priority, Order::MAX);
            kv.scan(Table::Pending, from, to, Direction::Forward, window_max, &mut rows)?;
            if rows.is_empty() {
                let reason = format!("{} pending tasks are counted but have no row", level.tail);
                return Err(KvError::Corrupt { table: Table::Pending, key: from, reason });
            }
            for (key, value) in &rows {
                let waiting = keys::waiting_of(*key, value);
                level.window.push_back(waiting);
                level.reached = waiting.0;
            }
            level.tail = level.tail.saturating_sub(rows.len() as u64);
            filled += rows.len();
        }
        self.tails = self.tails.saturating_sub(filled as u64);
        Ok(filled)
    }

    /// The next task to claim; `None` if the queue is empty, paused or at its limit of consumers.
    pub fn next(&self) -> Option<(Head, Waiting)> {
        let limit = self.row.topic.as_ref().map_or(0, |topic| topic.policy.max_consumers);
        let full = limit != 0 && self.row.counts.in_progress >= u64::from(limit);
        if self.row.paused || full {
            return None;
        }
        // The counters are next to each other in memory; the windows are not.
        let counted = self.row.counts.pending.iter().zip(&self.levels).zip(0..=PRIORITY_MAX);
        counted.rev().filter(|((count, _), _)| **count > 0).find_map(|((_, level), priority)| {
            let waiting = *level.window.front()?;
            let head = Head { inverse_priority: PRIORITY_MAX - priority, order: waiting.0 };
            Some((head, waiting))
        })
    }

    /// How many pending tasks of the same priority precede the task with this order number, if the window covers it.
    /// Otherwise the error has the number of tasks in the window and the last order number that it has covered.
    pub fn before(&self, priority: u8, order: Order) -> Result<u64, (u64, Order)> {
        let level = self.levels.get(usize::from(priority)).ok_or((0, Order(0)))?;
        let found = level.window.binary_search_by_key(&order, |waiting| waiting.0);
        found.map(|at| at as u64).map_err(|_| (level.window.len() as u64, level.reached))
    }

    /// The number of the first task of each priority that has one.
    pub fn fronts(&self) -> impl Iterator<Item = Seq> {
        self.levels.iter().filter_map(|level| level.window.front().map(|waiting| waiting.1))
    }

    #[allow(clippy::indexing_slicing, reason = "the index is clamped to the array")]
    fn level(&mut self, priority: u8) -> &mut PriorityLevel {
        &mut self.levels[usize::from(priority).min(PRIORITIES - 1)]
    }
}
