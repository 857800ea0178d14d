//! The audit log, for admins.

use std::sync::Arc;

use super::permission::{MayAdminister, MayOperate};
use super::{Service, ServiceError};
use crate::audit::AuditPage;

impl Service {
    /// Actions of the tenant's admins, or of all admins if an operator asks for all tenants: the first `limit` whose number
    /// is larger than `after`, or the newest ones without `after`.
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
