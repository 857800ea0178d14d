//! The maximum run time of an attempt.

use codeq_core::command::*;
use codeq_core::history::Event;
use codeq_core::limits::{LEASE_MS_MAX, MAX_RUN_MS_MAX, MAX_RUN_MS_MIN};
use codeq_core::place::Place;
use codeq_core::reply::{Rejection, Reply, Returned};
use codeq_core::topic::Policy;

use crate::harness::*;

const MINUTE: Millis = 60_000;

fn limited(command: &str, max_run: Millis) -> NewTask {
    NewTask { max_run: Some(max_run), ..task(command) }
}

fn limit_queue(h: &mut Harness, max_run: Millis) {
    h.put_topic("a", Policy { max_run, ..Policy::default() });
}

#[test]
fn no_lease_outlives_the_maximum_run_time() {
    let mut h = Harness::new();
    let run = h.running(limited("a", MINUTE));
    let end = h.now + MINUTE;
    assert_eq!((run.lease_until, run.run_until), (Some(h.now + LEASE), Some(end)));
    assert_eq!(run.max_run, Some(MINUTE));
    let extended = |lease_until| Reply::Extended { lease_until, cancel_requested: false };
    h.pass(LEASE);
    assert_eq!(h.heartbeat(run.id, LEASE - 1), extended(end - 1));
    assert_eq!(h.heartbeat(run.id, LEASE + 1), extended(end));
    h.reload();
    assert_eq!(h.heartbeat(run.id, LEASE_MS_MAX), extended(end), "also after a restart");
    h.pass(MINUTE - LEASE);
    assert_eq!(h.heartbeat(run.id, LEASE_MS_MAX), extended(end), "the last moment is inside");
    assert_eq!(h.sweep(10).expired, 0);
    h.pass(1);
    assert_eq!(h.sweep(10).expired, 1);
    // A claim's lease, too.
    let run = h.running(limited("b", LEASE - 1));
    assert_eq!((run.lease_until, run.run_until), (Some(h.now + LEASE - 1), run.lease_until));
    h.finish();
}

#[test]
fn reaching_the_maximum_is_a_failed_attempt() {
    let mut h = Harness::new();
    let run = h.running(NewTask { max_attempts: Some(2), ..limited("a", 90_500) });
    h.heartbeat(run.id, LEASE_MS_MAX);
    for beats in 1..=2u64 {
        h.pass(45_250);
        let alive = h.heartbeat(run.id, LEASE_MS_MAX);
        assert!(matches!(alive, Reply::Extended { .. }), "heartbeat {beats}: {alive:?}");
    }
    h.pass(1);
    assert_eq!(h.heartbeat(run.id, LEASE), refused(Rejection::NotInProgress));
    let back = h.get(run.id);
    assert_eq!((back.attempts, back.error.as_deref()), (1, Some("TIMED_OUT")));
    assert_eq!((back.place, back.run_until), (Place::Delayed, None));
    assert!(back.visible_at > Some(h.now), "with backoff");
    // The last attempt.
    h.pass(HOUR);
    let again = h.claim("a").expect("the same task");
    assert_eq!(again.run_until, Some(h.now + 90_500), "the clock starts at the claim");
    h.heartbeat(run.id, LEASE_MS_MAX);
    h.pass(90_501);
    assert_eq!(h.sweep(10).expired, 1);
    let dead = h.get(run.id);
    assert_eq!((dead.place, dead.error.as_deref()), (Place::Dead, Some("TIMED_OUT")));
    assert_eq!((dead.run_until, dead.max_run), (None, Some(90_500)));
    assert_eq!(h.result(run.id).and_then(|record| record.error).as_deref(), Some("TIMED_OUT"));
    // The history has an entry for each of the two attempts, with how long it ran, and no others of this kind.
    let history = h.reader().history(T, run.id).unwrap().unwrap();
    let timeouts: Vec<_> = history
        .entries()
        .into_iter()
        .filter(|entry| entry.event == Event::TimedOut)
        .map(|entry| (entry.to, entry.who, entry.why.as_deref().map(str::to_owned)))
        .collect();
    let ran = || Some("ran for 90.5s".to_owned());
    assert_eq!(timeouts, [(Place::Delayed, None, ran()), (Place::Dead, None, ran())]);
    h.finish();
}

#[test]
fn the_worker_is_refused_afterwards_as_after_any_lost_lease() {
    let mut h = Harness::new();
    let run = h.running(limited("a", MINUTE));
    h.heartbeat(run.id, LEASE_MS_MAX);
    h.pass(MINUTE + 1);
    let nack = |fence| {
        let (tenant, worker) = (text(T), text(W));
        let nack = Nack { tenant, id: run.id, worker, delay: None, reason: None, seed: 1 };
        let action = Box::new(LeaseAction::Nack(nack));
        Command::UnderLease(UnderLease { fence: Some(fence), instance: None, action })
    };
    assert_eq!(h.apply(nack(run.fence)), refused(Rejection::NotInProgress));
    assert_eq!(h.heartbeat(run.id, LEASE), refused(Rejection::NotInProgress));
    h.pass(HOUR);
    h.claim("a").expect("the same task");
    assert_eq!(h.apply(nack(run.fence)), refused(Rejection::LeaseLost));
    h.finish();
}

#[test]
fn a_lease_without_heartbeats_still_expires_before_it() {
    let mut h = Harness::new();
    let run = h.running(limited("a", MINUTE));
    // Noticed late: the lease ended long before the limit.
    h.pass(HOUR);
    h.sweep(10);
    assert_eq!(h.get(run.id).error.as_deref(), Some("LEASE_EXPIRED"));
    h.finish();
}

#[test]
fn the_tasks_own_limit_wins_over_its_queues() {
    let mut h = Harness::new();
    let waiting = h.add(task("a"));
    limit_queue(&mut h, MINUTE);
    let run = h.claim("a").expect("a task");
    let end = h.now + MINUTE;
    assert_eq!((run.id, run.run_until, run.max_run), (waiting.id, Some(end), None));
    // Decided at the claim: a later change is for later claims.
    limit_queue(&mut h, 2 * MINUTE);
    assert_eq!(h.get(run.id).run_until, Some(end));
    h.nack(run.id, Some(0), None);
    assert_eq!(h.claim("a").and_then(|run| run.run_until), Some(h.now + 2 * MINUTE));
    for own in [MAX_RUN_MS_MIN, HOUR] {
        let run = h.running(limited("a", own));
        assert_eq!((run.run_until, run.max_run), (Some(h.now + own), Some(own)));
    }
    assert_eq!(h.running(limited("a", 0)).run_until, Some(h.now + 2 * MINUTE), "0 is not set");
    h.delete_topic(T, "a");
    assert_eq!(h.running(task("a")).run_until, None);
    h.finish();
}

#[test]
fn a_replayed_task_keeps_its_maximum() {
    let mut h = Harness::new();
    let dead = h.dead(limited("a", MINUTE));
    h.replay(dead.id);
    assert_eq!(h.claim("a").and_then(|run| run.run_until), Some(h.now + MINUTE));
    h.finish();
}

#[test]
fn a_task_that_should_stop_is_cancelled_by_it() {
    let mut h = Harness::new();
    let run = h.running(limited("a", MINUTE));
    h.heartbeat(run.id, LEASE_MS_MAX);
    h.cancel(run.id);
    assert_eq!(h.get(run.id).run_until, Some(h.now + MINUTE));
    h.pass(MINUTE + 1);
    h.sweep(10);
    let ended = h.get(run.id);
    assert_eq!((ended.place, ended.error.as_deref()), (Place::Failed, Some("CANCELLED")));
    h.finish();
}

#[test]
fn engine_time_decides() {
    let mut h = Harness::new();
    h.pass(100 * HOUR);
    let run = h.running(limited("a", MINUTE));
    h.heartbeat(run.id, LEASE_MS_MAX);
    h.set_clock(10 * HOUR as i64);
    assert_eq!(h.sweep(10).expired, 0, "a clock that is set ahead ends nothing");
    let beat = h.heartbeat(run.id, LEASE_MS_MAX);
    let lease_until = h.wall() + MINUTE;
    assert_eq!(beat, Reply::Extended { lease_until, cancel_requested: false });
    h.set_clock(-20 * HOUR as i64);
    h.pass(MINUTE + 1);
    assert_eq!(h.sweep(10).expired, 1, "and one that is set back extends nothing");
    h.finish();
}

#[test]
fn values_out_of_range_are_refused() {
    let mut h = Harness::new();
    let (min, max) = (MAX_RUN_MS_MIN, MAX_RUN_MS_MAX);
    for bad in [1, min - 1, max + 1, u64::MAX] {
        assert_eq!(h.refuse(limited("a", bad)), Rejection::InvalidMaxRun { min, max });
        let reply = h.put_topic_as(T, "a", Policy { max_run: bad, ..Policy::default() });
        let field = "maxRunSeconds".into();
        assert_eq!(reply, refused(Rejection::InvalidTopic { field }));
    }
    for fine in [min, max] {
        h.add(limited("a", fine));
        limit_queue(&mut h, fine);
    }
    let dead = h.dead(limited("b", max));
    assert_eq!(dead.max_run, Some(max));
    let run = h.running(tries("b", 1));
    assert_eq!(h.nack(run.id, None, None), Reply::Returned(Returned::Dead));
    h.finish();
}
