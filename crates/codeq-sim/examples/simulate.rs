//! Runs seeds and prints what they found: `simulate FIRST COUNT`. `simulate SEED 1 TEXT` prints the ledger lines of
//! one run that contain a text, such as a task's id.

use codeq_sim::{Campaign, Options, run_campaign};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |at: usize, or: u64| arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(or);
    let wanted = arguments.get(2);
    let options = Options { keep_ledger: wanted.is_some(), ..Options::default() };
    let campaign =
        Campaign { first: number(0, 1), seeds: number(1, 100), options, stop_at_failure: false };
    let summary = run_campaign(&campaign, |report, _| {
        let shown = |line: &&String| wanted.is_some_and(|text| line.contains(text));
        report.ledger.iter().filter(shown).for_each(|line| println!("{line}"));
        for violation in report.violations.iter().take(4) {
            println!("seed {}: {violation}", report.seed);
        }
    });
    println!(
        "{} runs, {} operations ({} acknowledged, {} unknown), {} crashes, {} checkpoints, {} hours, {} failures",
        summary.runs,
        summary.ops,
        summary.acked,
        summary.unknown,
        summary.crashes,
        summary.checkpoints,
        summary.simulated / 3_600_000,
        summary.failures.len()
    );
}
