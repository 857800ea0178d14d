//! Heartbeat: a worker extends its lease.

use codeq_core::command::{Heartbeat, LeaseAction, Millis};
use codeq_core::reply::Reply;
use codeq_engine::Answer;

use super::lease::LeaseRef;
use super::permission::MayHeartbeat;
use super::prepared_call::PreparedCall;
use super::{Service, ServiceError, task_id};

/// An extended lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extended {
    /// The new end of the lease.
    pub lease_until: Millis,
    /// The producer asked to cancel the task; the worker should stop.
    pub cancel_requested: bool,
}

impl Service {
    /// Extends the caller's lease to now + `extend_seconds`.
    pub fn heartbeat(
        &self,
        caller: MayHeartbeat<'_>,
        id: &str,
        extend_seconds: Option<i64>,
        lease: LeaseRef,
    ) -> Result<PreparedCall<Extended>, ServiceError> {
        let id = task_id(id, "not-found")?;
        let heartbeat = Heartbeat {
            tenant: caller.tenant.clone(),
            id,
            worker: caller.subject.clone(),
            extend: self.lease(extend_seconds, "extendSeconds")?,
        };
        let command = lease.command(LeaseAction::Heartbeat(heartbeat));
        Ok(self.under_lease("heartbeat", &caller, id, command, extended))
    }
}

fn extended(answer: Answer) -> Result<Extended, ServiceError> {
    match answer? {
        Reply::Extended { lease_until, cancel_requested } => {
            Ok(Extended { lease_until, cancel_requested })
        }
        Reply::Rejected(rejection) => Err(rejection.into()),
        _ => Err(ServiceError::unexpected()),
    }
}
