//! What drives an engine's shards: its own threads on a single node, or a cluster.

use std::future::Future;
use std::pin::Pin;

use codeq_core::moment::Moment;

use crate::error::EngineError;

/// The future of [`Driver::catch_up`].
pub type CatchingUp<'a> = Pin<Box<dyn Future<Output = Result<(), EngineError>> + Send + 'a>>;

/// Takes requests from the inboxes of an engine's shards, orders them, makes them durable and answers them. Callers of
/// the engine do not know which driver it has.
pub trait Driver: Send + Sync {
    /// The current moment on both clocks.
    fn now(&self) -> Moment;

    /// Completes once the local rows include everything that was acknowledged before. `None` if they always do.
    fn catch_up(&self) -> Option<CatchingUp<'_>>;

    /// Finishes what was proposed, writes a checkpoint and ends. Later proposals are refused. May be called again.
    fn shutdown(&self);
}
