//! The whole life of a task.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::http::harness::{ADMIN, Harness, LATER, PRODUCER, WORKER, WORKER_2};

#[tokio::test]
async fn a_task_goes_from_enqueue_to_cleanup() {
    let h = Harness::start().await;
    let body = json!({"command": "c", "payload": {"n": 1}, "maxAttempts": 2});
    let id = h.enqueue(PRODUCER, body).await;
    let path = |what: &str| format!("tasks/{id}{what}");
    let nack = json!({"delaySeconds": 0, "reason": "first"});

    assert_eq!(h.claim(WORKER, "c").await["fence"], 1);
    h.act(WORKER, &path("/heartbeat")).await.expect(200);
    h.post(WORKER, &path("/nack"), nack).await.expect(200);
    assert_eq!(h.claim(WORKER_2, "c").await["fence"], 2);
    h.act(WORKER, &path("/heartbeat")).await.refused(403, "not-owner");
    let dead = h.post(WORKER_2, &path("/nack"), json!({"reason": "second"})).await.expect(200);
    assert_eq!(dead.json()["status"], "dlq");
    h.act(WORKER_2, &path("/heartbeat")).await.refused(409, "not-in-progress");

    let letters = h.get(ADMIN, "admin/dlq/c").await.expect(200).json();
    assert_eq!(letters["items"][0]["id"], *id);
    let result = h.get(PRODUCER, &path("/result")).await.expect(200).json();
    assert_eq!(
        (&result["result"]["status"], &result["result"]["error"]),
        (&json!("FAILED"), &json!("second"))
    );

    let replayed = h.act(ADMIN, &path("/replay")).await.expect(200).json();
    assert_eq!((replayed.get("attempts"), &replayed["status"]), (None, &json!("PENDING")));
    h.get(PRODUCER, &path("/result")).await.refused(404, "result not found");
    assert_eq!(h.get(ADMIN, "admin/dlq/c").await.json(), json!({"items": []}));
    h.act(ADMIN, &path("/replay")).await.expect(409);

    assert_eq!(h.claim(WORKER, "c").await["fence"], 3);
    let done = json!({"status": "COMPLETED", "result": {"ok": 1}});
    h.post(WORKER, &path("/result"), done).await.expect(200);
    let result = h.get(PRODUCER, &path("/result")).await.expect(200).json();
    assert_eq!(result["result"]["result"], json!({"ok": 1}));
    h.act(PRODUCER, &path("/cancel")).await.refused(409, "task is finished");

    let history = h.get(PRODUCER, &path("/history")).await.expect(200).json();
    let steps: Vec<_> = history["items"].as_array().unwrap().iter().map(step).collect();
    let expected = [
        "created by - to PENDING_LIST",
        "claimed by worker to INPROG_SET",
        "nacked by worker to PENDING_LIST",
        "claimed by worker2 to INPROG_SET",
        "nacked by worker2 to DLQ_SET",
        "replayed by admin to PENDING_LIST",
        "claimed by worker to INPROG_SET",
        "submitted by worker to NONE",
    ];
    assert_eq!(steps, expected);

    let cleanup = h.post(ADMIN, "admin/tasks/cleanup", json!({"before": LATER})).await.expect(200);
    assert_eq!(cleanup.json()["deleted"], 1);
    h.get(PRODUCER, &path("")).await.refused(404, "not found");
    h.get(PRODUCER, &path("/history")).await.refused(404, "not found");
    assert_eq!(h.get(ADMIN, "admin/queues").await.expect(200).json(), json!({}));
}

fn step(entry: &Value) -> String {
    let text = |name: &str| entry[name].as_str().unwrap_or("-");
    format!("{} by {} to {}", text("event"), text("who"), text("to"))
}

#[tokio::test]
async fn a_lease_that_ends_is_a_failed_attempt() {
    let h = Harness::start().await;
    let make = async |attempts: u32| {
        let body = json!({"command": "c", "payload": 1, "maxAttempts": attempts});
        h.enqueue(PRODUCER, body).await
    };
    let (once, twice) = (make(1).await, make(2).await);
    let start = Instant::now();
    let claim = json!({"count": 2, "leaseSeconds": 1});
    h.post(WORKER, "tasks/claim/batch", claim).await.expect(200);
    // The server ends the lease by itself: no request makes it look.
    let path = format!("tasks/{once}/result?waitSeconds=30");
    let result = h.get(PRODUCER, &path).await.expect(200).json();
    let took = start.elapsed();
    assert!(took >= Duration::from_secs(1), "{took:?}");
    assert_eq!(result["result"]["error"], "LEASE_EXPIRED");
    assert_eq!(result["task"]["lastKnownLocation"], "DLQ_SET");
    let beat = h.act(WORKER, &format!("tasks/{twice}/heartbeat")).await;
    beat.refused(409, "not-in-progress");
    let task = h.get(PRODUCER, &format!("tasks/{twice}")).await.expect(200).json();
    assert_eq!((&task["attempts"], &task["error"]), (&json!(1), &json!("LEASE_EXPIRED")));
    let done = json!({"status": "COMPLETED"});
    let late = h.post(WORKER, &format!("tasks/{twice}/result"), done).await;
    late.refused(409, "not-in-progress");
}

#[tokio::test]
async fn attempts_run_out_exactly_at_the_ceiling() {
    let h = Harness::start().await;
    let id = h.enqueue(PRODUCER, json!({"command": "c", "payload": 1, "maxAttempts": 4})).await;
    for attempt in 0..4 {
        let claimed = h.claim(WORKER, "c").await;
        assert_eq!(claimed.get("attempts").and_then(Value::as_u64).unwrap_or(0), attempt);
        let verb = if attempt % 2 == 0 { "abandon" } else { "nack" };
        let body = if verb == "nack" { json!({"delaySeconds": 0}) } else { json!({}) };
        let gone = h.post(WORKER, &format!("tasks/{id}/{verb}"), body).await.expect(200).json();
        assert_eq!(gone["status"], if attempt == 3 { "dlq" } else { "requeued" });
    }
    let result = h.get(PRODUCER, &format!("tasks/{id}/result")).await.expect(200).json();
    assert_eq!(result["result"]["error"], "MAX_ATTEMPTS", "nobody gave a reason");
}
