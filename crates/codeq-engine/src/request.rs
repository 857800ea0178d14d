//! A command on its way through a shard, and where its answer goes.

use std::sync::Arc;

use codeq_core::codec;
use codeq_core::command::{
    Artifact, BulkWork, Claim, Command, Delivery, Enqueue, EnqueueByValue, LeaseAction, Millis,
    Nack, NewTask, Outcome, ReplayTarget, Selector, Submit, UnderLease,
};
use codeq_core::id::ShardId;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::boundary::{Answer, Call, Mailbox};
use crate::error::EngineError;

mod inbox;
mod split;

pub(crate) use inbox::{Inbox, Notice, after};
pub(crate) use split::{ClaimAcrossShards, CombinedReply, Split, split};

/// Where an answer goes.
pub enum ReplyTo {
    /// To the caller.
    One(oneshot::Sender<Answer>),
    /// To a mailbox, under a number that its owner chose.
    Mailbox(Arc<dyn Mailbox>, u64),
    /// To the caller, from the first shard that has an answer.
    First(FirstReply),
    /// To a claim that tries one shard after the other.
    NextShard(Box<ClaimAcrossShards>),
    /// Combined with the answers of other shards to the same call.
    Part(Arc<CombinedReply>, usize),
    /// To nobody.
    Nobody,
}

/// The inboxes of all shards.
pub type Inboxes = Arc<[Arc<Inbox>]>;

/// The reply channel of a claim that may wait in several shards and is answered by one of them.
#[derive(Clone)]
pub struct FirstReply(Arc<First>);

struct First {
    to: Mutex<Shared>,
    /// The client that reads the mailbox to which the answer goes, if it goes to one.
    mailbox: Option<ClientNumber>,
    /// The inboxes of all shards, in which the claim may wait.
    inboxes: Inboxes,
}

/// The reply that shards share.
enum Shared {
    /// No shard has an answer yet.
    Open(ReplyTo),
    /// A shard tries to serve the claim.
    Taken,
    Answered,
}

impl Shared {
    /// Takes an open reply, for good or until it is put back.
    fn take(&mut self, then: Shared) -> Option<ReplyTo> {
        match std::mem::replace(self, then) {
            Shared::Open(to) => Some(to),
            other => {
                *self = other;
                None
            }
        }
    }
}

impl FirstReply {
    /// Shares a reply among shards.
    pub fn new(to: ReplyTo, inboxes: Inboxes) -> FirstReply {
        let mailbox = match &to {
            ReplyTo::Mailbox(mailbox, _) => Some(mailbox_client(mailbox)),
            _ => None,
        };
        FirstReply(Arc::new(First { to: Mutex::new(Shared::Open(to)), mailbox, inboxes }))
    }

    /// Its client's number.
    pub fn client(&self) -> ClientNumber {
        Arc::as_ptr(&self.0).addr()
    }

    /// Shares a reply again, because the shard that had taken it has no answer for it.
    pub fn put_back(self, reply: ReplyTo) -> ReplyTo {
        *self.0.to.lock() = Shared::Open(reply);
        let reply = ReplyTo::First(self.clone());
        if reply.is_closed() {
            // The client left meanwhile, and its notice did not find this claim closed.
            self.drop_in_all_shards();
        }
        reply
    }

    /// Drops the claim in all other shards, because it has its answer.
    pub(crate) fn answered(&self) {
        *self.0.to.lock() = Shared::Answered;
        self.drop_in_all_shards();
    }

    fn drop_in_all_shards(&self) {
        if let inboxes @ [_, _, ..] = &*self.0.inboxes {
            inboxes.iter().for_each(|inbox| inbox.notify(Notice::Gone(self.client())));
        }
    }
}

/// Identifies a client that waits for tasks, by the address of its reply channel. The address may be reused for another
/// client later, so check whether the channel is closed.
pub type ClientNumber = usize;

/// The number of the client that reads a mailbox.
pub fn mailbox_client(mailbox: &Arc<dyn Mailbox>) -> ClientNumber {
    Arc::as_ptr(mailbox).addr()
}

impl ReplyTo {
    /// Whether the answer is no longer awaited.
    pub fn is_closed(&self) -> bool {
        match self {
            ReplyTo::One(sender) => sender.is_closed(),
            ReplyTo::Mailbox(mailbox, _) => mailbox.is_closed(),
            ReplyTo::First(first) => match &*first.0.to.lock() {
                Shared::Open(to) => to.is_closed(),
                Shared::Taken => false,
                Shared::Answered => true,
            },
            ReplyTo::NextShard(claim) => claim.to().is_closed(),
            ReplyTo::Part(combined, _) => combined.is_closed(),
            ReplyTo::Nobody => false,
        }
    }

    /// Whether it goes to a mailbox, whose reader waits for more than this answer.
    pub fn is_posted(&self) -> bool {
        match self {
            ReplyTo::Mailbox(..) => true,
            ReplyTo::First(first) => first.0.mailbox.is_some(),
            ReplyTo::NextShard(claim) => claim.to().is_posted(),
            ReplyTo::Part(combined, _) => combined.is_posted(),
            ReplyTo::One(_) | ReplyTo::Nobody => false,
        }
    }

    /// The numbers by which to find a waiting claim in order to drop it.
    pub fn clients(&self) -> impl Iterator<Item = ClientNumber> + use<> {
        let (own, mailbox) = match self {
            ReplyTo::Mailbox(mailbox, _) => (None, Some(mailbox_client(mailbox))),
            ReplyTo::First(first) => (Some(first.client()), first.0.mailbox),
            _ => (None, None),
        };
        own.into_iter().chain(mailbox)
    }

    /// The reply channel that it shares with other shards.
    pub fn shared(&self) -> Option<FirstReply> {
        match self {
            ReplyTo::First(first) => Some(first.clone()),
            _ => None,
        }
    }

    /// Takes the reply for this shard alone. An error returns it: another shard has answered it, or has it now and may
    /// put it back.
    pub fn take(self) -> Result<ReplyTo, ReplyTo> {
        match self {
            ReplyTo::First(first) => {
                let taken = first.0.to.lock().take(Shared::Taken);
                taken.ok_or(ReplyTo::First(first))
            }
            other => Ok(other),
        }
    }

    /// The final receiver and answer. `None` if other shards have yet to answer.
    pub(crate) fn resolve(self, answer: Answer) -> Option<(ReplyTo, Answer)> {
        let (to, answer) = match self {
            ReplyTo::First(first) => {
                let to = first.0.to.lock().take(Shared::Answered);
                match to {
                    Some(to) => {
                        first.answered();
                        (to, answer)
                    }
                    None => return Some((ReplyTo::First(first), answer)),
                }
            }
            ReplyTo::NextShard(claim) => claim.answered(answer)?,
            ReplyTo::Part(combined, part) => combined.answered(part, answer)?,
            to => return Some((to, answer)),
        };
        to.resolve(answer)
    }

    /// Sends the answer; returns it if it is no longer awaited.
    pub fn send(self, answer: Answer) -> Result<(), Answer> {
        match self.resolve(answer) {
            Some((ReplyTo::One(sender), answer)) => sender.send(answer),
            Some((ReplyTo::Mailbox(mailbox, number), answer)) => {
                let sent = mailbox.deliver(number, answer);
                mailbox.wake();
                sent
            }
            Some((ReplyTo::Nobody, _)) | None => Ok(()),
            // Another shard has answered.
            Some((ReplyTo::First(_) | ReplyTo::NextShard(_) | ReplyTo::Part(..), answer)) => {
                Err(answer)
            }
        }
    }
}

/// A command waiting to be applied.
pub struct Request {
    /// The command.
    pub command: Command,
    /// Where its answer goes.
    pub reply: ReplyTo,
    /// How long a claim that finds nothing waits for a task.
    pub wait: Millis,
    /// The shard, if the caller chose one.
    pub(crate) shard: Option<ShardId>,
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

    /// Answers the request with an error: it was not accepted, or its outcome is unknown.
    pub(crate) fn refuse(self, error: EngineError) {
        // A client that is gone does not need to know.
        let _ = self.reply.send(Err(error));
    }

    /// A command that the engine proposes itself: nobody awaits its answer.
    pub fn detached(command: Command) -> Request {
        Request::with(command, ReplyTo::Nobody, 0)
    }

    /// Its approximate size in memory and in the log, and never less than its size in the log.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Bytes counted for a command besides its texts, and again for each task in it.
const BASE: usize = 256;
/// Maximum bytes of an encoded fingerprint.
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
        Command::UnderLease(UnderLease { instance, action, .. }) => {
            let action = match &**action {
                LeaseAction::Submit(submit) => submit_bytes(submit),
                LeaseAction::Nack(nack) => nack_bytes(nack),
                LeaseAction::Heartbeat(heartbeat) => {
                    heartbeat.tenant.len() + heartbeat.worker.len()
                }
                LeaseAction::Abandon(abandon) => abandon.tenant.len() + abandon.worker.len(),
            };
            text(instance) + action
        }
        Command::Cancel(cancel) => cancel.tenant.len() + cancel.by.len(),
        Command::Reschedule(reschedule) => reschedule.tenant.len() + reschedule.by.len(),
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
                | BulkWork::Replay { command, .. }
                | BulkWork::Cancel { command, .. } => command.len(),
            };
            let filter = text(&part.filter.error_contains) + text(&part.filter.worker);
            part.tenant.len() + part.by.len() + text(&part.from.queue) + work + filter
        }
        // Only in logs of older versions: these are never proposed, so the cost does not matter.
        Command::ConfigureV1(_)
        | Command::EnqueueV1(_)
        | Command::EnqueueByValueV1(_)
        | Command::PutTopicV1(_)
        | Command::PutTopicV2(_)
        | Command::BulkPartV1(_) => {
            let mut logged = Vec::new();
            codec::push_command(command, &mut logged);
            logged.len()
        }
        Command::Configure(_) | Command::Sweep(_) => 0,
    }
}

/// A claim that waits in a shard for a task.
pub struct WaitingClaim {
    /// The claim.
    pub claim: Claim,
    /// Where its answer goes.
    pub reply: ReplyTo,
    /// When it times out and is answered without tasks.
    pub deadline: Millis,
    /// Maximum bytes that it takes in the log.
    pub bytes: usize,
}
