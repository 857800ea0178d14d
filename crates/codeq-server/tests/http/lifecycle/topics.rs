//! Topic policies: how they are written, and that queues obey them.

use serde_json::{Value, json};

use crate::http::harness::{ADMIN, ADMIN_B, Harness, PRODUCER, PRODUCER_B, WORKER};
use crate::http::shape::assert_shape;

const FULL: &str = r#"{"priorityTiers":[3,7],"maxAttempts":2,"deadLetterTopicRef":"graves",
    "retentionSeconds":3600,"deadLetterRetentionSeconds":7200,"maxConsumers":4}"#;

fn full() -> Value {
    serde_json::from_str(FULL).unwrap()
}

fn topic(policy: Value, version: u64) -> Value {
    json!({
        "topicId": "a.t", "tenantId": "a", "topicName": "t", "policy": policy,
        "version": version, "createdAt": "<time>", "updatedAt": "<time>",
    })
}

#[tokio::test]
async fn a_policy_is_written_changed_read_and_removed() {
    let h = Harness::start().await;
    let path = "admin/topics/t";
    h.get(ADMIN, path).await.refused(404, "topic not found");
    let first = h.put(ADMIN, path, full()).await.expect(201).json();
    assert_shape(&first, &topic(full(), 1));
    assert_eq!(h.put(ADMIN, path, full()).await.expect(200).json(), first, "no new version");
    assert_eq!(h.get(ADMIN, path).await.expect(200).json(), first);
    let changed = h.put(ADMIN, path, json!({"maxConsumers": 1})).await.expect(200).json();
    // A policy is written as a whole: settings that are absent get their defaults.
    let policy = json!({"retentionSeconds": 0, "maxConsumers": 1});
    assert_shape(&changed, &topic(policy, 2));
    assert_eq!(changed["createdAt"], first["createdAt"]);
    h.delete(ADMIN, path).await.refused(400, "deletionPolicy=Delete required");
    h.delete(ADMIN, "admin/topics/t?deletionPolicy=Retain").await.expect(400);
    h.get(ADMIN, path).await.expect(200);
    let gone = h.delete(ADMIN, "admin/topics/t?deletionPolicy=Delete").await.expect(204);
    assert!(gone.body.is_empty());
    h.get(ADMIN, path).await.refused(404, "topic not found");
    h.delete(ADMIN, "admin/topics/t?deletionPolicy=Delete").await.expect(204);
    assert_eq!(h.put(ADMIN, path, json!({})).await.expect(201).json()["version"], 1);
}

#[tokio::test]
async fn values_have_bounds_and_the_answer_names_the_field() {
    let h = Harness::start().await;
    let bad = [
        ("priorityTiers", json!([])),
        ("priorityTiers", json!([1, 1])),
        ("priorityTiers", json!([-1])),
        ("priorityTiers", json!([11])),
        ("priorityTiers", json!([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10])),
        ("priorityTiers", json!([300])),
        ("maxAttempts", json!(0)),
        ("maxAttempts", json!(-1)),
        ("maxAttempts", json!(101)),
        ("deadLetterTopicRef", json!("")),
        ("deadLetterTopicRef", json!("t")),
        ("deadLetterTopicRef", json!("Upper")),
        ("deadLetterTopicRef", json!("a_b")),
        ("deadLetterTopicRef", json!("-a")),
        ("deadLetterTopicRef", json!("x".repeat(64))),
        ("retentionSeconds", json!(-1)),
        ("retentionSeconds", json!(2_147_483_648_u64)),
        ("deadLetterRetentionSeconds", json!(-1)),
        ("deadLetterRetentionSeconds", json!(2_147_483_648_u64)),
        ("maxConsumers", json!(-1)),
        ("maxConsumers", json!(10_001)),
        ("maxConsumers", json!(1_u64 << 40)),
    ];
    for (field, value) in bad {
        let reply = h.put(ADMIN, "admin/topics/t", json!({field: value})).await;
        let body = reply.refused(422, &format!("invalid topic policy: {field}"));
        assert_eq!(body["field"], field);
        let detail = body["detail"].as_str().unwrap();
        assert!(detail.starts_with(&format!("{field} is ")), "{detail}");
    }
    h.get(ADMIN, "admin/topics/t").await.expect(404);
    let good = [
        ("priorityTiers", json!([0])),
        ("priorityTiers", json!([0, 1, 2, 3, 4, 5, 6, 7, 8, 10])),
        ("maxAttempts", json!(1)),
        ("maxAttempts", json!(100)),
        ("deadLetterTopicRef", json!("x".repeat(63))),
        ("retentionSeconds", json!(0)),
        ("retentionSeconds", json!(2_147_483_647)),
        ("deadLetterRetentionSeconds", json!(2_147_483_647)),
        ("maxConsumers", json!(0)),
        ("maxConsumers", json!(10_000)),
    ];
    for (n, (field, value)) in good.into_iter().enumerate() {
        let path = format!("admin/topics/good-{n}");
        let made = h.put(ADMIN, &path, json!({field: value})).await.expect(201).json();
        assert_eq!(made["policy"][field], value);
    }
    for body in [json!([]), json!({"maxAttempts": "1"})] {
        h.put(ADMIN, "admin/topics/t", body).await.refused(400, "invalid body");
    }
    for body in [json!({"maxConsumer": 1}), json!({"tenantId": "b"})] {
        h.put(ADMIN, "admin/topics/t", body).await.refused(400, "unknown field");
    }
    for name in ["A", "a_b", "-a", "a-", "a.b", "%20", &"x".repeat(64)] {
        let path = format!("admin/topics/{name}");
        let put = h.put(ADMIN, &path, json!({})).await.refused(422, "invalid topic name");
        assert_eq!(put["field"], "name");
        h.get(ADMIN, &path).await.refused(422, "invalid topic name");
        let path = format!("{path}?deletionPolicy=Delete");
        h.delete(ADMIN, &path).await.refused(422, "invalid topic name");
    }
}

#[tokio::test]
async fn tiers_are_the_same_in_any_order() {
    let h = Harness::start().await;
    let put =
        async |tiers: Value| h.put(ADMIN, "admin/topics/t", json!({"priorityTiers": tiers})).await;
    let first = put(json!([7, 3, 9])).await.expect(201).json();
    assert_eq!(first["policy"]["priorityTiers"], json!([3, 7, 9]));
    assert_eq!(put(json!([9, 7, 3])).await.expect(200).json(), first, "no new version");
    assert_eq!(put(json!([9, 7])).await.expect(200).json()["version"], 2);
}

#[tokio::test]
async fn priorities_fall_to_a_tier_or_rise_to_the_lowest() {
    let h = Harness::start().await;
    h.put(ADMIN, "admin/topics/t", json!({"priorityTiers": [3, 7]})).await.expect(201);
    for (asked, given) in [(0, 3), (2, 3), (3, 3), (6, 3), (7, 7), (9, 7), (50, 7)] {
        let body = json!({"command": "T", "payload": 1, "priority": asked});
        let made = h.post(PRODUCER, "tasks", body.clone()).await.expect(202).json();
        assert_eq!(made["priority"], given, "{asked}");
        // A policy is one tenant's.
        let other = h.post(PRODUCER_B, "tasks", body).await.expect(202).json();
        assert_eq!(other["priority"].as_u64().unwrap_or(0), asked.min(9));
    }
}

#[tokio::test]
async fn attempts_are_a_default_and_a_ceiling() {
    let h = Harness::start().await;
    let attempts = async |token: &str, wanted: Value| {
        let body = json!({"command": "t", "payload": 1, "maxAttempts": wanted});
        h.post(token, "tasks", body).await.expect(202).json()["maxAttempts"].clone()
    };
    h.put(ADMIN, "admin/topics/t", json!({"maxAttempts": 3})).await.expect(201);
    for (wanted, given) in [(Value::Null, 3), (json!(0), 3), (json!(2), 2), (json!(9), 3)] {
        assert_eq!(attempts(PRODUCER, wanted).await, given);
    }
    assert_eq!(attempts(PRODUCER_B, Value::Null).await, 5);
    h.delete(ADMIN, "admin/topics/t?deletionPolicy=Delete").await.expect(204);
    assert_eq!(attempts(PRODUCER, json!(9)).await, 9);
}

#[tokio::test]
async fn no_more_consumers_than_allowed() {
    let h = Harness::start().await;
    h.put(ADMIN, "admin/topics/t", json!({"maxConsumers": 2})).await.expect(201);
    for _ in 0..5 {
        h.task("t").await;
    }
    h.task("free").await;
    let claim = async |body: Value| h.post(WORKER, "tasks/claim/batch", body).await;
    let two = claim(json!({"count": 10, "commands": ["t"]})).await.expect(200).json();
    let two = two["tasks"].as_array().unwrap().clone();
    assert_eq!(two.len(), 2);
    claim(json!({"count": 10, "commands": ["t"]})).await.expect(204);
    // Other queues are not held up by it.
    let other = claim(json!({"count": 10})).await.expect(200).json();
    assert_eq!(other["tasks"].as_array().unwrap().len(), 1);
    // A task that ends makes room for another one, however it ends.
    let id = two[0]["id"].as_str().unwrap();
    let done = json!({"status": "COMPLETED"});
    h.post(WORKER, &format!("tasks/{id}/result"), done).await.expect(200);
    let next = claim(json!({"count": 10, "commands": ["t"]})).await.expect(200).json();
    assert_eq!(next["tasks"].as_array().unwrap().len(), 1);
    // No limit again.
    h.put(ADMIN, "admin/topics/t", json!({"maxConsumers": 0})).await.expect(200);
    let rest = claim(json!({"count": 10, "commands": ["t"]})).await.expect(200).json();
    assert_eq!(rest["tasks"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_waiting_claim_wakes_when_a_consumer_makes_room() {
    let h = Harness::start().await;
    h.put(ADMIN, "admin/topics/t", json!({"maxConsumers": 1})).await.expect(201);
    let first = h.running("t").await;
    let second = h.task("t").await;
    let waiting = h.post(WORKER, "tasks/claim", json!({"commands": ["t"], "waitSeconds": 30}));
    let done = json!({"status": "COMPLETED"});
    let path = format!("tasks/{first}/result");
    let end = h.post(WORKER, &path, done);
    let (claimed, ended) = futures_util::future::join(waiting, end).await;
    ended.expect(200);
    assert_eq!(claimed.expect(200).id(), second);
}

#[tokio::test]
async fn a_dead_letter_becomes_work_under_the_topic_for_it() {
    let h = Harness::start().await;
    h.put(ADMIN, "admin/topics/t", json!({"deadLetterTopicRef": "graves"})).await.expect(201);
    h.put(ADMIN_B, "admin/topics/t", json!({"deadLetterTopicRef": "other"})).await.expect(201);
    let body = json!({"command": "t", "payload": {"n": 1}, "maxAttempts": 1});
    let id = h.enqueue(PRODUCER, body).await;
    h.claim(WORKER, "t").await;
    h.post(WORKER, &format!("tasks/{id}/nack"), json!({"reason": "x"})).await.expect(200);
    let flat = h.get(ADMIN, "admin/queues").await.expect(200).json();
    assert_eq!(flat, json!({"codeq:q:t:a:dlq": 1, "codeq:q:graves:a:pending:0": 1}));
    let copy = h.claim(WORKER, "graves").await;
    assert_eq!((&copy["originTaskId"], &copy["payload"]), (&json!(id), &json!(r#"{"n":1}"#)));
    assert_ne!(copy["id"], *id);
}
