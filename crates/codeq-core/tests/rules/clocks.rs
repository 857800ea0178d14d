//! Two clocks: durations end by engine time, `run_at` is compared with the wall clock, and setting the wall clock makes
//! neither end early.

use codeq_core::effect::Effect;
use codeq_core::history::Event;
use codeq_core::keys::TimerKind;
use codeq_core::kv::Table;
use codeq_core::limits::{CLAIM_REPAIR_MAX, SWEEP_MAX};
use codeq_core::place::Place;
use codeq_core::reply::{Reply, Swept};
use codeq_core::settings::Settings;

use crate::harness::*;

const HOURS: i64 = HOUR as i64;

/// A shard far enough from the epoch that the clock can be set back.
fn shard() -> Harness {
    let mut h = Harness::with(Settings { retention: HOUR, ..Settings::default() });
    h.now = 1_000 * HOUR;
    h
}

#[test]
fn setting_the_wall_clock_ends_no_lease_delay_or_key() {
    for jump in [10 * HOURS, -10 * HOURS] {
        let mut h = shard();
        let leased = h.running(task("a"));
        let late = h.add(late("b", HOUR));
        let done = h.done(keyed("c", "k"));
        h.set_clock(jump);
        assert_eq!(h.sweep(100), Swept::default());
        assert!(h.claim("b").is_none());
        h.pass(LEASE);
        assert!(matches!(h.heartbeat(leased.id, LEASE), Reply::Extended { .. }));
        h.pass(HOUR - LEASE - 1);
        assert!(h.claim("b").is_none());
        assert!(h.find(T, done.id).is_some());
        h.pass(1);
        assert_eq!(h.claim("b").map(|task| task.id), Some(late.id));
        h.sweep(100);
        assert!(h.find(T, done.id).is_none());
        // A key lives for a day from the creation of its task.
        h.pass(22 * HOUR);
        h.sweep(100);
        assert_eq!(h.rows(Table::Idempotency), 1);
        h.pass(HOUR);
        h.sweep(100);
        assert_eq!(h.rows(Table::Idempotency), 0);
        h.finish();
    }
}

#[test]
fn run_at_is_compared_with_the_wall_clock_only() {
    let mut h = shard();
    let date = h.wall() + HOUR;
    let made = h.add(dated("a", date));
    assert_eq!((made.place, made.visible_at), (Place::Delayed, Some(date)));
    // Ten hours pass, and the wall clock is set back by as much.
    h.pass(10 * HOUR);
    h.set_clock(-10 * HOURS);
    assert!(h.claim("a").is_none());
    assert_eq!(h.get(made.id).visible_at, Some(date));
    // It is set right again: the date has long passed.
    h.set_clock(10 * HOURS);
    assert_eq!(h.claim("a").map(|task| task.id), Some(made.id));
    h.finish();
}

#[test]
fn a_task_that_came_due_by_a_wrong_clock_waits_again() {
    let mut h = shard();
    h.set_clock(10 * HOURS);
    let date = h.wall() - 10 * HOUR + HOUR;
    let made = h.add(dated("a", date));
    assert_eq!(made.place, Place::Pending, "by this clock the date has passed");
    h.set_clock(-10 * HOURS);
    h.reload();
    assert!(h.state.is_due(h.moment()));
    assert!(h.claim("a").is_none());
    let held = h.get(made.id);
    assert_eq!((held.place, held.visible_at), (Place::Delayed, Some(date)));
    let history = h.reader().history(T, made.id).expect("reads").expect("exists").entries();
    assert_eq!(
        history.last().map(|entry| (entry.event, entry.to)),
        Some((Event::Postponed, Place::Delayed))
    );
    assert!(!h.state.is_due(h.moment()), "nothing to spin on");
    h.pass(HOUR - 1);
    assert!(h.claim("a").is_none());
    h.pass(1);
    assert_eq!(h.claim("a").map(|task| task.id), Some(made.id));
    assert_eq!(timers(&h, TimerKind::RunAt) + timers(&h, TimerKind::RunAtPassed), 0);
    h.finish();
}

#[test]
fn a_claim_blocked_by_too_many_early_tasks_is_freed_by_the_sweep() {
    let mut h = shard();
    h.set_clock(10 * HOURS);
    let date = h.wall() - 9 * HOUR;
    let many = 3 * CLAIM_REPAIR_MAX;
    (0..many).for_each(|_| drop(h.add(dated("a", date))));
    let plain = h.add(task("a"));
    h.set_clock(-10 * HOURS);
    assert!(h.claim("a").is_none(), "never early");
    let ready = |h: &Harness| h.effects.iter().any(|e| matches!(e, Effect::Ready { .. }));
    let swept = h.sweep(SWEEP_MAX);
    assert_eq!(swept.postponed, many - CLAIM_REPAIR_MAX);
    assert!(ready(&h), "waiters learn about the task behind them");
    assert_eq!(h.claim("a").map(|task| task.id), Some(plain.id));
    assert!(h.claim("a").is_none());
    h.pass(HOUR);
    assert_eq!(h.sweep(SWEEP_MAX).promoted, many);
    assert_eq!(h.claims(&["a"], 1_000).len(), many as usize);
    h.finish();
}

#[test]
fn a_sweep_that_postpones_early_tasks_is_bounded() {
    let mut h = shard();
    h.set_clock(10 * HOURS);
    let date = h.wall() - 9 * HOUR;
    (0..5).for_each(|_| drop(h.add(dated("a", date))));
    h.set_clock(-10 * HOURS);
    for left in [3, 1] {
        assert_eq!(h.sweep(2).postponed, 2);
        assert_eq!(timers(&h, TimerKind::RunAtPassed), left);
        assert!(h.state.is_due(h.moment()));
    }
    assert_eq!(h.sweep(2).postponed, 1);
    assert!(!h.state.is_due(h.moment()));
    h.finish();
}

#[test]
fn a_returned_task_waits_for_its_run_at() {
    let mut h = shard();
    h.set_clock(10 * HOURS);
    let date = h.wall() - 9 * HOUR;
    let nacked = h.running(dated("a", date));
    let delayed = h.running(dated("b", date));
    let released = h.running(dated("c", date));
    let dead = h.dead(dated("d", date));
    h.set_clock(-10 * HOURS);
    assert_eq!(h.nack(nacked.id, Some(0), None), requeued(0));
    assert_eq!(h.nack(delayed.id, Some(60_000), None), requeued(60_000));
    assert_eq!(h.abandon(released.id, false), requeued(0));
    h.replay(dead.id);
    for id in [nacked.id, delayed.id, released.id, dead.id] {
        assert_eq!(h.get(id).visible_at, Some(date));
    }
    h.pass(60_000);
    assert_eq!(h.sweep(100).promoted, 1, "the delay is over, but not the date");
    assert!(h.claim_any(T).is_none());
    h.pass(HOUR - 60_000);
    assert_eq!(h.sweep(100).promoted, 4);
    h.finish();
}

#[test]
fn a_delay_is_not_a_date() {
    let mut h = shard();
    let made = h.add(late("a", HOUR));
    assert_eq!(made.visible_at, Some(h.wall() + HOUR));
    h.set_clock(3 * HOURS);
    h.add(task("b"));
    assert_eq!(h.get(made.id).visible_at, Some(h.wall() + HOUR), "by the clock as it is set now");
    h.finish();
}

#[test]
fn deadlines_are_shown_in_wall_time() {
    let mut h = shard();
    h.set_clock(-3 * HOURS);
    let wall = h.wall();
    let made = h.add(task("a"));
    assert_eq!((made.created_at, made.updated_at), (wall, wall));
    h.pass(10);
    let taken = h.claim("a").expect("claimed");
    assert_eq!((taken.updated_at, taken.lease_until), (wall + 10, Some(wall + 10 + LEASE)));
    let Reply::Extended { lease_until, .. } = h.heartbeat(taken.id, 2 * LEASE) else {
        panic!("not extended");
    };
    assert_eq!(lease_until, wall + 10 + 2 * LEASE);
    assert_eq!(h.complete(taken.id).completed_at, wall + 10);
    let history = h.reader().history(T, taken.id).expect("reads").expect("exists").entries();
    assert_eq!(
        history.iter().map(|entry| entry.at).collect::<Vec<_>>(),
        [wall, wall + 10, wall + 10]
    );
    // An operator names a date.
    assert_eq!(h.cleanup(T, wall + 10, 10), 0);
    assert_eq!(h.cleanup(T, wall + 11, 10), 1);
    h.finish();
}

fn timers(h: &Harness, kind: TimerKind) -> usize {
    let of = |key| codeq_core::keys::timer_parts(key).0;
    h.kv.rows(Table::Timer).filter(|(key, _)| of(*key) == kind as u8).count()
}
