//! Cleanup: an operator removes finished tasks.

use codeq_core::command::{BulkWork, Millis};

use super::bulk::{BulkOptions, BulkOutcome};
use super::permission::MayAdminister;
use super::{Service, ServiceError};

/// What a cleanup did.
pub struct CleanedUp {
    /// What was removed.
    pub outcome: BulkOutcome,
    /// The moment before which the tasks had finished, or at which they had expired.
    pub before: Millis,
    /// How many could have gone.
    pub limit: u32,
}

impl Service {
    /// Removes finished tasks of the caller's tenant, a bounded number at a time: those that had finished before a
    /// moment, or without one those whose retention has ended.
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
