//! Reads: tasks, results, histories, lists and counters. Nothing here changes state.

use std::collections::BinaryHeap;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use crate::command::{Artifact, BulkFrom};
use crate::history::History;
use crate::id::TaskId;
use crate::keys::{self, Order, QueueId, Seq, TimerKind};
use crate::kv::{Direction, Key, KvError, KvRead, Table};
use crate::limits::{
    AHEAD_SCAN_MAX, CALLBACK_SCAN_MAX, LIST_BYTES_MAX, LIST_MAX, LIST_SLICE_MAX, QUEUES_SLICE_MAX,
};
use crate::moment::Millis;
use crate::names::is_worker;
use crate::place::{Place, Status};
use crate::record::{Record, RecordKind};
use crate::rows::{Counts, OutboxRow, QueueRow, RecordRow, TaskRow};
use crate::state::State;
use crate::topic::Topic;
use crate::view::{ResultRecord, Task};

/// Selects a tenant's tasks, newest first.
#[derive(Debug, Clone, Default)]
pub struct ListQuery {
    /// The tenant that owns the tasks.
    pub tenant: Arc<str>,
    /// Only tasks of this command.
    pub command: Option<Arc<str>>,
    /// Only tasks of this status.
    pub status: Option<Status>,
    /// Only dead letters.
    pub dead_only: bool,
    /// Only tasks that this worker runs or finished.
    pub worker: Option<Arc<str>>,
    /// Only tasks created at this time or later.
    pub created_from: Option<Millis>,
    /// Only tasks created before this time.
    pub created_before: Option<Millis>,
    /// Only tasks whose last error contains this.
    pub error_contains: Option<Arc<str>>,
    /// Only tasks with a smaller number: where the previous page ended.
    pub below: Option<Seq>,
    /// Upper bound on the number of tasks.
    pub limit: usize,
    /// Upper bound on bytes, if smaller than [`LIST_BYTES_MAX`]. A page always has room for one task.
    pub bytes: Option<usize>,
}

/// A page of a list.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// The tasks, newest first.
    pub items: Vec<Task>,
    /// Pass as `below` to continue; `None` on the last page. A page may be short or even empty without being the last:
    /// one read covers at most [`LIST_SLICE_MAX`] rows and a bounded number of bytes.
    pub next: Option<Seq>,
    /// Number of rows read.
    pub looked: usize,
    /// The page ended because the next task would have exceeded the byte limit.
    pub full: bool,
}

/// Statistics of a queue.
#[derive(Debug, Clone)]
pub struct QueueStats {
    /// The tenant that owns it.
    pub tenant: Arc<str>,
    /// The queue's name.
    pub name: Arc<str>,
    /// Number of tasks in each place.
    pub counts: Counts,
    /// Whether claims are paused.
    pub paused: bool,
    /// The queue's policy, if an operator set one.
    pub topic: Option<Topic>,
    /// Creation time of the oldest task among the first tasks of each priority.
    pub oldest_ready_at: Option<Millis>,
}

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

/// The holders of some of a tenant's leases.
#[derive(Debug, Clone, Default)]
pub struct LeasePage {
    /// The worker of each lease.
    pub workers: Vec<Arc<str>>,
    /// The queue and the task number after which to continue; `None` on the last page.
    pub next: Option<(Arc<str>, Seq)>,
}

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

/// A callback that is pending or failed.
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

/// Reads one shard, as of the latest applied command.
pub struct Reader<'a, K: KvRead + ?Sized> {
    /// The shard's state.
    pub state: &'a State,
    /// The shard's rows.
    pub kv: &'a K,
}

impl<K: KvRead + ?Sized> Reader<'_, K> {
    /// The task with this id, if the tenant owns it.
    pub fn task(&self, tenant: &str, id: TaskId) -> Result<Option<Task>, KvError> {
        let Some((row, queue)) = self.find(tenant, id)? else {
            return Ok(None);
        };
        Task::from_rows(self.kv, id.seq(), &row, queue, self.state.moment()).map(Some)
    }

    /// When the task with this number was created.
    pub fn created_at(&self, seq: Seq) -> Result<Option<Millis>, KvError> {
        Ok(TaskRow::load(self.kv, keys::task(seq))?.map(|row| row.created_at))
    }

    /// A task, with its result once it is finished.
    pub fn result(
        &self,
        tenant: &str,
        id: TaskId,
    ) -> Result<Option<(Task, Option<ResultRecord>)>, KvError> {
        let Some((row, queue)) = self.find(tenant, id)? else {
            return Ok(None);
        };
        let task = Task::from_rows(self.kv, id.seq(), &row, queue, self.state.moment())?;
        Ok(Some((task, ResultRecord::from_row(id.seq(), &row))))
    }

    /// The artifacts that a task's result names, for any tenant: used to clean up storage. `None` if the task does not
    /// exist or is not finished.
    pub fn artifacts(&self, id: TaskId) -> Result<Option<Vec<Artifact>>, KvError> {
        let row = TaskRow::load(self.kv, keys::task(id.seq()))?;
        let finish = row.filter(|row| row.salt == id.salt()).and_then(|row| row.finish);
        Ok(finish.map(|finish| finish.artifacts))
    }

    /// A task's history, if the tenant owns the task.
    pub fn history(&self, tenant: &str, id: TaskId) -> Result<Option<History>, KvError> {
        Ok(self.find(tenant, id)?.map(|(row, _)| row.history))
    }

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

    /// The holders of a tenant's leases after a queue and a task number. Reads at most [`LIST_SLICE_MAX`] tasks and
    /// queues, so a page may be short or empty without being the last.
    pub fn leases(
        &self,
        tenant: &str,
        from: Option<&(Arc<str>, Seq)>,
    ) -> Result<LeasePage, KvError> {
        let mut page = LeasePage::default();
        let mut look = LIST_SLICE_MAX;
        let start = from.map_or(Bound::Unbounded, |(queue, _)| Bound::Included(&**queue));
        let mut rows = Vec::new();
        for (name, id) in self.state.queues_from(tenant, start) {
            let after = from.filter(|(queue, _)| queue == name).map_or(Seq(0), |(_, after)| *after);
            if look < 2 {
                page.next = Some((Arc::clone(name), after));
                break;
            }
            // An idle queue costs a look too: there may be ten thousand of them.
            look -= 1;
            if self.state.queue_row(id).is_none_or(|row| row.counts.in_progress == 0) {
                continue;
            }
            let first = keys::index(id, Place::InProgress, after.next());
            let last = keys::index(id, Place::InProgress, Seq::MAX);
            let (table, forward) = (Table::Index, Direction::Forward);
            rows.clear();
            self.kv.scan(table, first, last, forward, look, &mut rows)?;
            for (key, _) in &rows {
                let row = TaskRow::load(self.kv, keys::task(keys::seq_of(*key)))?;
                page.workers.extend(row.and_then(|row| row.lease).map(|lease| lease.worker));
            }
            if rows.len() == look
                && let Some((key, _)) = rows.last()
            {
                page.next = Some((Arc::clone(name), keys::seq_of(*key)));
                break;
            }
            look -= rows.len();
        }
        Ok(page)
    }

    /// Statistics of one queue.
    pub fn queue(&self, tenant: &str, command: &str) -> Result<Option<QueueStats>, KvError> {
        let Some(id) = self.state.queue_id(tenant, command) else {
            return Ok(None);
        };
        self.stats(id)
    }

    /// Statistics of a tenant's queues after the name `after`, ordered by name. [`QUEUES_SLICE_MAX`] results mean that
    /// there may be more.
    pub fn queues(&self, tenant: &str, after: Option<&str>) -> Result<Vec<QueueStats>, KvError> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let queues = self.state.queues_from(tenant, start).take(QUEUES_SLICE_MAX);
        queues.filter_map(|(_, id)| self.stats(id).transpose()).collect()
    }

    /// One slice of a list, from a bounded number of rows.
    pub fn list(&self, query: &ListQuery) -> Result<Page, KvError> {
        let limit = query.limit.clamp(1, LIST_MAX);
        let mut streams = self.streams(query)?;
        let mut heap = BinaryHeap::new();
        for (at, stream) in streams.iter_mut().enumerate() {
            if let Some(seq) = stream.next(self.kv)? {
                heap.push((seq, at));
            }
        }
        let bytes_max = query.bytes.unwrap_or(LIST_BYTES_MAX).min(LIST_BYTES_MAX);
        let mut page = Page::default();
        let mut bytes = 0;
        while let Some((seq, at)) = heap.pop() {
            if page.items.len() == limit || page.looked == LIST_SLICE_MAX {
                page.next = Some(seq.next());
                break;
            }
            page.looked += 1;
            if let Some(stream) = streams.get_mut(at)
                && let Some(next) = stream.next(self.kv)?
            {
                heap.push((next, at));
            }
            let Some(row) = TaskRow::load(self.kv, keys::task(seq))? else {
                continue;
            };
            // Numbers grow with time, so every task further down is older, unless the clock was set back. In that
            // case tasks created while it was ahead may be left out.
            if query.created_from.is_some_and(|from| row.created_at < from) {
                break;
            }
            if matches(query, &row)
                && let Some(queue) = self.state.queue_row(row.queue)
            {
                let task = Task::from_rows(self.kv, seq, &row, queue, self.state.moment())?;
                bytes += task.bytes();
                if bytes > bytes_max && !page.items.is_empty() {
                    page.next = Some(seq.next());
                    page.full = true;
                    break;
                }
                page.items.push(task);
            }
        }
        Ok(page)
    }

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

    /// The record with this name, unless it has expired at `now`, by engine time.
    pub fn record(
        &self,
        tenant: &Arc<str>,
        kind: RecordKind,
        name: &str,
        now: Millis,
    ) -> Result<Option<Record>, KvError> {
        let Some(seq) = self.state.record_number(tenant, kind, name, now) else {
            return Ok(None);
        };
        Ok(RecordRow::load(self.kv, keys::record(seq))?.map(Record::from))
    }

    /// A tenant's records of one kind at `now`, ordered by name.
    pub fn records(
        &self,
        tenant: &Arc<str>,
        kind: RecordKind,
        now: Millis,
    ) -> Result<Vec<Record>, KvError> {
        let ours = self.state.records_of(tenant, kind);
        let live = ours.filter(|(_, expires_at)| expires_at.is_none_or(|at| at > now));
        let rows = live.map(|(seq, _)| RecordRow::load(self.kv, keys::record(seq)));
        rows.filter_map(Result::transpose).map(|row| Ok(row?.into())).collect()
    }

    /// Records of one kind of all tenants at `now` with a number above `after`, and where to continue. Reads at most
    /// `limit` records.
    pub fn all_records(
        &self,
        kind: RecordKind,
        now: Millis,
        after: Seq,
        limit: usize,
    ) -> Result<(Vec<Record>, Option<Seq>), KvError> {
        let mut rows = Vec::new();
        let from = keys::record(after.next());
        let limit = limit.clamp(1, LIST_MAX);
        self.kv.scan(Table::Record, from, Key::MAX, Direction::Forward, limit, &mut rows)?;
        let next = rows.last().filter(|_| rows.len() == limit);
        let next = next.map(|(key, _)| keys::seq_of(*key));
        let mut records = Vec::new();
        for (key, value) in rows {
            let row = RecordRow::decode(key, &value)?;
            if row.kind == kind && row.expires_at.is_none_or(|at| at > now) {
                records.push(row.into());
            }
        }
        Ok((records, next))
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

    pub(crate) fn find(
        &self,
        tenant: &str,
        id: TaskId,
    ) -> Result<Option<(TaskRow, &QueueRow)>, KvError> {
        let Some(row) = TaskRow::load(self.kv, keys::task(id.seq()))? else {
            return Ok(None);
        };
        let queue = self.state.queue_row(row.queue);
        let ours = |queue: &&QueueRow| *queue.tenant == *tenant && row.salt == id.salt();
        Ok(queue.filter(ours).map(|queue| (row, queue)))
    }

    fn stats(&self, id: QueueId) -> Result<Option<QueueStats>, KvError> {
        let Some(queue) = self.state.queues.get(&id) else {
            return Ok(None);
        };
        let mut oldest_ready_at = None;
        for seq in queue.fronts() {
            oldest_ready_at = oldest_ready_at.into_iter().chain(self.created_at(seq)?).min();
        }
        Ok(Some(QueueStats {
            tenant: Arc::clone(&queue.row.tenant),
            name: Arc::clone(&queue.row.name),
            counts: queue.row.counts,
            paused: queue.row.paused,
            topic: queue.row.topic.clone(),
            oldest_ready_at,
        }))
    }

    /// For every list that the query touches, a stream of descending task numbers.
    fn streams(&self, query: &ListQuery) -> Result<Vec<Stream>, KvError> {
        const ALL: [Place; 5] =
            [Place::Pending, Place::InProgress, Place::Completed, Place::Failed, Place::Dead];
        let places: &[Place] = match (query.dead_only, query.status) {
            (true, _) => &[Place::Dead],
            (false, Some(status)) => status.lists(),
            (false, None) => &ALL,
        };
        let mut below = query.below.unwrap_or(Seq::MAX);
        if let Some(before) = query.created_before {
            below = below.min(self.first_created_at(before)?);
        }
        let queues: Vec<QueueId> = match &query.command {
            Some(command) => self.state.queue_id(&query.tenant, command).into_iter().collect(),
            None => self.state.queues_of(&query.tenant).map(|(id, _)| id).collect(),
        };
        let mut streams = Vec::new();
        for queue in queues {
            let Some(row) = self.state.queue_row(queue) else {
                continue;
            };
            let filled = places.iter().filter(|place| row.counts.of(**place) > 0);
            streams.extend(filled.map(|place| Stream::new(queue, *place, below)));
        }
        Ok(streams)
    }

    /// The smallest number of a task created at `moment` or later, or one past the last number.
    fn first_created_at(&self, moment: Millis) -> Result<Seq, KvError> {
        let (mut low, mut high) = (0, self.state.meta.next_seq.0);
        while low < high {
            let middle = low + (high - low) / 2;
            let mut rows = Vec::new();
            let (from, to) = (keys::task(Seq(middle)), keys::task(Seq(high.saturating_sub(1))));
            self.kv.scan(Table::Task, from, to, Direction::Forward, 1, &mut rows)?;
            match rows.first() {
                Some((key, value)) if TaskRow::decode(*key, value)?.created_at < moment => {
                    low = keys::seq_of(*key).next().0;
                }
                _ => high = middle,
            }
        }
        Ok(Seq(low))
    }
}

fn matches(query: &ListQuery, row: &TaskRow) -> bool {
    let worker = || {
        let lease = row.lease.as_ref().map(|lease| &lease.worker);
        lease.or(row.finish.as_ref().and_then(|finish| finish.worker.as_ref()))
    };
    query.created_before.is_none_or(|before| row.created_at < before)
        && query
            .worker
            .as_deref()
            .is_none_or(|wanted| worker().is_some_and(|worker| is_worker(worker, wanted)))
        && query
            .error_contains
            .as_deref()
            .is_none_or(|part| row.error.as_deref().is_some_and(|error| error.contains(part)))
}

/// One list, read backwards in small chunks.
struct Stream {
    queue: QueueId,
    place: Place,
    below: Seq,
    buffer: Vec<(Key, Bytes)>,
    at: usize,
}

impl Stream {
    fn new(queue: QueueId, place: Place, below: Seq) -> Stream {
        Stream { queue, place, below, buffer: Vec::new(), at: 0 }
    }

    fn next<K: KvRead + ?Sized>(&mut self, kv: &K) -> Result<Option<Seq>, KvError> {
        const CHUNK: usize = 32;
        if self.at == self.buffer.len() {
            let Some(highest) = self.below.0.checked_sub(1) else {
                return Ok(None);
            };
            self.buffer.clear();
            self.at = 0;
            let from = keys::index(self.queue, self.place, Seq(0));
            let to = keys::index(self.queue, self.place, Seq(highest));
            kv.scan(Table::Index, from, to, Direction::Reverse, CHUNK, &mut self.buffer)?;
        }
        let Some((key, _)) = self.buffer.get(self.at) else {
            return Ok(None);
        };
        self.at += 1;
        self.below = keys::seq_of(*key);
        Ok(Some(self.below))
    }
}
