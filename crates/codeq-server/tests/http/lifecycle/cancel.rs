//! Cancelling a task, wherever it is.

use serde_json::{Value, json};

use crate::http::harness::{ADMIN, Harness, PRODUCER, WORKER};
use crate::http::shape::{assert_shape, new_task};

fn cancelled(command: &str, id: &str) -> Value {
    let more = json!({
        "status": "FAILED", "lastKnownLocation": "NONE", "error": "CANCELLED",
        "resultKey": format!("codeq/results/{id}"),
    });
    new_task(command, "{}", more)
}

#[tokio::test]
async fn a_task_that_waits_ends_at_once() {
    let h = Harness::start().await;
    let pending = h.task("p").await;
    let delayed = json!({"command": "p", "payload": {}, "delaySeconds": 600});
    let delayed = h.enqueue(PRODUCER, delayed).await;
    for id in [pending, delayed] {
        let path = format!("tasks/{id}/cancel");
        assert_shape(&h.act(PRODUCER, &path).await.expect(200).json(), &cancelled("p", &id));
        h.act(PRODUCER, &path).await.refused(409, "task is finished");
        let result = h.get(PRODUCER, &format!("tasks/{id}/result")).await.expect(200).json();
        let record = json!({
            "taskId": id, "status": "FAILED", "error": "CANCELLED", "completedAt": "<time>",
        });
        assert_shape(&result["result"], &record);
    }
    h.act(WORKER, "tasks/claim").await.expect(204);
}

/// A running task that somebody wants to stop.
async fn asked(h: &Harness) -> String {
    let id = h.running("r").await;
    let asked = h.act(PRODUCER, &format!("tasks/{id}/cancel")).await.expect(202).json();
    let more = json!({
        "status": "IN_PROGRESS", "lastKnownLocation": "INPROG_SET", "workerId": "worker",
        "leaseUntil": "<time>", "fence": 1, "cancelRequested": true,
    });
    assert_shape(&asked, &new_task("r", "{}", more));
    h.act(PRODUCER, &format!("tasks/{id}/cancel")).await.expect(202);
    id
}

#[tokio::test]
async fn a_running_task_is_asked_to_stop() {
    let h = Harness::start().await;
    // Its worker learns of it and gives the task back, which ends it.
    for (verb, body) in [("nack", json!({})), ("abandon", json!({"penalty": false}))] {
        let id = asked(&h).await;
        let beat = h.act(WORKER, &format!("tasks/{id}/heartbeat")).await.expect(200).json();
        assert_eq!(beat["cancelRequested"], true);
        h.post(WORKER, &format!("tasks/{id}/{verb}"), body).await.expect(200);
        let task = h.get(PRODUCER, &format!("tasks/{id}")).await.expect(200).json();
        assert_eq!((&task["status"], &task["error"]), (&json!("FAILED"), &json!("CANCELLED")));
        assert_eq!(task["lastKnownLocation"], "NONE");
    }
    // If the worker completes the task instead, it is completed.
    let id = asked(&h).await;
    let done = json!({"status": "COMPLETED"});
    h.post(WORKER, &format!("tasks/{id}/result"), done).await.expect(200);
    let task = h.get(PRODUCER, &format!("tasks/{id}")).await.expect(200).json();
    assert_eq!((&task["status"], task.get("cancelRequested")), (&json!("COMPLETED"), None));
    h.act(WORKER, "tasks/claim").await.expect(204);
}

#[tokio::test]
async fn a_finished_task_stays_as_it_is() {
    let h = Harness::start().await;
    for id in [h.completed("c").await, h.dead("d", "x").await] {
        let before = h.get(PRODUCER, &format!("tasks/{id}")).await.expect(200).json();
        let refused = h.act(PRODUCER, &format!("tasks/{id}/cancel")).await;
        refused.refused(409, "task is finished");
        let after = h.get(PRODUCER, &format!("tasks/{id}")).await.expect(200).json();
        assert_eq!(after, before);
    }
    let letters = h.get(ADMIN, "admin/dlq/d").await.expect(200).json();
    assert_eq!(letters["items"].as_array().unwrap().len(), 1);
}
