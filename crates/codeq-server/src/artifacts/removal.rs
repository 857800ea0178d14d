//! Removes objects that are no longer needed, in the background.

use std::sync::Arc;
use std::time::Duration;

use codeq_core::command::Artifact;
use codeq_core::effect::Effect;
use codeq_core::id::{ShardId, TaskId};
use codeq_engine::{Engine, Observer};
use tokio::sync::{mpsc, watch};

use super::address::{ROUTE, Stored, key};
use super::{Artifacts, sweep};

/// Queued removals. The sweep finds any that do not fit.
const WAITING_MAX: usize = 4_096;
/// How often the sweep visits all objects.
const SWEEP_EVERY: Duration = Duration::from_secs(6 * 3_600);
/// Younger objects may belong to a submit in progress.
pub const LEFT_OVER_AFTER: Duration = Duration::from_secs(3_600);

/// The artifacts of a removed task.
#[derive(Debug)]
pub struct Removed {
    id: TaskId,
    artifacts: Vec<Artifact>,
}

/// Observes the engine and queues the artifacts of removed tasks.
#[derive(Debug)]
pub struct RemovalObserver(mpsc::Sender<Removed>);

/// Removed tasks whose artifacts are to be removed, for [`run`].
pub type RemovedTasks = mpsc::Receiver<Removed>;

impl RemovalObserver {
    /// Creates the observer for the engine and the receiver for [`run`].
    pub fn new() -> (RemovalObserver, RemovedTasks) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        (RemovalObserver(sender), receiver)
    }
}

impl Observer for RemovalObserver {
    fn committed(&self, _shard: ShardId, effects: &[Effect]) {
        for effect in effects {
            let Effect::ArtifactsGone { id, artifacts } = effect else { continue };
            // Parse later: clients can put any URL in a result, and commits wait for this function.
            if artifacts.iter().any(|artifact| artifact.url.contains(ROUTE)) {
                // If the queue is full, the sweep removes the objects.
                let _ = self.0.try_send(Removed { id: *id, artifacts: artifacts.clone() });
            }
        }
    }
}

/// The objects that a result references.
pub(super) fn stored(id: TaskId, artifacts: &[Artifact]) -> Vec<(u128, usize)> {
    let ours = artifacts.iter().filter_map(|artifact| Stored::parse(id, &artifact.url));
    ours.map(|stored| (stored.upload, stored.index)).collect()
}

/// Removes objects and sweeps until the server stops.
pub async fn run(
    artifacts: Arc<Artifacts>,
    engine: Arc<Engine>,
    removed: RemovedTasks,
    mut stop: watch::Receiver<bool>,
) {
    let work = async {
        tokio::join!(remove(&artifacts, removed), sweep_periodically(&artifacts, &engine))
    };
    tokio::select! {
        _ = work => {}
        // The first sweep after the next start finds the rest.
        _ = stop.wait_for(|stop| *stop) => {}
    }
}

async fn remove(artifacts: &Artifacts, mut removed: RemovedTasks) {
    while let Some(Removed { id, artifacts: gone }) = removed.recv().await {
        let objects = stored(id, &gone);
        if objects.is_empty() {
            continue;
        }
        let keys = objects.into_iter().map(|(upload, index)| key(id, upload, index)).collect();
        // `remove` logs failures, and the sweep retries them.
        let _ = artifacts.remove(id, keys).await;
    }
}

async fn sweep_periodically(artifacts: &Artifacts, engine: &Engine) {
    let mut ticks = tokio::time::interval(SWEEP_EVERY);
    loop {
        ticks.tick().await;
        match sweep::sweep(artifacts, engine, LEFT_OVER_AFTER).await {
            Ok(sweep::Swept { removed: 0, .. }) => {}
            Ok(sweep::Swept { looked_at, removed }) => {
                tracing::info!(
                    target: "codeq::artifacts", looked_at, removed, "removed orphaned artifacts"
                );
            }
            Err(why) => tracing::warn!(target: "codeq::artifacts", %why, "artifact sweep failed"),
        }
    }
}
