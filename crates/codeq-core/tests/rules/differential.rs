//! The rules against the model: random commands, every reply and the whole state compared after each.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use codeq_core::command::*;
use codeq_core::id::TaskId;
use codeq_core::moment::Moment;
use codeq_core::read::ListQuery;
use codeq_core::record::RecordKind;
use codeq_core::reply::{Bulk, BulkDone, Enqueued, Rejection, Reply, Returned};
use codeq_core::settings::Settings;
use codeq_core::task_backoff::{Backoff, Growth};
use codeq_core::topic::Policy;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::harness::*;
use crate::model::{Known, Model};

const TENANTS: [&str; 2] = ["a", "ab"];
const COMMANDS: [&str; 3] = ["x", "y", "z"];
const WORKERS: [&str; 3] = ["w1", "w2", "w3"];
const KINDS: [RecordKind; 2] = [RecordKind::Subscription, RecordKind::WebhookSecret];
/// How the wall clock may be set, besides leaving it alone.
const JUMPS: [i64; 6] = [1, -1, HOUR as i64, -(HOUR as i64), 10 * HOUR as i64, -10 * HOUR as i64];
const STEPS: [Millis; 10] = [0, 0, 0, 1, 500, 1_000, 5_000, 5_001, HOUR, DAY];

/// A command as numbers that are read as choices, so that failures shrink.
#[derive(Debug, Clone)]
pub struct Act {
    time: usize,
    verb: u8,
    pick: usize,
    a: usize,
    b: usize,
    reload: bool,
    jump: usize,
}

pub fn acts(length: usize) -> impl Strategy<Value = Vec<Act>> {
    let act = (0..STEPS.len(), 0..122u8, any::<u16>(), any::<u16>(), any::<u16>(), 0..20u8);
    let act = (act, 0..60usize).prop_map(|((time, verb, pick, a, b, reload), jump)| Act {
        time,
        verb,
        pick: usize::from(pick),
        a: usize::from(a),
        b: usize::from(b),
        reload: reload == 0,
        jump,
    });
    proptest::collection::vec(act, 1..length)
}

/// The rejections that random commands meet.
fn name(why: &Rejection) -> &'static str {
    match why {
        Rejection::Completed => "completed",
        Rejection::Finished => "finished",
        Rejection::IdempotencyConflict => "idempotency_conflict",
        Rejection::InProgress => "in_progress",
        Rejection::InBatch { reason, .. } => name(reason),
        Rejection::LeaseLost => "lease_lost",
        Rejection::NoCallback => "no_callback",
        Rejection::NotFinished => "not_finished",
        Rejection::NotFound => "not_found",
        Rejection::NotInProgress => "not_in_progress",
        Rejection::NotOwner => "not_owner",
        Rejection::RecordChanged => "record_changed",
        _ => "another rejection",
    }
}

/// The shard, the model, and all ids seen so far.
pub struct Pair {
    h: Harness,
    model: Model,
    ids: Vec<TaskId>,
    pub log: Vec<(Moment, Command)>,
    /// The kinds of replies seen.
    seen: BTreeSet<&'static str>,
}

impl Pair {
    pub fn new(growth: Growth) -> Pair {
        let mut pair = Pair {
            h: Harness::new(),
            model: Model::default(),
            ids: vec![TaskId::new(Seq(1), 1)],
            log: Vec::new(),
            seen: BTreeSet::new(),
        };
        // Far enough from the epoch that the clock can be set back.
        pair.h.now = 1_000 * HOUR;
        pair.apply(Command::Configure(Settings {
            max_attempts: 3,
            backoff: Backoff { growth, base: 1_000, max: 5_000 },
            retention: HOUR,
            dead_letter_retention: 2 * HOUR,
            callback_attempts: 3,
            ..Settings::default()
        }));
        pair
    }

    pub fn act(&mut self, act: &Act) {
        self.h.pass(STEPS[act.time]);
        self.h.set_clock(JUMPS.get(act.jump).copied().unwrap_or(0));
        if act.reload {
            self.h.reload();
        }
        let mut command = self.command(act);
        if act.time.is_multiple_of(2) {
            command = in_parts(command);
        }
        if act.b.is_multiple_of(3) {
            command = command.current();
        }
        if act.a.is_multiple_of(3) {
            command = self.under_lease(command, act);
        }
        // How many tasks a claim repairs at once is a limit, not a rule.
        if matches!(command, Command::Claim(_)) && self.model.due(self.h.moment()) > 16 {
            self.apply(Command::Sweep(Sweep { limit: 512, seed: 1 }));
        }
        self.apply(command);
    }

    fn apply(&mut self, command: Command) {
        let predicted = match &command {
            Command::BulkPart(part) => {
                let plan = self.h.reader().bulk(part, self.h.now).expect("reads");
                Some(BulkDone { done: plan.numbers.len() as u64, next: plan.next })
            }
            _ => None,
        };
        let actual = self.h.apply(command.clone());
        if let Some(predicted) = predicted {
            let touched = predicted.done > 0;
            assert_eq!(actual, Reply::BulkPart(predicted), "a dry run of {command:?}");
            self.see_bulk(&command, touched);
        }
        self.see(&actual);
        let mut wanted = self.model.apply(self.h.moment(), &command, &actual);
        self.model.shows(self.h.moment(), self.h.changed);
        let mut got = actual;
        if let (Command::Cleanup(_), Reply::Bulk(bulk)) = (&command, &mut got) {
            // Where a cleanup stopped is internal.
            *bulk = Bulk { last: Seq(0), ..*bulk };
        }
        if let (Command::Purge(_), Reply::Bulk(a), Reply::Bulk(b)) =
            (&command, &mut got, &mut wanted)
        {
            (a.last, b.last) = (Seq(0), Seq(0));
        }
        if let Reply::BulkPart(bulk) = &mut got {
            bulk.next = None;
        }
        assert_eq!(got, wanted, "reply to {command:?}");
        self.log.push((self.h.moment(), command));
        self.compare();
    }

    fn see_bulk(&mut self, command: &Command, touched: bool) {
        let Command::BulkPart(part) = command else { return };
        self.seen.extend(touched.then_some(match part.work {
            BulkWork::Cleanup { expired: true } => "expired cleaned up",
            BulkWork::Cleanup { expired: false } => "cleaned up",
            BulkWork::PurgeDead { .. } => "dead purged",
            BulkWork::PurgeWaiting { .. } => "waiting purged",
            BulkWork::Cancel { .. } if part.from.list == 0 => "waiting cancelled",
            BulkWork::Cancel { .. } => "running cancelled",
            BulkWork::Replay { from: ReplayFrom::DeadLetters, .. } => "dead replayed",
            BulkWork::Replay { from: ReplayFrom::Failed, .. } => "failed replayed",
            BulkWork::Replay { from: ReplayFrom::Cancelled, .. } => "cancelled replayed",
        }));
    }

    fn see(&mut self, reply: &Reply) {
        let kind = match reply {
            Reply::Enqueued(items) => {
                self.seen.extend(items.iter().map(|item| match item {
                    Enqueued::Created(_) => "created",
                    Enqueued::Repeated(_) => "repeated",
                    Enqueued::Rejected(why) => name(why),
                }));
                return;
            }
            Reply::Swept(swept) => {
                self.seen.extend((swept.expired > 0).then_some("expired"));
                self.seen.extend((swept.promoted > 0).then_some("promoted"));
                self.seen.extend((swept.postponed > 0).then_some("postponed"));
                self.seen.extend((swept.removed > 0).then_some("removed"));
                return;
            }
            Reply::Claimed(tasks) if tasks.is_empty() => "nothing",
            Reply::Claimed(tasks) if tasks.iter().any(|task| task.origin.is_some()) => {
                "copy claimed"
            }
            Reply::Claimed(_) => "claimed",
            Reply::Bulk(bulk) if bulk.done > 0 => "bulk",
            Reply::Bulk(_) => "none",
            Reply::Returned(Returned::Requeued { delay: 0 }) => "requeued",
            Reply::Returned(Returned::Requeued { .. }) => "delayed",
            Reply::Returned(Returned::Dead) => "dead",
            Reply::Returned(Returned::Cancelled) => "stopped",
            Reply::Rejected(why) => name(why),
            Reply::Done => "done",
            Reply::Extended { .. } => "extended",
            Reply::Submitted(_) => "submitted",
            Reply::Cancelled(_) => "cancelled",
            Reply::CancelRequested(_) => "cancel requested",
            Reply::Replayed(_) => "replayed",
            Reply::Rescheduled(_) => "rescheduled",
            Reply::Topic { .. } => "topic",
            Reply::Record(_) => "record",
            Reply::BulkPart(_) => "bulk part",
        };
        self.seen.insert(kind);
    }

    fn compare(&mut self) {
        for tenant in TENANTS {
            let query = ListQuery { tenant: text(tenant), limit: 1_000, ..ListQuery::default() };
            let items = self.h.list(query).items;
            assert_eq!(items, self.model.list(tenant, &items), "tasks of {tenant}");
            let queues = self.h.reader().queues(tenant, None).expect("reads");
            let queues: Vec<_> = queues
                .into_iter()
                .map(|q| {
                    let c = q.counts;
                    let live = [c.ready(), c.delayed, c.in_progress];
                    let ended = [c.dead, c.completed, c.failed, c.cancelled];
                    let counts = [&live[..], &ended[..]].concat();
                    (q.name.to_string(), counts, q.paused)
                })
                .collect();
            assert_eq!(queues, self.model.queues(tenant), "queues of {tenant}");
        }
        let from = BulkFrom::default();
        let list =
            |tenant| self.h.reader().callbacks(tenant, None, &from, 1_000).expect("reads").items;
        let mut posts: Vec<_> = TENANTS.into_iter().flat_map(list).collect();
        posts.sort_by_key(|post| post.task.id.seq());
        let mut posts = posts.into_iter();
        for known in &self.model.tasks {
            let result = self.h.reader().result(&known.task.tenant, known.task.id).expect("reads");
            assert_eq!(result.and_then(|(_, result)| result), known.end);
            if let Some(post) = &known.post {
                let got = posts.next().expect("a callback");
                assert_eq!(got.task.id, known.task.id);
                assert_eq!((got.outbox.attempts, got.outbox.next_at), (post.tried, post.next_at));
            }
            if !self.ids.contains(&known.task.id) {
                self.ids.push(known.task.id);
            }
        }
        let timed_out = |known: &Known| known.task.error.as_deref() == Some("TIMED_OUT");
        let seen = self.model.tasks.iter().any(timed_out);
        self.seen.extend(seen.then_some("timed out"));
        assert!(posts.next().is_none(), "a callback too many");
        for (tenant, kind) in
            TENANTS.into_iter().flat_map(|tenant| KINDS.map(|kind| (tenant, kind)))
        {
            let records = self.h.reader().records(&text(tenant), kind, self.h.now).expect("reads");
            assert_eq!(records, self.model.records.list(self.h.now, tenant, kind));
        }
    }

    /// The same from a worker that names its lease: the right one, the previous one, or through an instance.
    fn under_lease(&self, command: Command, act: &Act) -> Command {
        let action = match command {
            Command::Heartbeat(c) => LeaseAction::Heartbeat(c),
            Command::Submit(c) => LeaseAction::Submit(c),
            Command::Nack(c) => LeaseAction::Nack(c),
            Command::Abandon(c) => LeaseAction::Abandon(c),
            other => return other,
        };
        let of = self.model.tasks.iter().find(|known| known.task.id == action.id());
        let fence = of.map_or(Fence(1), |known| known.task.fence);
        let fence = [None, Some(fence), Some(fence), Some(fence.next())][act.b / 4 % 4];
        let instance = [None, Some(text(WORKERS[act.b % 3]))][act.b / 16 % 2].clone();
        Command::UnderLease(UnderLease { fence, instance, action: Box::new(action) })
    }

    fn command(&self, act: &Act) -> Command {
        let Act { verb, pick, a, b, .. } = *act;
        // Mostly the newest tasks, and mostly by the worker or tenant that owns them.
        let newest = self.ids[self.ids.len() - 1 - pick % self.ids.len().min(12)];
        let running: Vec<TaskId> = self
            .model
            .tasks
            .iter()
            .map(|k| &k.task)
            .filter(|t| t.worker.is_some())
            .map(|t| t.id)
            .collect();
        let ended: Vec<TaskId> =
            self.model.tasks.iter().filter(|k| k.end.is_some()).map(|k| k.task.id).collect();
        let id = match verb {
            77..=80 | 106..=113 if !ended.is_empty() && b % 4 > 0 => ended[pick % ended.len()],
            45..=76 if !running.is_empty() && b % 4 > 0 => running[pick % running.len()],
            _ => newest,
        };
        let of = self.model.tasks.iter().find(|known| known.task.id == id);
        let right = !pick.is_multiple_of(7);
        let tenant = match of.filter(|_| right) {
            Some(known) => known.task.tenant.clone(),
            None => text(TENANTS[a % 2]),
        };
        let worker = match of.and_then(|known| known.task.worker.clone()).filter(|_| right) {
            Some(worker) => worker,
            None => text(WORKERS[b % 3]),
        };
        let name = text(COMMANDS[b % 3]);
        match verb {
            0..=24 => Command::Enqueue(Enqueue {
                tenant: text(TENANTS[pick % 2]),
                tasks: (0..1 + a % 3)
                    .map(|i| new_task(a / 3 + i * 7, b + i, self.h.wall()))
                    .collect(),
                atomic: a.is_multiple_of(2),
                seed: b as u64,
            }),
            25..=44 => Command::Claim(Claim {
                tenant: text(TENANTS[pick % 2]),
                worker: text(WORKERS[a % 3]),
                from: match b % 4 {
                    0 => Selector::Any,
                    n => Selector::Commands(COMMANDS[..n].iter().rev().map(|c| text(c)).collect()),
                },
                lease: [1_000, 5_000, 60_000][b % 3],
                count: 1 + (a % 4) as u32,
            }),
            45..=48 => Command::Heartbeat(Heartbeat { tenant, id, worker, extend: 5_000 }),
            49..=58 => Command::Submit(Submit {
                tenant,
                id,
                worker,
                outcome: match a % 5 {
                    0 => Outcome::Failed(text("no")),
                    4 => Outcome::Both {
                        completed: b.is_multiple_of(2),
                        result: Bytes::from_static(b"{}"),
                        error: text("half"),
                    },
                    n => Outcome::Completed(Bytes::from(format!("{{\"n\":{n}}}"))),
                },
                artifacts: Vec::new(),
            }),
            59..=68 => Command::Nack(Nack {
                tenant,
                id,
                worker,
                delay: some(a, [0, 1, 700, 9_000][b % 4]),
                reason: some(b, text(["slow", "broken"][a % 2])),
                seed: a as u64,
            }),
            69..=72 => Command::Abandon(Abandon {
                tenant,
                id,
                worker,
                penalty: a.is_multiple_of(2),
                fence: None,
            }),
            73..=76 => Command::Cancel(Cancel { tenant, id, by: text("p") }),
            77..=80 => Command::Replay(Replay {
                tenant,
                target: match a % 2 {
                    0 => ReplayTarget::One(id),
                    _ => ReplayTarget::Queue {
                        command: name,
                        error_contains: some(a / 2, text("slow")),
                        after: if b.is_multiple_of(4) { id.seq() } else { Seq(0) },
                        limit: (b % 5) as u32,
                    },
                },
                by: text("admin"),
            }),
            81..=82 => Command::Purge(Purge {
                tenant,
                command: name,
                target: [PurgeTarget::Dead, PurgeTarget::Waiting][a % 2],
                limit: (a % 4) as u32,
                by: text("admin"),
            }),
            83..=85 => Command::Pause(Pause { tenant, command: name, paused: a.is_multiple_of(3) }),
            86..=87 => Command::PutTopic(PutTopic {
                tenant,
                name: name.clone(),
                policy: Policy {
                    priority_tiers: [vec![], vec![3, 0], vec![10]][a % 3].clone(),
                    max_attempts: some(a / 3, 2),
                    dead_letter_topic: some(a / 5, text(COMMANDS[(b + 1) % 3])),
                    retention: [0, 0, 5_000][a / 7 % 3],
                    max_consumers: [0, 0, 1, 2][a / 11 % 4],
                    dead_letter_retention: [0, 0, 9_000][a / 13 % 3],
                    max_run: [0, 0, 1_000, 7_000][a / 17 % 4],
                },
            }),
            88 => Command::DeleteTopic(DeleteTopic { tenant, name }),
            89..=90 => Command::Cleanup(Cleanup {
                tenant,
                before: self.h.wall().saturating_sub([0, 1_000, HOUR][a % 3]),
                limit: (b % 6) as u32,
            }),
            91..=95 => Command::Sweep(Sweep { limit: [1, 3, 100][a % 3], seed: b as u64 }),
            96..=99 => Command::Callback(Callback {
                tenant,
                id,
                completed_at: None,
                delivery: match a % 4 {
                    0 => Delivery::Delivered,
                    1 => Delivery::Resend,
                    2 => Delivery::Refused { status: 410, error: text("gone") },
                    _ => Delivery::Failed {
                        status: Some(500),
                        error: text("bad"),
                        retry_after: some(b, 10_000),
                    },
                },
            }),
            100..=101 => Command::DeleteRecord(DeleteRecord {
                tenant: text(TENANTS[pick % 2]),
                kind: KINDS[a % 2],
                name: text(["r", "s"][b % 2]),
                expected: some(a / 2, (b / 2 % 3) as u64),
            }),
            102..=105 => Command::PutRecord(PutRecord {
                tenant: text(TENANTS[pick % 2]),
                kind: KINDS[a % 2],
                name: text(["r", "s"][b % 2]),
                value: Bytes::from(format!("{a}")),
                ttl: [None, Some(1), Some(5_000), Some(HOUR)][b / 2 % 4],
                expected: some(a / 2, (b / 8 % 3) as u64),
            }),
            114.. => Command::Reschedule(Reschedule {
                tenant,
                id,
                priority: (a % 4 > 0).then_some([-1, 0, 5, 99][b % 4]),
                when: match a / 4 % 5 {
                    0 => Some(RunWhen::After(0)),
                    1 => Some(RunWhen::After([1, 700, HOUR][b / 4 % 3])),
                    2 => Some(RunWhen::At(
                        self.h.wall().saturating_add_signed([-1, 700, HOUR as i64][b / 4 % 3]),
                    )),
                    _ => None,
                },
                by: text("admin"),
            }),
            _ => {
                let its = of.filter(|_| right).map(|known| known.task.command.clone());
                self.bulk(act, tenant, its.unwrap_or(name), id)
            }
        }
    }

    /// An operator's bulk operation: every kind of work with every kind of filter.
    fn bulk(&self, act: &Act, tenant: Arc<str>, command: Arc<str>, id: TaskId) -> Command {
        let Act { a, b, pick, .. } = *act;
        let work = match a % 12 {
            0 => BulkWork::Cleanup { expired: a / 8 % 2 == 0 },
            1 => BulkWork::PurgeDead { command },
            2 => BulkWork::PurgeWaiting { command },
            3 => BulkWork::Replay { command, from: ReplayFrom::DeadLetters },
            4..=6 => BulkWork::Replay { command, from: ReplayFrom::Failed },
            7 => BulkWork::Replay { command, from: ReplayFrom::Cancelled },
            _ => BulkWork::Cancel { command, running: a % 12 > 8 },
        };
        let ago = |n: usize| self.h.wall().saturating_sub([0, 1, 1_000, HOUR][n % 4]);
        let filtered = BulkFilter {
            error_contains: some(b / 3, text(["slow", "no", "CANCEL"][b / 9 % 3])),
            before: some(pick / 2, ago(a / 16)),
            after: some(pick / 6, ago(a / 64)),
            worker: some(pick / 18, text(WORKERS[b / 27 % 3])),
        };
        let filter = if pick.is_multiple_of(2) { filtered } else { BulkFilter::default() };
        let after = match work {
            BulkWork::Cleanup { .. } => Seq(0),
            _ => [Seq(0), Seq(0), Seq(0), id.seq()][pick / 54 % 4],
        };
        let list = match work {
            BulkWork::Cancel { running: true, .. } => u8::from(b / 5 % 4 > 0),
            _ => 0,
        };
        let from = BulkFrom { queue: None, list, after };
        let (take, look, by) = ((b % 5) as u32, u32::MAX, text("admin"));
        Command::BulkPart(Box::new(BulkPart { tenant, work, filter, from, take, look, by }))
    }
}

fn some<V>(n: usize, value: V) -> Option<V> {
    n.is_multiple_of(3).then_some(value)
}

fn new_task(a: usize, b: usize, wall: Millis) -> NewTask {
    let some = |n: usize| n.is_multiple_of(4);
    NewTask {
        command: text(["x", "y", "z", "X"][b % 4]),
        payload: Bytes::from(format!("{{\"n\":{}}}", a % 2)),
        priority: [0, 0, 5, 99][a / 2 % 4],
        max_attempts: some(a / 3).then_some([1, 2, 50][b % 3]),
        webhook: some(a / 5).then(|| text("https://example.com")),
        idempotency_key: some(a / 7).then(|| text(["k1", "k2"][b % 2])),
        delay: some(a / 11).then_some([0, 1, 700, HOUR][b % 4]),
        run_at: some(a / 13)
            .then_some(wall.saturating_add_signed([-1, 1, 700, HOUR as i64][a % 4])),
        max_run: some(a / 17).then_some([0, 1_000, 5_000, 6_000][b % 4]),
        ..NewTask::default()
    }
}

pub fn runner(cases: u32, seed: u8) -> TestRunner {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
    let config =
        Config { cases, failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
    TestRunner::new_with_rng(config, rng)
}

fn compare_with_model(growth: Growth, seed: u8) {
    let seen = RefCell::new(BTreeSet::new());
    let result = runner(150, seed).run(&acts(150), |acts| {
        let mut pair = Pair::new(growth);
        acts.iter().for_each(|act| pair.act(act));
        seen.borrow_mut().append(&mut pair.seen);
        pair.h.finish();
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
    // Random commands that never get anywhere prove nothing.
    let wanted = [
        "bulk",
        "bulk part",
        "cancel requested",
        "cancelled",
        "cancelled replayed",
        "claimed",
        "cleaned up",
        "completed",
        "copy claimed",
        "created",
        "dead",
        "dead purged",
        "dead replayed",
        "delayed",
        "done",
        "expired",
        "expired cleaned up",
        "extended",
        "failed replayed",
        "finished",
        "idempotency_conflict",
        "in_progress",
        "lease_lost",
        "no_callback",
        "none",
        "not_finished",
        "not_found",
        "not_in_progress",
        "not_owner",
        "nothing",
        "postponed",
        "promoted",
        "record",
        "record_changed",
        "removed",
        "repeated",
        "replayed",
        "requeued",
        "rescheduled",
        "running cancelled",
        "stopped",
        "submitted",
        "timed out",
        "topic",
        "waiting cancelled",
        "waiting purged",
    ];
    assert_eq!(seen.into_inner(), BTreeSet::from(wanted));
}

#[test]
fn the_rules_do_what_the_model_does_with_fixed_backoff() {
    compare_with_model(Growth::Fixed, 1);
}

#[test]
fn the_rules_do_what_the_model_does_with_linear_backoff() {
    compare_with_model(Growth::Linear, 2);
}

#[test]
fn the_rules_do_what_the_model_does_with_exponential_backoff() {
    compare_with_model(Growth::Exponential, 3);
}

/// The bulk commands of older logs, in the form that newer versions write.
fn in_parts(command: Command) -> Command {
    let (tenant, work, after, take, by) = match command {
        Command::Cleanup(Cleanup { tenant, before, limit }) => {
            (tenant, BulkWorkV1::Cleanup { before }, Seq(0), limit, text("admin"))
        }
        Command::Purge(Purge { tenant, command, target, limit, by }) => {
            let work = match target {
                PurgeTarget::Dead => BulkWorkV1::PurgeDead { command },
                PurgeTarget::Waiting => BulkWorkV1::PurgeWaiting { command },
            };
            (tenant, work, Seq(0), limit, by)
        }
        Command::Replay(Replay {
            tenant,
            target: ReplayTarget::Queue { command, error_contains, after, limit },
            by,
        }) => (tenant, BulkWorkV1::Replay { command, error_contains }, after, limit, by),
        other => return other,
    };
    let from = BulkFrom { after, ..BulkFrom::default() };
    Command::BulkPartV1(BulkPartV1 { tenant, work, from, take, look: u32::MAX, by })
}
