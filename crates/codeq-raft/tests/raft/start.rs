//! How the engine's tests start an engine here: as the only member of a cluster.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use codeq_core::command::Command;
use codeq_disk::{RealDisk, SharedDisk};
use codeq_engine::clock::{Clock, SystemClock};
use codeq_engine::{Engine, OpenError, Options};
use codeq_raft::engine;
use codeq_raft::init::{init, is_member};
use codeq_raft::node::{Setup, StartError, Timing};
use codeq_raft::transport::{Request, Sending, Transport, Unreachable};
use codeq_raft::types::{Member, NodeId};

/// The transport of a cluster's only member: it reaches nobody.
pub struct Alone;

impl Transport for Alone {
    fn send(&self, _: NodeId, _: Request, _: Duration) -> Sending {
        Box::pin(async { Err(Unreachable) })
    }
}

pub fn start(dir: &Path, options: Options) -> Result<Engine, OpenError> {
    start_with(Arc::new(RealDisk), dir, options, SystemClock::new(), 7)
}

/// Starts the only member of a cluster. Its directory may be that of a member or of a single node, or not exist yet.
pub fn start_with(
    disk: SharedDisk,
    dir: &Path,
    options: Options,
    clock: Arc<dyn Clock>,
    seed: u64,
) -> Result<Engine, OpenError> {
    match open(disk, dir, options, clock, seed) {
        Ok(engine) => Ok(engine),
        Err(StartError::Open(error)) => Err(error),
        Err(error) => panic!("{error}"),
    }
}

fn open(
    disk: SharedDisk,
    dir: &Path,
    options: Options,
    clock: Arc<dyn Clock>,
    seed: u64,
) -> Result<Engine, StartError> {
    if !is_member(&disk, dir)? {
        let member = Member { address: "here:1".to_owned() };
        init(&disk, dir, &options, Arc::clone(&clock), (member, seed))?;
    }
    let settings = options.settings.clone();
    let engine = engine::open(Setup {
        disk,
        dir: dir.to_owned(),
        options,
        clock,
        transport: Arc::new(Alone),
        incarnation: seed.wrapping_add(1),
        timing: Timing::default(),
        fault: None,
    })?;
    // A cluster does not take its settings from the files of its members: its operator sets them.
    let differs = |shard| {
        let differs = engine.peek(shard, |state| *state.settings() != settings);
        differs.unwrap_or(false)
    };
    if codeq_core::id::ShardId::all(engine.shards()).any(differs) {
        engine.propose_blocking(Command::Configure(settings)).map_err(OpenError::from)?;
    }
    Ok(engine)
}
