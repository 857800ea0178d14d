//! Commands of workers that name the lease they act under.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Abandon, Command, Heartbeat, Nack, Submit};
use crate::id::TaskId;

/// A command of a worker that names the lease it acts under more exactly than by its worker alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UnderLease {
    /// Only under the claim with this number; none means whichever the worker has.
    pub fence: Option<u64>,
    /// The instance of the worker that acts. It counts if the lease was given to an instance; a lease that the
    /// worker took without naming one is the worker's.
    pub instance: Option<Arc<str>>,
    /// What it does.
    pub deed: Box<Deed>,
}

/// What a worker can do with a task that it holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Deed {
    /// Extend the lease.
    Heartbeat(Heartbeat),
    /// Finish the task.
    Submit(Submit),
    /// Give it back as failed.
    Nack(Nack),
    /// Give it back.
    Abandon(Abandon),
}

impl Deed {
    /// The task.
    pub fn id(&self) -> TaskId {
        match self {
            Deed::Heartbeat(deed) => deed.id,
            Deed::Submit(deed) => deed.id,
            Deed::Nack(deed) => deed.id,
            Deed::Abandon(deed) => deed.id,
        }
    }

    /// Whose task.
    pub fn tenant(&self) -> &Arc<str> {
        match self {
            Deed::Heartbeat(deed) => &deed.tenant,
            Deed::Submit(deed) => &deed.tenant,
            Deed::Nack(deed) => &deed.tenant,
            Deed::Abandon(deed) => &deed.tenant,
        }
    }

    /// The worker.
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
