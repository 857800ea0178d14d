use bytes::Bytes;
use codeq_core::State;
use codeq_core::command::{NewTask, PurgeTarget};
use codeq_core::effect::Effect;
use codeq_core::id::ShardId;
use codeq_core::keys::META;
use codeq_core::kv::{Kv, Table};
use codeq_core::limits::*;
use codeq_core::place::{Place, Status};
use codeq_core::reply::{Enqueued, Rejection, Reply};
use codeq_core::rows::MetaRow;
use codeq_core::settings::Settings;

use crate::harness::*;

#[test]
fn a_task_is_what_was_sent() {
    let mut h = Harness::new();
    let sent = NewTask {
        command: text("GENERATE_Master"),
        payload: Bytes::from_static(b" {\"n\": 9007199254740993, \"f\":1.10}\n"),
        priority: 4,
        max_attempts: Some(3),
        webhook: Some(text("https://example.com/h")),
        trace_parent: Some(text("00-abc-def-01")),
        trace_state: Some(text("a=b")),
        ..NewTask::default()
    };
    let made = h.add(sent.clone());
    assert_eq!(made, h.get(made.id));
    assert_eq!((&made.command, &made.payload), (&sent.command, &sent.payload));
    assert_eq!((made.priority, made.max_attempts, made.attempts), (4, 3, 0));
    assert_eq!(made.webhook, sent.webhook);
    assert_eq!((made.trace_parent, made.trace_state), (sent.trace_parent, sent.trace_state));
    assert_eq!((made.place, made.created_at, made.updated_at), (Place::Pending, h.now, h.now));
    assert_eq!((made.place.status(), made.place.location()), (Status::Pending, "PENDING_LIST"));
    assert_eq!((made.visible_at, made.worker, made.origin), (None, None, None));
    h.finish();
}

#[test]
fn one_queue_whatever_the_case() {
    let mut h = Harness::new();
    let upper = h.add(task("WORK"));
    let lower = h.add(task("work"));
    assert_eq!(h.stats("Work").map(|s| s.counts.ready()), Some(2));
    let taken = h.claims(&["wOrK"], 5);
    assert_eq!(taken.iter().map(|t| t.id).collect::<Vec<_>>(), [upper.id, lower.id]);
    assert_eq!((&*taken[0].command, &*taken[1].command), ("WORK", "work"));
    // Only ASCII: these are two queues.
    h.add(task("ä"));
    h.add(task("Ä"));
    assert_eq!(h.claims(&["ä"], 5).len(), 1);
}

#[test]
fn priority_is_clamped() {
    let mut h = Harness::new();
    for (sent, kept) in [(i32::MIN, 0), (-1, 0), (0, 0), (9, 9), (10, 9), (i32::MAX, 9)] {
        assert_eq!(h.add(urgent("a", sent)).priority, kept, "{sent}");
    }
    h.finish();
}

#[test]
fn attempts_have_a_default_and_a_bound() {
    let mut h = Harness::new();
    assert_eq!(h.add(task("a")).max_attempts, 5);
    assert_eq!(h.add(tries("a", 0)).max_attempts, 5);
    assert_eq!(h.add(tries("a", 1_000)).max_attempts, 1_000);
    assert_eq!(h.add(tries("a", u32::MAX)).max_attempts, 1_000);
    let mut h = Harness::with(Settings { max_attempts: 9, ..Settings::default() });
    assert_eq!(h.add(task("a")).max_attempts, 9);
}

#[test]
fn a_delayed_task_is_never_early() {
    let mut h = Harness::new();
    let made = h.add(NewTask { priority: 9, ..late("a", 1_500) });
    assert_eq!((made.place, made.visible_at), (Place::Delayed, Some(h.now + 1_500)));
    assert_eq!(made.place.location(), "DELAYED_ZSET");
    h.pass(1_499);
    assert_eq!(h.claim("a"), None);
    assert_eq!(h.sweep(100).promoted, 0);
    h.pass(1);
    let taken = h.claim("a").expect("due to the millisecond");
    assert_eq!((taken.id, taken.visible_at), (made.id, None));
    h.finish();
}

#[test]
fn run_at_wins_over_delay() {
    let mut h = Harness::new();
    let both = |run_at| NewTask { run_at: Some(run_at), ..late("a", 60_000) };
    assert_eq!(h.add(both(h.now + 5)).visible_at, Some(h.now + 5));
    assert_eq!(h.add(both(h.now)).place, Place::Pending);
    assert_eq!(h.add(both(0)).place, Place::Pending);
    assert_eq!(h.add(late("a", 0)).place, Place::Pending);
    assert_eq!(h.add(late("a", 1)).place, Place::Delayed);
}

#[test]
fn values_out_of_range_are_refused() {
    let mut h = Harness::new();
    let payload = |length| NewTask { payload: Bytes::from(vec![b'1'; length]), ..task("a") };
    let max = ENQUEUE_PAYLOAD_BYTES_MAX;
    assert_eq!(h.refuse(payload(0)), Rejection::InvalidPayload { max });
    assert_eq!(h.refuse(payload(max + 1)), Rejection::InvalidPayload { max });
    assert_eq!(h.add(payload(max)).payload.len(), max);
    let max = PAYLOAD_BYTES_MAX;
    let too_large = Enqueued::Rejected(Rejection::InvalidPayload { max });
    assert_eq!(h.offer_now(payload(max + 1)), too_large);
    assert_eq!(h.add_now(payload(max)).payload.len(), max);
    for command in ["", "a\nb", &"x".repeat(129)] {
        assert_eq!(h.refuse(task(command)), Rejection::InvalidCommand);
    }
    for url in ["", "http://a\nb", &"x".repeat(2_049)] {
        let bad = NewTask { webhook: Some(text(url)), ..task("a") };
        assert_eq!(h.refuse(bad), Rejection::InvalidWebhook);
    }
    let max = IDEMPOTENCY_KEY_BYTES_MAX;
    for key in ["", &"k".repeat(257)] {
        assert_eq!(h.refuse(keyed("a", key)), Rejection::InvalidIdempotencyKey { max });
    }
    let max = DELAY_MS_MAX;
    assert_eq!(h.refuse(late("a", max + 1)), Rejection::InvalidDelay { max });
    assert_eq!(h.refuse(late("a", u64::MAX)), Rejection::InvalidDelay { max });
    let far = NewTask { run_at: Some(u64::MAX), ..task("a") };
    assert_eq!(h.refuse(far), Rejection::InvalidDelay { max });
    assert_eq!(h.add(late("a", max)).place, Place::Delayed);
    let max = BATCH_MAX;
    let empty = h.enqueue_all(T, vec![], false);
    assert_eq!(empty, refused(Rejection::InvalidBatch { max }));
    let many = h.enqueue_all(T, vec![task("a"); max + 1], false);
    assert_eq!(many, refused(Rejection::InvalidBatch { max }));
    h.finish();
}

#[test]
fn a_trace_that_is_too_long_is_left_out() {
    let mut h = Harness::new();
    let made = h.add(NewTask {
        trace_parent: Some(text(&"x".repeat(129))),
        trace_state: Some(text("")),
        ..task("a")
    });
    assert_eq!((made.trace_parent, made.trace_state), (None, None));
}

#[test]
fn each_task_of_a_batch_succeeds_or_fails_on_its_own() {
    let mut h = Harness::new();
    let reply = h.enqueue_all(T, vec![task("a"), task(""), task("b")], false);
    let Reply::Enqueued(items) = reply else { panic!("{reply:?}") };
    assert!(matches!(items[0], Enqueued::Created(_)) && matches!(items[2], Enqueued::Created(_)));
    assert_eq!(items[1], Enqueued::Rejected(Rejection::InvalidCommand));
    assert_eq!(h.rows(Table::Task), 2);
    h.finish();
}

#[test]
fn an_atomic_batch_is_all_or_nothing() {
    let mut h = Harness::new();
    let before = h.digest();
    let reply = h.enqueue_all(T, vec![task("a"), task("b"), task("\0")], true);
    let reason = Box::new(Rejection::InvalidCommand);
    assert_eq!(reply, refused(Rejection::InBatch { index: 2, reason }));
    assert_eq!(h.digest(), before);
    let reply = h.enqueue_all(T, vec![task("a"), task("b")], true);
    assert!(matches!(reply, Reply::Enqueued(items) if items.len() == 2));
    h.finish();
}

#[test]
fn queues_of_a_tenant_are_bounded() {
    let mut h = Harness::new();
    h.every = 100_000;
    let first = h.dead(keyed("gone", "k"));
    h.purge_as(T, "gone", PurgeTarget::Dead, 1);
    for chunk in 0..QUEUES_PER_TENANT_MAX / BATCH_MAX {
        let names = (0..BATCH_MAX).map(|i| task(&format!("q{}", chunk * BATCH_MAX + i)));
        let names = names.collect();
        h.enqueue_all(T, names, false);
    }
    let max = QUEUES_PER_TENANT_MAX;
    assert_eq!(h.refuse(task("one-more")), Rejection::TooManyQueues { max });
    let reply = h.enqueue_all(T, vec![task("q1"), task("one-more")], true);
    let reason = Box::new(Rejection::TooManyQueues { max });
    assert_eq!(reply, refused(Rejection::InBatch { index: 1, reason }));
    let reply = h.enqueue_all(T, vec![keyed("gone", "k"), task("q1")], true);
    let Reply::Enqueued(items) = reply else { panic!("a repeat needs no queue: {reply:?}") };
    assert!(matches!(&items[0], Enqueued::Repeated(task) if task.id == first.id));
    h.add(task("q7"));
    h.add_for("another tenant", task("one-more"));
}

#[test]
fn a_queue_that_was_empty_is_announced_once() {
    let mut h = Harness::new();
    let ready = |h: &Harness| h.effects.iter().any(|e| matches!(e, Effect::Ready { .. }));
    h.add(task("a"));
    assert!(ready(&h));
    h.add(task("a"));
    assert!(!ready(&h));
    h.add(late("b", 10));
    assert!(!ready(&h), "a delayed task is not there yet");
    h.pass(10);
    h.sweep(10);
    assert!(ready(&h), "it is now");
}

#[test]
fn ids_are_unique_and_unguessable_from_one_seed() {
    let mut h = Harness::new();
    let Reply::Enqueued(items) = h.enqueue_all(T, vec![task("a"); 100], false) else { panic!() };
    let ids: std::collections::BTreeSet<_> = items
        .iter()
        .map(|item| match item {
            Enqueued::Created(task) => task.id.salt(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(ids.len(), 100);
}

#[test]
fn queue_numbers_wrap_around_and_skip_those_in_use() {
    let mut h = Harness::new();
    h.add(task("a"));
    h.state.write_back(&mut h.kv);
    let last = MetaRow { next_queue: u32::MAX, ..h.state.meta().clone() };
    h.kv.put(Table::Meta, META, last.encode());
    h.state = State::load(&h.kv, ShardId(0), 1).expect("loads");
    for name in ["b", "c", "d"] {
        h.add(task(name));
    }
    let ids: Vec<_> = h.state.queues().map(|(id, _)| id).collect();
    assert_eq!(ids, [0, 1, 2, u32::MAX], "the one in use is skipped");
    assert_eq!(h.claims(&["a", "b", "c", "d"], 9).len(), 4);
}
