//! `codeq sim --cluster`: simulated clusters, and the bugs planted in them.

use std::ops::Range;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use codeq_sim::cluster::sabotage::{self, SEEDS_MAX, Sabotage};
use codeq_sim::cluster::{Campaign, Options, Summary, run_campaign};

use super::{Args, Progress};

pub fn run(args: &Args, seeds: Range<u64>, progress: &mut Progress) -> ExitCode {
    let started = Instant::now();
    if let Some(name) = &args.sabotage {
        return plant(args, name);
    }
    let campaign = Campaign {
        first: seeds.start,
        seeds: seeds.end.saturating_sub(seeds.start),
        options: Options { nodes: args.nodes, fault: None, keep_ledger: args.ledger },
        stop_at_failure: !args.keep_going,
    };
    let total = run_campaign(&campaign, |report, sum| {
        progress.show(format_args!(
            "seed {}: {} operations, {} elections",
            report.seed, sum.ops, sum.elections
        ));
    });
    progress.clear();
    print(&total, started.elapsed())
}

fn print(total: &Summary, took: Duration) -> ExitCode {
    for report in &total.failures {
        report.ledger.iter().for_each(|line| println!("{line}"));
        for violation in &report.violations {
            println!("seed {}: {violation}", report.seed);
        }
        println!("repeat with: {}", report.replay_command());
    }
    let simulated = Duration::from_millis(total.simulated);
    println!(
        "{} run(s), {} without a change of leaders; {} operations ({} acknowledged, {} with unknown outcome), \
         {} elections, {} entries, {} snapshots",
        total.runs,
        total.idle,
        total.ops,
        total.acked,
        total.unknown,
        total.elections,
        total.entries,
        total.snapshots
    );
    let faults: Vec<String> =
        total.faults.iter().map(|(name, count)| format!("{name} {count}")).collect();
    println!("faults: {}", faults.join(", "));
    println!(
        "{:.0} s simulated in {:.1} s ({:.0} times as fast), {} failure(s)",
        simulated.as_secs_f64(),
        took.as_secs_f64(),
        simulated.as_secs_f64() / took.as_secs_f64().max(0.001),
        total.failures.len()
    );
    if total.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Plants bugs and prints what noticed them.
fn plant(args: &Args, name: &str) -> ExitCode {
    let chosen: Vec<&Sabotage> =
        sabotage::ALL.iter().filter(|bug| name == "all" || bug.name == name).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = sabotage::ALL.iter().map(|bug| bug.name).collect();
        eprintln!("codeq: no bug is called '{name}': use 'all' or one of {}", names.join(", "));
        return ExitCode::from(2);
    }
    let mut missed = 0;
    for bug in chosen {
        match sabotage::catch(bug, args.nodes, SEEDS_MAX) {
            Some(caught) => {
                println!("{}: caught by seed {}: {}", bug.name, caught.seed, caught.violation);
            }
            None => {
                missed += 1;
                println!("{}: not caught by {SEEDS_MAX} seeds", bug.name);
            }
        }
    }
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
