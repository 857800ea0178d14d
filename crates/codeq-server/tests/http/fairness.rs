//! Long calls of one tenant come in parts, and resume.

use serde_json::{Value, json};

use crate::http::harness::{ADMIN, Harness, LATER, PRODUCER};

/// Makes a bulk call until it has visited everything. A call ends when its time is over, so that on a busy machine it
/// may do nothing but say where to continue. Returns how many tasks each call changed.
async fn all(h: &Harness, path: &str, mut request: Value, changed: &str) -> Vec<u64> {
    let mut counts = Vec::new();
    loop {
        let done = h.post(ADMIN, path, request.clone()).await.expect(200).json();
        counts.push(done[changed].as_u64().unwrap());
        request["cursor"] = done["nextCursor"].clone();
        if done["nextCursor"].is_null() && counts.last() == Some(&0) {
            return counts;
        }
    }
}

/// Creates and finishes tasks in many queues, the same number in each.
async fn finished(h: &Harness, queues: usize, each: usize) {
    for queue in 0..queues {
        let task = json!({"command": format!("q{queue:03}"), "payload": 1});
        let batch = json!({"tasks": vec![task; each]});
        h.post(PRODUCER, "tasks/batch", batch).await.expect(200);
        let path = format!("admin/queues/q{queue:03}/purge");
        let purged = all(h, &path, json!({}), "purged").await;
        assert_eq!(purged.iter().sum::<u64>(), each as u64);
    }
}

#[tokio::test]
async fn a_cleanup_over_many_queues_is_bounded_as_a_whole() {
    for shards in [1, 3] {
        let h = Harness::with(|config| config.shards = Some(shards)).await;
        finished(&h, 20, 60).await;
        let request = json!({"limit": 500, "before": LATER});
        let deleted = all(&h, "admin/tasks/cleanup", request, "deleted").await;
        assert_eq!(deleted.iter().sum::<u64>(), 1_200);
        let most = deleted.iter().max();
        assert!(most <= Some(&500), "the limit is for the call, not for each shard: {deleted:?}");
        let queues = h.get(ADMIN, "admin/queues?format=list").await.expect(200).json();
        assert_eq!(queues, json!({"items": []}));
    }
}

#[tokio::test]
async fn a_filter_that_matches_nothing_ends_with_a_cursor_and_then_without() {
    let h = Harness::start().await;
    let tasks = vec![json!({"command": "c", "payload": 1}); 100];
    for _ in 0..104 {
        h.post(PRODUCER, "tasks/batch", json!({"tasks": tasks})).await.expect(200);
    }
    let (mut pages, mut cursor) = (0, String::new());
    loop {
        let path = format!("tasks?filter=worker%3Dnobody{cursor}");
        let page = h.get(PRODUCER, &path).await.expect(200).json();
        assert_eq!(page["items"], json!([]));
        pages += 1;
        match page["nextCursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert!(pages >= 2, "10,400 rows are more than one page looks at");
}

#[tokio::test]
async fn a_cursor_of_a_bulk_call_is_good_for_that_call_only() {
    let h = Harness::start().await;
    for n in 0..3 {
        let task = json!({"command": "c", "payload": n, "maxAttempts": 1});
        h.post(PRODUCER, "tasks", task).await.expect(202);
    }
    for path in ["admin/queues/c/purge", "admin/dlq/c/purge", "admin/tasks/cleanup"] {
        let request = json!({"cursor": "AAAA"});
        h.post(ADMIN, path, request).await.refused(400, "invalid cursor");
    }
}
