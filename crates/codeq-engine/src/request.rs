//! A command on its way through a shard, and the way back of its answer.

use std::sync::Arc;

use codeq_core::command::{Claim, Command, Enqueue, Millis, Outcome};
use codeq_core::reply::Reply;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::error::EngineError;

/// The answer to a proposal.
pub type Answer = Result<Reply, EngineError>;

/// Where an answer goes.
pub enum ReplyTo {
    /// To the one who proposed.
    One(oneshot::Sender<Answer>),
    /// To the one who proposed, from whichever shard is first.
    First(FirstReply),
    /// To nobody.
    Nobody,
}

/// A claim that waits in several shards and is answered by one of them.
#[derive(Clone)]
pub struct FirstReply(Arc<Mutex<Option<oneshot::Sender<Answer>>>>);

impl FirstReply {
    /// Shares a sender among shards.
    pub fn new(sender: oneshot::Sender<Answer>) -> FirstReply {
        FirstReply(Arc::new(Mutex::new(Some(sender))))
    }
}

impl ReplyTo {
    /// Whether nobody waits for the answer any more.
    pub fn is_closed(&self) -> bool {
        match self {
            ReplyTo::One(sender) => sender.is_closed(),
            ReplyTo::First(first) => first
                .0
                .lock()
                .as_ref()
                .is_none_or(|sender| sender.is_closed()),
            ReplyTo::Nobody => false,
        }
    }

    /// Makes the answer this shard's alone. None if another shard has it already.
    pub fn take(self) -> Option<ReplyTo> {
        match self {
            ReplyTo::First(first) => first.0.lock().take().map(ReplyTo::One),
            other => Some(other),
        }
    }

    /// Sends the answer; gives it back if nobody waits for it.
    pub fn send(self, answer: Answer) -> Result<(), Answer> {
        match self.take() {
            Some(ReplyTo::One(sender)) => sender.send(answer),
            Some(ReplyTo::Nobody) => Ok(()),
            Some(ReplyTo::First(_)) | None => Err(answer),
        }
    }
}

/// A command that waits to be applied.
pub struct Request {
    /// The command.
    pub command: Command,
    /// Where its answer goes.
    pub reply: ReplyTo,
    /// For a claim that finds nothing: wait for a task this long.
    pub wait: Millis,
}

impl Request {
    /// A command whose answer goes to `sender`.
    pub fn new(command: Command, sender: oneshot::Sender<Answer>) -> Request {
        Request {
            command,
            reply: ReplyTo::One(sender),
            wait: 0,
        }
    }

    /// A command of the engine itself.
    pub fn detached(command: Command) -> Request {
        Request {
            command,
            reply: ReplyTo::Nobody,
            wait: 0,
        }
    }

    /// About how much memory it takes while it waits.
    pub fn bytes(&self) -> usize {
        const BASE: usize = 256;
        BASE + match &self.command {
            Command::Enqueue(Enqueue { tasks, .. }) => {
                tasks.iter().map(|task| BASE + task.payload.len()).sum()
            }
            Command::Submit(submit) => match &submit.outcome {
                Outcome::Completed(result) => result.len(),
                Outcome::Failed(error) => error.len(),
            },
            _ => 0,
        }
    }
}

/// A claim that waits in a shard for a task.
pub struct ParkedClaim {
    /// The claim.
    pub claim: Claim,
    /// Where its answer goes.
    pub reply: ReplyTo,
    /// When it is answered empty.
    pub deadline: Millis,
}
