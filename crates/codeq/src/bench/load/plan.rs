//! The plan of a run, from the flags.

use std::time::Duration;

use serde::Serialize;

use super::Args;

/// Creates in flight in an open loop: never the limit for a server that keeps up.
const OPEN_IN_FLIGHT: usize = 10_000;
/// Unfinished tasks in an open loop; beyond it arrivals wait, and their latency grows.
const OPEN_AHEAD: u64 = 200_000;

/// The plan of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Plan {
    /// Streams or connections that create tasks.
    pub producers: usize,
    /// Creates in flight on each.
    pub in_flight: usize,
    /// Streams or connections that process tasks.
    pub workers: usize,
    /// Tasks that each is ready for, in whole credits.
    pub slots: usize,
    /// Tasks per create.
    pub create_batch: usize,
    /// Tasks per credit, which is a Ready or, over HTTP, a claim.
    pub ready_batch: usize,
    /// Results per message.
    pub result_batch: usize,
    /// Maximum tasks sent and not completed.
    pub ahead: u64,
    /// Payload size in bytes.
    pub payload: usize,
    /// The webhook of every task; empty for none.
    #[serde(skip)]
    pub webhook: String,
    /// Time before the measurement.
    #[serde(skip)]
    pub warm_up: Duration,
    /// Time measured.
    #[serde(skip)]
    pub time: Duration,
    /// Time after the last create for tasks in flight.
    #[serde(skip)]
    pub drain: Duration,
    /// Arrivals per second in an open loop.
    pub rate: Option<u64>,
    /// The queue of this run.
    #[serde(skip)]
    pub command: String,
    /// Print a line per second.
    #[serde(skip)]
    pub progress: bool,
}

impl Plan {
    /// The plan of one run, with its own queue.
    pub fn new(args: &Args) -> Plan {
        let one = args.one_at_a_time;
        let size = |asked: u32| if one { 1 } else { asked.max(1) as usize };
        let (create_batch, ready_batch) = (size(args.create_batch), size(args.ready_batch));
        let asked = args.in_flight.map(|asked| asked as usize);
        let usual = if args.rate.is_some() { OPEN_IN_FLIGHT } else { 32 };
        let in_flight = if one { 1 } else { asked.unwrap_or(usual).max(create_batch) };
        // Whole credits only: a batch of tasks does not say which of two different credits it answers.
        let slots = size(args.slots).max(ready_batch) / ready_batch * ready_batch;
        let (producers, workers) = (size(args.producers), size(args.workers));
        // Enough to keep both sides busy, while the queue in between stays short.
        let busy = (producers * in_flight + workers * slots) as u64;
        let usual = if args.rate.is_some() { OPEN_AHEAD } else { busy };
        let ahead = if one { 1 } else { args.ahead.unwrap_or(usual).max(create_batch as u64) };
        Plan {
            producers,
            in_flight,
            workers,
            slots,
            create_batch,
            ready_batch,
            result_batch: size(args.result_batch),
            ahead,
            payload: args.payload as usize,
            webhook: args.webhook.clone().unwrap_or_default(),
            warm_up: Duration::from_secs_f64(args.warm_up),
            time: Duration::from_secs_f64(args.seconds),
            drain: Duration::from_secs(args.drain),
            rate: args.rate,
            command: format!("{}-{:016x}", args.command, random()),
            progress: !args.quiet,
        }
    }

    /// The measured window, in nanoseconds since the start.
    pub fn window(&self) -> std::ops::Range<u64> {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        nanos(self.warm_up)..nanos(self.warm_up + self.time)
    }
}

/// The standard library's hashers have random keys, which is enough randomness here.
fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn plan(flags: &str) -> Plan {
        let line = format!("bench {flags}");
        Plan::new(&Line::try_parse_from(line.split_whitespace()).ok().unwrap().args)
    }

    #[test]
    fn limits_are_adjusted_to_whole_batches() {
        let plan = plan("--create-batch 100 --ready-batch 10 --slots 25 --in-flight 5");
        assert_eq!((plan.in_flight, plan.slots, plan.ahead), (100, 20, 120));
    }

    #[test]
    fn one_at_a_time_uses_one_of_everything() {
        let plan = plan("--one-at-a-time");
        assert_eq!((plan.producers, plan.in_flight, plan.workers, plan.slots), (1, 1, 1, 1));
        assert_eq!(plan.ahead, 1);
        let line = ["bench", "--one-at-a-time", "--slots", "2"];
        assert!(Line::try_parse_from(line).is_err());
    }

    #[test]
    fn an_open_loop_allows_many_creates_in_flight() {
        assert_eq!(plan("--rate 1000").in_flight, OPEN_IN_FLIGHT);
        assert_eq!(plan("--rate 1000 --in-flight 7").in_flight, 7);
    }

    #[test]
    fn every_run_has_a_queue_of_its_own() {
        let (one, other) = (plan("--command load"), plan("--command load"));
        assert!(one.command.starts_with("load-"));
        assert_ne!(one.command, other.command);
    }
}
