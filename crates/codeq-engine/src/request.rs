//! A command on its way through a shard, and the way back of its answer.

use std::sync::Arc;

use codeq_core::codec;
use codeq_core::command::{
    Artifact, BulkWork, Claim, Command, Deed, Delivery, Enqueue, EnqueueByValue, Millis, Nack,
    NewTask, Outcome, ReplayTarget, Selector, Submit, UnderLease,
};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::boundary::{Answer, Call, Mailbox};
use crate::error::EngineError;

mod inbox;
mod spread;

pub(crate) use inbox::{Inbox, Notice, after};
pub(crate) use spread::{Divided, Join, Round, divide};

/// Where an answer goes.
pub enum ReplyTo {
    /// To the one who called.
    One(oneshot::Sender<Answer>),
    /// To a mailbox, under a number of its owner's.
    Mailbox(Arc<dyn Mailbox>, u64),
    /// From whichever shard is first.
    First(FirstReply),
    /// To a claim that asks one shard after the other.
    Round(Box<Round>),
    /// To the other answers of a call that several shards answer together.
    Part(Arc<Join>, usize),
    /// To nobody.
    Nobody,
}

/// The inboxes of all shards.
pub type Inboxes = Arc<[Arc<Inbox>]>;

/// A claim that waits, in several shards perhaps, and is answered by one of them.
#[derive(Clone)]
pub struct FirstReply(Arc<First>);

struct First {
    to: Mutex<Option<ReplyTo>>,
    /// Who reads the answer, if it goes to a mailbox.
    mailbox: Option<ClientNumber>,
    /// Of the shards that it waits in.
    inboxes: Inboxes,
}

impl FirstReply {
    /// Shares a reply among shards.
    pub fn new(to: ReplyTo, inboxes: Inboxes) -> FirstReply {
        let mailbox = match &to {
            ReplyTo::Mailbox(mailbox, _) => Some(mailbox_client(mailbox)),
            _ => None,
        };
        FirstReply(Arc::new(First { to: Mutex::new(Some(to)), mailbox, inboxes }))
    }

    /// Its client's number.
    pub fn client(&self) -> ClientNumber {
        Arc::as_ptr(&self.0).addr()
    }

    /// Shares a reply again that a shard had made its own and has no answer for.
    pub fn put_back(self, reply: ReplyTo) -> ReplyTo {
        *self.0.to.lock() = Some(reply);
        ReplyTo::First(self)
    }

    /// Lets go of the claim wherever else it waits: it has its answer.
    pub(crate) fn answered(&self) {
        if let inboxes @ [_, _, ..] = &*self.0.inboxes {
            inboxes.iter().for_each(|inbox| inbox.notify(Notice::Gone(self.client())));
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
            ReplyTo::First(first) => first.0.to.lock().as_ref().is_none_or(ReplyTo::is_closed),
            ReplyTo::Round(round) => round.to().is_closed(),
            ReplyTo::Part(join, _) => join.is_closed(),
            ReplyTo::Nobody => false,
        }
    }

    /// Whether it goes to a mailbox, whose reader waits for more than this answer.
    pub fn is_posted(&self) -> bool {
        match self {
            ReplyTo::Mailbox(..) => true,
            ReplyTo::First(first) => first.0.mailbox.is_some(),
            ReplyTo::Round(round) => round.to().is_posted(),
            ReplyTo::Part(join, _) => join.is_posted(),
            ReplyTo::One(_) | ReplyTo::Nobody => false,
        }
    }

    /// The numbers under which a claim that waits is found again, when it is to be let go.
    pub fn clients(&self) -> impl Iterator<Item = ClientNumber> + use<> {
        let (own, mailbox) = match self {
            ReplyTo::Mailbox(mailbox, _) => (None, Some(mailbox_client(mailbox))),
            ReplyTo::First(first) => (Some(first.client()), first.0.mailbox),
            _ => (None, None),
        };
        own.into_iter().chain(mailbox)
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
            ReplyTo::First(first) => first.0.to.lock().take(),
            other => Some(other),
        }
    }

    /// Who the answer is for in the end, and what it is then. None if other shards have to answer too.
    pub(crate) fn settle(self, answer: Answer) -> Option<(ReplyTo, Answer)> {
        let (to, answer) = match self {
            ReplyTo::First(first) => {
                let to = first.0.to.lock().take();
                match to {
                    Some(to) => {
                        first.answered();
                        (to, answer)
                    }
                    None => return Some((ReplyTo::First(first), answer)),
                }
            }
            ReplyTo::Round(round) => round.answered(answer)?,
            ReplyTo::Part(join, part) => join.answered(part, answer)?,
            to => return Some((to, answer)),
        };
        to.settle(answer)
    }

    /// Sends the answer; gives it back if nobody waits for it.
    pub fn send(self, answer: Answer) -> Result<(), Answer> {
        match self.settle(answer) {
            Some((ReplyTo::One(sender), answer)) => sender.send(answer),
            Some((ReplyTo::Mailbox(mailbox, number), answer)) => {
                let sent = mailbox.deliver(number, answer);
                mailbox.wake();
                sent
            }
            Some((ReplyTo::Nobody, _)) | None => Ok(()),
            // Another shard has answered.
            Some((ReplyTo::First(_) | ReplyTo::Round(_) | ReplyTo::Part(..), answer)) => {
                Err(answer)
            }
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
    /// The one shard that it is for, if its caller has chosen.
    pub(crate) shard: Option<u16>,
    bytes: usize,
}

impl Request {
    /// A call whose answer goes to `reply`.
    pub fn new(call: Call, reply: ReplyTo) -> Request {
        match call {
            Call::Propose(command) => Request::with(command, reply, 0),
            Call::Claim { claim, wait } => Request::with(Command::Claim(claim), reply, wait),
            Call::BulkPart { shard, part } => {
                let request = Request::with(Command::BulkPart(part), reply, 0);
                Request { shard: Some(shard), ..request }
            }
        }
    }

    /// A command whose answer goes to `reply`; a claim that finds nothing waits for `wait`.
    pub fn with(command: Command, reply: ReplyTo, wait: Millis) -> Request {
        let command = command.current();
        let bytes = bytes(&command);
        Request { command, reply, wait, shard: None, bytes }
    }

    /// Answers that it was not taken.
    pub(crate) fn refuse(self, error: EngineError) {
        // Whoever is gone does not need to know.
        let _ = self.reply.send(Err(error));
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
