//! What became of a task, as the server has acknowledged it.

use std::sync::Arc;

use super::outcome::Report;

/// What became of a task that this worker held. See
/// [`WorkerBuilder::on_acknowledged`](crate::WorkerBuilder::on_acknowledged).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Acknowledged {
    /// Succeeded; the result is on disk.
    Completed,
    /// Failed for good.
    Failed {
        /// The task's error.
        error: String,
    },
    /// Failed for now: the task will be retried unless it is now a dead letter, or was cancelled, which the server does not
    /// say.
    Nacked {
        /// The task's error. If the server refused the result, it says so.
        reason: String,
        /// That was the last attempt: the task is now a dead letter.
        dead_letter: bool,
    },
    /// Returned to its queue or, after its last attempt, a dead letter.
    Abandoned,
    /// The lease was lost, so the outcome does not count: another worker may have the task, or it is finished.
    Lost {
        /// The code of the server's refusal; `lease_lost` if this worker was assigned the task again.
        code: String,
    },
}

/// Called with the id of a task and what became of it.
pub(super) type OnAcknowledged = Arc<dyn Fn(&str, &Acknowledged) + Send + Sync>;

impl Acknowledged {
    pub(super) fn new(report: Report, dead_letter: bool) -> Acknowledged {
        match report {
            Report::Complete(_) => Acknowledged::Completed,
            Report::Fail(error) => Acknowledged::Failed { error },
            Report::Nack { reason, .. } => Acknowledged::Nacked { reason, dead_letter },
            Report::Abandon { .. } => Acknowledged::Abandoned,
        }
    }
}
