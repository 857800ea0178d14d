use bytes::Bytes;
use codeq_core::command::{NewTask, PurgeTarget};
use codeq_core::kv::Table;
use codeq_core::place::Place;
use codeq_core::reply::{Enqueued, Rejection, Reply};
use codeq_core::settings::Settings;

use crate::harness::*;

fn other_work(key: &str) -> NewTask {
    NewTask { payload: Bytes::from_static(b"{ }"), ..keyed("a", key) }
}

#[test]
fn a_repeat_gives_the_first_task() {
    let mut h = Harness::new();
    let first = h.add(keyed("a", "k"));
    h.pass(5);
    assert_eq!(h.offer(T, keyed("A", "k")), Enqueued::Repeated(Box::new(first.clone())));
    assert_eq!(h.rows(Table::Task), 1);
    let taken = h.claim("a").expect("one");
    assert_eq!(h.offer(T, keyed("a", "k")), Enqueued::Repeated(Box::new(taken)));
    h.complete(first.id);
    let done = h.get(first.id);
    assert_eq!(h.offer(T, keyed("a", "k")), Enqueued::Repeated(Box::new(done)));
    h.finish();
}

#[test]
fn other_work_under_the_same_key_is_refused() {
    let mut h = Harness::new();
    h.add(keyed("a", "k"));
    assert_eq!(h.refuse(other_work("k")), Rejection::IdempotencyConflict);
    assert_eq!(h.refuse(keyed("b", "k")), Rejection::IdempotencyConflict);
    assert_eq!(h.rows(Table::Task), 1);
    h.finish();
}

#[test]
fn keys_belong_to_a_tenant() {
    let mut h = Harness::new();
    h.add_for("a", keyed("a", "bk"));
    h.add_for("ab", keyed("a", "k"));
    h.add_for("b", other_work("bk"));
    assert_eq!(h.rows(Table::Task), 3);
    h.finish();
}

#[test]
fn repeats_inside_a_batch() {
    for atomic in [false, true] {
        let mut h = Harness::new();
        let reply = h.enqueue_all(T, vec![keyed("a", "k"), keyed("a", "k")], atomic);
        let Reply::Enqueued(items) = reply else { panic!("{reply:?}") };
        let (Enqueued::Created(first), Enqueued::Repeated(second)) = (&items[0], &items[1]) else {
            panic!("{items:?}")
        };
        assert_eq!(first.id, second.id);
        h.finish();
    }
    let mut h = Harness::new();
    let reply = h.enqueue_all(T, vec![keyed("a", "k"), other_work("k")], true);
    let reason = Box::new(Rejection::IdempotencyConflict);
    assert_eq!(reply, refused(Rejection::InBatch { index: 1, reason }));
    assert_eq!(h.rows(Table::Idempotency) + h.rows(Table::Task), 0);
    h.add(keyed("a", "k"));
    let reply = h.enqueue_all(T, vec![task("a"), other_work("k")], true);
    let reason = Box::new(Rejection::IdempotencyConflict);
    assert_eq!(reply, refused(Rejection::InBatch { index: 1, reason }));
    h.finish();
}

#[test]
fn a_key_outlives_its_task_to_the_end_of_its_day() {
    let mut h = Harness::with(Settings { retention: HOUR, ..Settings::default() });
    let first = h.done(keyed("a", "k"));
    let made_at = first.created_at;
    h.pass(HOUR);
    assert_eq!(h.sweep(10).removed, 1);
    assert_eq!(h.find(T, first.id), None);
    let Enqueued::Repeated(repeat) = h.offer(T, keyed("a", "k")) else { panic!("made twice") };
    assert_eq!((repeat.id, repeat.place), (first.id, Place::Completed));
    assert_eq!(h.refuse(other_work("k")), Rejection::IdempotencyConflict);
    h.reload();
    h.now = made_at + DAY - 1;
    assert_eq!(h.sweep(10).removed, 0);
    assert!(matches!(h.offer(T, keyed("a", "k")), Enqueued::Repeated(_)));
    h.pass(1);
    assert_eq!(h.sweep(10).removed, 1);
    let second = h.add(other_work("k"));
    assert_ne!(second.id, first.id);
    h.finish();
}

#[test]
fn a_key_lives_as_long_as_its_task() {
    let mut h = Harness::new();
    let first = h.add(keyed("a", "k"));
    h.pass(30 * DAY);
    h.sweep(100);
    let Enqueued::Repeated(repeat) = h.offer(T, keyed("a", "k")) else { panic!("made twice") };
    assert_eq!(repeat.id, first.id);
    h.claim("a").expect("the first");
    h.complete(first.id);
    h.pass(DAY);
    assert_eq!(h.sweep(100).removed, 1);
    assert_eq!(h.rows(Table::Idempotency), 0, "an old key goes with its task");
    h.finish();
}

#[test]
fn purge_and_cleanup_leave_the_young_key() {
    let mut h = Harness::new();
    let dead = h.dead(keyed("a", "k1"));
    h.purge_as(T, "a", PurgeTarget::Dead, 10);
    let done = h.done(keyed("a", "k2"));
    h.pass(1);
    assert_eq!(h.cleanup(T, h.now, 10), 1);
    for (key, id, place) in [("k1", dead.id, Place::Dead), ("k2", done.id, Place::Completed)] {
        let Enqueued::Repeated(repeat) = h.offer(T, keyed("a", key)) else { panic!("made twice") };
        assert_eq!((repeat.id, repeat.place), (id, place));
    }
    h.pass(DAY);
    assert_eq!(h.sweep(100).removed, 2);
    assert_eq!(h.rows(Table::Idempotency), 0);
    h.finish();
}
