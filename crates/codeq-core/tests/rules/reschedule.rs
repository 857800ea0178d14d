use codeq_core::command::{Command, Pause, RunWhen};
use codeq_core::effect::Effect;
use codeq_core::history::Event;
use codeq_core::limits::DELAY_MS_MAX;
use codeq_core::place::Place;
use codeq_core::reply::Rejection;
use codeq_core::topic::Policy;

use crate::harness::*;

const NOW: Option<RunWhen> = Some(RunWhen::After(0));

fn after(delay: u64) -> Option<RunWhen> {
    Some(RunWhen::After(delay))
}

fn is_ready(h: &Harness) -> bool {
    h.effects.iter().any(|effect| matches!(effect, Effect::Ready { .. }))
}

#[test]
fn a_task_that_waits_for_any_reason_runs_now() {
    let mut h = Harness::new();
    let delayed = h.add(late("a", HOUR)).id;
    let dated = h.add(dated("a", h.wall() + HOUR)).id;
    let retried = h.running(urgent("a", 9)).id;
    h.nack(retried, Some(5_000), None);
    for id in [delayed, dated, retried] {
        assert_eq!(h.claim("a"), None);
        let task = h.reschedule(id, None, NOW);
        assert_eq!((task.place, task.visible_at), (Place::Pending, None));
        assert!(is_ready(&h), "waiting claims are woken");
        let entry = h.reader().history(T, id).unwrap().unwrap().entries().pop().unwrap();
        assert_eq!((entry.event, entry.to), (Event::Rescheduled, Place::Pending));
        assert_eq!((entry.who.as_deref(), entry.why.as_deref()), (Some("admin"), Some("now")));
        assert_eq!(h.claim("a").map(|task| task.id), Some(id));
    }
    h.finish();
}

#[test]
fn a_task_can_be_delayed_and_delayed_again() {
    let mut h = Harness::new();
    let id = h.add(task("a")).id;
    let task = h.reschedule(id, None, after(5_000));
    assert_eq!((task.place, task.visible_at), (Place::Delayed, Some(h.wall() + 5_000)));
    h.pass(4_999);
    assert_eq!(h.claim("a"), None);
    let date = h.wall() + HOUR;
    let task = h.reschedule(id, None, Some(RunWhen::At(date)));
    assert_eq!((task.place, task.visible_at), (Place::Delayed, Some(date)));
    h.pass(HOUR - 1);
    assert_eq!(h.claim("a"), None);
    h.pass(1);
    assert_eq!(h.claim("a").map(|task| task.id), Some(id));
    h.finish();
}

#[test]
fn a_delay_replaces_a_date() {
    let mut h = Harness::new();
    let id = h.add(dated("a", h.wall() + HOUR)).id;
    h.reschedule(id, None, after(1_000));
    h.pass(1_000);
    assert_eq!(h.claim("a").map(|task| task.id), Some(id));
    h.finish();
}

#[test]
fn a_task_goes_to_the_back_of_its_new_priority() {
    let mut h = Harness::new();
    let first = h.add(task("a")).id;
    let urgent: Vec<_> = (0..2).map(|_| h.add(urgent("a", 5)).id).collect();
    let task = h.reschedule(first, Some(5), None);
    assert_eq!((task.priority, h.stats("a").unwrap().counts.pending[5]), (5, 3));
    let order: Vec<_> = h.claims(&["a"], 3).iter().map(|task| task.id).collect();
    assert_eq!(order, [urgent[0], urgent[1], first]);
    h.finish();
}

#[test]
fn a_delayed_task_gets_its_priority_when_it_is_due() {
    let mut h = Harness::new();
    let late = h.add(late("a", 1_000)).id;
    h.add(urgent("a", 5));
    let task = h.reschedule(late, Some(99), None);
    assert_eq!((task.place, task.priority), (Place::Delayed, 9));
    h.pass(1_000);
    assert_eq!(h.claim("a").map(|task| task.id), Some(late));
    h.finish();
}

#[test]
fn the_tiers_of_the_queue_apply() {
    let mut h = Harness::new();
    h.put_topic("a", Policy { priority_tiers: vec![2, 7], ..Policy::default() });
    let id = h.add(task("a")).id;
    assert_eq!(h.reschedule(id, Some(9), None).priority, 7);
    assert_eq!(h.reschedule(id, Some(-5), None).priority, 2);
    h.finish();
}

#[test]
fn a_repeated_call_changes_nothing() {
    let mut h = Harness::new();
    let first = h.add(urgent("a", 3)).id;
    let second = h.add(urgent("a", 3)).id;
    let date = Some(RunWhen::At(h.wall() + HOUR));
    let dated = h.add(task("a")).id;
    h.reschedule(dated, Some(4), date);
    let past = Some(RunWhen::At(h.wall()));
    h.pass(10);
    for (id, priority, when) in
        [(first, Some(3), NOW), (first, None, past), (first, None, None), (dated, Some(4), date)]
    {
        h.reschedule(id, priority, when);
        assert!(!h.changed, "{priority:?} {when:?}");
    }
    let order: Vec<_> = h.claims(&["a"], 3).iter().map(|task| task.id).collect();
    assert_eq!(order, [first, second], "nobody lost its place");
    h.finish();
}

#[test]
fn only_a_waiting_task_can_be_changed() {
    let mut h = Harness::new();
    let running = h.running(task("a")).id;
    assert_eq!(h.reschedule_as(T, running, None, NOW), refused(Rejection::InProgress));
    for id in [h.done(task("a")).id, h.dead(task("a")).id] {
        assert_eq!(h.reschedule_as(T, id, Some(1), None), refused(Rejection::Finished));
        assert_eq!(h.reschedule_as("other", id, Some(1), None), refused(Rejection::NotFound));
    }
    let far = h.add(task("b")).id;
    let invalid = refused(Rejection::InvalidDelay { max: DELAY_MS_MAX });
    let at = Some(RunWhen::At(h.wall() + DELAY_MS_MAX + 1));
    assert_eq!(h.reschedule_as(T, far, None, after(DELAY_MS_MAX + 1)), invalid);
    assert_eq!(h.reschedule_as(T, far, None, at), invalid);
    h.finish();
}

#[test]
fn a_task_whose_lease_is_over_is_waiting() {
    let mut h = Harness::new();
    let id = h.running(task("a")).id;
    h.pass(LEASE + 1);
    let task = h.reschedule(id, None, NOW);
    assert_eq!((task.place, task.attempts), (Place::Pending, 1));
    assert_eq!(h.claim("a").map(|task| task.id), Some(id));
    let last = h.running(tries("b", 1)).id;
    h.pass(LEASE + 1);
    assert_eq!(h.reschedule_as(T, last, None, NOW), refused(Rejection::Finished));
    assert_eq!(h.get(last).place, Place::Dead);
    h.finish();
}

#[test]
fn a_paused_queue_stays_paused() {
    let mut h = Harness::new();
    let id = h.add(late("a", HOUR)).id;
    h.apply(Command::Pause(Pause { tenant: text(T), command: text("a"), paused: true }));
    h.reschedule(id, Some(9), NOW);
    assert!(!is_ready(&h));
    assert_eq!(h.claim("a"), None);
    h.pause("a", false);
    assert_eq!(h.claim("a").map(|task| task.id), Some(id));
    h.finish();
}
