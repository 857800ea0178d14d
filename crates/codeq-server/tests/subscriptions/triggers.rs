//! When a notification is sent, and what it says.

use std::collections::BTreeSet;
use std::time::Instant;

use reqwest::Method;
use serde_json::json;

use crate::http::harness::{ADMIN, PRODUCER, WORKER, send};
use crate::subscriptions::receiver::{Receiver, drain, server, subscribe};

#[tokio::test]
async fn a_task_in_an_empty_queue() {
    let h = server(|config| config.public_url = Some("https://codeq.example/x/".to_owned())).await;
    let mut receiver = Receiver::start().await;
    subscribe(&h, &receiver.url("wake?key=1"), json!({})).await;
    h.task("Encode").await;
    let heard = receiver.next().await;
    assert_eq!(heard.path, "/wake");
    let body = heard.body.as_object().unwrap();
    let fields: BTreeSet<&str> = body.keys().map(String::as_str).collect();
    let wanted = ["available", "claimUrl", "eventType", "notificationId", "queueDepth", "sentAt"];
    let wanted = wanted.into_iter().chain(["claimUrlAbsolute"]);
    assert_eq!(fields, wanted.collect());
    assert_eq!(body["eventType"], "encode");
    assert_eq!((&body["available"], &body["queueDepth"]), (&json!(true), &json!(1)));
    assert_eq!(body["claimUrl"], "/v1/codeq/tasks/claim");
    assert_eq!(body["claimUrlAbsolute"], "https://codeq.example/x/v1/codeq/tasks/claim");
    let id = body["notificationId"].as_str().unwrap();
    assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    let sent_at: jiff::Timestamp = body["sentAt"].as_str().unwrap().parse().unwrap();
    let header = |name: &str| heard.headers[name].to_str().unwrap();
    assert_eq!(header("webhook-id"), id);
    assert_eq!(header("webhook-timestamp"), sent_at.as_second().to_string());
    assert_eq!(header("x-codeq-timestamp"), header("webhook-timestamp"));
    assert_eq!(header("content-type"), "application/json");
    // A second task changes nothing: there was one to claim.
    h.task("Encode").await;
    h.task("marker").await;
    receiver.expect("marker").await;
}

#[tokio::test]
async fn the_command_is_spelt_as_the_subscription_spells_it() {
    let h = server(|_| ()).await;
    let mut receiver = Receiver::start().await;
    subscribe(&h, &receiver.url(""), json!({"eventTypes": ["GENERATE_Master"]})).await;
    h.task("other").await;
    h.task("generate_MASTER").await;
    let heard = receiver.next().await;
    assert_eq!(heard.body["eventType"], "GENERATE_Master");
    // A server that does not know its address names none.
    assert_eq!(heard.body["claimUrl"], "/v1/codeq/tasks/claim");
    assert_eq!(heard.body.get("claimUrlAbsolute"), None);
}

#[tokio::test]
async fn a_delayed_task_that_comes_due() {
    let h = server(|_| ()).await;
    let mut receiver = Receiver::start().await;
    subscribe(&h, &receiver.url(""), json!({})).await;
    let start = Instant::now();
    h.enqueue(PRODUCER, json!({"command": "late", "payload": 1, "delaySeconds": 1})).await;
    h.task("marker").await;
    receiver.expect("marker").await;
    receiver.expect("late").await;
    assert!(start.elapsed().as_millis() >= 1_000, "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_delayed_task_that_is_to_run_now() {
    let h = server(|_| ()).await;
    let mut receiver = Receiver::start().await;
    subscribe(&h, &receiver.url(""), json!({})).await;
    let late = json!({"command": "late", "payload": 1, "delaySeconds": 600});
    let id = h.enqueue(PRODUCER, late).await;
    h.task("marker").await;
    receiver.expect("marker").await;
    let now = json!({"delaySeconds": 0}).to_string();
    let request = h.request(Method::PATCH, PRODUCER, &format!("tasks/{id}")).body(now);
    send(request).await.expect(200);
    receiver.expect("late").await;
}

#[tokio::test]
async fn a_task_that_is_given_back() {
    let h = server(|_| ()).await;
    let mut receiver = Receiver::start().await;
    subscribe(&h, &receiver.url(""), json!({})).await;
    let id = h.task("c").await;
    receiver.expect("c").await;
    for (verb, body) in [("nack", json!({"delaySeconds": 0})), ("abandon", json!({}))] {
        h.claim(WORKER, "c").await;
        h.post(WORKER, &format!("tasks/{id}/{verb}"), body).await.expect(200);
        receiver.expect("c").await;
    }
}

#[tokio::test]
async fn a_lease_that_ends() {
    let h = server(|_| ()).await;
    let mut receiver = Receiver::start().await;
    subscribe(&h, &receiver.url(""), json!({})).await;
    h.task("c").await;
    receiver.expect("c").await;
    h.post(WORKER, "tasks/claim", json!({"leaseSeconds": 1})).await.expect(200);
    receiver.expect("c").await;
}

#[tokio::test]
async fn a_dead_letter_that_is_replayed() {
    let h = server(|_| ()).await;
    let id = h.dead("c", "no").await;
    let mut receiver = Receiver::start().await;
    subscribe(&h, &receiver.url(""), json!({})).await;
    h.act(ADMIN, &format!("tasks/{id}/replay")).await.expect(200);
    receiver.expect("c").await;
}

#[tokio::test]
async fn a_paused_queue_is_silent_until_it_is_resumed() {
    let h = server(|_| ()).await;
    let mut receiver = Receiver::start().await;
    subscribe(&h, &receiver.url(""), json!({})).await;
    h.act(ADMIN, "admin/queues/c/pause").await.expect(200);
    for _ in 0..5 {
        h.task("c").await;
    }
    h.task("marker").await;
    receiver.expect("marker").await;
    h.act(ADMIN, "admin/queues/c/resume").await.expect(200);
    // Everything that waited can be claimed now.
    assert_eq!(receiver.expect("c").await.body["queueDepth"], 5);
}

#[tokio::test]
async fn every_notification_has_an_id_of_its_own() {
    let h = server(|_| ()).await;
    let mut receiver = Receiver::start().await;
    for path in ["1", "2"] {
        subscribe(&h, &receiver.url(path), json!({})).await;
    }
    let mut ids = BTreeSet::new();
    for _ in 0..5 {
        h.task("c").await;
        for _ in 0..2 {
            let heard = receiver.expect("c").await;
            assert!(ids.insert(heard.body["notificationId"].to_string()));
        }
        drain(&h, "c").await;
    }
}

#[tokio::test]
async fn subscriptions_survive_a_restart_and_waiting_work_is_notified() {
    let h = server(|_| ()).await;
    let mut receiver = Receiver::start().await;
    let id = subscribe(&h, &receiver.url(""), json!({"ttlSeconds": 3_600})).await;
    h.task("before").await;
    receiver.expect("before").await;
    let h = h.restart().await;
    receiver.expect("before").await;
    let listed = h.get(WORKER, "workers/subscriptions").await.expect(200).json();
    assert_eq!(listed["items"][0]["subscriptionId"], *id);
    h.task("after").await;
    receiver.expect("after").await;
}
