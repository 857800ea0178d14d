//! Makes the directory of a cluster's first node: from nothing, or from a single node's directory or a backup.

use std::path::Path;
use std::sync::Arc;

use codeq_core::id::{ShardId, split_mix64};
use codeq_disk::SharedDisk;
use codeq_engine::clock::Clock;
use codeq_engine::dir_lock::lock;
use codeq_engine::layout::Manifest;
use codeq_engine::recover;
use codeq_engine::shard::Shard;
use codeq_engine::{Engine, EngineError, OpenError, Options};

use crate::log_store::{LogStore, LogStoreError, NewNode, Start};
use crate::storage::StartError;
use crate::types::{Member, NodeId};

/// Bits of a node id: as many as a JSON number holds exactly.
const NODE_ID_BITS: u32 = 53;

/// Makes `dir` the directory of the only member of a new cluster, with everything that was acknowledged there. An
/// interrupted call can be repeated.
///
/// It opens the directory as that of a single node first, which replays its log, applies the settings and checkpoints
/// all shards. The replicated log then continues after that of the single node.
pub fn init(
    disk: &SharedDisk,
    dir: &Path,
    options: &Options,
    clock: Arc<dyn Clock>,
    (member, seed): (Member, u64),
) -> Result<(), StartError> {
    let single = Engine::open_with(Arc::clone(disk), dir, options.clone(), clock, seed)?;
    single.shutdown();
    drop(single);
    let _lock = lock(dir)?;
    let position = checkpoint(disk, dir, options)?;
    let manifest = Manifest::load(&**disk, dir)?;
    let log_id = manifest.map_or(0, |manifest| manifest.log_id);
    let new = NewNode {
        cluster_id: split_mix64(seed ^ 1),
        node_id: node_id(split_mix64(seed ^ 2)),
        log_id,
        start: Start::Cluster { member, position },
    };
    LogStore::create(disk, dir, options.log(), new).map(drop)?;
    Ok(())
}

/// Whether a directory is that of a member of a cluster.
pub fn is_member(disk: &SharedDisk, dir: &Path) -> Result<bool, StartError> {
    let state = codeq_engine::layout::raft_state_path(dir);
    Ok(disk.exists(&state).map_err(OpenError::io("look for", &state))?)
}

/// Brings every shard's store to the end of the log. Returns that position.
fn checkpoint(disk: &SharedDisk, dir: &Path, options: &Options) -> Result<u64, StartError> {
    let mut opened = recover::OpenedDir::open(disk, dir, options, 0)?;
    let last = opened.log.last_index();
    for shard in &mut opened.shards {
        if let Some(job) = shard.freeze(last) {
            let failed =
                |error: codeq_store::StoreError| EngineError::Failed(error.to_string().into());
            shard.take_back(&mut job.run()).map_err(|error| OpenError::from(failed(error)))?;
        }
    }
    let position = |shard: &Shard| shard.data().read().store.position();
    let behind = opened.shards.iter().find(|shard| position(shard) != last.0);
    if let Some(shard) = behind {
        let (ShardId(number), at) = (shard.number, position(shard));
        let what = format!("the log ends at frame {last}, but the store of shard {number} at {at}");
        return Err(LogStoreError::Mixed(what).into());
    }
    Ok(last.0)
}

/// Turns a random number into a node id. 0 means no node.
fn node_id(random: u64) -> NodeId {
    (random >> (u64::BITS - NODE_ID_BITS)).max(1)
}
