//! Worker commands that name the lease they act under.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Abandon, Command, Heartbeat, Nack, Submit};
use crate::id::TaskId;

/// A worker command that identifies its lease more precisely than by the worker alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UnderLease {
    /// Applies only to the claim with this fence; `None` accepts the worker's current lease.
    pub fence: Option<Fence>,
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

number! {
    /// The number of a task's claim; 0 if it was never claimed.
    Fence(u64)
}

/// Identifies who acts on a task.
#[derive(Debug, Clone, Copy)]
pub struct Holder<'a> {
    /// The worker's identity.
    pub worker: &'a str,
    /// Its instance, if it names one.
    pub instance: Option<&'a str>,
    /// The fence of the claim it acts under, if it names one.
    pub fence: Option<Fence>,
}

impl<'a> Holder<'a> {
    /// A worker that names neither an instance nor a claim.
    pub fn plain(worker: &'a str) -> Holder<'a> {
        Holder { worker, instance: None, fence: None }
    }

    /// The holder that a command names.
    pub fn of(command: &'a UnderLease) -> Holder<'a> {
        let (worker, instance) = (command.deed.worker(), command.instance.as_deref());
        Holder { worker, instance, fence: command.fence }
    }

    /// Whether this holder owns a lease that belongs to `owner`.
    pub fn is(&self, owner: &str) -> bool {
        owner == self.worker || self.instance == Some(owner)
    }

    /// Whether the holder names no fence, or the task's latest one.
    pub fn is_current(&self, fence: Fence) -> bool {
        self.fence.is_none_or(|named| named == fence)
    }
}
