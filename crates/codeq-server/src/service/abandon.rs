//! Abandon: a worker returns a task to its queue.

use codeq_core::command::{Abandon, LeaseAction};
use codeq_core::reply::Returned;

use super::lease::LeaseRef;
use super::nack::returned;
use super::permission::MayAbandon;
use super::prepared_call::PreparedCall;
use super::{Service, ServiceError, task_id};

impl Service {
    /// Returns a task to its queue. Counts as an attempt unless `penalty` is false.
    pub fn abandon(
        &self,
        caller: MayAbandon<'_>,
        id: &str,
        penalty: bool,
        lease: LeaseRef,
    ) -> Result<PreparedCall<Returned>, ServiceError> {
        let id = task_id(id, "not-found")?;
        let abandon = Abandon {
            tenant: caller.tenant.clone(),
            id,
            worker: caller.subject.clone(),
            penalty,
            fence: None,
        };
        let command = lease.command(LeaseAction::Abandon(abandon));
        Ok(self.under_lease("abandon", &caller, id, command, returned))
    }
}
