//! A short campaign of clusters for CI: seeds that must pass, and seeds that must repeat themselves.

use codeq_sim::cluster::{Campaign, Options, run, run_campaign};

/// Enough for every kind of episode; `codeq sim --cluster` runs the long campaign.
const SEEDS: u64 = 12;

#[test]
fn the_same_seed_is_the_same_run_of_a_cluster() {
    for seed in [1, 3] {
        let (first, second) = (run(seed, &Options::default()), run(seed, &Options::default()));
        assert_eq!(first, second, "seed {seed}");
    }
}

#[test]
fn clusters_pass() {
    let number = |name: &str, or: u64| std::env::var(name).map_or(or, |text| text.parse().unwrap());
    let (first, seeds) = (number("CLUSTER_FIRST", 1), number("CLUSTER_SEEDS", SEEDS));
    let campaign = Campaign { first, seeds, options: Options::default(), stop_at_failure: false };
    let summary = run_campaign(&campaign, |_, _| {});
    for failure in &summary.failures {
        for violation in &failure.violations {
            println!("seed {}: {violation}", failure.seed);
        }
        println!("repeat with: {}", failure.replay_command());
    }
    println!("{summary:?}");
    assert!(summary.failures.is_empty());
    assert_eq!(summary.idle, 0, "every run has a change of leaders");
    assert!(summary.acked > summary.ops / 2, "most requests are acknowledged");
}
