//! Worker commands that name the lease they act under.

use bytes::Bytes;
use codeq_core::command::*;
use codeq_core::id::TaskId;
use codeq_core::place::Place;
use codeq_core::reply::{Rejection, Reply};

use crate::harness::*;

/// One action of each kind, by the harness's worker.
fn actions(id: TaskId) -> [LeaseAction; 4] {
    let (t, w) = (|| text(T), || text(W));
    [
        LeaseAction::Heartbeat(Heartbeat { tenant: t(), id, worker: w(), extend: LEASE }),
        LeaseAction::Submit(Submit {
            tenant: t(),
            id,
            worker: w(),
            outcome: Outcome::Completed(Bytes::from_static(b"{}")),
            artifacts: Vec::new(),
        }),
        LeaseAction::Nack(Nack {
            tenant: t(),
            id,
            worker: w(),
            delay: Some(0),
            reason: None,
            seed: 1,
        }),
        LeaseAction::Abandon(Abandon { tenant: t(), id, worker: w(), penalty: true, fence: None }),
    ]
}

fn under(action: LeaseAction, fence: Option<Fence>, instance: Option<&str>) -> Command {
    let (instance, action) = (instance.map(text), Box::new(action));
    Command::UnderLease(UnderLease { fence, instance, action })
}

#[test]
fn an_earlier_claim_of_the_same_worker_is_lost() {
    for at in 0..4 {
        let mut h = Harness::new();
        let run = h.running(task("a"));
        h.pass(LEASE + 1);
        h.sweep(10);
        h.pass(HOUR);
        let again = h.claim("a").expect("the same task");
        assert_eq!((again.id, run.fence, again.fence), (run.id, Fence(1), Fence(2)));
        let action = || actions(run.id)[at].clone();
        for stale in [1, 3, 0].map(Fence) {
            let reply = h.apply(under(action(), Some(stale), None));
            assert_eq!(reply, refused(Rejection::LeaseLost), "{:?}", action());
        }
        assert_eq!(h.get(run.id).place, Place::InProgress);
        let reply = h.apply(under(action(), Some(Fence(2)), None));
        assert!(!matches!(reply, Reply::Rejected(_)), "{reply:?}");
        h.finish();
    }
}

#[test]
fn checks_in_order() {
    let mut h = Harness::new();
    let run = h.running(task("a"));
    for action in actions(TaskId::new(Seq(999), 1)) {
        assert_eq!(h.apply(under(action, Some(Fence(1)), None)), refused(Rejection::NotFound));
    }
    h.pass(LEASE + 1);
    h.sweep(10);
    for action in actions(run.id) {
        // The claim is the latest one, but its lease is over.
        assert_eq!(h.apply(under(action, Some(Fence(1)), None)), refused(Rejection::NotInProgress));
    }
    h.pass(HOUR);
    h.claim_as(T, "other", Selector::Any, 1);
    for action in actions(run.id) {
        assert_eq!(
            h.apply(under(action.clone(), Some(Fence(1)), None)),
            refused(Rejection::LeaseLost)
        );
        assert_eq!(h.apply(under(action, Some(Fence(2)), None)), refused(Rejection::NotOwner));
    }
    h.finish();
}

#[test]
fn an_instance_counts_only_against_a_lease_that_has_one() {
    for at in 0..4 {
        let mut h = Harness::new();
        // Claimed without an instance: an instance named later is accepted.
        let plain = h.running(task("a"));
        let reply = h.apply(under(actions(plain.id)[at].clone(), None, Some("worker/x")));
        assert!(!matches!(reply, Reply::Rejected(_)), "{reply:?}");
        // Claimed by an instance: no other instance has it, nor does the worker without one.
        h.add(task("b"));
        let from = Selector::Commands(vec![text("b")]);
        let Reply::Claimed(tasks) = h.claim_as(T, "worker/a", from, 1) else { panic!() };
        let action = || actions(tasks[0].id)[at].clone();
        for other in [None, Some("worker/b")] {
            assert_eq!(
                h.apply(under(action(), Some(Fence(1)), other)),
                refused(Rejection::NotOwner)
            );
        }
        assert_eq!(h.apply(action().into()), refused(Rejection::NotOwner));
        let reply = h.apply(under(action(), None, Some("worker/a")));
        assert!(!matches!(reply, Reply::Rejected(_)), "{reply:?}");
        h.finish();
    }
}

#[test]
fn a_repeated_submit_is_known_by_its_claim_and_instance() {
    let mut h = Harness::new();
    h.add(task("b"));
    let Reply::Claimed(tasks) = h.claim_as(T, "worker/a", Selector::Any, 1) else { panic!() };
    let submit = || actions(tasks[0].id)[1].clone();
    let first = h.apply(under(submit(), Some(Fence(1)), Some("worker/a")));
    assert!(matches!(first, Reply::Submitted(_)), "{first:?}");
    for fence in [None, Some(Fence(1))] {
        assert_eq!(h.apply(under(submit(), fence, Some("worker/a"))), first);
        for other in [None, Some("worker/b")] {
            let reply = h.apply(under(submit(), fence, other));
            assert_eq!(reply, refused(Rejection::NotInProgress));
        }
    }
    let stale = h.apply(under(submit(), Some(Fence(2)), Some("worker/a")));
    assert_eq!(stale, refused(Rejection::LeaseLost));
    h.finish();
}
