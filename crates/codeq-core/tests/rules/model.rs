//! The contract once more, as plainly as possible: one list of tasks, searched from end to end.
//!
//! The model is told each command with the reply that the rules gave, and says what the reply should have
//! been. It learns ids from replies, and nothing else. Two limits: the backoff must be one without jitter
//! (the pause after a lease that ended is in no reply), and at most sixteen tasks may come due between two
//! commands (the rules bound the repair that a claim does).

use std::sync::Arc;

use bytes::Bytes;
use codeq_core::backoff::Growth;
use codeq_core::command::*;
use codeq_core::id::TaskId;
use codeq_core::moment::Moment;
use codeq_core::place::Place;
use codeq_core::reply::{Bulk, BulkDone, Enqueued, Rejection, Reply, Returned, Swept};
use codeq_core::settings::Settings;
use codeq_core::topic::{Policy, Topic};
use codeq_core::view::{ResultRecord, Task};

use crate::record::RecordModel;

const DAY: Millis = 24 * 60 * 60 * 1_000;

/// A callback that is not delivered.
#[derive(Debug, Clone, PartialEq)]
pub struct Post {
    pub tried: u32,
    pub next_at: Option<Millis>,
}

/// A task and all that is known about it.
#[derive(Debug, Clone)]
pub struct Known {
    /// What is shown, but for the dates of deadlines.
    pub task: Task,
    /// By engine time: when it was made, when its lease ends, when its delay ends.
    made_at: Millis,
    lease_ends: Option<Millis>,
    delay_ends: Option<Millis>,
    /// By wall time: not before.
    run_at: Option<Millis>,
    /// The id is only known once a reply has shown it.
    named: bool,
    queue: String,
    key: Option<Arc<str>>,
    /// Position among all that wait.
    turn: u64,
    /// How it ended, by whose hand, and when it may go.
    pub end: Option<ResultRecord>,
    ended_by: Option<Arc<str>>,
    claimed_by: Option<Arc<str>>,
    goes_at: Millis,
    pub post: Option<Post>,
}

/// A key whose task is gone.
#[derive(Debug, Clone)]
struct OldKey {
    tenant: Arc<str>,
    key: Arc<str>,
    command: String,
    payload: Bytes,
    id: TaskId,
    place: Place,
    made_at: Millis,
    created_at: Millis,
}

/// What was laid down for a queue.
#[derive(Debug, Clone, Default)]
struct Rule {
    tenant: Arc<str>,
    queue: String,
    paused: bool,
    topic: Option<Topic>,
}

/// The model of a shard.
#[derive(Debug, Default)]
pub struct Model {
    settings: Settings,
    now: Millis,
    wall: Millis,
    /// The moment of the last command that changed anything: reads show deadlines as of then.
    changed_at: Moment,
    turn: u64,
    /// Oldest first.
    pub tasks: Vec<Known>,
    old_keys: Vec<OldKey>,
    rules: Vec<Rule>,
    pub records: RecordModel,
}

impl Model {
    /// What the reply should be; `told` is the one that was given.
    pub fn apply(&mut self, at: Moment, command: &Command, told: &Reply) -> Reply {
        self.now = self.now.max(at.now);
        self.wall = at.wall;
        match command {
            Command::ConfigureV1(settings) => {
                self.settings = settings.clone().into();
                Reply::Done
            }
            Command::Configure(settings) => {
                self.settings = settings.clone();
                Reply::Done
            }
            Command::Enqueue(c) => self.enqueue(c, told),
            // What the same value is, `json_value` and its tests know; here payloads have one form.
            Command::EnqueueByValue(c) => self.enqueue(&c.enqueue, told),
            Command::Claim(c) => self.claim(c, told),
            Command::UnderLease(c) => {
                let Some(found) = self.find(c.deed.tenant(), c.deed.id()) else {
                    return Reply::Rejected(Rejection::NotFound);
                };
                let known = &self.tasks[found];
                if c.fence.is_some_and(|fence| fence != known.task.fence) {
                    return Reply::Rejected(Rejection::LeaseLost);
                }
                // An instance that has the lease, or had it at the end, is the worker.
                let has = known.task.worker.as_ref().or(known.ended_by.as_ref());
                let mut deed = (*c.deed).clone();
                if c.instance.is_some() && has == c.instance.as_ref() {
                    let worker = match &mut deed {
                        Deed::Heartbeat(deed) => &mut deed.worker,
                        Deed::Submit(deed) => &mut deed.worker,
                        Deed::Nack(deed) => &mut deed.worker,
                        Deed::Abandon(deed) => &mut deed.worker,
                    };
                    *worker = c.instance.clone().expect("was compared");
                }
                self.apply(at, &Command::from(deed), told)
            }
            Command::Heartbeat(c) => match self.owned(&c.tenant, c.id, &c.worker) {
                Err(why) => Reply::Rejected(why),
                Ok(at) => {
                    let until = self.now + c.extend;
                    let known = &mut self.tasks[at];
                    known.lease_ends = Some(until);
                    known.task.updated_at = self.wall;
                    let cancel_requested = known.task.cancel_requested;
                    Reply::Extended { lease_until: self.wall + c.extend, cancel_requested }
                }
            },
            Command::Submit(c) => self.submit(c),
            Command::Nack(c) => match self.owned(&c.tenant, c.id, &c.worker) {
                Err(why) => Reply::Rejected(why),
                Ok(at) => Reply::Returned(self.fail(at, c.reason.clone(), c.delay)),
            },
            Command::Abandon(c) => match self.owned(&c.tenant, c.id, &c.worker) {
                Err(why) => Reply::Rejected(why),
                Ok(at) if c.penalty => Reply::Returned(self.fail(at, None, Some(0))),
                Ok(at) if self.tasks[at].task.cancel_requested => {
                    self.end_cancelled(at);
                    Reply::Returned(Returned::Cancelled)
                }
                Ok(at) => {
                    self.wait(at, 0);
                    Reply::Returned(Returned::Requeued { delay: 0 })
                }
            },
            Command::Cancel(c) => self.cancel(c),
            Command::Replay(c) => self.replay(c),
            Command::Purge(c) => self.purge(c),
            Command::Pause(c) => {
                let queue = c.command.to_ascii_lowercase();
                if !c.paused && !self.queue_exists(&c.tenant, &queue) {
                    return Reply::Rejected(Rejection::NotFound);
                }
                self.rule(&c.tenant, &queue).paused = c.paused;
                Reply::Done
            }
            Command::PutTopicV1(c) => self.apply(at, &Command::PutTopic(c.clone().into()), told),
            Command::PutTopic(c) => {
                let now = self.wall;
                let rule = self.rule(&c.tenant, &c.name);
                let (version, created_at, updated_at) = match &rule.topic {
                    None => (1, now, now),
                    Some(t) if t.policy == c.policy => (t.version, t.created_at, t.updated_at),
                    Some(t) => (t.version + 1, t.created_at, now),
                };
                let created = rule.topic.is_none();
                let topic = Topic { policy: c.policy.clone(), version, created_at, updated_at };
                rule.topic = Some(topic.clone());
                Reply::Topic { topic: Box::new(topic), created }
            }
            Command::DeleteTopic(c) => match self.rule(&c.tenant, &c.name).topic.take() {
                Some(_) => Reply::Done,
                None => Reply::Rejected(Rejection::NotFound),
            },
            Command::BulkPart(c) => self.bulk(c),
            Command::BulkPartV1(c) => {
                // The whole operation in one go: with so few rows a part is never cut short by what it may
                // look at.
                let (tenant, limit, by) = (c.tenant.clone(), c.take, c.by.clone());
                let after = c.from.after;
                let whole = match c.work.clone() {
                    BulkWorkV1::Cleanup { before } => {
                        Command::Cleanup(Cleanup { tenant, before, limit })
                    }
                    BulkWorkV1::PurgeDead { command } => {
                        let target = PurgeTarget::Dead;
                        Command::Purge(Purge { tenant, command, target, limit, by })
                    }
                    BulkWorkV1::PurgeWaiting { command } => {
                        let target = PurgeTarget::Waiting;
                        Command::Purge(Purge { tenant, command, target, limit, by })
                    }
                    BulkWorkV1::Replay { command, error_contains } => {
                        let target = ReplayTarget::Queue { command, error_contains, after, limit };
                        Command::Replay(Replay { tenant, target, by })
                    }
                };
                match self.apply(at, &whole, told) {
                    Reply::Bulk(bulk) => Reply::BulkPart(BulkDone { done: bulk.done, next: None }),
                    other => other,
                }
            }
            Command::Cleanup(c) => {
                let mut done = 0;
                let mut at = 0;
                // Queue by queue in the order of names, then by kind of end, then oldest first, and there up to
                // the first that was not there at that date.
                let mut young = Vec::new();
                let mut old: Vec<(String, Place, usize)> = Vec::new();
                for (at, known) in self.tasks.iter().enumerate() {
                    let over = known.end.as_ref().is_some_and(|end| end.completed_at < c.before);
                    let list = (known.task.tenant.clone(), known.queue.clone(), known.task.place);
                    if known.task.created_at >= c.before {
                        young.push(list.clone());
                    }
                    if young.contains(&list) {
                        continue;
                    }
                    if *known.task.tenant == *c.tenant && over && !known.awaits_post() {
                        old.push((known.queue.clone(), known.task.place, at));
                    }
                }
                old.sort();
                old.truncate(c.limit as usize);
                let mut gone: Vec<usize> = old.into_iter().map(|(_, _, at)| at).collect();
                gone.sort_unstable();
                for place in gone {
                    self.remove(place - at);
                    at += 1;
                    done += 1;
                }
                Reply::Bulk(Bulk { done, remaining: 0, last: 0 })
            }
            Command::Sweep(c) => Reply::Swept(self.sweep(c.limit)),
            Command::Callback(c) => self.callback(c),
            Command::PutRecord(c) => self.records.put(self.moment(), c),
            Command::DeleteRecord(c) => self.records.delete(self.now, c),
        }
    }

    /// Whether the command changed anything: then reads show what they show as of its moment.
    pub fn shows(&mut self, at: Moment, changed: bool) {
        if changed {
            self.changed_at = at;
        }
    }

    fn moment(&self) -> Moment {
        Moment { now: self.now, wall: self.wall }
    }

    /// The tasks of a tenant, newest first. `told` names those whose ids were not known yet.
    pub fn list(&mut self, tenant: &str, told: &[Task]) -> Vec<Task> {
        let (mut told, at) = (told.iter(), self.changed_at);
        let theirs = self.tasks.iter_mut().rev().filter(|k| *k.task.tenant == *tenant);
        theirs.map(|known| known.shown(told.next().map(|t| t.id), at)).collect()
    }

    /// The queues of a tenant in the order of names: ready, delayed, in progress, dead, paused.
    pub fn queues(&self, tenant: &str) -> Vec<(String, [u64; 4], bool)> {
        let ruled = self.rules.iter().filter(|r| r.paused || r.topic.is_some());
        let ruled = ruled.filter(|r| *r.tenant == *tenant).map(|r| r.queue.clone());
        let used = self.tasks.iter().filter(|k| *k.task.tenant == *tenant);
        let mut names: Vec<String> = used.map(|k| k.queue.clone()).chain(ruled).collect();
        names.sort();
        names.dedup();
        let numbers = |name: String| {
            let places = [Place::Pending, Place::Delayed, Place::InProgress, Place::Dead];
            let counts = places.map(|place| self.count(tenant, &name, place));
            let paused = self.ruled(tenant, &name).is_some_and(|rule| rule.paused);
            (name, counts, paused)
        };
        names.into_iter().map(numbers).collect()
    }

    /// How many tasks are due, or nearly: the driver keeps this small.
    pub fn due(&self, at: Moment) -> usize {
        let due = |known: &&Known| {
            known.lease_ends.is_some_and(|until| until < at.now)
                || known.delay_ends.is_some_and(|end| end <= at.now)
                || known.waits_for_date().is_some_and(|date| date <= at.wall)
                || known.date_passed().is_some_and(|date| date > at.wall)
        };
        self.tasks.iter().filter(due).count()
    }

    fn count(&self, tenant: &str, queue: &str, place: Place) -> u64 {
        let here = |known: &&Known| {
            *known.task.tenant == *tenant && known.queue == queue && known.task.place == place
        };
        self.tasks.iter().filter(here).count() as u64
    }

    fn queue_exists(&self, tenant: &str, queue: &str) -> bool {
        self.queues(tenant).iter().any(|(name, ..)| name == queue)
    }

    fn ruled(&self, tenant: &str, queue: &str) -> Option<&Rule> {
        self.rules.iter().find(|r| *r.tenant == *tenant && r.queue == queue)
    }

    fn rule(&mut self, tenant: &Arc<str>, queue: &str) -> &mut Rule {
        if self.ruled(tenant, queue).is_none() {
            self.rules.push(Rule {
                tenant: tenant.clone(),
                queue: queue.to_owned(),
                ..Rule::default()
            });
        }
        let found = self.rules.iter_mut().find(|r| r.tenant == *tenant && r.queue == queue);
        found.expect("was added")
    }

    fn policy(&self, tenant: &str, queue: &str) -> Policy {
        let topic = self.ruled(tenant, queue).and_then(|rule| rule.topic.as_ref());
        topic.map(|topic| topic.policy.clone()).unwrap_or_default()
    }

    fn find(&self, tenant: &str, id: TaskId) -> Option<usize> {
        let it =
            |known: &Known| known.named && known.task.id == id && *known.task.tenant == *tenant;
        self.tasks.iter().position(it)
    }

    fn enqueue(&mut self, c: &Enqueue, told: &Reply) -> Reply {
        let conflict = |model: &Model, at: usize| {
            let task = &c.tasks[at];
            let Some(key) = &task.idempotency_key else {
                return false;
            };
            let earlier = c.tasks[..at].iter().find(|t| t.idempotency_key.as_ref() == Some(key));
            let same = |t: &NewTask| same_work(&t.command, &t.payload, task);
            match model.keyed(&c.tenant, key) {
                Some((command, payload, _)) => !same_work(&command, &payload, task),
                None => earlier.is_some_and(|t| !same(t)),
            }
        };
        if c.atomic
            && let Some(index) = (0..c.tasks.len()).find(|at| conflict(self, *at))
        {
            let reason = Box::new(Rejection::IdempotencyConflict);
            return Reply::Rejected(Rejection::InBatch { index, reason });
        }
        let mut replies = Vec::new();
        for (at, new) in c.tasks.iter().enumerate() {
            let known = new.idempotency_key.as_ref().and_then(|key| self.keyed(&c.tenant, key));
            replies.push(match known {
                Some((command, payload, _)) if !same_work(&command, &payload, new) => {
                    Enqueued::Rejected(Rejection::IdempotencyConflict)
                }
                Some((.., task)) => {
                    let mut task = task;
                    // Of a task that is gone only what was sent again is known.
                    if self.find(&c.tenant, task.id).is_none() {
                        (task.command, task.payload) = (new.command.clone(), new.payload.clone());
                    }
                    Enqueued::Repeated(Box::new(task))
                }
                None => {
                    let id = match told {
                        Reply::Enqueued(told) => match told.get(at) {
                            Some(Enqueued::Created(task)) => Some(task.id),
                            _ => None,
                        },
                        _ => None,
                    };
                    let at = self.create(&c.tenant, new, None);
                    let moment = self.moment();
                    Enqueued::Created(Box::new(self.tasks[at].shown(id, moment)))
                }
            });
        }
        Reply::Enqueued(replies)
    }

    /// The work and the task of a key.
    fn keyed(&self, tenant: &str, key: &str) -> Option<(String, Bytes, Task)> {
        let live = self
            .tasks
            .iter()
            .find(|known| *known.task.tenant == *tenant && known.key.as_deref() == Some(key));
        if let Some(known) = live {
            let task = known.as_of(self.moment());
            return Some((known.queue.clone(), known.task.payload.clone(), task));
        }
        let old = self.old_keys.iter().find(|o| *o.tenant == *tenant && *o.key == *key)?;
        let mut task = blank(&old.tenant, old.id, old.created_at);
        task.place = old.place;
        Some((old.command.clone(), old.payload.clone(), task))
    }

    fn create(&mut self, tenant: &Arc<str>, new: &NewTask, origin: Option<TaskId>) -> usize {
        let queue = new.command.to_ascii_lowercase();
        let policy = self.policy(tenant, &queue);
        let mut priority = new.priority.clamp(0, 9) as u8;
        if !policy.priority_tiers.is_empty() {
            let mut tiers = policy.priority_tiers.clone();
            tiers.sort_unstable();
            let not_above = tiers.iter().rev().find(|tier| **tier <= priority);
            priority = (*not_above.unwrap_or(&tiers[0])).min(9);
        }
        let default = policy.max_attempts.unwrap_or(self.settings.max_attempts);
        let ceiling = policy.max_attempts.unwrap_or(1_000);
        self.turn += 1;
        let mut task = blank(tenant, TaskId::new(0, 0), self.wall);
        task.command = new.command.clone();
        task.payload = new.payload.clone();
        task.priority = priority;
        task.webhook = new.webhook.clone();
        task.origin = origin;
        task.max_attempts = new.max_attempts.unwrap_or(default).min(ceiling);
        let delay = new.delay.filter(|delay| *delay > 0 && new.run_at.is_none());
        let early = new.run_at.is_some_and(|date| date > self.wall);
        task.place = if delay.is_some() || early { Place::Delayed } else { Place::Pending };
        self.tasks.push(Known {
            task,
            made_at: self.now,
            lease_ends: None,
            delay_ends: delay.map(|delay| self.now + delay),
            run_at: new.run_at,
            named: false,
            queue,
            key: new.idempotency_key.clone(),
            turn: self.turn,
            end: None,
            ended_by: None,
            claimed_by: None,
            goes_at: 0,
            post: None,
        });
        self.tasks.len() - 1
    }

    fn claim(&mut self, c: &Claim, told: &Reply) -> Reply {
        let moment = self.moment();
        self.come_due(u32::MAX);
        let mut told = match told {
            Reply::Claimed(tasks) => tasks.iter(),
            _ => [].iter(),
        };
        let mut taken = Vec::new();
        while taken.len() < c.count as usize {
            let wanted = |known: &Known| {
                let named = match &c.from {
                    Selector::Any => true,
                    Selector::Commands(all) => {
                        all.iter().any(|name| name.eq_ignore_ascii_case(&known.queue))
                    }
                };
                let rule = self.ruled(&c.tenant, &known.queue);
                let limit = u64::from(self.policy(&c.tenant, &known.queue).max_consumers);
                let running = self.count(&c.tenant, &known.queue, Place::InProgress);
                known.task.tenant == c.tenant
                    && known.task.place == Place::Pending
                    && named
                    && !rule.is_some_and(|rule| rule.paused)
                    && (limit == 0 || running < limit)
            };
            let best =
                (0..self.tasks.len()).filter(|at| wanted(&self.tasks[*at])).max_by_key(|at| {
                    let known = &self.tasks[*at];
                    (known.task.priority, std::cmp::Reverse(known.turn))
                });
            let Some(at) = best else { break };
            let known = &mut self.tasks[at];
            known.task.place = Place::InProgress;
            known.task.worker = Some(c.worker.clone());
            known.claimed_by = Some(c.worker.clone());
            known.lease_ends = Some(self.now + c.lease);
            known.task.fence += 1;
            known.task.updated_at = self.wall;
            taken.push(known.shown(told.next().map(|task| task.id), moment));
        }
        Reply::Claimed(taken)
    }

    /// 404, 409, 403, in this order; a lease that is over is ended first.
    fn owned(&mut self, tenant: &str, id: TaskId, worker: &str) -> Result<usize, Rejection> {
        let at = self.find(tenant, id).ok_or(Rejection::NotFound)?;
        self.end_lease_if_over(at);
        let task = &self.tasks[at].task;
        match &task.worker {
            _ if task.place != Place::InProgress => Err(Rejection::NotInProgress),
            Some(owner) if **owner == *worker => Ok(at),
            _ => Err(Rejection::NotOwner),
        }
    }

    fn end_lease_if_over(&mut self, at: usize) -> bool {
        let over = self.tasks[at].lease_ends.is_some_and(|until| self.now > until);
        if over {
            self.fail(at, Some("LEASE_EXPIRED".into()), None);
        }
        over
    }

    fn submit(&mut self, c: &Submit) -> Reply {
        let (place, result, error) = match &c.outcome {
            Outcome::Completed(result) => (Place::Completed, Some(result.clone()), None),
            Outcome::Failed(error) => (Place::Failed, None, Some(error.clone())),
            Outcome::Both { completed, result, error } => {
                let place = if *completed { Place::Completed } else { Place::Failed };
                (place, Some(result.clone()), Some(error.clone()))
            }
        };
        if let Some(at) = self.find(&c.tenant, c.id) {
            let known = &self.tasks[at];
            if let Some(end) = &known.end
                && known.ended_by.as_ref() == Some(&c.worker)
                && (known.task.place, &end.result, &end.error) == (place, &result, &error)
            {
                return Reply::Submitted(Box::new(end.clone()));
            }
        }
        match self.owned(&c.tenant, c.id, &c.worker) {
            Err(why) => Reply::Rejected(why),
            Ok(at) => {
                if error.is_some() {
                    self.tasks[at].task.error = error.clone();
                }
                self.tasks[at].ended_by = Some(c.worker.clone());
                self.end(at, place, result, error);
                Reply::Submitted(Box::new(self.tasks[at].end.clone().expect("ended")))
            }
        }
    }

    /// An execution failed.
    fn fail(&mut self, at: usize, error: Option<Arc<str>>, delay: Option<Millis>) -> Returned {
        let backoff = self.settings.backoff;
        let task = &mut self.tasks[at].task;
        task.attempts += 1;
        if error.is_some() {
            task.error = error;
        }
        if task.cancel_requested {
            self.end_cancelled(at);
            return Returned::Cancelled;
        }
        if task.attempts >= task.max_attempts {
            let error = task.error.clone().unwrap_or_else(|| "MAX_ATTEMPTS".into());
            task.error = Some(error.clone());
            self.end(at, Place::Dead, None, Some(error));
            let dead = self.tasks[at].task.clone();
            let to = self.policy(&dead.tenant, &self.tasks[at].queue.clone()).dead_letter_topic;
            if let Some(to) = to {
                let copy = NewTask {
                    command: to,
                    payload: dead.payload,
                    priority: i32::from(dead.priority),
                    ..NewTask::default()
                };
                self.create(&dead.tenant, &copy, Some(dead.id));
            }
            return Returned::Dead;
        }
        let attempts = u64::from(task.attempts);
        let delay = delay.unwrap_or_else(|| match backoff.growth {
            Growth::Fixed => backoff.base,
            Growth::Linear => backoff.base * attempts,
            Growth::Exponential => (1..attempts).fold(backoff.base, |pause, _| pause * 2),
            other => panic!("the model cannot foretell {other:?}"),
        });
        let delay = delay.min(backoff.max);
        self.wait(at, delay);
        Returned::Requeued { delay }
    }

    /// The task waits again: at the back, or for its time.
    fn wait(&mut self, at: usize, delay: Millis) {
        self.turn += 1;
        let known = &mut self.tasks[at];
        known.turn = self.turn;
        known.end = None;
        known.ended_by = None;
        known.post = None;
        known.lease_ends = None;
        known.delay_ends = (delay > 0).then_some(self.now + delay);
        let early = known.run_at.is_some_and(|date| date > self.wall);
        let task = &mut known.task;
        task.worker = None;
        task.place = if delay > 0 || early { Place::Delayed } else { Place::Pending };
        task.updated_at = self.wall;
    }

    fn end(&mut self, at: usize, place: Place, result: Option<Bytes>, error: Option<Arc<str>>) {
        let own = self.policy(&self.tasks[at].task.tenant, &self.tasks[at].queue);
        let retention = match place {
            Place::Dead if own.dead_letter_retention > 0 => own.dead_letter_retention,
            _ if own.retention > 0 => own.retention,
            Place::Dead => self.settings.dead_letter_retention,
            _ => self.settings.retention,
        };
        let known = &mut self.tasks[at];
        (known.lease_ends, known.delay_ends) = (None, None);
        let task = &mut known.task;
        task.worker = None;
        task.place = place;
        task.updated_at = self.wall;
        known.goes_at = self.now + retention;
        known.end = Some(ResultRecord {
            id: task.id,
            status: place.status(),
            result,
            error,
            artifacts: Vec::new(),
            completed_at: self.wall,
        });
        known.post = task.webhook.is_some().then_some(Post { tried: 0, next_at: Some(self.now) });
    }

    fn end_cancelled(&mut self, at: usize) {
        let error: Arc<str> = "CANCELLED".into();
        self.tasks[at].task.error = Some(error.clone());
        self.end(at, Place::Failed, None, Some(error));
    }

    fn cancel(&mut self, c: &Cancel) -> Reply {
        let Some(at) = self.find(&c.tenant, c.id) else {
            return Reply::Rejected(Rejection::NotFound);
        };
        self.end_lease_if_over(at);
        let (now, moment) = (self.wall, self.moment());
        let task = &mut self.tasks[at].task;
        match task.place {
            Place::Pending | Place::Delayed => {
                self.end_cancelled(at);
                Reply::Cancelled(Box::new(self.tasks[at].as_of(moment)))
            }
            Place::InProgress => {
                if !task.cancel_requested {
                    (task.cancel_requested, task.updated_at) = (true, now);
                }
                Reply::CancelRequested(Box::new(self.tasks[at].as_of(moment)))
            }
            _ => Reply::Rejected(Rejection::Finished),
        }
    }

    fn replay(&mut self, c: &Replay) -> Reply {
        let (command, part, after, limit) = match &c.target {
            ReplayTarget::One(id) => {
                return match self.find(&c.tenant, *id) {
                    None => Reply::Rejected(Rejection::NotFound),
                    Some(at) if self.tasks[at].task.place == Place::Completed => {
                        Reply::Rejected(Rejection::Completed)
                    }
                    Some(at) if self.tasks[at].end.is_none() => {
                        Reply::Rejected(Rejection::NotFinished)
                    }
                    Some(at) => {
                        self.revive(at);
                        Reply::Replayed(Box::new(self.tasks[at].as_of(self.moment())))
                    }
                };
            }
            ReplayTarget::Queue { command, error_contains, after, limit } => {
                (command.to_ascii_lowercase(), error_contains, *after, *limit)
            }
        };
        let (mut done, mut last) = (0, after);
        for at in 0..self.tasks.len() {
            let known = &self.tasks[at];
            let seq = known.task.id.seq();
            let listed = known.task.tenant == c.tenant
                && known.queue == command
                && known.task.place == Place::Dead
                && seq > after;
            if !listed || done == u64::from(limit) {
                continue;
            }
            last = seq;
            let error = known.task.error.as_deref().unwrap_or("");
            if part.as_ref().is_none_or(|part| error.contains(&**part)) {
                self.revive(at);
                done += 1;
            }
        }
        let remaining = self.count(&c.tenant, &command, Place::Dead);
        Reply::Bulk(Bulk { done, remaining, last })
    }

    /// A task that ended comes back as if it had never run.
    fn revive(&mut self, at: usize) {
        let task = &mut self.tasks[at].task;
        (task.attempts, task.cancel_requested) = (0, false);
        self.wait(at, 0);
    }

    /// A whole operation in one go: with so few rows a part is never cut short by what it may look at.
    fn bulk(&mut self, c: &BulkPart) -> Reply {
        let cleans = matches!(c.work, BulkWork::Cleanup { .. });
        let mut over: Vec<(String, Place)> = Vec::new();
        let mut chosen: Vec<(String, Place, usize)> = Vec::new();
        for (at, known) in self.tasks.iter().enumerate() {
            let place = known.task.place;
            let here = |name: &str| known.queue == name.to_ascii_lowercase();
            let listed = match &c.work {
                BulkWork::Cleanup { .. } => known.end.is_some(),
                BulkWork::PurgeDead { command } => here(command) && place == Place::Dead,
                BulkWork::PurgeWaiting { command } => {
                    here(command) && matches!(place, Place::Pending | Place::Delayed)
                }
                BulkWork::Replay { command, from } => {
                    here(command)
                        && match from {
                            ReplayFrom::DeadLetters => place == Place::Dead,
                            ReplayFrom::Failed => {
                                place == Place::Failed && known.ended_by.is_some()
                            }
                            ReplayFrom::Cancelled => {
                                place == Place::Failed && known.ended_by.is_none()
                            }
                        }
                }
            };
            if known.task.tenant != c.tenant || !listed {
                continue;
            }
            // A cleanup reads a list up to the first task that was not there at that date.
            let list = (known.queue.clone(), place);
            let before = c.filter.before;
            if cleans && before.is_some_and(|date| known.task.created_at >= date) {
                over.push(list.clone());
            }
            let expired = match c.work {
                BulkWork::Cleanup { expired } => !expired || known.goes_at <= self.now,
                _ => known.task.id.seq() > c.from.after,
            };
            let date = known.end.as_ref().map_or(known.task.created_at, |end| end.completed_at);
            let error = known.task.error.as_deref().unwrap_or("");
            let removes = cleans || matches!(c.work, BulkWork::PurgeDead { .. });
            if !over.contains(&list)
                && expired
                && before.is_none_or(|before| date < before)
                && c.filter.after.is_none_or(|after| date >= after)
                && c.filter.error_contains.as_ref().is_none_or(|part| error.contains(&**part))
                && (c.filter.worker.is_none() || c.filter.worker == known.claimed_by)
                && !(removes && known.awaits_post())
            {
                chosen.push((known.queue.clone(), place, at));
            }
        }
        if cleans {
            chosen.sort();
        }
        chosen.truncate(c.take as usize);
        let done = chosen.len() as u64;
        let mut chosen: Vec<usize> = chosen.into_iter().map(|(_, _, at)| at).collect();
        match c.work {
            BulkWork::Cleanup { .. } | BulkWork::PurgeDead { .. } => {
                chosen.sort_unstable();
                chosen.into_iter().rev().for_each(|at| self.remove(at));
            }
            BulkWork::PurgeWaiting { .. } => {
                chosen.into_iter().for_each(|at| self.end_cancelled(at));
            }
            BulkWork::Replay { .. } => chosen.into_iter().for_each(|at| self.revive(at)),
        }
        Reply::BulkPart(BulkDone { done, next: None })
    }

    fn purge(&mut self, c: &Purge) -> Reply {
        let queue = c.command.to_ascii_lowercase();
        let (mut done, mut last, mut at) = (0, 0, 0);
        while at < self.tasks.len() && done < u64::from(c.limit) {
            let known = &self.tasks[at];
            let seq = known.task.id.seq();
            let here = known.task.tenant == c.tenant && known.queue == queue;
            match (c.target, known.task.place) {
                (PurgeTarget::Dead, Place::Dead) if here => {
                    last = seq;
                    if !known.awaits_post() {
                        self.remove(at);
                        done += 1;
                        continue;
                    }
                }
                (PurgeTarget::Waiting, Place::Pending | Place::Delayed) if here => {
                    last = seq;
                    self.end_cancelled(at);
                    done += 1;
                }
                _ => {}
            }
            at += 1;
        }
        let places: &[Place] = match c.target {
            PurgeTarget::Dead => &[Place::Dead],
            PurgeTarget::Waiting => &[Place::Pending, Place::Delayed],
        };
        let counts = places.iter().map(|place| self.count(&c.tenant, &queue, *place));
        Reply::Bulk(Bulk { done, remaining: counts.sum(), last })
    }

    /// A task goes, with its result and its callback; its key stays out its day.
    fn remove(&mut self, at: usize) {
        let known = self.tasks.remove(at);
        let task = known.task;
        if let Some(key) = known.key
            && known.made_at + DAY > self.now
        {
            self.old_keys.push(OldKey {
                tenant: task.tenant,
                key,
                command: known.queue,
                payload: task.payload,
                id: task.id,
                place: task.place,
                made_at: known.made_at,
                created_at: task.created_at,
            });
        }
    }

    fn come_due(&mut self, limit: u32) -> Swept {
        let mut swept = Swept::default();
        let Moment { now, wall } = self.moment();
        let over = |known: &Known| known.lease_ends.filter(|until| *until < now);
        while swept.expired < limit
            && let Some(at) = self.earliest(over)
        {
            self.end_lease_if_over(at);
            swept.expired += 1;
        }
        // The latest date first.
        let early = |known: &Known| known.date_passed().filter(|date| *date > wall);
        while swept.expired + swept.postponed < limit
            && let Some((.., at)) =
                (0..self.tasks.len()).filter_map(|at| Some((early(&self.tasks[at])?, at))).max()
        {
            self.tasks[at].task.place = Place::Delayed;
            self.tasks[at].task.updated_at = wall;
            swept.postponed += 1;
        }
        let delayed = |known: &Known| known.delay_ends.filter(|end| *end <= now);
        let dated = |known: &Known| known.waits_for_date().filter(|date| *date <= wall);
        while swept.expired + swept.postponed + swept.promoted < limit
            && let Some(at) = self.earliest(delayed).or_else(|| self.earliest(dated))
        {
            self.wait(at, 0);
            swept.promoted += 1;
        }
        swept
    }

    /// The task with the earliest moment of a kind; of several the oldest.
    fn earliest(&self, moment: impl Fn(&Known) -> Option<Millis>) -> Option<usize> {
        let all = self.tasks.iter().enumerate();
        let some = all.filter_map(|(at, known)| Some((moment(known)?, at)));
        some.min().map(|(_, at)| at)
    }

    fn sweep(&mut self, limit: u32) -> Swept {
        let mut swept = self.come_due(limit);
        let mut left = limit - swept.expired - swept.promoted - swept.postponed;
        let now = self.now;
        let old =
            |known: &Known| known.end.as_ref().map(|_| known.goes_at).filter(|goes| *goes <= now);
        while left > 0
            && let Some(at) = self.earliest(old)
        {
            left -= 1;
            if self.tasks[at].awaits_post() {
                self.tasks[at].goes_at = self.now + 60_000;
            } else {
                self.remove(at);
                swept.removed += 1;
            }
        }
        self.old_keys.sort_by_key(|old| (old.made_at, old.id.seq()));
        while left > 0 && self.old_keys.first().is_some_and(|old| old.made_at + DAY <= self.now) {
            self.old_keys.remove(0);
            left -= 1;
            swept.removed += 1;
        }
        swept.removed += self.records.sweep(self.now, left);
        swept
    }

    fn callback(&mut self, c: &Callback) -> Reply {
        let Some(at) = self.find(&c.tenant, c.id) else {
            return Reply::Rejected(Rejection::NotFound);
        };
        let settings = self.settings.clone();
        let Some(post) = &mut self.tasks[at].post else {
            return Reply::Rejected(Rejection::NoCallback);
        };
        match &c.delivery {
            Delivery::Delivered => self.tasks[at].post = None,
            Delivery::Refused { .. } => *post = Post { tried: post.tried + 1, next_at: None },
            Delivery::Resend => *post = Post { tried: 0, next_at: Some(self.now) },
            Delivery::Failed { retry_after, .. } => {
                post.tried += 1;
                let pause = (1..post.tried).fold(settings.callback_base, |pause, _| pause * 2);
                let pause = pause.min(settings.callback_max).max(retry_after.unwrap_or(0));
                let again = post.tried < settings.callback_attempts;
                post.next_at = again.then_some(self.now + pause);
            }
        }
        Reply::Done
    }
}

impl Known {
    fn awaits_post(&self) -> bool {
        self.post.as_ref().is_some_and(|post| post.next_at.is_some())
    }

    /// The date that it still waits for.
    fn waits_for_date(&self) -> Option<Millis> {
        self.run_at.filter(|_| self.task.place == Place::Delayed && self.delay_ends.is_none())
    }

    /// The date that it waited for, while it can be claimed.
    fn date_passed(&self) -> Option<Millis> {
        self.run_at.filter(|_| self.task.place == Place::Pending)
    }

    /// The task with the dates of its deadlines, as the wall clock counts at that moment.
    fn as_of(&self, at: Moment) -> Task {
        let date = |deadline: Millis| deadline + at.wall - at.now;
        let mut task = self.task.clone();
        task.lease_until = self.lease_ends.map(date);
        if task.place == Place::Delayed {
            task.visible_at = self.delay_ends.map(date).max(self.run_at);
        }
        task
    }

    /// The task as a reply shows it, which may be the first time that its id is seen.
    fn shown(&mut self, id: Option<TaskId>, at: Moment) -> Task {
        if let Some(id) = id.filter(|_| !self.named) {
            self.named = true;
            self.task.id = id;
        }
        self.as_of(at)
    }
}

fn same_work(command: &str, payload: &Bytes, task: &NewTask) -> bool {
    command.eq_ignore_ascii_case(&task.command) && *payload == task.payload
}

fn blank(tenant: &Arc<str>, id: TaskId, made_at: Millis) -> Task {
    Task {
        id,
        tenant: tenant.clone(),
        command: "".into(),
        payload: Bytes::new(),
        priority: 0,
        webhook: None,
        trace_parent: None,
        trace_state: None,
        origin: None,
        place: Place::Pending,
        worker: None,
        lease_until: None,
        fence: 0,
        attempts: 0,
        max_attempts: 0,
        error: None,
        cancel_requested: false,
        created_at: made_at,
        updated_at: made_at,
        visible_at: None,
    }
}
