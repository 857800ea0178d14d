//! Side effects of an applied command, for the code outside the rules.
//!
//! Effects are hints to the engine: wake a waiter, count something, start a delivery. Nothing durable depends on them;
//! whatever must survive is in the rows.

use std::sync::Arc;

use crate::command::Artifact;
use crate::history::Event;
use crate::id::TaskId;
use crate::keys::{QueueId, Seq};
use crate::moment::{Millis, Moment};
use crate::place::Place;
use crate::record::RecordKind;

/// Something that code outside the rules may have to react to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// A queue that had no claimable task now has one. Sent once, not for each task: serve waiting claims until the
    /// queue has no claimable task or no claim waits.
    Ready {
        /// The queue that has work.
        queue: QueueId,
    },
    /// A task made a transition.
    Moved(Transition),
    /// A result callback has to be delivered.
    CallbackDue {
        /// Number of the finished task.
        seq: Seq,
        /// When it is due, by engine time.
        at: Millis,
    },
    /// A record was put, deleted, or has expired.
    RecordChanged {
        /// What it is for.
        kind: RecordKind,
        /// The tenant that owns it.
        tenant: Arc<str>,
        /// The record's name.
        name: Arc<str>,
    },
    /// A finished task was removed or replayed, so the artifacts of its result are no longer needed.
    ArtifactsGone {
        /// The task.
        id: TaskId,
        /// The artifacts its result named.
        artifacts: Vec<Artifact>,
    },
}

/// A task's transition. The two places may be the same, for example when cancellation of a running task is requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transition {
    /// The number of this transition in its shard. It is never reused and survives restarts.
    pub number: u64,
    /// The task.
    pub id: TaskId,
    /// The tenant that owns it.
    pub tenant: Arc<str>,
    /// The queue's name.
    pub queue: Arc<str>,
    /// The previous place; `None` for a new task.
    pub from: Option<Place>,
    /// The new place; `None` for a task that was removed.
    pub to: Option<Place>,
    /// What moved it.
    pub event: Event,
    /// When it happened.
    pub at: Moment,
    /// How long ago the task was created.
    pub age: Millis,
    /// The task's failed attempts.
    pub attempts: u32,
}
