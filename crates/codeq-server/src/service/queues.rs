//! Queues, as an operator sees and steers them.

use std::sync::Arc;

use codeq_core::command::{Pause, Purge, PurgeTarget};
use codeq_core::limits::BULK_MAX;
use codeq_core::names::check_command;
use codeq_core::read::QueueStats;
use codeq_core::reply::{Bulk, Reply};

use super::{Service, ServiceError};
use crate::auth::Principal;

impl Service {
    /// The numbers of one queue; of one that does not exist, zeros.
    pub async fn queue(
        &self,
        caller: &Principal,
        command: &str,
    ) -> Result<Option<QueueStats>, ServiceError> {
        check_command(command)?;
        Ok(self.engine.queue(&caller.tenant, command).await?)
    }

    /// The numbers of all queues that the caller sees: its tenant's, or everybody's for an operator who asks
    /// for them.
    pub async fn queues(
        &self,
        caller: &Principal,
        all_tenants: bool,
    ) -> Result<Vec<QueueStats>, ServiceError> {
        if !all_tenants {
            return Ok(self.engine.queues(&caller.tenant).await?);
        }
        if !caller.operator {
            let refused = ServiceError::forbidden("operator scope required");
            return Err(refused.detail("allTenants needs a token with the scope codeq:operator"));
        }
        let mut all = Vec::new();
        for tenant in self.engine.tenants().await? {
            all.extend(self.engine.queues(&tenant).await?);
        }
        Ok(all)
    }

    /// Stops or allows claims of a queue; enqueues go on.
    pub async fn pause(
        &self,
        caller: &Principal,
        command: &str,
        paused: bool,
    ) -> Result<(), ServiceError> {
        let (tenant, command) = (caller.tenant.clone(), Arc::from(command));
        match self.engine.pause(Pause { tenant, command, paused }).await? {
            Reply::Rejected(rejection) => Err(rejection.into()),
            _ => Ok(()),
        }
    }

    /// Cancels waiting tasks of a queue, a bounded number at a time.
    pub async fn purge(
        &self,
        caller: &Principal,
        command: &str,
        limit: Option<u32>,
    ) -> Result<Bulk, ServiceError> {
        self.purge_some(caller, command, PurgeTarget::Waiting, limit).await
    }

    pub(super) async fn purge_some(
        &self,
        caller: &Principal,
        command: &str,
        target: PurgeTarget,
        limit: Option<u32>,
    ) -> Result<Bulk, ServiceError> {
        check_command(command)?;
        let purge = Purge {
            tenant: caller.tenant.clone(),
            command: command.into(),
            target,
            limit: bulk_limit(limit)?,
            by: caller.subject.clone(),
        };
        bulk(self.engine.purge(purge).await?)
    }
}

/// How much work one call does: none means as much as is allowed.
pub(super) fn bulk_limit(limit: Option<u32>) -> Result<u32, ServiceError> {
    match limit {
        None | Some(0) => Ok(BULK_MAX),
        Some(limit) if limit <= BULK_MAX => Ok(limit),
        Some(_) => {
            let text = format!("invalid 'limit' (1 to {BULK_MAX})");
            Err(ServiceError::invalid("invalid_limit", text).field("limit"))
        }
    }
}

pub(super) fn bulk(reply: Reply) -> Result<Bulk, ServiceError> {
    match reply {
        Reply::Bulk(bulk) => Ok(bulk),
        Reply::Rejected(rejection) => Err(rejection.into()),
        _ => Err(ServiceError::unexpected()),
    }
}
