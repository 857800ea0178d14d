//! A shard's state in memory, derived from its rows.
//!
//! [`State::load`] can rebuild all of it. Queue counters are kept here and only reach their rows when the engine calls
//! [`State::write_back`], before each checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use crate::id::ShardId;
use crate::keys::{self, QueueId, Seq, TimerKind};
use crate::kv::{Key, Kv, KvError, KvRead, Table, for_each};
use crate::moment::{Millis, Moment};
use crate::names::queue_name;
use crate::place::Place;
use crate::queue::{Head, Queue};
use crate::record_index::RecordIndex;
use crate::reply::Reply;
use crate::rows::{MetaRow, OutboxRow, QueueRow, TaskRow};
use crate::settings::Settings;
use crate::timers::Timers;
use crate::usage::{Usage, UsageCounters};

/// Outcome of applying a command.
#[derive(Debug)]
pub struct Applied {
    /// The answer.
    pub reply: Reply,
    /// Whether anything changed. A command that changed nothing need not be logged.
    pub changed: bool,
}

/// Number of callbacks that a shard keeps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallbackCounts {
    /// Still to be delivered.
    pub pending: u64,
    /// Given up; kept for inspection and resending.
    pub failed: u64,
}

impl CallbackCounts {
    /// Counts the outbox rows.
    pub(crate) fn load<K: KvRead + ?Sized>(kv: &K) -> Result<CallbackCounts, KvError> {
        let mut counts = CallbackCounts::default();
        for_each(kv, Table::Outbox, 0, Key::MAX, |key, value| {
            *counts.slot(&OutboxRow::decode(key, value)?) += 1;
            Ok(())
        })?;
        Ok(counts)
    }

    pub(crate) fn slot(&mut self, row: &OutboxRow) -> &mut u64 {
        if row.next_at.is_some() { &mut self.pending } else { &mut self.failed }
    }
}

/// One tenant's queues.
#[derive(Debug, Default)]
pub(crate) struct Tenant {
    pub queues: BTreeMap<Arc<str>, QueueId>,
    /// Heads of the queues that can be claimed from, in claim order.
    pub heads: BTreeSet<(Head, QueueId)>,
    /// Totals over the tenant's queues.
    pub usage: Arc<UsageCounters>,
}

/// The state of one shard.
#[derive(Debug)]
pub struct State {
    pub(crate) shard: ShardId,
    pub(crate) shards: u16,
    pub(crate) meta: MetaRow,
    pub(crate) tenants: BTreeMap<Arc<str>, Tenant>,
    pub(crate) queues: BTreeMap<QueueId, Queue>,
    /// Running leases by their end. Everything else about them is in the rows.
    pub(crate) leases: BTreeSet<(Millis, Seq)>,
    pub(crate) timers: Timers,
    /// Number of callbacks kept.
    pub(crate) callbacks: CallbackCounts,
    pub(crate) records: RecordIndex,
    /// Queues whose row in the store is stale.
    pub(crate) dirty: Vec<QueueId>,
    /// Queues whose row has version 1 and whose callbacks are not indexed yet.
    outdated: BTreeSet<QueueId>,
    /// Number of entries in the windows of all queues.
    pub(crate) windowed: usize,
}

impl State {
    /// Builds the state from the rows; empty tables give an empty shard.
    pub fn load<K: KvRead + ?Sized>(kv: &K, shard: ShardId, shards: u16) -> Result<State, KvError> {
        let meta = MetaRow::load(kv, keys::META)?.unwrap_or_else(|| MetaRow {
            next_seq: Seq(1),
            next_queue: 1,
            now: 0,
            settings: Settings::of_empty_shard(),
            transitions: 1,
            wall: 0,
        });
        let mut state = State {
            shard,
            shards,
            meta,
            tenants: BTreeMap::new(),
            queues: BTreeMap::new(),
            leases: BTreeSet::new(),
            timers: Timers::load(kv)?,
            callbacks: CallbackCounts::load(kv)?,
            records: RecordIndex::load(kv)?,
            dirty: Vec::new(),
            outdated: BTreeSet::new(),
            windowed: 0,
        };
        for_each(kv, Table::Queue, 0, Key::MAX, |key, value| {
            let (id, mut row) = (key as QueueId, QueueRow::decode(key, value)?);
            if QueueRow::lacks_finished_bytes(value) {
                row.counts.stored_bytes += finished_bytes(kv, id)?;
                state.outdated.insert(id);
            }
            let recounted = QueueRow::mixes_cancelled(value);
            if recounted && row.counts.failed > 0 {
                row.counts.cancelled = cancelled(kv, id)?;
                row.counts.failed = row.counts.failed.saturating_sub(row.counts.cancelled);
            }
            state.load_queue(kv, id, row, recounted)
        })?;
        Ok(state)
    }

    fn load_queue<K: KvRead + ?Sized>(
        &mut self,
        kv: &K,
        id: QueueId,
        row: QueueRow,
        dirty: bool,
    ) -> Result<(), KvError> {
        let from = keys::index(id, Place::InProgress, Seq(0));
        let to = keys::index(id, Place::InProgress, Seq::MAX);
        for_each(kv, Table::Index, from, to, |key, _| {
            let seq = keys::seq_of(key);
            let task = TaskRow::load(kv, keys::task(seq))?;
            let until = task.and_then(|row| row.lease).map(|lease| lease.until);
            let until = until.ok_or_else(|| KvError::Corrupt {
                table: Table::Index,
                key,
                reason: "task is in progress but has no lease".to_owned(),
            })?;
            self.leases.insert((until, seq));
            Ok(())
        })?;
        let tenant = self.tenants.entry(Arc::clone(&row.tenant)).or_default();
        tenant.queues.insert(Arc::clone(&row.name), id);
        tenant.usage.add_all(&row.counts);
        let mut queue = Queue::new(row, Arc::clone(&tenant.usage));
        if dirty {
            queue.dirty = true;
            self.dirty.push(id);
        }
        self.windowed += queue.refill(id, kv, window_max(self.windowed))?;
        queue.head = queue.next().map(|(head, _)| head);
        if let Some(head) = queue.head {
            tenant.heads.insert((head, id));
        }
        self.queues.insert(id, queue);
        Ok(())
    }

    /// Writes the counters and the shard's own row to the tables, so that the tables are complete.
    pub fn write_back<K: Kv>(&mut self, kv: &mut K) {
        for id in std::mem::take(&mut self.dirty) {
            if let Some(queue) = self.queues.get_mut(&id) {
                queue.dirty = false;
                kv.put(Table::Queue, keys::queue(id), queue.row.encode());
            }
        }
        kv.put(Table::Meta, keys::META, self.meta.encode());
    }

    /// Upgrades rows that an older version wrote. Call it after [`State::load`] and before applying anything. After a
    /// crash, the next start repeats the upgrade, so it need not be logged.
    pub fn upgrade<K: Kv>(&mut self, kv: &mut K) -> Result<(), KvError> {
        if self.outdated.is_empty() {
            return Ok(());
        }
        let mut keys = Vec::new();
        for_each(kv, Table::Outbox, 0, Key::MAX, |key, value| {
            let failed = OutboxRow::decode(key, value)?.next_at.is_none();
            let queue = TaskRow::load(kv, key)?.map(|row| row.queue);
            let queue = queue.filter(|queue| self.outdated.contains(queue));
            keys.extend(queue.map(|queue| keys::callback(queue, failed, keys::seq_of(key))));
            Ok(())
        })?;
        self.outdated.clear();
        keys.into_iter().for_each(|key| kv.put(Table::Index, key, Bytes::new()));
        Ok(())
    }

    /// Whether a sweep would find anything to do.
    pub fn is_due(&self, at: Moment) -> bool {
        self.next_deadline().is_some_and(|deadline| deadline <= at.now)
            || self.next_run_at().is_some_and(|date| date <= at.wall)
            || self.timers.may_be_early(at.wall)
    }

    /// The wall-clock time at which the next task reaches its `runAt`.
    pub fn next_run_at(&self) -> Option<Millis> {
        self.timers.next(TimerKind::RunAt)
    }

    /// When the next sweep is due, by engine time.
    pub fn next_deadline(&self) -> Option<Millis> {
        let lease = self.leases.first().map(|(until, _)| until.saturating_add(1));
        [TimerKind::Delayed, TimerKind::Retention, TimerKind::Idempotency, TimerKind::Record]
            .into_iter()
            .filter_map(|kind| self.timers.next(kind))
            .chain(lease)
            .min()
    }

    /// When the next result callback is due, by engine time.
    pub fn next_callback(&self) -> Option<Millis> {
        self.timers.next(TimerKind::Callback)
    }

    /// Number of result callbacks kept.
    pub fn callbacks(&self) -> CallbackCounts {
        self.callbacks
    }

    /// Engine time of the latest command that changed something. Never runs backwards.
    pub fn now(&self) -> Millis {
        self.meta.now
    }

    /// Moment of the latest command that changed something, on both clocks.
    pub fn moment(&self) -> Moment {
        self.meta.moment()
    }

    /// The settings in force.
    pub fn settings(&self) -> &Settings {
        &self.meta.settings
    }

    /// The queue of a command, if it exists.
    pub fn queue_id(&self, tenant: &str, command: &str) -> Option<QueueId> {
        self.tenants.get(tenant)?.queues.get(&*queue_name(command)).copied()
    }

    /// The row of a queue, as of the latest command.
    pub fn queue_row(&self, id: QueueId) -> Option<&QueueRow> {
        self.queues.get(&id).map(|queue| &queue.row)
    }

    /// The number of the oldest task among the first tasks of each priority.
    pub fn oldest_front(&self, id: QueueId) -> Option<Seq> {
        self.queues.get(&id).and_then(|queue| queue.fronts().min())
    }

    /// Whether a claim would find a task in the queue.
    pub fn is_claimable(&self, id: QueueId) -> bool {
        self.queues.get(&id).is_some_and(|queue| queue.head.is_some())
    }

    /// Whether a claim of any of the tenant's queues would find a task.
    pub fn has_claimable(&self, tenant: &str) -> bool {
        self.tenants.get(tenant).is_some_and(|tenant| !tenant.heads.is_empty())
    }

    /// Number of tasks that could be claimed from the queue now.
    pub fn claimable(&self, id: QueueId) -> u64 {
        let Some(queue) = self.queues.get(&id).filter(|queue| queue.head.is_some()) else {
            return 0;
        };
        let counts = &queue.row.counts;
        let max = queue.row.topic.as_ref().map_or(0, |topic| topic.policy.max_consumers);
        match u64::from(max) {
            0 => counts.ready(),
            max => counts.ready().min(max.saturating_sub(counts.in_progress)),
        }
    }

    /// Totals over a tenant's queues.
    pub fn usage(&self, tenant: &str) -> Usage {
        self.tenants.get(tenant).map_or_else(Usage::default, |tenant| tenant.usage.current())
    }

    /// A tenant's queues, ordered by name.
    pub fn queues_of(&self, tenant: &str) -> impl Iterator<Item = (QueueId, &QueueRow)> {
        let ids = self.tenants.get(tenant).into_iter().flat_map(|tenant| tenant.queues.values());
        ids.filter_map(|id| Some((*id, self.queue_row(*id)?)))
    }

    /// A tenant's queues from a name on, ordered by name.
    pub(crate) fn queues_from<'s>(
        &'s self,
        tenant: &str,
        start: Bound<&'s str>,
    ) -> impl Iterator<Item = (&'s Arc<str>, QueueId)> + 's {
        let tenant = self.tenants.get(tenant).into_iter();
        tenant
            .flat_map(move |tenant| tenant.queues.range::<str, _>((start, Bound::Unbounded)))
            .map(|(name, id)| (name, *id))
    }

    /// All queues, ordered by number.
    pub fn queues(&self) -> impl Iterator<Item = (QueueId, &QueueRow)> {
        self.queues.iter().map(|(id, queue)| (*id, &queue.row))
    }

    /// Names of the tenants that have queues, sorted.
    pub fn tenants(&self) -> impl Iterator<Item = &Arc<str>> {
        self.tenants.keys()
    }

    /// Number of leases, including those that are over but not swept yet.
    pub fn leases(&self) -> usize {
        self.leases.len()
    }

    /// The shard's own row.
    pub fn meta(&self) -> &MetaRow {
        &self.meta
    }
}

/// Bytes held by a queue's finished tasks. Only needed for rows of version 1, which do not count them: once, at the
/// first start of a newer version.
fn finished_bytes<K: KvRead + ?Sized>(kv: &K, id: QueueId) -> Result<u64, KvError> {
    let mut sum = 0;
    for place in [Place::Completed, Place::Failed, Place::Dead] {
        let (from, to) = (keys::index(id, place, Seq(0)), keys::index(id, place, Seq::MAX));
        for_each(kv, Table::Index, from, to, |key, _| {
            let row = TaskRow::load(kv, keys::task(keys::seq_of(key)))?;
            sum += row.map_or(0, |row| row.stored_bytes());
            Ok(())
        })?;
    }
    Ok(sum)
}

/// Number of a queue's cancelled tasks. Only needed for rows before version 4, which count them as failed: once, at
/// the first start of a newer version.
fn cancelled<K: KvRead + ?Sized>(kv: &K, id: QueueId) -> Result<u64, KvError> {
    let mut sum = 0;
    let list = |seq| keys::index(id, Place::Failed, seq);
    for_each(kv, Table::Index, list(Seq(0)), list(Seq::MAX), |key, _| {
        let row = TaskRow::load(kv, keys::task(keys::seq_of(key)))?;
        sum += u64::from(row.is_some_and(|row| row.is_cancelled()));
        Ok(())
    })?;
    Ok(sum)
}

/// The size limit of a window, given the number of entries in all windows.
pub(crate) fn window_max(windowed: usize) -> usize {
    if windowed < crate::limits::WINDOW_TOTAL {
        crate::limits::WINDOW_MAX
    } else {
        crate::limits::WINDOW_MIN
    }
}
