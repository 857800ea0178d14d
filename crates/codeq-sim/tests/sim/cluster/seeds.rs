//! A short campaign of clusters for CI: seeds that must pass, and seeds that must repeat themselves.

use codeq_sim::cluster::{Campaign, Options, run, run_campaign};

/// Enough for every kind of episode; `codeq sim --cluster` runs the long campaign.
const SEEDS: u64 = 16;

#[test]
fn the_same_seed_is_the_same_run_of_a_cluster() {
    for (seed, nodes) in [(1, 3), (3, 5)] {
        let (first, second) = (run(seed, &Options::default()), run(seed, &Options::default()));
        assert_eq!(first, second, "seed {seed}");
        assert_eq!(first.nodes, nodes);
    }
}

#[test]
fn clusters_pass() {
    let campaign =
        Campaign { first: 1, seeds: SEEDS, options: Options::default(), stop_at_failure: false };
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
