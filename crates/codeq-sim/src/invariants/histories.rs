//! The ledger, grouped by task: the input of every history checker.

use std::collections::BTreeMap;

use codeq_core::command::Millis;
use codeq_core::id::{ShardId, TaskId};
use codeq_core::names::queue_name;

use crate::ledger::{
    Answer, Back, Delivered, Digest, Final, Ledger, Line, Listed, Made, NotBefore, Op, Outcome,
    Queue, Ref, Seen, Wanted,
};

/// What happened to every task, as far as clients know.
#[derive(Debug, Default)]
pub struct Histories {
    /// Histories by task.
    pub tasks: BTreeMap<TaskId, TaskHistory>,
    /// Enqueues by (tenant, key): every requested task with the key, in order, unless the enqueue was refused.
    pub keys: BTreeMap<(String, String), Vec<Keyed>>,
    /// Unanswered claims.
    pub lost_claims: Vec<LostClaim>,
    /// Operations on whole queues that may have happened.
    pub bulk: Vec<Bulk>,
    /// Cleanups that may have happened: tenant, and when requested.
    pub cleanups: Vec<(String, u64)>,
    /// When each payload was first sent, by tenant and digest.
    pub payloads: BTreeMap<(String, Digest), u64>,
    /// The server's tasks at the end, as listed.
    pub end: Option<Final>,
    /// The same, by task.
    pub listed: BTreeMap<TaskId, Listed>,
}

/// One requested task with an idempotency key.
#[derive(Debug, Clone)]
pub struct Keyed {
    /// When it was requested.
    pub invoked: u64,
    /// The requested task.
    pub wanted: Wanted,
    /// The server's clock and its answer; `None` if there was none.
    pub answer: Option<(Millis, Made)>,
}

/// A claim that was never answered.
#[derive(Debug, Clone)]
pub struct LostClaim {
    /// The tenant of the worker.
    pub tenant: String,
    /// The worker that claimed.
    pub worker: String,
    /// When it was requested.
    pub invoked: u64,
}

/// An operation on a whole queue.
#[derive(Debug, Clone)]
pub struct Bulk {
    /// The queue.
    pub queue: Queue,
    /// The operation.
    pub verb: Verb,
    /// When it was requested.
    pub invoked: u64,
    /// When it was known to be done; `u64::MAX` if never.
    pub done: u64,
}

/// What was done to a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Extended its lease.
    Heartbeat,
    /// Finished it, with a result that has this digest.
    Submit(Digest),
    /// Returned it as failed.
    Nack,
    /// Returned it, at the cost of an attempt or not.
    Abandon(bool),
    /// Cancelled it.
    Cancel,
    /// Replayed it.
    Replay,
    /// Removed it as dead.
    PurgeDead,
    /// Cancelled it with its whole queue.
    PurgeWaiting,
    /// Reported the delivery of its callback.
    Callback(Delivered),
    /// Changed its priority, or when it becomes claimable.
    Reschedule(Option<NotBefore>),
}

/// An operation on a task, successful or not.
#[derive(Debug, Clone)]
pub struct TaskOp {
    /// When it was requested.
    pub invoked: u64,
    /// When its outcome was known; `u64::MAX` if never.
    pub done: u64,
    /// The tenant of the client.
    pub tenant: String,
    /// The client.
    pub worker: String,
    /// The operation.
    pub verb: Verb,
    /// Its outcome.
    pub outcome: Outcome,
}

/// A claim that leased the task.
#[derive(Debug, Clone)]
pub struct Claimed {
    /// When the claim was requested.
    pub invoked: u64,
    /// When its answer arrived.
    pub done: u64,
    /// The server's clock.
    pub at: Millis,
    /// The shard.
    pub shard: ShardId,
    /// The tenant of the client.
    pub tenant: String,
    /// The worker that claimed.
    pub worker: String,
    /// The task as it was handed out.
    pub seen: Seen,
}

/// The creation of a task.
#[derive(Debug, Clone)]
pub struct Created {
    /// When it was requested.
    pub invoked: u64,
    /// When the answer arrived.
    pub done: u64,
    /// The server's clock.
    pub at: Millis,
    /// The shard.
    pub shard: ShardId,
    /// The tenant of the client.
    pub tenant: String,
    /// The requested task.
    pub wanted: Wanted,
    /// The task as it was created.
    pub seen: Seen,
}

/// What clients know about one task.
#[derive(Debug, Default)]
pub struct TaskHistory {
    /// Its creation, if a client knows of it.
    pub created: Option<Created>,
    /// Its claims, in the order of their answers.
    pub claims: Vec<Claimed>,
    /// All other operations, in the order of their outcomes, except bulk operations on its queue, which are in
    /// [`Histories::bulk`].
    pub ops: Vec<TaskOp>,
}

impl TaskOp {
    /// The server's clock and answer, if the server did it.
    pub fn acked(&self) -> Option<(Millis, &Answer)> {
        match &self.outcome {
            Outcome::Acked { at, answer, .. } => Some((*at, answer)),
            _ => None,
        }
    }

    /// Whether it may have happened: it was acknowledged, or its outcome is unknown.
    pub fn possible(&self) -> bool {
        !matches!(self.outcome, Outcome::Refused { .. })
    }

    /// Whether it may have happened between `since` and `tick`.
    pub fn may_fall_in(&self, since: u64, tick: u64) -> bool {
        self.possible() && self.invoked < tick && self.done > since
    }

    /// Whether it is of a kind that ends a lease.
    pub fn ends_lease(&self) -> bool {
        matches!(self.verb, Verb::Submit(_) | Verb::Nack | Verb::Abandon(_))
    }

    /// Where the task went, if this returned it.
    pub fn returned(&self) -> Option<(Millis, Back)> {
        match self.acked()? {
            (at, Answer::Returned(back)) => Some((at, *back)),
            _ => None,
        }
    }
}

impl Histories {
    /// Groups a ledger by task.
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
            Op::Heartbeat(task) => self.add_op(line, task, Verb::Heartbeat),
            Op::Submit(task, digest) => self.add_op(line, task, Verb::Submit(*digest)),
            Op::Nack(task) => self.add_op(line, task, Verb::Nack),
            Op::Abandon(task, penalty) => self.add_op(line, task, Verb::Abandon(*penalty)),
            Op::Cancel(task) => self.add_op(line, task, Verb::Cancel),
            Op::Reschedule(task, when) => self.add_op(line, task, Verb::Reschedule(*when)),
            Op::ReplayOne(task) => self.add_op(line, task, Verb::Replay),
            Op::Callback(task, how) => self.add_op(line, task, Verb::Callback(*how)),
            Op::ReplayQueue(queue) => self.add_bulk(line, queue, Verb::Replay),
            Op::PurgeDead(queue) => self.add_bulk(line, queue, Verb::PurgeDead),
            Op::PurgeWaiting(queue) => self.add_bulk(line, queue, Verb::PurgeWaiting),
            Op::Cleanup { tenant } => {
                if !matches!(line.outcome, Outcome::Refused { .. }) {
                    self.cleanups.push((tenant.clone(), line.invoked));
                }
            }
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
                self.tasks.entry(seen.id).or_default().created = Some(created);
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
            self.tasks.entry(seen.id).or_default().claims.push(Claimed {
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

    fn add_op(&mut self, line: &Line, task: &Ref, verb: Verb) {
        let op = TaskOp {
            invoked: line.invoked,
            done: if line.is_unknown() { u64::MAX } else { line.done },
            tenant: task.tenant.clone(),
            worker: task.worker.clone(),
            verb,
            outcome: line.outcome.clone(),
        };
        self.tasks.entry(task.id).or_default().ops.push(op);
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

    /// Whether such an operation on the task's whole queue may have happened between the ticks.
    pub fn bulk_between(&self, seen: &Seen, verb: Verb, since: u64, until: u64) -> bool {
        self.bulk.iter().any(|bulk| {
            bulk.verb == verb
                && bulk.queue.tenant == seen.tenant
                && bulk.queue.command == queue_name(&seen.command)
                && bulk.invoked < until
                && bulk.done > since
        })
    }

    /// Whether the task may have been replayed between the ticks, individually or with its queue.
    pub fn replayed_between(&self, history: &TaskHistory, since: u64, until: u64) -> bool {
        history.ops.iter().any(|op| op.verb == Verb::Replay && op.may_fall_in(since, until))
            || history
                .seen()
                .is_some_and(|seen| self.bulk_between(seen, Verb::Replay, since, until))
    }

    /// Whether an unanswered claim, by this worker if one is given, may have taken a task of the tenant before the
    /// tick.
    pub fn lost_claim(&self, tenant: &str, worker: Option<&str>, before: u64) -> bool {
        self.lost_claims.iter().any(|lost| {
            lost.tenant == tenant
                && lost.invoked < before
                && worker.is_none_or(|worker| lost.worker == worker)
        })
    }
}

impl TaskHistory {
    /// The claims by fence, or by answer if fences are hidden.
    pub fn by_fence(&self) -> Vec<&Claimed> {
        let mut claims: Vec<&Claimed> = self.claims.iter().collect();
        claims.sort_by_key(|claim| (claim.seen.fence, claim.done));
        claims
    }

    /// Whether the task may have been rescheduled between the ticks.
    pub fn rescheduled_between(&self, since: u64, until: u64) -> bool {
        let mut ops = self.ops.iter().filter(|op| matches!(op.verb, Verb::Reschedule(_)));
        ops.any(|op| op.may_fall_in(since, until))
    }

    /// The task as first shown, from whatever shows it.
    pub fn seen(&self) -> Option<&Seen> {
        let created = self.created.as_ref().map(|created| &created.seen);
        created.or_else(|| self.claims.first().map(|claim| &claim.seen))
    }
}
