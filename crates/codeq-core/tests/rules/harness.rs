//! One shard under test: terse helpers, and the structure checked after every command.

use std::sync::Arc;

use bytes::Bytes;
use codeq_core::State;
use codeq_core::codec::{begin_record, push_command, read_record};
pub use codeq_core::command::Fence;
use codeq_core::command::*;
use codeq_core::digest::digest;
use codeq_core::effect::Effect;
use codeq_core::id::{ShardId, TaskId};
pub use codeq_core::keys::Seq;
use codeq_core::kv::Table;
use codeq_core::moment::Moment;
use codeq_core::read::{ListQuery, Page, PendingCallback, QueueStats, Reader, Standing};
use codeq_core::reply::{Bulk, Enqueued, Rejection, Reply, Returned, Swept};
use codeq_core::settings::Settings;
use codeq_core::topic::{Policy, Topic};
use codeq_core::view::{ResultRecord, Task};

use crate::mem::Mem;
use crate::structure;

/// Tenant and worker of tests that do not care which.
pub const T: &str = "tenant";
pub const W: &str = "worker";
pub const LEASE: Millis = 30_000;
pub const HOUR: Millis = 3_600_000;
pub const DAY: Millis = 86_400_000;

pub struct Harness {
    pub kv: Mem,
    pub state: State,
    pub now: Millis,
    /// How far the wall clock is ahead of engine time.
    pub ahead: i64,
    /// Whether the latest command changed anything.
    pub changed: bool,
    /// The effects of the latest command.
    pub effects: Vec<Effect>,
    /// Check the structure after every n-th command, because long queues make it slow.
    pub every: usize,
    /// All commands that changed something, as the log would have them.
    log: Vec<Vec<u8>>,
    steps: usize,
    seed: u64,
}

pub fn text(text: &str) -> Arc<str> {
    Arc::from(text)
}

pub fn task(command: &str) -> NewTask {
    NewTask { command: text(command), payload: Bytes::from_static(b"{}"), ..NewTask::default() }
}

pub fn keyed(command: &str, key: &str) -> NewTask {
    NewTask { idempotency_key: Some(text(key)), ..task(command) }
}

pub fn hooked(command: &str) -> NewTask {
    NewTask { webhook: Some(text("https://example.com/hook")), ..task(command) }
}

pub fn tries(command: &str, max_attempts: u32) -> NewTask {
    NewTask { max_attempts: Some(max_attempts), ..task(command) }
}

pub fn urgent(command: &str, priority: i32) -> NewTask {
    NewTask { priority, ..task(command) }
}

pub fn late(command: &str, delay: Millis) -> NewTask {
    NewTask { delay: Some(delay), ..task(command) }
}

pub fn dated(command: &str, run_at: Millis) -> NewTask {
    NewTask { run_at: Some(run_at), ..task(command) }
}

impl Harness {
    pub fn new() -> Harness {
        let kv = Mem::default();
        Harness {
            state: State::load(&kv, ShardId(0), 1).expect("an empty shard loads"),
            kv,
            now: 1_000_000,
            ahead: 0,
            changed: false,
            effects: Vec::new(),
            every: 1,
            log: Vec::new(),
            steps: 0,
            seed: 1,
        }
    }

    pub fn with(settings: Settings) -> Harness {
        let mut h = Harness::new();
        assert_eq!(h.apply(Command::Configure(settings)), Reply::Done);
        h
    }

    /// Applies a command now, and checks everything that must hold after it.
    pub fn apply(&mut self, command: Command) -> Reply {
        let check = self.steps.is_multiple_of(self.every);
        self.steps += 1;
        let before = check.then(|| self.digest());
        self.effects.clear();
        let at = self.moment();
        let applied = self
            .state
            .apply(&mut self.kv, at, &command, &mut self.effects)
            .expect("the store reads");
        self.changed = applied.changed;
        if applied.changed {
            let mut group = Vec::new();
            begin_record(self.moment(), &mut group);
            push_command(&command, &mut group);
            self.log.push(group);
        }
        if let Some(before) = before {
            if !applied.changed {
                assert_eq!(self.digest(), before, "changed without reporting it: {command:?}");
                assert_eq!(self.effects, [], "effects without a change: {command:?}");
            }
            if let Reply::Rejected(why) = &applied.reply {
                // Even then, a lease that is found to be over is ended.
                let ended = matches!(why, Rejection::NotInProgress | Rejection::Finished);
                assert!(!applied.changed || ended, "refused but changed: {command:?}");
            }
            structure::check(&self.kv, &self.state);
        }
        applied.reply
    }

    pub fn pass(&mut self, time: Millis) {
        self.now += time;
    }

    /// Sets the wall clock.
    pub fn set_clock(&mut self, by: i64) {
        self.ahead += by;
    }

    pub fn wall(&self) -> Millis {
        self.now.saturating_add_signed(self.ahead)
    }

    pub fn moment(&self) -> Moment {
        Moment { now: self.now, wall: self.wall() }
    }

    /// Restarts: rebuilds the state from the rows.
    pub fn reload(&mut self) {
        self.state.write_back(&mut self.kv);
        self.state = State::load(&self.kv, ShardId(0), 1).expect("loads");
        structure::check(&self.kv, &self.state);
    }

    pub fn digest(&self) -> [u8; 32] {
        digest(&self.state, &self.kv).expect("digest")
    }

    /// Ends a test: the log replays to the same rows, and a restarted shard hands out the same tasks.
    pub fn finish(mut self) {
        structure::check(&self.kv, &self.state);
        let mut kv = Mem::default();
        let mut replica = State::load(&kv, ShardId(0), 1).expect("loads");
        for group in &self.log {
            let (at, commands) = read_record(group).expect("decodes");
            for command in commands {
                replica.apply(&mut kv, at, &command, &mut Vec::new()).expect("applies");
            }
        }
        assert_eq!(digest(&replica, &kv).expect("digest"), self.digest(), "replay differs");
        let tenants: Vec<Arc<str>> = self.state.tenants().cloned().collect();
        self.state.write_back(&mut self.kv);
        let mut rows = self.kv.clone();
        let mut restarted = State::load(&rows, ShardId(0), 1).expect("loads");
        for tenant in tenants {
            for _ in 0..3 {
                let claim = Command::Claim(Claim {
                    tenant: Arc::clone(&tenant),
                    worker: text(W),
                    from: Selector::Any,
                    lease: LEASE,
                    count: 1_000,
                });
                let at = self.moment();
                let ours = self.state.apply(&mut self.kv, at, &claim, &mut Vec::new());
                let theirs = restarted.apply(&mut rows, at, &claim, &mut Vec::new());
                assert_eq!(ours.expect("applies").reply, theirs.expect("applies").reply);
            }
        }
    }

    pub fn seed(&mut self) -> u64 {
        self.seed += 1;
        self.seed
    }

    // Helpers for the tenant T and the worker W.

    pub fn enqueue_all(&mut self, tenant: &str, tasks: Vec<NewTask>, atomic: bool) -> Reply {
        let seed = self.seed();
        self.apply(Command::Enqueue(Enqueue { tenant: text(tenant), tasks, atomic, seed }))
    }

    pub fn offer(&mut self, tenant: &str, task: NewTask) -> Enqueued {
        match self.enqueue_all(tenant, vec![task], false) {
            Reply::Enqueued(mut all) if all.len() == 1 => all.remove(0),
            other => panic!("{other:?}"),
        }
    }

    pub fn add(&mut self, task: NewTask) -> Task {
        self.add_for(T, task)
    }

    pub fn add_for(&mut self, tenant: &str, task: NewTask) -> Task {
        match self.offer(tenant, task) {
            Enqueued::Created(task) => *task,
            other => panic!("{other:?}"),
        }
    }

    /// In the form that new proposals use.
    pub fn offer_now(&mut self, task: NewTask) -> Enqueued {
        let (tenant, tasks, seed) = (text(T), vec![task], self.seed());
        let enqueue = Enqueue { tenant, tasks, atomic: false, seed };
        match self.apply(Command::Enqueue(enqueue).current()) {
            Reply::Enqueued(mut all) if all.len() == 1 => all.remove(0),
            other => panic!("{other:?}"),
        }
    }

    pub fn add_now(&mut self, task: NewTask) -> Task {
        match self.offer_now(task) {
            Enqueued::Created(task) => *task,
            other => panic!("{other:?}"),
        }
    }

    pub fn refuse(&mut self, task: NewTask) -> Rejection {
        match self.offer(T, task) {
            Enqueued::Rejected(why) => why,
            other => panic!("{other:?}"),
        }
    }

    pub fn claim_as(&mut self, tenant: &str, worker: &str, from: Selector, count: u32) -> Reply {
        self.apply(Command::Claim(Claim {
            tenant: text(tenant),
            worker: text(worker),
            from,
            lease: LEASE,
            count,
        }))
    }

    pub fn claims(&mut self, commands: &[&str], count: u32) -> Vec<Task> {
        let from = Selector::Commands(commands.iter().map(|name| text(name)).collect());
        match self.claim_as(T, W, from, count) {
            Reply::Claimed(tasks) => tasks,
            other => panic!("{other:?}"),
        }
    }

    pub fn claim(&mut self, command: &str) -> Option<Task> {
        self.claims(&[command], 1).pop()
    }

    pub fn claim_any(&mut self, tenant: &str) -> Option<Task> {
        match self.claim_as(tenant, W, Selector::Any, 1) {
            Reply::Claimed(mut tasks) => tasks.pop(),
            other => panic!("{other:?}"),
        }
    }

    /// A task that W is running.
    pub fn running(&mut self, task: NewTask) -> Task {
        let made = self.add(task);
        let taken = self.claim(&made.command).expect("something to claim");
        assert_eq!(taken.id, made.id);
        taken
    }

    /// A task that is dead-lettered.
    pub fn dead(&mut self, task: NewTask) -> Task {
        let task = self.running(NewTask { max_attempts: Some(1), ..task });
        assert_eq!(self.nack(task.id, None, Some("boom")), Reply::Returned(Returned::Dead));
        self.get(task.id)
    }

    /// A task that is completed.
    pub fn done(&mut self, task: NewTask) -> Task {
        let task = self.running(task);
        self.complete(task.id);
        self.get(task.id)
    }

    pub fn heartbeat_as(
        &mut self,
        tenant: &str,
        worker: &str,
        id: TaskId,
        extend: Millis,
    ) -> Reply {
        self.apply(Command::Heartbeat(Heartbeat {
            tenant: text(tenant),
            id,
            worker: text(worker),
            extend,
        }))
    }

    pub fn heartbeat(&mut self, id: TaskId, extend: Millis) -> Reply {
        self.heartbeat_as(T, W, id, extend)
    }

    pub fn submit_as(&mut self, tenant: &str, worker: &str, id: TaskId, outcome: Outcome) -> Reply {
        self.apply(Command::Submit(Submit {
            tenant: text(tenant),
            id,
            worker: text(worker),
            outcome,
            artifacts: Vec::new(),
        }))
    }

    pub fn submit(&mut self, id: TaskId, outcome: Outcome) -> Reply {
        self.submit_as(T, W, id, outcome)
    }

    pub fn complete(&mut self, id: TaskId) -> ResultRecord {
        match self.submit(id, Outcome::Completed(Bytes::from_static(b"{\"a\":1}"))) {
            Reply::Submitted(record) => *record,
            other => panic!("{other:?}"),
        }
    }

    pub fn nack_as(
        &mut self,
        tenant: &str,
        worker: &str,
        id: TaskId,
        delay: Option<Millis>,
    ) -> Reply {
        self.apply(Command::Nack(Nack {
            tenant: text(tenant),
            id,
            worker: text(worker),
            delay,
            reason: None,
            seed: 7,
        }))
    }

    pub fn nack(&mut self, id: TaskId, delay: Option<Millis>, reason: Option<&str>) -> Reply {
        self.apply(Command::Nack(Nack {
            tenant: text(T),
            id,
            worker: text(W),
            delay,
            reason: reason.map(text),
            seed: 7,
        }))
    }

    pub fn abandon_as(&mut self, tenant: &str, worker: &str, id: TaskId, penalty: bool) -> Reply {
        self.apply(Command::Abandon(Abandon {
            tenant: text(tenant),
            id,
            worker: text(worker),
            penalty,
            fence: None,
        }))
    }

    pub fn abandon(&mut self, id: TaskId, penalty: bool) -> Reply {
        self.abandon_as(T, W, id, penalty)
    }

    pub fn cancel_as(&mut self, tenant: &str, id: TaskId) -> Reply {
        self.apply(Command::Cancel(Cancel { tenant: text(tenant), id, by: text("producer") }))
    }

    pub fn cancel(&mut self, id: TaskId) -> Reply {
        self.cancel_as(T, id)
    }

    pub fn reschedule_as(
        &mut self,
        tenant: &str,
        id: TaskId,
        priority: Option<i32>,
        when: Option<RunWhen>,
    ) -> Reply {
        let (tenant, by) = (text(tenant), text("admin"));
        self.apply(Command::Reschedule(Reschedule { tenant, id, priority, when, by }))
    }

    /// Changes a waiting task, and returns it.
    pub fn reschedule(&mut self, id: TaskId, priority: Option<i32>, when: Option<RunWhen>) -> Task {
        match self.reschedule_as(T, id, priority, when) {
            Reply::Rescheduled(task) => *task,
            other => panic!("{other:?}"),
        }
    }

    pub fn replay_as(&mut self, tenant: &str, target: ReplayTarget) -> Reply {
        self.apply(Command::Replay(Replay { tenant: text(tenant), target, by: text("admin") }))
    }

    pub fn replay(&mut self, id: TaskId) -> Reply {
        self.replay_as(T, ReplayTarget::One(id))
    }

    pub fn replay_queue(
        &mut self,
        command: &str,
        part: Option<&str>,
        after: Seq,
        limit: u32,
    ) -> Bulk {
        let target = ReplayTarget::Queue {
            command: text(command),
            error_contains: part.map(text),
            after,
            limit,
        };
        bulk(self.replay_as(T, target))
    }

    pub fn purge_as(
        &mut self,
        tenant: &str,
        command: &str,
        target: PurgeTarget,
        limit: u32,
    ) -> Bulk {
        bulk(self.apply(Command::Purge(Purge {
            tenant: text(tenant),
            command: text(command),
            target,
            limit,
            by: text("admin"),
        })))
    }

    pub fn pause_as(&mut self, tenant: &str, command: &str, paused: bool) -> Reply {
        self.apply(Command::Pause(Pause { tenant: text(tenant), command: text(command), paused }))
    }

    pub fn pause(&mut self, command: &str, paused: bool) -> Reply {
        self.pause_as(T, command, paused)
    }

    pub fn put_topic_as(&mut self, tenant: &str, name: &str, policy: Policy) -> Reply {
        self.apply(Command::PutTopic(PutTopic { tenant: text(tenant), name: text(name), policy }))
    }

    pub fn put_topic(&mut self, name: &str, policy: Policy) -> (Topic, bool) {
        match self.put_topic_as(T, name, policy) {
            Reply::Topic { topic, created } => (*topic, created),
            other => panic!("{other:?}"),
        }
    }

    pub fn delete_topic(&mut self, tenant: &str, name: &str) -> Reply {
        self.apply(Command::DeleteTopic(DeleteTopic { tenant: text(tenant), name: text(name) }))
    }

    pub fn cleanup(&mut self, tenant: &str, before: Millis, limit: u32) -> u64 {
        let reply = self.apply(Command::Cleanup(Cleanup { tenant: text(tenant), before, limit }));
        bulk(reply).done
    }

    pub fn sweep(&mut self, limit: u32) -> Swept {
        let seed = self.seed();
        match self.apply(Command::Sweep(Sweep { limit, seed })) {
            Reply::Swept(swept) => swept,
            other => panic!("{other:?}"),
        }
    }

    pub fn callback_as(&mut self, tenant: &str, id: TaskId, delivery: Delivery) -> Reply {
        self.apply(Command::Callback(Callback {
            tenant: text(tenant),
            id,
            completed_at: None,
            delivery,
        }))
    }

    pub fn callback(&mut self, id: TaskId, delivery: Delivery) -> Reply {
        self.callback_as(T, id, delivery)
    }

    // Reads.

    pub fn reader(&self) -> Reader<'_, Mem> {
        Reader { state: &self.state, kv: &self.kv }
    }

    pub fn find(&self, tenant: &str, id: TaskId) -> Option<Task> {
        self.reader().task(tenant, id).expect("reads")
    }

    pub fn get(&self, id: TaskId) -> Task {
        self.find(T, id).expect("the task exists")
    }

    pub fn result(&self, id: TaskId) -> Option<ResultRecord> {
        self.reader().result(T, id).expect("reads").and_then(|(_, result)| result)
    }

    pub fn callbacks(&self) -> Vec<PendingCallback> {
        self.reader().callbacks(T, None, &BulkFrom::default(), 1_000).expect("reads").items
    }

    pub fn callbacks_due(&self) -> Vec<TaskId> {
        let due = self.reader().callbacks_due((0, Seq(0)), 1_000).expect("reads");
        let due = due.into_iter().filter(|due| due.at <= self.now);
        due.map(|due| self.reader().callback(due.seq).expect("reads").expect("kept").task.id)
            .collect()
    }

    pub fn stats(&self, command: &str) -> Option<QueueStats> {
        self.reader().queue(T, command).expect("reads")
    }

    pub fn standing(&self, id: TaskId) -> Standing {
        self.reader().standing(T, id).expect("reads").expect("the task is there")
    }

    pub fn list(&self, query: ListQuery) -> Page {
        self.reader().list(&query).expect("reads")
    }

    pub fn rows(&self, table: Table) -> usize {
        self.kv.len(table)
    }
}

fn bulk(reply: Reply) -> Bulk {
    match reply {
        Reply::Bulk(bulk) => bulk,
        other => panic!("{other:?}"),
    }
}

pub fn refused(why: Rejection) -> Reply {
    Reply::Rejected(why)
}

pub fn requeued(delay: Millis) -> Reply {
    Reply::Returned(Returned::Requeued { delay })
}
