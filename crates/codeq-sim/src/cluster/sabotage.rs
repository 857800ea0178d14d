//! Planted bugs of clusters: each disables one rule of a node, and the checkers must notice.

use codeq_raft::fault::Fault;

use super::rules::{ANSWERS, PROGRESS, RAFT, STABLE, STOPPED};
use super::run::{Options, run};
use crate::invariants::Violation;

/// A bug that needs more seeds than this counts as missed.
pub const SEEDS_MAX: u64 = 500;

/// A planted bug.
#[derive(Debug, Clone, Copy)]
pub struct Sabotage {
    /// Its name on the command line.
    pub name: &'static str,
    /// The fault that plants it.
    pub fault: Fault,
    /// The rules that it breaks: one of them has to notice.
    pub breaks: &'static [u8],
    /// Whether a few seeds are enough to notice it.
    pub quick: bool,
}

const fn bug(name: &'static str, fault: Fault, breaks: &'static [u8], quick: bool) -> Sabotage {
    Sabotage { name, fault, breaks, quick }
}

/// The bugs for random runs. [`Fault::CheckpointOld`] is missing, because only a script shows it
/// (`tests/sim/cluster/traps_rows.rs`).
pub const ALL: [Sabotage; 24] = [
    bug("propose-before-ready", Fault::ProposeBeforeReady, &[8, 14, ANSWERS, STOPPED], false),
    bug("no-fence", Fault::NoFence, &[14, ANSWERS, STOPPED], false),
    bug("answer-by-position", Fault::AnswerByPosition, &[ANSWERS, 14, STOPPED], true),
    bug("keep-committed-vote", Fault::KeepCommittedVote, &[RAFT, ANSWERS, 14], true),
    bug("purge-before-install", Fault::PurgeBeforeInstall, &[RAFT, STOPPED, PROGRESS, 14], false),
    bug("accept-lost-tail", Fault::AcceptLostTail, &[RAFT, STOPPED, 14], true),
    bug("forget-membership", Fault::ForgetMembership, &[RAFT, PROGRESS, STOPPED, 14], false),
    bug("trust-wall-clock", Fault::TrustWallClock, &[8], false),
    bug("highest-estimate", Fault::HighestEstimate, &[8], false),
    bug("never-mute", Fault::NeverMute, &[PROGRESS], false),
    bug("always-campaign", Fault::AlwaysCampaign, &[STABLE, PROGRESS], true),
    bug("answer-without-read-index", Fault::AnswerWithoutReadIndex, &[ANSWERS], false),
    bug("skip-command", Fault::SkipCommand, &[14, STOPPED], true),
    bug("ack-before-sync", Fault::AckBeforeSync, &[RAFT], true),
    bug("forget-vote", Fault::ForgetVote, &[RAFT], true),
    bug("checkpoint-apart", Fault::CheckpointApart, &[14, STOPPED], false),
    bug("checkpoint-ahead", Fault::CheckpointAhead, &[14, RAFT, STOPPED], false),
    bug("configure-at-start", Fault::ConfigureAtStart, &[ANSWERS], true),
    bug("late-membership", Fault::LateMembership, &[RAFT, PROGRESS, STOPPED, 14], false),
    bug("refuse-lost", Fault::RefuseLost, &[ANSWERS], true),
    bug("ignore-full-disk", Fault::IgnoreFullDisk, &[STOPPED], false),
    bug("repeat-transitions", Fault::RepeatTransitions, &[14], true),
    bug("skip-transitions", Fault::SkipTransitions, &[14], true),
    bug("stale-note", Fault::StaleNote, &[8], true),
];

/// How a planted bug was noticed.
#[derive(Debug, Clone)]
pub struct Caught {
    /// The seed.
    pub seed: u64,
    /// What was noticed.
    pub violation: Violation,
}

/// Runs seeds with the bug until a checker notices it.
pub fn catch(sabotage: &Sabotage, nodes: Option<u64>, seeds: u64) -> Option<Caught> {
    (1..=seeds).find_map(|seed| {
        let options = Options { nodes, fault: Some(sabotage.fault), keep_ledger: false };
        let report = run(seed, &options);
        let noticed = |violation: &Violation| sabotage.breaks.contains(&violation.invariant);
        let violation = report.violations.into_iter().find(noticed)?;
        Some(Caught { seed, violation })
    })
}
