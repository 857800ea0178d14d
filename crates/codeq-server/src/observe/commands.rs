//! What became of tasks, counted by command.
//!
//! The engine's commit thread counts here, up to hundreds of thousands of effects a second: plain numbers
//! behind one lock that is taken once for all effects of a commit. A scrape copies the numbers and writes
//! its text from the copy, so that it never holds up a commit.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use codeq_core::effect::{Effect, Move};
use codeq_core::history::Event;
use codeq_core::place::Place;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

/// So many commands get a label value of their own; the others share [`OTHER`]. Producers choose the names,
/// so without a bound anybody could fill the memory of the server and of Prometheus.
pub const COMMANDS_MAX: usize = 200;
/// The label value of all commands beyond [`COMMANDS_MAX`], and of a command that has this very name.
pub const OTHER: &str = "other";

/// Upper bounds of the latency buckets in milliseconds: 5 ms to 1 h.
const LATENCY_MS: [u64; 18] = [
    5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 120_000, 300_000,
    600_000, 1_800_000, 3_600_000,
];

/// The label values of every [`Event`], in the order of its variants.
const EVENTS: [(Event, &str); 13] = [
    (Event::Created, "created"),
    (Event::Claimed, "claimed"),
    (Event::Submitted, "submitted"),
    (Event::Nacked, "nacked"),
    (Event::Abandoned, "abandoned"),
    (Event::Released, "released"),
    (Event::LeaseExpired, "lease_expired"),
    (Event::Due, "due"),
    (Event::CancelRequested, "cancel_requested"),
    (Event::Cancelled, "cancelled"),
    (Event::Replayed, "replayed"),
    (Event::Removed, "removed"),
    (Event::Postponed, "postponed"),
];

/// The numbers of one command.
#[derive(Debug, Clone, Default)]
struct Counts {
    events: [u64; EVENTS.len()],
    completed: u64,
    failed: u64,
    /// One more than there are bounds: the last has none.
    latency: [u64; LATENCY_MS.len() + 1],
    latency_ms: u64,
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
        if to == Place::Completed {
            self.completed += 1;
        } else {
            self.failed += 1;
        }
        let took = moved.age;
        let bucket = LATENCY_MS.partition_point(|bound| *bound < took);
        if let Some(count) = self.latency.get_mut(bucket) {
            *count += 1;
        }
        self.latency_ms = self.latency_ms.saturating_add(took);
    }

    fn event(&self, event: Event) -> u64 {
        self.events.get(event as usize).copied().unwrap_or(0)
    }

    fn finished(&self) -> u64 {
        self.completed + self.failed
    }
}

#[derive(Debug, Default)]
struct Table {
    /// Where in `counts` a command's numbers are.
    index: HashMap<Arc<str>, usize>,
    counts: Vec<(Arc<str>, Counts)>,
    other: Counts,
}

impl Table {
    /// The place of a command's numbers, made if there is room for one more.
    fn admit(&mut self, name: &Arc<str>) -> Option<usize> {
        if let Some(at) = self.index.get(name) {
            return Some(*at);
        }
        if self.counts.len() == COMMANDS_MAX || **name == *OTHER {
            return None;
        }
        let at = self.counts.len();
        self.index.insert(Arc::clone(name), at);
        self.counts.push((Arc::clone(name), Counts::default()));
        Some(at)
    }

    fn counts_at(&mut self, at: Option<usize>) -> &mut Counts {
        match at.and_then(|at| self.counts.get_mut(at)) {
            Some((_, counts)) => counts,
            None => &mut self.other,
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
                _ => table.admit(&moved.queue),
            };
            last = Some((&moved.queue, at));
            table.counts_at(at).add(moved);
        }
    }

    /// Gives commands a label value of their own as long as there is room. Returns those that did not get one.
    pub fn admit<'n>(&self, names: impl Iterator<Item = &'n Arc<str>>) -> Vec<Arc<str>> {
        let mut table = self.table.lock();
        names.filter(|name| table.admit(name).is_none()).cloned().collect()
    }

    /// The commands that have a label value of their own.
    pub fn names(&self) -> Vec<Arc<str>> {
        self.table.lock().counts.iter().map(|(name, _)| Arc::clone(name)).collect()
    }

    /// A copy of all numbers in the order of the names; of the other commands only if there are any.
    fn snapshot(&self) -> Vec<(Arc<str>, Counts)> {
        let table = self.table.lock();
        let mut all = table.counts.clone();
        let other = table.other.clone();
        drop(table);
        if other.events.iter().any(|count| *count > 0) {
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
        self.latency()
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
            for (status, count) in [("COMPLETED", counts.completed), ("FAILED", counts.failed)] {
                metric
                    .encode_family(&[("command", &**command), ("status", status)])?
                    .encode_counter::<NoLabelSet, _, u64>(&count, None)?;
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
            for ((_, event), count) in EVENTS.iter().zip(counts.events) {
                if count > 0 {
                    metric
                        .encode_family(&[("command", &**command), ("event", event)])?
                        .encode_counter::<NoLabelSet, _, u64>(&count, None)?;
                }
            }
        }
        Ok(())
    }

    fn latency(&mut self) -> fmt::Result {
        if self.commands.iter().all(|(_, counts)| counts.finished() == 0) {
            return Ok(());
        }
        let (help, unit) = ("From the making of a task to its end.", Unit::Seconds);
        let name = "task_processing_latency";
        let kind = MetricType::Histogram;
        let mut metric = self.encoder.encode_descriptor(name, help, Some(&unit), kind)?;
        for (command, counts) in self.commands.iter().filter(|(_, counts)| counts.finished() > 0) {
            let bounds = LATENCY_MS.iter().map(|ms| *ms as f64 / 1_000.0).chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(counts.latency).collect();
            let sum = counts.latency_ms as f64 / 1_000.0;
            metric.encode_family(&[("command", &**command)])?.encode_histogram::<NoLabelSet>(
                sum,
                counts.finished(),
                &buckets,
                None,
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_in_the_order_of_the_variants() {
        for (at, (event, _)) in EVENTS.iter().enumerate() {
            assert_eq!(*event as usize, at);
        }
    }

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        for (took, bucket) in [(0, 0), (5, 0), (6, 1), (3_600_000, 17), (3_600_001, 18)] {
            assert_eq!(LATENCY_MS.partition_point(|bound| *bound < took), bucket, "{took}");
        }
    }
}
