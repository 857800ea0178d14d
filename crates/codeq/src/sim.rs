//! `codeq sim`: the simulator, from the command line.

use std::fmt;
use std::io::{IsTerminal, Write};
use std::ops::Range;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use codeq_sim::{Campaign, Options, Report, Summary, run_campaign};

mod cluster;

#[derive(Parser)]
#[command(after_help = "\
The seed decides everything about a run: clients, clock, crashes and disk faults. The same seed in the same
binary with the same options gives the same run, so the printed command reproduces a failure.

Exit code: 0 no violations, 1 a run found a violation (its seed is printed), 2 wrong usage. With --sabotage: 0 every
planted bug was noticed, 1 some were not.

Examples:
  codeq sim --seed 42
  codeq sim --seeds 1..501 --hours 100
  codeq sim --cluster --nodes 3 --seeds 1..101")]
pub struct Args {
    /// Run only this seed.
    #[arg(long, conflicts_with_all = ["seeds", "hours"])]
    seed: Option<u64>,
    /// Run seeds A up to, but not including, B.
    #[arg(long, value_name = "A..B", value_parser = range, default_value = "1..101")]
    seeds: Range<u64>,
    /// Continue with further seeds until this many hours have been simulated.
    #[arg(long, value_name = "H")]
    hours: Option<u64>,
    /// Rounds of requests per run, instead of the number that the seed chooses.
    #[arg(long)]
    steps: Option<u64>,
    /// Hide fences from the clients.
    #[arg(long)]
    without_fences: bool,
    /// Continue after a seed that finds a violation.
    #[arg(long)]
    keep_going: bool,
    /// Print everything that the clients of a failing run know.
    #[arg(long)]
    ledger: bool,
    /// Simulate clusters, which the server cannot run yet: elections, partitions, snapshots and changes of members.
    #[arg(long, conflicts_with_all = ["hours", "steps", "without_fences"])]
    cluster: bool,
    /// Number of nodes, 3 or 5, instead of the number that the seed chooses.
    #[arg(long, requires = "cluster", value_parser = nodes)]
    nodes: Option<u64>,
    /// Plant this bug in every node, or each bug in turn, and print which checker found it and after how many seeds.
    #[arg(long, requires = "cluster", value_name = "NAME|all")]
    #[arg(conflicts_with_all = ["seed", "seeds", "keep_going", "ledger"])]
    sabotage: Option<String>,
}

/// Seeds to run between checks of the simulated hours.
const CHUNK: u64 = 20;
/// How often progress is printed if stderr is not a terminal.
const PROGRESS: Duration = Duration::from_secs(30);

pub fn run(args: &Args) -> ExitCode {
    let started = Instant::now();
    let seeds = args.seed.map_or(args.seeds.clone(), |seed| seed..seed.saturating_add(1));
    let mut progress = Progress { shown: started, terminal: std::io::stderr().is_terminal() };
    if args.cluster {
        return cluster::run(args, seeds, &mut progress);
    }
    let mut total = campaign(args, seeds.clone(), &mut progress);
    let mut next = seeds.end;
    let hours = args.hours.unwrap_or(0);
    while hours_of(&total) < hours as f64 && (args.keep_going || total.failures.is_empty()) {
        let sum = campaign(args, next..next.saturating_add(CHUNK), &mut progress);
        next = next.saturating_add(CHUNK);
        add(&mut total, sum);
    }
    progress.clear();
    print(args, &total, started.elapsed())
}

fn campaign(args: &Args, seeds: Range<u64>, progress: &mut Progress) -> Summary {
    let options = Options {
        steps: args.steps,
        without_fences: args.without_fences,
        keep_ledger: args.ledger,
        ..Options::default()
    };
    let campaign = Campaign {
        first: seeds.start,
        seeds: seeds.end.saturating_sub(seeds.start),
        options,
        stop_at_failure: !args.keep_going,
    };
    run_campaign(&campaign, |report, sum| {
        progress.show(format_args!(
            "seed {}: {} operations, {} crashes",
            report.seed, sum.ops, sum.crashes
        ));
    })
}

fn print(args: &Args, total: &Summary, took: Duration) -> ExitCode {
    for report in &total.failures {
        report.ledger.iter().for_each(|line| println!("{line}"));
        for violation in &report.violations {
            println!("seed {}: {violation}", report.seed);
        }
        println!("repeat with: {}", replay_command(args, report));
    }
    println!(
        "{} run(s), {} operations ({} acknowledged, {} with unknown outcome), {} crashes, {} checkpoints, \
         {:.1} hours simulated in {:.1} s, {} failure(s)",
        total.runs,
        total.ops,
        total.acked,
        total.unknown,
        total.crashes,
        total.checkpoints,
        hours_of(total),
        took.as_secs_f64(),
        total.failures.len()
    );
    if total.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The command that repeats a run, with every option that the run depends on.
fn replay_command(args: &Args, report: &Report) -> String {
    let mut command = report.replay_command();
    if let Some(steps) = args.steps {
        command.push_str(&format!(" --steps {steps}"));
    }
    if args.without_fences {
        command.push_str(" --without-fences");
    }
    command
}

fn hours_of(summary: &Summary) -> f64 {
    summary.simulated as f64 / 3_600_000.0
}

fn add(total: &mut Summary, more: Summary) {
    total.runs += more.runs;
    total.ops += more.ops;
    total.acked += more.acked;
    total.unknown += more.unknown;
    total.crashes += more.crashes;
    total.checkpoints += more.checkpoints;
    total.simulated += more.simulated;
    total.failures.extend(more.failures);
}

/// A progress line on stderr.
struct Progress {
    shown: Instant,
    terminal: bool,
}

impl Progress {
    fn show(&mut self, text: fmt::Arguments<'_>) {
        let every = if self.terminal { Duration::from_millis(200) } else { PROGRESS };
        if self.shown.elapsed() < every {
            return;
        }
        self.shown = Instant::now();
        let (lead, end) = if self.terminal { ("\r\x1b[K", "") } else { ("", "\n") };
        eprint!("{lead}{text}{end}");
        // Nobody is reading if stderr is closed.
        let _ = std::io::stderr().flush();
    }

    fn clear(&self) {
        if self.terminal {
            eprint!("\r\x1b[K");
        }
    }
}

fn nodes(text: &str) -> Result<u64, String> {
    match text {
        "3" => Ok(3),
        "5" => Ok(5),
        _ => Err("expected 3 or 5".to_owned()),
    }
}

fn range(text: &str) -> Result<Range<u64>, String> {
    let number = |text: &str| text.trim().parse::<u64>().map_err(|error| error.to_string());
    let (from, to) = text.split_once("..").ok_or("expected two numbers separated by '..'")?;
    let range = match to.strip_prefix('=') {
        Some(last) => number(from)?..number(last)?.saturating_add(1),
        None => number(from)?..number(to)?,
    };
    if range.is_empty() { Err("the range is empty".to_owned()) } else { Ok(range) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_written_as_in_rust() {
        assert_eq!(range("1..501"), Ok(1..501));
        assert_eq!(range("7..=9"), Ok(7..10));
        for wrong in ["", "5", "5..5", "9..1", "a..b", "1..-1"] {
            assert!(range(wrong).is_err(), "{wrong}");
        }
    }
}
