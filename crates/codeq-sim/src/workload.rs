//! Clients and workers: what they know, and what they request next.
//!
//! They only know what answers have shown them. Some stop in the middle, some come back after their lease has ended,
//! and some try what they must not.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use codeq_core::command::{
    Abandon, BulkFilter, BulkFrom, BulkPart, BulkWork, Callback, Cancel, Claim, Command,
    DeleteRecord, DeleteTopic, Delivery, Enqueue, Fence, Heartbeat, LeaseAction, Millis, Nack,
    NewTask, Outcome, Pause, PutRecord, PutTopic, Replay, ReplayFrom, ReplayTarget, Reschedule,
    RunWhen, Selector, Submit, UnderLease,
};
use codeq_core::id::{ShardId, TaskId};
use codeq_core::keys::Seq;
use codeq_core::limits::{BULK_LOOK_MIN, LEASE_MS_MAX, LEASE_MS_MIN, MAX_RUN_MS_MIN};
use codeq_core::record::RecordKind;
use codeq_core::topic::Policy;
use codeq_engine::route::{Route, route};
use codeq_engine::shard::Shard;

use crate::plan::{Act, Plan, settings};
use crate::rng::Rng;

/// How many tasks of each kind the clients remember.
const MEMORY: usize = 64;

/// A request, and how long a claim waits if it finds nothing.
#[derive(Debug, Clone)]
pub struct ClientCall {
    /// The command.
    pub command: Command,
    /// How long a claim waits.
    pub wait: Millis,
}

impl ClientCall {
    /// The shortest retention that it configures.
    pub fn retention(&self) -> Option<Millis> {
        match &self.command {
            Command::Configure(settings) => {
                Some(settings.retention.min(settings.dead_letter_retention))
            }
            Command::PutTopic(put) => {
                let own = [put.policy.retention, put.policy.dead_letter_retention];
                own.into_iter().filter(|ms| *ms > 0).min()
            }
            _ => None,
        }
    }

    /// Where it goes.
    pub fn target(&self, shards: u16, rng: &mut Rng) -> Target {
        let is_claim = matches!(self.command, Command::Claim(_));
        match route(&self.command, shards) {
            Ok(Route::One(shard)) => Target::Each(vec![shard]),
            Ok(Route::All) if is_claim && self.wait > 0 && shards > 1 => Target::First,
            Ok(Route::All) if is_claim => {
                Target::Each(vec![ShardId(rng.below(u64::from(shards)) as u16)])
            }
            Ok(Route::All) => Target::Each(ShardId::all(shards).collect()),
            // Refused before it reached a shard.
            Err(_) => Target::Each(Vec::new()),
        }
    }
}

/// Where a request goes.
pub enum Target {
    /// To each of these shards, as a request of its own.
    Each(Vec<ShardId>),
    /// To all shards, and the first that has an answer gives it.
    First,
}

/// A lease that a worker holds, or believes it holds.
#[derive(Debug, Clone)]
pub struct Held {
    /// The tenant that owns the task.
    pub tenant: Arc<str>,
    /// The worker that holds it.
    pub worker: Arc<str>,
    /// The task.
    pub id: TaskId,
    /// Its end, as far as the worker knows.
    pub until: Millis,
    /// Number of the claim.
    pub fence: Fence,
}

/// The clients of one run.
pub struct Workload {
    plan: Plan,
    rng: Rng,
    /// Leases that workers hold.
    pub held: Vec<Held>,
    /// Leases of workers that seem to be gone, and will come back, mostly too late.
    zombies: Vec<Held>,
    known: VecDeque<(Arc<str>, TaskId)>,
    dead: VecDeque<(Arc<str>, TaskId)>,
    submitted: VecDeque<Submit>,
    /// Callbacks that a sender has taken from the outbox.
    pub callbacks: VecDeque<(Arc<str>, TaskId)>,
    sent: u64,
}

impl Workload {
    /// Creates the clients of a plan.
    pub fn new(plan: &Plan, seed: u64) -> Workload {
        Workload {
            plan: plan.clone(),
            rng: Rng::new(seed).fork("workload"),
            held: Vec::new(),
            zombies: Vec::new(),
            known: VecDeque::new(),
            dead: VecDeque::new(),
            submitted: VecDeque::new(),
            callbacks: VecDeque::new(),
            sent: 0,
        }
    }

    /// The next request of some client, when the server's wall clock shows `wall`.
    pub fn next(&mut self, wall: Millis) -> ClientCall {
        let total = self.plan.weights.iter().map(|(_, weight)| weight).sum();
        let mut draw = self.rng.below(total);
        let act = self.plan.weights.iter().find(|(_, weight)| {
            let hit = draw < *weight;
            draw = draw.saturating_sub(*weight);
            hit
        });
        let act = act.map_or(Act::Enqueue, |(act, _)| *act);
        let wait = match act {
            Act::ClaimWait => self.rng.between(1, 20_000),
            _ => 0,
        };
        // If there is nothing to act on, enqueue instead.
        let command = self.command(act, wall).unwrap_or_else(|| self.enqueue(1));
        ClientCall { command, wait }
    }

    /// A hundred tasks for one shard, always of the same queue and priority.
    pub fn hundred(&mut self) -> ClientCall {
        let tenant = self.plan.tenants.first().cloned().unwrap_or_else(|| "a".into());
        let command = self.plan.commands.first().cloned();
        let task = |workload: &mut Workload| {
            workload.sent += 1;
            NewTask {
                command: command.clone().unwrap_or_else(|| "work".into()),
                payload: Bytes::from(format!("{{\"of\":\"{tenant}\",\"n\":{}}}", workload.sent)),
                ..NewTask::default()
            }
        };
        let tasks = (0..100).map(|_| task(self)).collect();
        let seed = self.rng.draw();
        let enqueue = Enqueue { tenant: Arc::clone(&tenant), tasks, atomic: false, seed };
        ClientCall { command: Command::Enqueue(enqueue), wait: 0 }
    }

    /// Lets a sender of callbacks look into the outbox of a shard.
    pub fn look_for_callbacks(&mut self, shard: &Shard, now: Millis) {
        let data = shard.data().read();
        let reader = codeq_core::read::Reader { state: &data.state, kv: &data.store };
        let due = reader.callbacks_due((0, Seq(0)), 4).unwrap_or_default();
        for due in due.into_iter().filter(|due| due.at <= now) {
            let Ok(Some(due)) = reader.callback(due.seq) else { continue };
            let callback = (Arc::clone(&due.task.tenant), due.task.id);
            if !self.callbacks.contains(&callback) {
                self.callbacks.push_back(callback);
            }
        }
    }

    /// One task that nothing keeps from being accepted.
    pub fn simple(&mut self) -> ClientCall {
        ClientCall { command: self.enqueue(1), wait: 0 }
    }

    /// A task of a queue that nothing else uses, and a claim of it.
    pub fn rendezvous(&mut self, command: &Arc<str>) -> (ClientCall, ClientCall) {
        let (tenant, worker) = (self.tenant(), self.worker());
        let task = NewTask { command: Arc::clone(command), ..self.new_task(&tenant) };
        let seed = self.rng.draw();
        let tasks = vec![task];
        let enqueue = Enqueue { tenant: Arc::clone(&tenant), tasks, atomic: false, seed };
        let lease = self.rng.between(LEASE_MS_MIN, self.plan.lease).min(LEASE_MS_MAX);
        let from = Selector::Commands(vec![Arc::clone(command)]);
        let claim = Claim { tenant, worker, from, lease, count: 1 };
        let call = |command| ClientCall { command, wait: 0 };
        (call(Command::Enqueue(enqueue)), call(Command::Claim(claim)))
    }

    fn command(&mut self, act: Act, wall: Millis) -> Option<Command> {
        Some(match act {
            Act::Enqueue => self.enqueue(1),
            Act::EnqueueBatch => {
                let count = self.rng.between(1, 6);
                self.enqueue(count)
            }
            Act::EnqueueLater => self.enqueue_later(wall),
            Act::EnqueueKeyed => self.enqueue_keyed(),
            Act::Claim | Act::ClaimWide | Act::ClaimWait => self.claim(act),
            Act::Heartbeat => {
                let Held { tenant, worker, id, .. } = self.lease(false)?;
                let extend = self.rng.between(LEASE_MS_MIN, self.plan.lease.max(LEASE_MS_MIN));
                Command::Heartbeat(Heartbeat { tenant, id, worker, extend })
            }
            Act::Submit => self.submit()?,
            Act::SubmitAgain => {
                let at = self.rng.below(self.submitted.len() as u64) as usize;
                let mut submit = self.submitted.get(at)?.clone();
                if self.rng.chance(20) {
                    submit.outcome = Outcome::Completed(Bytes::from_static(b"{\"other\":1}"));
                }
                Command::Submit(submit)
            }
            Act::Nack => {
                let Held { tenant, worker, id, fence, .. } = self.lease(true)?;
                let delay = match self.rng.below(3) {
                    0 => None,
                    1 => Some(0),
                    _ => Some(self.rng.between(1, 60_000)),
                };
                let reason = self.rng.chance(50).then(|| Arc::from("boom"));
                let seed = self.rng.draw();
                let nack = Nack { tenant, id, worker, delay, reason, seed };
                if id.seq().0.is_multiple_of(2) {
                    return Some(Command::Nack(nack));
                }
                let action = Box::new(LeaseAction::Nack(nack));
                Command::UnderLease(UnderLease { fence: Some(fence), instance: None, action })
            }
            Act::Abandon => {
                let Held { tenant, worker, id, .. } = self.lease(true)?;
                let penalty = self.rng.chance(50);
                Command::Abandon(Abandon { tenant, id, worker, penalty, fence: None })
            }
            Act::Cancel => {
                let (tenant, id) = self.known_task()?;
                Command::Cancel(Cancel { tenant, id, by: "producer".into() })
            }
            Act::Reschedule => self.reschedule(wall)?,
            Act::Replay => self.replay(wall)?,
            Act::Purge => {
                let (tenant, command) = (self.tenant(), self.command_name());
                let work = match self.rng.below(6) {
                    0..=2 => BulkWork::PurgeDead { command },
                    3..=4 => BulkWork::PurgeWaiting { command },
                    _ => BulkWork::Cancel { command, running: self.rng.chance(70) },
                };
                let take = self.rng.between(1, 10) as u32;
                self.bulk(tenant, work, wall, take)
            }
            Act::Pause => {
                let (tenant, command) = (self.tenant(), self.command_name());
                Command::Pause(Pause { tenant, command, paused: self.rng.chance(35) })
            }
            Act::Topic => self.topic(),
            Act::Cleanup => {
                let expired = self.rng.chance(30);
                let tenant = self.tenant();
                self.bulk(tenant, BulkWork::Cleanup { expired }, wall, 10)
            }
            Act::Callback => self.callback()?,
            Act::Trespass => self.trespass()?,
            Act::Configure => Command::Configure(settings(&mut self.rng)),
            Act::Record => self.record(),
        })
    }

    fn tenant(&mut self) -> Arc<str> {
        self.rng.pick(&self.plan.tenants).cloned().unwrap_or_else(|| "a".into())
    }

    fn command_name(&mut self) -> Arc<str> {
        self.rng.pick(&self.plan.commands).cloned().unwrap_or_else(|| "work".into())
    }

    fn worker(&mut self) -> Arc<str> {
        self.rng.pick(&self.plan.workers).cloned().unwrap_or_else(|| "w1".into())
    }

    /// A task with a unique payload.
    fn new_task(&mut self, tenant: &str) -> NewTask {
        self.sent += 1;
        let size = self.rng.below(self.plan.payload) as usize;
        let text =
            format!("{{\"of\":\"{tenant}\",\"n\":{},\"pad\":\"{}\"}}", self.sent, "x".repeat(size));
        NewTask {
            command: self.command_name(),
            payload: Bytes::from(text),
            priority: match self.rng.below(3) {
                0 => self.rng.between(0, 9) as i32,
                1 => 5,
                _ => 0,
            },
            max_attempts: self.rng.chance(50).then(|| self.rng.between(1, 4) as u32),
            webhook: self
                .rng
                .chance(self.plan.webhooks)
                .then(|| Arc::from("https://example.com/done")),
            max_run: self.rng.chance(25).then(|| self.rng.between(MAX_RUN_MS_MIN, 60_000)),
            ..NewTask::default()
        }
    }

    fn enqueue(&mut self, count: u64) -> Command {
        let tenant = self.tenant();
        let mut tasks: Vec<NewTask> = (0..count).map(|_| self.new_task(&tenant)).collect();
        let atomic = count > 1 && self.rng.chance(50);
        if atomic
            && self.rng.chance(20)
            && let Some(last) = tasks.last_mut()
        {
            last.payload = Bytes::new();
        }
        let seed = self.rng.draw();
        Command::Enqueue(Enqueue { tenant, tasks, atomic, seed })
    }

    fn enqueue_later(&mut self, wall: Millis) -> Command {
        let tenant = self.tenant();
        let mut task = self.new_task(&tenant);
        let far = match self.rng.below(3) {
            0 => self.rng.between(1, 20),
            1 => self.rng.between(1, 20_000),
            _ => self.rng.between(1, 7_200_000),
        };
        if self.rng.chance(50) {
            task.delay = Some(far);
        } else {
            task.run_at = Some(wall + far);
        }
        let seed = self.rng.draw();
        Command::Enqueue(Enqueue { tenant, tasks: vec![task], atomic: false, seed })
    }

    /// Uses one of a few keys, mostly with the command and the payload that belong to the key.
    fn enqueue_keyed(&mut self) -> Command {
        let tenant = self.tenant();
        let key = self.rng.below(self.plan.keys);
        let mut task = self.new_task(&tenant);
        if self.rng.chance(90) {
            let kinds = self.plan.commands.len() as u64;
            let kind = self.plan.commands.get((key % kinds.max(1)) as usize);
            task.command = kind.cloned().unwrap_or_else(|| "work".into());
            task.payload = Bytes::from(format!("{{\"of\":\"{tenant}\",\"key\":{key}}}"));
        }
        task.idempotency_key = Some(format!("key-{key}").into());
        let seed = self.rng.draw();
        Command::Enqueue(Enqueue { tenant, tasks: vec![task], atomic: false, seed })
    }

    fn claim(&mut self, act: Act) -> Command {
        let from = match act {
            Act::ClaimWide if self.rng.chance(50) => Selector::Any,
            Act::ClaimWide => Selector::Commands(self.plan.commands.clone()),
            _ => Selector::Commands(vec![self.command_name()]),
        };
        let (tenant, worker) = (self.tenant(), self.worker());
        let lease = self.rng.between(LEASE_MS_MIN, self.plan.lease).min(LEASE_MS_MAX);
        let count = match self.rng.below(3) {
            0 => self.rng.between(1, 10) as u32,
            _ => 1,
        };
        Command::Claim(Claim { tenant, worker, from, lease, count })
    }

    /// A lease for its worker to act on; `last` means that the worker usually forgets it afterwards.
    fn lease(&mut self, last: bool) -> Option<Held> {
        if !self.zombies.is_empty() && self.rng.chance(self.plan.zombie) {
            let at = self.rng.below(self.zombies.len() as u64) as usize;
            return Some(self.zombies.swap_remove(at));
        }
        let at = self.rng.below(self.held.len() as u64) as usize;
        let held = self.held.get(at)?.clone();
        if last && self.rng.chance(90) {
            self.held.swap_remove(at);
        }
        Some(held)
    }

    fn submit(&mut self) -> Option<Command> {
        let Held { tenant, worker, id, .. } = self.lease(true)?;
        let outcome = match self.rng.below(10) {
            0 if id.seq().0.is_multiple_of(2) => Outcome::Both {
                completed: id.seq().0.is_multiple_of(4),
                result: Bytes::from_static(b"{\"half\":true}"),
                error: "the rest".into(),
            },
            0 => Outcome::Failed("no good".into()),
            1 => Outcome::Completed(Bytes::new()),
            _ => Outcome::Completed(Bytes::from(format!(
                "{{\"by\":\"{worker}\",\"n\":{}}}",
                self.rng.draw()
            ))),
        };
        let submit = Submit { tenant, id, worker, outcome, artifacts: Vec::new() };
        remember(&mut self.submitted, submit.clone());
        Some(Command::Submit(submit))
    }

    fn known_task(&mut self) -> Option<(Arc<str>, TaskId)> {
        let at = self.rng.below(self.known.len() as u64) as usize;
        self.known.get(at).cloned()
    }

    fn reschedule(&mut self, wall: Millis) -> Option<Command> {
        let (tenant, id) = self.known_task()?;
        let far = self.rng.between(1, 20_000);
        let when = match self.rng.below(4) {
            0 => None,
            1 => Some(RunWhen::After(0)),
            2 => Some(RunWhen::After(far)),
            _ => Some(RunWhen::At(wall + far)),
        };
        let priority = self.rng.chance(50).then(|| self.rng.between(0, 9) as i32);
        let by = "operator".into();
        Some(Command::Reschedule(Reschedule { tenant, id, priority, when, by }))
    }

    fn replay(&mut self, wall: Millis) -> Option<Command> {
        let by: Arc<str> = "operator".into();
        if self.rng.chance(70) {
            let at = self.rng.below(self.dead.len() as u64) as usize;
            // Some are still running or completed: these stay where they are.
            let (tenant, id) = match self.rng.chance(20) {
                true => self.known_task()?,
                false => self.dead.get(at)?.clone(),
            };
            let target = ReplayTarget::One(id);
            return Some(Command::Replay(Replay { tenant, target, by }));
        }
        let command = self.command_name();
        let from = match self.rng.below(3) {
            0 => ReplayFrom::DeadLetters,
            1 => ReplayFrom::Failed,
            _ => ReplayFrom::Cancelled,
        };
        let take = self.rng.between(1, 10) as u32;
        let tenant = self.tenant();
        Some(self.bulk(tenant, BulkWork::Replay { command, from }, wall, take))
    }

    /// One part of an operator's bulk operation, from the start, that looks at few rows. Half of them have no filter.
    fn bulk(&mut self, tenant: Arc<str>, work: BulkWork, wall: Millis, take: u32) -> Command {
        let mut filter = BulkFilter::default();
        if self.rng.chance(50) {
            filter.error_contains = self.rng.chance(30).then(|| "boom".into());
            filter.before = self.rng.chance(50).then(|| wall - self.rng.below(60_000).min(wall));
            filter.after = self.rng.chance(30).then(|| wall - self.rng.below(600_000).min(wall));
            filter.worker = self.rng.chance(30).then(|| self.worker());
        }
        let (from, by) = (BulkFrom::default(), "operator".into());
        let look = BULK_LOOK_MIN;
        Command::BulkPart(Box::new(BulkPart { tenant, work, filter, from, take, look, by }))
    }

    fn topic(&mut self) -> Command {
        let (tenant, name) = (self.tenant(), self.command_name());
        if self.rng.chance(30) {
            return Command::DeleteTopic(DeleteTopic { tenant, name });
        }
        let policy = Policy {
            priority_tiers: if self.rng.chance(30) { vec![2, 7] } else { Vec::new() },
            max_attempts: self.rng.chance(30).then_some(2),
            dead_letter_topic: self.rng.chance(30).then(|| "mail-dead".into()),
            retention: if self.rng.chance(30) { 5_000 } else { 0 },
            max_consumers: if self.rng.chance(30) { self.rng.between(1, 3) as u32 } else { 0 },
            dead_letter_retention: if self.rng.chance(30) { 9_000 } else { 0 },
            max_run: if self.rng.chance(30) { self.rng.between(MAX_RUN_MS_MIN, 30_000) } else { 0 },
        };
        Command::PutTopic(PutTopic { tenant, name, policy })
    }

    fn record(&mut self) -> Command {
        let tenant = self.tenant();
        let kind = match self.rng.chance(50) {
            true => RecordKind::Subscription,
            false => RecordKind::WebhookSecret,
        };
        let name = Arc::from(format!("r{}", self.rng.below(4)));
        let expected = self.rng.chance(30).then(|| self.rng.below(3));
        if self.rng.chance(25) {
            return Command::DeleteRecord(DeleteRecord { tenant, kind, name, expected });
        }
        let value = Bytes::from(vec![b'v'; self.rng.below(200) as usize]);
        let ttl = self.rng.chance(60).then(|| self.rng.between(1, 120_000));
        Command::PutRecord(PutRecord { tenant, kind, name, value, ttl, expected })
    }

    fn callback(&mut self) -> Option<Command> {
        let (tenant, id) = match self.callbacks.pop_front() {
            Some(due) => due,
            None if self.rng.chance(20) => self.known_task()?,
            None => return None,
        };
        let delivery = match self.rng.below(10) {
            0..=5 => Delivery::Delivered,
            6 => Delivery::Resend,
            7 => Delivery::Refused { status: 410, error: "gone".into() },
            _ => Delivery::Failed {
                status: Some(503),
                error: "unavailable".into(),
                retry_after: self.rng.chance(20).then_some(30_000),
            },
        };
        Some(Command::Callback(Callback { tenant, id, completed_at: None, delivery }))
    }

    /// Something that the server has to refuse.
    fn trespass(&mut self) -> Option<Command> {
        let at = self.rng.below(self.held.len() as u64) as usize;
        let held = self.held.get(at)?.clone();
        let mut other = held.clone();
        if self.rng.chance(50) {
            other.worker = "intruder".into();
        } else {
            let foreign = self.plan.tenants.iter().find(|tenant| **tenant != held.tenant);
            other.tenant = foreign.cloned().unwrap_or_else(|| "nobody".into());
        }
        let Held { tenant, worker, id, .. } = other;
        Some(match self.rng.below(4) {
            0 => Command::Heartbeat(Heartbeat { tenant, id, worker, extend: LEASE_MS_MAX }),
            1 => {
                let outcome = Outcome::Completed(Bytes::from_static(b"{\"stolen\":true}"));
                Command::Submit(Submit { tenant, id, worker, outcome, artifacts: Vec::new() })
            }
            2 => Command::Nack(Nack { tenant, id, worker, delay: Some(0), reason: None, seed: 1 }),
            _ => Command::Abandon(Abandon { tenant, id, worker, penalty: false, fence: None }),
        })
    }

    /// Notes that a client knows its task exists.
    pub fn created(&mut self, tenant: &Arc<str>, id: TaskId) {
        remember(&mut self.known, (Arc::clone(tenant), id));
    }

    /// Notes that a worker received a task. The worker may vanish, or come back too late.
    pub fn claimed(&mut self, held: Held) {
        remember(&mut self.known, (Arc::clone(&held.tenant), held.id));
        if self.rng.chance(self.plan.worker_crash) {
            if self.rng.chance(50) {
                self.zombies.push(held);
            }
            return;
        }
        if self.rng.chance(self.plan.zombie) {
            self.zombies.push(held.clone());
        }
        self.held.push(held);
    }

    /// Notes the new end of a worker's lease.
    pub fn extended(&mut self, id: TaskId, until: Millis) {
        for held in self.held.iter_mut().filter(|held| held.id == id) {
            held.until = until;
        }
    }

    /// Notes that a task ended unsuccessfully.
    pub fn died(&mut self, tenant: &Arc<str>, id: TaskId) {
        remember(&mut self.dead, (Arc::clone(tenant), id));
    }

    /// Notes that a worker has lost the task.
    pub fn refused(&mut self, id: TaskId) {
        if self.rng.chance(80) {
            self.held.retain(|held| held.id != id);
        }
    }

    /// Ends of the leases that workers know of: something interesting happens at these moments.
    pub fn lease_ends(&self) -> impl Iterator<Item = Millis> {
        self.held.iter().chain(&self.zombies).map(|held| held.until)
    }
}

fn remember<T>(list: &mut VecDeque<T>, item: T) {
    if list.len() >= MEMORY {
        list.pop_front();
    }
    list.push_back(item);
}
