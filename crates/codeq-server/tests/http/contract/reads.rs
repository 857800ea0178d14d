//! Reading tasks, results, histories and lists.

use serde_json::{Value, json};

use crate::http::harness::{Harness, PRODUCER, UNKNOWN_ID, WORKER};
use crate::http::shape::{assert_shape, new_task};

#[tokio::test]
async fn a_task_is_shown_as_documented_in_every_place() {
    let h = Harness::start().await;
    let get = async |id: &str| h.get(PRODUCER, &format!("tasks/{id}")).await.expect(200).json();
    let pending = h.task("p").await;
    assert_shape(&get(&pending).await, &new_task("p", "{}", json!({"id": pending})));
    let delayed = json!({"command": "w", "payload": {}, "delaySeconds": 600});
    let delayed = h.enqueue(PRODUCER, delayed).await;
    let more = json!({"lastKnownLocation": "DELAYED_ZSET", "visibleAt": "<time>"});
    assert_shape(&get(&delayed).await, &new_task("w", "{}", more));
    let running = h.running("r").await;
    let more = json!({
        "status": "IN_PROGRESS", "lastKnownLocation": "INPROG_SET", "workerId": "worker",
        "leaseUntil": "<time>", "fence": 1,
    });
    assert_shape(&get(&running).await, &new_task("r", "{}", more));
    let done = h.completed("d").await;
    let more = json!({
        "status": "COMPLETED", "lastKnownLocation": "NONE",
        "resultKey": format!("codeq/results/{done}"),
    });
    assert_shape(&get(&done).await, &new_task("d", "{}", more));
    let dead = h.dead("x", "gone").await;
    let more = json!({
        "status": "FAILED", "lastKnownLocation": "DLQ_SET", "attempts": 1, "maxAttempts": 1,
        "error": "gone", "resultKey": format!("codeq/results/{dead}"),
    });
    assert_shape(&get(&dead).await, &new_task("x", "{}", more));
}

#[tokio::test]
async fn unknown_tasks_are_not_found() {
    let h = Harness::start().await;
    let pending = h.task("c").await;
    for id in [UNKNOWN_ID, "x", "%00", "..%2f", &"9".repeat(500)] {
        let path = format!("tasks/{id}");
        h.get(PRODUCER, &path).await.refused(404, "not found");
        h.get(PRODUCER, &format!("{path}/history")).await.refused(404, "not found");
        h.get(PRODUCER, &format!("{path}/result")).await.refused(404, "task not found");
        h.act(PRODUCER, &format!("{path}/cancel")).await.refused(404, "not found");
    }
    let path = format!("tasks/{pending}/result");
    h.get(PRODUCER, &path).await.refused(404, "result not found");
    h.get(PRODUCER, &format!("{path}?waitSeconds=0")).await.refused(404, "result not found");
    // As in the original codeQ, a wait that is not a number of seconds counts as 0.
    for wait in ["-1", "abc", "1.5", ""] {
        let path = format!("{path}?waitSeconds={wait}");
        h.get(PRODUCER, &path).await.refused(404, "result not found");
    }
}

#[tokio::test]
async fn a_result_comes_with_its_task() {
    let h = Harness::start().await;
    let done = h.completed("c").await;
    let path = format!("tasks/{done}/result");
    let answer = h.get(WORKER, &path).await.expect(200).json();
    let more = json!({
        "status": "COMPLETED", "lastKnownLocation": "NONE",
        "resultKey": format!("codeq/results/{done}"),
    });
    let result = json!({
        "taskId": done, "status": "COMPLETED", "result": {}, "completedAt": "<time>",
    });
    let expected = json!({"task": new_task("c", "{}", more), "result": result});
    assert_shape(&answer, &expected);
    // The result is there already, so there is no wait.
    assert_eq!(h.get(WORKER, &format!("{path}?waitSeconds=60")).await.expect(200).json(), answer);
    let dead = h.dead("x", "gone").await;
    let answer = h.get(WORKER, &format!("tasks/{dead}/result")).await.expect(200).json();
    let result =
        json!({"taskId": dead, "status": "FAILED", "error": "gone", "completedAt": "<time>"});
    assert_shape(&answer["result"], &result);
}

#[tokio::test]
async fn a_history_names_when_what_who_and_why() {
    let h = Harness::start().await;
    let id = h.dead("c", "gone").await;
    let history = h.get(PRODUCER, &format!("tasks/{id}/history")).await.expect(200).json();
    let created = json!({
        "at": "<time>", "event": "created", "to": "PENDING_LIST", "status": "PENDING",
    });
    let claimed = json!({
        "at": "<time>", "event": "claimed", "from": "PENDING_LIST", "to": "INPROG_SET",
        "status": "IN_PROGRESS", "who": "worker",
    });
    let nacked = json!({
        "at": "<time>", "event": "nacked", "from": "INPROG_SET", "to": "DLQ_SET",
        "status": "FAILED", "who": "worker", "why": "gone",
    });
    assert_shape(&history, &json!({"taskId": id, "items": [created, claimed, nacked]}));
}

#[tokio::test]
async fn lists_are_newest_first_and_filtered() {
    let h = Harness::start().await;
    let (first, second) = (h.task("C").await, h.task("other").await);
    let (dead, running) = (h.dead("c2", "connection refused").await, h.running("c3").await);
    let list = async |query: &str| {
        let page = h.get(PRODUCER, &format!("tasks?{query}")).await.expect(200).json();
        let items = page["items"].as_array().unwrap().clone();
        items.iter().map(|task| task["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let all = [&running, &dead, &second, &first];
    assert_eq!(list("").await.iter().collect::<Vec<_>>(), all);
    assert_eq!(list("command=c").await, std::slice::from_ref(&first));
    assert_eq!(list("status=PENDING").await, [second.clone(), first]);
    assert_eq!(list("status=FAILED").await, std::slice::from_ref(&dead));
    assert_eq!(list("status=FAILED&command=other").await.len(), 0);
    assert_eq!(list("filter=worker%3Dworker").await, [running]);
    assert_eq!(list("filter=error~%22connection%20ref%22").await, [dead]);
    assert_eq!(list("filter=created%3E2001-01-01T00:00:00Z").await.len(), 4);
    assert_eq!(list("filter=created%3C2001-01-01T00:00:00Z").await.len(), 0);
    assert_eq!(list("command=other&limit=1").await, [second]);

    let page = h.get(PRODUCER, "tasks?command=other").await.expect(200).json();
    assert_shape(&page, &json!({"items": [new_task("other", "{}", json!({}))]}));
    let page = h.get(PRODUCER, "tasks?limit=1").await.expect(200).json();
    assert!(page["nextCursor"].is_string());
}

#[tokio::test]
async fn lists_refuse_invalid_parameters() {
    let h = Harness::start().await;
    let cases = [
        ("status=DONE", "invalid 'status' (PENDING, IN_PROGRESS, COMPLETED or FAILED)", "status"),
        ("limit=0", "invalid 'limit' (1 to 1000)", "limit"),
        ("limit=1001", "invalid 'limit' (1 to 1000)", "limit"),
        ("limit=x", "invalid 'limit'", "limit"),
    ];
    for (query, error, field) in cases {
        let body = h.get(PRODUCER, &format!("tasks?{query}")).await.refused(400, error);
        assert_eq!(body["field"], field);
    }
    let body = h.get(PRODUCER, "tasks?filter=nope%3D1").await.expect(400).json();
    assert_eq!((&body["code"], &body["field"]), (&json!("invalid_filter"), &json!("filter")));
    for cursor in ["x", "AAAA", &"A".repeat(5_000)] {
        h.get(PRODUCER, &format!("tasks?cursor={cursor}")).await.refused(400, "invalid cursor");
    }
    // A cursor goes with its list.
    for _ in 0..2 {
        h.task("c").await;
    }
    let page = h.get(PRODUCER, "tasks?command=c&limit=1").await.expect(200).json();
    let cursor = page["nextCursor"].as_str().unwrap();
    let next = async |query: &str| h.get(PRODUCER, &format!("tasks?{query}&cursor={cursor}")).await;
    next("command=c&limit=5").await.expect(200);
    next("command=d").await.refused(400, "invalid cursor");
    next("command=c&status=PENDING").await.refused(400, "invalid cursor");
}

#[tokio::test]
async fn open_routes_need_no_token() {
    let h = Harness::start().await;
    for (path, text) in [("/livez", "ok\n"), ("/readyz", "ok\n"), ("/healthz", "ok\n")] {
        assert_eq!(h.get("", path).await.expect(200).text(), text);
    }
    let verbose = h.get("", "/readyz?verbose").await.expect(200).text();
    assert!(verbose.lines().count() > 1 && verbose.ends_with("ok\n"), "{verbose}");
    let metrics = h.get("", "/metrics").await.expect(200);
    let plain = "text/plain; version=0.0.4; charset=utf-8";
    assert_eq!(metrics.header("content-type"), Some(plain));
    let text = metrics.text();
    assert!(text.contains("# TYPE codeq_log_syncs_total counter\n"), "{text}");
    assert!(text.contains("# TYPE codeq_build_info gauge\n") && !text.contains("# EOF"), "{text}");
    let request = h.request(reqwest::Method::GET, "", "/metrics");
    let open = request.header("accept", "application/openmetrics-text;q=0.5, text/plain;q=0.3");
    let open = crate::http::harness::send(open).await.expect(200);
    let media = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!((open.header("content-type"), open.header("vary")), (Some(media), Some("accept")));
    assert!(open.text().contains("# TYPE codeq_log_syncs counter\n"), "{}", open.text());
    assert!(open.text().ends_with("# EOF\n"));
    let raft = h.get(PRODUCER, "raft/status").await.expect(200).json();
    assert_shape(&raft, &json!({"enabled": false, "numGroups": 0, "groups": []}));
    let described: Value = h.get("", "/openapi.json").await.expect(200).json();
    assert!(described.is_object());
    h.get("", "/docs").await.expect(200);
}
