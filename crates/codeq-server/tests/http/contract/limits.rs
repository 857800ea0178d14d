//! Rates and quotas.

use codeq_server::config::RateLimit;
use serde_json::{Value, json};

use crate::http::harness::{ADMIN, Harness, LATER, PRODUCER, PRODUCER_B, WORKER};
use crate::http::shape::assert_shape;

const TWO: RateLimit = RateLimit { requests_per_minute: 1, burst: 2 };

#[tokio::test]
async fn a_tenant_that_asks_too_often_is_told_when_to_come_back() {
    let h = Harness::with(|config| config.rate_limit.producer = Some(TWO)).await;
    let first = h.get(PRODUCER, "tasks").await.expect(200);
    assert_eq!(first.header("ratelimit-policy"), Some("\"producer\";q=1;w=60"));
    assert!(first.header("ratelimit").unwrap().starts_with("\"producer\";r=1;t="));
    h.task("c").await;
    let refused = h.post(PRODUCER, "tasks", json!({"command": "c", "payload": 1})).await;
    let body = refused.refused(429, "rate limit exceeded");
    let seconds = body["retryAfterSeconds"].as_u64().unwrap();
    assert!((1..=60).contains(&seconds), "{body}");
    assert_eq!(refused.header("retry-after"), Some(&*seconds.to_string()));
    assert!(refused.header("ratelimit").unwrap().starts_with("\"producer\";r=0;t="));
    assert_eq!(refused.header("ratelimit-policy"), Some("\"producer\";q=1;w=60"));
    let problem = json!({
        "type": "<text>", "title": "Too Many Requests", "status": 429, "detail": "<text>",
        "error": "rate limit exceeded", "code": "rate_limited", "requestId": "<text>",
        "scope": "producer", "operation": "enqueueTask", "retryAfterSeconds": "<number>",
    });
    assert_shape(&body, &problem);
    // The limit does not apply to another tenant, another scope or open routes.
    h.get(PRODUCER_B, "tasks").await.expect(200);
    h.act(WORKER, "tasks/claim").await.expect(200);
    h.get(ADMIN, "admin/queues").await.expect(200);
    h.get("", "/livez").await.expect(200);
}

#[tokio::test]
async fn workers_and_admins_have_buckets_of_their_own() {
    let h = Harness::with(|config| {
        config.rate_limit.worker = Some(TWO);
        config.rate_limit.admin = Some(TWO);
    })
    .await;
    for _ in 0..2 {
        h.act(WORKER, "tasks/claim").await.expect(204);
        h.get(ADMIN, "admin/queues").await.expect(200);
    }
    let worker = h.act(WORKER, "tasks/claim").await.refused(429, "rate limit exceeded");
    assert_eq!((&worker["scope"], &worker["operation"]), (&json!("worker"), &json!("claimTask")));
    let admin = h.get(ADMIN, "admin/queues").await.refused(429, "rate limit exceeded");
    assert_eq!((&admin["scope"], &admin["operation"]), (&json!("admin"), &json!("listQueues")));
    for _ in 0..4 {
        assert!(h.get(PRODUCER, "tasks").await.expect(200).header("ratelimit").is_none());
    }
}

#[tokio::test]
async fn a_tenant_holds_so_many_tasks_and_no_more() {
    let h = Harness::with(|config| config.tenant_limits.max_pending_tasks = Some(2)).await;
    let task = json!({"command": "c", "payload": 1});
    let three = json!({"tasks": vec![task.clone(); 3]});
    h.post(PRODUCER, "tasks/batch", three).await.expect(429);
    h.task("c").await;
    h.task("c").await;
    let refused = h.post(PRODUCER, "tasks", task.clone()).await;
    let body = refused.expect(429);
    assert!(body.header("retry-after").is_some());
    let body = body.json();
    assert_eq!(
        (&body["code"], &body["operation"]),
        (&json!("quota_exceeded"), &json!("enqueueTask"))
    );
    assert!(body["retryAfterSeconds"].is_number() && body["scope"].is_string(), "{body}");
    h.post(PRODUCER_B, "tasks", task.clone()).await.expect(202);
    // Running tasks count, finished ones make room.
    let id = h.claim(WORKER, "c").await["id"].as_str().unwrap().to_owned();
    h.post(PRODUCER, "tasks", task.clone()).await.expect(429);
    let done = json!({"status": "COMPLETED"});
    h.post(WORKER, &format!("tasks/{id}/result"), done).await.expect(200);
    h.post(PRODUCER, "tasks", task).await.expect(202);
}

#[tokio::test]
async fn finished_tasks_count_until_they_are_removed() {
    let h = Harness::with(|config| config.tenant_limits.max_stored_bytes = Some(20_000)).await;
    let task = json!({"command": "c", "payload": "x".repeat(4_000)});
    let mut made = 0;
    // Cancelled tasks are finished, and still on the disk.
    while made < 100 {
        let answer = h.post(PRODUCER, "tasks", task.clone()).await;
        if answer.status == 429 {
            assert_eq!(answer.json()["code"], "quota_exceeded");
            break;
        }
        let id = answer.expect(202).json()["id"].as_str().unwrap().to_owned();
        h.post(PRODUCER, &format!("tasks/{id}/cancel"), json!({})).await.expect(200);
        made += 1;
    }
    assert_eq!(made, 4, "4,514 bytes each, with the error that says that it was cancelled");
    h.post(PRODUCER_B, "tasks", task.clone()).await.expect(202);
    let h = h.restart().await;
    h.post(PRODUCER, "tasks", task.clone()).await.expect(429);
    h.post(ADMIN, "admin/tasks/cleanup", json!({"before": LATER})).await.expect(200);
    h.post(PRODUCER, "tasks", task).await.expect(202);
}

#[tokio::test]
async fn a_tenant_holds_so_many_bytes_and_no_more() {
    let h = Harness::with(|config| config.tenant_limits.max_pending_bytes = Some(1_000)).await;
    let of = |bytes: usize| json!({"command": "c", "payload": "x".repeat(bytes)});
    h.post(PRODUCER, "tasks", of(600)).await.expect(202);
    let refused = h.post(PRODUCER, "tasks", of(600)).await.expect(429);
    assert_eq!(refused.json()["code"], "quota_exceeded");
    h.post(PRODUCER, "tasks", of(10)).await.expect(202);
}

#[tokio::test]
async fn a_replay_gets_past_no_limit() {
    let h = Harness::with(|config| config.tenant_limits.max_pending_tasks = Some(3)).await;
    let mut dead = Vec::new();
    for _ in 0..4 {
        dead.push(h.dead("c", "x").await);
    }
    let waiting = h.task("w").await;
    let replay = async |body: Value| h.post(ADMIN, "admin/dlq/c/replay", body).await;
    let some = replay(json!({})).await.expect(200).json();
    assert_eq!((&some["replayed"], &some["remaining"]), (&json!(2), &json!(2)));
    let rest = json!({"cursor": some["nextCursor"]});
    let full = replay(rest.clone()).await.expect(429).json();
    assert_eq!(full["code"], "quota_exceeded");
    let one = format!("tasks/{}/replay", dead[3]);
    assert_eq!(h.act(ADMIN, &one).await.expect(429).json()["code"], "quota_exceeded");
    h.act(ADMIN, &format!("tasks/{waiting}/replay")).await.expect(409);
    let dry = replay(json!({"dryRun": true})).await.expect(200).json();
    assert_eq!(dry["matched"], 2, "it may ask");
    h.post(PRODUCER, &format!("tasks/{waiting}/cancel"), json!({})).await.expect(200);
    let more = replay(rest).await.expect(200).json();
    assert_eq!((&more["replayed"], &more["remaining"]), (&json!(1), &json!(1)));
}
