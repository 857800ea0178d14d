//! Pause, resume and purge.

use serde_json::json;

use crate::http::harness::{ADMIN, Harness, PRODUCER, WORKER};

#[tokio::test]
async fn a_paused_queue_takes_tasks_and_hands_out_none() {
    let h = Harness::start().await;
    let paused = h.act(ADMIN, "admin/queues/C/pause").await.expect(200).json();
    assert_eq!(paused, json!({"command": "C", "paused": true}));
    let (id, other) = (h.task("c").await, h.task("d").await);
    h.post(WORKER, "tasks/claim", json!({"commands": ["c"]})).await.expect(204);
    let claimed = h.act(WORKER, "tasks/claim").await.expect(200);
    assert_eq!(claimed.id(), other, "the rest goes on");
    h.act(WORKER, "tasks/claim").await.expect(204);
    let list = h.get(ADMIN, "admin/queues?format=list").await.expect(200).json();
    let states: Vec<_> = list["items"].as_array().unwrap().iter().map(|q| &q["paused"]).collect();
    assert_eq!(states, [true, false]);
    let one = async |name: &str| h.get(ADMIN, &format!("admin/queues/{name}")).await.json();
    assert_eq!(
        (&one("c").await["paused"], &one("d").await["paused"]),
        (&json!(true), &json!(false))
    );
    for _ in 0..2 {
        let resumed = h.act(ADMIN, "admin/queues/c/resume").await.expect(200).json();
        assert_eq!(resumed, json!({"command": "c", "paused": false}));
        assert_eq!(one("c").await["paused"], false);
    }
    assert_eq!(h.claim(WORKER, "c").await["id"], *id);
}

#[tokio::test]
async fn what_runs_when_a_queue_is_paused_may_finish() {
    let h = Harness::start().await;
    let id = h.running("c").await;
    h.act(ADMIN, "admin/queues/c/pause").await.expect(200);
    h.act(WORKER, &format!("tasks/{id}/heartbeat")).await.expect(200);
    let done = json!({"status": "COMPLETED"});
    h.post(WORKER, &format!("tasks/{id}/result"), done).await.expect(200);
}

#[tokio::test]
async fn a_purge_cancels_what_waits_a_bounded_number_at_a_time() {
    let h = Harness::start().await;
    let running = h.running("c").await;
    let dead = h.dead("d", "x").await;
    let mut ids = Vec::new();
    for delay in [0, 0, 600] {
        let body = json!({"command": "c", "payload": 1, "delaySeconds": delay});
        ids.push(h.enqueue(PRODUCER, body).await);
    }
    let other = h.task("d").await;
    let purge = async |body| h.post(ADMIN, "admin/queues/c/purge", body).await;
    let some = purge(json!({"limit": 2})).await.expect(200).json();
    assert_eq!((&some["purged"], &some["remaining"]), (&json!(2), &json!(1)));
    assert!(some["nextCursor"].is_string(), "{some}");
    assert_eq!(purge(json!({})).await.json(), json!({"purged": 1, "remaining": 0}));
    assert_eq!(purge(json!({})).await.json(), json!({"purged": 0, "remaining": 0}));
    purge(json!({"limit": 1_001})).await.expect(200);
    let status = async |id: &str| {
        let task = h.get(PRODUCER, &format!("tasks/{id}")).await.expect(200).json();
        (task["status"].as_str().unwrap().to_owned(), task["error"].as_str().map(str::to_owned))
    };
    for id in &ids {
        assert_eq!(status(id).await, ("FAILED".to_owned(), Some("CANCELLED".to_owned())));
    }
    assert_eq!(status(&running).await.0, "IN_PROGRESS");
    assert_eq!(status(&other).await.0, "PENDING");
    assert_eq!(status(&dead).await.1.as_deref(), Some("x"));
}
