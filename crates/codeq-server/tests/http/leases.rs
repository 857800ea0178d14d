//! Leases by name: `workerId` and `fence`.

use serde_json::{Value, json};

use crate::http::harness::{ADMIN, Harness, PRODUCER, WORKER, WORKER_2};
use crate::http::shape::with;

/// What a worker can do with a task: path and body.
fn actions(id: &str) -> [(String, Value); 5] {
    let of = |verb: &str, body| (format!("tasks/{id}/{verb}"), body);
    [
        of("heartbeat", json!({})),
        of("nack", json!({"delaySeconds": 0})),
        of("abandon", json!({})),
        of("result", json!({"status": "COMPLETED"})),
        ("tasks/batch/results".to_owned(), json!({"taskId": id, "status": "COMPLETED"})),
    ]
}

/// Takes an action and returns the status, and the short text of a refusal.
async fn attempt(h: &Harness, token: &str, path: &str, body: Value) -> (u16, String) {
    if !path.ends_with("results") {
        let reply = h.post(token, path, body).await;
        let body = reply.json();
        let error = body["error"].as_str().filter(|_| reply.status != 200);
        return (reply.status, error.unwrap_or_default().to_owned());
    }
    let reply = h.post(token, path, json!({"results": [body]})).await.expect(200).json();
    let error = reply["results"][0]["error"].as_str();
    (error.map_or(200, |_| 0), error.unwrap_or_default().to_owned())
}

async fn claim(h: &Harness, body: Value) -> Value {
    h.post(WORKER, "tasks/claim", body).await.expect(200).json()
}

#[tokio::test]
async fn filters_find_a_worker_by_the_name_that_answers_show() {
    let h = Harness::start().await;
    let task = json!({"command": "c", "payload": 1, "maxAttempts": 1});
    h.post(PRODUCER, "tasks", task).await.expect(202);
    let claimed = claim(&h, json!({"commands": ["c"], "workerId": "a"})).await;
    let shown = claimed["workerId"].as_str().unwrap();
    let listed = async |worker: &str| {
        let list = h.get(PRODUCER, &format!("tasks?filter=worker={worker}")).await.expect(200);
        list.json()["items"].as_array().unwrap().len()
    };
    assert_eq!((listed(shown).await, listed("a").await, listed("worker").await), (1, 0, 0));
    let path = format!("tasks/{}/nack", claimed["id"].as_str().unwrap());
    h.post(WORKER, &path, json!({"workerId": "a", "reason": "no"})).await.expect(200);
    let dry = json!({"worker": shown, "dryRun": true});
    let dry = h.post(ADMIN, "admin/dlq/c/purge", dry).await.expect(200).json();
    assert_eq!(dry["matched"], 1);
    // A limit of 0 is refused: it does not mean no limit.
    for path in ["admin/dlq/c/purge", "admin/dlq/c/replay", "admin/queues/c/purge"] {
        h.post(ADMIN, path, json!({"limit": 0})).await.refused(400, "invalid 'limit'");
    }
    let replayed = h.post(ADMIN, "admin/dlq/c/replay", json!({"worker": shown})).await.expect(200);
    assert_eq!(replayed.json()["replayed"], 1);
}

#[tokio::test]
async fn a_stale_fence_is_a_lost_lease_though_the_token_is_the_same() {
    let h = Harness::start().await;
    for n in 0..5 {
        let id = h.running("c").await;
        h.post(WORKER, &format!("tasks/{id}/nack"), json!({"delaySeconds": 0})).await.expect(200);
        // A second process with the same token.
        assert_eq!(h.claim(WORKER, "c").await["fence"], 2);
        let (path, body) = actions(&id)[n].clone();
        for fence in [1, 3] {
            let stale = with(body.clone(), json!({"fence": fence}));
            let (status, error) = attempt(&h, WORKER, &path, stale).await;
            assert_eq!(error, "lease-lost", "{path}");
            assert!(status == 409 || status == 0, "{status} {path}");
        }
        let task = h.get(WORKER, &format!("tasks/{id}")).await.expect(200).json();
        assert_eq!((&task["status"], &task["fence"]), (&json!("IN_PROGRESS"), &json!(2)));
        let current = with(body, json!({"fence": 2}));
        assert_eq!(attempt(&h, WORKER, &path, current).await, (200, String::new()), "{path}");
        // Finishes the task, whatever the action was.
        h.post(WORKER, "tasks/claim", json!({})).await;
        h.post(WORKER, &format!("tasks/{id}/result"), json!({"status": "COMPLETED"})).await;
    }
}

#[tokio::test]
async fn a_lost_lease_as_a_problem() {
    let h = Harness::start().await;
    let id = h.running("c").await;
    let path = format!("tasks/{id}/heartbeat");
    let problem = h.post(WORKER, &path, json!({"fence": 9})).await.refused(409, "lease-lost");
    assert_eq!(problem["code"], "lease_lost");
    h.post(WORKER, &path, json!({"fence": "1"})).await.refused(400, "invalid body");
    h.post(WORKER, &path, json!({"fence": null, "workerId": null})).await.expect(200);
    // A task that does not exist, and one that somebody else holds.
    let other = path.replace(&id, crate::http::harness::UNKNOWN_ID);
    h.post(WORKER, &other, json!({"fence": 1})).await.refused(404, "not-found");
    h.post(WORKER_2, &path, json!({"fence": 1})).await.refused(403, "not-owner");
    h.post(WORKER_2, &path, json!({"fence": 2})).await.refused(409, "lease-lost");
    // Only the holder of the lease learns that its result is invalid.
    let result = format!("tasks/{id}/result");
    h.post(WORKER, &result, json!({"status": "NO", "fence": 2})).await.refused(409, "lease-lost");
    h.post(WORKER, &result, json!({"status": "NO", "fence": 1}))
        .await
        .refused(400, "invalid status");
    h.post(WORKER, &result, json!({"status": "COMPLETED", "fence": 1})).await.expect(200);
    h.post(WORKER, &result, json!({"status": "COMPLETED", "fence": 1})).await.expect(200);
    h.post(WORKER, &path, json!({"fence": 1})).await.refused(409, "not-in-progress");
    h.post(WORKER, &path, json!({"fence": 2})).await.refused(409, "lease-lost");
}

#[tokio::test]
async fn instances_of_one_token_have_their_own_leases() {
    let h = Harness::start().await;
    for n in 0..5 {
        let id = h.task("c").await;
        let task = claim(&h, json!({"workerId": "a"})).await;
        assert_eq!((&task["id"], &task["workerId"]), (&json!(id), &json!("worker/a")));
        let (path, body) = actions(&id)[n].clone();
        for other in [json!({}), json!({"workerId": "b"}), json!({"workerId": "worker"})] {
            let (status, error) = attempt(&h, WORKER, &path, with(body.clone(), other)).await;
            assert_eq!(error, "not-owner", "{path}");
            assert!(status == 403 || status == 0, "{status} {path}");
        }
        // With the name that it claimed with, or with the one that answers show.
        let name = if n % 2 == 0 { "a" } else { "worker/a" };
        let own = with(body, json!({"workerId": name}));
        assert_eq!(attempt(&h, WORKER, &path, own).await, (200, String::new()), "{path}");
        let left = claim_all(&h).await;
        let done = json!({"status": "COMPLETED", "workerId": "a"});
        let again = h.post(WORKER, &format!("tasks/{id}/result"), done).await;
        assert!(again.status == 200 || left, "{}", again.text());
    }
}

/// Claims what is left as the instance `a`; false if there was nothing.
async fn claim_all(h: &Harness) -> bool {
    h.post(WORKER, "tasks/claim", json!({"workerId": "a"})).await.status == 200
}

#[tokio::test]
async fn batches_of_claims_name_an_instance_too() {
    let h = Harness::start().await;
    h.task("c").await;
    let body = json!({"count": 2, "workerId": "b"});
    let tasks = h.post(WORKER, "tasks/claim/batch", body).await.expect(200).json();
    assert_eq!(tasks["tasks"][0]["workerId"], "worker/b");
    for name in ["x".repeat(300), "a\nb".to_owned()] {
        for (path, body) in [
            ("tasks/claim", json!({"workerId": name})),
            ("tasks/claim/batch", json!({"workerId": name, "count": 1})),
        ] {
            let problem = h.post(WORKER, path, body).await;
            let problem = problem.refused(400, "invalid workerId");
            assert_eq!(
                (&problem["code"], &problem["field"]),
                (&json!("invalid_worker"), &json!("workerId"))
            );
        }
    }
    // The subject itself and the empty name are not instances.
    for name in ["worker", ""] {
        h.task("d").await;
        assert_eq!(
            claim(&h, json!({"workerId": name, "commands": ["d"]})).await["workerId"],
            "worker"
        );
    }
}

/// codeQ's clients claim without a `workerId`, and send the one that they are configured with in results.
#[tokio::test]
async fn a_worker_id_in_a_result_is_not_held_against_a_lease_without_one() {
    let h = Harness::start().await;
    for name in ["host-7", "worker/host-7", "", "worker2", "a\nb", &"x".repeat(2_000)] {
        let id = h.running("c").await;
        let done = json!({"status": "COMPLETED", "result": {"n": 1}, "workerId": name});
        let path = format!("tasks/{id}/result");
        let first = h.post(WORKER, &path, done.clone()).await.expect(200).json();
        assert_eq!(h.post(WORKER, &path, done).await.expect(200).json(), first);
        let history = h.get(WORKER, &format!("tasks/{id}/history")).await.expect(200).json();
        assert_eq!(history["items"][2]["who"], "worker");
        let id = h.running("c").await;
        let item = json!({"taskId": id, "status": "FAILED", "error": "no", "workerId": name});
        let answer = h.post(WORKER, "tasks/batch/results", json!({"results": [item]})).await;
        assert_eq!(answer.expect(200).json()["results"][0]["result"]["error"], "no");
    }
    // The name gives no access to somebody else's lease.
    let id = h.running("c").await;
    let done = json!({"status": "COMPLETED", "workerId": "worker"});
    h.post(WORKER_2, &format!("tasks/{id}/result"), done).await.refused(403, "not-owner");
}

#[tokio::test]
async fn a_result_and_an_error_are_both_kept() {
    let h = Harness::start().await;
    for (n, status) in ["COMPLETED", "FAILED", "COMPLETED", "FAILED"].into_iter().enumerate() {
        let id = h.running("c").await;
        let body = json!({"status": status, "result": {"half": 1}, "error": "the rest"});
        for _ in 0..2 {
            if n < 2 {
                h.post(WORKER, &format!("tasks/{id}/result"), body.clone()).await.expect(200);
            } else {
                let item = with(body.clone(), json!({"taskId": id}));
                let answer =
                    h.post(WORKER, "tasks/batch/results", json!({"results": [item]})).await;
                assert_eq!(answer.expect(200).json()["results"][0]["result"]["error"], "the rest");
            }
        }
        let path = format!("tasks/{id}/result");
        let record = h.get(PRODUCER, &path).await.expect(200).json()["result"].clone();
        assert_eq!(
            (&record["status"], &record["result"], &record["error"]),
            (&json!(status), &json!({"half": 1}), &json!("the rest"))
        );
        let other = with(body, json!({"error": "other"}));
        h.post(WORKER, &path, other).await.refused(409, "not-in-progress");
    }
}
