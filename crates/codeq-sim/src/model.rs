//! The reference: the rules on a plain map, fed with what the log certainly holds, in order.
//!
//! It never restarts and has no disk and no checkpoints. A server that was killed, cut off and recovered any number
//! of times must be equal to it, row by row.

use std::collections::BTreeMap;

use codeq_core::State;
use codeq_core::codec::read_record;
use codeq_core::id::ShardId;
use codeq_core::kv::KvError;
use codeq_log::FrameIndex;
use codeq_store::MemStore;

use codeq_engine::shard::Shard;

use crate::invariants::{Violation, replicas_equal};

/// The records of one frame of the log, with their shards.
pub type Frame = Vec<(u16, Vec<u8>)>;

/// The expected state of the shards.
pub struct Model {
    shards: Vec<(State, MemStore)>,
    /// The last frame that was applied.
    applied: FrameIndex,
    /// Frames given to the log that are not certain to survive yet.
    pending: BTreeMap<FrameIndex, Frame>,
}

impl Model {
    /// Empty shards.
    pub fn new(shards: u16) -> Result<Model, KvError> {
        let empty = |shard| -> Result<_, KvError> {
            let store = MemStore::new();
            Ok((State::load(&store, shard, shards)?, store))
        };
        Ok(Model {
            shards: ShardId::all(shards).map(empty).collect::<Result<_, _>>()?,
            applied: FrameIndex(0),
            pending: BTreeMap::new(),
        })
    }

    /// Notes a frame that is about to be given to the log.
    pub fn offered(&mut self, index: FrameIndex, frame: Frame) {
        self.pending.insert(index, frame);
    }

    /// Notes that answers up to this frame were sent: it must never be lost.
    pub fn certain(&mut self, index: FrameIndex) -> Result<(), KvError> {
        while self.applied < index {
            self.applied = self.applied.next();
            for (shard, bytes) in self.pending.remove(&self.applied).unwrap_or_default() {
                let Some((state, store)) = self.shards.get_mut(usize::from(shard)) else {
                    continue;
                };
                let (at, commands) =
                    read_record(&bytes).map_err(|error| KvError::Read(error.to_string()))?;
                for command in &commands {
                    state.apply(store, at, command, &mut Vec::new())?;
                }
            }
        }
        Ok(())
    }

    /// Notes the last frame that a restart found: everything up to it is certain, the rest is lost.
    pub fn recovered(&mut self, last: FrameIndex) -> Result<Option<Violation>, KvError> {
        let offered = self.pending.keys().next_back().copied().unwrap_or(self.applied);
        if last < self.applied {
            let text = format!(
                "frame {} was acknowledged, but the log ends at frame {last} after a restart",
                self.applied
            );
            return Ok(Some(Violation::new(1, text)));
        }
        if last > offered {
            let text = format!("the log holds frame {last}, but only {offered} were written");
            return Ok(Some(Violation::new(14, text)));
        }
        self.certain(last)?;
        self.pending.clear();
        Ok(None)
    }

    /// The last certain frame.
    pub fn applied(&self) -> FrameIndex {
        self.applied
    }

    /// Compares the shards with the reference. They must have applied exactly what is certain.
    pub fn compare(&self, what: &str, shards: &[Shard]) -> Result<Vec<Violation>, KvError> {
        let references = self.shards.iter().map(|(state, store)| (state, store));
        replicas_equal::check_shards(what, shards.iter(), references)
    }
}
