//! Every task of a run: when it was sent, its outcome, and at the end whether each was done exactly once.

use std::collections::{BTreeMap, VecDeque};

use hdrhistogram::Histogram;
use serde::Serialize;

const ACKED: u8 = 1;
const REFUSED: u8 = 2;
const ASSIGNED: u8 = 4;
const COMPLETED: u8 = 8;

/// Finished tasks are dropped from the front. A task that outlasts this many later ones is moved aside, so memory
/// is bounded by the tasks in flight, not by the length of the run.
const RECENT: usize = 1 << 20;
/// Longer latencies count as this: an hour.
const LONGEST: u64 = 3_600_000_000_000;

#[derive(Debug, Clone, Copy)]
struct Record {
    /// Sent, or due to be sent.
    since: u64,
    /// The key of the id from the create's response or the assignment; 0 before.
    key: u64,
    state: u8,
}

impl Record {
    fn is(&self, state: u8) -> bool {
        self.state & state != 0
    }

    fn is_finished(&self) -> bool {
        self.is(REFUSED) || (self.is(ACKED) && self.is(COMPLETED))
    }
}

/// Counts so far.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Counts {
    /// Creates that were sent.
    pub sent: u64,
    /// Creates that were acknowledged.
    pub created: u64,
    /// Creates that were refused.
    pub refused: u64,
    /// Tasks that reached a worker, each once.
    pub assigned: u64,
    /// Completions that were acknowledged, each task once.
    pub completed: u64,
}

/// Errors found at the end. All zero: every acknowledged create was assigned and completed exactly once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Faults {
    /// Creates without a response.
    pub unanswered: u64,
    /// Acknowledged creates without an acknowledged completion.
    pub missing: u64,
    /// Missing tasks that were never assigned.
    pub never_assigned: u64,
    /// Assignments of a task that had been assigned before.
    pub assigned_again: u64,
    /// Acknowledged completions of a task that was completed before.
    pub completed_again: u64,
    /// Assignments of a task that was refused or never created, or under another id.
    pub unknown: u64,
}

/// Latencies in nanoseconds since a create was sent, of tasks sent in the measured window.
pub struct Latencies {
    /// To the acknowledgement of the create.
    pub created: Histogram<u64>,
    /// To the arrival at a worker.
    pub assigned: Histogram<u64>,
    /// To the acknowledgement of the completion.
    pub completed: Histogram<u64>,
}

/// All tasks of a run.
pub struct Tracker {
    first: u64,
    recent: VecDeque<Record>,
    aside: BTreeMap<u64, Record>,
    limit: usize,
    counts: Counts,
    faults: Faults,
    window: std::ops::Range<u64>,
    /// Latencies measured.
    pub latencies: Latencies,
}

impl Tracker {
    /// Latencies are kept for tasks that are sent in `window`.
    pub fn new(window: std::ops::Range<u64>) -> anyhow::Result<Tracker> {
        let histogram = || Histogram::new_with_bounds(1, LONGEST, 3);
        let latencies =
            Latencies { created: histogram()?, assigned: histogram()?, completed: histogram()? };
        Ok(Tracker {
            first: 0,
            recent: VecDeque::new(),
            aside: BTreeMap::new(),
            limit: RECENT,
            counts: Counts::default(),
            faults: Faults::default(),
            window,
            latencies,
        })
    }

    /// Counts so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Tasks that were sent and neither completed nor refused.
    pub fn outstanding(&self) -> u64 {
        self.counts.sent.saturating_sub(self.counts.completed + self.counts.refused)
    }

    /// No response is outstanding.
    pub fn is_drained(&self) -> bool {
        let answered = self.counts.created + self.counts.refused;
        self.outstanding() == 0 && answered == self.counts.sent
    }

    /// Records a sent task and returns its number.
    pub fn send(&mut self, since: u64) -> u64 {
        self.recent.push_back(Record { since, key: 0, state: 0 });
        let number = self.counts.sent;
        self.counts.sent += 1;
        self.forget();
        number
    }

    /// A create was acknowledged under this id.
    pub fn created(&mut self, number: u64, key: u64, now: u64) {
        let Some(record) = self.find(number).filter(|record| !record.is(ACKED | REFUSED)) else {
            return;
        };
        record.state |= ACKED;
        let (since, other) = (record.since, record.key != 0 && record.key != key);
        record.key = key;
        self.counts.created += 1;
        self.faults.unknown += u64::from(other);
        if self.window.contains(&since) {
            self.latencies.created.saturating_record(now.saturating_sub(since));
        }
        self.settle(number);
    }

    /// A create was refused.
    pub fn refused(&mut self, number: u64) {
        let Some(record) = self.find(number).filter(|record| !record.is(ACKED | REFUSED)) else {
            return;
        };
        record.state |= REFUSED;
        let assigned = record.is(ASSIGNED);
        self.counts.refused += 1;
        self.faults.unknown += u64::from(assigned);
        self.settle(number);
    }

    /// A task reached a worker.
    pub fn assigned(&mut self, number: u64, key: u64, now: u64) {
        if number >= self.counts.sent {
            self.faults.unknown += 1;
            return;
        }
        let Some(record) = self.find(number) else {
            // Finished and already dropped.
            self.faults.assigned_again += 1;
            return;
        };
        let known = !record.is(REFUSED) && (record.key == 0 || record.key == key);
        let (again, since) = (record.is(ASSIGNED), record.since);
        record.state |= ASSIGNED;
        record.key = key;
        self.faults.unknown += u64::from(!known);
        if again {
            self.faults.assigned_again += 1;
            return;
        }
        self.counts.assigned += 1;
        if self.window.contains(&since) {
            self.latencies.assigned.saturating_record(now.saturating_sub(since));
        }
    }

    /// A completion was acknowledged.
    pub fn completed(&mut self, number: u64, now: u64) {
        if number >= self.counts.sent {
            return;
        }
        let record = self.find(number).filter(|record| !record.is(COMPLETED));
        let Some(record) = record else {
            self.faults.completed_again += 1;
            return;
        };
        record.state |= COMPLETED;
        let since = record.since;
        self.counts.completed += 1;
        if self.window.contains(&since) {
            self.latencies.completed.saturating_record(now.saturating_sub(since));
        }
        self.settle(number);
    }

    /// The errors if no more responses come.
    pub fn faults(&self) -> Faults {
        let mut faults = self.faults;
        for record in self.recent.iter().chain(self.aside.values()) {
            faults.unanswered += u64::from(!record.is(ACKED | REFUSED));
            if record.is(ACKED) && !record.is(COMPLETED) {
                faults.missing += 1;
                faults.never_assigned += u64::from(!record.is(ASSIGNED));
            }
        }
        faults
    }

    fn find(&mut self, number: u64) -> Option<&mut Record> {
        match number.checked_sub(self.first) {
            Some(at) => self.recent.get_mut(usize::try_from(at).ok()?),
            None => self.aside.get_mut(&number),
        }
    }

    fn forget(&mut self) {
        while let Some(record) = self.recent.front() {
            if !record.is_finished() {
                if self.recent.len() <= self.limit {
                    return;
                }
                self.aside.insert(self.first, *record);
            }
            self.recent.pop_front();
            self.first += 1;
        }
    }

    /// Drops a task that was moved aside and has finished.
    fn settle(&mut self, number: u64) {
        if number < self.first && self.aside.get(&number).is_some_and(Record::is_finished) {
            self.aside.remove(&number);
        }
    }
}

impl Faults {
    /// Whether there are no errors.
    pub fn is_none(&self) -> bool {
        *self == Faults::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracker() -> Tracker {
        Tracker::new(0..1_000_000).unwrap()
    }

    fn cycle(tracker: &mut Tracker, number: u64) {
        tracker.created(number, number + 1, 10);
        tracker.assigned(number, number + 1, 20);
        tracker.completed(number, 30);
    }

    #[test]
    fn tasks_done_once_are_right_in_whatever_order_the_answers_come() {
        let mut tracker = tracker();
        let (a, b) = (tracker.send(0), tracker.send(5));
        assert_eq!(tracker.outstanding(), 2);
        tracker.assigned(b, 8, 20);
        tracker.completed(b, 30);
        assert!(!tracker.is_drained());
        cycle(&mut tracker, a);
        assert_eq!(tracker.outstanding(), 0);
        assert!(!tracker.is_drained(), "a create has no answer yet");
        tracker.created(b, 8, 40);
        assert!(tracker.is_drained());
        assert_eq!(tracker.faults(), Faults::default());
        assert_eq!(tracker.latencies.completed.len(), 2);
        assert_eq!(tracker.latencies.completed.max(), 30);
        assert_eq!(tracker.latencies.completed.min(), 25);
    }

    #[test]
    fn missing_tasks_are_counted() {
        let mut tracker = tracker();
        (0..4).for_each(|_| {
            tracker.send(0);
        });
        cycle(&mut tracker, 0);
        tracker.created(1, 2, 10);
        tracker.created(2, 3, 10);
        tracker.assigned(2, 3, 20);
        let faults = tracker.faults();
        assert_eq!((faults.missing, faults.never_assigned, faults.unanswered), (2, 1, 1));
        assert!(!faults.is_none());
    }

    #[test]
    fn duplicates_are_counted_even_of_tasks_that_are_forgotten() {
        for forgotten in [false, true] {
            let mut tracker = tracker();
            tracker.send(0);
            cycle(&mut tracker, 0);
            if forgotten {
                tracker.send(0);
                assert_eq!(tracker.first, 1);
                cycle(&mut tracker, 1);
            }
            tracker.assigned(0, 1, 40);
            tracker.completed(0, 50);
            let faults = tracker.faults();
            assert_eq!((faults.assigned_again, faults.completed_again), (1, 1));
            assert_eq!((faults.missing, faults.unknown), (0, 0));
        }
    }

    #[test]
    fn what_was_refused_never_sent_or_has_another_id_is_unknown() {
        let mut tracker = tracker();
        (0..2).for_each(|_| {
            tracker.send(0);
        });
        tracker.refused(0);
        assert_eq!(tracker.outstanding(), 1);
        tracker.assigned(0, 1, 20);
        tracker.assigned(7, 1, 20);
        tracker.created(1, 2, 10);
        tracker.assigned(1, 99, 20);
        assert_eq!(tracker.faults().unknown, 3);
    }

    #[test]
    fn one_lost_task_does_not_keep_the_others() {
        let mut tracker = tracker();
        tracker.limit = 10;
        tracker.send(0);
        tracker.created(0, 1, 10);
        for number in 1..1_000 {
            tracker.send(0);
            cycle(&mut tracker, number);
        }
        assert!(tracker.recent.len() <= 10);
        assert_eq!(tracker.aside.len(), 1);
        assert_eq!(tracker.faults().missing, 1);
        // It comes at last.
        tracker.assigned(0, 1, 20);
        tracker.completed(0, 30);
        assert!(tracker.is_drained());
        assert!(tracker.faults().is_none());
        assert!(tracker.aside.is_empty());
    }

    #[test]
    fn only_the_window_is_measured() {
        let mut tracker = Tracker::new(100..200).unwrap();
        for since in [99, 100, 199, 200] {
            let number = tracker.send(since);
            tracker.completed(number, 2_000_000_000);
        }
        assert_eq!(tracker.latencies.completed.len(), 2);
        let error = tracker.latencies.completed.max().abs_diff(2_000_000_000);
        assert!(error < 2_000_000, "latencies are right to a thousandth: {error}");
        assert_eq!(tracker.counts().completed, 4);
    }
}
