//! What the engine is asked for, as data: a [`Call`] goes in, an [`Answer`] comes back.
//!
//! A call is awaited ([`Engine::call`]), or posted ([`Engine::post`]): what is posted together goes into the shards
//! together, and the answers go to a [`Mailbox`], which is woken once for all answers of a commit. Either way the engine
//! divides a call among the shards that it concerns and joins their answers, so callers need not know how many there are.
//!
//! [`Engine::call`]: crate::Engine::call
//! [`Engine::post`]: crate::Engine::post

use codeq_core::command::{BulkPart, Claim, Command, Millis};
use codeq_core::reply::Reply;
use serde::{Deserialize, Serialize};

use crate::error::EngineError;

/// What the engine is asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Call {
    /// A command. A claim is answered at once, also if there is nothing to claim.
    Propose(Command),
    /// A claim that waits for the first task if there is none.
    Claim {
        /// The claim.
        claim: Claim,
        /// For how long, in milliseconds.
        wait: Millis,
    },
    /// A part of a bulk operation in one shard: such an operation goes through the shards one after the other.
    BulkPart {
        /// The shard.
        shard: u16,
        /// The part.
        part: BulkPart,
    },
}

/// The answer to a call.
pub type Answer = Result<Reply, EngineError>;

/// Takes the answers to many calls of one client, which need no channel each.
pub trait Mailbox: Send + Sync {
    /// Takes the answer to the call with this number; gives it back if nobody reads any more.
    fn deliver(&self, number: u64, answer: Answer) -> Result<(), Answer>;

    /// Says that there is something to read. Once for all answers that are delivered together.
    fn wake(&self);

    /// Whether nobody reads any more.
    fn is_closed(&self) -> bool;
}
