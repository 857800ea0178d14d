//! The application layer under every protocol: permission, limits and defaults, then one command to
//! the engine, with its randomness drawn here.
//!
//! One file per operation. Nothing here depends on HTTP or gRPC.

use std::sync::Arc;

use arc_swap::ArcSwap;
use codeq_core::command::Millis;
use codeq_core::id::TaskId;
use codeq_core::limits::LEASE_MS_MAX;
use codeq_engine::Engine;
use codeq_webhooks::availability::{Subscriptions, WorkAvailable};
use codeq_webhooks::policy::AddressPolicy;
use codeq_webhooks::secrets::Secrets;
use tokio::sync::watch;

use crate::artifacts::Artifacts;
use crate::audit::AuditLog;
use crate::backup::Backups;
use crate::config::{Config, Durability, TenantLimits};
use crate::events::EventBus;

use activity::Activity;

pub use code::Code;
pub use error::{Kind, ServiceError};

pub mod abandon;
pub mod activity;
pub mod artifacts;
pub mod audit;
pub mod backup;
pub mod bulk;
pub mod cancel;
pub mod claim;
pub mod cleanup;
pub mod code;
pub mod cursor;
pub mod dead_letters;
pub mod enqueue;
pub mod error;
pub mod filter;
pub mod heartbeat;
pub mod lease;
pub mod nack;
pub mod payload;
pub mod permission;
pub mod prepared_call;
pub mod queues;
pub mod reschedule;
pub mod scan;
pub mod submit;
pub mod subscriptions;
pub mod tasks;
pub mod topics;
mod trace;
pub mod webhooks;
pub mod why;
pub mod workers;

/// The application layer of one server.
pub struct Service {
    /// Orders commands and makes them durable.
    engine: Arc<Engine>,
    /// Durable transitions, for event streams.
    pub events: Arc<EventBus>,
    /// Decides which destinations webhooks may reach.
    pub destinations: Arc<AddressPolicy>,
    /// Signing secrets of webhooks.
    pub secrets: Arc<Secrets>,
    /// Task outputs stored by this server.
    pub artifacts: Arc<Artifacts>,
    /// Workers subscribed to queue notifications.
    pub subscriptions: Arc<Subscriptions>,
    /// What admins did.
    pub(crate) audit: Arc<AuditLog>,
    /// Which workers asked for which queues lately.
    pub(crate) activity: Activity,
    /// Makes backups on request.
    pub(crate) backups: Backups,
    /// Limits concurrent scans over many rows.
    pub(crate) scans: scan::Scans,
    pub(crate) defaults: ArcSwap<Defaults>,
    /// Largest payload or result. Buffers are sized by it at startup, so a reload does not change it.
    payload_max: usize,
    /// Turns true when shutdown begins, so that waiting requests get an answer.
    pub(crate) draining: watch::Receiver<bool>,
}

/// Defaults and upper bounds of request fields.
#[derive(Debug, Clone)]
pub(crate) struct Defaults {
    pub lease: Millis,
    pub batch_max: usize,
    pub claim_max: usize,
    pub tenant: TenantLimits,
}

impl Defaults {
    fn new(config: &Config) -> Defaults {
        Defaults {
            lease: seconds(config.default_lease_seconds),
            batch_max: config.max_batch_size,
            claim_max: config.max_claim_batch_size,
            tenant: config.tenant_limits.clone(),
        }
    }
}

impl Service {
    /// Builds the service on a running engine.
    pub fn new(
        engine: Arc<Engine>,
        events: Arc<EventBus>,
        artifacts: Arc<Artifacts>,
        work_available: Arc<WorkAvailable>,
        config: &Config,
        draining: watch::Receiver<bool>,
    ) -> Service {
        let destinations = Arc::new(AddressPolicy::new(&config.webhooks.allowed_networks));
        let secrets = Arc::new(Secrets::new(Arc::clone(&engine)));
        secrets.set_configured(config.webhooks.signing_secrets());
        let subscriptions = Arc::new(Subscriptions::new(Arc::clone(&destinations), work_available));
        let sync = config.durability == Durability::Fsync;
        let activity = Activity::new(engine.now().now);
        Service {
            engine,
            events,
            destinations,
            secrets,
            subscriptions,
            artifacts,
            audit: Arc::new(AuditLog::new(&config.data_dir, sync)),
            activity,
            backups: Backups::new(config),
            scans: scan::Scans::default(),
            defaults: ArcSwap::from_pointee(Defaults::new(config)),
            payload_max: config.payload_max(),
            draining,
        }
    }

    /// Applies the settings that can change at runtime.
    pub(crate) fn reload(&self, config: &Config) {
        self.defaults.store(Arc::new(Defaults::new(config)));
        self.destinations.set(&config.webhooks.allowed_networks);
        self.secrets.set_configured(config.webhooks.signing_secrets());
        self.backups.set_target(config.backup.target.clone());
    }

    /// Whether shutdown has begun.
    pub fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Whether this node takes writes. A single node always leads, until it stops or its storage fails.
    pub fn leads(&self) -> bool {
        !self.is_draining() && self.engine.failure().is_none()
    }

    /// Returns when shutdown begins.
    pub(crate) async fn shutdown_begins(&self) {
        let mut draining = self.draining.clone();
        // The sender outlives this wait.
        let _ = draining.wait_for(|stop| *stop).await;
    }

    /// Largest payload or result, in bytes.
    pub fn payload_max(&self) -> usize {
        self.payload_max
    }

    /// Resolves the lease length a client sent in `field`; absent, zero or negative means the default.
    pub(crate) fn lease(
        &self,
        wanted: Option<i64>,
        field: &'static str,
    ) -> Result<Millis, ServiceError> {
        const MAX: u64 = LEASE_MS_MAX / 1_000;
        match wanted.map_or(0, |wanted| u64::try_from(wanted).unwrap_or(0)) {
            0 => Ok(self.defaults.load().lease),
            wanted @ 1..=MAX => Ok(seconds(wanted)),
            wanted => {
                let detail = format!(
                    "{field} is {wanted}, but must be 1 to {MAX} seconds (12 hours); use heartbeats to extend a lease"
                );
                let refused = ServiceError::new(Code::InvalidLease, "invalid lease (1 to 43200 s)");
                Err(refused.field(field).detail(detail))
            }
        }
    }
}

/// Converts seconds to milliseconds, saturating.
pub(crate) fn seconds(n: u64) -> Millis {
    n.saturating_mul(1_000)
}

/// The command without surrounding blanks; `None` if nothing remains.
pub(crate) fn trimmed(command: &Arc<str>) -> Option<Arc<str>> {
    match command.trim() {
        "" => None,
        text if text.len() == command.len() => Some(Arc::clone(command)),
        text => Some(text.into()),
    }
}

/// Draws the randomness of one command.
pub(crate) fn seed() -> u64 {
    rand::random()
}

/// Parses the id in a path or body. A malformed id is reported as "not found".
pub(crate) fn task_id(text: &str, missing: &'static str) -> Result<TaskId, ServiceError> {
    text.parse().map_err(|_| {
        let detail = "this is not a task id: send the 'id' from the response to the enqueue";
        ServiceError::not_found(missing).detail(detail)
    })
}
