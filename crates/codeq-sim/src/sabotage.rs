//! Planted bugs: each one breaks a guarantee, and the checkers have to notice.
//!
//! None of them is in the code that ships. They sit between the simulator and the engine's parts: they change
//! commands before they are applied, answer too early, or make the disk lie. The resulting log is still consistent,
//! so that no bug reveals itself by crashing the program.

use std::collections::BTreeSet;
use std::sync::Arc;

use codeq_core::State;
use codeq_core::command::{
    Abandon, Claim, Cleanup, Command, Enqueue, EnqueueByValue, LeaseAction, Millis, Nack, Outcome,
    Selector, Submit, UnderLease,
};
use codeq_core::id::{ShardId, TaskId};
use codeq_core::keys::{self, Order, QueueId};
use codeq_core::kv::for_each;
use codeq_core::kv::{Direction, Key, KvError, KvRead, Table};
use codeq_core::moment::Moment;
use codeq_core::place::{Place, Status};
use codeq_core::reply::{Enqueued, Reply};
use codeq_core::rows::TaskRow;
use codeq_core::view::ResultRecord;
use codeq_engine::clock::{Clock, EngineClock};
use codeq_engine::clock_file::ClockFile;
use codeq_engine::request::Request;
use codeq_engine::shard::Shard;
use codeq_store::Store;

/// A planted bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sabotage {
    /// Answers leave before the log is synced.
    AckBeforeSync,
    /// The disk reports the log as synced although it is not.
    LyingSync,
    /// A checkpoint holds rows whose commands are not in the log yet.
    CheckpointBeforeSync,
    /// Anyone who knows a task's id may act on it.
    NoOwnerCheck,
    /// A lease ends at its last millisecond, not after it.
    EarlyExpiry,
    /// Two enqueues with the same key look it up before either has written it.
    KeyOutsideStep,
    /// A submit is acknowledged with its result; the task's state follows in a second write.
    TwoWrites,
    /// A task is dead-lettered one attempt too late.
    LateDeadLetter,
    /// A new task is ordered before one that was acknowledged earlier.
    OrderBeforeCommit,
    /// The second task in line is handed out first.
    HeadSkipped,
    /// A claim that finds nothing looks at another tenant's queues.
    CrossTenant,
    /// The callback is not written with the terminal state.
    ForgottenCallback,
    /// A heartbeat is acknowledged but not stored.
    HeartbeatNotKept,
    /// Delays are kept in whole seconds.
    DelayInSeconds,
    /// Finished tasks are removed at once.
    EarlyRetention,
    /// After a restart, engine time continues from the wall clock if that is later.
    EngineTimeFollowsWall,
    /// `runAt` is converted to a delay when the task is created, and later changes of the wall clock are ignored.
    DateAsDelay,
    /// The maximum run time of a task is not stored.
    LimitForgotten,
    /// A heartbeat is acknowledged beyond the maximum run time.
    HeartbeatBeyondLimit,
}

impl Sabotage {
    /// All of them.
    pub const ALL: [Sabotage; 19] = [
        Sabotage::AckBeforeSync,
        Sabotage::LyingSync,
        Sabotage::CheckpointBeforeSync,
        Sabotage::NoOwnerCheck,
        Sabotage::EarlyExpiry,
        Sabotage::KeyOutsideStep,
        Sabotage::TwoWrites,
        Sabotage::LateDeadLetter,
        Sabotage::OrderBeforeCommit,
        Sabotage::HeadSkipped,
        Sabotage::CrossTenant,
        Sabotage::ForgottenCallback,
        Sabotage::HeartbeatNotKept,
        Sabotage::DelayInSeconds,
        Sabotage::EarlyRetention,
        Sabotage::EngineTimeFollowsWall,
        Sabotage::DateAsDelay,
        Sabotage::LimitForgotten,
        Sabotage::HeartbeatBeyondLimit,
    ];
}

impl Sabotage {
    /// The invariants it breaks: one of them has to notice.
    pub fn breaks(self) -> &'static [u8] {
        match self {
            Sabotage::AckBeforeSync | Sabotage::LyingSync => &[1],
            Sabotage::CheckpointBeforeSync => &[1, 14],
            Sabotage::NoOwnerCheck | Sabotage::EarlyExpiry | Sabotage::HeartbeatNotKept => &[2],
            Sabotage::KeyOutsideStep => &[6],
            Sabotage::TwoWrites => &[1, 5],
            Sabotage::LateDeadLetter => &[7],
            Sabotage::OrderBeforeCommit | Sabotage::HeadSkipped => &[4],
            Sabotage::CrossTenant => &[10],
            Sabotage::ForgottenCallback => &[11],
            Sabotage::DelayInSeconds | Sabotage::EngineTimeFollowsWall | Sabotage::DateAsDelay => {
                &[8]
            }
            Sabotage::EarlyRetention => &[9],
            Sabotage::LimitForgotten | Sabotage::HeartbeatBeyondLimit => &[16],
        }
    }
}

/// Plants at most one bug in one run.
#[derive(Debug, Default)]
pub struct Saboteur {
    bug: Option<Sabotage>,
    without_fences: bool,
    keys: BTreeSet<(Arc<str>, Arc<str>)>,
    /// The second halves of submits, by shard.
    halves: Vec<(ShardId, Submit)>,
    raised: BTreeSet<Arc<str>>,
}

const GHOST: &str = "ghost";

impl Saboteur {
    /// Plants a bug, or none; answers can leave out the fences either way.
    pub fn new(bug: Option<Sabotage>, without_fences: bool) -> Saboteur {
        Saboteur { bug, without_fences, ..Saboteur::default() }
    }

    /// Whether the bug is this one.
    pub fn is(&self, bug: Sabotage) -> bool {
        self.bug == Some(bug)
    }

    /// Whether answers leave out the fences. The bugs in the order of tasks make claims that no client knows of, and the
    /// fences would reveal those claims before the wrong order does.
    pub fn hides_fences(&self) -> bool {
        self.without_fences
            || self.is(Sabotage::OrderBeforeCommit)
            || self.is(Sabotage::HeadSkipped)
    }

    /// Whether checkpoints do not wait for the log.
    pub fn checkpoints_early(&self) -> bool {
        self.is(Sabotage::CheckpointBeforeSync)
    }

    /// Forgets what the bug held in memory, because the process died.
    pub fn crashed(&mut self) {
        self.halves.clear();
    }

    /// The clock of a starting server.
    pub fn clock<C: Clock>(&self, clock: &Arc<C>, file: &ClockFile, last: Millis) -> EngineClock {
        let clock: Arc<dyn Clock> = Arc::clone(clock) as Arc<dyn Clock>;
        if self.is(Sabotage::EngineTimeFollowsWall) {
            let last = last.max(clock.wall());
            return EngineClock::start(clock, last, None);
        }
        file.start(clock, last)
    }

    /// Changes what a shard is about to apply.
    pub fn before_apply(
        &mut self,
        shard: &mut Shard,
        at: Moment,
        requests: Vec<Request>,
    ) -> Result<Vec<Request>, KvError> {
        let Some(bug) = self.bug else {
            return Ok(requests);
        };
        let data = Arc::clone(shard.data());
        let data = data.read();
        let (state, store) = (&data.state, &data.store);
        let mut out = Vec::new();
        if bug == Sabotage::EarlyExpiry {
            out.extend(end_leases(state, store, at.now)?);
        }
        if bug == Sabotage::EarlyRetention {
            let tenants: Vec<Arc<str>> = state.tenants().cloned().collect();
            out.extend(tenants.into_iter().map(|tenant| {
                let cleanup = Cleanup { tenant, before: at.wall, limit: 10 };
                Request::detached(Command::Cleanup(cleanup))
            }));
        }
        let number = shard.number;
        let due = self.halves.extract_if(.., |(of, _)| *of == number);
        out.extend(due.map(|(_, submit)| Request::detached(Command::Submit(submit))));
        let mut turn_keys = BTreeSet::new();
        for request in requests {
            self.change(bug, (state, store), shard, at, request, &mut turn_keys, &mut out)?;
        }
        self.keys.append(&mut turn_keys);
        Ok(out)
    }

    #[allow(clippy::too_many_arguments, reason = "one bug after the other looks at one request")]
    fn change(
        &mut self,
        bug: Sabotage,
        (state, store): (&State, &Store),
        shard: &mut Shard,
        at: Moment,
        mut request: Request,
        turn_keys: &mut BTreeSet<(Arc<str>, Arc<str>)>,
        out: &mut Vec<Request>,
    ) -> Result<(), KvError> {
        let Moment { now, wall } = at;
        let first = out.is_empty() && !state.is_due(at);
        match (bug, &mut request.command) {
            (Sabotage::NoOwnerCheck, command) => {
                if let Some((id, worker)) = worker_of(command)
                    && let Some(lease) = row(store, id)?.and_then(|row| row.lease)
                {
                    *worker = lease.worker;
                }
            }
            (
                Sabotage::KeyOutsideStep,
                Command::Enqueue(enqueue) | Command::EnqueueByValue(EnqueueByValue { enqueue, .. }),
            ) => {
                for task in &mut enqueue.tasks {
                    let Some(key) = &task.idempotency_key else { continue };
                    let scope = (Arc::clone(&enqueue.tenant), Arc::clone(key));
                    if !self.keys.contains(&scope) && !turn_keys.insert(scope) {
                        task.idempotency_key = None;
                    }
                }
            }
            (Sabotage::TwoWrites, Command::Submit(submit)) => {
                let live = row(store, submit.id)?.is_some_and(|row| {
                    row.lease
                        .is_some_and(|lease| lease.until >= now && lease.worker == submit.worker)
                });
                if live {
                    self.halves.push((shard.number, submit.clone()));
                    let record = record_of(submit, wall);
                    shard.group.answer(request.reply, Ok(Reply::Submitted(Box::new(record))));
                    return Ok(());
                }
            }
            (
                Sabotage::LateDeadLetter,
                Command::Enqueue(enqueue) | Command::EnqueueByValue(EnqueueByValue { enqueue, .. }),
            ) => {
                for task in &mut enqueue.tasks {
                    let queue = state.queue_id(&enqueue.tenant, &task.command);
                    let plain = queue
                        .and_then(|queue| state.queue_row(queue))
                        .is_none_or(|row| row.topic.is_none());
                    if let Some(max) = task.max_attempts.as_mut().filter(|_| plain) {
                        *max += 1;
                        self.raised.insert(String::from_utf8_lossy(&task.payload).into());
                    }
                }
            }
            // Only as the first request of a round: then the claim will find what the rows show now.
            (
                Sabotage::OrderBeforeCommit,
                Command::Enqueue(enqueue) | Command::EnqueueByValue(EnqueueByValue { enqueue, .. }),
            ) if first => {
                let (before, after) = push_back(state, store, enqueue)?;
                out.extend(before);
                out.push(request);
                out.extend(after);
                return Ok(());
            }
            (Sabotage::HeadSkipped, Command::Claim(claim)) if first => {
                let (before, after) = skip_head(state, store, claim)?;
                out.extend(before);
                out.push(request);
                out.extend(after);
                return Ok(());
            }
            (Sabotage::CrossTenant, Command::Claim(claim)) => {
                let empty = |tenant: &str| {
                    !state.queues_of(tenant).any(|(queue, _)| state.is_claimable(queue))
                };
                if empty(&claim.tenant)
                    && let Some(other) = state.tenants().find(|tenant| !empty(tenant))
                {
                    claim.tenant = Arc::clone(other);
                }
            }
            (
                Sabotage::ForgottenCallback,
                Command::Enqueue(enqueue) | Command::EnqueueByValue(EnqueueByValue { enqueue, .. }),
            ) => {
                enqueue.tasks.iter_mut().for_each(|task| task.webhook = None);
            }
            (
                Sabotage::HeartbeatNotKept | Sabotage::HeartbeatBeyondLimit,
                Command::Heartbeat(beat),
            ) => {
                let row = row(store, beat.id)?;
                let live = row.as_ref().is_some_and(|row| {
                    let lease = row.lease.as_ref();
                    lease.is_some_and(|lease| lease.until >= now && lease.worker == beat.worker)
                });
                let limit = row.map_or(0, |row| row.run_until);
                let beyond = limit > 0 && now + beat.extend > limit;
                if live && beyond == (bug == Sabotage::HeartbeatBeyondLimit) {
                    let lease_until = wall + beat.extend;
                    let reply = Reply::Extended { lease_until, cancel_requested: false };
                    shard.group.answer(request.reply, Ok(reply));
                    return Ok(());
                }
            }
            (
                Sabotage::LimitForgotten,
                Command::Enqueue(enqueue) | Command::EnqueueByValue(EnqueueByValue { enqueue, .. }),
            ) => {
                enqueue.tasks.iter_mut().for_each(|task| task.max_run = None);
            }
            (
                Sabotage::DelayInSeconds,
                Command::Enqueue(enqueue) | Command::EnqueueByValue(EnqueueByValue { enqueue, .. }),
            ) => {
                for task in &mut enqueue.tasks {
                    task.run_at = task.run_at.map(|date| date / 1_000 * 1_000);
                    task.delay = task.delay.map(|delay| delay / 1_000 * 1_000);
                }
            }
            (
                Sabotage::DateAsDelay,
                Command::Enqueue(enqueue) | Command::EnqueueByValue(EnqueueByValue { enqueue, .. }),
            ) => {
                for task in &mut enqueue.tasks {
                    let wait = task.run_at.take().map(|date| date.saturating_sub(wall));
                    task.delay = wait.or(task.delay);
                }
            }
            _ => {}
        }
        out.push(request);
        Ok(())
    }

    /// Changes an answer on its way to the client.
    pub fn after_release(&self, reply: &mut Reply) {
        if let (Some(Sabotage::LateDeadLetter), Reply::Enqueued(made)) = (self.bug, reply) {
            for one in made {
                if let Enqueued::Created(task) = one
                    && self.raised.contains(&*String::from_utf8_lossy(&task.payload))
                {
                    task.max_attempts = task.max_attempts.saturating_sub(1);
                }
            }
        }
    }
}

fn row(store: &Store, id: TaskId) -> Result<Option<TaskRow>, KvError> {
    let row = TaskRow::load(store, keys::task(id.seq()))?;
    Ok(row.filter(|row| row.id(id.seq()) == id && row.place == Place::InProgress))
}

fn worker_of(command: &mut Command) -> Option<(TaskId, &mut Arc<str>)> {
    match command {
        Command::Heartbeat(c) => Some((c.id, &mut c.worker)),
        Command::Submit(c) => Some((c.id, &mut c.worker)),
        Command::Nack(c) => Some((c.id, &mut c.worker)),
        Command::Abandon(c) => Some((c.id, &mut c.worker)),
        Command::UnderLease(UnderLease { action, .. }) => match &mut **action {
            LeaseAction::Heartbeat(c) => Some((c.id, &mut c.worker)),
            LeaseAction::Submit(c) => Some((c.id, &mut c.worker)),
            LeaseAction::Nack(c) => Some((c.id, &mut c.worker)),
            LeaseAction::Abandon(c) => Some((c.id, &mut c.worker)),
        },
        _ => None,
    }
}

fn record_of(submit: &Submit, wall: Millis) -> ResultRecord {
    let (completed, result, error) = match &submit.outcome {
        Outcome::Completed(result) if result.is_empty() => {
            (true, Some(bytes::Bytes::from_static(b"{}")), None)
        }
        Outcome::Completed(result) => (true, Some(result.clone()), None),
        Outcome::Failed(error) => (false, None, Some(Arc::clone(error))),
        Outcome::Both { completed, result, error } => {
            (*completed, Some(result.clone()), Some(Arc::clone(error)))
        }
    };
    ResultRecord {
        id: submit.id,
        status: if completed { Status::Completed } else { Status::Failed },
        result,
        error,
        artifacts: submit.artifacts.clone(),
        completed_at: wall,
    }
}

/// Ends the leases whose last millisecond this is.
fn end_leases(state: &State, store: &Store, now: Millis) -> Result<Vec<Request>, KvError> {
    let mut ended = Vec::new();
    if state.next_deadline().is_none_or(|next| next > now + 1) {
        return Ok(ended);
    }
    for_each(store, Table::Task, 0, Key::MAX, |key, value| {
        let row = TaskRow::decode(key, value)?;
        if let Some(lease) = row.lease.as_ref().filter(|lease| lease.until == now)
            && let Some(queue) = state.queue_row(row.queue)
        {
            let nack = Nack {
                tenant: Arc::clone(&queue.tenant),
                id: row.id(keys::seq_of(key)),
                worker: Arc::clone(&lease.worker),
                delay: None,
                reason: Some("LEASE_EXPIRED".into()),
                seed: now,
            };
            ended.push(Request::detached(Command::Nack(nack)));
        }
        Ok(())
    })?;
    Ok(ended)
}

/// The first tasks of a queue.
fn heads(store: &Store, queue: QueueId, count: usize) -> Result<Vec<TaskId>, KvError> {
    let (from, to) = (keys::pending(queue, 9, Order(0)), keys::pending(queue, 0, Order::MAX));
    let mut rows = Vec::new();
    store.scan(Table::Pending, from, to, Direction::Forward, count, &mut rows)?;
    let mut ids = Vec::new();
    for (key, value) in rows {
        let (_, seq) = keys::waiting_of(key, &value);
        if let Some(row) = TaskRow::load(store, keys::task(seq))? {
            ids.push(row.id(seq));
        }
    }
    Ok(ids)
}

fn ghost_claim(tenant: &Arc<str>, command: &Arc<str>) -> Request {
    Request::detached(Command::Claim(Claim {
        tenant: Arc::clone(tenant),
        worker: GHOST.into(),
        from: Selector::Commands(vec![Arc::clone(command)]),
        lease: 60_000,
        count: 1,
    }))
}

fn ghost_release(tenant: &Arc<str>, id: TaskId) -> Request {
    let (tenant, worker) = (Arc::clone(tenant), GHOST.into());
    Request::detached(Command::Abandon(Abandon { tenant, id, worker, penalty: false, fence: None }))
}

/// Requests that the bug adds before and after a client's request, as a worker that no client knows.
type Around = (Option<Request>, Option<Request>);

/// Moves the first task of the queue behind the one being enqueued.
fn push_back(state: &State, store: &Store, enqueue: &Enqueue) -> Result<Around, KvError> {
    let command = enqueue.tasks.first().map(|task| &task.command);
    let queue = command
        .and_then(|command| state.queue_id(&enqueue.tenant, command))
        .filter(|queue| state.is_claimable(*queue));
    let (Some(command), Some(queue)) = (command, queue) else {
        return Ok((None, None));
    };
    Ok(match heads(store, queue, 1)?[..] {
        [head] => (
            Some(ghost_claim(&enqueue.tenant, command)),
            Some(ghost_release(&enqueue.tenant, head)),
        ),
        _ => (None, None),
    })
}

/// Moves the first task of the queue out of the way during this claim.
fn skip_head(state: &State, store: &Store, claim: &Claim) -> Result<Around, KvError> {
    let Selector::Commands(commands) = &claim.from else {
        return Ok((None, None));
    };
    let [command] = &commands[..] else {
        return Ok((None, None));
    };
    let queue = state.queue_id(&claim.tenant, command).filter(|queue| state.is_claimable(*queue));
    let Some(queue) = queue else {
        return Ok((None, None));
    };
    match heads(store, queue, 2)?[..] {
        [first, _] => Ok((
            Some(ghost_claim(&claim.tenant, command)),
            Some(ghost_release(&claim.tenant, first)),
        )),
        _ => Ok((None, None)),
    }
}
