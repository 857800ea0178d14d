//! The audit log, for admins.

use std::sync::Arc;

use super::permission::{MayAdminister, MayOperate};
use super::{Service, ServiceError};
use crate::audit::AuditPage;

impl Service {
    /// Actions of the tenant's admins, or of all tenants' for an operator who requests that: the first `limit` after a
    /// number, or else the newest.
    pub async fn audit(
        &self,
        caller: MayAdminister<'_>,
        all_tenants: bool,
        after: Option<u64>,
        limit: usize,
    ) -> Result<AuditPage, ServiceError> {
        if all_tenants {
            MayOperate::of(&caller)?;
        }
        let tenant = (!all_tenants).then(|| Arc::clone(&caller.tenant));
        let log = Arc::clone(&self.audit);
        let read = move || log.read(tenant.as_deref(), after, limit);
        let page = self.scans.run_blocking(&caller.tenant, read).await?;
        page.map_err(|error| {
            tracing::error!(target: "codeq::audit", %error, "the audit log cannot be read");
            ServiceError::unexpected()
        })
    }
}
