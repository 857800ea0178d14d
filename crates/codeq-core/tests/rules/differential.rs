//! The rules against the model: random commands, every reply and the whole state compared after each.

mod commands;

use std::cell::RefCell;
use std::collections::BTreeSet;

use codeq_core::command::*;
use codeq_core::id::TaskId;
use codeq_core::moment::Moment;
use codeq_core::read::ListQuery;
use codeq_core::record::RecordKind;
use codeq_core::reply::{Bulk, BulkDone, Enqueued, Rejection, Reply, Returned};
use codeq_core::settings::Settings;
use codeq_core::task_backoff::{Backoff, Growth};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use self::commands::in_parts;
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
