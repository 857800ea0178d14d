//! What a seed stands for: the sizes, the clients' habits and the faults of one run.
//!
//! Every seed draws its own ("swarm testing"): a run that omits some operations and repeats others reaches states
//! that an even mix never does.

use std::sync::Arc;

use codeq_core::command::Millis;
use codeq_core::settings::Settings;
use codeq_core::task_backoff::{Backoff, Growth};
use codeq_engine::Durability;

use crate::rng::Rng;

/// What a client can do; plans weight these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Create one task.
    Enqueue,
    /// Create several tasks, individually or atomically.
    EnqueueBatch,
    /// Create a task for later.
    EnqueueLater,
    /// Create a task with an idempotency key.
    EnqueueKeyed,
    /// Claim from one queue.
    Claim,
    /// Claim from several queues, or from any.
    ClaimWide,
    /// Claim, and wait if there is nothing.
    ClaimWait,
    /// Extend a lease.
    Heartbeat,
    /// Finish a task.
    Submit,
    /// Finish a task again.
    SubmitAgain,
    /// Return a task as failed.
    Nack,
    /// Return a task unfinished.
    Abandon,
    /// Cancel a task.
    Cancel,
    /// Change a task's priority or delay.
    Reschedule,
    /// Replay dead letters.
    Replay,
    /// Purge a queue or its dead letters.
    Purge,
    /// Pause or resume claims.
    Pause,
    /// Create, change or remove a policy.
    Topic,
    /// Remove finished tasks.
    Cleanup,
    /// Deliver a callback, or fail to.
    Callback,
    /// Do something forbidden: use another worker's lease or another tenant's task.
    Trespass,
    /// Change the defaults.
    Configure,
    /// Put or delete a record.
    Record,
}

/// Every act with its default weight.
const USUAL: [(Act, u64); 23] = [
    (Act::Enqueue, 30),
    (Act::EnqueueBatch, 8),
    (Act::EnqueueLater, 8),
    (Act::EnqueueKeyed, 12),
    (Act::Claim, 30),
    (Act::ClaimWide, 8),
    (Act::ClaimWait, 4),
    (Act::Heartbeat, 8),
    (Act::Submit, 20),
    (Act::SubmitAgain, 4),
    (Act::Nack, 10),
    (Act::Abandon, 8),
    (Act::Cancel, 4),
    (Act::Reschedule, 4),
    (Act::Replay, 4),
    (Act::Purge, 1),
    (Act::Pause, 2),
    (Act::Topic, 2),
    (Act::Cleanup, 1),
    (Act::Callback, 8),
    (Act::Trespass, 4),
    (Act::Configure, 1),
    (Act::Record, 6),
];

/// Probability of faults, in percent per step.
#[derive(Debug, Clone, Default)]
pub struct Mishaps {
    /// The process is killed.
    pub kill: u64,
    /// The power fails, at once or at one of the next syncs.
    pub power_cut: u64,
    /// A write or sync fails.
    pub io_error: u64,
    /// The disk is full for a while.
    pub full: u64,
    /// Syncs are slow for a while.
    pub slow: u64,
    /// The wall clock jumps.
    pub jump: u64,
}

/// What one seed stands for.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Rounds of requests.
    pub steps: u64,
    /// Number of shards.
    pub shards: u16,
    /// When operations are acknowledged.
    pub durability: Durability,
    /// Length of a log segment.
    pub segment_bytes: u64,
    /// Memory at which a shard is checkpointed.
    pub memtable_bytes: usize,
    /// Percentage of steps that start a checkpoint anyway.
    pub checkpoint: u64,
    /// The initial settings.
    pub settings: Settings,
    /// The tenants that have tasks.
    pub tenants: Vec<Arc<str>>,
    /// The commands they use.
    pub commands: Vec<Arc<str>>,
    /// The workers of every tenant.
    pub workers: Vec<Arc<str>>,
    /// Number of idempotency keys per tenant.
    pub keys: u64,
    /// The longest payload.
    pub payload: u64,
    /// The longest lease.
    pub lease: Millis,
    /// Percentage of tasks with a webhook.
    pub webhooks: u64,
    /// Percentage of claimed tasks whose worker vanishes.
    pub worker_crash: u64,
    /// Percentage of worker operations by workers that seemed to be gone, mostly after their lease has ended.
    pub zombie: u64,
    /// Maximum number of requests in one round.
    pub burst: u64,
    /// The weights of the acts.
    pub weights: Vec<(Act, u64)>,
    /// Weights of time steps: none, milliseconds, seconds, to a deadline, minutes, hours.
    pub pace: [u64; 6],
    /// Probability of faults.
    pub mishaps: Mishaps,
    /// How many hundreds of tasks per shard are pending from the start, in one queue. If not 0, at least one shard has
    /// more of them than the rules keep in memory.
    pub preload: u64,
}

impl Plan {
    /// The options of an engine.
    pub fn engine_options(&self) -> codeq_engine::Options {
        codeq_engine::Options {
            shards: Some(self.shards),
            durability: self.durability,
            settings: self.settings.clone(),
            segment_bytes: self.segment_bytes,
            memtable_bytes: self.memtable_bytes,
            checkpoint_log_bytes: u64::MAX,
            verify_bytes_max: codeq_engine::options::VERIFY_BYTES_MAX,
            scrub_every: codeq_engine::options::SCRUB_EVERY,
            store: codeq_store::Options {
                owner: None,
                cache_bytes: 1 << 20,
                sync_every: 64 << 10,
                rewrite_slack: 256 << 10,
                rewrite_step: 64 << 10,
            },
            observer: codeq_engine::SharedObserver::default(),
        }
    }

    /// The plan of a seed.
    pub fn of(seed: u64) -> Plan {
        let mut rng = Rng::new(seed).fork("plan");
        let rng = &mut rng;
        let durability = if rng.chance(15) { Durability::Os } else { Durability::Fsync };
        let some = |rng: &mut Rng, names: &[&str]| -> Vec<Arc<str>> {
            let count = rng.between(1, names.len() as u64) as usize;
            names.iter().take(count).map(|name| Arc::from(*name)).collect()
        };
        Plan {
            steps: rng.between(100, 400),
            shards: pick(rng, &[1, 1, 1, 2, 3]),
            durability,
            segment_bytes: pick(rng, &[64 << 10, 128 << 10, 256 << 10]),
            memtable_bytes: pick(rng, &[2 << 10, 16 << 10, 64 << 10, 1 << 20]),
            checkpoint: pick(rng, &[0, 1, 3, 10]),
            settings: settings(rng),
            tenants: some(rng, &["a", "ab", "a/b"]),
            commands: some(rng, &["work", "mail", "Work", "x", "mail-dead"]),
            workers: some(rng, &["w1", "w2", "w3", "w4"]),
            keys: pick(rng, &[1, 3, 20]),
            payload: pick(rng, &[20, 100, 1_000]),
            lease: pick(rng, &[1_000, 10_000, 300_000, 43_200_000]),
            webhooks: pick(rng, &[0, 20, 80]),
            worker_crash: pick(rng, &[0, 10, 50]),
            zombie: pick(rng, &[0, 10, 50]),
            burst: pick(rng, &[1, 4, 12]),
            weights: weights(rng),
            pace: [
                rng.between(0, 30),
                rng.between(1, 60),
                rng.between(0, 20),
                rng.between(5, 30),
                rng.between(0, 6),
                rng.between(0, 3),
            ],
            mishaps: mishaps(rng, durability),
            preload: if rng.chance(5) { rng.between(11, 22) } else { 0 },
        }
    }
}

fn pick<T: Copy + Default>(rng: &mut Rng, items: &[T]) -> T {
    rng.pick(items).copied().unwrap_or_default()
}

/// Random settings; also drawn again in the middle of a run.
pub fn settings(rng: &mut Rng) -> Settings {
    const GROWTHS: [Growth; 5] = [
        Growth::Fixed,
        Growth::Linear,
        Growth::Exponential,
        Growth::ExponentialEqualJitter,
        Growth::ExponentialFullJitter,
    ];
    Settings {
        max_attempts: pick(rng, &[1, 2, 3, 5]),
        backoff: Backoff {
            growth: rng.pick(&GROWTHS).copied().unwrap_or(Growth::Fixed),
            base: pick(rng, &[0, 1, 1_000, 5_000]),
            max: pick(rng, &[5_000, 900_000]),
        },
        retention: pick(rng, &[1_000, 60_000, 3_600_000, 86_400_000, 86_400_000]),
        dead_letter_retention: pick(rng, &[5_000, 3_600_000, 86_400_000, 2_592_000_000]),
        callback_attempts: pick(rng, &[1, 2, 5]),
        ..Settings::default()
    }
}

/// Each act keeps its default weight, is left out, or becomes much more frequent.
fn weights(rng: &mut Rng) -> Vec<(Act, u64)> {
    let mut weights: Vec<(Act, u64)> = USUAL
        .iter()
        .map(|(act, usual)| {
            let factor = pick(rng, &[0, 1, 1, 1, 1, 5]);
            (*act, usual * factor)
        })
        .collect();
    // Without these nothing happens.
    weights.push((Act::Enqueue, 10));
    weights.push((Act::Claim, 10));
    weights
}

fn mishaps(rng: &mut Rng, durability: Durability) -> Mishaps {
    let calm = rng.chance(10);
    let percent = |rng: &mut Rng, items: &[u64]| if calm { 0 } else { pick(rng, items) };
    let mut mishaps = Mishaps {
        kill: percent(rng, &[0, 1, 3]),
        power_cut: percent(rng, &[0, 1, 3]),
        io_error: percent(rng, &[0, 0, 1]),
        full: percent(rng, &[0, 0, 1]),
        slow: percent(rng, &[0, 1, 3]),
        jump: percent(rng, &[0, 0, 2]),
    };
    if durability == Durability::Os {
        // What is acknowledged before the sync survives a kill, but not a power cut.
        mishaps.power_cut = 0;
        mishaps.io_error = 0;
    }
    mishaps
}
