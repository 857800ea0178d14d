//! What the server does for its clients, whatever protocol they speak: permission, limits, defaults; then
//! one command to the engine, with its randomness drawn here.
//!
//! One file per verb. Nothing here knows of HTTP or gRPC.

use std::sync::Arc;

use codeq_core::command::Millis;
use codeq_core::id::TaskId;
use codeq_engine::Engine;
use tokio::sync::watch;

use crate::artifacts::Artifacts;
use crate::backup::Backups;
use crate::config::{Config, TenantLimits};
use crate::events::EventBus;
use crate::push::bell::Bell;
use crate::push::destination::Policy;
use crate::push::secrets::Secrets;
use crate::push::subscriptions::Subscriptions;

pub use error::{Kind, ServiceError};

pub mod abandon;
pub mod artifacts;
pub mod backup;
pub mod bulk;
pub mod cancel;
pub mod claim;
pub mod cleanup;
pub mod cursor;
pub mod dead_letters;
pub mod enqueue;
pub mod error;
pub mod filter;
pub mod heartbeat;
pub mod lease;
pub mod nack;
pub mod permission;
pub mod queues;
pub mod scan;
pub mod submit;
pub mod subscriptions;
pub mod tasks;
pub mod topics;
mod trace;
pub mod webhooks;

/// The service layer of one server.
pub struct Service {
    /// Order and durability.
    pub engine: Arc<Engine>,
    /// Transitions as they become durable.
    pub events: Arc<EventBus>,
    /// Where webhooks may go.
    pub destinations: Arc<Policy>,
    /// What calls are signed with.
    pub secrets: Arc<Secrets>,
    /// Outputs of tasks that lie here.
    pub artifacts: Arc<Artifacts>,
    /// Who is told that queues have work.
    pub subscriptions: Arc<Subscriptions>,
    /// Copies of the data.
    pub(crate) backups: Backups,
    /// Whose turn it is to look at many rows.
    pub(crate) scans: scan::Scans,
    pub(crate) defaults: Defaults,
    /// Turns true when the server begins to stop: whoever waits is answered.
    pub(crate) draining: watch::Receiver<bool>,
}

/// What requests may leave out, and how much they may ask for.
#[derive(Debug, Clone)]
pub(crate) struct Defaults {
    pub lease: Millis,
    pub batch_max: usize,
    pub claim_max: usize,
    pub payload_max: usize,
    pub tenant: TenantLimits,
}

impl Service {
    /// On a running engine.
    pub fn new(
        engine: Arc<Engine>,
        events: Arc<EventBus>,
        artifacts: Arc<Artifacts>,
        bell: Arc<Bell>,
        config: &Config,
        draining: watch::Receiver<bool>,
    ) -> Service {
        let defaults = Defaults {
            lease: seconds(config.default_lease_seconds),
            batch_max: config.max_batch_size,
            claim_max: config.max_claim_batch_size,
            payload_max: config.payload_max(),
            tenant: config.tenant_limits.clone(),
        };
        let destinations = Arc::new(Policy::new(&config.webhooks.allowed_networks));
        let secrets = Arc::new(Secrets::new(Arc::clone(&engine), &config.webhooks.secrets));
        let subscriptions = Arc::new(Subscriptions::new(Arc::clone(&destinations), bell));
        Service {
            engine,
            events,
            destinations,
            secrets,
            subscriptions,
            artifacts,
            backups: Backups::new(config),
            scans: scan::Scans::default(),
            defaults,
            draining,
        }
    }

    /// Whether the server is about to stop.
    pub fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Returns when the server begins to stop.
    pub(crate) async fn drained(&self) {
        let mut draining = self.draining.clone();
        // The sender lives as long as the server does.
        let _ = draining.wait_for(|stop| *stop).await;
    }

    /// Largest payload and largest result.
    pub fn payload_max(&self) -> usize {
        self.defaults.payload_max
    }

    /// The length of a lease that a client asks for: none and zero mean the default.
    pub(crate) fn lease(&self, wanted: Option<i64>) -> Result<Millis, ServiceError> {
        match wanted {
            None | Some(0) => Ok(self.defaults.lease),
            Some(n) if n > 0 => Ok(seconds(n.unsigned_abs())),
            Some(_) => Err(ServiceError::invalid("invalid_lease", "invalid lease (1 to 43200 s)")),
        }
    }
}

/// Seconds as milliseconds, without overflow.
pub(crate) fn seconds(n: u64) -> Millis {
    n.saturating_mul(1_000)
}

/// A command as it was meant: without the blanks around it, which is none if there is nothing else.
pub(crate) fn trimmed(command: &Arc<str>) -> Option<Arc<str>> {
    match command.trim() {
        "" => None,
        text if text.len() == command.len() => Some(Arc::clone(command)),
        text => Some(text.into()),
    }
}

/// Randomness for one command.
pub(crate) fn seed() -> u64 {
    rand::random()
}

/// The id in a path or body. One that is not an id names no task.
pub(crate) fn task_id(text: &str, missing: &'static str) -> Result<TaskId, ServiceError> {
    text.parse().map_err(|_| ServiceError::not_found(missing))
}
