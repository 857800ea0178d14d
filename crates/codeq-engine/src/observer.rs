//! Notifications about what the engine has done.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use codeq_core::effect::Effect;
use codeq_core::id::ShardId;

use crate::error::EngineError;

/// Notified on the engine's own threads: methods must be quick and must not block.
pub trait Observer: Send + Sync + 'static {
    /// Effects of commands that are now durable, in order.
    fn committed(&self, shard: ShardId, effects: &[Effect]);

    /// Effects of commands that an earlier run committed, replayed from the log at startup. Covers only what came after
    /// the last checkpoint.
    fn recovered(&self, shard: ShardId, effects: &[Effect]) {
        let _ = (shard, effects);
    }

    /// On a node of a cluster: the next task transition of a shard has this number. Called when the node starts, and
    /// when its rows were replaced by those of another node. Transitions with lower numbers that were not reported before
    /// this call never will be.
    fn resumed(&self, shard: ShardId, next: u64) {
        let _ = (shard, next);
    }

    /// The log was synced once for this many commands.
    fn synced(&self, took: Duration, commands: usize) {
        let _ = (took, commands);
    }

    /// The log or a shard's checkpoint lacks a resource and will retry; `None` once it no longer does. On a single node,
    /// the log and each shard report for themselves, so `None` from one does not mean that nothing is short. Meanwhile,
    /// writes may still succeed with what was reserved before.
    fn shortage(&self, why: Option<&str>) {
        let _ = why;
    }

    /// Writes are refused from now on, or accepted again.
    fn refusing(&self, why: Option<&EngineError>) {
        let _ = why;
    }

    /// A checkpoint was written, or failed.
    fn checkpointed(&self, took: Duration, done: bool) {
        let _ = (took, done);
    }

    /// A scrub has verified all rows of the stores.
    fn scrubbed(&self, bytes: u64, took: Duration) {
        let _ = (bytes, took);
    }
}

/// An observer that engines share, or none.
#[derive(Clone, Default)]
pub struct SharedObserver(pub Option<Arc<dyn Observer>>);

impl fmt::Debug for SharedObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Some(observer)" } else { "None" })
    }
}
