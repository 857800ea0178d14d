//! Counts what a worker has done.

use super::outcome::Report;

/// Number of tasks by outcome. An outcome counts once the server has acknowledged it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerStats {
    /// Tasks that succeeded.
    pub completed: u64,
    /// Tasks that failed for good.
    pub failed: u64,
    /// Tasks that failed for now: to be retried, dead-lettered, or ended as cancelled.
    pub nacked: u64,
    /// Tasks returned to their queue, or dead-lettered after their last attempt.
    pub abandoned: u64,
    /// Tasks whose lease was lost, even if this worker was assigned the task again. Exception: a task that was assigned
    /// again while its outcome was unacknowledged.
    pub lost: u64,
}

impl WorkerStats {
    pub(super) fn accept(&mut self, report: &Report) {
        match report {
            Report::Complete(_) => self.completed += 1,
            Report::Fail(_) => self.failed += 1,
            Report::Nack { .. } => self.nacked += 1,
            Report::Abandon { .. } => self.abandoned += 1,
        }
    }
}
