//! What was acknowledged before a stop is there after the start.

use serde_json::{Value, json};

use crate::http::harness::{ADMIN, Harness, PRODUCER, PRODUCER_B, WORKER, client, send};

/// Everything that can be read, except the ends of leases and the ages of tasks, which change.
async fn view(h: &Harness, ids: &[String]) -> Vec<Value> {
    let mut paths = vec!["tasks", "admin/queues", "admin/dlq/x", "admin/topics/t"]
        .into_iter()
        .map(str::to_owned)
        .collect::<Vec<_>>();
    for id in ids {
        paths.extend(["", "/history"].map(|what| format!("tasks/{id}{what}")));
    }
    let mut view = Vec::new();
    for path in paths {
        view.push(still(h.get(ADMIN, &path).await.expect(200).json()));
    }
    for id in ids {
        let reply = h.get(ADMIN, &format!("tasks/{id}/result")).await;
        let mut body = still(reply.json());
        body.as_object_mut().unwrap().remove("requestId");
        view.push(json!([reply.status, body]));
    }
    view
}

fn still(mut value: Value) -> Value {
    match &mut value {
        Value::Object(members) => {
            members.remove("leaseUntil");
            for member in members.values_mut() {
                *member = still(member.take());
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = still(item.take())),
        _ => {}
    }
    value
}

async fn fill(h: &Harness) -> Vec<String> {
    let rich = json!({
        "command": "Rich", "payload": {"n": 9_007_199_254_740_993_u64}, "priority": 7,
        "maxAttempts": 9, "webhook": "https://example.com/", "idempotencyKey": "k",
        "delaySeconds": 600,
    });
    let request = h.request(reqwest::Method::POST, PRODUCER, "tasks").body(rich.to_string());
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let rich = send(request.header("traceparent", trace)).await.expect(202).id();
    let cancelled = h.task("p").await;
    h.act(PRODUCER, &format!("tasks/{cancelled}/cancel")).await.expect(200);
    let asked = h.running("r").await;
    h.act(PRODUCER, &format!("tasks/{asked}/cancel")).await.expect(202);
    let nacked = h.running("n").await;
    let nack = json!({"delaySeconds": 500, "reason": "later"});
    h.post(WORKER, &format!("tasks/{nacked}/nack"), nack).await.expect(200);
    let replayed = h.dead("y", "once").await;
    h.act(ADMIN, &format!("tasks/{replayed}/replay")).await.expect(200);
    let policy = json!({"maxConsumers": 70, "priorityTiers": [1, 5]});
    h.put(ADMIN, "admin/topics/t", policy).await.expect(201);
    h.act(ADMIN, "admin/queues/paused/pause").await.expect(200);
    let ids = [
        rich,
        cancelled,
        asked,
        nacked,
        replayed,
        h.task("p").await,
        h.task("paused").await,
        h.running("r").await,
        h.completed("c").await,
        h.dead("x", "gone").await,
    ];
    h.enqueue(PRODUCER_B, json!({"command": "p", "payload": 1})).await;
    ids.into()
}

#[tokio::test]
async fn every_answer_is_the_same_after_restarts() {
    for shards in [1, 3] {
        let mut h = Harness::with(|config| config.shards = Some(shards)).await;
        let ids = fill(&h).await;
        let before = view(&h, &ids).await;
        for _ in 0..2 {
            h = h.restart().await;
            assert_eq!(view(&h, &ids).await, before, "{shards} shards");
        }
        // And it is alive: leases have their owners, queues their order and their pauses.
        let beat = h.act(WORKER, &format!("tasks/{}/heartbeat", ids[2])).await.expect(200).json();
        assert_eq!(beat["cancelRequested"], true);
        let done = json!({"status": "COMPLETED"});
        h.post(WORKER, &format!("tasks/{}/result", ids[7]), done.clone()).await.expect(200);
        assert_eq!(h.claim(WORKER, "p").await["id"], *ids[5]);
        h.post(WORKER, "tasks/claim", json!({"commands": ["paused"]})).await.expect(204);
        let repeat = h.post(WORKER, &format!("tasks/{}/result", ids[8]), done).await.expect(200);
        assert_eq!(repeat.json()["taskId"], *ids[8]);
        assert_ne!(h.task("p").await, ids[5]);
    }
}

#[tokio::test]
async fn leases_are_not_shortened() {
    let h = Harness::start().await;
    let id = h.running("c").await;
    let path = format!("tasks/{id}/heartbeat");
    let extended = h.post(WORKER, &path, json!({"extendSeconds": 5_000})).await.expect(200).json();
    let h = h.restart().await;
    let task = h.get(PRODUCER, &format!("tasks/{id}")).await.expect(200).json();
    // Moments of one format and zone compare as texts do.
    assert!(task["leaseUntil"].as_str() >= extended["leaseUntil"].as_str(), "{task} {extended}");
    assert_eq!((&task["workerId"], &task["fence"]), (&json!("worker"), &json!(1)));
}

#[tokio::test]
async fn what_was_being_written_during_a_stop_is_there_or_was_not_acknowledged() {
    let h = Harness::start().await;
    let addr = h.addr();
    let client = client();
    let (begun, mut some) = tokio::sync::mpsc::channel::<()>(1_000);
    let writers: Vec<_> = (0..8)
        .map(|_| {
            let (client, begun) = (client.clone(), begun.clone());
            tokio::spawn(async move {
                let mut made = Vec::new();
                // Bounded; the server stops long before.
                for _ in 0..100_000 {
                    let request = client.post(format!("http://{addr}/v1/codeq/tasks"));
                    let request = request.bearer_auth(PRODUCER);
                    let answer = request.body(r#"{"command":"c","payload":1}"#).send().await;
                    let Ok(answer) = answer else { break };
                    if answer.status() != 202 {
                        continue;
                    }
                    let Ok(bytes) = answer.bytes().await else { break };
                    let task: Value = serde_json::from_slice(&bytes).unwrap();
                    made.push(task["id"].as_str().unwrap().to_owned());
                    let _ = begun.try_send(());
                }
                made
            })
        })
        .collect();
    for _ in 0..20 {
        some.recv().await.unwrap();
    }
    let h = h.restart().await;
    for writer in writers {
        for id in writer.await.unwrap() {
            h.get(PRODUCER, &format!("tasks/{id}")).await.expect(200);
        }
    }
}
