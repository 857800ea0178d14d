//! The tasks a worker holds, from assignment to the acknowledgement of their outcome.
//!
//! Pure: knows neither the stream nor the handlers, and takes the time as an argument. [`LeasedTasks::due`] returns
//! what to send next. Each claim has at most one message in flight, so an acknowledgement always belongs to the claim's
//! latest message. Acknowledgements that an earlier claim of the task still awaits are counted and ignored.

use std::collections::HashMap;
use std::time::Duration;

use codeq_proto::worker::worker_event::Event;
use codeq_proto::worker::{Heartbeat, WorkerEvent};
use tokio::time::Instant;

use super::ack::Ack;
use super::outcome::Report;
use super::task::{CancelReason, Signal};
use crate::backoff::Backoff;
use crate::error::is_transient;

/// The state of a task.
#[derive(Debug, PartialEq)]
enum Phase {
    Running,
    Done(Report),
}

/// The message that awaits its acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InFlight {
    Nothing,
    Heartbeat,
    Report,
}

#[derive(Debug)]
struct Entry {
    fence: u64,
    phase: Phase,
    in_flight: InFlight,
    /// Number of messages of an earlier claim of this task that are still to be acknowledged on this stream.
    stale: u32,
    /// When to send the next message.
    due: Instant,
    /// When the attempt reaches its maximum run time.
    run_until: Option<Instant>,
    backoff: Backoff,
    signal: Signal,
}

/// What an acknowledgement means for the task.
#[derive(Debug, PartialEq)]
pub(super) enum Settled {
    /// The task is still held.
    No,
    /// The outcome is on disk.
    Accepted(Report),
    /// The lease is lost.
    Lost,
}

/// All tasks that the worker holds.
#[derive(Debug)]
pub(super) struct LeasedTasks {
    entries: HashMap<String, Entry>,
    lease: Duration,
    extend_seconds: i32,
}

impl LeasedTasks {
    /// Leases last, and are extended by, `lease_seconds`.
    pub(super) fn new(lease_seconds: i32) -> LeasedTasks {
        let lease = Duration::from_secs(u64::try_from(lease_seconds).unwrap_or(1));
        LeasedTasks { entries: HashMap::new(), lease, extend_seconds: lease_seconds }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds an assigned task. `limit` is how long it may run. If an earlier claim of it is still held, that claim's lease
    /// is lost. Returns whether one was lost; a claim whose report is in flight does not count, because the server may
    /// have accepted the report.
    pub(super) fn take(
        &mut self,
        task_id: &str,
        fence: u64,
        limit: Option<Duration>,
        signal: Signal,
        now: Instant,
    ) -> bool {
        let (mut stale, mut lost) = (0, false);
        if let Some(earlier) = self.entries.remove(task_id) {
            earlier.signal.fire(CancelReason::LeaseLost);
            stale = earlier.stale + u32::from(earlier.in_flight != InFlight::Nothing);
            lost = earlier.in_flight != InFlight::Report;
        }
        let run_until = limit.and_then(|limit| now.checked_add(limit));
        let entry = Entry {
            fence,
            phase: Phase::Running,
            in_flight: InFlight::Nothing,
            stale,
            due: next_heartbeat(run_until, now, self.lease / 3),
            run_until,
            backoff: Backoff::default(),
            signal,
        };
        self.entries.insert(task_id.to_owned(), entry);
        lost
    }

    /// Records a handler's outcome. Ignored if the task is no longer held under that claim.
    pub(super) fn finish(&mut self, task_id: &str, fence: u64, report: Report, now: Instant) {
        if let Some(entry) = self.entries.get_mut(task_id)
            && entry.fence == fence
            && entry.phase == Phase::Running
        {
            entry.phase = Phase::Done(report);
            entry.due = now;
        }
    }

    /// Returns all running tasks to their queues without a penalty.
    pub(super) fn release_running(&mut self, now: Instant) {
        for entry in self.entries.values_mut().filter(|entry| entry.phase == Phase::Running) {
            entry.signal.fire(CancelReason::Shutdown);
            entry.phase = Phase::Done(Report::Abandon { no_penalty: true });
            entry.due = now;
        }
    }

    /// On a new stream, messages of the previous one are never acknowledged: sends everything again.
    pub(super) fn reconnected(&mut self, now: Instant) {
        for entry in self.entries.values_mut() {
            entry.in_flight = InFlight::Nothing;
            entry.stale = 0;
            entry.due = now;
        }
    }

    /// The next message of a task, if one is due.
    pub(super) fn due(&mut self, task_id: &str, now: Instant) -> Option<WorkerEvent> {
        let extend_seconds = self.extend_seconds;
        let entry = self.entries.get_mut(task_id)?;
        entry.message(task_id, now, extend_seconds)
    }

    /// All messages that are due.
    pub(super) fn all_due(&mut self, now: Instant) -> impl Iterator<Item = WorkerEvent> {
        let extend_seconds = self.extend_seconds;
        let entries = self.entries.iter_mut();
        entries.filter_map(move |(task_id, entry)| entry.message(task_id, now, extend_seconds))
    }

    /// Processes an acknowledgement.
    pub(super) fn settle(&mut self, ack: &Ack, now: Instant) -> Settled {
        let interval = self.lease / 3;
        let Some(entry) = self.entries.get_mut(&ack.task_id) else { return Settled::No };
        if entry.stale > 0 {
            entry.stale -= 1;
            return Settled::No;
        }
        let answered = std::mem::replace(&mut entry.in_flight, InFlight::Nothing);
        if ack.cancel_requested {
            entry.signal.fire(CancelReason::Requested);
        }
        match answered {
            InFlight::Nothing => Settled::No,
            InFlight::Heartbeat | InFlight::Report if is_lost(ack) => self.lose(&ack.task_id),
            // The handler may have finished by now; then its report is already due.
            InFlight::Heartbeat => {
                if entry.phase == Phase::Running {
                    let interval = if ack.ok { interval } else { interval / 4 };
                    entry.due = next_heartbeat(entry.run_until, now, interval);
                }
                Settled::No
            }
            InFlight::Report if ack.ok => self.accept(&ack.task_id),
            InFlight::Report => {
                entry.refused(ack, now);
                Settled::No
            }
        }
    }

    fn accept(&mut self, task_id: &str) -> Settled {
        match self.entries.remove(task_id).map(|entry| entry.phase) {
            Some(Phase::Done(report)) => Settled::Accepted(report),
            _ => Settled::No,
        }
    }

    fn lose(&mut self, task_id: &str) -> Settled {
        if let Some(entry) = self.entries.remove(task_id) {
            entry.signal.fire(CancelReason::LeaseLost);
        }
        Settled::Lost
    }
}

impl Entry {
    fn message(&mut self, task_id: &str, now: Instant, extend_seconds: i32) -> Option<WorkerEvent> {
        if self.in_flight != InFlight::Nothing || self.due > now {
            return None;
        }
        match &self.phase {
            Phase::Running => {
                self.in_flight = InFlight::Heartbeat;
                let heartbeat =
                    Heartbeat { task_id: task_id.to_owned(), extend_seconds, fence: self.fence };
                Some(WorkerEvent { event: Some(Event::Heartbeat(heartbeat)) })
            }
            Phase::Done(report) => {
                self.in_flight = InFlight::Report;
                Some(report.event(task_id, self.fence))
            }
        }
    }

    /// Handles a refused report while the lease is still held.
    fn refused(&mut self, ack: &Ack, now: Instant) {
        self.due = now + self.backoff.pause();
        let Phase::Done(report) = &mut self.phase else { return };
        if passes(&ack.code) || !matches!(report, Report::Complete(_) | Report::Fail(_)) {
            return;
        }
        // The result itself is unacceptable, too large for instance. Nack now instead of letting the lease expire.
        let reason = format!("the server refused the result: {} ({})", ack.message, ack.code);
        tracing::error!(task = %ack.task_id, %reason);
        *report = Report::Nack { delay_seconds: 0, reason };
        self.due = now;
    }
}

/// When to send the next heartbeat: after the interval, but no later than the end of the maximum run time, because only
/// the answer to a heartbeat shows that the task is lost. After that end, heartbeats are frequent, in case the server's
/// clock is behind.
fn next_heartbeat(run_until: Option<Instant>, now: Instant, interval: Duration) -> Instant {
    const AFTER_LIMIT: Duration = Duration::from_millis(200);
    match run_until {
        Some(end) if end > now => end.min(now + interval),
        Some(_) => now + interval.min(AFTER_LIMIT),
        None => now + interval,
    }
}

fn is_lost(ack: &Ack) -> bool {
    let lost = ["not_found", "not_in_progress", "not_owner", "lease_lost"];
    !ack.ok && lost.contains(&ack.code.as_str())
}

/// Whether a refusal is temporary. A full disk counts: finished work must not be discarded because of it.
fn passes(code: &str) -> bool {
    is_transient(code) || code == "disk_full"
}

#[cfg(test)]
mod tests {
    use super::super::task::Cancellation;
    use super::*;
    use bytes::Bytes;

    const LEASE: i32 = 30;

    fn ack(task_id: &str, code: &str) -> Ack {
        Ack {
            task_id: task_id.to_owned(),
            ok: code.is_empty(),
            code: code.to_owned(),
            message: "no".to_owned(),
            cancel_requested: false,
            dead_letter: false,
        }
    }

    fn leased_with(task_id: &str, now: Instant) -> (LeasedTasks, Cancellation) {
        let mut leased = LeasedTasks::new(LEASE);
        let (signal, cancellation) = Signal::new();
        leased.take(task_id, 1, None, signal, now);
        (leased, cancellation)
    }

    fn complete() -> Report {
        Report::Complete(Bytes::new())
    }

    fn kind(event: Option<WorkerEvent>) -> &'static str {
        match event.and_then(|event| event.event) {
            None => "nothing",
            Some(Event::Heartbeat(_)) => "heartbeat",
            Some(Event::Result(_)) => "result",
            Some(Event::Nack(_)) => "nack",
            Some(Event::Abandon(_)) => "abandon",
            Some(_) => "other",
        }
    }

    #[test]
    fn a_heartbeat_is_due_after_a_third_of_the_lease() {
        let now = Instant::now();
        let (mut leased, _) = leased_with("t", now);
        assert_eq!(kind(leased.due("t", now + Duration::from_millis(9_999))), "nothing");
        let third = now + Duration::from_secs(10);
        assert_eq!(kind(leased.due("t", third)), "heartbeat");
        assert_eq!(kind(leased.due("t", third)), "nothing", "one in flight is enough");
        assert_eq!(leased.settle(&ack("t", ""), third), Settled::No);
        assert_eq!(kind(leased.due("t", third + Duration::from_secs(10))), "heartbeat");
    }

    #[test]
    fn a_heartbeat_is_due_when_the_task_may_run_no_longer() {
        let now = Instant::now();
        let mut leased = LeasedTasks::new(LEASE);
        let (signal, _cancellation) = Signal::new();
        leased.take("t", 1, Some(Duration::from_secs(13)), signal, now);
        let at = |millis| now + Duration::from_millis(millis);
        assert_eq!(kind(leased.due("t", at(10_000))), "heartbeat", "after a third of the lease");
        leased.settle(&ack("t", ""), at(10_000));
        assert_eq!(kind(leased.due("t", at(12_999))), "nothing");
        assert_eq!(kind(leased.due("t", at(13_000))), "heartbeat");
        // The server's clock is a little behind.
        leased.settle(&ack("t", ""), at(13_000));
        assert_eq!(kind(leased.due("t", at(13_200))), "heartbeat");
        assert_eq!(leased.settle(&ack("t", "not_in_progress"), at(13_200)), Settled::Lost);
    }

    #[test]
    fn a_refused_heartbeat_ends_the_task_and_its_late_result_is_not_sent() {
        let now = Instant::now();
        let (mut leased, cancellation) = leased_with("t", now);
        leased.due("t", now + Duration::from_secs(10));
        assert_eq!(leased.settle(&ack("t", "not_owner"), now), Settled::Lost);
        assert_eq!(cancellation.reason(), Some(CancelReason::LeaseLost));
        leased.finish("t", 1, complete(), now);
        assert_eq!(kind(leased.due("t", now)), "nothing");
        assert!(leased.is_empty());
    }

    #[test]
    fn a_report_waits_for_the_heartbeat_before_it() {
        let now = Instant::now();
        let (mut leased, _) = leased_with("t", now);
        let later = now + Duration::from_secs(10);
        assert_eq!(kind(leased.due("t", later)), "heartbeat");
        leased.finish("t", 1, complete(), later);
        assert_eq!(kind(leased.due("t", later)), "nothing");
        leased.settle(&ack("t", ""), later);
        assert_eq!(kind(leased.due("t", later)), "result");
        assert_eq!(leased.settle(&ack("t", ""), later), Settled::Accepted(complete()));
        assert!(leased.is_empty());
    }

    #[test]
    fn heartbeats_and_reports_are_repeated_on_a_new_stream() {
        let now = Instant::now();
        let (mut leased, _) = leased_with("done", now);
        let (signal, _cancellation) = Signal::new();
        leased.take("running", 1, None, signal, now);
        leased.finish("done", 1, complete(), now);
        assert_eq!(kind(leased.due("done", now)), "result");
        leased.reconnected(now);
        let mut again: Vec<_> = leased.all_due(now).map(|event| kind(Some(event))).collect();
        again.sort_unstable();
        assert_eq!(again, ["heartbeat", "result"]);
    }

    #[test]
    fn a_busy_server_is_asked_again_and_a_bad_result_becomes_a_nack() {
        let now = Instant::now();
        let (mut leased, _) = leased_with("t", now);
        leased.finish("t", 1, complete(), now);
        leased.due("t", now);
        assert_eq!(leased.settle(&ack("t", "overloaded"), now), Settled::No);
        let later = now + Duration::from_secs(1);
        assert_eq!(kind(leased.due("t", later)), "result");
        assert_eq!(leased.settle(&ack("t", "invalid_result"), later), Settled::No);
        assert_eq!(kind(leased.due("t", later)), "nack");
    }

    #[test]
    fn answers_to_an_earlier_claim_do_not_count_for_the_next() {
        let now = Instant::now();
        let (mut leased, first) = leased_with("t", now);
        assert_eq!(kind(leased.due("t", now + Duration::from_secs(10))), "heartbeat");
        let (signal, second) = Signal::new();
        assert!(leased.take("t", 2, None, signal, now), "the first claim is lost");
        assert_eq!(first.reason(), Some(CancelReason::LeaseLost));
        assert_eq!(leased.settle(&ack("t", "not_owner"), now), Settled::No);
        assert_eq!(second.reason(), None);
        leased.finish("t", 1, complete(), now);
        assert_eq!(kind(leased.due("t", now)), "nothing", "the outcome of the first claim");
        leased.finish("t", 2, complete(), now);
        assert_eq!(kind(leased.due("t", now)), "result");
        let (signal, _third) = Signal::new();
        assert!(!leased.take("t", 3, None, signal, now), "its result may have been accepted");
    }

    #[test]
    fn tasks_still_running_after_the_grace_period_are_abandoned() {
        let now = Instant::now();
        let (mut leased, cancellation) = leased_with("t", now);
        leased.release_running(now);
        assert_eq!(cancellation.reason(), Some(CancelReason::Shutdown));
        assert_eq!(kind(leased.due("t", now)), "abandon");
    }
}
