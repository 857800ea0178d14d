//! Hearing of what the engine has done.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use codeq_core::effect::Effect;

use crate::error::EngineError;

/// Is told what happened, on the engine's own threads: it must be quick and must not wait.
pub trait Observer: Send + Sync + 'static {
    /// What followed from commands that are durable now, in order.
    fn committed(&self, shard: u16, effects: &[Effect]);

    /// The same, seen again while the log was read at start: it happened in an earlier run. Only what came
    /// after the last checkpoint is seen.
    fn recovered(&self, shard: u16, effects: &[Effect]) {
        let _ = (shard, effects);
    }

    /// The log was synced once for so many commands.
    fn synced(&self, took: Duration, commands: usize) {
        let _ = (took, commands);
    }

    /// The log or a checkpoint could not get what it needs, and tries again; or it got it at last. What was
    /// set aside before may still let writes pass.
    fn short(&self, why: Option<&str>) {
        let _ = why;
    }

    /// Writes are refused from now on, or taken again.
    fn refusing(&self, why: Option<&EngineError>) {
        let _ = why;
    }

    /// A checkpoint was written, or could not be.
    fn checkpointed(&self, took: Duration, done: bool) {
        let _ = (took, done);
    }

    /// All rows of the stores were verified, while the engine runs.
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
