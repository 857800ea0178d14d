//! Worker commands that name the lease they act under.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Abandon, Command, Heartbeat, Nack, Submit};
use crate::id::TaskId;

/// A worker command that identifies its lease more precisely than by the worker alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UnderLease {
    /// Applies only to the claim with this fence; `None` accepts the worker's current lease.
    pub fence: Option<u64>,
    /// The worker's instance. It must match if the lease was given to an instance; a lease claimed without one belongs
    /// to the worker as a whole.
    pub instance: Option<Arc<str>>,
    /// The action itself.
    pub deed: Box<Deed>,
}

/// What a worker can do with a task it holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Deed {
    /// Extend the lease.
    Heartbeat(Heartbeat),
    /// Finish the task.
    Submit(Submit),
    /// Return it as failed.
    Nack(Nack),
    /// Return it unfinished.
    Abandon(Abandon),
}

impl Deed {
    /// The task's id.
    pub fn id(&self) -> TaskId {
        match self {
            Deed::Heartbeat(deed) => deed.id,
            Deed::Submit(deed) => deed.id,
            Deed::Nack(deed) => deed.id,
            Deed::Abandon(deed) => deed.id,
        }
    }

    /// The tenant that owns the task.
    pub fn tenant(&self) -> &Arc<str> {
        match self {
            Deed::Heartbeat(deed) => &deed.tenant,
            Deed::Submit(deed) => &deed.tenant,
            Deed::Nack(deed) => &deed.tenant,
            Deed::Abandon(deed) => &deed.tenant,
        }
    }

    /// The worker that acts.
    pub fn worker(&self) -> &Arc<str> {
        match self {
            Deed::Heartbeat(deed) => &deed.worker,
            Deed::Submit(deed) => &deed.worker,
            Deed::Nack(deed) => &deed.worker,
            Deed::Abandon(deed) => &deed.worker,
        }
    }
}

impl From<Deed> for Command {
    fn from(deed: Deed) -> Command {
        match deed {
            Deed::Heartbeat(deed) => Command::Heartbeat(deed),
            Deed::Submit(deed) => Command::Submit(deed),
            Deed::Nack(deed) => Command::Nack(deed),
            Deed::Abandon(deed) => Command::Abandon(deed),
        }
    }
}
