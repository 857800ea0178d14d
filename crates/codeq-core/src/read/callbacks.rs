//! Result callbacks that are pending or failed.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use crate::command::BulkFrom;
use crate::keys::{self, Seq, TimerKind};
use crate::kv::{Direction, KvError, KvRead, Table};
use crate::limits::{CALLBACK_SCAN_MAX, LIST_MAX};
use crate::moment::Millis;
use crate::read::Reader;
use crate::rows::{OutboxRow, TaskRow};
use crate::view::{ResultRecord, Task};

/// A callback scheduled for delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueCallback {
    /// When it is due, by engine time.
    pub at: Millis,
    /// Number of its task.
    pub seq: Seq,
    /// Hash of the receiver's host and port.
    pub receiver: u64,
    /// Hash of the tenant's name.
    pub tenant: u64,
}

/// A page of a tenant's callbacks.
#[derive(Debug, Clone, Default)]
pub struct CallbackPage {
    /// Ordered by queue; within a queue pending before failed, then oldest task first. Payloads and results are left
    /// out, because a page of them could take gigabytes.
    pub items: Vec<PendingCallback>,
    /// Where to continue; `None` on the last page.
    pub next: Option<BulkFrom>,
}

/// A callback that is kept: pending or failed.
#[derive(Debug, Clone)]
pub struct PendingCallback {
    /// The finished task.
    pub task: Task,
    /// The task's result.
    pub result: ResultRecord,
    /// The state of the delivery.
    pub outbox: OutboxRow,
}

impl PendingCallback {
    fn without_contents(mut self) -> PendingCallback {
        self.task.payload = Bytes::new();
        self.result.result = None;
        self.result.artifacts = Vec::new();
        self
    }
}

impl<K: KvRead + ?Sized> Reader<'_, K> {
    /// At most `limit` pending callbacks in order of due time, starting at a time and a task number. Does not read the
    /// tasks.
    pub fn callbacks_due(
        &self,
        (at, seq): (Millis, Seq),
        limit: usize,
    ) -> Result<Vec<DueCallback>, KvError> {
        let mut rows = Vec::new();
        let from = keys::timer(TimerKind::Callback, at, seq);
        let to = keys::timer(TimerKind::Callback, Millis::MAX, Seq::MAX);
        self.kv.scan(Table::Timer, from, to, Direction::Forward, limit.min(LIST_MAX), &mut rows)?;
        let due = rows.iter().map(|(key, value)| {
            let (_, at, seq) = keys::timer_parts(*key);
            let both = value.first_chunk().map_or(0, |bytes| u128::from_le_bytes(*bytes));
            DueCallback { at, seq, receiver: both as u64, tenant: (both >> 64) as u64 }
        });
        Ok(due.collect())
    }

    /// At most `limit` callbacks of a tenant, optionally only failed or only pending ones, ordered by queue and age,
    /// starting at a position. A page may be short or empty without being the last, because the work is bounded. Only
    /// this tenant's rows are read.
    pub fn callbacks(
        &self,
        tenant: &str,
        failed: Option<bool>,
        from: &BulkFrom,
        limit: usize,
    ) -> Result<CallbackPage, KvError> {
        let limit = limit.clamp(1, LIST_MAX);
        let mut page = CallbackPage::default();
        let mut look = CALLBACK_SCAN_MAX;
        let mut rows = Vec::new();
        let start = from.queue.as_deref().map_or(Bound::Unbounded, Bound::Included);
        for (name, id) in self.state.queues_from(tenant, start) {
            let resumed = from.queue.as_ref() == Some(name);
            let lists = [(0, false), (1, true)].into_iter().filter(|(list, of_failed)| {
                failed.is_none_or(|wanted| wanted == *of_failed) && !(resumed && *list < from.list)
            });
            for (list, of_failed) in lists {
                let mut after = if resumed && list == from.list { from.after } else { Seq(0) };
                loop {
                    if look == 0 || page.items.len() == limit {
                        page.next = Some(BulkFrom { queue: Some(Arc::clone(name)), list, after });
                        return Ok(page);
                    }
                    // Empty lists count against the bound too: there may be ten thousand of them.
                    look -= 1;
                    let wanted = (limit - page.items.len()).min(look);
                    rows.clear();
                    let first = keys::callback(id, of_failed, after.next());
                    let last = keys::callback(id, of_failed, Seq::MAX);
                    let (table, forward) = (Table::Index, Direction::Forward);
                    self.kv.scan(table, first, last, forward, wanted, &mut rows)?;
                    look -= rows.len();
                    for (key, _) in &rows {
                        after = keys::seq_of(*key);
                        let found = self.callback(after)?;
                        page.items.extend(found.map(PendingCallback::without_contents));
                    }
                    if rows.len() < wanted {
                        break;
                    }
                }
            }
        }
        Ok(page)
    }

    /// The callback of a task, with everything needed to deliver it.
    pub fn callback(&self, seq: Seq) -> Result<Option<PendingCallback>, KvError> {
        let key = keys::task(seq);
        let (Some(outbox), Some(row)) =
            (OutboxRow::load(self.kv, key)?, TaskRow::load(self.kv, key)?)
        else {
            return Ok(None);
        };
        let (Some(queue), Some(result)) =
            (self.state.queue_row(row.queue), ResultRecord::from_row(seq, &row))
        else {
            return Ok(None);
        };
        let task = Task::from_rows(self.kv, seq, &row, queue, self.state.moment())?;
        Ok(Some(PendingCallback { task, result, outbox }))
    }
}
