//! The engine's interface as data: a [`Call`] goes in, an [`Answer`] comes back.
//!
//! A call is awaited ([`Engine::call`]) or posted ([`Engine::post`]): calls posted together reach the shards together,
//! and the answers go to a [`Mailbox`], which is woken once for all answers of a commit. Either way the engine splits a
//! call among the shards that it concerns and combines their answers, so callers need not know how many there are.
//!
//! [`Engine::call`]: crate::Engine::call
//! [`Engine::post`]: crate::Engine::post

use codeq_core::command::{BulkPart, Claim, Command, Millis};
use codeq_core::id::ShardId;
use codeq_core::reply::Reply;
use serde::{Deserialize, Serialize};

use crate::error::EngineError;

/// A request to the engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Call {
    /// A command. A claim is answered at once, even if there is nothing to claim.
    Propose(Command),
    /// A claim that waits for the first task if there is none.
    Claim {
        /// The claim.
        claim: Claim,
        /// For how long, in milliseconds.
        wait: Millis,
    },
    /// A part of a bulk operation in one shard; such an operation visits the shards one after the other.
    BulkPart {
        /// The shard.
        shard: ShardId,
        /// The part.
        part: Box<BulkPart>,
    },
}

/// The answer to a call.
pub type Answer = Result<Reply, EngineError>;

/// Receives the answers to many calls of one client, without a channel for each.
pub trait Mailbox: Send + Sync {
    /// Receives the answer to the call with this number; returns it if the mailbox is no longer read.
    fn deliver(&self, number: u64, answer: Answer) -> Result<(), Answer>;

    /// Signals that there is something to read, once for all answers that are delivered together.
    fn wake(&self);

    /// Whether the mailbox is no longer read.
    fn is_closed(&self) -> bool;
}
