//! Where a task is. The place is the truth; status and location texts are derived from it.

use serde::{Deserialize, Serialize};

/// The one place that a task is in. The order of the variants is part of the on-disk format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Place {
    /// Waiting to be claimed.
    Pending,
    /// Waiting for its time.
    Delayed,
    /// Leased to a worker.
    InProgress,
    /// Finished well.
    Completed,
    /// Finished badly: a worker said so, or it was cancelled.
    Failed,
    /// Finished badly: its attempts ran out. Can be replayed.
    Dead,
}

/// The status that clients see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Status {
    /// Pending or delayed.
    Pending,
    /// Leased.
    InProgress,
    /// Finished well.
    Completed,
    /// Finished badly, or dead-lettered.
    Failed,
}

impl Place {
    /// Every place.
    pub const ALL: [Place; 6] = [
        Place::Pending,
        Place::Delayed,
        Place::InProgress,
        Place::Completed,
        Place::Failed,
        Place::Dead,
    ];

    /// Whether the task is finished (dead-lettered counts: it has its one result).
    pub fn is_terminal(self) -> bool {
        matches!(self, Place::Completed | Place::Failed | Place::Dead)
    }

    /// The client's word for it.
    pub fn status(self) -> Status {
        match self {
            Place::Pending | Place::Delayed => Status::Pending,
            Place::InProgress => Status::InProgress,
            Place::Completed => Status::Completed,
            Place::Failed | Place::Dead => Status::Failed,
        }
    }

    /// codeQ's `lastKnownLocation`.
    pub fn location(self) -> &'static str {
        match self {
            Place::Pending => "PENDING_LIST",
            Place::Delayed => "DELAYED_ZSET",
            Place::InProgress => "INPROG_SET",
            Place::Dead => "DLQ_SET",
            Place::Completed | Place::Failed => "NONE",
        }
    }

    /// The list that the task is found in. Pending and delayed share one: a task that comes due does not
    /// move in any list.
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
    /// The text of the wire formats.
    pub fn as_str(self) -> &'static str {
        match self {
            Status::Pending => "PENDING",
            Status::InProgress => "IN_PROGRESS",
            Status::Completed => "COMPLETED",
            Status::Failed => "FAILED",
        }
    }

    /// One place for every list in which tasks of this status are found.
    pub fn lists(self) -> &'static [Place] {
        match self {
            Status::Pending => &[Place::Pending],
            Status::InProgress => &[Place::InProgress],
            Status::Completed => &[Place::Completed],
            Status::Failed => &[Place::Failed, Place::Dead],
        }
    }
}
