use bytes::Bytes;
use codeq_core::command::Outcome;
use codeq_core::history::Event;
use codeq_core::place::Place;
use codeq_core::reply::{Rejection, Reply, Returned};

use crate::harness::*;

#[test]
fn a_waiting_task_ends_at_once() {
    let mut h = Harness::new();
    for new in [hooked("a"), late("a", 9_000)] {
        let made = h.add(new);
        let Reply::Cancelled(task) = h.cancel(made.id) else { panic!("not cancelled") };
        assert_eq!((task.place, task.error.as_deref()), (Place::Failed, Some("CANCELLED")));
        assert_eq!((task.visible_at, *task), (None, h.get(made.id)));
        assert_eq!(h.result(made.id).and_then(|r| r.error).as_deref(), Some("CANCELLED"));
        assert_eq!(h.cancel(made.id), refused(Rejection::Finished));
        h.pass(HOUR);
        assert_eq!(h.claim("a"), None);
    }
    h.finish();
}

#[test]
fn the_worker_of_a_running_task_is_asked_to_stop_once() {
    let mut h = Harness::new();
    let run = h.running(task("a"));
    h.pass(1);
    let Reply::CancelRequested(task) = h.cancel(run.id) else { panic!("not requested") };
    assert!(task.cancel_requested && task.place == Place::InProgress);
    assert_eq!(task.updated_at, run.updated_at, "its worker was not heard of");
    h.pass(1);
    let before = h.digest();
    assert!(matches!(h.cancel(run.id), Reply::CancelRequested(_)));
    assert_eq!(h.digest(), before, "a second request changes nothing");
    let history = h.reader().history(T, run.id).unwrap().unwrap().entries();
    assert_eq!(history.iter().filter(|e| e.event == Event::CancelRequested).count(), 1);
    h.finish();
}

#[test]
fn a_requested_cancel_ends_the_task_whatever_its_worker_does() {
    type Act = fn(&mut Harness, codeq_core::id::TaskId) -> Reply;
    let acts: [(Act, Reply); 4] = [
        (|h, id| h.nack(id, Some(0), Some("x")), Reply::Returned(Returned::Cancelled)),
        (|h, id| h.abandon(id, true), Reply::Returned(Returned::Cancelled)),
        (|h, id| h.abandon(id, false), Reply::Returned(Returned::Cancelled)),
        (
            |h, id| {
                h.pass(LEASE + 1);
                h.heartbeat(id, LEASE)
            },
            refused(Rejection::NotInProgress),
        ),
    ];
    for (act, reply) in acts {
        let mut h = Harness::new();
        let run = h.running(hooked("a"));
        h.cancel(run.id);
        assert_eq!(act(&mut h, run.id), reply);
        let task = h.get(run.id);
        assert_eq!((task.place, task.error.as_deref()), (Place::Failed, Some("CANCELLED")));
        assert_eq!(h.callbacks().len(), 1, "its producer is notified");
        h.pass(HOUR);
        assert_eq!(h.claim("a"), None);
        h.finish();
    }
}

#[test]
fn a_result_is_not_thrown_away() {
    let mut h = Harness::new();
    let run = h.running(task("a"));
    h.cancel(run.id);
    let reply = h.submit(run.id, Outcome::Completed(Bytes::from_static(b"{}")));
    assert!(matches!(reply, Reply::Submitted(_)));
    assert_eq!(h.get(run.id).place, Place::Completed);
    h.finish();
}

#[test]
fn a_task_whose_lease_is_over_is_waiting() {
    let mut h = Harness::new();
    let run = h.running(task("a"));
    h.pass(LEASE + 1);
    assert!(matches!(h.cancel(run.id), Reply::Cancelled(_)));
    let last = h.running(tries("a", 1));
    h.pass(LEASE + 1);
    assert_eq!(h.cancel(last.id), refused(Rejection::Finished));
    assert_eq!(h.get(last.id).place, Place::Dead);
    h.finish();
}

#[test]
fn a_finished_task_cannot_be_cancelled() {
    let mut h = Harness::new();
    let done = h.done(task("a"));
    let dead = h.dead(task("a"));
    for id in [done.id, dead.id] {
        assert_eq!(h.cancel(id), refused(Rejection::Finished));
        assert_eq!(h.cancel_as("x", id), refused(Rejection::NotFound));
    }
    h.finish();
}
