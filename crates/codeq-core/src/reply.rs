//! What a command returns. A rejection is a normal reply: what was asked for was not done, and it says why. Replies can
//! be encoded, as commands can.

use serde::{Deserialize, Serialize};

use crate::command::BulkFrom;
use crate::keys::Seq;
use crate::moment::Millis;
use crate::record::Record;
use crate::topic::Topic;
use crate::view::{ResultRecord, Task};

pub use crate::rejection::Rejection;

/// The answer to a command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// Success, with nothing to report.
    Done,
    /// One result per task of an enqueue, in order.
    Enqueued(Vec<Enqueued>),
    /// The leased tasks; empty if nothing was claimable.
    Claimed(Vec<Task>),
    /// The lease was extended.
    Extended {
        /// The new end of the lease.
        lease_until: Millis,
        /// The producer asked for the work to stop.
        cancel_requested: bool,
    },
    /// The task is finished. Also the reply to a repeated submit.
    Submitted(Box<ResultRecord>),
    /// The worker returned the task.
    Returned(Returned),
    /// The task was cancelled.
    Cancelled(Box<Task>),
    /// The task is running; its worker will be asked to stop.
    CancelRequested(Box<Task>),
    /// The task is back in its queue.
    Replayed(Box<Task>),
    /// Outcome of a bulk command of an older log.
    Bulk(Bulk),
    /// The topic after the change.
    Topic {
        /// The topic.
        topic: Box<Topic>,
        /// Whether this command created it.
        created: bool,
    },
    /// The record after the change.
    Record(Box<Record>),
    /// One part of a bulk operation is done.
    BulkPart(BulkDone),
    /// What a sweep did.
    Swept(Swept),
    /// The command was refused. It changed nothing, except that it may have ended a lease that was over.
    Rejected(Rejection),
    /// The task after a change of its priority or delay.
    Rescheduled(Box<Task>),
}

/// Result for one task of an enqueue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Enqueued {
    /// It was created.
    Created(Box<Task>),
    /// Its key was used before for the same work: this is the existing task.
    Repeated(Box<Task>),
    /// It was refused.
    Rejected(Rejection),
}

/// Where a task that its worker returned went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Returned {
    /// Back to its queue, claimable after a delay.
    Requeued {
        /// The delay that was applied.
        delay: Millis,
    },
    /// To the dead letters: its attempts are used up.
    Dead,
    /// Cancellation had been requested, so it is finished as cancelled.
    Cancelled,
}

/// Outcome of a bulk command of an older log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bulk {
    /// Tasks changed.
    pub done: u64,
    /// Tasks left in the place that was worked on.
    pub remaining: u64,
    /// Number of the last task visited; pass it on to continue.
    pub last: Seq,
}

/// Outcome of one part of a bulk operation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BulkDone {
    /// Tasks changed.
    pub done: u64,
    /// Where the next part starts; `None` once there is nothing left to look at.
    pub next: Option<BulkFrom>,
}

/// What a sweep did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Swept {
    /// Leases that expired.
    pub expired: u32,
    /// Delayed tasks that became claimable.
    pub promoted: u32,
    /// Pending tasks delayed again because the wall clock was set back before their `runAt`.
    pub postponed: u32,
    /// Finished tasks, idempotency keys and records that were removed.
    pub removed: u32,
}
