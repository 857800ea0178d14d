use codeq_core::command::NewTask;
use codeq_core::place::Place;
use codeq_core::reply::{Rejection, Reply};
use codeq_core::topic::Policy;

use crate::harness::*;

fn policy() -> Policy {
    Policy::default()
}

#[test]
fn versions_count_changes() {
    let mut h = Harness::new();
    let two = Policy { max_attempts: Some(2), ..policy() };
    let (first, created) = h.put_topic("a", policy());
    assert_eq!((first.version, created, first.created_at), (1, true, h.now));
    h.pass(5);
    let before = h.digest();
    assert_eq!(h.put_topic("a", policy()), (first.clone(), false));
    assert_eq!(h.digest(), before, "an identical write changes nothing");
    let (changed, created) = h.put_topic("a", two.clone());
    assert_eq!((changed.version, created), (2, false));
    assert_eq!((changed.created_at, changed.updated_at), (first.created_at, h.now));
    h.reload();
    assert_eq!(h.stats("a").and_then(|s| s.topic), Some(changed));
    assert_eq!(h.delete_topic(T, "a"), Reply::Done);
    assert_eq!(h.delete_topic(T, "a"), refused(Rejection::NotFound));
    assert_eq!(h.put_topic("a", two).0.version, 1);
    h.finish();
}

#[test]
fn a_deleted_policy_leaves_no_empty_queue() {
    let mut h = Harness::new();
    h.put_topic("a", policy());
    h.delete_topic(T, "a");
    assert!(h.stats("a").is_none());
    h.add(task("b"));
    let before = h.digest();
    assert_eq!(h.delete_topic(T, "b"), refused(Rejection::NotFound));
    assert_eq!(h.digest(), before);
    h.finish();
}

#[test]
fn bad_names_and_values_are_refused() {
    let mut h = Harness::new();
    for name in ["", "A", "a_b", "-a", "a-", &"a".repeat(64)] {
        assert_eq!(h.put_topic_as(T, name, policy()), refused(Rejection::InvalidTopicName));
    }
    let bad = Policy { max_attempts: Some(0), ..policy() };
    let field = "maxAttempts".into();
    assert_eq!(h.put_topic_as(T, "a", bad), refused(Rejection::InvalidTopic { field }));
    let bad = Policy { retention: u64::MAX, ..policy() };
    let field = "retentionSeconds".into();
    assert_eq!(h.put_topic_as(T, "a", bad), refused(Rejection::InvalidTopic { field }));
    assert_eq!(h.put_topic_as("", "a", policy()), refused(Rejection::InvalidTenant));
    h.finish();
}

#[test]
fn attempts_default_and_ceiling() {
    let mut h = Harness::new();
    h.put_topic("a", Policy { max_attempts: Some(3), ..policy() });
    assert_eq!(h.add(task("a")).max_attempts, 3);
    assert_eq!(h.add(tries("A", 2)).max_attempts, 2);
    assert_eq!(h.add(tries("a", 50)).max_attempts, 3);
    assert_eq!(h.add(tries("b", 50)).max_attempts, 50);
    assert_eq!(h.add_for("x", task("a")).max_attempts, 5);
}

#[test]
fn priorities_are_moved_to_a_tier() {
    let mut h = Harness::new();
    h.put_topic("a", Policy { priority_tiers: vec![7, 3], ..policy() });
    let got: Vec<u8> = [-5, 0, 3, 6, 7, 99].map(|p| h.add(urgent("a", p)).priority).to_vec();
    assert_eq!(got, [3, 3, 3, 3, 7, 7]);
    h.finish();
}

#[test]
fn max_consumers_limits_the_running_tasks() {
    let mut h = Harness::new();
    let limit = |max_consumers| Policy { max_consumers, ..policy() };
    h.put_topic("a", limit(2));
    for _ in 0..5 {
        h.add(task("a"));
    }
    let running = h.claims(&["a"], 5);
    assert_eq!(running.len(), 2);
    assert_eq!(h.claim_any(T), None);
    h.complete(running[0].id);
    let next = h.claim("a").expect("room for one");
    assert_eq!(h.claim("a"), None);
    h.reload();
    assert_eq!(h.claim("a"), None, "also after a restart");
    h.nack(next.id, Some(0), None);
    assert!(h.claim("a").is_some(), "a task that went back makes room");
    h.put_topic("a", limit(1));
    assert_eq!(h.claim("a"), None);
    h.pass(LEASE + 1);
    h.sweep(10);
    assert_eq!(h.claims(&["a"], 9).len(), 1, "leases that ended make room");
    h.put_topic("a", limit(0));
    assert!(!h.claims(&["a"], 9).is_empty());
    h.finish();
}

#[test]
fn a_policys_retention_replaces_the_default() {
    let mut h = Harness::new();
    h.put_topic("a", Policy { retention: 5_000, ..policy() });
    let short = h.done(task("a"));
    let long = h.done(task("b"));
    h.pass(4_999);
    assert_eq!(h.sweep(10).removed, 0);
    h.pass(1);
    assert_eq!(h.sweep(10).removed, 1);
    assert_eq!(h.find(T, short.id), None);
    h.put_topic("a", policy());
    let usual = h.done(task("a"));
    h.pass(DAY - 1);
    h.sweep(10);
    assert_eq!((h.find(T, usual.id).is_some(), h.find(T, long.id)), (true, None));
    h.finish();
}

#[test]
fn a_dead_letter_is_copied_to_the_dead_letter_topic() {
    let mut h = Harness::new();
    let to = Policy { dead_letter_topic: Some(text("a-dead")), ..policy() };
    h.put_topic("a", to);
    let traced = NewTask { trace_parent: Some(text("00-a-b-01")), priority: 4, ..hooked("a") };
    let by_nack = h.dead(traced);
    let copy = h.claim("a-dead").expect("a copy");
    assert_eq!(copy.origin, Some(by_nack.id));
    assert_eq!((&copy.payload, copy.priority), (&by_nack.payload, 4));
    assert_eq!((copy.attempts, copy.max_attempts, copy.webhook), (0, 5, None));
    assert_eq!(copy.trace_parent.as_deref(), Some("00-a-b-01"));
    assert_eq!(h.get(by_nack.id).place, Place::Dead, "the original stays");
    // Every way to become a dead letter.
    let by_abandon = h.running(tries("a", 1));
    h.abandon(by_abandon.id, true);
    let by_expiry = h.running(tries("a", 1));
    h.pass(LEASE + 1);
    let copies = h.claims(&["a-dead"], 9);
    let origins: Vec<_> = copies.iter().map(|t| t.origin).collect();
    assert_eq!(origins, [Some(by_abandon.id), Some(by_expiry.id)]);
    let cancelled = h.add(task("a"));
    h.cancel(cancelled.id);
    assert_eq!(h.claim("a-dead"), None, "a cancelled task is not a dead letter");
    h.finish();
}
