use codeq_core::command::{Delivery, PurgeTarget};
use codeq_core::kv::Table;
use codeq_core::place::Place;

use crate::harness::*;

#[test]
fn dead_letters_are_removed() {
    let mut h = Harness::new();
    let dead: Vec<_> = (0..3).map(|_| h.dead(task("a"))).collect();
    let done = h.done(task("a"));
    let waiting = h.add(task("a"));
    let bulk = h.purge_as(T, "a", PurgeTarget::Dead, 2);
    assert_eq!((bulk.done, bulk.remaining), (2, 1));
    assert_eq!(h.find(T, dead[0].id), None);
    let bulk = h.purge_as(T, "A", PurgeTarget::Dead, 2);
    assert_eq!((bulk.done, bulk.remaining), (1, 0));
    assert_eq!(h.get(done.id).place, Place::Completed);
    assert_eq!(h.get(waiting.id).place, Place::Pending);
    h.finish();
}

#[test]
fn waiting_tasks_end_as_cancelled() {
    let mut h = Harness::new();
    let run = h.running(task("a"));
    let pending = h.add(hooked("a"));
    let delayed = h.add(late("a", HOUR));
    let bulk = h.purge_as(T, "a", PurgeTarget::Waiting, 1);
    assert_eq!((bulk.done, bulk.remaining), (1, 1));
    let bulk = h.purge_as(T, "a", PurgeTarget::Waiting, 100);
    assert_eq!((bulk.done, bulk.remaining), (1, 0));
    for id in [pending.id, delayed.id] {
        let task = h.get(id);
        assert_eq!((task.place, task.error.as_deref()), (Place::Failed, Some("CANCELLED")));
        let history = h.reader().history(T, id).unwrap().unwrap().entries();
        let last = history.last().expect("recorded");
        assert_eq!((last.who.as_deref(), last.why.as_deref()), (Some("admin"), Some("purge")));
    }
    assert_eq!(h.callbacks_due(), [pending.id]);
    assert_eq!(h.get(run.id).place, Place::InProgress, "running tasks go on");
    h.finish();
}

#[test]
fn a_callback_that_is_still_due_keeps_its_dead_letter() {
    let mut h = Harness::new();
    let dead = h.dead(hooked("a"));
    let plain = h.dead(task("a"));
    let bulk = h.purge_as(T, "a", PurgeTarget::Dead, 1);
    assert_eq!((bulk.done, bulk.remaining), (1, 1), "it does not block the others");
    assert_eq!(h.find(T, plain.id), None);
    assert_eq!(h.callbacks_due(), [dead.id], "never forgotten");
    h.callback(dead.id, Delivery::Delivered);
    assert_eq!(h.purge_as(T, "a", PurgeTarget::Dead, 1).remaining, 0);
    assert_eq!(h.rows(Table::Task), 0);
    h.finish();
}

#[test]
fn another_tenants_queue_is_not_there() {
    let mut h = Harness::new();
    let dead = h.dead(task("a"));
    let waiting = h.add(task("a"));
    for target in [PurgeTarget::Dead, PurgeTarget::Waiting] {
        let bulk = h.purge_as("x", "a", target, 10);
        assert_eq!((bulk.done, bulk.remaining, bulk.last), (0, 0, Seq(0)));
    }
    assert_eq!(h.get(dead.id).place, Place::Dead);
    assert_eq!(h.get(waiting.id).place, Place::Pending);
}
