use codeq_core::limits::SWEEP_MAX;
use codeq_core::place::Place;
use codeq_core::reply::Swept;
use codeq_core::settings::Settings;

use crate::harness::*;

#[test]
fn a_lease_is_live_to_its_last_millisecond() {
    let mut h = Harness::new();
    let run = h.running(task("a"));
    assert_eq!(h.state.next_deadline(), Some(h.now + LEASE + 1));
    h.pass(LEASE);
    assert_eq!(h.sweep(10), Swept::default());
    assert_eq!(h.get(run.id).place, Place::InProgress);
    h.pass(1);
    assert_eq!(h.sweep(10).expired, 1);
    let back = h.get(run.id);
    assert_eq!((back.attempts, back.error.as_deref()), (1, Some("LEASE_EXPIRED")));
    h.finish();
}

#[test]
fn expiry_spends_attempts_up_to_the_ceiling() {
    let mut h = Harness::new();
    let made = h.add(tries("a", 3));
    for execution in 1..=3 {
        h.pass(HOUR);
        assert_eq!(h.claim("a").map(|t| t.id), Some(made.id));
        h.pass(LEASE + 1);
        assert_eq!(h.sweep(10).expired, 1);
        assert_eq!(h.get(made.id).attempts, execution);
    }
    assert_eq!(h.get(made.id).place, Place::Dead);
    h.finish();
}

#[test]
fn due_tasks_become_pending_in_order_of_due_time() {
    let mut h = Harness::new();
    let third = h.add(late("a", 30));
    let first = h.add(late("a", 10));
    let second = h.add(late("a", 20));
    h.pass(30);
    assert_eq!(h.sweep(10).promoted, 3);
    let order: Vec<_> = h.claims(&["a"], 9).into_iter().map(|t| t.id).collect();
    assert_eq!(order, [first.id, second.id, third.id]);
}

#[test]
fn work_is_bounded_and_resumed() {
    let settings =
        Settings { retention: LEASE, dead_letter_retention: LEASE, ..Settings::default() };
    let mut h = Harness::with(settings);
    for _ in 0..3 {
        h.done(task("done"));
        h.running(tries("run", 1));
    }
    for _ in 0..3 {
        h.add(late("late", LEASE));
    }
    h.pass(LEASE + 1);
    let sweeps: Vec<_> =
        (0..5).map(|_| h.sweep(2)).map(|s| (s.expired, s.promoted, s.removed)).collect();
    assert_eq!(sweeps, [(2, 0, 0), (1, 1, 0), (0, 2, 0), (0, 0, 2), (0, 0, 1)]);
    assert_eq!(h.sweep(0), Swept::default());
    assert_eq!(h.state.next_deadline(), Some(h.now + LEASE), "the dead letters are next");
    h.finish();
}

#[test]
fn no_sweep_does_more_than_its_bound() {
    let mut h = Harness::new();
    h.every = 1_000;
    for _ in 0..SWEEP_MAX + 1 {
        h.add(late("a", 10));
    }
    h.pass(10);
    assert_eq!(h.sweep(u32::MAX).promoted, SWEEP_MAX);
    assert_eq!(h.sweep(u32::MAX).promoted, 1);
    h.finish();
}

#[test]
fn the_next_deadline_ignores_cancelled_tasks() {
    let mut h = Harness::new();
    let soon = h.add(late("a", 10));
    h.add(late("a", 50));
    let run = h.running(task("b"));
    h.cancel(soon.id);
    assert_eq!(h.state.next_deadline(), Some(h.now + 50));
    h.heartbeat(run.id, 20_000);
    h.pass(10);
    let before = h.digest();
    assert_eq!(h.sweep(10), Swept::default());
    assert_eq!(h.digest(), before);
    h.finish();
}

#[test]
fn time_never_runs_backwards() {
    let mut h = Harness::new();
    let made = h.add(task("a"));
    let moment = h.now;
    h.now -= 5_000;
    let taken = h.claim("a").expect("one");
    // The wall clock was set back by as much: the lease keeps its full length, and shows it.
    assert_eq!((taken.updated_at, taken.lease_until), (h.now, Some(h.now + LEASE)));
    assert_eq!((h.state.now(), made.created_at), (moment, moment));
}

#[test]
fn the_end_of_time_does_not_overflow() {
    let mut h = Harness::new();
    h.now = u64::MAX - 10;
    let run = h.running(hooked("a"));
    assert_eq!(run.lease_until, Some(u64::MAX));
    h.heartbeat(run.id, LEASE);
    h.nack(run.id, Some(0), None);
    h.claim("a");
    h.complete(run.id);
    h.cleanup(T, u64::MAX, 10);
    assert_eq!(h.sweep(10).expired, 0);
}
