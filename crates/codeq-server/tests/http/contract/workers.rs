//! What workers call: claim, heartbeat, abandon, nack, submit.

use serde_json::{Value, json};

use crate::http::harness::{Harness, PRODUCER, RESTRICTED, UNKNOWN_ID, WORKER, WORKER_2};
use crate::http::shape::{assert_shape, new_task};

fn leased(command: &str) -> Value {
    let more = json!({
        "status": "IN_PROGRESS", "lastKnownLocation": "INPROG_SET", "workerId": "worker",
        "leaseUntil": "<time>", "fence": 1,
    });
    new_task(command, "{}", more)
}

#[tokio::test]
async fn claim_one() {
    let h = Harness::start().await;
    let none = h.act(WORKER, "tasks/claim").await.expect(204);
    assert!(none.body.is_empty());
    h.task("c").await;
    assert_shape(&h.act(WORKER, "tasks/claim").await.expect(200).json(), &leased("c"));
    // Queues ignore the case of their names; the task keeps what was sent.
    h.task("Camel").await;
    assert_shape(&h.claim(WORKER, "cAMEL").await, &leased("Camel"));
    let cases = [
        (json!({"leaseSeconds": 43_201}), "invalid lease (1 to 43200 s)"),
        (json!({"leaseSeconds": "1"}), "invalid body"),
        (json!({"commands": "c"}), "invalid body"),
        (json!({"commands": ["", " \n"]}), "invalid command"),
        (json!([]), "invalid body"),
    ];
    for (body, error) in cases {
        h.post(WORKER, "tasks/claim", body).await.refused(400, error);
    }
    let id = h.task("c").await;
    // Blanks are trimmed, and negative numbers mean the default.
    let body = json!({"commands": [" c\t", " ", ""], "leaseSeconds": -1, "waitSeconds": -1});
    let claimed = h.post(WORKER, "tasks/claim", body).await.expect(200).json();
    assert_eq!(claimed["id"], *id);
    assert_shape(&claimed, &leased("c"));
    h.post(WORKER, "tasks/claim", json!({"commands": [], "waitSeconds": -9})).await.expect(204);
}

#[tokio::test]
async fn claim_only_what_the_token_allows() {
    let h = Harness::start().await;
    for command in ["b", "A", "b"] {
        h.task(command).await;
    }
    let refused = async |commands: Value| {
        let body = json!({"commands": commands});
        h.post(RESTRICTED, "tasks/claim", body.clone())
            .await
            .refused(403, "event type not allowed");
        let body = crate::http::shape::with(body, json!({"count": 2}));
        h.post(RESTRICTED, "tasks/claim/batch", body).await.refused(403, "event type not allowed");
    };
    refused(json!(["b"])).await;
    refused(json!(["a", "b"])).await;
    refused(json!(["*"])).await;
    // No commands mean all that are allowed.
    let claimed = h.act(RESTRICTED, "tasks/claim").await.expect(200).json();
    assert_eq!((&claimed["command"], &claimed["workerId"]), (&json!("A"), &json!("restricted")));
    h.post(RESTRICTED, "tasks/claim", json!({"commands": []})).await.expect(204);
    h.post(RESTRICTED, "tasks/claim", json!({"commands": ["A"]})).await.expect(204);
}

#[tokio::test]
async fn claim_several() {
    let h = Harness::start().await;
    for _ in 0..3 {
        h.task("c").await;
    }
    let claim = async |body: Value| h.post(WORKER, "tasks/claim/batch", body).await;
    let two = claim(json!({"count": 2})).await.expect(200).json();
    assert_shape(&two, &json!({"tasks": [leased("c"), leased("c")]}));
    assert_eq!(claim(json!({"count": 10})).await.expect(200).json()["tasks"][0]["fence"], 1);
    assert!(claim(json!({"count": 10})).await.expect(204).body.is_empty());
    claim(json!({"count": 11})).await.refused(400, "count exceeds maximum of 10");
    for count in [json!(0), json!(-1), json!("1"), Value::Null] {
        claim(json!({"count": count})).await.refused(400, "invalid body");
    }
}

#[tokio::test]
async fn claim_takes_the_highest_priority_then_the_oldest() {
    let h = Harness::start().await;
    let make = async |command: &str, priority: u8| {
        let body = json!({"command": command, "payload": 1, "priority": priority});
        h.enqueue(PRODUCER, body).await
    };
    let (low, first, top) = (make("x", 1).await, make("y", 5).await, make("x", 9).await);
    let second = make("x", 5).await;
    let body = json!({"commands": ["x", "y"], "count": 4});
    let got = h.post(WORKER, "tasks/claim/batch", body).await.expect(200).json();
    let ids: Vec<_> = (0..4).map(|n| got["tasks"][n]["id"].as_str().unwrap()).collect();
    assert_eq!(ids, [top, first, second, low]);
}

#[tokio::test]
async fn heartbeat_abandon_nack() {
    let h = Harness::start().await;
    let id = h.running("c").await;
    let verb = |verb: &str| format!("tasks/{id}/{verb}");
    let beat = h.act(WORKER, &verb("heartbeat")).await.expect(200).json();
    let alive = json!({"ok": true, "leaseUntil": "<time>", "cancelRequested": false});
    assert_shape(&beat, &alive);
    let beat =
        h.post(WORKER, &verb("heartbeat"), json!({"extendSeconds": 7_200})).await.expect(200);
    let lease = h.get(WORKER, &format!("tasks/{id}")).await.expect(200).json();
    assert_eq!(lease["leaseUntil"], beat.json()["leaseUntil"]);
    let beat = h.post(WORKER, &verb("heartbeat"), json!({"extendSeconds": -1})).await.expect(200);
    assert!(beat.json()["leaseUntil"].as_str() < lease["leaseUntil"].as_str(), "the default");

    let free = h.post(WORKER, &verb("abandon"), json!({"penalty": false})).await.expect(200);
    assert_eq!(free.json(), json!({"status": "requeued"}));
    assert_eq!(h.claim(WORKER, "c").await.get("attempts"), None);
    let costly = h.act(WORKER, &verb("abandon")).await.expect(200);
    assert_eq!(costly.json(), json!({"status": "requeued"}));
    assert_eq!(h.claim(WORKER, "c").await["attempts"], 1);
    let nack = json!({"delaySeconds": 0, "reason": "no luck"});
    let nacked = h.post(WORKER, &verb("nack"), nack).await.expect(200);
    assert_eq!(nacked.json(), json!({"status": "requeued", "delaySeconds": 0}));
    let again = h.claim(WORKER, "c").await;
    assert_eq!((&again["attempts"], &again["error"]), (&json!(2), &json!("no luck")));
    assert_eq!(again["fence"], 4);
    let nacked = h.post(WORKER, &verb("nack"), json!({"delaySeconds": 60})).await.expect(200);
    assert_eq!(nacked.json(), json!({"status": "requeued", "delaySeconds": 60}));
    let last = json!({"command": "d", "payload": 1, "maxAttempts": 1});
    let last = h.enqueue(PRODUCER, last).await;
    h.claim(WORKER, "d").await;
    let gone = h.act(WORKER, &format!("tasks/{last}/abandon")).await.expect(200);
    assert_eq!(gone.json(), json!({"status": "dlq"}));
}

#[tokio::test]
async fn a_nack_without_a_delay_backs_off() {
    let h = Harness::start().await;
    let id = h.running("c").await;
    let nacked = h.act(WORKER, &format!("tasks/{id}/nack")).await.expect(200).json();
    assert_shape(&nacked, &json!({"status": "requeued", "delaySeconds": "<number>"}));
    assert!(nacked["delaySeconds"].as_u64().unwrap() <= 5, "{nacked}");
    let id = h.running("d").await;
    let body = json!({"delaySeconds": 100_000});
    let nacked = h.post(WORKER, &format!("tasks/{id}/nack"), body).await.expect(200).json();
    assert_eq!(nacked["delaySeconds"], 900, "capped at the longest pause");
    let id = h.running("e").await;
    let body = json!({"delaySeconds": -1});
    let nacked = h.post(WORKER, &format!("tasks/{id}/nack"), body).await.expect(200).json();
    assert!(nacked["delaySeconds"].as_u64().unwrap() <= 5, "{nacked}");
}

#[tokio::test]
async fn existence_then_state_then_owner() {
    let h = Harness::start().await;
    let (pending, running) = (h.task("p").await, h.running("r").await);
    for verb in ["heartbeat", "abandon", "nack"] {
        for id in [UNKNOWN_ID, "nonsense"] {
            h.act(WORKER, &format!("tasks/{id}/{verb}")).await.refused(404, "not-found");
        }
        let path = format!("tasks/{pending}/{verb}");
        h.act(WORKER_2, &path).await.refused(409, "not-in-progress");
        h.act(WORKER_2, &format!("tasks/{running}/{verb}")).await.refused(403, "not-owner");
    }
    // Checked in this order: each error is reported only if the ones before it do not apply.
    for body in [json!({"status": "NO"}), json!({}), json!({"status": "FAILED"})] {
        let submit = async |token: &str, id: &str| {
            h.post(token, &format!("tasks/{id}/result"), body.clone()).await
        };
        submit(WORKER_2, UNKNOWN_ID).await.refused(404, "task not found");
        submit(WORKER_2, "nonsense").await.refused(404, "task not found");
        submit(WORKER_2, &pending).await.refused(409, "not-in-progress");
        submit(WORKER_2, &running).await.refused(403, "not-owner");
        submit(WORKER, &running).await.expect(400);
    }
}

#[tokio::test]
async fn submit() {
    let h = Harness::start().await;
    let id = h.running("c").await;
    let submit =
        async |id: &str, body: Value| h.post(WORKER, &format!("tasks/{id}/result"), body).await;
    let flaws = [
        (json!({}), "invalid status"),
        (json!({"status": "completed"}), "invalid status"),
        (json!({"status": "FAILED"}), "error required when status=FAILED"),
        (json!({"status": "FAILED", "error": ""}), "error required when status=FAILED"),
        (json!({"status": "COMPLETED", "result": [1]}), "invalid result (must be an object)"),
        (
            json!({"status": "COMPLETED", "artifacts": [{"name": "n", "url": ""}]}),
            "invalid artifacts",
        ),
    ];
    for (body, error) in flaws {
        submit(&id, body).await.refused(400, error);
    }
    let nameless = json!({"status": "COMPLETED", "artifacts": [{"url": "http://a/"}]});
    assert_eq!(submit(&id, nameless).await.expect(400).json()["code"], "invalid_artifacts");

    let artifacts = json!([{"name": "n", "url": "s3://b/n"}]);
    let full = json!({"status": "COMPLETED", "result": {"ok": true}, "artifacts": artifacts});
    let record = json!({
        "taskId": id, "status": "COMPLETED", "result": {"ok": true}, "artifacts": artifacts,
        "completedAt": "<time>",
    });
    let first = submit(&id, full.clone()).await.expect(200).json();
    assert_shape(&first, &record);
    assert_eq!(submit(&id, full).await.expect(200).json(), first, "a lost answer is given again");
    let other = json!({"status": "COMPLETED", "result": {"ok": false}});
    submit(&id, other).await.refused(409, "not-in-progress");
    let other = json!({"status": "FAILED", "error": "late"});
    submit(&id, other).await.refused(409, "not-in-progress");

    let id = h.running("c").await;
    let failed = submit(&id, json!({"status": "FAILED", "error": "no"})).await.expect(200).json();
    let record = json!({"taskId": id, "status": "FAILED", "error": "no", "completedAt": "<time>"});
    assert_shape(&failed, &record);
    let id = h.running("c").await;
    let empty = submit(&id, json!({"status": "COMPLETED"})).await.expect(200).json();
    assert_eq!(empty["result"], json!({}));
}

#[tokio::test]
async fn submit_several() {
    let h = Harness::start().await;
    let (one, two, three) = (h.running("c").await, h.running("c").await, h.running("c").await);
    let pending = h.task("c").await;
    let results = json!([
        {"taskId": one, "status": "COMPLETED", "result": {"n": 1}},
        {"taskId": UNKNOWN_ID, "status": "COMPLETED"},
        {"taskId": pending, "status": "COMPLETED"},
        {"taskId": three, "status": "NO"},
        {"taskId": two, "status": "FAILED", "error": "no"},
    ]);
    let body = json!({"results": results});
    let done = h.post(WORKER, "tasks/batch/results", body).await.expect(200).json();
    let record = json!({
        "taskId": one, "status": "COMPLETED", "result": {"n": 1}, "completedAt": "<time>"
    });
    let failed = json!({"taskId": two, "status": "FAILED", "error": "no", "completedAt": "<time>"});
    let expected = json!({"results": [
        {"taskId": one, "result": record},
        {"taskId": UNKNOWN_ID, "error": "task not found", "code": "not_found", "detail": "<text>"},
        {"taskId": pending, "error": "not-in-progress", "code": "not_in_progress", "detail": "<text>"},
        {"taskId": three, "error": "invalid status", "code": "invalid_status", "detail": "<text>", "field": "status"},
        {"taskId": two, "result": failed},
    ]});
    assert_shape(&done, &expected);
    let item = json!({"taskId": one, "status": "COMPLETED"});
    let many = h.post(WORKER, "tasks/batch/results", json!({"results": vec![item; 101]})).await;
    many.refused(400, "batch size exceeds maximum of 100");
    for body in [json!({}), json!({"results": []})] {
        h.post(WORKER, "tasks/batch/results", body).await.refused(400, "invalid body");
    }
}
