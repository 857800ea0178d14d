//! Passes the engine's notifications on to the parts of the server that need them.

use std::sync::Arc;
use std::time::Duration;

use codeq_core::effect::Effect;
use codeq_core::id::ShardId;
use codeq_engine::{EngineError, Observer};
use codeq_webhooks::availability::WorkAvailable;
use codeq_webhooks::results::CallbacksDue;

use crate::artifacts::removal::{RemovalObserver, RemovedTasks};
use crate::events::EventBus;
use crate::observe::Metrics;

/// All receivers of the engine's notifications.
pub(super) struct Observers {
    pub(super) events: Arc<EventBus>,
    metrics: Arc<Metrics>,
    pub(super) callbacks_due: Arc<CallbacksDue>,
    removals: RemovalObserver,
    pub(super) work_available: Arc<WorkAvailable>,
}

impl Observers {
    /// Also returns the receiving end for the task that removes artifacts of deleted tasks.
    pub(super) fn new(metrics: &Arc<Metrics>) -> (Observers, RemovedTasks) {
        let (removals, removed) = RemovalObserver::new();
        let observers = Observers {
            events: EventBus::new(codeq_engine::options::SHARDS_MAX),
            metrics: Arc::clone(metrics),
            callbacks_due: Arc::default(),
            removals,
            work_available: Arc::default(),
        };
        (observers, removed)
    }
}

impl Observer for Observers {
    fn committed(&self, shard: ShardId, effects: &[Effect]) {
        self.metrics.committed(shard, effects);
        self.events.committed(shard, effects);
        self.callbacks_due.committed(shard, effects);
        self.removals.committed(shard, effects);
        self.work_available.committed(shard, effects);
    }

    fn recovered(&self, shard: ShardId, effects: &[Effect]) {
        self.metrics.recovered(shard, effects);
        self.events.recovered(shard, effects);
    }

    fn resumed(&self, shard: ShardId, next: u64) {
        self.events.resumed(shard, next);
    }

    fn synced(&self, took: Duration, commands: usize) {
        self.metrics.synced(took, commands);
    }

    fn shortage(&self, why: Option<&str>) {
        match why {
            Some(why) => {
                tracing::warn!(target: "codeq::engine", why, "log or checkpoint is blocked, retrying")
            }
            None => tracing::info!(target: "codeq::engine", "log or checkpoint resumed"),
        }
    }

    fn refusing(&self, why: Option<&EngineError>) {
        match why {
            Some(why) => tracing::error!(target: "codeq::engine", %why, "writes are refused"),
            None => tracing::warn!(target: "codeq::engine", "writes are accepted again"),
        }
    }

    fn checkpointed(&self, took: Duration, done: bool) {
        self.metrics.checkpointed(took, done);
    }

    fn scrubbed(&self, bytes: u64, took: Duration) {
        let took_ms = took.as_micros() as f64 / 1_000.0;
        tracing::info!(target: "codeq::engine", bytes, took_ms, "every row of the stores was verified");
    }
}
