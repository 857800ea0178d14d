//! The result of a run, as text and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::state::{Failure, RunState};
use super::tracker::{Counts, Faults};

/// Work done and resources used, since the start of a run or in the measured window.
pub struct Spent {
    pub time: Duration,
    pub cycles: u64,
    pub creates: u64,
    pub client: Duration,
    pub server: Option<Duration>,
    pub server_rss: Option<u64>,
}

/// Percentiles in milliseconds.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Percentiles {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    #[serde(rename = "p99.9")]
    pub p999: f64,
    pub max: f64,
}

/// The result of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Acknowledged completions per second.
    pub cycles_per_second: f64,
    /// Acknowledged creates per second.
    pub creates_per_second: f64,
    pub seconds: f64,
    /// From the moment a create was sent (or due) to the acknowledgement of the task's completion.
    pub completed_ms: Percentiles,
    /// From the same moment to the task's arrival at a worker.
    pub assigned_ms: Percentiles,
    /// From the same moment to the acknowledgement of the create.
    pub created_ms: Percentiles,
    pub client_cpu_us_per_cycle: f64,
    pub server_cpu_us_per_cycle: Option<f64>,
    pub server_rss_mib: Option<f64>,
    /// Counts for the whole run, including warm-up and drain.
    pub counts: Counts,
    pub errors: BTreeMap<String, u64>,
    /// Open-loop arrivals that could not be sent, even after the time was over.
    pub unsent: u64,
    /// The server kept up with the open loop.
    pub kept_up: bool,
    pub faults: Faults,
    /// Every acknowledged create was assigned and completed exactly once.
    pub verified: bool,
    pub server_went_away: bool,
    pub failure: Option<String>,
    pub notes: Vec<String>,
}

impl Row {
    /// The result of a finished run.
    pub fn new(state: &RunState, spent: &Spent) -> Row {
        let seconds = spent.time.as_secs_f64().max(1e-9);
        let each = |time: Duration| time.as_secs_f64() * 1e6 / spent.cycles.max(1) as f64;
        let latencies = &state.tracker.latencies;
        let faults = state.tracker.faults();
        let failure = state.failure();
        let mut row = Row {
            cycles_per_second: spent.cycles as f64 / seconds,
            creates_per_second: spent.creates as f64 / seconds,
            seconds,
            completed_ms: Percentiles::of(&latencies.completed),
            assigned_ms: Percentiles::of(&latencies.assigned),
            created_ms: Percentiles::of(&latencies.created),
            client_cpu_us_per_cycle: each(spent.client),
            server_cpu_us_per_cycle: spent.server.map(each),
            server_rss_mib: spent.server_rss.map(|bytes| bytes as f64 / f64::from(1 << 20)),
            counts: state.tracker.counts(),
            errors: state.errors.clone(),
            unsent: state.backlog(),
            kept_up: true,
            faults,
            verified: failure.is_none() && faults.is_none(),
            server_went_away: matches!(failure, Some(Failure::Away(_))),
            failure: failure.map(Failure::to_string),
            notes: Vec::new(),
        };
        if let Some(rate) = state.plan.rate {
            row.check_rate(rate);
        }
        row
    }

    /// Completions slightly behind the arrivals are tasks in flight; more means a growing queue.
    fn check_rate(&mut self, rate: u64) {
        const LEAST: f64 = 0.95;
        let (cycles, unsent) = (self.cycles_per_second, self.unsent);
        self.kept_up = cycles >= rate as f64 * LEAST;
        if !self.kept_up {
            self.note(format!(
                "the server could not keep up: {rate} tasks a second were due, {cycles:.0} a second were \
                 completed, {unsent} were never sent and are not in the latencies"
            ));
        }
    }

    /// Adds a remark.
    pub fn note(&mut self, text: String) {
        self.notes.push(text);
    }

    /// As text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let (cycles, creates) = (self.cycles_per_second, self.creates_per_second);
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(text, "{cycles:.0} cycles/s, {creates:.0} creates/s");
        let _ = writeln!(
            text,
            "  latency in ms            p50       p90       p99     p99.9       max"
        );
        for (name, of) in [
            ("create to done", &self.completed_ms),
            ("create to assigned", &self.assigned_ms),
            ("create to acked", &self.created_ms),
        ] {
            let Percentiles { p50, p90, p99, p999, max } = of;
            let _ = write!(text, "  {name:<18}{p50:>10.3}{p90:>10.3}{p99:>10.3}");
            let _ = writeln!(text, "{p999:>10.3}{max:>10.3}");
        }
        let _ = write!(text, "  CPU a cycle: client {:.2} us", self.client_cpu_us_per_cycle);
        if let Some(us) = self.server_cpu_us_per_cycle {
            let _ = write!(text, ", server {us:.2} us");
        }
        if let Some(mib) = self.server_rss_mib {
            let _ = write!(text, ", server memory {mib:.0} MiB");
        }
        text.push('\n');
        for (kind, count) in &self.errors {
            let _ = writeln!(text, "  error, {count} times: {kind}");
        }
        for note in &self.notes {
            let _ = writeln!(text, "  note: {note}");
        }
        let _ = writeln!(text, "  {}", self.verdict());
        text
    }

    /// The verdict in one line.
    pub fn verdict(&self) -> String {
        let Counts { sent, created, completed, .. } = self.counts;
        if let Some(failure) = &self.failure {
            return format!(
                "FAILED: {failure}; {sent} creates sent, {created} acked, {completed} completions acked"
            );
        }
        if self.verified {
            return format!("verified: {created} tasks, each assigned and completed exactly once");
        }
        let Faults { unanswered, missing, never_assigned, .. } = self.faults;
        let Faults { assigned_again, completed_again, unknown, .. } = self.faults;
        format!(
            "NOT VERIFIED: of {created} acked creates {missing} are missing ({never_assigned} never \
             assigned); {assigned_again} assigned again, {completed_again} completed again, {unknown} \
             unknown, {unanswered} creates without an answer"
        )
    }
}

impl Percentiles {
    fn of(nanos: &Histogram<u64>) -> Percentiles {
        let at = |quantile| nanos.value_at_quantile(quantile) as f64 / 1e6;
        let max = nanos.max() as f64 / 1e6;
        Percentiles { p50: at(0.5), p90: at(0.9), p99: at(0.99), p999: at(0.999), max }
    }
}

/// A figure across several runs.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// The spread of a figure; `None` without runs.
    pub fn of(rows: &[Row], figure: impl Fn(&Row) -> Option<f64>) -> Option<Spread> {
        let mut all: Vec<f64> = rows.iter().filter_map(figure).collect();
        all.sort_by(f64::total_cmp);
        let middle = all.len() / 2;
        let upper = *all.get(middle)?;
        let median = match all.len() % 2 {
            0 => (upper + *all.get(middle.checked_sub(1)?)?) / 2.0,
            _ => upper,
        };
        Some(Spread { median, min: *all.first()?, max: *all.last()? })
    }
}

type Figure = fn(&Row) -> Option<f64>;

/// What a summary of several runs shows: names in JSON and in text.
const FIGURES: [(&str, &str, Figure); 9] = [
    ("cycles_per_second", "cycles/s", |row| Some(row.cycles_per_second)),
    ("creates_per_second", "creates/s", |row| Some(row.creates_per_second)),
    ("completed_p50_ms", "create to done p50, ms", |row| Some(row.completed_ms.p50)),
    ("completed_p99_ms", "create to done p99, ms", |row| Some(row.completed_ms.p99)),
    ("assigned_p50_ms", "create to assigned p50, ms", |row| Some(row.assigned_ms.p50)),
    ("assigned_p99_ms", "create to assigned p99, ms", |row| Some(row.assigned_ms.p99)),
    ("client_cpu_us_per_cycle", "client CPU a cycle, us", |row| Some(row.client_cpu_us_per_cycle)),
    ("server_cpu_us_per_cycle", "server CPU a cycle, us", |row| row.server_cpu_us_per_cycle),
    ("server_rss_mib", "server memory, MiB", |row| row.server_rss_mib),
];

/// The figures of all runs, for JSON.
pub fn summary(rows: &[Row]) -> BTreeMap<&'static str, Option<Spread>> {
    FIGURES.iter().map(|(name, _, figure)| (*name, Spread::of(rows, figure))).collect()
}

/// The figures of all runs, as text.
pub fn summary_text(rows: &[Row]) -> String {
    let mut text = format!("median of {} runs (min to max)\n", rows.len());
    for (_, name, figure) in FIGURES {
        if let Some(Spread { median, min, max }) = Spread::of(rows, figure) {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {name:<27}{median:>10.2} ({min:.2} to {max:.2})");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::Args;
    use super::super::plan::Plan;
    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn row(flags: &str, tasks: u64, seconds: u64) -> Row {
        let line = Line::parse_from(format!("bench {flags}").split_whitespace());
        let mut state = RunState::new(Plan::new(&line.args), None).unwrap();
        state.start();
        for number in 0..tasks {
            state.tracker.send(0);
            state.created(number, &number.to_string());
            state.tracker.assigned(number, super::super::ids::key(&number.to_string()), 10);
            state.completed(number, &number.to_string());
        }
        let time = Duration::from_secs(seconds);
        let (client, server) = (Duration::from_millis(tasks), None);
        let spent = Spent { time, cycles: tasks, creates: tasks, client, server, server_rss: None };
        Row::new(&state, &spent)
    }

    #[test]
    fn rates_and_costs_are_of_the_window() {
        let row = row("", 100, 2);
        assert_eq!((row.cycles_per_second, row.creates_per_second), (50.0, 50.0));
        assert_eq!(row.client_cpu_us_per_cycle, 1_000.0);
        assert!(row.verified && row.kept_up && row.notes.is_empty());
        assert!(row.text().contains("verified: 100 tasks"), "{}", row.text());
    }

    #[test]
    fn a_server_that_falls_behind_the_clock_is_named() {
        assert!(row("--rate 50", 100, 2).kept_up);
        let slow = row("--rate 60", 100, 2);
        assert!(!slow.kept_up);
        assert!(slow.text().contains("could not keep up: 60 tasks a second"), "{}", slow.text());
    }

    #[test]
    fn the_median_of_an_even_count_is_between_two_runs() {
        let rows: Vec<Row> = [30, 10, 20, 80].into_iter().map(|tasks| row("", tasks, 1)).collect();
        let spread = |rows: &[Row]| Spread::of(rows, |row| Some(row.cycles_per_second)).unwrap();
        let all = spread(&rows);
        assert_eq!((all.min, all.median, all.max), (10.0, 25.0, 80.0));
        assert_eq!(spread(&rows[..3]).median, 20.0);
        assert!(Spread::of(&[], |row| Some(row.seconds)).is_none());
    }
}
