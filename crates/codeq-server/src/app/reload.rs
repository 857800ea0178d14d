//! Reloads the configuration while the server runs.
//!
//! A reload is all or nothing. Nothing changes if the new configuration cannot be read, or if its reloadable settings are
//! not valid together with the current values of the others. Settings that need a restart keep their values and are
//! reported. The certificate is read again in any case. Requests and streams continue, except streams and waiting
//! requests whose fixed token was removed or changed.

use std::sync::Arc;

use codeq_net::TlsFiles;
use tokio::sync::Mutex;

use crate::backup;
use crate::config::{Changes, Config, ConfigError, Problem};
use crate::observe::LogLevel;
use crate::service::permission::MayOperate;

use super::App;

/// Reads the configuration again.
pub type Source = Arc<dyn Fn() -> Result<Config, ConfigError> + Send + Sync>;

/// What a reload needs from outside the server.
#[derive(Clone, Default)]
pub struct ReloadInputs {
    /// Reads the configuration. `None` keeps the one from the start.
    pub source: Option<Source>,
    /// Changes the process's log level.
    pub log_level: Option<LogLevel>,
}

/// What a reload starts from.
pub struct ReloadState {
    inputs: ReloadInputs,
    tls: Option<TlsFiles>,
    /// Locked during a reload, so that there is only one at a time.
    in_force: Mutex<Config>,
}

impl ReloadState {
    /// Starts from `config`, the configuration in force.
    pub(crate) fn new(inputs: ReloadInputs, tls: Option<TlsFiles>, config: Config) -> ReloadState {
        ReloadState { inputs, tls, in_force: Mutex::new(config) }
    }
}

impl App {
    /// Reloads the configuration on behalf of an operator.
    pub async fn reload_for(&self, _: MayOperate<'_>) -> Result<Changes, ConfigError> {
        self.reload().await
    }

    /// Reloads the configuration and the certificate.
    pub async fn reload(&self) -> Result<Changes, ConfigError> {
        // Before reading: otherwise a slow reload could put an older configuration in force.
        let mut in_force = self.reload_state.in_force.lock().await;
        if let Some(tls) = self.reload_state.tls.clone() {
            let done = tokio::task::spawn_blocking(move || tls.reload()).await;
            if let Ok(Err(error)) = done {
                let reason = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(
                    target: "codeq::server",
                    %error,
                    reason,
                    "cannot reload the certificate, keeping the old one"
                );
            }
        }
        let read = match self.reload_state.inputs.source.clone() {
            None => Ok(in_force.clone()),
            // Reading files blocks.
            Some(source) => tokio::task::spawn_blocking(move || source())
                .await
                .unwrap_or_else(|error| Err(problem(error.to_string()))),
        };
        let done = match read {
            Ok(new) => self.apply(&mut in_force, &new),
            Err(error) => Err(error),
        };
        log(&done);
        done
    }

    /// Applies the settings that a running server can change.
    pub(crate) async fn apply_config(&self, new: &Config) -> Result<Changes, ConfigError> {
        self.apply(&mut *self.reload_state.in_force.lock().await, new)
    }

    fn apply(&self, in_force: &mut Config, new: &Config) -> Result<Changes, ConfigError> {
        let (merged, changes) = in_force.reloaded(new)?;
        if has_tokens(in_force) && !has_tokens(&merged) {
            let text = "the new configuration accepts no tokens: the file may be empty or only half written";
            return Err(problem(text.to_owned()));
        }
        // Do the fallible steps first, so that a failure changes nothing.
        let validators = self.auth.prepare(&merged.auth_settings()).map_err(problem)?;
        if let Some(Err(why)) = merged.backup.target.as_deref().map(backup::check_target) {
            return Err(problem(format!("backup.target cannot be used: {why}")));
        }
        if let (Some(level), true) =
            (&self.reload_state.inputs.log_level, changes.concern("logLevel"))
        {
            level.set(&merged.log_level).map_err(problem)?;
        }
        if ["producerAuth", "workerAuth", "allowProducer"].iter().any(|key| changes.concern(key)) {
            self.auth.replace(validators);
            tokio::spawn(self.auth.warm());
        }
        if changes.concern("rateLimit") {
            self.limiter.set(&merged.rate_limit);
        }
        self.service.reload(&merged);
        *in_force = merged;
        Ok(changes)
    }
}

fn has_tokens(config: &Config) -> bool {
    config.producer_auth.accepts_tokens() || config.worker_auth.accepts_tokens()
}

fn problem(text: String) -> ConfigError {
    ConfigError::Invalid(vec![Problem::of("", text)])
}

fn log(done: &Result<Changes, ConfigError>) {
    match done {
        Ok(changes) => {
            let changed = changes.changed.iter();
            let changed: Vec<String> =
                changed.map(|it| format!("{}: {} -> {}", it.key, it.from, it.to)).collect();
            let (changed, needs_restart) = (changed.join("; "), changes.needs_restart.join(", "));
            tracing::info!(
                target: "codeq::config", changed, needs_restart, "configuration reloaded"
            );
        }
        Err(error) => {
            let why = error.to_string();
            tracing::error!(target: "codeq::config", why, "the configuration was not changed");
        }
    }
}
