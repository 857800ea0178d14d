//! Abandon: a worker gives a task back.

use codeq_core::command::{Abandon, Deed};
use codeq_core::reply::Returned;
use tracing::Instrument;

use super::lease::LeaseNamed;
use super::nack::returned;
use super::permission::Permissions;
use super::{Service, ServiceError, task_id};
use crate::auth::{Principal, Scope};

impl Service {
    /// Gives a task back, spending an attempt unless `penalty` is false.
    pub async fn abandon(
        &self,
        caller: &Principal,
        id: &str,
        penalty: bool,
        lease: LeaseNamed,
    ) -> Result<Returned, ServiceError> {
        caller.needs(Scope::Abandon)?;
        let id = task_id(id, "not-found")?;
        let span = self.span("abandon", caller, id).await;
        let abandon = Abandon {
            tenant: caller.tenant.clone(),
            id,
            worker: caller.subject.clone(),
            penalty,
            fence: None,
        };
        let command = lease.command(Deed::Abandon(abandon));
        returned(self.engine.propose(command).instrument(span).await?)
    }
}
