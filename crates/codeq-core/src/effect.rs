//! What follows from an applied command, outside the rules.
//!
//! Effects are hints for the engine: wake somebody, count something, start a delivery. Nothing durable
//! depends on them; what must survive is in the rows.

use crate::history::Event;
use crate::keys::QueueId;
use crate::place::Place;

/// Something happened that somebody outside may wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// A queue has a task that can be claimed and had none before. Sent once: whoever is woken and finds more
    /// than he takes wakes the next.
    Ready {
        /// The queue.
        queue: QueueId,
    },
    /// A task moved.
    Moved {
        /// Its number.
        seq: u64,
        /// Its queue.
        queue: QueueId,
        /// Where it was; none for a new task.
        from: Option<Place>,
        /// Where it is; none for a task that is gone.
        to: Option<Place>,
        /// What moved it.
        event: Event,
    },
    /// A result callback became due.
    CallbackDue {
        /// The number of the finished task.
        seq: u64,
    },
}
