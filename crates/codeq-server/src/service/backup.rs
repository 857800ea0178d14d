//! Backup: an operator copies the data of all tenants.

use super::permission::MayOperate;
use super::{Code, Service, ServiceError};
use crate::backup::{BackupError, FinishedBackup};

impl Service {
    /// Writes a backup to the configured target and verifies it.
    pub async fn backup(&self, _: MayOperate<'_>) -> Result<FinishedBackup, ServiceError> {
        self.backups.make(&self.engine).await.map_err(|error| {
            let detail = error.to_string();
            let refused = match error {
                BackupError::NotConfigured => {
                    let text = "backups are not configured";
                    ServiceError::new(Code::BackupNotConfigured, text)
                }
                BackupError::Running => {
                    ServiceError::new(Code::BackupRunning, "a backup is running")
                }
                BackupError::Failed(_) => {
                    let text = "the backup failed";
                    ServiceError::new(Code::BackupFailed, text).retry_after(60)
                }
            };
            refused.detail(detail)
        })
    }
}
