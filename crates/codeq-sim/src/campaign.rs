//! Runs many seeds, one after the other.

use crate::simulator::{Options, Report, run};

/// Which seeds to run, and how.
#[derive(Debug, Clone)]
pub struct Campaign {
    /// The first seed.
    pub first: u64,
    /// How many seeds.
    pub seeds: u64,
    /// Options of every run.
    pub options: Options,
    /// Stop at the first run with a violation.
    pub stop_at_failure: bool,
}

impl Default for Campaign {
    fn default() -> Campaign {
        Campaign { first: 1, seeds: 500, options: Options::default(), stop_at_failure: true }
    }
}

/// Totals of a campaign.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    /// Runs.
    pub runs: u64,
    /// Operations in all of them.
    pub ops: u64,
    /// Acknowledged operations.
    pub acked: u64,
    /// Operations that were never answered.
    pub unknown: u64,
    /// Kills and power cuts.
    pub crashes: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Virtual milliseconds.
    pub simulated: u64,
    /// The runs with violations.
    pub failures: Vec<Report>,
}

impl Summary {
    /// Adds a run.
    fn add(&mut self, report: &Report) {
        self.runs += 1;
        self.ops += report.ops;
        self.acked += report.acked;
        self.unknown += report.unknown;
        self.crashes += report.crashes;
        self.checkpoints += report.checkpoints;
        self.simulated += report.simulated;
        if !report.violations.is_empty() {
            self.failures.push(report.clone());
        }
    }
}

/// Runs the seeds. Calls `progress` after every run, with the totals so far.
pub fn run_campaign(campaign: &Campaign, mut progress: impl FnMut(&Report, &Summary)) -> Summary {
    let mut summary = Summary::default();
    for seed in campaign.first..campaign.first.saturating_add(campaign.seeds) {
        let report = run(seed, &campaign.options);
        summary.add(&report);
        progress(&report, &summary);
        if campaign.stop_at_failure && !summary.failures.is_empty() {
            break;
        }
    }
    summary
}
