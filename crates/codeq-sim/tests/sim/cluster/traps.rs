//! The traps of a replicated queue, each with a script of the events that lead into it. docs/testing.md lists them.
//!
//! A script says what happens, step by step, while all checkers of the simulator run. If a planted bug breaks the rule, the
//! same script must notice it.

use std::time::Duration;

use codeq_raft::fault::Fault;
use codeq_sim::cluster::script::{Script, Setup, play};

pub const MILLISECOND: Duration = Duration::from_millis(1);
pub const SECOND: Duration = Duration::from_secs(1);

/// Plays a script in which nothing may go wrong.
pub fn holds(setup: &Setup, script: impl FnOnce(&mut Script)) {
    let report = play(setup, script);
    let violations: Vec<String> = report.violations.iter().map(ToString::to_string).collect();
    assert!(violations.is_empty(), "{violations:#?}");
}

/// Plays a script with a planted bug, which has to be noticed by one of these rules.
pub fn notices(setup: &Setup, fault: Fault, rules: &[u8], script: impl FnOnce(&mut Script)) {
    let report = play(&Setup { fault: Some(fault), ..setup.clone() }, script);
    let noticed = report.violations.iter().find(|it| rules.contains(&it.invariant));
    assert!(noticed.is_some(), "{fault:?} is not noticed: {:?}", report.violations);
    println!("{fault:?}: {}", noticed.unwrap());
}
