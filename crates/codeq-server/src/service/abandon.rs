//! Abandon: a worker gives a task back.

use codeq_core::command::{Abandon, Deed};
use codeq_core::reply::Returned;

use super::ask::Ask;
use super::lease::LeaseNamed;
use super::nack::returned;
use super::permission::MayAbandon;
use super::{Service, ServiceError, task_id};

impl Service {
    /// Gives a task back, spending an attempt unless `penalty` is false.
    pub fn abandon(
        &self,
        caller: MayAbandon<'_>,
        id: &str,
        penalty: bool,
        lease: LeaseNamed,
    ) -> Result<Ask<Returned>, ServiceError> {
        let id = task_id(id, "not-found")?;
        let abandon = Abandon {
            tenant: caller.tenant.clone(),
            id,
            worker: caller.subject.clone(),
            penalty,
            fence: None,
        };
        Ok(self.deed("abandon", &caller, id, lease.command(Deed::Abandon(abandon)), returned))
    }
}
