use bytes::Bytes;
use codeq_core::command::{Command, Enqueue, NewTask, PurgeTarget};
use codeq_core::kv::Table;
use codeq_core::limits::ENQUEUE_PAYLOAD_BYTES_MAX;
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
    let created_at = first.created_at;
    h.pass(HOUR);
    assert_eq!(h.sweep(10).removed, 1);
    assert_eq!(h.find(T, first.id), None);
    let Enqueued::Repeated(repeat) = h.offer(T, keyed("a", "k")) else { panic!("made twice") };
    assert_eq!((repeat.id, repeat.place), (first.id, Place::Completed));
    assert_eq!(h.refuse(other_work("k")), Rejection::IdempotencyConflict);
    h.reload();
    h.now = created_at + DAY - 1;
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

fn with_payload(key: &str, payload: &str) -> NewTask {
    NewTask { payload: Bytes::copy_from_slice(payload.as_bytes()), ..keyed("a", key) }
}

#[test]
fn payloads_are_compared_as_values() {
    let mut h = Harness::new();
    let first = h.offer_now(with_payload("k", r#"{"a":1,"b":[9007199254740993]}"#));
    let Enqueued::Created(first) = first else { panic!("{first:?}") };
    let same = "{ \"b\": [9007199254740993], \"a\": 1.0 }";
    for _ in 0..2 {
        let repeat = h.offer_now(with_payload("k", same));
        assert_eq!(repeat, Enqueued::Repeated(first.clone()));
        let other = with_payload("k", r#"{"a":1,"b":[9007199254740992]}"#);
        let refused = Enqueued::Rejected(Rejection::IdempotencyConflict);
        assert_eq!(h.offer_now(other), refused);
        h.reload();
    }
    // Also inside an atomic batch.
    let tasks = vec![with_payload("n", "[1, 2]"), with_payload("n", "[1,2]")];
    let enqueue = Enqueue { tenant: text(T), tasks, atomic: true, seed: 1 };
    let Reply::Enqueued(items) = h.apply(Command::Enqueue(enqueue).current()) else { panic!() };
    assert!(matches!(items[..], [Enqueued::Created(_), Enqueued::Repeated(_)]), "{items:?}");
    h.finish();
}

/// Old logs compared payloads byte by byte, and are applied that way for ever.
#[test]
fn what_an_older_version_logged_is_compared_by_bytes() {
    let mut h = Harness::new();
    h.add(with_payload("k", "[1,2]"));
    assert_eq!(h.refuse(with_payload("k", "[1, 2]")), Rejection::IdempotencyConflict);
    // Its keys stay valid, with the bytes they remember.
    let same = h.offer_now(with_payload("k", "[1,2]"));
    assert!(matches!(same, Enqueued::Repeated(_)), "{same:?}");
    let other = h.offer_now(with_payload("k", "[1, 2]"));
    assert_eq!(other, Enqueued::Rejected(Rejection::IdempotencyConflict));
    // And the other way around.
    assert!(matches!(h.offer_now(with_payload("n", "[1,2]")), Enqueued::Created(_)));
    assert!(matches!(h.offer(T, with_payload("n", "[1, 2]")), Enqueued::Repeated(_)));
    let atomic = vec![with_payload("m", "[1]"), with_payload("m", "[ 1]")];
    assert!(matches!(h.enqueue_all(T, atomic, true), Reply::Rejected(_)));
    h.finish();
}

#[test]
fn only_keyed_or_large_tasks_are_proposed_by_value() {
    let large = Bytes::from(vec![b'1'; ENQUEUE_PAYLOAD_BYTES_MAX + 1]);
    let of = |tasks| Command::Enqueue(Enqueue { tenant: text(T), tasks, atomic: false, seed: 1 });
    assert!(matches!(of(vec![task("a")]).current(), Command::Enqueue(_)));
    for needs in [keyed("a", "k"), NewTask { payload: large, ..task("a") }] {
        let command = of(vec![task("a"), needs]).current();
        let Command::EnqueueByValue(command) = command else { panic!("{command:?}") };
        assert_eq!((command.fingerprints.len(), command.fingerprints[0]), (2, 0));
    }
}
