use codeq_core::limits::{LEASE_MS_MAX, LEASE_MS_MIN};
use codeq_core::place::Place;
use codeq_core::reply::{Rejection, Reply};

use crate::harness::*;

#[test]
fn sets_the_end_to_now_and_the_extension() {
    let mut h = Harness::new();
    let run = h.running(task("a"));
    h.pass(LEASE);
    let extended = Reply::Extended { lease_until: h.now + 2_000, cancel_requested: false };
    assert_eq!(h.heartbeat(run.id, 2_000), extended, "the last moment is still inside");
    assert_eq!(h.get(run.id).lease_until, Some(h.now + 2_000));
    h.reload();
    h.pass(2_000);
    assert_eq!(h.sweep(10).expired, 0, "the extension survives a restart");
    h.pass(1);
    assert_eq!(h.sweep(10).expired, 1);
    h.finish();
}

#[test]
fn a_lease_that_ended_is_not_extended() {
    let mut h = Harness::new();
    let run = h.running(task("a"));
    h.pass(LEASE + 1);
    assert_eq!(h.heartbeat(run.id, 2_000), refused(Rejection::NotInProgress));
    let back = h.get(run.id);
    assert_eq!((back.attempts, back.error.as_deref()), (1, Some("LEASE_EXPIRED")));
    assert!(matches!(back.place, Place::Delayed | Place::Pending));
    h.finish();
}

#[test]
fn checks_in_order() {
    let mut h = Harness::new();
    let waiting = h.add(task("b"));
    let run = h.running(task("a"));
    assert_eq!(h.heartbeat_as("x", W, run.id, 0), refused(Rejection::NotFound));
    assert_eq!(h.heartbeat_as(T, "x", waiting.id, 0), refused(Rejection::NotInProgress));
    assert_eq!(h.heartbeat_as(T, "x", run.id, 0), refused(Rejection::NotOwner));
    let (min, max) = (LEASE_MS_MIN, LEASE_MS_MAX);
    for extend in [0, min - 1, max + 1, u64::MAX] {
        assert_eq!(h.heartbeat(run.id, extend), refused(Rejection::InvalidLease { min, max }));
    }
    assert!(matches!(h.heartbeat(run.id, max), Reply::Extended { .. }));
    h.finish();
}

#[test]
fn reports_a_requested_cancel() {
    let mut h = Harness::new();
    let run = h.running(task("a"));
    h.cancel(run.id);
    let reply = h.heartbeat(run.id, 2_000);
    assert!(matches!(reply, Reply::Extended { cancel_requested: true, .. }));
}
