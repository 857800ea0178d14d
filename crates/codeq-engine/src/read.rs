//! Reads: from the shard's rows, answered when what they show is durable.

use std::sync::Arc;
use std::time::Duration;

use codeq_core::command::Millis;
use codeq_core::history::History;
use codeq_core::id::TaskId;
use codeq_core::kv::KvError;
use codeq_core::limits::LIST_BYTES_MAX;
use codeq_core::read::{DueCallback, ListQuery, PendingCallback, QueueStats, Reader};
use codeq_core::state::State;
use codeq_core::view::{ResultRecord, Task};
use codeq_store::Store;

use crate::engine::Engine;
use crate::error::EngineError;

/// A page of a list over all shards.
#[derive(Debug, Clone, Default)]
pub struct ListPage {
    /// The tasks, newest first.
    pub items: Vec<Task>,
    /// Where each shard goes on; empty on the last page.
    pub next: Vec<u64>,
}

/// What a tenant has in the queues: tasks that are not finished.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// How many.
    pub tasks: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Engine {
    /// A task.
    pub async fn task(&self, tenant: &str, id: TaskId) -> Result<Option<Task>, EngineError> {
        self.read(id.shard(self.shards()), |reader| reader.task(tenant, id)).await
    }

    /// A task and its result, if it has one.
    pub async fn result(
        &self,
        tenant: &str,
        id: TaskId,
    ) -> Result<Option<(Task, Option<ResultRecord>)>, EngineError> {
        self.read(id.shard(self.shards()), |reader| reader.result(tenant, id)).await
    }

    /// Waits until a task is finished or the engine stops. Register before looking: a task that finishes in
    /// between is then not missed. Dropping the future ends the wait.
    pub async fn finished(&self, id: TaskId) -> Result<(), EngineError> {
        let shard = usize::from(id.shard(self.shards()));
        let lane = self.pipeline.lanes.get(shard).ok_or(EngineError::Closed)?;
        let woken = lane.waiters.wait(id.seq())?;
        // The sender is dropped, not used: both ways of ending are a wake-up.
        let _ = woken.await;
        Ok(())
    }

    /// A task's history.
    pub async fn history(&self, tenant: &str, id: TaskId) -> Result<Option<History>, EngineError> {
        self.read(id.shard(self.shards()), |reader| reader.history(tenant, id)).await
    }

    /// A page of a list. `below` is the `next` of the page before, or empty.
    pub async fn list(&self, query: &ListQuery, below: &[u64]) -> Result<ListPage, EngineError> {
        let mut pages = Vec::new();
        // Together they read no more than fits on the page, beside one task each.
        let bytes = Some(LIST_BYTES_MAX / usize::from(self.shards().max(1)));
        for shard in 0..self.shards() {
            let below = below.get(usize::from(shard)).copied();
            let query = ListQuery { below: below.or(query.below), bytes, ..query.clone() };
            pages.push(self.read(shard, |reader| reader.list(&query)).await?);
        }
        Ok(merge(pages, below, query.limit))
    }

    /// The numbers of a queue, summed over the shards.
    pub async fn queue(
        &self,
        tenant: &str,
        command: &str,
    ) -> Result<Option<QueueStats>, EngineError> {
        let mut sum: Option<QueueStats> = None;
        for shard in 0..self.shards() {
            if let Some(stats) = self.read(shard, |reader| reader.queue(tenant, command)).await? {
                match &mut sum {
                    Some(sum) => add(sum, &stats),
                    None => sum = Some(stats),
                }
            }
        }
        Ok(sum)
    }

    /// The numbers of all queues of a tenant, summed over the shards, in the order of their names.
    pub async fn queues(&self, tenant: &str) -> Result<Vec<QueueStats>, EngineError> {
        let mut sums: std::collections::BTreeMap<_, QueueStats> = Default::default();
        for shard in 0..self.shards() {
            for stats in self.read(shard, |reader| reader.queues(tenant)).await? {
                match sums.get_mut(&stats.name) {
                    Some(sum) => add(sum, &stats),
                    None => {
                        sums.insert(stats.name.clone(), stats);
                    }
                }
            }
        }
        Ok(sums.into_values().collect())
    }

    /// How many tasks of a queue could be claimed now, over all shards.
    pub async fn claimable(&self, tenant: &str, command: &str) -> Result<u64, EngineError> {
        let mut sum = 0;
        for shard in 0..self.shards() {
            let count = |reader: &Reader<'_, Store>| {
                let id = reader.state.queue_id(tenant, command);
                Ok(id.map_or(0, |id| reader.state.claimable(id)))
            };
            sum += self.read(shard, count).await?;
        }
        Ok(sum)
    }

    /// What a tenant has in the queues, over all shards.
    pub async fn held(&self, tenant: &str) -> Result<Held, EngineError> {
        let mut held = Held::default();
        for shard in 0..self.shards() {
            let sum = |reader: &Reader<'_, Store>| {
                let counts = reader.state.queues_of(tenant).map(|(_, queue)| queue.counts);
                Ok(counts.fold((0, 0), |(tasks, bytes), counts| {
                    let live = counts.ready() + counts.delayed + counts.in_progress;
                    (tasks + live, bytes + counts.live_bytes)
                }))
            };
            let (tasks, bytes) = self.read(shard, sum).await?;
            held.tasks += tasks;
            held.bytes += bytes;
        }
        Ok(held)
    }

    /// The tenants that have queues, in order.
    pub async fn tenants(&self) -> Result<Vec<Arc<str>>, EngineError> {
        let mut tenants = std::collections::BTreeSet::new();
        for shard in 0..self.shards() {
            let names = |reader: &Reader<'_, Store>| Ok(reader.state.tenants().cloned().collect());
            let names: Vec<Arc<str>> = self.read(shard, names).await?;
            tenants.extend(names);
        }
        Ok(tenants.into_iter().collect())
    }

    /// At most `limit` callbacks of a shard that are to be delivered, in the order of their moments, from a
    /// moment and a task's number on.
    pub async fn callbacks_due(
        &self,
        shard: u16,
        from: (Millis, u64),
        limit: usize,
    ) -> Result<Vec<DueCallback>, EngineError> {
        self.read(shard, |reader| reader.callbacks_due(from, limit)).await
    }

    /// The callback of a task, with all that it tells.
    pub async fn callback(
        &self,
        shard: u16,
        seq: u64,
    ) -> Result<Option<PendingCallback>, EngineError> {
        self.read(shard, |reader| reader.callback(seq)).await
    }

    /// Reads from one shard what is true after the latest applied command, and waits until that is durable.
    pub async fn read<T>(
        &self,
        shard: u16,
        look: impl FnOnce(&Reader<'_, Store>) -> Result<T, KvError>,
    ) -> Result<T, EngineError> {
        let handle = self.shards.get(usize::from(shard)).ok_or(EngineError::Closed)?;
        let (value, batch) = {
            let data = handle.data.read();
            let reader = Reader { state: &data.state, kv: &data.store };
            let value = look(&reader);
            (value, data.batch)
        };
        let value = value.map_err(|error| EngineError::Failed(error.to_string().into()))?;
        let mut durable = handle.durable.clone();
        if *durable.borrow() < batch {
            let reached = durable.wait_for(|reached| *reached >= batch).await;
            reached.map_err(|_| self.pipeline.error())?;
        }
        if let Some(error) = self.failure() {
            return Err(error);
        }
        Ok(value)
    }

    /// Looks at a shard's state as of the latest applied command, durable or not: for gauges. The shard
    /// stands still meanwhile, so look briefly. None if there is no such shard.
    pub fn peek<T>(&self, shard: u16, look: impl FnOnce(&State) -> T) -> Option<T> {
        let handle = self.shards.get(usize::from(shard))?;
        Some(look(&handle.data.read().state))
    }

    /// Returns when the engine has stopped by itself, with the reason.
    pub async fn failed(&self) -> EngineError {
        // The sender is the engine's own: it is there as long as somebody asks.
        let _ = self.pipeline.failure.subscribe().wait_for(|failed| *failed).await;
        self.pipeline.error()
    }

    /// How long until `moment`, by the wall clock.
    pub fn until(&self, moment: Millis) -> Duration {
        Duration::from_millis(moment.saturating_sub(self.wall()))
    }
}

fn add(sum: &mut QueueStats, stats: &QueueStats) {
    let (to, from) = (&mut sum.counts, &stats.counts);
    for (to, from) in to.pending.iter_mut().zip(from.pending) {
        *to += from;
    }
    to.delayed += from.delayed;
    to.in_progress += from.in_progress;
    to.completed += from.completed;
    to.failed += from.failed;
    to.dead += from.dead;
    to.live_bytes += from.live_bytes;
    sum.paused |= stats.paused;
    sum.oldest_ready_at = sum.oldest_ready_at.into_iter().chain(stats.oldest_ready_at).min();
    if let (Some(to), Some(from)) = (&mut sum.topic, &stats.topic) {
        to.policy.max_consumers += from.policy.max_consumers;
    }
}

/// Newest first over all shards; a shard whose tasks did not make it onto the page goes on where it began. The page
/// ends where the first shard has more that it did not read, so that the next one holds nothing newer, and where it
/// has enough bytes.
fn merge(pages: Vec<codeq_core::read::Page>, below: &[u64], limit: usize) -> ListPage {
    let start = |shard: usize| below.get(shard).copied().unwrap_or(u64::MAX);
    let mut next: Vec<u64> = (0..pages.len()).map(start).collect();
    let mut more = false;
    let mut items = Vec::new();
    let age = |task: &Task| (task.created_at, task.id);
    let mut oldest = None;
    for (shard, page) in pages.into_iter().enumerate() {
        if let Some(slot) = next.get_mut(shard) {
            *slot = page.next.unwrap_or(0);
            more |= page.next.is_some();
        }
        let last = page.items.last().filter(|_| page.next.is_some());
        oldest = oldest.max(last.map(age));
        items.extend(page.items.into_iter().map(|task| (shard, task)));
    }
    items.sort_by_key(|(_, task)| std::cmp::Reverse(age(task)));
    let mut bytes = 0;
    let fits = |(_, task): &&(usize, Task)| {
        bytes += task.bytes();
        bytes <= LIST_BYTES_MAX && oldest.is_none_or(|oldest| age(task) >= oldest)
    };
    let fitting = items.iter().take_while(fits).count();
    let cut = items.split_off(items.len().min(limit.min(fitting).max(1)));
    for (shard, task) in cut.iter().rev() {
        more = true;
        if let Some(slot) = next.get_mut(*shard) {
            *slot = task.id.seq().saturating_add(1);
        }
    }
    let items = items.into_iter().map(|(_, task)| task).collect();
    ListPage { items, next: if more { next } else { Vec::new() } }
}
