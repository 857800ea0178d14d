//! Where a task is. The place is authoritative; status and location texts are derived from it.

use serde::{Deserialize, Serialize};

/// The place of a task; it is in exactly one. The order of the variants is part of the on-disk format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Place {
    /// Waiting to be claimed.
    Pending,
    /// Waiting for its delay or `runAt` to pass.
    Delayed,
    /// Leased to a worker.
    InProgress,
    /// Finished successfully.
    Completed,
    /// Finished unsuccessfully: failed by a worker, or cancelled.
    Failed,
    /// Finished unsuccessfully: its attempts are used up. Can be replayed.
    Dead,
}

/// The status that clients see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Status {
    /// Pending or delayed.
    Pending,
    /// Leased.
    InProgress,
    /// Finished successfully.
    Completed,
    /// Failed, cancelled or dead-lettered.
    Failed,
}

/// The state of a task, in more detail than its status: what the counters of a queue tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TaskState {
    /// Waiting to be claimed.
    Ready,
    /// Waiting for its delay or `runAt` to pass.
    Delayed,
    /// Leased to a worker.
    Running,
    /// Finished successfully.
    Completed,
    /// Failed by a worker.
    Failed,
    /// Cancelled.
    Cancelled,
    /// Its attempts are used up.
    Dead,
}

impl TaskState {
    /// Every state.
    pub const ALL: [TaskState; 7] = [
        TaskState::Ready,
        TaskState::Delayed,
        TaskState::Running,
        TaskState::Completed,
        TaskState::Failed,
        TaskState::Cancelled,
        TaskState::Dead,
    ];

    /// The text used in wire formats.
    pub fn as_str(self) -> &'static str {
        match self {
            TaskState::Ready => "ready",
            TaskState::Delayed => "delayed",
            TaskState::Running => "running",
            TaskState::Completed => "completed",
            TaskState::Failed => "failed",
            TaskState::Cancelled => "cancelled",
            TaskState::Dead => "dead",
        }
    }

    /// The list that holds tasks of this state, perhaps among others.
    pub fn list(self) -> Place {
        match self {
            TaskState::Ready | TaskState::Delayed => Place::Pending,
            TaskState::Running => Place::InProgress,
            TaskState::Completed => Place::Completed,
            TaskState::Failed | TaskState::Cancelled => Place::Failed,
            TaskState::Dead => Place::Dead,
        }
    }
}

impl Place {
    /// Every place, in declaration order.
    pub const ALL: [Place; 6] = [
        Place::Pending,
        Place::Delayed,
        Place::InProgress,
        Place::Completed,
        Place::Failed,
        Place::Dead,
    ];

    /// Whether the task is finished. Dead-lettered tasks count: they have a result.
    pub fn is_terminal(self) -> bool {
        matches!(self, Place::Completed | Place::Failed | Place::Dead)
    }

    /// The status shown to clients.
    pub fn status(self) -> Status {
        match self {
            Place::Pending | Place::Delayed => Status::Pending,
            Place::InProgress => Status::InProgress,
            Place::Completed => Status::Completed,
            Place::Failed | Place::Dead => Status::Failed,
        }
    }

    /// The value of the API's `lastKnownLocation`.
    pub fn location(self) -> &'static str {
        match self {
            Place::Pending => "PENDING_LIST",
            Place::Delayed => "DELAYED_ZSET",
            Place::InProgress => "INPROG_SET",
            Place::Dead => "DLQ_SET",
            Place::Completed | Place::Failed => "NONE",
        }
    }

    /// The number of the list that holds the task. Pending and delayed tasks share a list, so a task that comes due
    /// does not move between lists.
    pub fn index_code(self) -> u8 {
        match self {
            Place::Pending | Place::Delayed => 0,
            Place::InProgress => 1,
            Place::Completed => 2,
            Place::Failed => 3,
            Place::Dead => 4,
        }
    }
}

impl Status {
    /// Every status.
    pub const ALL: [Status; 4] =
        [Status::Pending, Status::InProgress, Status::Completed, Status::Failed];

    /// The text used in wire formats.
    pub fn as_str(self) -> &'static str {
        match self {
            Status::Pending => "PENDING",
            Status::InProgress => "IN_PROGRESS",
            Status::Completed => "COMPLETED",
            Status::Failed => "FAILED",
        }
    }

    /// One place per list that holds tasks of this status.
    pub fn lists(self) -> &'static [Place] {
        match self {
            Status::Pending => &[Place::Pending],
            Status::InProgress => &[Place::InProgress],
            Status::Completed => &[Place::Completed],
            Status::Failed => &[Place::Failed, Place::Dead],
        }
    }
}
