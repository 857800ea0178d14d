//! Bulk operations: which tasks of a tenant they select, and what they do with them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Millis;
use crate::keys::Seq;

/// The bulk operation, and the list of tasks it works on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum BulkWork {
    /// Removes finished tasks of all queues.
    Cleanup {
        /// Only tasks whose retention has ended.
        expired: bool,
    },
    /// Removes dead-lettered tasks of a queue, with their results.
    PurgeDead {
        /// The queue's command.
        command: Arc<str>,
    },
    /// Cancels pending and delayed tasks of a queue, so that their producers are notified.
    PurgeWaiting {
        /// The queue's command.
        command: Arc<str>,
    },
    /// Returns tasks to their queue with all their attempts restored, oldest first.
    Replay {
        /// The queue's command.
        command: Arc<str>,
        /// Which unsuccessful tasks to replay.
        from: ReplayFrom,
    },
    /// Cancels tasks of a queue: pending and delayed ones end at once, and workers of running ones are asked to stop.
    Cancel {
        /// The queue's command.
        command: Arc<str>,
        /// Also running tasks. They come last, so that tasks claimed in the meantime are found among them.
        running: bool,
    },
}

/// Which unsuccessful tasks to replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplayFrom {
    /// Tasks that used up their attempts.
    DeadLetters,
    /// Tasks that a worker failed for good.
    Failed,
    /// Cancelled tasks, including those of a purge.
    Cancelled,
}

/// Selects tasks of a list: every condition that is set must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BulkFilter {
    /// The last error contains this.
    pub error_contains: Option<Arc<str>>,
    /// The task finished before this time or, if it is not finished, was created before it.
    pub before: Option<Millis>,
    /// The task finished, or was created, at this time or later.
    pub after: Option<Millis>,
    /// This worker made the latest claim.
    pub worker: Option<Arc<str>>,
}

/// Where a bulk operation, or a list of callbacks, continues.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BulkFrom {
    /// For a cleanup or callbacks: the queue; `None` means the first one.
    pub queue: Option<Arc<str>>,
    /// For a cleanup: which of the queue's lists of finished tasks. For a cancellation: 1 once it visits the running
    /// tasks. For callbacks: 0 for the pending and 1 for the failed ones.
    pub list: u8,
    /// Only tasks of the list with a higher number.
    pub after: Seq,
}

/// A bounded part of a bulk operation. Its predecessors are only replayed from older logs: [`BulkPartV1`], and before
/// it [`Cleanup`](super::Cleanup), [`Purge`](super::Purge) and [`ReplayTarget::Queue`](super::ReplayTarget), whose
/// limit on rows looked at applied to each list instead of to the whole command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BulkPart {
    /// The tenant that owns the tasks.
    pub tenant: Arc<str>,
    /// The operation.
    pub work: BulkWork,
    /// Which tasks of the list it applies to.
    pub filter: BulkFilter,
    /// Where the previous part stopped.
    pub from: BulkFrom,
    /// Upper bound on the tasks changed.
    pub take: u32,
    /// Upper bound on the rows looked at.
    pub look: u32,
    /// Who asked, for the history.
    pub by: Arc<str>,
}

/// The bulk operation, as version 1 encoded it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum BulkWorkV1 {
    /// Removed finished tasks of all queues.
    Cleanup {
        /// Only tasks that finished before this time.
        before: Millis,
    },
    /// Removed dead-lettered tasks of a queue.
    PurgeDead {
        /// The queue's command.
        command: Arc<str>,
    },
    /// Cancelled pending and delayed tasks of a queue.
    PurgeWaiting {
        /// The queue's command.
        command: Arc<str>,
    },
    /// Returned dead-lettered tasks to their queue.
    Replay {
        /// The queue's command.
        command: Arc<str>,
        /// Only tasks whose last error contains this.
        error_contains: Option<Arc<str>>,
    },
}

/// A bounded part of a bulk operation, as version 1 encoded it: only replays had a filter.
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
