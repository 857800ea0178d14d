//! What a command answers. A rejection is an answer like any other: it changed nothing and says why.

use crate::command::{BulkFrom, Millis};
use crate::record::Record;
use crate::topic::Topic;
use crate::view::{ResultRecord, Task};

/// The answer to a command.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// Nothing to tell.
    Done,
    /// One answer for each task of an enqueue, in order.
    Enqueued(Vec<Enqueued>),
    /// The tasks that were leased; empty if there were none.
    Claimed(Vec<Task>),
    /// The lease was extended.
    Extended {
        /// The new end of the lease.
        lease_until: Millis,
        /// The producer wants the work to stop.
        cancel_requested: bool,
    },
    /// The task is finished; also for a repeat of the submit that finished it.
    Submitted(Box<ResultRecord>),
    /// The task went back.
    Returned(Returned),
    /// The task is finished as cancelled.
    Cancelled(Box<Task>),
    /// The task runs: its worker will be told.
    CancelRequested(Box<Task>),
    /// One task is back in its queue.
    Replayed(Box<Task>),
    /// Some tasks were touched.
    Bulk(Bulk),
    /// The topic as it is now.
    Topic {
        /// The topic.
        topic: Box<Topic>,
        /// Whether this command created it.
        created: bool,
    },
    /// The record as it is now.
    Record(Box<Record>),
    /// A part of a bulk operation is done.
    BulkPart(BulkDone),
    /// What a sweep did.
    Swept(Swept),
    /// The command was refused and changed nothing.
    Rejected(Rejection),
}

/// What became of one task of an enqueue.
#[derive(Debug, Clone, PartialEq)]
pub enum Enqueued {
    /// It was made.
    Created(Box<Task>),
    /// Its key was used before, for the same work: this is the task that was made then.
    Repeated(Box<Task>),
    /// It was refused.
    Rejected(Rejection),
}

/// Where a task went that its worker gave back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Returned {
    /// To its queue, claimable after a delay.
    Requeued {
        /// The delay that was applied.
        delay: Millis,
    },
    /// To the dead letters: its attempts are spent.
    Dead,
    /// It had been cancelled meanwhile and is finished.
    Cancelled,
}

/// The extent of a bulk operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bulk {
    /// Tasks touched.
    pub done: u64,
    /// Tasks that are still in the place that was worked on.
    pub remaining: u64,
    /// The number of the last task looked at: pass it on to go on.
    pub last: u64,
}

/// What a part of a bulk operation did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BulkDone {
    /// Tasks touched.
    pub done: u64,
    /// Where the next part goes on; none if there is nothing left to look at.
    pub next: Option<BulkFrom>,
}

/// What a sweep did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    /// Leases that ended.
    pub expired: u32,
    /// Delayed tasks that became claimable.
    pub promoted: u32,
    /// Pending tasks whose date is ahead again, because the wall clock was set back.
    pub postponed: u32,
    /// Finished tasks, old keys and records that were removed.
    pub removed: u32,
}

/// Why a command was refused. Messages are the short texts that clients read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// Empty, too long, or with control characters.
    #[error("invalid tenant")]
    InvalidTenant,
    /// Empty, too long, or with control characters.
    #[error("invalid command")]
    InvalidCommand,
    /// Empty, too long, or with control characters.
    #[error("invalid worker")]
    InvalidWorker,
    /// Too many commands in one claim.
    #[error("too many commands (at most {max})")]
    TooManyCommands {
        /// The bound.
        max: usize,
    },
    /// No tasks, or too many.
    #[error("batch size exceeds maximum of {max}")]
    InvalidBatch {
        /// The bound.
        max: usize,
    },
    /// The payload is empty or too large.
    #[error("invalid payload (1 to {max} bytes)")]
    InvalidPayload {
        /// The bound.
        max: usize,
    },
    /// The result is too large.
    #[error("invalid result (at most {max} bytes)")]
    InvalidResult {
        /// The bound.
        max: usize,
    },
    /// Too many artifacts, or a name or URL that is empty or too long.
    #[error("invalid artifacts")]
    InvalidArtifacts,
    /// Empty, too long, or with control characters.
    #[error("invalid webhook url")]
    InvalidWebhook,
    /// Empty or too long.
    #[error("invalid idempotency key (1 to {max} bytes)")]
    InvalidIdempotencyKey {
        /// The bound.
        max: usize,
    },
    /// Too far in the future.
    #[error("invalid delay (at most {max} ms)")]
    InvalidDelay {
        /// The bound.
        max: Millis,
    },
    /// Too short or too long.
    #[error("invalid lease ({min} to {max} ms)")]
    InvalidLease {
        /// The lower bound.
        min: Millis,
        /// The upper bound.
        max: Millis,
    },
    /// Zero, or too many.
    #[error("invalid count (1 to {max})")]
    InvalidCount {
        /// The bound.
        max: usize,
    },
    /// A setting is out of range.
    #[error("invalid setting '{field}'")]
    InvalidSetting {
        /// Which.
        field: &'static str,
    },
    /// A field of a topic policy is out of range.
    #[error("invalid topic policy: {field}")]
    InvalidTopic {
        /// Which.
        field: &'static str,
    },
    /// The name is not a DNS label of at most 63 characters.
    #[error("invalid topic name")]
    InvalidTopicName,
    /// The tenant has as many queues as it may.
    #[error("too many queues (at most {max})")]
    TooManyQueues {
        /// The bound.
        max: usize,
    },
    /// The key was used for other work.
    #[error("idempotency key was used with a different command or payload")]
    IdempotencyConflict,
    /// An atomic batch was refused because of this item.
    #[error("item {index}: {reason}")]
    InBatch {
        /// The position of the item.
        index: usize,
        /// What was wrong with it.
        reason: Box<Rejection>,
    },
    /// No such task in this tenant.
    #[error("not-found")]
    NotFound,
    /// The task is not leased (any more).
    #[error("not-in-progress")]
    NotInProgress,
    /// Somebody else has the lease.
    #[error("not-owner")]
    NotOwner,
    /// The task has been claimed again since the claim that was named.
    #[error("lease-lost")]
    LeaseLost,
    /// FAILED needs an error.
    #[error("error required when status=FAILED")]
    ErrorRequired,
    /// The task is finished.
    #[error("task is finished")]
    Finished,
    /// The task ended well: it is not run again.
    #[error("task is completed; only dead-lettered, failed and cancelled tasks can be replayed")]
    Completed,
    /// The task has not ended yet, so there is nothing to replay.
    #[error("task is not finished; only dead-lettered, failed and cancelled tasks can be replayed")]
    NotFinished,
    /// No callback is kept for this task.
    #[error("no callback")]
    NoCallback,
    /// A field of a record is empty, too long or out of range.
    #[error("invalid record: {field}")]
    InvalidRecord {
        /// Which.
        field: &'static str,
    },
    /// There are as many records as there may be.
    #[error("too many records (at most {max})")]
    TooManyRecords {
        /// The bound.
        max: usize,
    },
    /// The record is not the one that was expected.
    #[error("record has changed")]
    RecordChanged,
}
