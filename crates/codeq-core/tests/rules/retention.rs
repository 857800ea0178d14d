use codeq_core::command::Delivery;
use codeq_core::kv::Table;
use codeq_core::settings::Settings;
use codeq_core::topic::Policy;

use crate::harness::*;

#[test]
fn counts_from_the_terminal_moment() {
    let mut h = Harness::new();
    let run = h.running(task("a"));
    h.heartbeat(run.id, 43_200_000);
    h.pass(HOUR);
    h.complete(run.id);
    h.pass(DAY - 1);
    assert_eq!(h.sweep(10).removed, 0);
    h.pass(1);
    assert_eq!(h.sweep(10).removed, 1);
    for table in [Table::Task, Table::Body, Table::Index, Table::Timer, Table::Queue] {
        assert_eq!(h.rows(table), 0, "{table:?}");
    }
    assert_eq!(h.state.queues().count(), 0, "an unused queue is forgotten");
    assert_eq!(h.state.tenants().count(), 0, "and so is its tenant");
    h.finish();
}

#[test]
fn removes_tasks_that_ended_in_any_way() {
    let mut h = Harness::new();
    h.done(task("a"));
    h.dead(task("a"));
    let cancelled = h.add(task("a"));
    h.cancel(cancelled.id);
    h.pass(DAY);
    assert_eq!(h.sweep(10).removed, 3);
    assert_eq!(h.rows(Table::Task), 0);
    h.finish();
}

#[test]
fn dead_letters_stay_longer() {
    let mut h = Harness::with(Settings::default());
    let (dead, done) = (h.dead(task("a")), h.done(task("a")));
    h.pass(DAY);
    assert_eq!(h.sweep(10).removed, 1);
    assert!(h.find(T, done.id).is_none());
    h.pass(29 * DAY - 1);
    assert_eq!(h.sweep(10).removed, 0);
    assert!(h.find(T, dead.id).is_some());
    h.pass(1);
    assert_eq!(h.sweep(10).removed, 1);
    h.finish();
}

#[test]
fn the_retention_of_a_policy_covers_its_dead_letters_unless_they_have_their_own() {
    let policy = |retention, dead_letter_retention| Policy {
        retention,
        dead_letter_retention,
        ..Policy::default()
    };
    for (policy, dead, done) in [
        (policy(0, 0), 30 * DAY, DAY),
        (policy(HOUR, 0), HOUR, HOUR),
        (policy(HOUR, 2 * HOUR), 2 * HOUR, HOUR),
        (policy(0, 2 * HOUR), 2 * HOUR, DAY),
    ] {
        for (lasts, ends_dead) in [(dead, true), (done, false)] {
            let mut h = Harness::with(Settings::default());
            h.put_topic("a", policy.clone());
            let id = if ends_dead { h.dead(task("a")).id } else { h.done(task("a")).id };
            h.pass(lasts - 1);
            h.sweep(10);
            assert!(h.find(T, id).is_some(), "{policy:?}");
            h.pass(1);
            h.sweep(10);
            assert!(h.find(T, id).is_none(), "{policy:?}");
            h.finish();
        }
    }
}

#[test]
fn live_tasks_stay_however_old() {
    let mut h = Harness::new();
    let pending = h.add(task("a"));
    let delayed = h.add(late("b", 9_000 * DAY / 1_000 * 400));
    h.pass(3_000 * DAY);
    h.sweep(100);
    assert!(h.find(T, pending.id).is_some() && h.find(T, delayed.id).is_some());
    h.finish();
}

#[test]
fn waits_for_a_callback_that_is_still_due() {
    let mut h = Harness::with(Settings { retention: 1_000, ..Settings::default() });
    let done = h.done(hooked("a"));
    let mut removed = 0;
    for _ in 0..5 {
        h.pass(60_000);
        removed += h.sweep(10).removed;
        assert_eq!(h.callbacks_due(), [done.id]);
    }
    assert_eq!(removed, 0, "what is kept is not counted as removed");
    h.callback(done.id, Delivery::Delivered);
    h.pass(60_000);
    assert_eq!(h.sweep(10).removed, 1);
    assert_eq!(h.rows(Table::Outbox) + h.rows(Table::Task) + h.rows(Table::Timer), 0);
    h.finish();
}

#[test]
fn a_callback_that_failed_goes_with_its_task() {
    let mut h = Harness::with(Settings { callback_attempts: 1, ..Settings::default() });
    let done = h.done(hooked("a"));
    let failed = Delivery::Failed { status: None, error: text("refused"), retry_after: None };
    h.callback(done.id, failed);
    h.pass(DAY);
    assert_eq!(h.sweep(10).removed, 1);
    assert_eq!(h.rows(Table::Outbox), 0);
    h.finish();
}

#[test]
fn nothing_is_left_of_a_day_of_work() {
    let mut h = Harness::new();
    for round in 0..20 {
        h.done(keyed("a", &format!("k{round}")));
        h.dead(hooked("b"));
        h.pass(1);
    }
    for id in h.callbacks_due() {
        h.callback(id, Delivery::Delivered);
    }
    h.pass(2 * DAY);
    h.sweep(512);
    for table in Table::ALL.into_iter().filter(|table| *table != Table::Meta) {
        assert_eq!(h.rows(table), 0, "{table:?}");
    }
    assert_eq!(h.state.next_deadline(), None);
    h.finish();
}
