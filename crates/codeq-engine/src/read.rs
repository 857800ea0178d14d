//! Reads: from a shard's rows, answered once what they show is durable.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use codeq_core::command::Millis;
use codeq_core::history::History;
use codeq_core::id::{ShardId, TaskId};
use codeq_core::keys::Seq;
use codeq_core::kv::KvError;
use codeq_core::limits::{LIST_BYTES_MAX, LIST_MAX, LIST_SCAN_MAX, QUEUES_SLICE_MAX};
use codeq_core::read::{
    DueCallback, ListQuery, Page, PendingCallback, QueueStats, Reader, Standing,
};
use codeq_core::state::State;
use codeq_core::usage::Usage;
use codeq_core::view::{ResultRecord, Task};
use codeq_store::Store;

use crate::engine::Engine;
use crate::error::EngineError;
use crate::group::Batch;

/// Reads a shard's rows.
pub type ShardReader<'a> = Reader<'a, Store>;

/// A page of a list over all shards.
#[derive(Debug, Clone, Default)]
pub struct ListPage {
    /// The tasks, newest first.
    pub items: Vec<Task>,
    /// Where each shard continues; empty on the last page.
    pub next: Vec<Seq>,
}

/// Something read from a shard, to be shown once its batch is durable.
#[derive(Debug)]
pub struct NotYetDurable<T> {
    value: T,
    batch: Batch,
}

impl Engine {
    /// The task with this id, if the tenant owns it.
    pub async fn task(&self, tenant: &str, id: TaskId) -> Result<Option<Task>, EngineError> {
        self.read(id.shard(self.shards()), |reader| reader.task(tenant, id)).await
    }

    /// A task as of the latest applied command, durable or not: for traces, not for clients.
    pub fn task_now(&self, tenant: &str, id: TaskId) -> Option<Task> {
        self.read_applied(id.shard(self.shards()), |reader| reader.task(tenant, id)).ok()?.value
    }

    /// A task, with its result once it is finished.
    pub async fn result(
        &self,
        tenant: &str,
        id: TaskId,
    ) -> Result<Option<(Task, Option<ResultRecord>)>, EngineError> {
        self.read(id.shard(self.shards()), |reader| reader.result(tenant, id)).await
    }

    /// Waits until a task of a tenant is finished or the engine stops. Start waiting before you look at the task, so
    /// that you do not miss it if it finishes in between. Dropping the future ends the wait.
    pub async fn finished(&self, tenant: &Arc<str>, id: TaskId) -> Result<(), EngineError> {
        let shard = usize::from(id.shard(self.shards()));
        let channels = self.status.shards.get(shard).ok_or(EngineError::Closed)?;
        channels.waiters.wait(tenant, id.seq())?.woken().await;
        Ok(())
    }

    /// A task's history, if the tenant owns the task.
    pub async fn history(&self, tenant: &str, id: TaskId) -> Result<Option<History>, EngineError> {
        self.read(id.shard(self.shards()), |reader| reader.history(tenant, id)).await
    }

    /// A task and what decides when it is claimed, if the tenant owns it.
    pub async fn standing(
        &self,
        tenant: &str,
        id: TaskId,
    ) -> Result<Option<Standing>, EngineError> {
        self.read(id.shard(self.shards()), |reader| reader.standing(tenant, id)).await
    }

    /// A page of a list. `below` is the `next` of the previous page, or empty.
    pub async fn list(&self, query: &ListQuery, below: &[Seq]) -> Result<ListPage, EngineError> {
        let mut listing = Listing::new(query.clone(), below, self.shards());
        while let Some((shard, query)) = listing.next_slice() {
            listing.add(shard, self.read(shard, |reader| reader.list(&query)).await?);
        }
        Ok(listing.page())
    }

    /// Statistics of a queue, summed over the shards.
    pub async fn queue(
        &self,
        tenant: &str,
        command: &str,
    ) -> Result<Option<QueueStats>, EngineError> {
        let mut sum: Option<QueueStats> = None;
        for shard in ShardId::all(self.shards()) {
            if let Some(stats) = self.read(shard, |reader| reader.queue(tenant, command)).await? {
                match &mut sum {
                    Some(sum) => add(sum, &stats),
                    None => sum = Some(stats),
                }
            }
        }
        Ok(sum)
    }

    /// Statistics of all queues of a tenant, summed over the shards and ordered by name.
    pub async fn queues(&self, tenant: &str) -> Result<Vec<QueueStats>, EngineError> {
        let mut sums = QueueSums::default();
        for shard in ShardId::all(self.shards()) {
            let mut after = None;
            loop {
                let look = self.read(shard, |reader| reader.queues(tenant, after.as_deref()));
                after = sums.add(look.await?);
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(sums.all())
    }

    /// Number of tasks that could be claimed from a queue now, over all shards, durable or not: a hint.
    pub fn claimable(&self, tenant: &str, command: &str) -> u64 {
        let count = |state: &State| state.queue_id(tenant, command).map(|id| state.claimable(id));
        ShardId::all(self.shards()).filter_map(|shard| self.peek(shard, count)?).sum()
    }

    /// What a tenant uses of its quotas, over all shards, durable or not.
    pub fn usage(&self, tenant: &str) -> Usage {
        let mut sum = Usage::default();
        for usage in ShardId::all(self.shards())
            .filter_map(|shard| self.peek(shard, |state| state.usage(tenant)))
        {
            sum.tasks += usage.tasks;
            sum.bytes += usage.bytes;
            sum.stored_bytes += usage.stored_bytes;
        }
        sum
    }

    /// The tenants that have queues, sorted.
    pub async fn tenants(&self) -> Result<Vec<Arc<str>>, EngineError> {
        let mut tenants = std::collections::BTreeSet::new();
        for shard in ShardId::all(self.shards()) {
            let names = |reader: &ShardReader<'_>| Ok(reader.state.tenants().cloned().collect());
            let names: Vec<Arc<str>> = self.read(shard, names).await?;
            tenants.extend(names);
        }
        Ok(tenants.into_iter().collect())
    }

    /// At most `limit` pending callbacks of a shard in order of due time, starting at a time and a task number.
    pub async fn callbacks_due(
        &self,
        shard: ShardId,
        from: (Millis, Seq),
        limit: usize,
    ) -> Result<Vec<DueCallback>, EngineError> {
        self.read(shard, |reader| reader.callbacks_due(from, limit)).await
    }

    /// The callback of a task, with everything needed to deliver it.
    pub async fn callback(
        &self,
        shard: ShardId,
        seq: Seq,
    ) -> Result<Option<PendingCallback>, EngineError> {
        self.read(shard, |reader| reader.callback(seq)).await
    }

    /// Reads from one shard as of the latest applied command, and waits until that is durable.
    pub async fn read<T>(
        &self,
        shard: ShardId,
        look: impl FnOnce(&ShardReader<'_>) -> Result<T, KvError>,
    ) -> Result<T, EngineError> {
        self.catch_up().await?;
        let applied = self.read_applied(shard, look)?;
        self.once_durable(shard, applied).await
    }

    /// Completes once [`Engine::read_applied`] sees everything that was acknowledged before this call: at once, unless the
    /// engine is a member of a cluster.
    pub async fn catch_up(&self) -> Result<(), EngineError> {
        match self.driver.catch_up() {
            Some(catching_up) => catching_up.await,
            None => Ok(()),
        }
    }

    /// Reads from one shard as of the latest applied command. [`Engine::once_durable`] waits until the result may be shown
    /// to anybody. The shard waits meanwhile, so be quick.
    pub fn read_applied<T>(
        &self,
        shard: ShardId,
        look: impl FnOnce(&ShardReader<'_>) -> Result<T, KvError>,
    ) -> Result<NotYetDurable<T>, EngineError> {
        let handle = self.shards.get(usize::from(shard)).ok_or(EngineError::Closed)?;
        let data = handle.data.read();
        let reader = Reader { state: &data.state, kv: &data.store };
        let value = look(&reader);
        let value = value.map_err(|error| EngineError::Failed(error.to_string().into()))?;
        Ok(NotYetDurable { value, batch: data.batch })
    }

    /// Waits until what was read from a shard is durable.
    pub async fn once_durable<T>(
        &self,
        shard: ShardId,
        applied: NotYetDurable<T>,
    ) -> Result<T, EngineError> {
        let handle = self.shards.get(usize::from(shard)).ok_or(EngineError::Closed)?;
        let mut durable = handle.durable.clone();
        if *durable.borrow() < applied.batch {
            let reached = durable.wait_for(|reached| *reached >= applied.batch).await;
            reached.map_err(|_| self.status.error())?;
        }
        if let Some(error) = self.failure() {
            return Err(error);
        }
        Ok(applied.value)
    }

    /// Reads a shard's state as of the latest applied command, durable or not, for gauges. The shard waits meanwhile,
    /// so be quick. `None` if there is no such shard.
    pub fn peek<T>(&self, shard: ShardId, look: impl FnOnce(&State) -> T) -> Option<T> {
        let handle = self.shards.get(usize::from(shard))?;
        Some(look(&handle.data.read().state))
    }

    /// Completes when the engine has stopped by itself, with the reason.
    pub async fn failed(&self) -> EngineError {
        // The engine owns the sender, so it exists for as long as this borrows the engine.
        let _ = self.status.failure.subscribe().wait_for(|failed| *failed).await;
        self.status.error()
    }

    /// Time until `moment`, by engine time.
    pub fn until(&self, moment: Millis) -> Duration {
        Duration::from_millis(moment.saturating_sub(self.now().now))
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
    to.cancelled += from.cancelled;
    to.dead += from.dead;
    to.live_bytes += from.live_bytes;
    to.stored_bytes += from.stored_bytes;
    sum.paused |= stats.paused;
    sum.oldest_ready_created_at =
        sum.oldest_ready_created_at.into_iter().chain(stats.oldest_ready_created_at).min();
    if let (Some(to), Some(from)) = (&mut sum.topic, &stats.topic) {
        to.policy.max_consumers += from.policy.max_consumers;
    }
}

/// Sums the statistics of queues over the shards as they are read.
#[derive(Default)]
pub struct QueueSums(BTreeMap<Arc<str>, QueueStats>);

impl QueueSums {
    /// Adds a slice of a shard. Returns the name after which the shard continues; `None` if that was the last slice.
    pub fn add(&mut self, slice: Vec<QueueStats>) -> Option<Arc<str>> {
        let last = slice.last().filter(|_| slice.len() == QUEUES_SLICE_MAX);
        let next = last.map(|stats| Arc::clone(&stats.name));
        for stats in slice {
            match self.0.get_mut(&stats.name) {
                Some(sum) => add(sum, &stats),
                None => {
                    self.0.insert(stats.name.clone(), stats);
                }
            }
        }
        next
    }

    /// The sums, ordered by name.
    pub fn all(self) -> Vec<QueueStats> {
        self.0.into_values().collect()
    }
}

/// Builds a page of a list: says which slice to read next, and combines the slices.
///
/// The shards alternate. A page that ends early makes progress if it has looked into each of them, which
/// [`Listing::has_looked_everywhere`] tells.
pub struct Listing {
    query: ListQuery,
    /// Where each shard began.
    start: Vec<Seq>,
    /// What each shard has so far.
    pages: Vec<Page>,
    /// Shards that are not finished, the next one first.
    unfinished: VecDeque<ShardId>,
}

impl Listing {
    /// Starts where the previous page ended; `below` is its `next`, or empty.
    pub fn new(query: ListQuery, below: &[Seq], shards: u16) -> Listing {
        let first = query.below.unwrap_or(Seq::MAX);
        let start = |shard: ShardId| below.get(usize::from(shard)).copied().unwrap_or(first);
        let start: Vec<Seq> = ShardId::all(shards).map(start).collect();
        // A shard that was finished by the previous page starts at zero.
        let next = |at: &Seq| Some(*at).filter(|at| at.0 > 0);
        let pages = start.iter().map(|at| Page { next: next(at), ..Page::default() }).collect();
        let unfinished = ShardId::all(shards)
            .zip(&start)
            .filter(|(_, at)| at.0 > 0)
            .map(|(shard, _)| shard)
            .collect();
        Listing { query, start, pages, unfinished }
    }

    /// The next slice to read: a shard and a query.
    pub fn next_slice(&mut self) -> Option<(ShardId, ListQuery)> {
        let shard = self.unfinished.pop_front()?;
        let page = self.pages.get(usize::from(shard))?;
        let limit = self.query.limit.saturating_sub(page.items.len());
        let bytes = Some(self.share().saturating_sub(bytes_of(&page.items)));
        Some((shard, ListQuery { below: page.next, limit, bytes, ..self.query.clone() }))
    }

    /// Whether every shard has been read at least once, or was finished by an earlier page.
    pub fn has_looked_everywhere(&self) -> bool {
        let looked = |(page, start): (&Page, &Seq)| page.next != Some(*start);
        self.pages.iter().zip(&self.start).all(looked)
    }

    /// Bytes that a shard may contribute: in total no more than fits on the page, plus one task each.
    fn share(&self) -> usize {
        LIST_BYTES_MAX / self.pages.len().max(1)
    }

    /// Adds the requested slice.
    pub fn add(&mut self, shard: ShardId, slice: Page) {
        let Some(page) = self.pages.get_mut(usize::from(shard)) else {
            return;
        };
        page.items.extend(slice.items);
        page.next = slice.next;
        page.looked += slice.looked;
        page.full = slice.full;
        let wanted = self.query.limit.clamp(1, LIST_MAX);
        let done = page.full || page.items.len() >= wanted || page.looked >= LIST_SCAN_MAX;
        if page.next.is_some() && !done {
            self.unfinished.push_back(shard);
        }
    }

    /// The page, newest first over all shards. A shard continues at its first task that did not fit onto the page.
    /// Within a shard the order is that of its slices, whatever the tasks' dates: the clock may have been set back. The
    /// page ends where a shard has more that was not read, so that the next page has nothing newer.
    pub fn page(self) -> ListPage {
        let mut next = self.start;
        let mut more = false;
        // Each with the newest task last.
        let mut left: Vec<Vec<Task>> = Vec::new();
        for (shard, page) in self.pages.into_iter().enumerate() {
            if let Some(slot) = next.get_mut(shard) {
                *slot = page.next.unwrap_or_default();
                more |= page.next.is_some();
            }
            left.push(page.items.into_iter().rev().collect());
        }
        let (mut items, mut bytes) = (Vec::new(), 0);
        // A shard that has nothing left but was not read to its end may have newer tasks than the others.
        let unknown = |(tasks, unread): (&Vec<Task>, &Seq)| tasks.is_empty() && unread.0 > 0;
        while items.len() < self.query.limit.max(1) && !left.iter().zip(&next).any(unknown) {
            let age = |tasks: &Vec<Task>| tasks.last().map(|task| (task.created_at, task.id));
            let Some(tasks) = left.iter_mut().max_by_key(|tasks| age(tasks)) else { break };
            bytes += tasks.last().map_or(0, Task::bytes);
            if bytes > LIST_BYTES_MAX && !items.is_empty() {
                break;
            }
            let Some(task) = tasks.pop() else { break };
            items.push(task);
        }
        for (slot, tasks) in next.iter_mut().zip(&left) {
            if let Some(task) = tasks.last() {
                more = true;
                *slot = task.id.seq().next();
            }
        }
        ListPage { items, next: if more { next } else { Vec::new() } }
    }
}

fn bytes_of(tasks: &[Task]) -> usize {
    tasks.iter().map(Task::bytes).sum()
}
