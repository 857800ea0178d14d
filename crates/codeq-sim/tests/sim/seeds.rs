//! A short campaign for CI: seeds that must pass, and a seed that must repeat itself.

use codeq_sim::{Campaign, Options, Summary, run, run_campaign};

/// Enough for every kind of plan; `codeq sim` runs the long campaign.
const SEEDS: u64 = 80;

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 1..=12 {
        let (first, second) = (run(seed, &Options::default()), run(seed, &Options::default()));
        assert_eq!(first, second, "seed {seed}");
    }
}

fn campaign(seeds: u64, options: Options) -> Summary {
    let campaign = Campaign { seeds, options, stop_at_failure: false, ..Campaign::default() };
    let summary = run_campaign(&campaign, |_, _| {});
    for failure in &summary.failures {
        for violation in &failure.violations {
            println!("seed {}: {violation}", failure.seed);
        }
        println!("repeat with: {}", failure.replay_command());
    }
    println!(
        "{} runs, {} operations ({} acknowledged, {} unknown), {} crashes, {} checkpoints, {} hours",
        summary.runs,
        summary.ops,
        summary.acked,
        summary.unknown,
        summary.crashes,
        summary.checkpoints,
        summary.simulated / 3_600_000
    );
    assert!(summary.failures.is_empty());
    summary
}

#[test]
fn seeds_pass() {
    let summary = campaign(SEEDS, Options::default());
    // A campaign in which little happens proves little.
    assert!(summary.crashes > SEEDS && summary.unknown > SEEDS && summary.checkpoints > SEEDS);
    assert!(summary.acked * 2 > summary.ops);
}

#[test]
fn seeds_pass_without_fences() {
    let options = Options { without_fences: true, ..Options::default() };
    campaign(SEEDS / 4, options);
}
