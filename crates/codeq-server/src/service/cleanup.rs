//! Cleanup: an operator removes finished tasks before their retention ends.

use codeq_core::command::{Cleanup, Millis};

use super::queues::{bulk, bulk_limit};
use super::{Service, ServiceError};
use crate::auth::Principal;

/// What a cleanup did.
pub struct CleanedUp {
    /// Tasks that are gone.
    pub deleted: u64,
    /// The moment before which they had finished.
    pub before: Millis,
    /// How many could have gone.
    pub limit: u32,
}

impl Service {
    /// Removes finished tasks of the caller's tenant, a bounded number at a time.
    pub async fn cleanup(
        &self,
        caller: &Principal,
        before: Option<Millis>,
        limit: Option<u32>,
    ) -> Result<CleanedUp, ServiceError> {
        let limit = bulk_limit(limit)?;
        let before = before.unwrap_or_else(|| self.engine.wall());
        let cleanup = Cleanup { tenant: caller.tenant.clone(), before, limit };
        let done = bulk(self.engine.cleanup(cleanup).await?)?.done;
        Ok(CleanedUp { deleted: done, before, limit })
    }
}
