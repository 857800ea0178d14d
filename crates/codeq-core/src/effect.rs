//! What follows from an applied command, outside the rules.
//!
//! Effects are hints for the engine: wake somebody, count something, start a delivery. Nothing durable
//! depends on them; what must survive is in the rows.

use std::sync::Arc;

use crate::command::{Artifact, Millis};
use crate::history::Event;
use crate::id::TaskId;
use crate::keys::QueueId;
use crate::moment::Moment;
use crate::place::Place;
use crate::record::RecordKind;

/// Something happened that somebody outside may wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// A queue has a task that can be claimed and had none before. Sent once: whoever is woken and finds more
    /// than he takes wakes the next.
    Ready {
        /// The queue.
        queue: QueueId,
    },
    /// A task moved.
    Moved(Move),
    /// A result callback is to be delivered.
    CallbackDue {
        /// The number of the finished task.
        seq: u64,
        /// When it is due, by engine time.
        at: Millis,
    },
    /// A record was put, deleted, or is over.
    RecordChanged {
        /// What it is for.
        kind: RecordKind,
        /// Whose.
        tenant: Arc<str>,
        /// Its name.
        name: Arc<str>,
    },
    /// A finished task was removed or replayed, and its result named artifacts: what was stored for it is of no
    /// more use.
    ArtifactsGone {
        /// The task.
        id: TaskId,
        /// What its result named.
        artifacts: Vec<Artifact>,
    },
}

/// A transition of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// Counts the transitions of the shard, for ever: the same transition has the same number whenever it is
    /// seen, also after a restart.
    pub number: u64,
    /// The task.
    pub id: TaskId,
    /// Whose.
    pub tenant: Arc<str>,
    /// The name of its queue.
    pub queue: Arc<str>,
    /// Where it was; none for a new task.
    pub from: Option<Place>,
    /// Where it is; none for a task that is gone.
    pub to: Option<Place>,
    /// What moved it.
    pub event: Event,
    /// When.
    pub at: Moment,
    /// How long ago the task was made.
    pub age: Millis,
    /// Its failed executions.
    pub attempts: u32,
}
