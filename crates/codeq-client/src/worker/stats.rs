//! Counts what a worker has done.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::outcome::Report;

/// Number of tasks by outcome. An outcome counts once the server has acknowledged it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerStats {
    /// Tasks that succeeded.
    pub completed: u64,
    /// Tasks that failed for good.
    pub failed: u64,
    /// Tasks that failed for now: to be retried, or dead-lettered.
    pub nacked: u64,
    /// Tasks returned to their queue.
    pub abandoned: u64,
    /// Tasks whose lease was lost.
    pub lost: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    completed: AtomicU64,
    failed: AtomicU64,
    nacked: AtomicU64,
    abandoned: AtomicU64,
    lost: AtomicU64,
}

impl Counters {
    pub(super) fn accepted(&self, report: &Report) {
        let counter = match report {
            Report::Complete(_) => &self.completed,
            Report::Fail(_) => &self.failed,
            Report::Nack { .. } => &self.nacked,
            Report::Abandon { .. } => &self.abandoned,
        };
        counter.fetch_add(1, Relaxed);
    }

    pub(super) fn lost(&self) {
        self.lost.fetch_add(1, Relaxed);
    }

    pub(super) fn read(&self) -> WorkerStats {
        WorkerStats {
            completed: self.completed.load(Relaxed),
            failed: self.failed.load(Relaxed),
            nacked: self.nacked.load(Relaxed),
            abandoned: self.abandoned.load(Relaxed),
            lost: self.lost.load(Relaxed),
        }
    }
}
