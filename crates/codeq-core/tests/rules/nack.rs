use codeq_core::place::{Place, Status};
use codeq_core::reply::{Rejection, Reply, Returned};
use codeq_core::settings::Settings;
use codeq_core::task_backoff::{Backoff, Growth};

use crate::harness::*;

fn steady(growth: Growth) -> Settings {
    Settings { backoff: Backoff { growth, base: 5_000, max: 900_000 }, ..Settings::default() }
}

#[test]
fn dead_exactly_at_the_ceiling() {
    for max in [1, 2, 5] {
        let mut h = Harness::new();
        let made = h.add(tries("a", max));
        for execution in 1..=max {
            let run = h.claim("a").expect("claimable");
            assert_eq!(run.attempts, execution - 1, "a claim costs nothing");
            let reply = h.nack(made.id, Some(0), Some("boom"));
            if execution < max {
                assert_eq!(reply, requeued(0));
            } else {
                assert_eq!(reply, Reply::Returned(Returned::Dead));
            }
            assert_eq!(h.get(made.id).attempts, execution);
        }
        let dead = h.get(made.id);
        assert_eq!((dead.place, dead.place.status()), (Place::Dead, Status::Failed));
        assert_eq!((dead.place.location(), dead.error.as_deref()), ("DLQ_SET", Some("boom")));
        let record = h.result(made.id).expect("a result");
        assert_eq!((record.status, record.error.as_deref()), (Status::Failed, Some("boom")));
        assert_eq!(h.claim("a"), None);
        h.finish();
    }
}

#[test]
fn the_error_of_a_dead_letter_is_the_last_one_or_says_why() {
    let mut h = Harness::new();
    let silent = h.running(tries("a", 1));
    h.nack(silent.id, None, None);
    assert_eq!(h.result(silent.id).and_then(|r| r.error).as_deref(), Some("MAX_ATTEMPTS"));
    let spoken = h.running(tries("a", 2));
    h.nack(spoken.id, Some(0), Some("first"));
    h.claim("a");
    assert_eq!(h.get(spoken.id).error.as_deref(), Some("first"), "kept across retries");
    h.nack(spoken.id, Some(0), Some(""));
    assert_eq!(h.result(spoken.id).and_then(|r| r.error).as_deref(), Some("first"));
    let expired = h.running(tries("a", 2));
    h.nack(expired.id, Some(0), Some("first"));
    h.claim("a");
    h.pass(LEASE + 1);
    h.sweep(10);
    assert_eq!(h.result(expired.id).and_then(|r| r.error).as_deref(), Some("LEASE_EXPIRED"));
    h.finish();
}

#[test]
fn a_given_delay_is_used_as_given_up_to_the_maximum() {
    let mut h = Harness::with(steady(Growth::Exponential));
    let run = h.running(tries("a", 100));
    for (given, used) in
        [(0, 0), (1, 1), (900_000, 900_000), (900_001, 900_000), (u64::MAX, 900_000)]
    {
        assert_eq!(h.nack(run.id, Some(given), None), requeued(used));
        let back = h.get(run.id);
        if used == 0 {
            assert_eq!((back.place, back.visible_at), (Place::Pending, None));
        } else {
            assert_eq!((back.place, back.visible_at), (Place::Delayed, Some(h.now + used)));
            h.pass(used - 1);
            assert_eq!(h.claim("a"), None, "never early");
            h.pass(1);
        }
        assert!(h.claim("a").is_some());
    }
    h.finish();
}

#[test]
fn no_delay_means_the_policy() {
    for (growth, pauses) in [
        (Growth::Fixed, [5_000, 5_000, 5_000]),
        (Growth::Linear, [5_000, 10_000, 15_000]),
        (Growth::Exponential, [5_000, 10_000, 20_000]),
    ] {
        let mut h = Harness::with(steady(growth));
        let run = h.running(task("a"));
        for pause in pauses {
            assert_eq!(h.nack(run.id, None, None), requeued(pause), "{growth:?}");
            h.pass(pause);
            assert!(h.claim("a").is_some());
        }
    }
    let mut h = Harness::new();
    let run = h.running(task("a"));
    let reply = h.nack(run.id, None, None);
    assert!(matches!(reply, Reply::Returned(Returned::Requeued { delay }) if delay <= 5_000));
}

#[test]
fn a_requeue_goes_to_the_back_of_its_priority() {
    let mut h = Harness::new();
    let first = h.running(urgent("a", 3));
    let second = h.add(urgent("a", 3));
    let low = h.add(task("a"));
    h.nack(first.id, Some(0), None);
    let order: Vec<_> = h.claims(&["a"], 9).into_iter().map(|t| t.id).collect();
    assert_eq!(order, [second.id, first.id, low.id]);
}

#[test]
fn checks_in_order() {
    let mut h = Harness::new();
    let waiting = h.add(task("b"));
    let run = h.running(task("a"));
    assert_eq!(h.nack_as("x", W, run.id, None), refused(Rejection::NotFound));
    assert_eq!(h.nack_as(T, "x", waiting.id, None), refused(Rejection::NotInProgress));
    assert_eq!(h.nack_as(T, "x", run.id, None), refused(Rejection::NotOwner));
    h.pass(LEASE);
    assert!(matches!(h.nack(run.id, Some(0), None), Reply::Returned(_)), "the last moment");
    assert_eq!(h.nack(run.id, Some(0), None), refused(Rejection::NotInProgress));
    h.claim("a");
    h.pass(LEASE + 1);
    assert_eq!(h.nack(run.id, Some(0), None), refused(Rejection::NotInProgress));
    assert_eq!(h.get(run.id).attempts, 2, "ended once, not twice");
    h.finish();
}
