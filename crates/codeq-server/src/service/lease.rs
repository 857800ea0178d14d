//! Identifies the lease a worker acts under.

use std::sync::Arc;

use codeq_auth::{Principal, instance};
use codeq_core::command::{Command, Fence, LeaseAction, UnderLease};
use codeq_core::lease::Holder;
use codeq_core::names::check_worker;

use super::{Code, ServiceError};

/// How a worker identifies its lease. With no field set: any lease of the token's subject.
#[derive(Debug, Clone, Default)]
pub struct LeaseRef {
    /// The instance, under the token's subject, that claimed the task.
    pub instance: Option<Arc<str>>,
    /// The fence number the claim returned.
    pub fence: Option<Fence>,
}

impl LeaseRef {
    /// Identifies a lease by its fence alone; `None` matches any lease.
    pub fn fence(fence: Option<u64>) -> LeaseRef {
        LeaseRef { instance: None, fence: fence.map(Fence) }
    }

    /// Identifies a lease by a client's `workerId` and `fence`. Ignores a `workerId` that no claim could have used: some
    /// clients claim without one but send a configured one with their results.
    pub fn new(caller: &Principal, worker_id: Option<&str>, fence: Option<u64>) -> LeaseRef {
        let identity = worker_id.map(|name| identity(caller, name).ok());
        LeaseRef {
            instance: identity.flatten().filter(|id| *id != caller.subject),
            fence: fence.map(Fence),
        }
    }

    /// The holder to act as, given the token's subject.
    pub fn holder<'a>(&'a self, worker: &'a str) -> Holder<'a> {
        Holder { worker, instance: self.instance.as_deref(), fence: self.fence }
    }

    /// Wraps an operation into a command bound to this lease.
    pub fn command(self, action: LeaseAction) -> Command {
        let LeaseRef { instance, fence } = self;
        if instance.is_none() && fence.is_none() {
            return action.into();
        }
        Command::UnderLease(UnderLease { fence, instance, action: Box::new(action) })
    }
}

/// The claiming identity: the token's subject plus the instance the client names. The name may also
/// be the full `subject/instance`, as responses show it.
pub fn identity(caller: &Principal, name: &str) -> Result<Arc<str>, ServiceError> {
    let subject = &caller.subject;
    let below = name.strip_prefix(&**subject).and_then(|rest| rest.strip_prefix('/'));
    let name = below.unwrap_or(name);
    if name.is_empty() || *name == **subject {
        return Ok(Arc::clone(subject));
    }
    let identity = instance(subject, name);
    if check_worker(&identity).is_err() {
        let refused = ServiceError::new(Code::InvalidWorker, "invalid workerId");
        let detail = "workerId is too long or not printable: together with the token's subject it may have at \
                      most 253 bytes";
        return Err(refused.field("workerId").detail(detail));
    }
    Ok(identity.into())
}
