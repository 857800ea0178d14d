//! Runs many seeds, one after the other.

use crate::simulator::{Options, Report, run};

/// Which seeds to run, and how.
#[derive(Debug, Clone)]
pub struct Campaign<O = Options> {
    /// The first seed.
    pub first: u64,
    /// How many seeds.
    pub seeds: u64,
    /// Options of every run.
    pub options: O,
    /// Stop at the first run with a violation.
    pub stop_at_failure: bool,
}

impl<O: Default> Default for Campaign<O> {
    fn default() -> Campaign<O> {
        Campaign { first: 1, seeds: 500, options: O::default(), stop_at_failure: true }
    }
}

/// Totals of runs.
pub(crate) trait Totals: Default {
    type Report;

    /// Adds a run. Returns whether it failed.
    fn add(&mut self, report: &Self::Report) -> bool;
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

impl Totals for Summary {
    type Report = Report;

    fn add(&mut self, report: &Report) -> bool {
        self.runs += 1;
        self.ops += report.ops;
        self.acked += report.acked;
        self.unknown += report.unknown;
        self.crashes += report.crashes;
        self.checkpoints += report.checkpoints;
        self.simulated += report.simulated;
        let failed = !report.violations.is_empty();
        self.failures.extend(failed.then(|| report.clone()));
        failed
    }
}

/// Runs the seeds. Calls `progress` after every run, with the totals so far.
pub fn run_campaign(campaign: &Campaign, progress: impl FnMut(&Report, &Summary)) -> Summary {
    run_seeds(campaign, run, progress)
}

/// Runs the seeds of any simulator.
pub(crate) fn run_seeds<O, T: Totals>(
    campaign: &Campaign<O>,
    run: impl Fn(u64, &O) -> T::Report,
    mut progress: impl FnMut(&T::Report, &T),
) -> T {
    let mut totals = T::default();
    for seed in campaign.first..campaign.first.saturating_add(campaign.seeds) {
        let report = run(seed, &campaign.options);
        let failed = totals.add(&report);
        progress(&report, &totals);
        if campaign.stop_at_failure && failed {
            break;
        }
    }
    totals
}
