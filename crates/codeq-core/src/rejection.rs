//! Why a command was refused. A rejection is a reply: what was asked for was not done.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::moment::Millis;

/// Why a command was refused. Clients see the messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
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
    #[error("a batch needs 1 to {max} tasks")]
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
        field: Cow<'static, str>,
    },
    /// A field of a topic policy is out of range.
    #[error("invalid topic policy: {field}")]
    InvalidTopic {
        /// The field's name.
        field: Cow<'static, str>,
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
    /// The tenant has no such task, queue, topic or record.
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
        field: Cow<'static, str>,
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
    /// A worker is running the task.
    #[error("task is in progress")]
    InProgress,
    /// The maximum run time is too short or too long.
    #[error("invalid maximum run time")]
    InvalidMaxRun {
        /// Lower bound in milliseconds.
        min: Millis,
        /// Upper bound in milliseconds.
        max: Millis,
    },
}
