//! Who is never notified, and who is not delayed by a bad receiver.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::http::harness::{ADMIN, PRODUCER, PRODUCER_B, WORKER, WORKER_B};
use crate::subscriptions::receiver::{NARROW, Receiver, drain, server, subscribe, subscribe_as};

#[tokio::test]
async fn a_tenant_never_hears_of_another() {
    let h = server(|_| ()).await;
    let (mut ours, mut theirs) = (Receiver::start().await, Receiver::start().await);
    for mode in ["fanout", "hash", "group"] {
        let new = json!({"deliveryMode": mode, "groupId": "same"});
        subscribe(&h, &ours.url(mode), new.clone()).await;
        subscribe_as(&h, WORKER_B, &theirs.url(mode), new).await;
    }
    for round in 0..5 {
        let (a, b) = (format!("a{round}"), format!("b{round}"));
        h.task(&a).await;
        h.enqueue(PRODUCER_B, json!({"command": b, "payload": 1})).await;
        for _ in 0..3 {
            ours.expect(&a).await;
            theirs.expect(&b).await;
        }
    }
}

#[tokio::test]
async fn a_worker_hears_of_what_its_token_allows() {
    let h = server(|_| ()).await;
    let mut receiver = Receiver::start().await;
    let url = receiver.url("");
    let refused = json!({"callbackUrl": url, "eventTypes": ["a", "c"]});
    let reply = h.post(NARROW, "workers/subscriptions", refused).await;
    assert_eq!(reply.refused(403, "event type not allowed")["field"], "eventTypes");
    let all = json!({"callbackUrl": url, "eventTypes": ["*"]});
    h.post(NARROW, "workers/subscriptions", all).await.refused(403, "event type not allowed");
    // No event types means all that the token allows.
    subscribe_as(&h, NARROW, &url, json!({})).await;
    h.task("c").await;
    h.task("b").await;
    receiver.expect("B").await;
    h.task("A").await;
    receiver.expect("a").await;
}

#[tokio::test]
async fn a_subscription_ends_with_its_time() {
    let h = server(|_| ()).await;
    let mut receiver = Receiver::start().await;
    let id = subscribe(&h, &receiver.url("short"), json!({"ttlSeconds": 1})).await;
    let path = format!("workers/subscriptions/{id}");
    let deadline = Instant::now() + Duration::from_secs(20);
    while h.get(WORKER, &path).await.status != 404 {
        assert!(Instant::now() < deadline, "it is still there");
        tokio::task::yield_now().await;
    }
    h.post(WORKER, &format!("{path}/heartbeat"), json!({})).await.expect(404);
    subscribe(&h, &receiver.url("long"), json!({})).await;
    h.task("c").await;
    assert_eq!(receiver.expect("c").await.path, "/long");
    h.task("marker").await;
    assert_eq!(receiver.expect("marker").await.path, "/long");
}

#[tokio::test]
async fn whoever_unsubscribes_hears_no_more() {
    let h = server(|_| ()).await;
    let mut receiver = Receiver::start().await;
    let id = subscribe(&h, &receiver.url("out"), json!({})).await;
    subscribe(&h, &receiver.url("in"), json!({})).await;
    h.delete(WORKER, &format!("workers/subscriptions/{id}")).await.expect(204);
    for command in ["c", "marker"] {
        h.task(command).await;
        assert_eq!(receiver.expect(command).await.path, "/in");
    }
}

#[tokio::test]
async fn a_receiver_that_is_gone_is_not_called_again() {
    let h = server(|_| ()).await;
    let mut receiver = Receiver::start().await;
    let id = subscribe(&h, &receiver.url("gone"), json!({})).await;
    h.task("c").await;
    receiver.expect("c").await;
    let path = format!("workers/subscriptions/{id}");
    let deadline = Instant::now() + Duration::from_secs(20);
    while h.get(WORKER, &path).await.status != 404 {
        assert!(Instant::now() < deadline, "it is still there");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_receiver_that_fails_is_called_once_and_stays() {
    let h = server(|_| ()).await;
    let mut receiver = Receiver::start().await;
    let id = subscribe(&h, &receiver.url("broken"), json!({})).await;
    for command in ["c", "marker"] {
        h.task(command).await;
        receiver.expect(command).await;
    }
    h.get(WORKER, &format!("workers/subscriptions/{id}")).await.expect(200);
    let deadline = Instant::now() + Duration::from_secs(20);
    let failed = r#"codeq_webhook_deliveries_total{kind="availability",outcome="failed""#;
    let counted = |text: &str| {
        ["c", "marker"]
            .iter()
            .all(|name| text.contains(&format!("{failed},command=\"{name}\"}} 1\n")))
    };
    while !counted(&h.get("", "/metrics").await.text()) {
        assert!(Instant::now() < deadline, "it is not counted");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_receiver_that_hangs_holds_up_nobody_else() {
    let h = server(|_| ()).await;
    let (mut hanging, mut quick) = (Receiver::start().await, Receiver::start().await);
    for n in 0..20 {
        subscribe(&h, &hanging.url(&format!("hang{n}")), json!({})).await;
    }
    subscribe(&h, &quick.url(""), json!({})).await;
    let start = Instant::now();
    for round in 0..20 {
        let command = format!("c{round}");
        h.task(&command).await;
        quick.expect(&command).await;
        drain(&h, &command).await;
    }
    // Less time than it takes to give up a hanging receiver.
    assert!(start.elapsed() < Duration::from_secs(9), "{:?}", start.elapsed());
    // Four notifications hang there at a time, and the others wait behind them.
    for _ in 0..4 {
        hanging.next().await;
    }
    // The hanging receiver does not delay the stop either.
    let start = Instant::now();
    h.stop().await;
    assert!(start.elapsed() < Duration::from_secs(9), "{:?}", start.elapsed());
}

#[tokio::test]
async fn tasks_in_other_shards_count_towards_the_queue_depth() {
    let h = server(|config| config.shards = Some(3)).await;
    let mut receiver = Receiver::start().await;
    subscribe(&h, &receiver.url(""), json!({"minIntervalSeconds": 1})).await;
    h.act(ADMIN, "admin/queues/c/pause").await.expect(200);
    for n in 0..30 {
        h.enqueue(PRODUCER, json!({"command": "c", "payload": n})).await;
    }
    h.act(ADMIN, "admin/queues/c/resume").await.expect(200);
    // The shards are resumed one after the other. The notification for the first shard may be too early to count the tasks
    // of the others, which then cause another one.
    let mut depth = 0;
    while depth != 30 {
        let heard = receiver.expect("c").await.body["queueDepth"].as_u64().unwrap();
        assert!(heard > depth && heard <= 30, "{heard} after {depth}");
        depth = heard;
    }
}
