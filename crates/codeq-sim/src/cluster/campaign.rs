//! Runs many seeds of clusters, one after the other.

use std::collections::BTreeMap;

use super::run::{Options, Report, run};
use crate::campaign::{self, Totals, run_seeds};

/// Which seeds to run, and how.
pub type Campaign = campaign::Campaign<Options>;

/// Totals of a campaign.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    /// Runs.
    pub runs: u64,
    /// Runs in which the leader never changed, which prove nothing.
    pub idle: u64,
    /// Requests.
    pub ops: u64,
    /// Acknowledged requests.
    pub acked: u64,
    /// Requests without a known outcome.
    pub unknown: u64,
    /// Leaders that were elected.
    pub elections: u64,
    /// Entries that were committed.
    pub entries: u64,
    /// How often the episode `snapshot` left a follower with a newer snapshot.
    pub snapshots: u64,
    /// How often each kind of fault happened, by name.
    pub faults: BTreeMap<&'static str, u64>,
    /// Simulated milliseconds.
    pub simulated: u64,
    /// The runs with violations.
    pub failures: Vec<Report>,
}

impl Totals for Summary {
    type Report = Report;

    fn add(&mut self, report: &Report) -> bool {
        self.runs += 1;
        self.idle += u64::from(!report.changed_leader_or_failed());
        self.ops += report.counts.ops;
        self.acked += report.counts.acked;
        self.unknown += report.counts.unknown;
        self.elections += report.elections;
        self.entries += report.entries;
        self.snapshots += report.snapshots;
        for (fault, count) in &report.faults {
            *self.faults.entry(fault).or_default() += count;
        }
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
