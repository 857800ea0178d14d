//! Planted bugs prove the harness: each must be caught within a limited number of seeds.

use codeq_sim::invariants::Violation;
use codeq_sim::sabotage::Sabotage;
use codeq_sim::{Options, run};

/// A bug that needs more seeds than this counts as missed.
const SEEDS_MAX: u64 = 60;

#[test]
fn every_planted_bug_is_caught() {
    let mut missed = Vec::new();
    for bug in Sabotage::ALL {
        let options = Options { sabotage: Some(bug), ..Options::default() };
        let caught = (1..=SEEDS_MAX).find_map(|seed| {
            let report = run(seed, &options);
            let noticed = |violation: &Violation| bug.breaks().contains(&violation.invariant);
            Some((seed, report.violations.into_iter().find(noticed)?))
        });
        match caught {
            Some((seeds, violation)) => println!("{bug:?}: caught by seed {seeds}: {violation}"),
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
