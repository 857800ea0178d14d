use codeq_core::command::{Abandon, Command};
use codeq_core::history::Event;
use codeq_core::place::Place;
use codeq_core::reply::{Rejection, Reply, Returned};

use crate::harness::*;

#[test]
fn costs_an_attempt_and_is_claimable_at_once() {
    let mut h = Harness::new();
    let run = h.running(tries("a", 2));
    assert_eq!(h.abandon(run.id, true), requeued(0));
    let back = h.get(run.id);
    assert_eq!((back.place, back.attempts, back.worker), (Place::Pending, 1, None));
    assert!(h.claim("a").is_some());
    assert_eq!(h.abandon(run.id, true), Reply::Returned(Returned::Dead));
    assert_eq!(h.result(run.id).and_then(|r| r.error).as_deref(), Some("MAX_ATTEMPTS"));
    h.finish();
}

#[test]
fn without_penalty_costs_nothing_however_often() {
    let mut h = Harness::new();
    let run = h.running(tries("a", 1));
    for _ in 0..5 {
        assert_eq!(h.abandon(run.id, false), requeued(0));
        assert_eq!(h.claim("a").map(|t| t.attempts), Some(0));
    }
    let history = h.reader().history(T, run.id).unwrap().unwrap().entries();
    assert_eq!(history.iter().filter(|e| e.event == Event::Released).count(), 5);
    h.finish();
}

#[test]
fn an_abandoned_task_goes_to_the_back_of_its_queue() {
    for penalty in [true, false] {
        let mut h = Harness::new();
        let first = h.running(task("a"));
        let second = h.add(task("a"));
        h.abandon(first.id, penalty);
        let order: Vec<_> = h.claims(&["a"], 9).into_iter().map(|t| t.id).collect();
        assert_eq!(order, [second.id, first.id]);
    }
}

#[test]
fn checks_in_order() {
    let mut h = Harness::new();
    let waiting = h.add(task("b"));
    let run = h.running(task("a"));
    for penalty in [true, false] {
        assert_eq!(h.abandon_as("x", W, run.id, penalty), refused(Rejection::NotFound));
        assert_eq!(h.abandon_as(T, "x", waiting.id, penalty), refused(Rejection::NotInProgress));
        assert_eq!(h.abandon_as(T, "x", run.id, penalty), refused(Rejection::NotOwner));
    }
    h.pass(LEASE + 1);
    assert_eq!(h.abandon(run.id, false), refused(Rejection::NotInProgress));
    assert_eq!(h.get(run.id).attempts, 1, "the lease ended: that costs one");
    h.finish();
}

#[test]
fn a_fence_names_the_lease_that_is_given_back() {
    let mut h = Harness::new();
    let first = h.running(task("a"));
    h.abandon(first.id, false);
    let second = h.claim("a").unwrap();
    assert_eq!((second.id, second.fence), (first.id, first.fence.next()));
    let late = |fence| {
        let (tenant, worker) = (second.tenant.clone(), second.worker.clone().unwrap());
        let fence = Some(fence);
        let abandon = Abandon { tenant, id: first.id, worker, penalty: false, fence };
        Command::Abandon(abandon)
    };
    assert_eq!(h.apply(late(first.fence)), refused(Rejection::LeaseLost));
    assert_eq!(h.get(first.id).place, Place::InProgress);
    let back = Reply::Returned(Returned::Requeued { delay: 0 });
    assert_eq!(h.apply(late(second.fence)), back);
}
