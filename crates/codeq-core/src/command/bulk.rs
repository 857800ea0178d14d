//! Bulk operations: which tasks of a tenant, and what is done about them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Millis;
use crate::names::is_worker;
use crate::rows::TaskRow;

/// What a bulk operation does, and to which list of tasks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum BulkWork {
    /// Removes finished tasks of all queues.
    Cleanup {
        /// Only those whose retention has ended.
        expired: bool,
    },
    /// Removes dead-lettered tasks of a queue with their results.
    PurgeDead {
        /// The queue.
        command: Arc<str>,
    },
    /// Finishes pending and delayed tasks of a queue as cancelled, so that their producers hear of it.
    PurgeWaiting {
        /// The queue.
        command: Arc<str>,
    },
    /// Returns tasks of a queue to it with fresh attempts, oldest first.
    Replay {
        /// The queue.
        command: Arc<str>,
        /// Which of those that did not end well.
        from: ReplayFrom,
    },
}

/// Which of the tasks that did not end well are replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplayFrom {
    /// Those whose attempts are spent.
    DeadLetters,
    /// Those that a worker gave up for good.
    Failed,
    /// Those that were cancelled, a purge of the queue included.
    Cancelled,
}

/// Which tasks of a list a bulk operation touches: those of which everything holds that is given here.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BulkFilter {
    /// The last error contains this.
    pub error_contains: Option<Arc<str>>,
    /// The task's date is before this one. It is the date at which it finished, or, of a task that is waiting,
    /// that at which it was made.
    pub before: Option<Millis>,
    /// The same date is this one or later.
    pub after: Option<Millis>,
    /// The latest claim was this worker's.
    pub worker: Option<Arc<str>>,
}

impl BulkFilter {
    /// Whether everything holds of a task.
    pub(crate) fn matches(&self, row: &TaskRow) -> bool {
        let date = row.finish.as_ref().map_or(row.created_at, |finish| finish.at);
        let error = || row.error.as_deref().unwrap_or_default();
        self.before.is_none_or(|before| date < before)
            && self.after.is_none_or(|after| date >= after)
            && self.error_contains.as_deref().is_none_or(|part| error().contains(part))
            && self.worker.as_deref().is_none_or(|worker| {
                row.history.last_worker().is_some_and(|last| is_worker(&last, worker))
            })
    }
}

/// Where a bulk operation goes on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BulkFrom {
    /// For a cleanup: the queue; none means the first one.
    pub queue: Option<Arc<str>>,
    /// For a cleanup: which of the queue's lists of finished tasks.
    pub list: u8,
    /// Only tasks of the list with a higher number.
    pub after: u64,
}

/// A bounded part of a bulk operation. Before it there were [`BulkPartV1`], and before that
/// [`Cleanup`](super::Cleanup), [`Purge`](super::Purge) and [`ReplayTarget::Queue`](super::ReplayTarget), whose
/// bounds were for each queue and not for the whole: all these are only read from older logs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BulkPart {
    /// Whose tasks.
    pub tenant: Arc<str>,
    /// What to do.
    pub work: BulkWork,
    /// To which tasks.
    pub filter: BulkFilter,
    /// Where the part before stopped.
    pub from: BulkFrom,
    /// Touches at most so many tasks.
    pub take: u32,
    /// Looks at at most so many rows.
    pub look: u32,
    /// Who asks, for the history.
    pub by: Arc<str>,
}

/// What a bulk operation did in version 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum BulkWorkV1 {
    /// Removed finished tasks of all queues.
    Cleanup {
        /// Only those that finished before this moment.
        before: Millis,
    },
    /// Removed dead-lettered tasks of a queue.
    PurgeDead {
        /// The queue.
        command: Arc<str>,
    },
    /// Finished waiting tasks of a queue as cancelled.
    PurgeWaiting {
        /// The queue.
        command: Arc<str>,
    },
    /// Returned dead-lettered tasks of a queue to it.
    Replay {
        /// The queue.
        command: Arc<str>,
        /// Only tasks whose last error contains this.
        error_contains: Option<Arc<str>>,
    },
}

/// A bounded part of a bulk operation as version 1 wrote it: only replays had a filter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are those of `BulkPart`")]
pub struct BulkPartV1 {
    pub tenant: Arc<str>,
    pub work: BulkWorkV1,
    pub from: BulkFrom,
    pub take: u32,
    pub look: u32,
    pub by: Arc<str>,
}

impl From<BulkPartV1> for BulkPart {
    fn from(old: BulkPartV1) -> BulkPart {
        let mut filter = BulkFilter::default();
        let work = match old.work {
            BulkWorkV1::Cleanup { before } => {
                filter.before = Some(before);
                BulkWork::Cleanup { expired: false }
            }
            BulkWorkV1::PurgeDead { command } => BulkWork::PurgeDead { command },
            BulkWorkV1::PurgeWaiting { command } => BulkWork::PurgeWaiting { command },
            BulkWorkV1::Replay { command, error_contains } => {
                filter.error_contains = error_contains;
                BulkWork::Replay { command, from: ReplayFrom::DeadLetters }
            }
        };
        let BulkPartV1 { tenant, from, take, look, by, .. } = old;
        BulkPart { tenant, work, filter, from, take, look, by }
    }
}
