//! Which lease a worker acts under, beyond who it is.

use std::sync::Arc;

use codeq_core::command::{Command, Deed, UnderLease};
use codeq_core::lease::Holder;
use codeq_core::names::check_worker;

use super::{Code, ServiceError};
use crate::auth::{Principal, instance};

/// What a worker says of its lease. Nothing means: whichever lease the token's subject has.
#[derive(Debug, Clone, Default)]
pub struct LeaseNamed {
    /// The instance below the token's subject that claimed the task.
    pub instance: Option<Arc<str>>,
    /// The number of the claim.
    pub fence: Option<u64>,
}

impl LeaseNamed {
    /// The lease with this fence, or whichever.
    pub fn fence(fence: Option<u64>) -> LeaseNamed {
        LeaseNamed { instance: None, fence }
    }

    /// The lease that a client means by `workerId` and `fence`. A `workerId` that cannot have claimed anything is
    /// passed over: codeQ's clients send whatever they are configured with, and claim without one.
    pub fn new(caller: &Principal, worker_id: Option<&str>, fence: Option<u64>) -> LeaseNamed {
        let identity = worker_id.map(|name| identity(caller, name).ok());
        LeaseNamed { instance: identity.flatten().filter(|id| *id != caller.subject), fence }
    }

    /// Who acts.
    pub fn holder<'a>(&'a self, worker: &'a str) -> Holder<'a> {
        Holder { worker, instance: self.instance.as_deref(), fence: self.fence }
    }

    /// The command that does this under the lease.
    pub fn command(self, deed: Deed) -> Command {
        let LeaseNamed { instance, fence } = self;
        if instance.is_none() && fence.is_none() {
            return deed.into();
        }
        Command::UnderLease(UnderLease { fence, instance, deed: Box::new(deed) })
    }
}

/// Who claims: the token's subject, or an instance below it that the client names. The name may be the whole
/// identity, `subject/instance`, as answers show it.
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
        let detail = "workerId is too long or not printable: with the token's subject it may have \
                      253 bytes";
        return Err(refused.field("workerId").detail(detail));
    }
    Ok(identity.into())
}
