//! The contract again, as plainly as possible: one list of tasks, searched from end to end.
//!
//! The model is given each command with the rules' actual reply, and returns the reply it expects. Ids are the only
//! thing it learns from actual replies. Two limits: the backoff must have no jitter (no reply shows the delay after an
//! expired lease), and at most sixteen tasks may come due between two commands (a claim repairs no more).

use std::sync::Arc;

use bytes::Bytes;
use codeq_core::command::*;
use codeq_core::id::TaskId;
use codeq_core::keys::Seq;
use codeq_core::moment::Moment;
use codeq_core::place::Place;
use codeq_core::reply::{Bulk, BulkDone, Enqueued, Rejection, Reply, Returned, Swept};
use codeq_core::settings::Settings;
use codeq_core::task_backoff::Growth;
use codeq_core::topic::{Policy, Topic};
use codeq_core::view::{ResultRecord, Task};

use crate::record::RecordModel;

mod bulk;
mod claim;
mod enqueue;
mod submit;
mod sweep;

const DAY: Millis = 24 * 60 * 60 * 1_000;

/// A callback that is not delivered yet.
#[derive(Debug, Clone, PartialEq)]
pub struct Post {
    pub tried: u32,
    pub next_at: Option<Millis>,
}

/// A task and everything known about it.
#[derive(Debug, Clone)]
pub struct Known {
    /// As clients see it, except for the dates of deadlines.
    pub task: Task,
    /// By engine time: when it was created, when its lease ends, when its delay ends.
    created_at_engine: Millis,
    lease_ends: Option<Millis>,
    delay_ends: Option<Millis>,
    /// When the running attempt has run for as long as it may.
    run_ends: Option<Millis>,
    /// Not claimable before this wall-clock time.
    run_at: Option<Millis>,
    /// Whether a reply has shown the id yet.
    named: bool,
    queue: String,
    key: Option<Arc<str>>,
    /// Position among all pending tasks.
    order: u64,
    /// How it ended, who ended it, and when it is removed.
    pub end: Option<ResultRecord>,
    ended_by: Option<Arc<str>>,
    claimed_by: Option<Arc<str>>,
    goes_at: Millis,
    pub post: Option<Post>,
}

/// A key that outlived its task.
#[derive(Debug, Clone)]
struct OldKey {
    tenant: Arc<str>,
    key: Arc<str>,
    command: String,
    payload: Bytes,
    id: TaskId,
    place: Place,
    created_at_engine: Millis,
    created_at: Millis,
}

/// What an operator set for a queue.
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
    /// The moment of the last command that changed anything; reads show deadlines as of then.
    changed_at: Moment,
    order: u64,
    /// Oldest first.
    pub tasks: Vec<Known>,
    old_keys: Vec<OldKey>,
    rules: Vec<Rule>,
    pub records: RecordModel,
}

impl Model {
    /// The expected reply; `actual` is the one the rules gave.
    pub fn apply(&mut self, at: Moment, command: &Command, actual: &Reply) -> Reply {
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
            Command::EnqueueV1(c) => self.enqueue(&c.clone().into(), actual),
            Command::EnqueueByValueV1(c) => self.enqueue(&c.enqueue.clone().into(), actual),
            Command::Enqueue(c) => self.enqueue(c, actual),
            // `json_value` and its tests cover equal values; here payloads have one spelling.
            Command::EnqueueByValue(c) => self.enqueue(&c.enqueue, actual),
            Command::Claim(c) => self.claim(c, actual),
            Command::UnderLease(c) => {
                let Some(found) = self.find(c.action.tenant(), c.action.id()) else {
                    return Reply::Rejected(Rejection::NotFound);
                };
                let known = &self.tasks[found];
                if c.fence.is_some_and(|fence| fence != known.task.fence) {
                    return Reply::Rejected(Rejection::LeaseLost);
                }
                // An instance that holds the lease, or held it at the end, counts as the worker.
                let has = known.task.worker.as_ref().or(known.ended_by.as_ref());
                let mut action = (*c.action).clone();
                if c.instance.is_some() && has == c.instance.as_ref() {
                    let worker = match &mut action {
                        LeaseAction::Heartbeat(action) => &mut action.worker,
                        LeaseAction::Submit(action) => &mut action.worker,
                        LeaseAction::Nack(action) => &mut action.worker,
                        LeaseAction::Abandon(action) => &mut action.worker,
                    };
                    *worker = c.instance.clone().expect("was compared");
                }
                self.apply(at, &Command::from(action), actual)
            }
            Command::Heartbeat(c) => match self.owned(&c.tenant, c.id, &c.worker) {
                Err(why) => Reply::Rejected(why),
                Ok(at) => {
                    let until = self.now + c.extend;
                    let known = &mut self.tasks[at];
                    let until = known.run_ends.map_or(until, |limit| limit.min(until));
                    known.lease_ends = Some(until);
                    known.task.updated_at = self.wall;
                    let cancel_requested = known.task.cancel_requested;
                    let lease_until = self.wall + (until - self.now);
                    Reply::Extended { lease_until, cancel_requested }
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
            Command::Reschedule(c) => self.reschedule(c),
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
            Command::PutTopicV1(c) => self.apply(at, &Command::PutTopic(c.clone().into()), actual),
            Command::PutTopicV2(c) => self.apply(at, &Command::PutTopic(c.clone().into()), actual),
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
                // The whole operation at once: with so few rows, no part reaches its limit of rows.
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
                match self.apply(at, &whole, actual) {
                    Reply::Bulk(bulk) => Reply::BulkPart(BulkDone { done: bulk.done, next: None }),
                    other => other,
                }
            }
            Command::Cleanup(c) => {
                let mut done = 0;
                let mut at = 0;
                // Queue by queue in name order, then by kind of end, then oldest first, up to the first task created
                // at that date or later.
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
                Reply::Bulk(Bulk { done, remaining: 0, last: Seq(0) })
            }
            Command::Sweep(c) => Reply::Swept(self.sweep(c.limit)),
            Command::Callback(c) => self.callback(c),
            Command::PutRecord(c) => self.records.put(self.moment(), c),
            Command::DeleteRecord(c) => self.records.delete(self.now, c),
        }
    }

    /// Whether the command changed anything: reads show deadlines as of the last command that did.
    pub fn shows(&mut self, at: Moment, changed: bool) {
        if changed {
            self.changed_at = at;
        }
    }

    fn moment(&self) -> Moment {
        Moment { now: self.now, wall: self.wall }
    }

    /// A tenant's tasks, newest first. `actual` supplies ids that were not known yet.
    pub fn list(&mut self, tenant: &str, actual: &[Task]) -> Vec<Task> {
        let (mut actual, at) = (actual.iter(), self.changed_at);
        let theirs = self.tasks.iter_mut().rev().filter(|k| *k.task.tenant == *tenant);
        theirs.map(|known| known.shown(actual.next().map(|t| t.id), at)).collect()
    }

    /// A tenant's queues in name order: ready, delayed, in progress, dead, completed, failed, cancelled; and paused.
    pub fn queues(&self, tenant: &str) -> Vec<(String, Vec<u64>, bool)> {
        let ruled = self.rules.iter().filter(|r| r.paused || r.topic.is_some());
        let ruled = ruled.filter(|r| *r.tenant == *tenant).map(|r| r.queue.clone());
        let used = self.tasks.iter().filter(|k| *k.task.tenant == *tenant);
        let mut names: Vec<String> = used.map(|k| k.queue.clone()).chain(ruled).collect();
        names.sort();
        names.dedup();
        let numbers = |name: String| {
            let count = |place| self.count(tenant, &name, place);
            let failed = self.tasks.iter().filter(|known| {
                *known.task.tenant == *tenant
                    && known.queue == name
                    && known.task.place == Place::Failed
                    && known.ended_by.is_some()
            });
            let failed = failed.count() as u64;
            let counts = vec![
                count(Place::Pending),
                count(Place::Delayed),
                count(Place::InProgress),
                count(Place::Dead),
                count(Place::Completed),
                failed,
                count(Place::Failed) - failed,
            ];
            let paused = self.ruled(tenant, &name).is_some_and(|rule| rule.paused);
            (name, counts, paused)
        };
        names.into_iter().map(numbers).collect()
    }

    /// Number of tasks that are due or almost due: the driver keeps it small.
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
}

impl Known {
    fn awaits_post(&self) -> bool {
        self.post.as_ref().is_some_and(|post| post.next_at.is_some())
    }

    /// The date it still waits for.
    fn waits_for_date(&self) -> Option<Millis> {
        self.run_at.filter(|_| self.task.place == Place::Delayed && self.delay_ends.is_none())
    }

    /// The date it waited for, while it can be claimed.
    fn date_passed(&self) -> Option<Millis> {
        self.run_at.filter(|_| self.task.place == Place::Pending)
    }

    /// The task with its deadlines as wall-clock dates at that moment.
    fn as_of(&self, at: Moment) -> Task {
        let date = |deadline: Millis| deadline + at.wall - at.now;
        let mut task = self.task.clone();
        task.lease_until = self.lease_ends.map(date);
        task.run_until = self.run_ends.map(date);
        if task.place == Place::Delayed {
            task.visible_at = self.delay_ends.map(date).max(self.run_at);
        }
        task
    }

    /// The task as a reply shows it, possibly the first time its id is seen.
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

fn blank(tenant: &Arc<str>, id: TaskId, created_at: Millis) -> Task {
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
        fence: Fence(0),
        attempts: 0,
        max_attempts: 0,
        error: None,
        cancel_requested: false,
        created_at,
        updated_at: created_at,
        visible_at: None,
        max_run: None,
        run_until: None,
    }
}
