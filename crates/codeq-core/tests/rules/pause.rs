use codeq_core::effect::Effect;
use codeq_core::reply::{Rejection, Reply};

use crate::harness::*;

#[test]
fn stops_claims_and_nothing_else() {
    let mut h = Harness::new();
    let first = h.running(task("a"));
    assert_eq!(h.pause("A", true), Reply::Done);
    let second = h.add(task("a"));
    let other = h.add(task("b"));
    assert_eq!(h.claim("a"), None);
    assert_eq!(h.claim_any(T).map(|t| t.id), Some(other.id));
    h.complete(first.id);
    h.reload();
    assert_eq!(h.claim("a"), None, "also after a restart");
    assert_eq!(h.stats("a").map(|s| (s.paused, s.counts.ready())), Some((true, 1)));
    assert_eq!(h.pause("a", false), Reply::Done);
    assert!(h.effects.iter().any(|e| matches!(e, Effect::Ready { .. })), "waiters are woken");
    assert_eq!(h.claim("a").map(|t| t.id), Some(second.id));
    h.finish();
}

#[test]
fn a_queue_can_be_paused_before_its_first_task() {
    let mut h = Harness::new();
    assert_eq!(h.pause("a", true), Reply::Done);
    assert_eq!(h.pause("a", true), Reply::Done, "twice is the same");
    h.add(task("a"));
    assert_eq!(h.claim("a"), None);
    h.finish();
}

#[test]
fn an_empty_queue_without_settings_is_forgotten() {
    let mut h = Harness::new();
    h.pause("a", true);
    h.pause("a", false);
    assert!(h.stats("a").is_none());
    assert_eq!(h.pause("a", false), refused(Rejection::NotFound));
    assert_eq!(h.pause("", true), refused(Rejection::InvalidCommand));
    assert_eq!(h.pause_as("", "a", true), refused(Rejection::InvalidTenant));
    assert_eq!(h.state.tenants().count(), 0);
    h.finish();
}

#[test]
fn pausing_is_for_one_tenant() {
    let mut h = Harness::new();
    h.add(task("a"));
    h.pause_as("x", "a", true);
    assert!(h.claim("a").is_some());
}
