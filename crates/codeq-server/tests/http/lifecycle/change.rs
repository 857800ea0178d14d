//! Changing a task that waits: its priority, and when it becomes claimable.

use reqwest::Method;
use serde_json::{Value, json};

use crate::http::harness::{
    ADMIN, Harness, LATER, PRODUCER, PRODUCER_B, Reply, UNKNOWN_ID, WORKER, send,
};
use crate::http::shape::{assert_shape, new_task};

async fn change(h: &Harness, token: &str, id: &str, body: Value) -> Reply {
    send(h.request(Method::PATCH, token, &format!("tasks/{id}")).body(body.to_string())).await
}

async fn delayed(h: &Harness) -> String {
    h.enqueue(PRODUCER, json!({"command": "c", "payload": {}, "delaySeconds": 600})).await
}

#[tokio::test]
async fn a_delayed_task_runs_now() {
    let h = Harness::start().await;
    let id = delayed(&h).await;
    h.act(WORKER, "tasks/claim").await.expect(204);
    let task = change(&h, PRODUCER, &id, json!({"delaySeconds": 0})).await.expect(200).json();
    assert_shape(&task, &new_task("c", "{}", json!({})));
    let history = h.get(PRODUCER, &format!("tasks/{id}/history")).await.expect(200).json();
    let last = &history["items"][1];
    assert_eq!((&last["event"], &last["from"]), (&json!("rescheduled"), &json!("DELAYED_ZSET")));
    assert_eq!((&last["who"], &last["why"]), (&json!("producer"), &json!("now")));
    assert_eq!(h.claim(WORKER, "c").await["id"], *id);
    // So does a task that waits for its retry.
    let nack = json!({"delaySeconds": 600, "reason": "x"});
    h.post(WORKER, &format!("tasks/{id}/nack"), nack).await.expect(200);
    change(&h, ADMIN, &id, json!({"priority": 9})).await.expect(200);
    let why = h.get(PRODUCER, &format!("tasks/{id}/why")).await.expect(200).json();
    assert_eq!(why["reasons"][0]["code"], "waits_for_retry", "{why}");
    change(&h, ADMIN, &id, json!({"delaySeconds": 0})).await.expect(200);
    let again = h.claim(WORKER, "c").await;
    assert_eq!((&again["id"], &again["priority"]), (&json!(id), &json!(9)));
}

#[tokio::test]
async fn a_task_gets_another_time_or_priority() {
    let h = Harness::start().await;
    let (first, second) = (h.task("c").await, h.task("c").await);
    let task = change(&h, PRODUCER, &second, json!({"priority": 70})).await.expect(200).json();
    assert_eq!(task["priority"], 9);
    // The same change again changes nothing, not even the time of the last change.
    let again = change(&h, PRODUCER, &second, json!({"priority": 9})).await.expect(200).json();
    assert_eq!(again, task);
    let task = change(&h, PRODUCER, &first, json!({"delaySeconds": 600})).await.expect(200).json();
    assert_eq!(task["lastKnownLocation"], "DELAYED_ZSET");
    let when = json!({"runAt": "2030-01-31T08:00:00Z", "delaySeconds": 0, "priority": null});
    let task = change(&h, PRODUCER, &first, when).await.expect(200).json();
    assert_eq!(task["visibleAt"], "2030-01-31T08:00:00.000Z", "{task}");
    assert_eq!(h.claim(WORKER, "c").await["id"], *second);
    h.act(WORKER, "tasks/claim").await.expect(204);
    let past = json!({"runAt": "2001-01-31T08:00:00Z"});
    change(&h, PRODUCER, &first, past).await.expect(200);
    assert_eq!(h.claim(WORKER, "c").await["id"], *first);
    let policy = json!({"priorityTiers": [2, 5]});
    h.put(ADMIN, "admin/topics/t", policy).await.expect(201);
    let tiered = h.task("t").await;
    let task = change(&h, PRODUCER, &tiered, json!({"priority": 9})).await.expect(200).json();
    assert_eq!(task["priority"], 5);
}

#[tokio::test]
async fn what_cannot_be_changed_is_refused_and_stays() {
    let h = Harness::start().await;
    let now = || json!({"delaySeconds": 0});
    let running = h.running("c").await;
    let refused = change(&h, PRODUCER, &running, now()).await;
    assert_eq!(refused.refused(409, "task is in progress")["code"], "in_progress");
    for id in [h.completed("d").await, h.dead("d", "x").await] {
        let refused = change(&h, PRODUCER, &id, now()).await;
        assert_eq!(refused.refused(409, "task is finished")["code"], "finished");
    }
    let id = delayed(&h).await;
    let before = h.get(PRODUCER, &format!("tasks/{id}")).await.expect(200).json();
    for (body, code) in [
        (json!({}), "invalid_body"),
        (json!({"priority": null}), "invalid_body"),
        (json!({"priority": "high"}), "invalid_body"),
        (json!({"delaySeconds": -1}), "invalid_delay"),
        (json!({"delaySeconds": 400_000_000}), "invalid_delay"),
        (json!({"runAt": LATER}), "invalid_delay"),
        (json!({"runAt": "soon"}), "invalid_run_at"),
        (json!({"prioriti": 1}), "unknown_field"),
    ] {
        let refused = change(&h, PRODUCER, &id, body.clone()).await.expect(400).json();
        assert_eq!(refused["code"], code, "{body} {refused}");
    }
    let nothing = change(&h, PRODUCER, &id, json!({})).await.json();
    assert!(nothing["detail"].as_str().unwrap().starts_with("nothing to change"), "{nothing}");
    change(&h, PRODUCER, UNKNOWN_ID, now()).await.refused(404, "not found");
    change(&h, PRODUCER_B, &id, now()).await.refused(404, "not found");
    change(&h, WORKER, &id, now()).await.refused(403, "token is not a producer's");
    assert_eq!(h.get(PRODUCER, &format!("tasks/{id}")).await.expect(200).json(), before);
}
