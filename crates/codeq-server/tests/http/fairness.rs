//! Long calls of one tenant come in parts, and resume.

use serde_json::json;

use crate::http::harness::{ADMIN, Harness, LATER, PRODUCER};

/// Finished tasks in many queues: of each queue as many.
async fn finished(h: &Harness, queues: usize, each: usize) {
    for queue in 0..queues {
        let task = json!({"command": format!("q{queue:03}"), "payload": 1});
        let batch = json!({"tasks": vec![task; each]});
        h.post(PRODUCER, "tasks/batch", batch).await.expect(200);
        let path = format!("admin/queues/q{queue:03}/purge");
        let purged = h.post(ADMIN, &path, json!({})).await.expect(200).json();
        assert_eq!(purged, json!({"purged": each, "remaining": 0}));
    }
}

#[tokio::test]
async fn a_cleanup_over_many_queues_is_bounded_as_a_whole() {
    for shards in [1, 3] {
        let h = Harness::with(|config| config.shards = Some(shards)).await;
        finished(&h, 20, 60).await;
        let mut deleted = Vec::new();
        loop {
            let request = json!({"limit": 500, "before": LATER});
            let done = h.post(ADMIN, "admin/tasks/cleanup", request).await.expect(200).json();
            assert_eq!(done["limit"], 500);
            match done["deleted"].as_u64().unwrap() {
                0 => break,
                n => deleted.push(n),
            }
        }
        // A call also ends when its time is over, so that there may be more of them on a busy machine.
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
