//! Nothing crosses from one tenant to another, whatever their names.

use bytes::Bytes;
use codeq_core::command::{
    BulkFilter, BulkFrom, BulkPart, BulkWork, Command, Outcome, ReplayFrom, ReplayTarget, Selector,
};
use codeq_core::read::ListQuery;
use codeq_core::reply::{Enqueued, Rejection, Reply};
use codeq_core::topic::Policy;

use crate::harness::*;

#[test]
fn tenants_with_similar_names_are_separate() {
    let long = "ü".repeat(128);
    let names = ["a", "ab", "A", "a:b", "a/../b", "💥", " ", "codeq:q:a", &long];
    let mut h = Harness::new();
    let made: Vec<_> = names.iter().map(|name| h.add_for(name, keyed("b", "key"))).collect();
    for (name, made) in names.iter().zip(&made) {
        assert_eq!(*made.tenant, **name);
        let repeat = h.offer(name, keyed("b", "key"));
        assert!(matches!(repeat, Enqueued::Repeated(task) if task.id == made.id));
        assert_eq!(h.claim_any(name).map(|t| t.id), Some(made.id));
        assert_eq!(h.claim_any(name), None);
    }
    h.finish();
}

#[test]
fn invalid_tenant_names_are_refused() {
    let mut h = Harness::new();
    for name in ["", "a\0b", &"t".repeat(257)] {
        let reply = h.enqueue_all(name, vec![task("a")], false);
        assert_eq!(reply, refused(Rejection::InvalidTenant));
        let reply = h.claim_as(name, W, Selector::Any, 1);
        assert_eq!(reply, refused(Rejection::InvalidTenant));
    }
    h.add_for(&"t".repeat(256), task("a"));
}

#[test]
fn no_command_reaches_another_tenants_task() {
    let mut h = Harness::new();
    let waiting = h.add(task("wait"));
    let run = h.running(task("run"));
    let dead = h.dead(task("dead"));
    let not_found = || refused(Rejection::NotFound);
    let before = h.digest();
    for id in [waiting.id, run.id, dead.id] {
        for other in ["x", "", "tenan", "tenant ", "TENANT"] {
            assert_eq!(h.find(other, id), None);
            assert_eq!(h.reader().result(other, id).unwrap(), None);
            assert_eq!(h.reader().history(other, id).unwrap(), None);
            assert_eq!(h.heartbeat_as(other, W, id, LEASE), not_found());
            let outcome = Outcome::Completed(Bytes::from_static(b"{}"));
            assert_eq!(h.submit_as(other, W, id, outcome), not_found());
            assert_eq!(h.nack_as(other, W, id, None), not_found());
            assert_eq!(h.abandon_as(other, W, id, true), not_found());
            assert_eq!(h.cancel_as(other, id), not_found());
            assert_eq!(h.replay_as(other, ReplayTarget::One(id)), not_found());
        }
    }
    assert_eq!(h.delete_topic("x", "wait"), not_found());
    assert_eq!(h.digest(), before);
    h.put_topic_as("x", "wait", Policy::default());
    assert_eq!(h.stats("wait").and_then(|s| s.topic), None);
    let query = ListQuery { tenant: text("x"), limit: 10, ..ListQuery::default() };
    assert!(h.list(query).items.is_empty());
    assert!(
        matches!(h.claim_as("x", W, Selector::Any, 9), Reply::Claimed(tasks) if tasks.is_empty())
    );
    h.finish();
}

#[test]
fn a_made_up_position_shows_and_touches_nothing_of_others() {
    let mut h = Harness::new();
    let mine = h.dead(task("mine"));
    h.add_for("x", task("theirs"));
    let before = h.digest();
    let lists = [0, 1, 2, 3, u8::MAX];
    for (list, after) in lists.iter().flat_map(|list| [0, 1, u64::MAX].map(|at| (*list, Seq(at)))) {
        for queue in [None, Some(""), Some("mine"), Some("theirs"), Some("\u{10ffff}")] {
            let from = BulkFrom { queue: queue.map(text), list, after };
            let page = h.reader().callbacks("x", None, &from, 10).unwrap();
            assert!(page.items.is_empty());
            let part = |work| {
                let (tenant, by) = (text("x"), text("op"));
                let (from, filter) = (from.clone(), BulkFilter::default());
                Command::BulkPart(Box::new(BulkPart {
                    tenant,
                    work,
                    filter,
                    from,
                    take: 9,
                    look: 99,
                    by,
                }))
            };
            for work in [
                BulkWork::Cleanup { expired: false },
                BulkWork::PurgeDead { command: text("mine") },
                BulkWork::PurgeWaiting { command: text("mine") },
                BulkWork::Replay { command: text("mine"), from: ReplayFrom::DeadLetters },
            ] {
                assert_eq!(bulk_done(h.apply(part(work))), 0);
            }
        }
        let query = ListQuery { tenant: text("x"), limit: 10, ..ListQuery::default() };
        let page = h.list(ListQuery { below: Some(after), ..query });
        assert!(page.items.iter().all(|task| *task.tenant == *"x"));
    }
    assert_eq!(h.digest(), before);
    assert!(h.find(T, mine.id).is_some());
    h.finish();
}

fn bulk_done(reply: Reply) -> u64 {
    let Reply::BulkPart(done) = reply else { panic!("{reply:?}") };
    done.done
}

#[test]
fn a_guessed_number_is_not_an_id() {
    let mut h = Harness::new();
    let made = h.add(task("a"));
    let guess = codeq_core::id::TaskId::new(made.id.seq(), 0);
    assert_eq!(h.find(T, guess), None);
    assert_eq!(h.cancel(guess), refused(Rejection::NotFound));
}
