//! A command on its way through a shard, and the way back of its answer.

use std::sync::Arc;

use codeq_core::codec;
use codeq_core::command::{
    Artifact, BulkWork, Claim, Command, Deed, Delivery, Enqueue, EnqueueByValue, Millis, Nack,
    NewTask, Outcome, ReplayTarget, Selector, Submit, UnderLease,
};
use codeq_core::reply::Reply;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::error::EngineError;

/// The answer to a proposal.
pub type Answer = Result<Reply, EngineError>;

/// Takes the answers to many proposals of one client, which need no channel each.
pub trait Mailbox: Send + Sync {
    /// Takes the answer to the proposal with this number; gives it back if nobody reads any more.
    fn deliver(&self, number: u64, answer: Answer) -> Result<(), Answer>;

    /// Says that there is something to read. Once for all answers that are delivered together.
    fn wake(&self);

    /// Whether nobody reads any more.
    fn is_closed(&self) -> bool;
}

/// Where an answer goes.
pub enum ReplyTo {
    /// To the one who proposed.
    One(oneshot::Sender<Answer>),
    /// To a mailbox, under a number of its owner's.
    Mailbox(Arc<dyn Mailbox>, u64),
    /// To the one who proposed, from whichever shard is first.
    First(FirstReply),
    /// To nobody.
    Nobody,
}

/// A claim that waits, in several shards perhaps, and is answered by one of them.
#[derive(Clone)]
pub struct FirstReply(Arc<Mutex<Option<oneshot::Sender<Answer>>>>);

impl FirstReply {
    /// Shares a sender among shards.
    pub fn new(sender: oneshot::Sender<Answer>) -> FirstReply {
        FirstReply(Arc::new(Mutex::new(Some(sender))))
    }

    /// Its client's number.
    pub fn client(&self) -> ClientNumber {
        Arc::as_ptr(&self.0).addr()
    }

    /// Shares a reply again that a shard had made its own and has no answer for.
    pub fn put_back(self, reply: ReplyTo) -> ReplyTo {
        match reply {
            ReplyTo::One(sender) => {
                *self.0.lock() = Some(sender);
                ReplyTo::First(self)
            }
            other => other,
        }
    }
}

/// Tells clients that wait for tasks apart: the address of where their answers go. It may come to mean another client
/// when the first one is gone and forgotten, so see whether that one is closed.
pub type ClientNumber = usize;

/// The number of the client that reads a mailbox.
pub fn mailbox_client(mailbox: &Arc<dyn Mailbox>) -> ClientNumber {
    Arc::as_ptr(mailbox).addr()
}

impl ReplyTo {
    /// Whether nobody waits for the answer any more.
    pub fn is_closed(&self) -> bool {
        match self {
            ReplyTo::One(sender) => sender.is_closed(),
            ReplyTo::Mailbox(mailbox, _) => mailbox.is_closed(),
            ReplyTo::First(first) => {
                first.0.lock().as_ref().is_none_or(|sender| sender.is_closed())
            }
            ReplyTo::Nobody => false,
        }
    }

    /// Whose answer it is, if that client may wait for a task and be told apart.
    pub fn client(&self) -> Option<ClientNumber> {
        match self {
            ReplyTo::Mailbox(mailbox, _) => Some(mailbox_client(mailbox)),
            ReplyTo::First(first) => Some(first.client()),
            ReplyTo::One(_) | ReplyTo::Nobody => None,
        }
    }

    /// What it shares with other shards.
    pub fn shared(&self) -> Option<FirstReply> {
        match self {
            ReplyTo::First(first) => Some(first.clone()),
            _ => None,
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
            Some(ReplyTo::Mailbox(mailbox, number)) => {
                let sent = mailbox.deliver(number, answer);
                mailbox.wake();
                sent
            }
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
    bytes: usize,
}

impl Request {
    /// A command whose answer goes to `sender`.
    pub fn new(command: Command, sender: oneshot::Sender<Answer>) -> Request {
        Request::with(command, ReplyTo::One(sender), 0)
    }

    /// A command whose answer goes to `reply`; a claim that finds nothing waits for `wait`.
    pub fn with(command: Command, reply: ReplyTo, wait: Millis) -> Request {
        let command = command.current();
        let bytes = bytes(&command);
        Request { command, reply, wait, bytes }
    }

    /// A command of the engine itself.
    pub fn detached(command: Command) -> Request {
        Request::with(command, ReplyTo::Nobody, 0)
    }

    /// About how many bytes it takes, waiting and in the log; never less than the latter.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// What a command takes beside its texts, and a task of it.
const BASE: usize = 256;
/// What a fingerprint takes at most.
const FINGERPRINT: usize = 19;

fn text(text: &Option<Arc<str>>) -> usize {
    text.as_ref().map_or(0, |text| text.len())
}

fn enqueue_bytes(Enqueue { tenant, tasks, .. }: &Enqueue) -> usize {
    let task = |task: &NewTask| {
        let names = task.command.len() + text(&task.webhook);
        let trace = text(&task.trace_parent) + text(&task.trace_state);
        BASE + task.payload.len() + names + trace + text(&task.idempotency_key)
    };
    tenant.len() + tasks.iter().map(task).sum::<usize>()
}

fn submit_bytes(submit: &Submit) -> usize {
    let Submit { tenant, worker, outcome, artifacts, .. } = submit;
    let outcome = match outcome {
        Outcome::Completed(result) => result.len(),
        Outcome::Failed(error) => error.len(),
        Outcome::Both { result, error, .. } => result.len() + error.len(),
    };
    let artifact = |artifact: &Artifact| artifact.name.len() + artifact.url.len() + 16;
    let artifacts = artifacts.iter().map(artifact).sum::<usize>();
    tenant.len() + worker.len() + outcome + artifacts
}

fn nack_bytes(nack: &Nack) -> usize {
    nack.tenant.len() + nack.worker.len() + text(&nack.reason)
}

fn bytes(command: &Command) -> usize {
    BASE + match command {
        Command::Enqueue(enqueue) => enqueue_bytes(enqueue),
        Command::EnqueueByValue(EnqueueByValue { enqueue, fingerprints }) => {
            enqueue_bytes(enqueue) + fingerprints.len() * FINGERPRINT
        }
        Command::Claim(Claim { tenant, worker, from, .. }) => {
            let names = match from {
                Selector::Any => 0,
                Selector::Commands(commands) => commands.iter().map(|name| name.len() + 8).sum(),
            };
            tenant.len() + worker.len() + names
        }
        Command::Submit(submit) => submit_bytes(submit),
        Command::Nack(nack) => nack_bytes(nack),
        Command::Heartbeat(heartbeat) => heartbeat.tenant.len() + heartbeat.worker.len(),
        Command::Abandon(abandon) => abandon.tenant.len() + abandon.worker.len(),
        Command::UnderLease(UnderLease { instance, deed, .. }) => {
            let deed = match &**deed {
                Deed::Submit(submit) => submit_bytes(submit),
                Deed::Nack(nack) => nack_bytes(nack),
                Deed::Heartbeat(heartbeat) => heartbeat.tenant.len() + heartbeat.worker.len(),
                Deed::Abandon(abandon) => abandon.tenant.len() + abandon.worker.len(),
            };
            text(instance) + deed
        }
        Command::Cancel(cancel) => cancel.tenant.len() + cancel.by.len(),
        Command::Replay(replay) => {
            let target = match &replay.target {
                ReplayTarget::One(_) => 0,
                ReplayTarget::Queue { command, error_contains, .. } => {
                    command.len() + text(error_contains)
                }
            };
            replay.tenant.len() + replay.by.len() + target
        }
        Command::Purge(purge) => purge.tenant.len() + purge.command.len() + purge.by.len(),
        Command::Pause(pause) => pause.tenant.len() + pause.command.len(),
        Command::PutTopic(put) => {
            let reference = text(&put.policy.dead_letter_topic);
            put.tenant.len() + put.name.len() + put.policy.priority_tiers.len() + reference
        }
        Command::DeleteTopic(delete) => delete.tenant.len() + delete.name.len(),
        Command::Cleanup(cleanup) => cleanup.tenant.len(),
        Command::Callback(callback) => {
            let error = match &callback.delivery {
                Delivery::Failed { error, .. } | Delivery::Refused { error, .. } => error.len(),
                Delivery::Delivered | Delivery::Resend => 0,
            };
            callback.tenant.len() + error
        }
        Command::PutRecord(put) => put.tenant.len() + put.name.len() + put.value.len(),
        Command::DeleteRecord(delete) => delete.tenant.len() + delete.name.len(),
        Command::BulkPart(part) => {
            let work = match &part.work {
                BulkWork::Cleanup { .. } => 0,
                BulkWork::PurgeDead { command }
                | BulkWork::PurgeWaiting { command }
                | BulkWork::Replay { command, .. } => command.len(),
            };
            let filter = text(&part.filter.error_contains) + text(&part.filter.worker);
            part.tenant.len() + part.by.len() + text(&part.from.queue) + work + filter
        }
        // Only in logs of older versions: nobody proposes them any more, so it does not matter what this costs.
        Command::ConfigureV1(_) | Command::PutTopicV1(_) | Command::BulkPartV1(_) => {
            let mut logged = Vec::new();
            codec::push_command(command, &mut logged);
            logged.len()
        }
        Command::Configure(_) | Command::Sweep(_) => 0,
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
    /// What it takes in the log at most.
    pub bytes: usize,
}
