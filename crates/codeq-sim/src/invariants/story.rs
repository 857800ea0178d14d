//! The ledger, told task by task: what every history checker starts from.

use std::collections::BTreeMap;

use codeq_core::command::Millis;
use codeq_core::id::TaskId;
use codeq_core::names::queue_name;

use crate::ledger::{
    Answer, Back, Delivered, Digest, Final, Ledger, Line, Listed, Made, Op, Outcome, Queue, Ref,
    Seen, Wanted,
};

/// What happened to every task, as far as clients know.
#[derive(Debug, Default)]
pub struct Histories {
    /// By task.
    pub stories: BTreeMap<TaskId, Story>,
    /// Enqueues by (tenant, key): every task with the key that was asked for, in order.
    pub keys: BTreeMap<(String, String), Vec<Keyed>>,
    /// Claims without an answer: who asked, for which tenant, and when.
    pub lost_claims: Vec<LostClaim>,
    /// Operations on whole queues that may have happened.
    pub bulk: Vec<Bulk>,
    /// Cleanups that may have happened: tenant and when asked for.
    pub cleanups: Vec<(String, u64)>,
    /// Digests of all payloads that were ever sent, by tenant.
    pub payloads: BTreeMap<(String, Digest), u64>,
    /// The end.
    pub end: Option<Final>,
    /// The tasks at the end.
    pub listed: BTreeMap<TaskId, Listed>,
}

/// One task with an idempotency key, as asked for.
#[derive(Debug, Clone)]
pub struct Keyed {
    /// When it was asked for.
    pub invoked: u64,
    /// What was asked for.
    pub wanted: Wanted,
    /// The server's clock and its answer; none if there was none.
    pub answer: Option<(Millis, Made)>,
}

/// A claim whose answer never came.
#[derive(Debug, Clone)]
pub struct LostClaim {
    /// Whose.
    pub tenant: String,
    /// For whom.
    pub worker: String,
    /// When it was asked for.
    pub invoked: u64,
}

/// An operation on a whole queue.
#[derive(Debug, Clone)]
pub struct Bulk {
    /// Which.
    pub queue: Queue,
    /// What.
    pub verb: Verb,
    /// When it was asked for.
    pub invoked: u64,
    /// When it was known to be done; the end of time if it never was.
    pub done: u64,
}

/// What somebody did to a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Extended its lease.
    Heartbeat,
    /// Finished it, with the result of this digest.
    Submit(Digest),
    /// Gave it back as failed.
    Nack,
    /// Gave it back, losing an attempt or not.
    Abandon(bool),
    /// Cancelled it.
    Cancel,
    /// Replayed it.
    Replay,
    /// Removed it as dead.
    PurgeDead,
    /// Finished it as cancelled, with its queue.
    PurgeWaiting,
    /// Said what became of its callback.
    Callback(Delivered),
}

/// Somebody did something to a task, or tried to.
#[derive(Debug, Clone)]
pub struct Deed {
    /// When it was asked for.
    pub invoked: u64,
    /// When its outcome was known; the end of time if it never was.
    pub done: u64,
    /// Whose client asked.
    pub tenant: String,
    /// Who asked.
    pub worker: String,
    /// What for.
    pub verb: Verb,
    /// What came of it.
    pub outcome: Outcome,
}

/// A task was leased.
#[derive(Debug, Clone)]
pub struct Claimed {
    /// When the claim was asked for.
    pub invoked: u64,
    /// When its answer came.
    pub done: u64,
    /// The server's clock.
    pub at: Millis,
    /// The shard.
    pub shard: u16,
    /// Whose client asked.
    pub tenant: String,
    /// Who asked.
    pub worker: String,
    /// The task as it was handed out.
    pub seen: Seen,
}

/// The making of a task.
#[derive(Debug, Clone)]
pub struct Created {
    /// When it was asked for.
    pub invoked: u64,
    /// When the answer came.
    pub done: u64,
    /// The server's clock.
    pub at: Millis,
    /// The shard.
    pub shard: u16,
    /// Who asked.
    pub tenant: String,
    /// What was asked for.
    pub wanted: Wanted,
    /// The task as it was made.
    pub seen: Seen,
}

/// What clients know about one task.
#[derive(Debug, Default)]
pub struct Story {
    /// Its making, if a client was told.
    pub created: Option<Created>,
    /// Its claims, in the order of their answers.
    pub claims: Vec<Claimed>,
    /// Everything else, in the order of the outcomes; bulk operations on its queue included.
    pub deeds: Vec<Deed>,
}

impl Deed {
    /// The server did it.
    pub fn acked(&self) -> Option<(Millis, &Answer)> {
        match &self.outcome {
            Outcome::Acked { at, answer, .. } => Some((*at, answer)),
            _ => None,
        }
    }

    /// It may have happened: it was done, or nobody knows.
    pub fn possible(&self) -> bool {
        !matches!(self.outcome, Outcome::Refused { .. })
    }

    /// It may have happened before `tick` and after `since`.
    pub fn may_fall_in(&self, since: u64, tick: u64) -> bool {
        self.possible() && self.invoked < tick && self.done > since
    }

    /// It is of the kind that ends a lease.
    pub fn ends_lease(&self) -> bool {
        matches!(self.verb, Verb::Submit(_) | Verb::Nack | Verb::Abandon(_))
    }

    /// Where the task went, if it was given back.
    pub fn returned(&self) -> Option<(Millis, Back)> {
        match self.acked()? {
            (at, Answer::Returned(back)) => Some((at, *back)),
            _ => None,
        }
    }
}

impl Histories {
    /// Reads a ledger.
    pub fn of(ledger: &Ledger) -> Histories {
        let mut histories = Histories { end: ledger.end.clone(), ..Histories::default() };
        for line in &ledger.lines {
            histories.add(line);
        }
        for listed in ledger.end.iter().flat_map(|end| &end.tasks) {
            histories.listed.insert(listed.task.id, listed.clone());
        }
        histories
    }

    fn add(&mut self, line: &Line) {
        match &line.op {
            Op::Enqueue { tenant, tasks } => self.add_enqueue(line, tenant, tasks),
            Op::Claim { tenant, worker, .. } => self.add_claim(line, tenant, worker),
            Op::Heartbeat(task) => self.add_deed(line, task, Verb::Heartbeat),
            Op::Submit(task, digest) => self.add_deed(line, task, Verb::Submit(*digest)),
            Op::Nack(task) => self.add_deed(line, task, Verb::Nack),
            Op::Abandon(task, penalty) => self.add_deed(line, task, Verb::Abandon(*penalty)),
            Op::Cancel(task) => self.add_deed(line, task, Verb::Cancel),
            Op::ReplayOne(task) => self.add_deed(line, task, Verb::Replay),
            Op::Callback(task, how) => self.add_deed(line, task, Verb::Callback(*how)),
            Op::ReplayQueue(queue) => self.add_bulk(line, queue, Verb::Replay),
            Op::PurgeDead(queue) => self.add_bulk(line, queue, Verb::PurgeDead),
            Op::PurgeWaiting(queue) => self.add_bulk(line, queue, Verb::PurgeWaiting),
            Op::Cleanup { tenant } => self.cleanups.push((tenant.clone(), line.invoked)),
            Op::Other(_) => {}
        }
    }

    fn add_enqueue(&mut self, line: &Line, tenant: &str, tasks: &[Wanted]) {
        for (at, wanted) in tasks.iter().enumerate() {
            let sent = (tenant.to_owned(), wanted.payload);
            self.payloads.entry(sent).or_insert(line.invoked);
            let made = match line.acked() {
                Some((now, shard, Answer::Enqueued(made))) => {
                    made.get(at).map(|made| (now, shard, made.clone()))
                }
                _ => None,
            };
            if let Some(key) = &wanted.key {
                let keyed = Keyed {
                    invoked: line.invoked,
                    wanted: wanted.clone(),
                    answer: made.as_ref().map(|(now, _, made)| (*now, made.clone())),
                };
                let scope = (tenant.to_owned(), key.clone());
                if made.is_some() || line.is_unknown() {
                    self.keys.entry(scope).or_default().push(keyed);
                }
            }
            if let Some((now, shard, Made::Created(seen))) = made {
                let created = Created {
                    invoked: line.invoked,
                    done: line.done,
                    at: now,
                    shard,
                    tenant: tenant.to_owned(),
                    wanted: wanted.clone(),
                    seen: seen.clone(),
                };
                self.stories.entry(seen.id).or_default().created = Some(created);
            }
        }
    }

    fn add_claim(&mut self, line: &Line, tenant: &str, worker: &str) {
        let Some((at, shard, answer)) = line.acked() else {
            if line.is_unknown() {
                self.lost_claims.push(LostClaim {
                    tenant: tenant.to_owned(),
                    worker: worker.to_owned(),
                    invoked: line.invoked,
                });
            }
            return;
        };
        let Answer::Claimed(tasks) = answer else {
            return;
        };
        for seen in tasks {
            self.stories.entry(seen.id).or_default().claims.push(Claimed {
                invoked: line.invoked,
                done: line.done,
                at,
                shard,
                tenant: tenant.to_owned(),
                worker: worker.to_owned(),
                seen: seen.clone(),
            });
        }
    }

    fn add_deed(&mut self, line: &Line, task: &Ref, verb: Verb) {
        let deed = Deed {
            invoked: line.invoked,
            done: if line.is_unknown() { u64::MAX } else { line.done },
            tenant: task.tenant.clone(),
            worker: task.worker.clone(),
            verb,
            outcome: line.outcome.clone(),
        };
        self.stories.entry(task.id).or_default().deeds.push(deed);
    }

    fn add_bulk(&mut self, line: &Line, queue: &Queue, verb: Verb) {
        if !matches!(line.outcome, Outcome::Refused { .. }) {
            self.bulk.push(Bulk {
                queue: queue.clone(),
                verb,
                invoked: line.invoked,
                done: if line.is_unknown() { u64::MAX } else { line.done },
            });
        }
    }

    /// Whether an operation of that kind on the task's whole queue may have happened between the ticks.
    pub fn bulk_between(&self, seen: &Seen, verb: Verb, since: u64, until: u64) -> bool {
        self.bulk.iter().any(|bulk| {
            bulk.verb == verb
                && bulk.queue.tenant == seen.tenant
                && bulk.queue.command == queue_name(&seen.command)
                && bulk.invoked < until
                && bulk.done > since
        })
    }

    /// Whether the task may have been replayed between the ticks, alone or with its queue.
    pub fn replayed_between(&self, story: &Story, since: u64, until: u64) -> bool {
        story.deeds.iter().any(|deed| deed.verb == Verb::Replay && deed.may_fall_in(since, until))
            || story.seen().is_some_and(|seen| self.bulk_between(seen, Verb::Replay, since, until))
    }

    /// Whether a claim without an answer, by that worker if one is named, may have taken a task of the
    /// tenant before the tick.
    pub fn lost_claim(&self, tenant: &str, worker: Option<&str>, before: u64) -> bool {
        self.lost_claims.iter().any(|lost| {
            lost.tenant == tenant
                && lost.invoked < before
                && worker.is_none_or(|worker| lost.worker == worker)
        })
    }
}

impl Story {
    /// The claims in the order of their fences, or of their answers where fences are not shown.
    pub fn by_fence(&self) -> Vec<&Claimed> {
        let mut claims: Vec<&Claimed> = self.claims.iter().collect();
        claims.sort_by_key(|claim| (claim.seen.fence, claim.done));
        claims
    }

    /// The tenant and command, from whatever shows them.
    pub fn seen(&self) -> Option<&Seen> {
        let created = self.created.as_ref().map(|created| &created.seen);
        created.or_else(|| self.claims.first().map(|claim| &claim.seen))
    }
}
