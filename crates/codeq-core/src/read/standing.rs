//! Where a task stands in its queue: what decides when it is claimed, such as how many tasks are ahead of it.

use bytes::Bytes;

use crate::history::History;
use crate::id::TaskId;
use crate::keys::{self, Order};
use crate::kv::{Direction, KvError, KvRead, Table};
use crate::limits::AHEAD_SCAN_MAX;
use crate::place::Place;
use crate::read::{QueueStats, Reader};
use crate::rows::TaskRow;
use crate::view::Task;

/// A task with what decides when it is claimed, all as of one moment.
#[derive(Debug, Clone)]
pub struct Standing {
    /// The task, without its payload.
    pub task: Task,
    /// Its transitions.
    pub history: History,
    /// Its queue, in the task's shard.
    pub queue: QueueStats,
    /// The tasks that are claimed before it; `None` unless it is pending.
    pub ahead: Option<Ahead>,
}

/// The tasks of a queue, in one shard, that are claimed before a pending task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ahead {
    /// Tasks of a higher priority.
    pub higher_priority: u64,
    /// Tasks of the same priority that entered the queue before it.
    pub older: u64,
    /// False if `older` is only a lower bound, because counting stopped after [`AHEAD_SCAN_MAX`] rows.
    pub exact: bool,
}

impl<K: KvRead + ?Sized> Reader<'_, K> {
    /// A task and what decides when it is claimed, if the tenant owns it.
    pub fn standing(&self, tenant: &str, id: TaskId) -> Result<Option<Standing>, KvError> {
        let Some((row, queue)) = self.find(tenant, id)? else {
            return Ok(None);
        };
        let mut task = Task::from_rows(self.kv, id.seq(), &row, queue, self.state.moment())?;
        task.payload = Bytes::new();
        let Some(queue) = self.stats(row.queue)? else {
            return Ok(None);
        };
        let ahead = if row.place == Place::Pending { self.ahead(&row)? } else { None };
        Ok(Some(Standing { task, history: row.history, queue, ahead }))
    }

    /// Counts the tasks before a pending one: exactly if it is among the first or the last of its priority.
    fn ahead(&self, row: &TaskRow) -> Result<Option<Ahead>, KvError> {
        let Some(queue) = self.state.queues.get(&row.queue) else {
            return Ok(None);
        };
        let pending = &queue.row.counts.pending;
        let above = usize::from(row.priority) + 1;
        let higher_priority = pending.iter().skip(above).sum();
        let count = |from: Order, to: Order| {
            if from > to {
                return Ok(Some(0));
            }
            let mut rows = Vec::new();
            let key = |order| keys::pending(row.queue, row.priority, order);
            let (table, forward) = (Table::Pending, Direction::Forward);
            self.kv.scan(table, key(from), key(to), forward, AHEAD_SCAN_MAX, &mut rows)?;
            Ok::<_, KvError>(Some(rows.len()).filter(|n| *n < AHEAD_SCAN_MAX).map(|n| n as u64))
        };
        let (older, exact) = match queue.before(row.priority, row.order) {
            Ok(older) => (older, true),
            Err((window, reached)) => {
                let last = Order(row.order.0.saturating_sub(1));
                match count(reached.next(), last)? {
                    Some(between) => (window + between, true),
                    None => match count(row.order.next(), Order::MAX)? {
                        Some(behind) => {
                            let all = pending.get(usize::from(row.priority)).copied();
                            (all.unwrap_or(0).saturating_sub(behind + 1), true)
                        }
                        None => (window + AHEAD_SCAN_MAX as u64, false),
                    },
                }
            }
        };
        Ok(Some(Ahead { higher_priority, older, exact }))
    }
}
