//! What admins call: queues, cleanup.

use serde_json::json;

use crate::http::harness::{ADMIN, Harness, LATER, OPERATOR, PRODUCER, PRODUCER_B, WORKER};
use crate::http::shape::assert_shape;

/// Five tasks of `c`: dead, running, delayed, and two pending ones with different priorities.
async fn fill(h: &Harness) {
    h.dead("c", "x").await;
    h.running("c").await;
    let delayed = json!({"command": "c", "payload": {}, "delaySeconds": 600});
    h.enqueue(PRODUCER, delayed).await;
    h.enqueue(PRODUCER, json!({"command": "C", "payload": {}, "priority": 9})).await;
    h.task("c").await;
}

#[tokio::test]
async fn queues_as_a_flat_map_as_a_list_and_one_by_one() {
    let h = Harness::start().await;
    assert_eq!(h.get(ADMIN, "admin/queues").await.expect(200).json(), json!({}));
    fill(&h).await;
    let flat = h.get(ADMIN, "admin/queues").await.expect(200).json();
    let expected = json!({
        "codeq:q:c:a:pending:0": 1, "codeq:q:c:a:pending:9": 1, "codeq:q:c:a:inprog": 1,
        "codeq:q:c:a:delayed": 1, "codeq:q:c:a:dlq": 1,
    });
    assert_eq!(flat, expected);
    let list = h.get(ADMIN, "admin/queues?format=list").await.expect(200).json();
    let item = json!({
        "tenantId": "a", "command": "c", "ready": 2, "delayed": 1, "inProgress": 1, "dlq": 1,
        "completed": 0, "failed": 0, "cancelled": 0, "bytes": "<number>", "paused": false,
        "oldestReadySeconds": "<number>", "enqueuedPerSecond": "<number>",
        "claimedPerSecond": "<number>", "finishedPerSecond": "<number>",
    });
    assert_shape(&list, &json!({"items": [item]}));
    let counts = |command: &str, [ready, delayed, running, dlq]: [u64; 4]| {
        json!({
            "command": command, "ready": ready, "delayed": delayed, "inProgress": running, "dlq": dlq,
            "completed": 0, "failed": 0, "cancelled": 0, "paused": false,
        })
    };
    let one = counts("C", [2, 1, 1, 1]);
    assert_eq!(h.get(ADMIN, "admin/queues/C").await.expect(200).json(), one);
    let none = counts("none", [0; 4]);
    assert_eq!(h.get(ADMIN, "admin/queues/none").await.expect(200).json(), none);
    let refused = h.get(ADMIN, "admin/queues?format=xml").await;
    assert_eq!(refused.refused(400, "invalid 'format' (list, or absent)")["field"], "format");
    h.get(ADMIN, &format!("admin/queues/{}", "x".repeat(129)))
        .await
        .refused(400, "invalid command");
}

#[tokio::test]
async fn an_operator_sees_the_queues_of_all_tenants() {
    let h = Harness::start().await;
    h.task("c").await;
    h.enqueue(PRODUCER_B, json!({"command": "c", "payload": 1})).await;
    let all = h.get(OPERATOR, "admin/queues?allTenants=true").await.expect(200).json();
    assert_eq!(all, json!({"codeq:q:c:a:pending:0": 1, "codeq:q:c:b:pending:0": 1}));
    let own = h.get(OPERATOR, "admin/queues").await.expect(200).json();
    assert_eq!(own, json!({"codeq:q:c:a:pending:0": 1}));
    h.get(ADMIN, "admin/queues?allTenants=true").await.expect(403);
}

#[tokio::test]
async fn cleanup_removes_what_is_finished_and_nothing_else() {
    let h = Harness::start().await;
    fill(&h).await;
    let dead = h.dead("d", "x").await;
    let done = h.completed("e").await;
    let cleanup = async |body| h.post(ADMIN, "admin/tasks/cleanup", body).await;
    let old = cleanup(json!({"before": "2001-01-01T00:00:00Z"})).await.expect(200).json();
    let nothing = json!({"before": "2001-01-01T00:00:00.000Z", "deleted": 0, "limit": 1000});
    assert_eq!(old, nothing);
    let one = cleanup(json!({"before": LATER, "limit": 1})).await.expect(200).json();
    let more = &one["nextCursor"];
    assert!(more.is_string(), "{one}");
    let stopped =
        json!({"before": "2999-01-01T00:00:00.000Z", "deleted": 1, "limit": 1, "nextCursor": more});
    assert_eq!(one, stopped);
    let rest = cleanup(json!({"before": LATER})).await.expect(200).json();
    assert_eq!(rest["deleted"], 2);
    for id in [dead, done] {
        h.get(PRODUCER, &format!("tasks/{id}")).await.refused(404, "not found");
        h.get(PRODUCER, &format!("tasks/{id}/result")).await.refused(404, "task not found");
    }
    let left = h.get(ADMIN, "admin/queues/c").await.expect(200).json();
    let live = json!({
        "command": "c", "ready": 2, "delayed": 1, "inProgress": 1, "dlq": 0,
        "completed": 0, "failed": 0, "cancelled": 0, "paused": false,
    });
    assert_eq!(left, live);
    let bare = h.act(ADMIN, "admin/tasks/cleanup").await.expect(200).json();
    assert_shape(&bare, &json!({"before": "<time>", "deleted": 0, "limit": 1000}));
    cleanup(json!({"before": "soon"})).await.refused(400, "invalid 'before' (use RFC3339)");
    let clamped = cleanup(json!({"limit": 5_000_000_000_u64})).await.expect(200).json();
    assert_eq!(clamped["limit"], json!(1_000), "as much as is allowed");
    cleanup(json!({"limit": -1})).await.refused(400, "invalid body");
    h.claim(WORKER, "c").await;
}
