//! Workers seen lately, and the list of topics.

use codeq_proto::worker::Ready;
use codeq_proto::worker::worker_event::Event as ToWorkers;
use serde_json::{Value, json};

use crate::grpc::client::Worker;
use crate::http::harness::{ADMIN, ADMIN_B, Harness, RESTRICTED, WORKER, WORKER_2};

async fn workers(h: &Harness, query: &str) -> Value {
    h.get(ADMIN, &format!("admin/workers{query}")).await.expect(200).json()
}

#[track_caller]
fn worker<'a>(list: &'a Value, id: &str) -> &'a Value {
    let mut items = list["items"].as_array().unwrap().iter();
    items.find(|item| item["workerId"] == id).unwrap_or_else(|| panic!("no {id}: {list}"))
}

#[tokio::test]
async fn workers_are_listed_with_what_they_do() {
    let h = Harness::start().await;
    assert_eq!(workers(&h, "").await, json!({"items": [], "total": 0, "tasksHeldExact": true}));
    for _ in 0..3 {
        h.task("mail").await;
    }
    h.claim(WORKER, "mail").await;
    h.claim(WORKER, "mail").await;
    let named = json!({"commands": ["mail"], "workerId": "pod-1"});
    let task = h.post(WORKER, "tasks/claim", named).await.expect(200).id();
    let nack = json!({"reason": "no disk", "workerId": "pod-1"});
    h.post(WORKER, &format!("tasks/{task}/nack"), nack).await.expect(200);
    h.post(WORKER_2, "tasks/claim", json!({})).await.expect(204);
    h.post(RESTRICTED, "tasks/claim", json!({"commands": ["b"]})).await.expect(403);
    let list = workers(&h, "").await;
    assert_eq!((&list["total"], &list["tasksHeldExact"]), (&json!(4), &json!(true)));
    let plain = worker(&list, "worker");
    assert_eq!((&plain["queues"], &plain["allQueues"]), (&json!(["mail"]), &json!(false)));
    assert_eq!(
        (&plain["tasksHeld"], &plain["streams"], &plain["slots"]),
        (&json!(2), &json!(0), &json!(0))
    );
    assert!(plain["lastClaimAt"].is_string() && plain.get("lastError").is_none(), "{plain}");
    let pod = worker(&list, "worker/pod-1");
    assert_eq!((&pod["tasksHeld"], &pod["lastError"]), (&json!(0), &json!("no disk")));
    assert!(pod["lastErrorAt"].is_string(), "{pod}");
    let any = worker(&list, "worker2");
    assert_eq!((&any["queues"], &any["allQueues"]), (&json!([]), &json!(true)));
    let refused = worker(&list, "restricted");
    assert_eq!(refused["lastError"], "event type not allowed");
    assert!(refused.get("lastClaimAt").is_none() && refused["allQueues"] == false, "{refused}");

    let one = workers(&h, "?limit=1").await;
    assert_eq!((one["items"].as_array().unwrap().len(), &one["total"]), (1, &json!(4)));
    h.get(ADMIN, "admin/workers?limit=0").await.refused(400, "invalid 'limit' (1 to 1000)");
    let theirs = h.get(ADMIN_B, "admin/workers").await.expect(200).json();
    assert_eq!(theirs["items"], json!([]));
    let metrics = h.get("", "/metrics").await.expect(200).text();
    assert!(metrics.contains("\ncodeq_workers_active 3\n"), "{metrics}");

    let h = h.restart().await;
    let list = workers(&h, "").await;
    assert_eq!(list["total"], 1, "leases outlive a restart, and claims do not");
    let plain = worker(&list, "worker");
    assert!(plain["tasksHeld"] == 2 && plain.get("lastClaimAt").is_none(), "{plain}");
}

#[tokio::test]
async fn streams_and_their_slots_are_counted() {
    let h = Harness::start().await;
    let mut stream = Worker::open(h.worker_addr(), WORKER).await;
    let ready =
        |command: &str, count| Ready { commands: vec![command.into()], lease_seconds: 30, count };
    stream.say(ToWorkers::Ready(ready("later", 5))).await;
    stream.say(ToWorkers::Ready(ready("now", 1))).await;
    h.task("now").await;
    stream.event().await;
    let list = workers(&h, "").await;
    let seen = worker(&list, "worker");
    let got = (&seen["streams"], &seen["slots"], &seen["tasksHeld"], &seen["queues"]);
    assert_eq!(got, (&json!(1), &json!(5), &json!(1), &json!(["now"])));
    stream.closes().await;
    let list = workers(&h, "").await;
    let seen = worker(&list, "worker");
    assert_eq!((&seen["streams"], &seen["slots"]), (&json!(0), &json!(0)));
}

#[tokio::test]
async fn topics_are_listed_by_name() {
    let h = Harness::start().await;
    assert_eq!(h.get(ADMIN, "admin/topics").await.expect(200).json(), json!({"items": []}));
    for name in ["b", "a"] {
        let path = format!("admin/topics/{name}");
        h.put(ADMIN, &path, json!({"maxAttempts": 3})).await.expect(201);
    }
    h.task("c").await;
    let list = h.get(ADMIN, "admin/topics").await.expect(200).json();
    let items = list["items"].as_array().unwrap();
    let names: Vec<&str> = items.iter().map(|item| item["topicName"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(items[0], h.get(ADMIN, "admin/topics/a").await.expect(200).json());
    let theirs = h.get(ADMIN_B, "admin/topics").await.expect(200).json();
    assert_eq!(theirs, json!({"items": []}));
}
