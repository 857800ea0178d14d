//! Abandon: a worker gives a task back.

use codeq_core::command::{Abandon, Command};
use codeq_core::reply::Returned;
use tracing::Instrument;

use super::nack::returned;
use super::{Service, ServiceError, task_id};
use crate::auth::{Principal, Scope};

impl Service {
    /// Gives a task back, spending an attempt unless `penalty` is false.
    pub async fn abandon(
        &self,
        caller: &Principal,
        id: &str,
        penalty: bool,
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
        returned(self.engine.propose(Command::Abandon(abandon)).instrument(span).await?)
    }
}
