//! Operator operations, which affect the server and all tenants.

use super::operation::Operation;
use crate::http::backup::BackupBody;
use crate::http::reload::Reloaded;
use crate::service::Code;

/// The documentation of each operation, by operation id.
pub fn operations() -> Vec<(&'static str, Operation)> {
    vec![("makeBackup", make_backup()), ("reloadConfig", reload_config())]
}

fn make_backup() -> Operation {
    Operation::new(
        "server",
        "Create a backup",
        "Copies the data of all tenants to a new name below the configured `backup.target`, then reads the copy back \
         and verifies it. The server keeps running. The backup contains everything that was acknowledged before the \
         request. Only one backup runs at a time, and it continues if the client disconnects. Pass `location` to \
         `codeq restore`. The body must be empty or an empty object.",
    )
    .answers::<BackupBody>(200, "The backup is complete and verified.")
    .refuses(&[Code::BackupNotConfigured, Code::BackupRunning, Code::BackupFailed])
}

fn reload_config() -> Operation {
    Operation::new(
        "server",
        "Reload the configuration",
        "Reads the configuration and the TLS certificate again, like `SIGHUP`. Changes to tokens, issuers, \
         `allowProducerAsWorker`, secrets, rate limits, tenant limits, batch sizes, the default lease, webhook \
         networks, the backup target and the log level take effect at once. The response lists the settings that need \
         a restart. If the configuration is invalid, the response says why and no setting changes. Streams end, and \
         requests that wait get 401, if their fixed token was removed or changed. The body must be empty or an empty \
         object.",
    )
    .answers::<Reloaded>(200, "The new configuration is in effect.")
    .refuses(&[Code::InvalidConfiguration])
}
