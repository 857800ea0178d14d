//! Heartbeat: a worker keeps its lease.

use codeq_core::command::{Deed, Heartbeat, Millis};
use codeq_core::reply::Reply;
use tracing::Instrument;

use super::lease::LeaseNamed;
use super::permission::Permissions;
use super::{Service, ServiceError, task_id};
use crate::auth::{Principal, Scope};

/// A lease that was extended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extended {
    /// Its new end.
    pub lease_until: Millis,
    /// The producer wants the work to stop.
    pub cancel_requested: bool,
}

impl Service {
    /// Sets the end of the caller's lease to now + `extend_seconds`.
    pub async fn heartbeat(
        &self,
        caller: &Principal,
        id: &str,
        extend_seconds: Option<i64>,
        lease: LeaseNamed,
    ) -> Result<Extended, ServiceError> {
        caller.needs(Scope::Heartbeat)?;
        let id = task_id(id, "not-found")?;
        let span = self.span("heartbeat", caller, id).await;
        let heartbeat = Heartbeat {
            tenant: caller.tenant.clone(),
            id,
            worker: caller.subject.clone(),
            extend: self.lease(extend_seconds, "extendSeconds")?,
        };
        let command = lease.command(Deed::Heartbeat(heartbeat));
        match self.engine.propose(command).instrument(span).await? {
            Reply::Extended { lease_until, cancel_requested } => {
                Ok(Extended { lease_until, cancel_requested })
            }
            Reply::Rejected(rejection) => Err(rejection.into()),
            _ => Err(ServiceError::unexpected()),
        }
    }
}
