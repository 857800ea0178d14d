use codeq_core::command::Delivery;
use codeq_core::limits::BULK_MAX;
use codeq_core::place::Place;

use crate::harness::*;

#[test]
fn removes_what_finished_before() {
    let mut h = Harness::new();
    let done = h.done(task("a"));
    let dead = h.dead(task("b"));
    let cancelled = h.add(task("c"));
    h.cancel(cancelled.id);
    let moment = h.now;
    h.pass(10);
    let later = h.done(task("a"));
    let live = h.add(task("a"));
    let delayed = h.add(late("a", 10));
    let run = h.running(task("d"));
    h.pass(HOUR);
    assert_eq!(h.cleanup(T, moment, 100), 0, "before, not at");
    assert_eq!(h.cleanup(T, moment + 1, 100), 3);
    for id in [done.id, dead.id, cancelled.id] {
        assert_eq!(h.find(T, id), None);
    }
    for id in [later.id, live.id, delayed.id, run.id] {
        assert!(h.find(T, id).is_some());
    }
    assert_eq!(h.cleanup(T, u64::MAX, 100), 1, "live tasks are never removed");
    h.finish();
}

#[test]
fn own_tenant_only_and_bounded() {
    let mut h = Harness::new();
    for _ in 0..4 {
        h.done(task("a"));
    }
    h.pass(1);
    assert_eq!(h.cleanup("x", h.now, 100), 0);
    assert_eq!(h.cleanup(T, h.now, 0), 0);
    assert_eq!(h.cleanup(T, h.now, 3), 3);
    assert_eq!(h.cleanup(T, h.now, 3), 1);
    assert!(h.stats("a").is_none());
    h.every = 4_000;
    for _ in 0..BULK_MAX + 1 {
        h.done(task("a"));
    }
    h.pass(1);
    assert_eq!(h.cleanup(T, h.now, u32::MAX), u64::from(BULK_MAX));
    h.finish();
}

#[test]
fn a_callback_that_is_still_due_keeps_its_task() {
    let mut h = Harness::new();
    let called = h.done(hooked("a"));
    let plain = h.done(task("a"));
    h.pass(1);
    assert_eq!(h.cleanup(T, h.now, 1), 1, "it does not block the others");
    assert_eq!(h.find(T, plain.id), None);
    assert_eq!(h.get(called.id).place, Place::Completed);
    h.callback(called.id, Delivery::Delivered);
    assert_eq!(h.cleanup(T, h.now, 1), 1);
    h.finish();
}

#[test]
fn a_task_that_finished_late_does_not_hide_later_ones() {
    let mut h = Harness::new();
    let slow = h.running(task("a"));
    h.pass(10);
    let quick = h.done(task("a"));
    h.pass(10);
    h.complete(slow.id);
    assert_eq!(h.cleanup(T, h.now, 10), 1);
    assert_eq!((h.find(T, quick.id), h.get(slow.id).place), (None, Place::Completed));
    h.finish();
}
