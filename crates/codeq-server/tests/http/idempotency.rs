//! One key, one task: by header and by body, in batches, under concurrency, for each tenant.

use reqwest::Method;
use serde_json::{Value, json};

use crate::http::harness::{ADMIN, Harness, PRODUCER, PRODUCER_B, Reply, WORKER, send};

const CONFLICT: &str = "idempotency key was used with a different command or payload";

async fn keyed(h: &Harness, path: &str, key: &str, body: Value) -> Reply {
    let request = h.request(Method::POST, PRODUCER, path).header("Idempotency-Key", key);
    send(request.body(body.to_string())).await
}

fn task(payload: Value) -> Value {
    json!({"command": "c", "payload": payload})
}

fn task_with_key(payload: Value, key: &str) -> Value {
    json!({"command": "c", "payload": payload, "idempotencyKey": key})
}

async fn count(h: &Harness) -> usize {
    let page = h.get(PRODUCER, "tasks?limit=1000").await.expect(200).json();
    page["items"].as_array().unwrap().len()
}

#[tokio::test]
async fn a_repeat_is_the_first_task() {
    let h = Harness::start().await;
    let first = keyed(&h, "tasks", "k", task(json!(1))).await.expect(202);
    assert_eq!(first.header("idempotent-replayed"), None);
    // The header in quotes, the header bare and the field mean the same.
    let repeats = [
        keyed(&h, "tasks", "k", task(json!(1))).await,
        keyed(&h, "tasks", "\"k\"", task(json!(1))).await,
        keyed(&h, "tasks", "k", task_with_key(json!(1), "k")).await,
        h.post(PRODUCER, "tasks", task_with_key(json!(1), "k")).await,
    ];
    for repeat in repeats {
        assert_eq!(repeat.header("idempotent-replayed"), Some("true"));
        assert_eq!(repeat.expect(202).json(), first.json());
    }
    // A repeat shows the task as it is now.
    h.claim(WORKER, "c").await;
    let now = keyed(&h, "tasks", "k", task(json!(1))).await.expect(202).json();
    assert_eq!(now["status"], "IN_PROGRESS");
    assert_eq!(count(&h).await, 1);
}

#[tokio::test]
async fn other_work_under_the_same_key_is_refused() {
    let h = Harness::start().await;
    keyed(&h, "tasks", "k", task(json!({"a": 1}))).await.expect(202);
    let others = [
        task(json!({"a": 2})),
        json!({"command": "d", "payload": {"a": 1}}),
        task_with_key(json!([]), "k"),
    ];
    for other in others {
        let body = keyed(&h, "tasks", "k", other).await.refused(422, CONFLICT);
        assert_eq!(body["code"], "idempotency_conflict");
    }
    let refused = keyed(&h, "tasks", "k", task_with_key(json!({"a": 1}), "other")).await;
    refused.refused(400, "Idempotency-Key and idempotencyKey are different");
    let long = keyed(&h, "tasks", &"k".repeat(257), task(json!(1))).await.expect(400);
    assert_eq!(long.json()["code"], "invalid_idempotency_key");
    // An empty key would give every batch the same keys.
    let batch = json!({"tasks": [task(json!(1))]});
    for (path, body) in [("tasks", task(json!(1))), ("tasks/batch", batch)] {
        keyed(&h, path, "\"\"", body).await.refused(400, "invalid Idempotency-Key header");
    }
    assert_eq!(count(&h).await, 1);
}

#[tokio::test]
async fn keys_are_a_tenants_own() {
    let h = Harness::start().await;
    let first = h.post(PRODUCER, "tasks", task_with_key(json!(1), "k")).await.expect(202);
    let other = h.post(PRODUCER_B, "tasks", task_with_key(json!(2), "k")).await.expect(202);
    assert_eq!(other.header("idempotent-replayed"), None);
    assert_ne!(first.id(), other.id());
    assert_eq!(other.json()["tenantId"], "b");
}

#[tokio::test]
async fn many_at_once_make_one_task() {
    let h = Harness::start().await;
    let posts = (0..64).map(|_| keyed(&h, "tasks", "k", task(json!(1))));
    let replies = futures_util::future::join_all(posts).await;
    let ids: Vec<String> = replies.iter().map(Reply::id).collect();
    assert!(replies.iter().all(|reply| reply.status == 202) && ids.iter().all(|id| *id == ids[0]));
    let made = replies.iter().filter(|reply| reply.header("idempotent-replayed").is_none());
    assert_eq!(made.count(), 1);
    assert_eq!(count(&h).await, 1);
    let flat = h.get(ADMIN, "admin/queues").await.expect(200).json();
    assert_eq!(flat, json!({"codeq:q:c:a:pending:0": 1}));
}

#[tokio::test]
async fn a_key_outlives_a_restart_and_the_end_of_its_task() {
    let h = Harness::start().await;
    let body = task_with_key(json!(1), "k");
    let id = h.enqueue(PRODUCER, body.clone()).await;
    h.claim(WORKER, "c").await;
    let done = json!({"status": "COMPLETED"});
    h.post(WORKER, &format!("tasks/{id}/result"), done).await.expect(200);
    let h = h.restart().await;
    let repeat = h.post(PRODUCER, "tasks", body).await.expect(202);
    assert_eq!((repeat.id(), repeat.header("idempotent-replayed")), (id, Some("true")));
    h.post(PRODUCER, "tasks", task_with_key(json!(2), "k")).await.refused(422, CONFLICT);
}

#[tokio::test]
async fn a_key_for_a_batch_is_one_for_each_of_its_tasks() {
    let h = Harness::start().await;
    let batch = json!({"tasks": [task(json!(0)), task_with_key(json!(1), "own"), task(json!(2))]});
    let first = keyed(&h, "tasks/batch", "k", batch.clone()).await.expect(200);
    assert_eq!(first.header("idempotent-replayed"), None);
    let again = keyed(&h, "tasks/batch", "k", batch.clone()).await.expect(200);
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    assert_eq!(again.json(), first.json());
    let ids = first.json()["results"].clone();
    // Each place of the batch has its own key, and a task that names a key keeps that one.
    let own = h.post(PRODUCER, "tasks", task_with_key(json!(1), "own")).await.expect(202);
    assert_eq!(ids[1]["task"]["id"], *own.id());
    assert_eq!(count(&h).await, 3);
    let changed =
        json!({"tasks": [task(json!(0)), task_with_key(json!(1), "own"), task(json!(9))]});
    let mixed = keyed(&h, "tasks/batch", "k", changed).await.expect(200);
    assert_eq!(mixed.header("idempotent-replayed"), None);
    assert_eq!(mixed.json()["results"][0], ids[0]);
    assert_eq!(mixed.json()["results"][2]["error"], CONFLICT);
    assert_eq!(count(&h).await, 3);
    // The key of an item is an ordinary key: the item can be sent again by itself, and other work cannot use its key.
    let alone = h.post(PRODUCER, "tasks", task_with_key(json!(2), "k/2")).await.expect(202);
    assert_eq!(alone.header("idempotent-replayed"), Some("true"));
    assert_eq!(ids[2]["task"]["id"], *alone.id());
    h.post(PRODUCER, "tasks", task_with_key(json!(9), "k/2")).await.refused(422, CONFLICT);
    assert_eq!(count(&h).await, 3);
}

#[tokio::test]
async fn one_key_twice_in_a_batch() {
    let h = Harness::start().await;
    let tasks =
        [task_with_key(json!(1), "k"), task_with_key(json!(1), "k"), task_with_key(json!(2), "k")];
    let made = h.post(PRODUCER, "tasks/batch", json!({"tasks": tasks})).await.expect(200).json();
    let results = &made["results"];
    assert_eq!(results[0]["task"]["id"], results[1]["task"]["id"]);
    assert_eq!(results[2]["error"], CONFLICT);
    assert_eq!(count(&h).await, 1);
}

#[tokio::test]
async fn an_atomic_batch_is_made_whole_or_not_at_all() {
    let h = Harness::start().await;
    let atomic = async |tasks: Value| {
        h.post(PRODUCER, "tasks/batch?atomic=true", json!({"tasks": tasks})).await
    };
    let good = task(json!(1));
    let (nameless, unreadable) = (json!({"command": "", "payload": 1}), json!(7));
    let late = json!({"command": "c", "payload": 1, "delaySeconds": -1});
    let cases = [
        (json!([good, nameless, good]), "item 1: invalid command"),
        (json!([good, good, unreadable]), "item 2: invalid body"),
        (json!([late, nameless]), "item 0: invalid 'delaySeconds' (must be >= 0)"),
        (json!([nameless, late]), "item 0: invalid command"),
        (json!([good, nameless, unreadable]), "item 1: invalid command"),
    ];
    for (tasks, error) in cases {
        atomic(tasks).await.refused(400, error);
    }
    assert_eq!(count(&h).await, 0);
    let made = atomic(json!([good, task_with_key(json!(1), "k")])).await.expect(200).json();
    assert!((0..2).all(|n| made["results"][n]["task"]["id"].is_string()));
    let conflict = atomic(json!([good, task_with_key(json!(2), "k")])).await;
    assert_eq!(conflict.json()["error"], format!("item 1: {CONFLICT}"));
    assert_eq!(conflict.status, 422);
    assert_eq!(count(&h).await, 2);
}

#[tokio::test]
async fn payloads_are_compared_as_values() {
    let h = Harness::start().await;
    let make = async |payload: &str| {
        let body = format!(r#"{{"command":"c","idempotencyKey":"k","payload":{payload}}}"#);
        h.post_text(PRODUCER, "tasks", body).await
    };
    let first = make(r#"{"a":[1,{"x":"é"}],"big":9007199254740993}"#).await.expect(202);
    for same in [
        "{ \"big\" : 9007199254740993,\n\"a\":[1, {\"x\":\"\\u00e9\"}] }",
        r#"{"a":[1.0,{"x":"é"}],"big":9007199254740993}"#,
    ] {
        let repeat = make(same).await.expect(202);
        assert_eq!(repeat.header("idempotent-replayed"), Some("true"));
        // The payload is the one that was sent first, byte for byte.
        assert_eq!(repeat.json(), first.json());
    }
    for other in [
        r#"{"a":[1,{"x":"é"}],"big":9007199254740992}"#,
        r#"{"a":[{"x":"é"},1],"big":9007199254740993}"#,
        r#"{"a":[1,{"x":"é"}],"big":9007199254740993,"b":null}"#,
    ] {
        make(other).await.refused(422, CONFLICT);
    }
    let h = h.restart().await;
    let body = r#"{"command":"C","idempotencyKey":"k","payload":{"big":9007199254740993,"a":[1,{"x":"é"}]}}"#;
    let repeat = h.post_text(PRODUCER, "tasks", body).await.expect(202);
    assert_eq!(repeat.json(), first.json());
    assert_eq!(count(&h).await, 1);
}
