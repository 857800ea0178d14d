//! Shared by the stream and HTTP drivers: which tasks may be created now, and the outcome of each.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::ledger::Ledger;
use super::payload::Payloads;
use super::plan::Plan;
use super::schedule::Schedule;
use super::tracker::Tracker;

/// Kinds of errors counted separately; the rest are counted together.
const KINDS: usize = 50;

/// Why a run ended early.
#[derive(Debug, Clone)]
pub enum Failure {
    /// The server or the connection was lost.
    Away(String),
    /// The server broke the contract or refused us.
    Refused(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Away(why) => write!(out, "the server went away: {why}"),
            Failure::Refused(why) => out.write_str(why),
        }
    }
}

/// Refused creates, without a single success, that end the run.
const REFUSALS_MAX: u64 = 100;

/// The state of a run.
pub struct RunState {
    /// The plan of the run.
    pub plan: Plan,
    /// The outcome of each task.
    pub tracker: Tracker,
    /// Creates payloads.
    pub payloads: Payloads,
    /// Record of acknowledgements, if requested.
    pub ledger: Option<Ledger>,
    /// Errors by kind.
    pub errors: BTreeMap<String, u64>,
    /// Wakes the run on a failure or the last response.
    pub event: Rc<Notify>,
    /// Wakes waiting producers when there may be room for a create.
    pub room: Rc<Notify>,
    failure: Option<Failure>,
    schedule: Option<Schedule>,
    start: Instant,
    creating: bool,
    stopping: bool,
}

impl RunState {
    /// A run that has not started.
    pub fn new(plan: Plan, ledger: Option<Ledger>) -> anyhow::Result<RunState> {
        Ok(RunState {
            tracker: Tracker::new(plan.window())?,
            payloads: Payloads::new(plan.payload),
            ledger,
            errors: BTreeMap::new(),
            event: Rc::new(Notify::new()),
            room: Rc::new(Notify::new()),
            failure: None,
            schedule: plan.rate.map(Schedule::new),
            start: Instant::now(),
            creating: false,
            stopping: false,
            plan,
        })
    }

    /// Starts the clock; tasks may be created from now on.
    pub fn start(&mut self) {
        self.start = Instant::now();
        self.creating = true;
    }

    /// The time is over. Tasks that were due are still sent, or the slowest would not be counted.
    pub fn stop(&mut self) {
        self.stopping = true;
        self.creating &= self.schedule.is_some();
    }

    /// Every task was sent and every response received.
    pub fn is_done(&self) -> bool {
        self.stopping && self.tracker.is_drained() && self.backlog() == 0
    }

    /// Nanoseconds since the start.
    pub fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The time since the start.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Arrivals that are due but not sent.
    pub fn backlog(&self) -> u64 {
        let end = self.plan.window().end;
        let due = self.schedule.map(|schedule| schedule.due(self.now().min(end)));
        due.map_or(0, |due| due.saturating_sub(self.tracker.counts().sent))
    }

    /// The numbers of the tasks to create now, in one message; may be empty.
    pub fn take(&mut self) -> Range<u64> {
        let first = self.tracker.counts().sent;
        if !self.creating {
            return first..first;
        }
        let (now, batch) = (self.now(), self.plan.create_batch as u64);
        let room = self.plan.ahead.saturating_sub(self.tracker.outstanding());
        let count = match self.schedule {
            None if room < batch => 0,
            None => batch,
            Some(_) => self.backlog().min(batch).min(room),
        };
        for number in first..first + count {
            // A task's number is also its arrival's number.
            let since = self.schedule.map_or(now, |schedule| schedule.at(number));
            self.tracker.send(since);
        }
        first..first + count
    }

    /// Counts an error by kind.
    pub fn error(&mut self, kind: String) {
        let known = self.errors.contains_key(&kind) || self.errors.len() < KINDS;
        *self.errors.entry(if known { kind } else { "other".to_owned() }).or_default() += 1;
    }

    /// Fails the run. The first reason is kept.
    pub fn fail(&mut self, failure: Failure) {
        self.creating = false;
        self.failure.get_or_insert(failure);
        self.event.notify_one();
    }

    /// Why the run failed.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// A create was acknowledged.
    pub fn created(&mut self, number: u64, id: &str) {
        self.tracker.created(number, super::ids::key(id), self.now());
        if let Some(ledger) = &mut self.ledger {
            ledger.line("C", id);
        }
    }

    /// A create was refused.
    pub fn refused(&mut self, number: u64, why: &str) {
        self.tracker.refused(number);
        self.error(format!("create refused: {why}"));
        // Some may be refused under load. If nothing else ever happens, continuing is pointless.
        let counts = self.tracker.counts();
        if counts.created == 0 && counts.refused >= REFUSALS_MAX {
            self.fail(Failure::Refused(format!("every create is refused: {why}")));
        }
    }

    /// A completion was acknowledged.
    pub fn completed(&mut self, number: u64, id: &str) {
        self.tracker.completed(number, self.now());
        if let Some(ledger) = &mut self.ledger {
            ledger.line("D", id);
        }
    }

    /// Wakes the waiters. Call after handling a batch of responses.
    pub fn settle(&mut self) {
        if self.creating {
            self.room.notify_waiters();
        }
        if self.is_done() {
            self.event.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::Args;
    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn state(flags: &str) -> RunState {
        let line = Line::parse_from(format!("bench {flags}").split_whitespace());
        RunState::new(Plan::new(&line.args), None).unwrap()
    }

    #[test]
    fn a_closed_loop_sends_when_there_is_room_for_a_whole_batch() {
        let mut state = state("--create-batch 4 --ahead 10");
        assert!(state.take().is_empty(), "it has not started");
        state.start();
        assert_eq!((state.take(), state.take()), (0..4, 4..8));
        assert!(state.take().is_empty());
        state.completed(0, "a");
        assert!(state.take().is_empty());
        state.refused(1, "full");
        assert_eq!(state.take(), 8..12);
        state.completed(2, "b");
        (3..6).for_each(|number| state.completed(number, "c"));
        state.stop();
        assert!(state.take().is_empty());
    }

    #[test]
    fn an_open_loop_sends_what_is_due_and_no_more_than_its_bound() {
        // All of the tasks are due after a second, and the run began longer ago than that.
        let mut state = state("--rate 100 --ahead 30 --create-batch 20 --seconds 1 --warm-up 0");
        state.start();
        state.start = Instant::now().checked_sub(Duration::from_secs(5)).unwrap();
        assert_eq!((state.take(), state.take()), (0..20, 20..30));
        assert!(state.take().is_empty(), "its bound");
        state.stop();
        assert_eq!(state.backlog(), 71, "what was due in the second, and is not sent");
        for number in 0..30 {
            state.created(number, "a");
            state.completed(number, "a");
        }
        assert!(!state.is_done(), "it is still to be sent");
        assert_eq!(state.take(), 30..50);
    }

    #[test]
    fn kinds_of_errors_are_bounded() {
        let mut state = state("");
        (0..1_000).for_each(|n| state.error(n.to_string()));
        assert_eq!(state.errors.len(), KINDS + 1);
        assert_eq!(state.errors["other"], 1_000 - KINDS as u64);
    }

    #[test]
    fn the_first_failure_stays() {
        let mut state = state("");
        state.start();
        state.fail(Failure::Away("reset".to_owned()));
        state.fail(Failure::Refused("other".to_owned()));
        let failure = state.failure().unwrap().to_string();
        assert_eq!(failure, "the server went away: reset");
        assert!(state.take().is_empty());
    }
}
