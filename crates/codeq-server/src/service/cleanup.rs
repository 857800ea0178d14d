//! Cleanup: an operator removes finished tasks before their retention ends.

use codeq_core::command::{BulkWork, Millis};

use super::bulk::bulk_limit;
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
    /// Where to go on, if not everything was looked at.
    pub next: Option<String>,
}

impl Service {
    /// Removes finished tasks of the caller's tenant, a bounded number at a time.
    pub async fn cleanup(
        &self,
        caller: &Principal,
        before: Option<Millis>,
        limit: Option<u32>,
        cursor: Option<&str>,
    ) -> Result<CleanedUp, ServiceError> {
        let limit = bulk_limit(limit)?;
        let before = before.unwrap_or_else(|| self.engine.wall());
        let did = self.bulk(caller, BulkWork::Cleanup { before }, limit, cursor).await?;
        Ok(CleanedUp { deleted: did.done, before, limit, next: did.next_if_needed() })
    }
}
