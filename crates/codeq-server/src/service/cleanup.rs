//! Cleanup: an admin removes finished tasks.

use codeq_core::command::{BulkWork, Millis};

use super::bulk::{BulkOptions, BulkOutcome};
use super::permission::MayAdminister;
use super::{Service, ServiceError};

/// The outcome of a cleanup.
pub struct CleanedUp {
    /// Tasks removed.
    pub outcome: BulkOutcome,
    /// The cutoff: tasks that finished before it, or had expired by it, were removed.
    pub before: Millis,
    /// The limit that applied to this call.
    pub limit: u32,
}

impl Service {
    /// Removes finished tasks of the caller's tenant, a bounded number at a time: those that
    /// finished before the cutoff, or without one, those past their retention.
    pub async fn cleanup(
        &self,
        caller: MayAdminister<'_>,
        options: &BulkOptions,
    ) -> Result<CleanedUp, ServiceError> {
        let before = options.filter.before;
        let work = BulkWork::Cleanup { expired: before.is_none() };
        let outcome = self.bulk(caller, work, options).await?;
        let before = before.unwrap_or_else(|| self.engine.wall());
        Ok(CleanedUp { outcome, before, limit: options.limit() })
    }
}
