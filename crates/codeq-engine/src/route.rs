//! Maps commands to shards.
//!
//! A task's id determines its shard: the shard that creates a task mints an id that maps to this shard. An enqueue with
//! an idempotency key goes to the shard of the key, so that lookup and insert are one step; any other enqueue can go to
//! any shard. All records of a tenant are in the shard that the tenant's name hashes to.

use codeq_core::command::{Command, Enqueue, EnqueueByValue, NewTask, ReplayTarget};
use codeq_core::id::{ShardId, fnv1a64};

use crate::error::EngineError;

/// Where a command goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// To one shard.
    One(ShardId),
    /// To more than one; `dispatch` decides how, or refuses it.
    All,
}

/// The shard of a command, or all of them.
pub fn route(command: &Command, shards: u16) -> Result<Route, EngineError> {
    if shards <= 1 {
        return Ok(Route::One(ShardId(0)));
    }
    Ok(match command {
        Command::Enqueue(enqueue) | Command::EnqueueByValue(EnqueueByValue { enqueue, .. }) => {
            Route::One(enqueue_shard(enqueue, shards)?)
        }
        Command::Heartbeat(command) => Route::One(command.id.shard(shards)),
        Command::Submit(command) => Route::One(command.id.shard(shards)),
        Command::Nack(command) => Route::One(command.id.shard(shards)),
        Command::Abandon(command) => Route::One(command.id.shard(shards)),
        Command::UnderLease(command) => Route::One(command.action.id().shard(shards)),
        Command::Cancel(command) => Route::One(command.id.shard(shards)),
        Command::Reschedule(command) => Route::One(command.id.shard(shards)),
        Command::Callback(command) => Route::One(command.id.shard(shards)),
        Command::PutRecord(command) => Route::One(record_shard(&command.tenant, shards)),
        Command::DeleteRecord(command) => Route::One(record_shard(&command.tenant, shards)),
        Command::Replay(command) => match &command.target {
            ReplayTarget::One(id) => Route::One(id.shard(shards)),
            ReplayTarget::Queue { .. } => Route::All,
        },
        // The older versions among these occur only in logs, and the shard that logged them replays them.
        Command::ConfigureV1(_)
        | Command::EnqueueV1(_)
        | Command::EnqueueByValueV1(_)
        | Command::PutTopicV2(_)
        | Command::Configure(_)
        | Command::Claim(_)
        | Command::Purge(_)
        | Command::Pause(_)
        | Command::PutTopicV1(_)
        | Command::PutTopic(_)
        | Command::DeleteTopic(_)
        | Command::Cleanup(_)
        | Command::BulkPartV1(_)
        | Command::BulkPart(_)
        | Command::Sweep(_) => Route::All,
    })
}

/// The shard of a new task: that of its key, or else a random one.
pub fn task_shard(tenant: &str, task: &NewTask, seed: u64, shards: u16) -> ShardId {
    let hash = task.idempotency_key.as_ref().map_or(seed, |key| hash(tenant, key));
    ShardId::of(hash, shards)
}

/// The shard of a tenant's records. Part of the on-disk format: a data directory keeps its number of shards.
pub fn record_shard(tenant: &str, shards: u16) -> ShardId {
    ShardId::of(fnv1a64(tenant.as_bytes()), shards)
}

/// The single shard of an enqueue: that of its keys, if it has any.
fn enqueue_shard(enqueue: &Enqueue, shards: u16) -> Result<ShardId, EngineError> {
    let mut keyed = enqueue.tasks.iter().filter(|task| task.idempotency_key.is_some());
    let shard_of = |task| task_shard(&enqueue.tenant, task, enqueue.seed, shards);
    let first = keyed.next().or(enqueue.tasks.first()).map_or(ShardId(0), shard_of);
    if keyed.all(|task| shard_of(task) == first) {
        Ok(first)
    } else {
        Err(EngineError::AtomicSpansShards)
    }
}

fn hash(tenant: &str, name: &str) -> u64 {
    let mut bytes = (tenant.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(tenant.as_bytes());
    bytes.extend_from_slice(name.as_bytes());
    fnv1a64(&bytes)
}
