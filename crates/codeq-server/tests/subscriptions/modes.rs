//! Which of several subscriptions are notified, and how often.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::http::harness::{Harness, WORKER};
use crate::subscriptions::receiver::{GROUPED, Receiver, drain, server, subscribe, subscribe_as};

/// Enqueues a task into the empty queue, and returns the paths of the `count` subscriptions that were notified.
async fn notified(
    h: &Harness,
    receiver: &mut Receiver,
    command: &str,
    count: usize,
) -> Vec<String> {
    h.task(command).await;
    let mut paths = Vec::new();
    for _ in 0..count {
        paths.push(receiver.expect(command).await.path);
    }
    drain(h, command).await;
    paths.sort();
    paths
}

#[tokio::test]
async fn fanout_notifies_every_subscription() {
    let h = server(|_| ()).await;
    let mut receiver = Receiver::start().await;
    for path in ["1", "2", "3"] {
        subscribe(&h, &receiver.url(path), json!({})).await;
    }
    for _ in 0..2 {
        assert_eq!(notified(&h, &mut receiver, "c", 3).await, ["/1", "/2", "/3"]);
    }
}

#[tokio::test]
async fn a_group_takes_turns() {
    let h = server(|_| ()).await;
    let mut receiver = Receiver::start().await;
    let group = json!({"deliveryMode": "group", "groupId": "gpu"});
    for path in ["1", "2"] {
        subscribe(&h, &receiver.url(path), group.clone()).await;
    }
    // A token of the group is in it without saying so.
    subscribe_as(&h, GROUPED, &receiver.url("3"), json!({})).await;
    let other = json!({"deliveryMode": "group", "groupId": "other"});
    subscribe(&h, &receiver.url("other"), other).await;
    for _ in 0..3 {
        let mut round = BTreeSet::new();
        for _ in 0..3 {
            let paths = notified(&h, &mut receiver, "c", 2).await;
            assert_eq!(paths[1], "/other");
            round.insert(paths[0].clone());
        }
        assert_eq!(round.len(), 3, "{round:?}");
    }
}

#[tokio::test]
async fn a_hash_always_chooses_the_same_subscription() {
    let h = server(|_| ()).await;
    let mut receiver = Receiver::start().await;
    let mut ids = Vec::new();
    for path in ["1", "2", "3"] {
        let hash = json!({"deliveryMode": "hash"});
        ids.push((format!("/{path}"), subscribe(&h, &receiver.url(path), hash).await));
    }
    let chosen = notified(&h, &mut receiver, "c", 1).await;
    for _ in 0..3 {
        assert_eq!(notified(&h, &mut receiver, "c", 1).await, chosen);
    }
    let mut used = BTreeSet::new();
    for n in 0..20 {
        used.extend(notified(&h, &mut receiver, &format!("c{n}"), 1).await);
    }
    assert!(used.len() > 1, "{used:?}");
    // Removing another subscription changes nothing; removing the chosen one does.
    let (loser, id) = ids.iter().find(|(path, _)| *path != chosen[0]).unwrap();
    h.delete(WORKER, &format!("workers/subscriptions/{id}")).await.expect(204);
    assert_eq!(notified(&h, &mut receiver, "c", 1).await, chosen);
    let (_, id) = ids.iter().find(|(path, _)| *path == chosen[0]).unwrap();
    h.delete(WORKER, &format!("workers/subscriptions/{id}")).await.expect(204);
    let heir = notified(&h, &mut receiver, "c", 1).await;
    assert!(heir != chosen && heir[0] != *loser, "{heir:?}");
}

#[tokio::test]
async fn a_notification_within_the_interval_is_sent_later() {
    let h = server(|_| ()).await;
    let mut receiver = Receiver::start().await;
    subscribe(&h, &receiver.url("slow"), json!({"minIntervalSeconds": 1})).await;
    h.task("c").await;
    receiver.expect("c").await;
    let first = Instant::now();
    drain(&h, "c").await;
    h.task("c").await;
    receiver.expect("c").await;
    let pause = first.elapsed();
    assert!(pause > Duration::from_millis(900), "{pause:?}");
}

#[tokio::test]
async fn a_deferred_notification_is_dropped_if_the_work_is_gone() {
    let h = server(|_| ()).await;
    let mut receiver = Receiver::start().await;
    let slow = json!({"minIntervalSeconds": 1});
    subscribe(&h, &receiver.url("slow"), slow).await;
    h.task("c").await;
    receiver.expect("c").await;
    for command in ["c2", "c3"] {
        h.task(command).await;
        drain(&h, command).await;
    }
    // This notification comes after the others, which do not delay it.
    h.task("marker").await;
    receiver.expect("marker").await;
}

#[tokio::test]
async fn a_group_prefers_a_member_that_need_not_wait() {
    let h = server(|_| ()).await;
    let mut receiver = Receiver::start().await;
    for path in ["1", "2"] {
        let group = json!({"deliveryMode": "group", "groupId": "g", "minIntervalSeconds": 3_600});
        subscribe(&h, &receiver.url(path), group).await;
    }
    let first = notified(&h, &mut receiver, "c", 1).await;
    let second = notified(&h, &mut receiver, "c", 1).await;
    assert_ne!(first, second);
}
