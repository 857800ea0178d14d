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
    /// The whole identity of the worker's instance: subject, [`INSTANCE_SEPARATOR`](crate::names::INSTANCE_SEPARATOR) and
    /// name. It must match if the lease was given to an instance; a lease claimed without one belongs to the worker as a
    /// whole.
    pub instance: Option<Arc<str>>,
    /// The action itself.
    pub action: Box<LeaseAction>,
}

/// What a worker can do with a task it holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum LeaseAction {
    /// Extend the lease.
    Heartbeat(Heartbeat),
    /// Finish the task.
    Submit(Submit),
    /// Return it as failed.
    Nack(Nack),
    /// Return it unfinished.
    Abandon(Abandon),
}

impl LeaseAction {
    /// The task's id.
    pub fn id(&self) -> TaskId {
        match self {
            LeaseAction::Heartbeat(action) => action.id,
            LeaseAction::Submit(action) => action.id,
            LeaseAction::Nack(action) => action.id,
            LeaseAction::Abandon(action) => action.id,
        }
    }

    /// The tenant that owns the task.
    pub fn tenant(&self) -> &Arc<str> {
        match self {
            LeaseAction::Heartbeat(action) => &action.tenant,
            LeaseAction::Submit(action) => &action.tenant,
            LeaseAction::Nack(action) => &action.tenant,
            LeaseAction::Abandon(action) => &action.tenant,
        }
    }

    /// The worker that acts.
    pub fn worker(&self) -> &Arc<str> {
        match self {
            LeaseAction::Heartbeat(action) => &action.worker,
            LeaseAction::Submit(action) => &action.worker,
            LeaseAction::Nack(action) => &action.worker,
            LeaseAction::Abandon(action) => &action.worker,
        }
    }
}

impl From<LeaseAction> for Command {
    fn from(action: LeaseAction) -> Command {
        match action {
            LeaseAction::Heartbeat(action) => Command::Heartbeat(action),
            LeaseAction::Submit(action) => Command::Submit(action),
            LeaseAction::Nack(action) => Command::Nack(action),
            LeaseAction::Abandon(action) => Command::Abandon(action),
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
    /// The whole identity of its instance, if it names one.
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
        let (worker, instance) = (command.action.worker(), command.instance.as_deref());
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
