//! Nack: a worker reports a failed attempt and returns the task for a retry.

use std::sync::Arc;

use codeq_core::command::{LeaseAction, Nack};
use codeq_core::reply::{Reply, Returned};
use codeq_engine::Answer;

use super::lease::LeaseRef;
use super::permission::MayNack;
use super::prepared_call::PreparedCall;
use super::{Service, ServiceError, seconds, seed, task_id};

impl Service {
    /// Returns a task for a retry. `delay_seconds` applies as given, even zero; `None` means the backoff policy.
    pub fn nack(
        &self,
        caller: MayNack<'_>,
        id: &str,
        delay_seconds: Option<u64>,
        reason: Option<Arc<str>>,
        lease: LeaseRef,
    ) -> Result<PreparedCall<Returned>, ServiceError> {
        let id = task_id(id, "not-found")?;
        if let Some(reason) = &reason {
            self.worker_failed(&caller, lease.instance.as_ref(), reason);
        }
        let nack = Nack {
            tenant: caller.tenant.clone(),
            id,
            worker: caller.subject.clone(),
            delay: delay_seconds.map(seconds),
            reason,
            seed: seed(),
        };
        Ok(self.under_lease("nack", &caller, id, lease.command(LeaseAction::Nack(nack)), returned))
    }
}

/// Reads where a returned task went.
pub(super) fn returned(answer: Answer) -> Result<Returned, ServiceError> {
    match answer? {
        Reply::Returned(returned) => Ok(returned),
        Reply::Rejected(rejection) => Err(rejection.into()),
        _ => Err(ServiceError::unexpected()),
    }
}
