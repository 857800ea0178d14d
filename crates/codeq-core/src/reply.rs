//! What a command returns. A rejection is a normal reply: nothing changed, and it says why.

use crate::command::{BulkFrom, Millis};
use crate::record::Record;
use crate::topic::Topic;
use crate::view::{ResultRecord, Task};

/// The answer to a command.
#[derive(Debug, Clone, PartialEq)]
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
    /// The task is running; its next heartbeat tells the worker to stop.
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
    /// The command was refused and changed nothing.
    Rejected(Rejection),
}

/// Result for one task of an enqueue.
#[derive(Debug, Clone, PartialEq)]
pub enum Enqueued {
    /// It was created.
    Created(Box<Task>),
    /// Its key was used before for the same work: this is the existing task.
    Repeated(Box<Task>),
    /// It was refused.
    Rejected(Rejection),
}

/// Where a task went that its worker returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bulk {
    /// Tasks touched.
    pub done: u64,
    /// Tasks left in the place that was worked on.
    pub remaining: u64,
    /// Number of the last task visited; pass it on to continue.
    pub last: u64,
}

/// Outcome of one part of a bulk operation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BulkDone {
    /// Tasks touched.
    pub done: u64,
    /// Where the next part starts; `None` once there is nothing left to look at.
    pub next: Option<BulkFrom>,
}

/// What a sweep did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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

/// Why a command was refused. Clients see the messages.
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
        /// The upper bound.
        max: usize,
    },
    /// No tasks, or too many.
    #[error("batch size exceeds maximum of {max}")]
    InvalidBatch {
        /// The upper bound.
        max: usize,
    },
    /// The payload is empty or too large.
    #[error("invalid payload (1 to {max} bytes)")]
    InvalidPayload {
        /// The upper bound.
        max: usize,
    },
    /// The result is too large.
    #[error("invalid result (at most {max} bytes)")]
    InvalidResult {
        /// The upper bound.
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
        /// The upper bound.
        max: usize,
    },
    /// Too far in the future.
    #[error("invalid delay (at most {max} ms)")]
    InvalidDelay {
        /// The upper bound.
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
    /// Zero or too large.
    #[error("invalid count (1 to {max})")]
    InvalidCount {
        /// The upper bound.
        max: usize,
    },
    /// A setting is out of range.
    #[error("invalid setting '{field}'")]
    InvalidSetting {
        /// The field's name.
        field: &'static str,
    },
    /// A field of a topic policy is out of range.
    #[error("invalid topic policy: {field}")]
    InvalidTopic {
        /// The field's name.
        field: &'static str,
    },
    /// The name is not a DNS label of at most 63 characters.
    #[error("invalid topic name")]
    InvalidTopicName,
    /// The tenant has reached its limit of queues.
    #[error("too many queues (at most {max})")]
    TooManyQueues {
        /// The upper bound.
        max: usize,
    },
    /// The key was used before for different work.
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
    /// The task is not leased, or no longer.
    #[error("not-in-progress")]
    NotInProgress,
    /// Another worker holds the lease.
    #[error("not-owner")]
    NotOwner,
    /// The task was claimed again after the claim that was named.
    #[error("lease-lost")]
    LeaseLost,
    /// A FAILED result needs an error.
    #[error("error required when status=FAILED")]
    ErrorRequired,
    /// The task is already finished.
    #[error("task is finished")]
    Finished,
    /// The task succeeded and cannot be replayed.
    #[error("task is completed; only dead-lettered, failed and cancelled tasks can be replayed")]
    Completed,
    /// The task has not finished yet, so there is nothing to replay.
    #[error("task is not finished; only dead-lettered, failed and cancelled tasks can be replayed")]
    NotFinished,
    /// The task has no pending or failed callback.
    #[error("no callback")]
    NoCallback,
    /// A field of a record is empty, too long or out of range.
    #[error("invalid record: {field}")]
    InvalidRecord {
        /// The field's name.
        field: &'static str,
    },
    /// The limit of records is reached.
    #[error("too many records (at most {max})")]
    TooManyRecords {
        /// The upper bound.
        max: usize,
    },
    /// The record's revision is not the expected one.
    #[error("record has changed")]
    RecordChanged,
}
