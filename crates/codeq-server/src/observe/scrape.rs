//! Gathers values at scrape time: engine statistics, queue depths, sockets and process.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use codeq_core::command::Millis;
use codeq_core::id::ShardId;
use codeq_core::keys::Seq;
use codeq_core::rows::{Counts, QueueRow};
use codeq_core::state::State;
use codeq_engine::Engine;
use codeq_net::NetStats;
use prometheus_client::encoding::{
    EncodeCounterValue, EncodeGaugeValue, EncodeMetric, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use super::commands::{COMMANDS_MAX, COMMANDS_PER_TENANT_MAX, Commands, OTHER};
use super::disk::Disk;
use super::log_writer;
use super::process::Process;
use crate::limits::budget::{Budget, KINDS};

/// Queues read under one lock before the lock is released, since the shard waits meanwhile. The
/// current tenant is always finished.
const QUEUES_PER_LOCK: usize = 1_000;

/// Registers the current values of engine, sockets, memory budget and process.
pub fn register(registry: &mut Registry, engine: &Engine, net: &NetStats, budget: &Budget) {
    of_engine(registry, engine);
    of_net(registry, net);
    of_budget(registry, budget);
    of_process(registry, Process::now());
}

fn of_engine(registry: &mut Registry, engine: &Engine) {
    let stats = engine.stats();
    let count = ConstCounter::new;
    let gauge = ConstGauge::<u64>::new;
    registry.register("log_syncs", "Syncs of the log", count(stats.syncs));
    let help = "Bytes of records appended to the log";
    registry.register_with_unit("log", help, Unit::Bytes, count(stats.log_bytes));
    let help = "Bytes of the stores on disk";
    registry.register_with_unit("store", help, Unit::Bytes, gauge(stats.store_bytes));
    let help = "Bytes of all rows at the last checkpoints";
    registry.register_with_unit("store_live", help, Unit::Bytes, gauge(stats.live_bytes));
    let help = "Bytes of rows verified in the background";
    registry.register_with_unit("store_scrubbed", help, Unit::Bytes, count(stats.scrubbed_bytes));
    let help = "Memory of rows not yet written by a checkpoint";
    let memtable = gauge(stats.memtable_bytes as u64);
    registry.register_with_unit("memtable", help, Unit::Bytes, memtable);
    let help = "1 while writes are refused, as on a full disk, otherwise 0";
    let refused = gauge(engine.refusing().is_some().into());
    registry.register("writes_refused", help, refused);
    let queued = gauge(stats.queued as u64);
    registry.register("engine_queued", "Requests waiting for the engine", queued);
    let waiting = gauge(engine.waiting_claims() as u64);
    registry.register(
        "claims_waiting",
        "Claims waiting for a task; one that waits in several shards counts in each",
        waiting,
    );
    let waiting = gauge(engine.result_waiters() as u64);
    registry.register("result_waiters", "Clients waiting for a task to finish", waiting);
    let (mut pending, mut failed) = (0, 0);
    let shards = ShardId::all(engine.shards());
    for counts in shards.filter_map(|shard| engine.peek(shard, State::callbacks)) {
        pending += counts.pending;
        failed += counts.failed;
    }
    let rows = [("pending", pending), ("failed", failed)];
    let rows = rows.map(|(state, count)| ([("state", state.into())], count));
    let help = "Result callbacks that are pending or have failed for good";
    registry.register("webhook_outbox", help, Series(MetricType::Gauge, rows.into()));
}

/// Registers size and free space of the data directory's filesystem.
pub fn of_disk(registry: &mut Registry, disk: Disk) {
    let gauge = ConstGauge::<u64>::new;
    let help = "Size of the filesystem that holds the data directory";
    registry.register_with_unit("disk_size", help, Unit::Bytes, gauge(disk.size_bytes));
    let help = "Free space on the filesystem that holds the data directory";
    registry.register_with_unit("disk_free", help, Unit::Bytes, gauge(disk.free_bytes));
}

fn of_net(registry: &mut Registry, net: &NetStats) {
    let open = ConstGauge::<u64>::new(net.open.load(Ordering::Relaxed) as u64);
    registry.register("http_connections", "Open connections", open);
    let counters = [
        ("http_connections_accepted", "Connections accepted", &net.accepted),
        (
            "http_connections_refused",
            "Connections refused because the limit was reached",
            &net.refused,
        ),
        ("http_handshake_failures", "TLS handshakes that failed", &net.handshake_failures),
    ];
    for (name, help, counter) in counters {
        registry.register(name, help, ConstCounter::new(counter.load(Ordering::Relaxed)));
    }
}

fn of_budget(registry: &mut Registry, budget: &Budget) {
    let limit = ConstGauge::<u64>::new(budget.limit() as u64);
    let help = "Maximum bytes held for clients";
    registry.register_with_unit("held_limit", help, Unit::Bytes, limit);
    let held = KINDS.map(|(kind, name)| ([("kind", name.into())], budget.bytes(kind) as u64));
    let help = "Bytes held for clients";
    let held = Series(MetricType::Gauge, held.into());
    registry.register_with_unit("held", help, Unit::Bytes, held);
    let refused = KINDS.map(|(kind, name)| ([("kind", name.into())], budget.refused(kind)));
    let help = "Times the memory limit was reached";
    registry.register("held_refusals", help, Series(MetricType::Counter, refused.into()));
}

fn of_process(registry: &mut Registry, process: Process) {
    let lost = ConstCounter::new(log_writer::lost());
    registry.register("log_lines_lost", "Log lines lost because stderr was not read in time", lost);
    if let Some(bytes) = process.resident_bytes {
        let gauge = ConstGauge::<u64>::new(bytes);
        registry.register_with_unit("process_resident_memory", "Memory in use", Unit::Bytes, gauge);
    }
    if let Some(seconds) = process.cpu_seconds {
        let counter = ConstCounter::new(seconds);
        registry.register_with_unit("process_cpu", "CPU time used", Unit::Seconds, counter);
    }
    if let Some(fds) = process.open_fds {
        let gauge = ConstGauge::<u64>::new(fds);
        registry.register("process_open_fds", "Open files and sockets", gauge);
    }
}

/// The tasks of a command by place, over all tenants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Depth {
    ready: u64,
    delayed: u64,
    in_progress: u64,
    dead: u64,
    completed: u64,
    failed: u64,
    cancelled: u64,
    /// Creation time of the oldest ready task.
    oldest: Option<Millis>,
}

impl Depth {
    fn of(counts: &Counts) -> Depth {
        Depth {
            ready: counts.ready(),
            delayed: counts.delayed,
            in_progress: counts.in_progress,
            dead: counts.dead,
            completed: counts.completed,
            failed: counts.failed,
            cancelled: counts.cancelled,
            oldest: None,
        }
    }

    fn add(&mut self, more: Depth) {
        self.ready += more.ready;
        self.delayed += more.delayed;
        self.in_progress += more.in_progress;
        self.dead += more.dead;
        self.completed += more.completed;
        self.failed += more.failed;
        self.cancelled += more.cancelled;
        self.oldest = self.oldest.into_iter().chain(more.oldest).min();
    }
}

/// Queue depths by command. Commands without their own label value are summed up.
#[derive(Debug, Default)]
pub struct Depths {
    by_command: HashMap<Arc<str>, Depth>,
    other: Depth,
    /// Commands with a label value that are in some queue, each with one of its tenants.
    present: HashMap<Arc<str>, Arc<str>>,
    /// The number of label values that each tenant occupies: one with very many queues leaves room for others.
    tenants: HashMap<Arc<str>, usize>,
    /// The number of the oldest ready task in the current shard, by command; `None` stands for the
    /// other commands.
    fronts: HashMap<Option<Arc<str>>, Seq>,
}

impl Depths {
    /// Sums up the queues of all tenants and shards, with a bounded number of queues per lock.
    pub async fn gather(engine: &Engine, commands: &Commands) -> Depths {
        let mut depths = Depths { tenants: commands.tenants(), ..Depths::default() };
        depths.by_command.extend(commands.names().into_iter().map(|name| (name, Depth::default())));
        for shard in ShardId::all(engine.shards()) {
            let tenants: Vec<Arc<str>> =
                engine.peek(shard, |state| state.tenants().cloned().collect()).unwrap_or_default();
            let mut rest = tenants.as_slice();
            while !rest.is_empty() {
                let read = engine.peek(shard, |state| depths.add_tenants(state, rest));
                rest = rest.get(read.unwrap_or(rest.len())..).unwrap_or_default();
                tokio::task::yield_now().await;
            }
            depths.find_oldest(engine, shard).await;
        }
        depths.align_labels(commands);
        depths
    }

    /// Adds the queues of the first `tenants`. Returns how many tenants it read.
    fn add_tenants(&mut self, state: &State, tenants: &[Arc<str>]) -> usize {
        let mut seen = 0;
        for (at, tenant) in tenants.iter().enumerate() {
            if seen >= QUEUES_PER_LOCK {
                return at;
            }
            for (id, row) in state.queues_of(tenant) {
                seen += 1;
                self.add(row, state.oldest_front(id));
            }
        }
        tenants.len()
    }

    fn add(&mut self, row: &QueueRow, front: Option<Seq>) {
        if self.by_command.contains_key(&row.name) && !self.present.contains_key(&row.name) {
            self.present.insert(Arc::clone(&row.name), Arc::clone(&row.tenant));
        }
        let depth = Depth::of(&row.counts);
        // A queue without tasks does not use up a label value.
        if depth == Depth::default() {
            return;
        }
        let occupied = self.tenants.get(&row.tenant).copied().unwrap_or(0);
        let room = self.by_command.len() < COMMANDS_MAX && occupied < COMMANDS_PER_TENANT_MAX;
        let room = room && *row.name != *OTHER;
        let label = match self.by_command.get_mut(&row.name) {
            Some(sum) => {
                sum.add(depth);
                Some(Arc::clone(&row.name))
            }
            None if room => {
                self.tenants.insert(Arc::clone(&row.tenant), occupied + 1);
                self.by_command.insert(Arc::clone(&row.name), depth);
                self.present.insert(Arc::clone(&row.name), Arc::clone(&row.tenant));
                Some(Arc::clone(&row.name))
            }
            None => {
                self.other.add(depth);
                None
            }
        };
        if let Some(front) = front {
            let oldest = self.fronts.entry(label).or_insert(front);
            *oldest = front.min(*oldest);
        }
    }

    /// Looks up when the oldest tasks of a shard were created: one row per label value.
    async fn find_oldest(&mut self, engine: &Engine, shard: ShardId) {
        let fronts: Vec<_> = self.fronts.drain().collect();
        let made = engine.read(shard, |reader| {
            fronts.iter().map(|(_, seq)| reader.created_at(*seq)).collect::<Result<Vec<_>, _>>()
        });
        for ((label, _), oldest) in fronts.iter().zip(made.await.unwrap_or_default()) {
            let depth = match label {
                Some(name) => self.by_command.get_mut(name),
                None => Some(&mut self.other),
            };
            if let Some(depth) = depth {
                depth.add(Depth { oldest, ..Depth::default() });
            }
        }
    }

    /// Aligns the label values with those of the counters, which may have changed since.
    fn align_labels(&mut self, commands: &Commands) {
        // Make room first: drop commands that are in no queue.
        for name in commands.release(&self.present.keys().cloned().collect()) {
            self.by_command.remove(&name);
        }
        for name in commands.admit(self.present.iter()) {
            if let Some(depth) = self.by_command.remove(&name) {
                self.other.add(depth);
            }
        }
    }

    /// Registers the gauges, as of the wall-clock time `now`.
    pub fn register(self, registry: &mut Registry, now: Millis) {
        let mut depths: Vec<_> = self.by_command.into_iter().collect();
        if self.other != Depth::default() {
            depths.push((OTHER.into(), self.other));
        }
        depths.sort_by(|(one, _), (two, _)| one.cmp(two));
        if depths.is_empty() {
            return;
        }
        let places = depths.iter().flat_map(|(command, depth)| {
            let Depth { ready, delayed, in_progress, dead, .. } = *depth;
            let places = [("ready", ready), ("delayed", delayed), ("in_progress", in_progress)];
            places.into_iter().chain([("dlq", dead)]).map(move |(place, count)| {
                ([("command", Arc::clone(command)), ("queue", place.into())], count)
            })
        });
        let places = Series(MetricType::Gauge, places.collect());
        registry.register("queue_depth", "Tasks of a command, by place", places);
        let finished = depths.iter().flat_map(|(command, depth)| {
            let Depth { completed, failed, cancelled, dead, .. } = *depth;
            let states = [("completed", completed), ("failed", failed), ("cancelled", cancelled)];
            states.into_iter().chain([("dead", dead)]).map(move |(state, count)| {
                ([("command", Arc::clone(command)), ("state", state.into())], count)
            })
        });
        let finished = Series(MetricType::Gauge, finished.collect());
        let help = "Finished tasks of a command that are still stored, by how they ended";
        registry.register("queue_finished", help, finished);
        let labels = |command: &Arc<str>| [("command", Arc::clone(command))];
        let dead = depths.iter().map(|(command, depth)| (labels(command), depth.dead));
        let dead = Series(MetricType::Gauge, dead.collect());
        registry.register("dlq_depth", "Dead letters of a command", dead);
        let ages = depths.iter().map(|(command, depth)| {
            let age = depth.oldest.map_or(0, |oldest| now.saturating_sub(oldest));
            (labels(command), age as f64 / 1_000.0)
        });
        let ages = Series(MetricType::Gauge, ages.collect());
        let help = "Age of the oldest ready task of a command, or 0";
        registry.register_with_unit("queue_oldest_ready", help, Unit::Seconds, ages);
    }
}

type Labels<const N: usize> = [(&'static str, Arc<str>); N];

/// A metric whose rows have labels.
#[derive(Debug)]
struct Series<V, const N: usize>(MetricType, Vec<(Labels<N>, V)>);

impl<V, const N: usize> EncodeMetric for Series<V, N>
where
    V: EncodeGaugeValue + EncodeCounterValue,
{
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (labels, value) in &self.1 {
            let labels = labels.each_ref().map(|(name, text)| (*name, &**text));
            let mut row = encoder.encode_family(&labels)?;
            match self.0 {
                MetricType::Counter => row.encode_counter::<NoLabelSet, _, u64>(value, None)?,
                _ => row.encode_gauge(value)?,
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        self.0
    }
}
