//! Clears away what is no longer needed, beside the requests and never in their way.

use std::sync::Arc;
use std::time::Duration;

use codeq_core::command::Artifact;
use codeq_core::effect::Effect;
use codeq_core::id::TaskId;
use codeq_engine::{Engine, Observer};
use tokio::sync::{mpsc, watch};

use super::address::{ROUTE, Stored, key};
use super::{Artifacts, sweep};

/// Tasks whose artifacts wait to be removed. What does not fit is found by the sweep.
const WAITING_MAX: usize = 4_096;
/// How often all objects are looked at.
const SWEEP_EVERY: Duration = Duration::from_secs(6 * 3_600);
/// Objects that are younger may belong to a submit that is still on its way.
pub const LEFT_OVER_AFTER: Duration = Duration::from_secs(3_600);

/// The objects of a task that is gone.
#[derive(Debug)]
pub struct Gone {
    id: TaskId,
    artifacts: Vec<Artifact>,
}

/// Hears of tasks that are removed.
#[derive(Debug)]
pub struct Leavings(mpsc::Sender<Gone>);

/// Where the keeper hears of them.
pub type Heard = mpsc::Receiver<Gone>;

impl Leavings {
    /// An ear for the engine, and the other end of it for the keeper.
    pub fn new() -> (Leavings, Heard) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        (Leavings(sender), receiver)
    }
}

impl Observer for Leavings {
    fn committed(&self, _shard: u16, effects: &[Effect]) {
        for effect in effects {
            let Effect::ArtifactsGone { id, artifacts } = effect else { continue };
            // They are read later: clients make up addresses as they like, and commits wait for this.
            if artifacts.iter().any(|artifact| artifact.url.contains(ROUTE)) {
                // Full: the sweep will see to it.
                let _ = self.0.try_send(Gone { id: *id, artifacts: artifacts.clone() });
            }
        }
    }
}

/// The objects that a record names.
pub(super) fn stored(id: TaskId, artifacts: &[Artifact]) -> Vec<(u128, usize)> {
    let ours = artifacts.iter().filter_map(|artifact| Stored::parse(id, &artifact.url));
    ours.map(|stored| (stored.upload, stored.index)).collect()
}

/// Removes and sweeps until the server stops.
pub async fn run(
    artifacts: Arc<Artifacts>,
    engine: Arc<Engine>,
    heard: Heard,
    mut stop: watch::Receiver<bool>,
) {
    let work =
        async { tokio::join!(remove(&artifacts, heard), sweep_now_and_then(&artifacts, &engine)) };
    tokio::select! {
        _ = work => {}
        // Whatever is left is found by the first sweep of the next start.
        _ = stop.wait_for(|stop| *stop) => {}
    }
}

async fn remove(artifacts: &Artifacts, mut heard: Heard) {
    while let Some(Gone { id, artifacts: gone }) = heard.recv().await {
        let objects = stored(id, &gone);
        if objects.is_empty() {
            continue;
        }
        let keys = objects.into_iter().map(|(upload, index)| key(id, upload, index)).collect();
        // Said in the log, and tried again by the sweep.
        let _ = artifacts.remove(id, keys).await;
    }
}

async fn sweep_now_and_then(artifacts: &Artifacts, engine: &Engine) {
    let mut ticks = tokio::time::interval(SWEEP_EVERY);
    loop {
        ticks.tick().await;
        match sweep::sweep(artifacts, engine, LEFT_OVER_AFTER).await {
            Ok(sweep::Swept { removed: 0, .. }) => {}
            Ok(sweep::Swept { looked_at, removed }) => {
                tracing::info!(target: "codeq::artifacts", looked_at, removed, "cleared away");
            }
            Err(why) => tracing::warn!(target: "codeq::artifacts", %why, "cannot clear away"),
        }
    }
}
