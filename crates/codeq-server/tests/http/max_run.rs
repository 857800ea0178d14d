//! The maximum run time of an attempt.

use codeq_proto::producer::CreateTask;
use codeq_proto::worker::Heartbeat;
use codeq_proto::worker::server_event::Event as FromWorkers;
use codeq_proto::worker::worker_event::Event as ToWorkers;
use serde_json::{Value, json};

use crate::grpc::client::{Producer, Worker, new_task};
use crate::http::harness::{ADMIN, Harness, PRODUCER, WORKER};

/// One second more than the longest maximum.
const TOO_LONG: u64 = 2_592_001;

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_else(|| panic!("no {field}: {value}"))
}

#[tokio::test]
async fn no_heartbeat_extends_beyond_the_maximum_run_time() {
    let h = Harness::start().await;
    let make = async |attempts: u32| {
        let limits =
            json!({"command": "c", "payload": 1, "maxAttempts": attempts, "maxRunSeconds": 1});
        h.enqueue(PRODUCER, limits).await
    };
    let (once, twice) = (make(1).await, make(2).await);
    let claim = json!({"count": 2, "leaseSeconds": 300});
    let claimed = h.post(WORKER, "tasks/claim/batch", claim).await.expect(200).json();
    let task = &claimed["tasks"][0];
    assert_eq!((&task["maxRunSeconds"], &task["leaseUntil"]), (&json!(1), &task["runUntil"]));
    let beat = |id: &str| {
        let path = format!("tasks/{id}/heartbeat");
        let h = &h;
        async move { h.post(WORKER, &path, json!({"extendSeconds": 300, "fence": 1})).await }
    };
    let first = text(task, "id");
    let until = beat(first).await.expect(200).json()["leaseUntil"].clone();
    assert_eq!(until, task["runUntil"], "a heartbeat extends the lease to the limit at most");
    let why = h.get(PRODUCER, &format!("tasks/{first}/why")).await.expect(200).json();
    let leased = &why["reasons"][0];
    assert_eq!((&leased["code"], &leased["runUntil"]), (&json!("leased"), &until));
    assert!(text(leased, "text").contains("it may run until"), "{leased}");

    // Ended by the server itself, with the result of the last attempt.
    let path = format!("tasks/{once}/result?waitSeconds=30");
    let result = h.get(PRODUCER, &path).await.expect(200).json();
    assert_eq!(result["result"]["error"], "TIMED_OUT");
    assert_eq!(result["task"]["lastKnownLocation"], "DLQ_SET");
    assert_eq!(
        (result["task"].get("runUntil"), &result["task"]["error"]),
        (None, &json!("TIMED_OUT"))
    );
    let history = h.get(PRODUCER, &format!("tasks/{once}/history")).await.expect(200).json();
    let last = history["items"].as_array().unwrap().last().unwrap();
    assert_eq!((&last["event"], &last["why"]), (&json!("timed_out"), &json!("ran for 1s")));
    let why = h.get(PRODUCER, &format!("tasks/{once}/why")).await.expect(200).json();
    assert!(text(&why, "summary").ends_with("the last attempt: timed out (ran for 1s)"), "{why}");

    // The other one is retried, and its worker is refused.
    beat(&twice).await.refused(409, "not-in-progress");
    let done = json!({"status": "COMPLETED", "fence": 1});
    let late = h.post(WORKER, &format!("tasks/{twice}/result"), done).await;
    late.refused(409, "not-in-progress");
    h.act(WORKER, &format!("tasks/{twice}/nack")).await.refused(409, "not-in-progress");
    let task = h.get(PRODUCER, &format!("tasks/{twice}")).await.expect(200).json();
    assert_eq!((&task["attempts"], &task["error"]), (&json!(1), &json!("TIMED_OUT")));
    let why = h.get(PRODUCER, &format!("tasks/{twice}/why")).await.expect(200).json();
    let failed = "attempt 1 of 2 failed (TIMED_OUT: ran for 1s)";
    assert!(text(&why, "summary").contains(failed), "{why}");
    // Answers are sent before they are counted.
    let mut metrics = String::new();
    while !metrics.contains("\ncodeq_task_timed_out_total{command=\"c\"} 2\n") {
        metrics = h.get("", "/metrics").await.expect(200).text();
    }
    assert!(metrics.contains("\ncodeq_lease_expired_total{command=\"c\"} 0\n"), "{metrics}");
}

#[tokio::test]
async fn a_policy_limits_tasks_without_their_own_maximum() {
    let h = Harness::start().await;
    let waiting = h.task("c").await;
    let policy = json!({"maxRunSeconds": 60});
    let topic = h.put(ADMIN, "admin/topics/c", policy.clone()).await.expect(201).json();
    assert_eq!(topic["policy"]["maxRunSeconds"], 60);
    let task = h.claim(WORKER, "c").await;
    assert_eq!((&task["id"], task.get("maxRunSeconds")), (&json!(waiting), None));
    assert_eq!(task["leaseUntil"], task["runUntil"], "the default lease is longer");
    let body = json!({"tasks": [
        {"command": "c", "payload": 1, "maxRunSeconds": 43_200},
        {"command": "c", "payload": 1, "maxRunSeconds": 0},
    ]});
    h.post(PRODUCER, "tasks/batch", body).await.expect(200);
    let tasks = h.post(WORKER, "tasks/claim/batch", json!({"count": 2})).await.expect(200).json();
    let tasks = tasks["tasks"].as_array().unwrap();
    let own: Vec<_> = tasks.iter().filter(|task| task["maxRunSeconds"] == 43_200).collect();
    assert!(text(own[0], "runUntil") > text(own[0], "leaseUntil"), "its own is later: {own:?}");
    let unset: Vec<_> = tasks.iter().filter(|task| task.get("maxRunSeconds").is_none()).collect();
    assert_eq!(unset[0]["runUntil"], unset[0]["leaseUntil"], "0 is not set");
    let h = h.restart().await;
    let kept = h.get(ADMIN, "admin/topics/c").await.expect(200).json();
    assert_eq!(kept["policy"], topic["policy"]);
    h.put(ADMIN, "admin/topics/c", json!({"maxRunSeconds": 0})).await.expect(200);
    h.task("c").await;
    assert_eq!(h.claim(WORKER, "c").await.get("runUntil"), None);
}

#[tokio::test]
async fn values_out_of_range_are_refused() {
    let h = Harness::start().await;
    let task = |seconds: Value| json!({"command": "c", "payload": 1, "maxRunSeconds": seconds});
    for bad in [json!(-1), json!(TOO_LONG), json!(i64::MAX), json!(i64::MIN)] {
        let refused = h.post(PRODUCER, "tasks", task(bad.clone())).await;
        let problem = refused.refused(400, "invalid maximum run time");
        assert_eq!(
            (&problem["code"], &problem["field"]),
            (&json!("invalid_max_run"), &json!("maxRunSeconds"))
        );
        assert!(text(&problem, "detail").contains("1 to 2592000"), "{problem}");
        let batch = json!({"tasks": [task(bad.clone()), task(json!(5))]});
        let batch = h.post(PRODUCER, "tasks/batch", batch).await.expect(200).json();
        assert_eq!(batch["results"][0]["code"], "invalid_max_run");
        assert_eq!(batch["results"][1]["task"]["maxRunSeconds"], 5);
        let topic = h.put(ADMIN, "admin/topics/c", json!({"maxRunSeconds": bad})).await;
        let problem = topic.refused(422, "invalid topic policy: maxRunSeconds");
        assert_eq!(problem["field"], "maxRunSeconds");
    }
    h.post(PRODUCER, "tasks", task(json!("5"))).await.refused(400, "invalid body");
    h.post(PRODUCER, "tasks", task(json!(TOO_LONG - 1))).await.expect(202);
    h.post(PRODUCER, "tasks", task(Value::Null)).await.expect(202);
}

#[tokio::test]
async fn streams_support_the_maximum_run_time() {
    let h = Harness::start().await;
    let mut producer = Producer::open(h.producer_addr(), PRODUCER).await;
    let limited = |seq, seconds| CreateTask { max_run_seconds: seconds, ..new_task(seq, "c") };
    for (seq, bad) in [(1, -1), (2, TOO_LONG as i32)] {
        assert_eq!(producer.create(limited(seq, bad)).await.code, "invalid_max_run");
    }
    let free = producer.make(limited(3, 0)).await;
    let mut worker = Worker::open(h.worker_addr(), WORKER).await;
    let task = worker.take("c").await;
    assert_eq!((task.id, task.run_until), (free, None));
    let id = producer.make(limited(4, 30)).await;
    let task = worker.take("c").await;
    let (claimed, end) = (task.updated_at.unwrap(), task.run_until.unwrap());
    assert_eq!((end.seconds - claimed.seconds, end.nanos), (30, claimed.nanos));
    let beat = Heartbeat { task_id: id, extend_seconds: 300, fence: task.fence };
    match worker.ask(ToWorkers::Heartbeat(beat)).await {
        FromWorkers::HeartbeatAck(ack) => assert_eq!(ack.lease_until, task.lease_until),
        other => panic!("{other:?}"),
    }
}
