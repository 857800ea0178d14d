//! Counts task transitions and webhooks by command.
//!
//! The engine's commit thread calls this with up to hundreds of thousands of effects per second, so
//! the counters are plain integers behind one lock, taken once per commit. A scrape copies the
//! counters and renders the copy, so it never blocks a commit.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use codeq_core::effect::{Effect, Transition};
use codeq_core::history::Event;
use codeq_core::place::{Place, Status};
use codeq_webhooks::{WebhookKind, WebhookOutcome};
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

/// Commands with their own label value; the rest share [`OTHER`]. Producers choose the names, so
/// without a bound they could fill the memory of the server and of Prometheus. A command that is in
/// no queue any more loses its label value.
pub const COMMANDS_MAX: usize = 200;
/// Label values that one tenant can occupy.
pub const COMMANDS_PER_TENANT_MAX: usize = COMMANDS_MAX / 2;
/// The label value of all commands beyond [`COMMANDS_MAX`], and of a command with this exact name.
pub const OTHER: &str = "other";

/// Upper bounds of the latency buckets in milliseconds: 5 ms to 1 h.
const LATENCY_MS: [u64; 18] = [
    5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 120_000, 300_000,
    600_000, 1_800_000, 3_600_000,
];

const WEBHOOKS: [(WebhookKind, &str); 2] =
    [(WebhookKind::Result, "result"), (WebhookKind::Availability, "availability")];

const DELIVERIES: [(WebhookOutcome, &str); 4] = [
    (WebhookOutcome::Delivered, "delivered"),
    (WebhookOutcome::Retried, "retried"),
    (WebhookOutcome::Failed, "failed"),
    (WebhookOutcome::Dropped, "dropped"),
];

/// The final statuses of tasks.
const ENDS: [Status; 2] = [Status::Completed, Status::Failed];

/// The counters of one command.
#[derive(Debug, Clone, Default)]
struct Counts {
    events: [u64; Event::ALL.len()],
    /// By status.
    ends: [Ends; ENDS.len()],
    /// By kind and outcome.
    webhooks: [[u64; DELIVERIES.len()]; WEBHOOKS.len()],
}

/// Finished tasks of one status, by latency from creation to end.
#[derive(Debug, Clone, Default)]
struct Ends {
    /// One bucket more than there are bounds: the last one is unbounded.
    latency: [u64; LATENCY_MS.len() + 1],
    latency_ms: u64,
}

impl Ends {
    fn add(&mut self, took: u64) {
        let bucket = LATENCY_MS.partition_point(|bound| *bound < took);
        if let Some(count) = self.latency.get_mut(bucket) {
            *count += 1;
        }
        self.latency_ms = self.latency_ms.saturating_add(took);
    }

    fn count(&self) -> u64 {
        self.latency.iter().sum()
    }
}

impl Counts {
    fn add(&mut self, transition: &Transition) {
        if let Some(count) = self.events.get_mut(transition.event as usize) {
            *count += 1;
        }
        let Some(to) = transition.to.filter(|to| to.is_terminal()) else {
            return;
        };
        if transition.from.is_some_and(Place::is_terminal) {
            return;
        }
        let [completed, failed] = &mut self.ends;
        if to == Place::Completed {
            completed.add(transition.age)
        } else {
            failed.add(transition.age)
        }
    }

    fn merge(&mut self, more: &Counts) {
        let numbers = self.events.iter_mut().chain(self.webhooks.as_flattened_mut());
        let others = more.events.iter().chain(more.webhooks.as_flattened());
        numbers.zip(others).for_each(|(to, from)| *to += from);
        for (to, from) in self.ends.iter_mut().zip(&more.ends) {
            to.latency.iter_mut().zip(from.latency).for_each(|(to, from)| *to += from);
            to.latency_ms = to.latency_ms.saturating_add(from.latency_ms);
        }
    }

    fn event(&self, event: Event) -> u64 {
        self.events.get(event as usize).copied().unwrap_or(0)
    }

    fn is_empty(&self) -> bool {
        let mut numbers = self.events.iter().chain(self.webhooks.as_flattened());
        numbers.all(|count| *count == 0)
    }
}

/// A command with its own label value.
#[derive(Debug)]
struct Entry {
    name: Arc<str>,
    /// The first tenant seen with this command.
    tenant: Arc<str>,
    counts: Counts,
    /// Whether it was counted since the last cleanup of label values.
    counted: bool,
}

#[derive(Debug, Default)]
struct Table {
    /// The position of each command in `entries`.
    index: HashMap<Arc<str>, usize>,
    entries: Vec<Entry>,
    /// The number of entries that each tenant occupies.
    tenants: HashMap<Arc<str>, usize>,
    other: Counts,
}

impl Table {
    /// The position of a command. Adds the command if there is room.
    fn admit(&mut self, name: &Arc<str>, tenant: &Arc<str>) -> Option<usize> {
        if let Some(at) = self.index.get(name) {
            return Some(*at);
        }
        let brought = self.tenants.get(tenant).copied().unwrap_or(0);
        let full = self.entries.len() >= COMMANDS_MAX || brought >= COMMANDS_PER_TENANT_MAX;
        if full || **name == *OTHER {
            return None;
        }
        let at = self.entries.len();
        self.index.insert(Arc::clone(name), at);
        *self.tenants.entry(Arc::clone(tenant)).or_default() += 1;
        let (name, tenant) = (Arc::clone(name), Arc::clone(tenant));
        self.entries.push(Entry { name, tenant, counts: Counts::default(), counted: false });
        Some(at)
    }

    fn counts_at(&mut self, at: Option<usize>) -> &mut Counts {
        match at.and_then(|at| self.entries.get_mut(at)) {
            Some(entry) => {
                entry.counted = true;
                &mut entry.counts
            }
            None => &mut self.other,
        }
    }

    /// Removes the entries of commands that are gone. Adds their counts to `other`, so that the sum
    /// over all commands never decreases.
    fn release(&mut self, gone: impl Fn(&Entry) -> bool) {
        for entry in self.entries.extract_if(.., |entry| gone(entry)) {
            self.other.merge(&entry.counts);
            if let Some(brought) = self.tenants.get_mut(&entry.tenant) {
                *brought -= 1;
                if *brought == 0 {
                    self.tenants.remove(&entry.tenant);
                }
            }
        }
        self.index.clear();
        for (at, entry) in self.entries.iter_mut().enumerate() {
            entry.counted = false;
            self.index.insert(Arc::clone(&entry.name), at);
        }
    }
}

/// Counters of task transitions and webhooks, by command.
#[derive(Debug, Default)]
pub struct Commands {
    table: Mutex<Table>,
}

impl Commands {
    /// Counts the effects of a commit.
    pub fn count(&self, effects: &[Effect]) {
        let mut table = self.table.lock();
        // Consecutive effects often belong to one queue and share its name string, so skip hashing
        // it again.
        let mut last: Option<(&Arc<str>, Option<usize>)> = None;
        for effect in effects {
            let Effect::Moved(transition) = effect else {
                continue;
            };
            let at = match last {
                Some((name, at)) if Arc::ptr_eq(name, &transition.queue) => at,
                _ => table.admit(&transition.queue, &transition.tenant),
            };
            last = Some((&transition.queue, at));
            table.counts_at(at).add(transition);
        }
    }

    /// Counts a webhook for a queue, given as tenant and name. An unknown queue counts as
    /// [`OTHER`].
    pub fn webhook(
        &self,
        kind: WebhookKind,
        outcome: WebhookOutcome,
        queue: Option<(&Arc<str>, &str)>,
    ) {
        let mut table = self.table.lock();
        let at = queue.and_then(|(tenant, name)| match table.index.get(name) {
            Some(at) => Some(*at),
            None => table.admit(&name.into(), tenant),
        });
        let counts = table.counts_at(at);
        let outcomes = counts.webhooks.get_mut(kind as usize);
        if let Some(count) = outcomes.and_then(|outcomes| outcomes.get_mut(outcome as usize)) {
            *count += 1;
        }
    }

    /// Gives commands their own label values while there is room. `names` pairs each command with a
    /// tenant that has it. Returns the commands that did not get one.
    pub fn admit<'n>(
        &self,
        names: impl Iterator<Item = (&'n Arc<str>, &'n Arc<str>)>,
    ) -> Vec<Arc<str>> {
        let mut table = self.table.lock();
        let refused = names.filter(|(name, tenant)| table.admit(name, tenant).is_none());
        refused.map(|(name, _)| Arc::clone(name)).collect()
    }

    /// Removes the label values of commands that are in no queue and were not counted since the
    /// last call. Returns those commands.
    pub fn release(&self, present: &HashSet<Arc<str>>) -> Vec<Arc<str>> {
        let mut table = self.table.lock();
        let gone = |entry: &Entry| !entry.counted && !present.contains(&entry.name);
        let names = table.entries.iter().filter(|entry| gone(entry));
        let names = names.map(|entry| Arc::clone(&entry.name)).collect();
        table.release(gone);
        names
    }

    /// The commands with their own label value.
    pub fn names(&self) -> Vec<Arc<str>> {
        self.table.lock().entries.iter().map(|entry| Arc::clone(&entry.name)).collect()
    }

    /// The number of label values that each tenant occupies.
    pub fn tenants(&self) -> HashMap<Arc<str>, usize> {
        self.table.lock().tenants.clone()
    }

    /// A copy of all counters, sorted by name. Includes [`OTHER`] only if it is not empty.
    fn snapshot(&self) -> Vec<(Arc<str>, Counts)> {
        let table = self.table.lock();
        let of = |entry: &Entry| (Arc::clone(&entry.name), entry.counts.clone());
        let mut all: Vec<_> = table.entries.iter().map(of).collect();
        let other = table.other.clone();
        drop(table);
        if !other.is_empty() {
            all.push((OTHER.into(), other));
        }
        all.sort_by(|(one, _), (two, _)| one.cmp(two));
        all
    }
}

impl Collector for Commands {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let commands = &self.snapshot();
        let to = &mut encoder;
        for (name, help, event) in [
            ("task_created", "Tasks created.", Event::Created),
            ("task_claimed", "Tasks leased to a worker.", Event::Claimed),
            ("lease_expired", "Leases that expired.", Event::LeaseExpired),
            ("task_timed_out", "Attempts that reached their maximum run time.", Event::TimedOut),
        ] {
            let rows = commands.iter();
            let rows = rows.map(|(name, counts)| ([("command", &**name)], counts.event(event)));
            counter(to, name, help, rows)?;
        }
        let rows = commands.iter().flat_map(|(command, counts)| {
            let ends = ENDS.iter().zip(&counts.ends);
            ends.map(move |(end, ends)| {
                ([("command", &**command), ("status", end.as_str())], ends.count())
            })
        });
        let help = "Finished tasks, by status; dead letters are FAILED.";
        counter(to, "task_completed", help, rows)?;
        let rows = commands.iter().flat_map(|(command, counts)| {
            let events = Event::ALL.iter().zip(counts.events);
            events.map(move |(event, count)| {
                ([("command", &**command), ("event", event.as_str())], count)
            })
        });
        // Without zeros: all events of every command would be many useless lines.
        let rows = rows.filter(|(_, count)| *count > 0);
        counter(to, "task_transitions", "Task transitions, by event.", rows)?;
        latency(to, commands)?;
        let rows = commands.iter().flat_map(|(command, counts)| {
            WEBHOOKS.iter().zip(counts.webhooks).flat_map(move |((_, kind), outcomes)| {
                DELIVERIES.iter().zip(outcomes).map(move |((_, outcome), count)| {
                    ([("kind", *kind), ("outcome", *outcome), ("command", &**command)], count)
                })
            })
        });
        let rows = rows.filter(|(_, count)| *count > 0);
        counter(to, "webhook_deliveries", "Webhook calls, by kind and outcome.", rows)
    }
}

/// Writes a counter; without rows, not even its description.
pub(super) fn counter<'a, const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    rows: impl Iterator<Item = ([(&'static str, &'a str); N], u64)>,
) -> fmt::Result {
    let mut rows = rows.peekable();
    if rows.peek().is_none() {
        return Ok(());
    }
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, count) in rows {
        metric.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
    }
    Ok(())
}

/// Writes the latency of finished tasks. Skips statuses without tasks.
fn latency(encoder: &mut DescriptorEncoder<'_>, commands: &[(Arc<str>, Counts)]) -> fmt::Result {
    let ends = commands.iter().flat_map(|(command, counts)| {
        ENDS.iter().zip(&counts.ends).map(move |(end, ends)| (command, end.as_str(), ends))
    });
    let ends: Vec<_> = ends.filter(|(_, _, ends)| ends.count() > 0).collect();
    if ends.is_empty() {
        return Ok(());
    }
    let (help, unit) = ("Time from a task's creation to its end.", Unit::Seconds);
    let name = "task_processing_latency";
    let mut metric = encoder.encode_descriptor(name, help, Some(&unit), MetricType::Histogram)?;
    for (command, status, ends) in ends {
        let bounds = LATENCY_MS.iter().map(|ms| *ms as f64 / 1_000.0).chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(ends.latency).collect();
        let sum = ends.latency_ms as f64 / 1_000.0;
        metric
            .encode_family(&[("command", &**command), ("status", status)])?
            .encode_histogram::<NoLabelSet>(sum, ends.count(), &buckets, None)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
