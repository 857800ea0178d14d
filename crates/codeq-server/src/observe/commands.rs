//! What became of tasks and of their webhooks, counted by command.
//!
//! The engine's commit thread counts here, up to hundreds of thousands of effects a second: plain numbers
//! behind one lock that is taken once for all effects of a commit. A scrape copies the numbers and writes
//! its text from the copy, so that it never holds up a commit.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use codeq_core::effect::{Effect, Move};
use codeq_core::history::Event;
use codeq_core::place::{Place, Status};
use codeq_webhooks::{WebhookKind, WebhookOutcome};
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

/// So many commands get a label value of their own; the others share [`OTHER`]. Producers choose the names,
/// so without a bound anybody could fill the memory of the server and of Prometheus. A command that no queue
/// has any more gives its place back.
pub const COMMANDS_MAX: usize = 200;
/// So many of them at most are there because of one tenant.
pub const COMMANDS_PER_TENANT_MAX: usize = COMMANDS_MAX / 2;
/// The label value of all commands beyond [`COMMANDS_MAX`], and of a command that has this very name.
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

/// How tasks end.
const ENDS: [Status; 2] = [Status::Completed, Status::Failed];

/// The numbers of one command.
#[derive(Debug, Clone, Default)]
struct Counts {
    events: [u64; Event::ALL.len()],
    /// By status.
    ends: [Ends; ENDS.len()],
    /// By kind, and by what became of them.
    webhooks: [[u64; DELIVERIES.len()]; WEBHOOKS.len()],
}

/// Tasks that have ended in one way, and how long after they were made.
#[derive(Debug, Clone, Default)]
struct Ends {
    /// One more than there are bounds: the last has none.
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
    fn add(&mut self, moved: &Move) {
        if let Some(count) = self.events.get_mut(moved.event as usize) {
            *count += 1;
        }
        let Some(to) = moved.to.filter(|to| to.is_terminal()) else {
            return;
        };
        if moved.from.is_some_and(Place::is_terminal) {
            return;
        }
        let [completed, failed] = &mut self.ends;
        if to == Place::Completed { completed.add(moved.age) } else { failed.add(moved.age) }
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

/// A command with a label value of its own.
#[derive(Debug)]
struct Entry {
    name: Arc<str>,
    /// The tenant that it was first seen with.
    tenant: Arc<str>,
    counts: Counts,
    /// Something was counted since it was last looked which commands are gone.
    moved: bool,
}

#[derive(Debug, Default)]
struct Table {
    /// Where in `entries` a command is.
    index: HashMap<Arc<str>, usize>,
    entries: Vec<Entry>,
    /// How many entries a tenant has brought.
    tenants: HashMap<Arc<str>, usize>,
    other: Counts,
}

impl Table {
    /// The place of a command, made if there is room for one more.
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
        self.entries.push(Entry { name, tenant, counts: Counts::default(), moved: false });
        Some(at)
    }

    fn counts_at(&mut self, at: Option<usize>) -> &mut Counts {
        match at.and_then(|at| self.entries.get_mut(at)) {
            Some(entry) => {
                entry.moved = true;
                &mut entry.counts
            }
            None => &mut self.other,
        }
    }

    /// Gives back the places of commands that are gone. What they counted goes to the others, so that the sum
    /// over all commands never shrinks.
    fn give_back(&mut self, gone: impl Fn(&Entry) -> bool) {
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
            entry.moved = false;
            self.index.insert(Arc::clone(&entry.name), at);
        }
    }
}

/// What became of tasks, by command.
#[derive(Debug, Default)]
pub struct Commands {
    table: Mutex<Table>,
}

impl Commands {
    /// Counts what happened.
    pub fn count(&self, effects: &[Effect]) {
        let mut table = self.table.lock();
        // Runs of effects tend to be of one queue, whose name is one shared string: no need to hash it again.
        let mut last: Option<(&Arc<str>, Option<usize>)> = None;
        for effect in effects {
            let Effect::Moved(moved) = effect else {
                continue;
            };
            let at = match last {
                Some((name, at)) if Arc::ptr_eq(name, &moved.queue) => at,
                _ => table.admit(&moved.queue, &moved.tenant),
            };
            last = Some((&moved.queue, at));
            table.counts_at(at).add(moved);
        }
    }

    /// Counts a webhook of a queue: tenant and name. What is of no queue that is known counts with the others.
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

    /// Gives commands, each with a tenant that has it, a label value of their own as long as there is room.
    /// Returns those that did not get one.
    pub fn admit<'n>(
        &self,
        names: impl Iterator<Item = (&'n Arc<str>, &'n Arc<str>)>,
    ) -> Vec<Arc<str>> {
        let mut table = self.table.lock();
        let refused = names.filter(|(name, tenant)| table.admit(name, tenant).is_none());
        refused.map(|(name, _)| Arc::clone(name)).collect()
    }

    /// Gives back the label values of commands that no queue has, and of which nothing was counted since the
    /// last time. Returns them.
    pub fn give_back(&self, present: &HashSet<Arc<str>>) -> Vec<Arc<str>> {
        let mut table = self.table.lock();
        let gone = |entry: &Entry| !entry.moved && !present.contains(&entry.name);
        let names = table.entries.iter().filter(|entry| gone(entry));
        let names = names.map(|entry| Arc::clone(&entry.name)).collect();
        table.give_back(gone);
        names
    }

    /// The commands that have a label value of their own.
    pub fn names(&self) -> Vec<Arc<str>> {
        self.table.lock().entries.iter().map(|entry| Arc::clone(&entry.name)).collect()
    }

    /// A copy of all numbers in the order of the names; of the other commands only if there are any.
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
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        Page { encoder, commands: self.snapshot() }.write()
    }
}

/// One scrape's text of the numbers above.
struct Page<'a> {
    encoder: DescriptorEncoder<'a>,
    commands: Vec<(Arc<str>, Counts)>,
}

impl Page<'_> {
    fn write(mut self) -> fmt::Result {
        self.of_event("task_created", "Tasks made.", Event::Created)?;
        self.of_event("task_claimed", "Tasks leased to a worker.", Event::Claimed)?;
        self.of_event("lease_expired", "Leases that ended without a word.", Event::LeaseExpired)?;
        self.completed()?;
        self.transitions()?;
        self.latency()?;
        self.webhooks()
    }

    fn of_event(&mut self, name: &str, help: &str, event: Event) -> fmt::Result {
        if self.commands.is_empty() {
            return Ok(());
        }
        let mut metric = self.encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (command, counts) in &self.commands {
            metric
                .encode_family(&[("command", &**command)])?
                .encode_counter::<NoLabelSet, _, u64>(&counts.event(event), None)?;
        }
        Ok(())
    }

    fn completed(&mut self) -> fmt::Result {
        if self.commands.is_empty() {
            return Ok(());
        }
        let help = "Tasks finished, by how; dead letters are FAILED.";
        let kind = MetricType::Counter;
        let mut metric = self.encoder.encode_descriptor("task_completed", help, None, kind)?;
        for (command, counts) in &self.commands {
            for (status, ends) in ENDS.into_iter().zip(&counts.ends) {
                metric
                    .encode_family(&[("command", &**command), ("status", status.as_str())])?
                    .encode_counter::<NoLabelSet, _, u64>(&ends.count(), None)?;
            }
        }
        Ok(())
    }

    /// Only what has happened: twelve events of every command would be many lines of nothing.
    fn transitions(&mut self) -> fmt::Result {
        if self.commands.iter().all(|(_, counts)| counts.events.iter().all(|count| *count == 0)) {
            return Ok(());
        }
        let help = "Transitions of tasks, by what moved them.";
        let kind = MetricType::Counter;
        let mut metric = self.encoder.encode_descriptor("task_transitions", help, None, kind)?;
        for (command, counts) in &self.commands {
            for (event, count) in Event::ALL.into_iter().zip(counts.events) {
                if count > 0 {
                    metric
                        .encode_family(&[("command", &**command), ("event", event.as_str())])?
                        .encode_counter::<NoLabelSet, _, u64>(&count, None)?;
                }
            }
        }
        Ok(())
    }

    /// Only the ways in which tasks have ended.
    fn latency(&mut self) -> fmt::Result {
        let ends = self.commands.iter().flat_map(|(command, counts)| {
            ENDS.into_iter()
                .zip(&counts.ends)
                .map(move |(status, ends)| (command, status.as_str(), ends))
        });
        let ends: Vec<_> = ends.filter(|(_, _, ends)| ends.count() > 0).collect();
        if ends.is_empty() {
            return Ok(());
        }
        let (help, unit) = ("From the making of a task to its end.", Unit::Seconds);
        let name = "task_processing_latency";
        let kind = MetricType::Histogram;
        let mut metric = self.encoder.encode_descriptor(name, help, Some(&unit), kind)?;
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

    /// Only what has happened.
    fn webhooks(&mut self) -> fmt::Result {
        let happened = |counts: &Counts| counts.webhooks.as_flattened().iter().any(|n| *n > 0);
        if !self.commands.iter().any(|(_, counts)| happened(counts)) {
            return Ok(());
        }
        let (name, help) = ("webhook_deliveries", "Deliveries of webhooks.");
        let counter = MetricType::Counter;
        let mut metric = self.encoder.encode_descriptor(name, help, None, counter)?;
        for (command, counts) in &self.commands {
            for ((_, kind), outcomes) in WEBHOOKS.iter().zip(counts.webhooks) {
                let counts = DELIVERIES.iter().zip(outcomes).filter(|(_, count)| *count > 0);
                for ((_, outcome), count) in counts {
                    metric
                        .encode_family(&[
                            ("kind", *kind),
                            ("outcome", outcome),
                            ("command", &**command),
                        ])?
                        .encode_counter::<NoLabelSet, _, u64>(&count, None)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
