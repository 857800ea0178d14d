//! Dead letters: listing, replaying and purging them.

use serde_json::{Value, json};

use crate::http::harness::{ADMIN, Harness, PRODUCER, WORKER};
use crate::http::shape::{assert_shape, new_task};

async fn ids(h: &Harness, query: &str) -> Vec<String> {
    let page = h.get(ADMIN, &format!("admin/dlq/c{query}")).await.expect(200).json();
    let items = page["items"].as_array().unwrap().clone();
    items.iter().map(|task| task["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn dead_letters_are_listed_newest_first_in_pages() {
    let h = Harness::start().await;
    assert_eq!(h.get(ADMIN, "admin/dlq/c").await.expect(200).json(), json!({"items": []}));
    let (old, new) = (h.dead("C", "timeout").await, h.dead("c", "refused").await);
    h.dead("other", "x").await;
    h.task("c").await;
    assert_eq!(ids(&h, "").await, [new.clone(), old.clone()]);
    assert_eq!(ids(&h, "?filter=error~time").await, std::slice::from_ref(&old));
    let page = h.get(ADMIN, "admin/dlq/C?limit=1").await.expect(200).json();
    let cursor = page["nextCursor"].as_str().unwrap();
    assert_eq!(ids(&h, &format!("?limit=1&cursor={cursor}")).await, [old]);
    let refused = h.get(ADMIN, &format!("tasks?cursor={cursor}")).await;
    refused.refused(400, "invalid cursor");
    let more = json!({
        "status": "FAILED", "lastKnownLocation": "DLQ_SET", "attempts": 1, "maxAttempts": 1,
        "error": "refused", "resultKey": format!("codeq/results/{new}"),
    });
    assert_shape(&page["items"][0], &new_task("c", "{}", more));
}

#[tokio::test]
async fn some_or_all_dead_letters_are_replayed() {
    let h = Harness::start().await;
    for reason in ["timeout", "refused", "timeout", "refused", "timeout"] {
        h.dead("c", reason).await;
    }
    let replay = async |body: Value| h.post(ADMIN, "admin/dlq/c/replay", body).await;
    let none = replay(json!({"errorContains": "nothing"})).await.expect(200).json();
    assert_eq!((&none["replayed"], &none["remaining"]), (&json!(0), &json!(5)));
    // With a filter, two at a time, continued by cursor.
    let first = replay(json!({"errorContains": "time", "limit": 2})).await.expect(200).json();
    assert_eq!((&first["replayed"], &first["remaining"]), (&json!(2), &json!(3)));
    let next = json!({"errorContains": "time", "limit": 2, "cursor": first["nextCursor"]});
    let second = replay(next.clone()).await.expect(200).json();
    assert_eq!((&second["replayed"], &second["remaining"]), (&json!(1), &json!(2)));
    let other = json!({"errorContains": "ref", "cursor": first["nextCursor"]});
    replay(other).await.refused(400, "invalid cursor");
    assert_eq!(ids(&h, "").await.len(), 2);
    let rest = replay(json!({})).await.expect(200).json();
    assert_shape(&rest, &json!({"replayed": 2, "remaining": 0}));
    assert_eq!(replay(json!({})).await.expect(200).json(), json!({"replayed": 0, "remaining": 0}));
    replay(json!({"limit": 1_001})).await.expect(200);
    let queue = h.get(ADMIN, "admin/queues/c").await.expect(200).json();
    assert_eq!((&queue["ready"], &queue["dlq"]), (&json!(5), &json!(0)));
    assert_eq!(h.claim(WORKER, "c").await.get("attempts"), None);
}

#[tokio::test]
async fn dead_letters_are_purged_a_bounded_number_at_a_time() {
    let h = Harness::start().await;
    let mut dead = Vec::new();
    for _ in 0..3 {
        dead.push(h.dead("c", "x").await);
    }
    let pending = h.task("c").await;
    let purge = async |body: Value| h.post(ADMIN, "admin/dlq/c/purge", body).await;
    let two = purge(json!({"limit": 2})).await.expect(200).json();
    assert_eq!((&two["purged"], &two["remaining"]), (&json!(2), &json!(1)));
    assert!(two["nextCursor"].is_string(), "{two}");
    assert_eq!(purge(json!({})).await.json(), json!({"purged": 1, "remaining": 0}));
    for id in dead {
        h.get(PRODUCER, &format!("tasks/{id}")).await.refused(404, "not found");
    }
    h.get(PRODUCER, &format!("tasks/{pending}")).await.expect(200);
}
