use codeq_core::command::{Artifact, Command, Delivery, Outcome, ReplayTarget, Submit};
use codeq_core::effect::Effect;
use codeq_core::history::Event;
use codeq_core::limits::BULK_MAX;
use codeq_core::place::Place;
use codeq_core::reply::{Bulk, Enqueued, Rejection, Reply};

use crate::harness::*;

#[test]
fn a_replayed_task_has_fresh_attempts() {
    let mut h = Harness::new();
    let dead = h.dead(hooked("a"));
    let waiting = h.add(task("a"));
    h.pass(5);
    let Reply::Replayed(task) = h.replay(dead.id) else { panic!("not replayed") };
    assert_eq!((task.place, task.attempts, task.max_attempts), (Place::Pending, 0, 1));
    assert_eq!(task.error.as_deref(), Some("boom"), "the last failure is kept");
    assert_eq!(h.result(dead.id), None, "its result is gone");
    assert_eq!(h.callbacks().len(), 0, "and so is its callback");
    let order: Vec<_> = h.claims(&["a"], 9).into_iter().map(|t| (t.id, t.fence)).collect();
    assert_eq!(
        order,
        [(waiting.id, Fence(1)), (dead.id, Fence(2))],
        "at the back, with a higher fence"
    );
    let history = h.reader().history(T, dead.id).unwrap().unwrap().entries();
    let replayed = history.iter().find(|e| e.event == Event::Replayed).expect("recorded");
    assert_eq!(replayed.who.as_deref(), Some("admin"));
    h.complete(dead.id);
    assert_eq!(h.callbacks().len(), 1);
    assert_eq!(h.replay(dead.id), refused(Rejection::Completed));
    h.finish();
}

/// A task that a worker failed, one cancelled while pending, and one cancelled while running.
#[test]
fn failed_and_cancelled_tasks_can_be_replayed() {
    let mut h = Harness::new();
    let failed_one = |h: &mut Harness| {
        let run = h.running(hooked("a"));
        h.submit(run.id, Outcome::Failed(text("broken")));
        run.id
    };
    let unwanted = |h: &mut Harness| {
        let made = h.add(hooked("a"));
        h.cancel(made.id);
        made.id
    };
    let stopped = |h: &mut Harness| {
        let run = h.running(hooked("a"));
        h.cancel(run.id);
        h.abandon(run.id, true);
        run.id
    };
    for id in [failed_one(&mut h), unwanted(&mut h), stopped(&mut h)] {
        let fence = h.get(id).fence;
        assert_eq!(h.get(id).place, Place::Failed);
        let before = h.state.usage(T);
        let Reply::Replayed(task) = h.replay(id) else { panic!("not replayed") };
        assert_eq!((task.place, task.attempts), (Place::Pending, 0));
        assert!(!task.cancel_requested && h.result(id).is_none());
        let now = h.state.usage(T);
        assert_eq!(
            (now.tasks, now.bytes),
            (before.tasks + 1, before.bytes + task.payload.len() as u64)
        );
        assert!(now.stored_bytes < before.stored_bytes, "its result no longer counts");
        assert_eq!(h.replay(id), refused(Rejection::NotFinished));
        let claimed = h.claim("a").expect("it can be claimed");
        assert_eq!((claimed.id, claimed.fence), (id, fence.next()));
        h.submit(id, Outcome::Failed(text("again")));
        assert_eq!(h.result(id).and_then(|record| record.error).as_deref(), Some("again"));
        let history = h.reader().history(T, id).unwrap().unwrap().entries();
        let replays = history.iter().filter(|e| e.event == Event::Replayed).count();
        assert_eq!(replays, 1);
    }
    h.pass(DAY);
    for id in h.callbacks_due() {
        h.callback(id, Delivery::Delivered);
    }
    h.pass(1);
    assert_eq!(h.sweep(10).removed, 3, "retention counts from the second end");
    h.finish();
}

#[test]
fn the_key_of_a_replayed_task_still_names_it() {
    let mut h = Harness::new();
    let made = h.add(keyed("a", "k"));
    h.cancel(made.id);
    h.replay(made.id);
    h.pass(3 * DAY);
    h.sweep(10);
    let again = h.offer(T, keyed("a", "k"));
    assert!(matches!(again, Enqueued::Repeated(task) if task.id == made.id));
    h.finish();
}

#[test]
fn artifacts_of_a_replayed_task_are_released() {
    let mut h = Harness::new();
    let run = h.running(task("a"));
    let artifacts = vec![Artifact { name: text("n"), url: text("u") }];
    let (tenant, worker, outcome) = (text(T), text(W), Outcome::Failed(text("broken")));
    let artifacts_of_it = artifacts.clone();
    h.apply(Command::Submit(Submit { tenant, id: run.id, worker, outcome, artifacts }));
    h.replay(run.id);
    let gone = Effect::ArtifactsGone { id: run.id, artifacts: artifacts_of_it };
    assert!(h.effects.contains(&gone), "{:?}", h.effects);
    h.finish();
}

#[test]
fn retention_does_not_remove_a_replayed_task() {
    let mut h = Harness::new();
    let dead = h.dead(task("a"));
    h.replay(dead.id);
    h.pass(40 * DAY);
    assert_eq!(h.sweep(10).removed, 0);
    assert_eq!(h.claim("a").map(|t| t.id), Some(dead.id));
    h.finish();
}

#[test]
fn only_finished_tasks_of_the_tenant_can_be_replayed() {
    let mut h = Harness::new();
    let dead = h.dead(task("a"));
    let other = h.replay_as("x", ReplayTarget::One(dead.id));
    assert_eq!(other, refused(Rejection::NotFound));
    let waiting = h.add(task("a"));
    assert_eq!(h.replay(waiting.id), refused(Rejection::NotFinished));
    let run = h.running(task("b"));
    assert_eq!(h.replay(run.id), refused(Rejection::NotFinished));
    let target =
        ReplayTarget::Queue { command: text("a"), error_contains: None, after: Seq(0), limit: 10 };
    let none = Bulk { done: 0, remaining: 0, last: Seq(0) };
    assert_eq!(h.replay_as("x", target), Reply::Bulk(none));
    assert_eq!(h.replay_queue("unknown", None, Seq(3), 10), Bulk { last: Seq(3), ..none });
    assert_eq!(h.get(dead.id).place, Place::Dead);
}

#[test]
fn a_queue_a_bounded_number_at_a_time() {
    let mut h = Harness::new();
    let dead: Vec<_> = (0..7).map(|_| h.dead(task("a"))).collect();
    let mut after = Seq(0);
    for (done, remaining, last) in [(3, 4, 2), (3, 1, 5), (1, 0, 6), (0, 0, 6)] {
        let bulk = h.replay_queue("A", None, after, 3);
        assert_eq!((bulk.done, bulk.remaining), (done, remaining));
        assert_eq!(bulk.last, dead[last].id.seq());
        after = bulk.last;
    }
    let order: Vec<_> = h.claims(&["a"], 9).into_iter().map(|t| t.id).collect();
    assert_eq!(order, dead.iter().map(|t| t.id).collect::<Vec<_>>(), "oldest first");
    h.finish();
}

#[test]
fn a_queue_is_replayed_by_filter_and_from_a_position() {
    let mut h = Harness::new();
    let mut dead = Vec::new();
    for error in ["timeout a", "other", "timeout b", "other", "timeout c"] {
        let run = h.running(tries("a", 1));
        h.nack(run.id, None, Some(error));
        dead.push(run.id);
    }
    let bulk = h.replay_queue("a", Some("timeout"), Seq(0), 2);
    assert_eq!((bulk.done, bulk.remaining, bulk.last), (2, 3, dead[2].seq()));
    let bulk = h.replay_queue("a", Some("timeout"), bulk.last, 2);
    assert_eq!((bulk.done, bulk.remaining, bulk.last), (1, 2, dead[4].seq()));
    let bulk = h.replay_queue("a", None, dead[1].seq(), 10);
    assert_eq!((bulk.done, bulk.remaining), (1, 1));
    assert_eq!(h.get(dead[1]).place, Place::Dead);
    assert_eq!(h.replay_queue("a", None, Seq::MAX, 10).done, 0);
    assert_eq!(h.replay_queue("a", None, Seq(0), 0).done, 0);
    h.finish();
}

#[test]
fn no_call_does_more_than_its_bound() {
    let mut h = Harness::new();
    h.every = 2_000;
    for _ in 0..BULK_MAX + 1 {
        h.dead(task("a"));
    }
    let bulk = h.replay_queue("a", None, Seq(0), u32::MAX);
    assert_eq!((bulk.done, bulk.remaining), (u64::from(BULK_MAX), 1));
    h.finish();
}
