//! Calls that concern several shards: how they are split, and how the answers are combined.

use std::collections::BTreeMap;
use std::sync::Arc;

use codeq_core::command::{Claim, Command, Enqueue, EnqueueByValue, Millis};
use codeq_core::id::ShardId;
use codeq_core::limits::BATCH_MAX;
use codeq_core::reply::{Rejection, Reply};
use parking_lot::Mutex;

use super::{FirstReply, Inboxes, ReplyTo, Request};
use crate::boundary::Answer;
use crate::error::EngineError;
use crate::route::task_shard;

/// How the answers of several shards are combined.
pub enum Merge {
    /// The first reply other than "not found", if there is one. An error wins over a
    /// rejection, and a rejection over success.
    SameEverywhere,
    /// Like `SameEverywhere`, with the total number of consumers restored.
    Topic { max_consumers: u32 },
    /// Each part has the outcomes of the tasks at these positions of the batch.
    Enqueued { places: Vec<Vec<usize>> },
}

/// How a command is handled by several shards.
pub enum Split {
    /// It is not split; `route` picks its shard.
    Whole(Command),
    /// The part of each shard.
    Parts(Vec<(ShardId, Command)>, Merge),
    /// It cannot be split among the shards, or is not allowed.
    Refused(Answer),
}

/// Splits a command among shards.
pub fn split(command: Command, shards: u16) -> Split {
    match command {
        Command::Enqueue(Enqueue { tasks, .. })
        | Command::EnqueueByValue(EnqueueByValue { enqueue: Enqueue { tasks, .. }, .. })
            if tasks.len() > BATCH_MAX =>
        {
            Split::Refused(Ok(Reply::Rejected(Rejection::InvalidBatch { max: BATCH_MAX })))
        }
        Command::Enqueue(enqueue) if can_split(&enqueue) => split_tasks(enqueue, &[], shards),
        Command::EnqueueByValue(EnqueueByValue { enqueue, fingerprints })
            if can_split(&enqueue) =>
        {
            split_tasks(enqueue, &fingerprints, shards)
        }
        Command::PutTopic(put) => {
            let max_consumers = put.policy.max_consumers;
            let each = u32::from(shards);
            if (1..each).contains(&max_consumers) {
                return Split::Refused(Err(EngineError::TooFewConsumers { shards }));
            }
            let share = |shard: ShardId| {
                let mut share = put.clone();
                let extra = u32::from(u32::from(shard.0) < max_consumers % each);
                share.policy.max_consumers = max_consumers / each + extra;
                (shard, Command::PutTopic(share))
            };
            Split::Parts(ShardId::all(shards).map(share).collect(), Merge::Topic { max_consumers })
        }
        Command::Pause(_) | Command::DeleteTopic(_) | Command::Configure(_) => {
            let same = |shard| (shard, command.clone());
            Split::Parts(ShardId::all(shards).map(same).collect(), Merge::SameEverywhere)
        }
        other => Split::Whole(other),
    }
}

/// Whether a batch may be split; an atomic batch goes to one shard.
fn can_split(enqueue: &Enqueue) -> bool {
    !enqueue.atomic && enqueue.tasks.len() > 1
}

/// Splits tasks by their keys.
fn split_tasks(enqueue: Enqueue, fingerprints: &[u128], shards: u16) -> Split {
    let Enqueue { tenant, tasks, seed, .. } = enqueue;
    let mut parts: BTreeMap<ShardId, (Vec<usize>, Vec<_>, Vec<_>)> = BTreeMap::new();
    for (at, task) in tasks.into_iter().enumerate() {
        let shard = task_shard(&tenant, &task, seed, shards);
        let (places, tasks, prints) = parts.entry(shard).or_default();
        places.push(at);
        tasks.push(task);
        prints.extend(fingerprints.get(at).copied());
    }
    let (mut commands, mut all_places) = (Vec::new(), Vec::new());
    for (shard, (places, tasks, fingerprints)) in parts {
        let enqueue = Enqueue { tenant: Arc::clone(&tenant), tasks, atomic: false, seed };
        let command = if fingerprints.is_empty() {
            Command::Enqueue(enqueue)
        } else {
            Command::EnqueueByValue(EnqueueByValue { enqueue, fingerprints })
        };
        commands.push((shard, command));
        all_places.push(places);
    }
    Split::Parts(commands, Merge::Enqueued { places: all_places })
}

impl Merge {
    fn merge(&self, answers: impl Iterator<Item = Answer>) -> Answer {
        let answers: Vec<Answer> = answers.collect();
        let may_be_done = |answer: &Answer| match answer {
            Ok(reply) => !matches!(reply, Reply::Rejected(_)),
            Err(error) => !error.is_refusal(),
        };
        let is_refused = |answer: &Answer| answer.as_ref().is_err_and(EngineError::is_refusal);
        if answers.iter().any(is_refused) && answers.iter().any(may_be_done) {
            // Part of it was done, or may have been: nobody may repeat it as if nothing had happened.
            return Err(EngineError::Unknown);
        }
        let mut replies = answers.into_iter().collect::<Result<Vec<Reply>, EngineError>>()?;
        if let Merge::Enqueued { places } = self {
            return in_order(replies, places);
        }
        // "Not found" in some shards is normal. Any other rejection is a shard that lacks what the others have.
        let is_decisive =
            |reply: &Reply| matches!(reply, Reply::Rejected(why) if *why != Rejection::NotFound);
        let is_accepted = |reply: &Reply| !matches!(reply, Reply::Rejected(_));
        let position = |holds: &dyn Fn(&Reply) -> bool| replies.iter().position(holds);
        let decisive = position(&is_decisive).or_else(|| position(&is_accepted)).unwrap_or(0);
        let first = replies.drain(..).nth(decisive);
        let mut reply = first.ok_or(EngineError::Closed)?;
        if let (Merge::Topic { max_consumers }, Reply::Topic { topic, .. }) = (self, &mut reply) {
            topic.policy.max_consumers = *max_consumers;
        }
        Ok(reply)
    }
}

/// Puts the outcomes of a batch into the order of its tasks.
fn in_order(replies: Vec<Reply>, places: &[Vec<usize>]) -> Answer {
    let mut outcomes = Vec::new();
    outcomes.resize_with(places.iter().map(Vec::len).sum(), || None);
    for (reply, places) in replies.into_iter().zip(places) {
        let Reply::Enqueued(part) = reply else { return Ok(reply) };
        for (at, outcome) in places.iter().zip(part) {
            if let Some(slot) = outcomes.get_mut(*at) {
                *slot = Some(outcome);
            }
        }
    }
    outcomes.into_iter().collect::<Option<_>>().map(Reply::Enqueued).ok_or(EngineError::Closed)
}

/// Collects the answers of several shards to one call.
pub struct CombinedReply {
    merge: Merge,
    posted: bool,
    parts: Mutex<Parts>,
}

struct Parts {
    to: Option<ReplyTo>,
    answers: Vec<Option<Answer>>,
    missing: usize,
}

impl CombinedReply {
    pub fn new(to: ReplyTo, parts: usize, merge: Merge) -> Arc<CombinedReply> {
        let (posted, answers) = (to.is_posted(), (0..parts).map(|_| None).collect());
        let parts = Parts { to: Some(to), answers, missing: parts };
        Arc::new(CombinedReply { merge, posted, parts: Mutex::new(parts) })
    }

    pub fn is_posted(&self) -> bool {
        self.posted
    }

    pub fn is_closed(&self) -> bool {
        self.parts.lock().to.as_ref().is_none_or(ReplyTo::is_closed)
    }

    /// Adds the answer to one part. Returns the combined answer and where it goes, once it is complete.
    pub fn answered(&self, part: usize, answer: Answer) -> Option<(ReplyTo, Answer)> {
        let mut parts = self.parts.lock();
        *parts.answers.get_mut(part)? = Some(answer);
        parts.missing -= 1;
        if parts.missing > 0 {
            return None;
        }
        let (to, answers) = (parts.to.take()?, std::mem::take(&mut parts.answers));
        drop(parts);
        Some((to, self.merge.merge(answers.into_iter().flatten())))
    }
}

/// A claim that tries one shard after the other, and waits in all of them if none has a task.
pub struct ClaimAcrossShards {
    claim: Claim,
    wait: Millis,
    inboxes: Inboxes,
    /// The shard to try next.
    next: usize,
    /// Number of shards still to try.
    left: usize,
    to: ReplyTo,
}

impl ClaimAcrossShards {
    /// The request for `start`, the first shard to try.
    pub fn begin(request: Request, start: usize, inboxes: &Inboxes) -> Request {
        let Request { command, reply, wait, .. } = request;
        let Command::Claim(claim) = &command else {
            return Request::with(command, reply, wait);
        };
        let inboxes = Arc::clone(inboxes);
        let to = match reply {
            first @ ReplyTo::First(_) => first,
            to if wait > 0 => ReplyTo::First(FirstReply::new(to, Arc::clone(&inboxes))),
            to => to,
        };
        let (claim, left) = (claim.clone(), inboxes.len() - 1);
        let across = ClaimAcrossShards { claim, wait, inboxes, next: start + 1, left, to };
        Request::with(command, ReplyTo::NextShard(Box::new(across)), 0)
    }

    /// Where the final answer goes.
    pub fn to(&self) -> &ReplyTo {
        &self.to
    }

    /// Processes the answer of a shard. If that answers the claim, returns it and where it goes; otherwise tries the
    /// next shard, or waits in all of them.
    pub fn answered(mut self: Box<ClaimAcrossShards>, answer: Answer) -> Option<(ReplyTo, Answer)> {
        let empty = matches!(&answer, Ok(Reply::Claimed(tasks)) if tasks.is_empty());
        if !empty || self.to.is_closed() {
            return Some((self.to, answer));
        }
        if self.left > 0 {
            self.left -= 1;
            let at = self.next % self.inboxes.len();
            self.next = at + 1;
            let inbox = self.inboxes.get(at).map(Arc::clone);
            let command = Command::Claim(self.claim.clone());
            inbox?.push(Request::with(command, ReplyTo::NextShard(self), 0));
            return None;
        }
        let (1.., ReplyTo::First(first)) = (self.wait, &self.to) else {
            return Some((self.to, answer));
        };
        for inbox in self.inboxes.iter() {
            let (command, reply) =
                (Command::Claim(self.claim.clone()), ReplyTo::First(first.clone()));
            inbox.push(Request::with(command, reply, self.wait));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_that_was_done_in_part_is_not_refused() {
        let done = || Ok(Reply::Done);
        let rejected = || Ok(Reply::Rejected(Rejection::NotFound));
        let too_many = || Ok(Reply::Rejected(Rejection::TooManyQueues { max: 1 }));
        let failed = || Err(EngineError::Failed("disk".into()));
        let (full, overloaded) = (|| Err(EngineError::DiskFull), || Err(EngineError::Overloaded));
        for (answers, merged) in [
            (vec![done(), full()], Err(EngineError::Unknown)),
            (vec![overloaded(), done()], Err(EngineError::Unknown)),
            (vec![failed(), overloaded()], Err(EngineError::Unknown)),
            (vec![overloaded(), full()], Err(EngineError::Overloaded)),
            (vec![rejected(), full()], Err(EngineError::DiskFull)),
            (vec![done(), failed()], Err(EngineError::Failed("disk".into()))),
            (vec![rejected(), done()], done()),
            (vec![rejected(), rejected()], rejected()),
            (vec![done(), too_many()], too_many()),
            (vec![rejected(), too_many(), done()], too_many()),
        ] {
            let case = format!("{answers:?}");
            assert_eq!(Merge::SameEverywhere.merge(answers.into_iter()), merged, "{case}");
        }
    }
}
