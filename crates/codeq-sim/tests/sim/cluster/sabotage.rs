//! Planted bugs prove the checkers: those that a few seeds reveal. `codeq sim --cluster --sabotage all` plants all bugs
//! but `CheckpointOld`, which only a scripted trap can show.

use codeq_sim::cluster::sabotage::{ALL, catch};

/// A quick bug that needs more seeds than this counts as missed.
const SEEDS_MAX: u64 = 20;

#[test]
fn quick_bugs_are_caught() {
    let mut missed = Vec::new();
    for bug in ALL.iter().filter(|bug| bug.quick) {
        match catch(bug, None, SEEDS_MAX) {
            Some(caught) => println!("{}: seed {}: {}", bug.name, caught.seed, caught.violation),
            None => missed.push(bug.name),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
