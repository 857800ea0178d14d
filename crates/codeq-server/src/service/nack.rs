//! Nack: a worker gives a task back as failed, to be tried again.

use std::sync::Arc;

use codeq_core::command::{Deed, Nack};
use codeq_core::reply::{Reply, Returned};
use tracing::Instrument;

use super::lease::LeaseNamed;
use super::permission::Permissions;
use super::{Service, ServiceError, seconds, seed, task_id};
use crate::auth::{Principal, Scope};

impl Service {
    /// Gives a task back. `delay_seconds` is used as given, zero included; none means the backoff policy.
    pub async fn nack(
        &self,
        caller: &Principal,
        id: &str,
        delay_seconds: Option<u64>,
        reason: Option<Arc<str>>,
        lease: LeaseNamed,
    ) -> Result<Returned, ServiceError> {
        caller.needs(Scope::Nack)?;
        let id = task_id(id, "not-found")?;
        let span = self.span("nack", caller, id).await;
        let nack = Nack {
            tenant: caller.tenant.clone(),
            id,
            worker: caller.subject.clone(),
            delay: delay_seconds.map(seconds),
            reason,
            seed: seed(),
        };
        let command = lease.command(Deed::Nack(nack));
        returned(self.engine.propose(command).instrument(span).await?)
    }
}

/// Where a task went that was given back.
pub(super) fn returned(reply: Reply) -> Result<Returned, ServiceError> {
    match reply {
        Reply::Returned(returned) => Ok(returned),
        Reply::Rejected(rejection) => Err(rejection.into()),
        _ => Err(ServiceError::unexpected()),
    }
}
