//! Every way to finish a task sends a callback with the body that the contract describes.

use codeq_proto::worker::Result as Outcome;
use codeq_proto::worker::worker_event::Event as ToWorkers;
use serde_json::{Value, json};

use crate::callbacks::receiver::{Act, Received, Receiver, answer, server, server_with};
use crate::grpc::client::Worker;
use crate::http::harness::{ADMIN, Harness, PRODUCER, WORKER};

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

async fn hooked(server: &Harness, receiver: &Receiver, more: Value) -> String {
    let mut task =
        json!({"command": "Resize", "payload": {}, "webhook": receiver.url("/hook?a=b")});
    task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.enqueue(PRODUCER, task).await
}

async fn running(server: &Harness, receiver: &Receiver, more: Value) -> String {
    let id = hooked(server, receiver, more).await;
    let claim = json!({"commands": ["resize"], "leaseSeconds": 1});
    server.post(WORKER, "tasks/claim", claim).await.expect(200);
    id
}

/// The body without its `completedAt`, which is checked here.
fn told(call: &Received) -> Value {
    let mut body = call.json();
    let at = body.as_object_mut().unwrap().remove("completedAt").unwrap();
    assert!(at.as_str().unwrap().ends_with('Z'), "{at}");
    assert_eq!(call.header("content-type"), Some("application/json"));
    assert!(call.header("user-agent").unwrap().starts_with("codeq/"));
    body
}

#[tokio::test]
async fn the_callback_of_a_submit_carries_everything_submitted() {
    let server = server().await;
    let mut receiver = Receiver::willing().await;
    let task = json!({
        "command": "Resize", "payload": {}, "webhook": receiver.url("/hook?a=b"),
    });
    let request = server.request(reqwest::Method::POST, PRODUCER, "tasks").body(task.to_string());
    let request = request.header("traceparent", TRACE).header("tracestate", "a=1");
    let id = crate::http::harness::send(request).await.expect(202).id();
    server.claim(WORKER, "resize").await;
    let artifacts = json!([{"name": "out", "url": "https://files.example/out"}]);
    let result = r#"{"big": 9007199254740993, "text": "é"}"#;
    let submit = format!(r#"{{"status":"COMPLETED","result":{result},"artifacts":{artifacts}}}"#);
    server.post_text(WORKER, &format!("tasks/{id}/result"), submit).await.expect(200);
    let call = receiver.next().await;
    assert_eq!(call.path, "/hook?a=b");
    assert_eq!(call.header("host"), Some(&*receiver.addr.to_string()));
    let text = String::from_utf8(call.body.clone()).unwrap();
    assert!(text.contains(result), "the worker's JSON letter by letter: {text}");
    let mut body = told(&call);
    body.as_object_mut().unwrap().remove("result");
    let expected = json!({
        "taskId": id, "eventType": "Resize", "status": "COMPLETED", "error": "", "artifacts": artifacts,
    });
    assert_eq!(body, expected);
    assert_eq!(call.header("traceparent"), Some(TRACE));
    assert_eq!(call.header("tracestate"), Some("a=1"));
    assert!(!call.id().contains('.'));
}

#[tokio::test]
async fn failed_batched_and_streamed_submits_send_callbacks() {
    let server = server().await;
    let mut receiver = Receiver::willing().await;
    let id = running(&server, &receiver, json!({})).await;
    let failed = json!({"status": "FAILED", "error": "no such file"});
    server.post(WORKER, &format!("tasks/{id}/result"), failed).await.expect(200);
    let expected = json!({
        "taskId": id, "eventType": "Resize", "status": "FAILED", "error": "no such file",
        "result": null, "artifacts": [],
    });
    assert_eq!(told(&receiver.next().await), expected);

    let first = running(&server, &receiver, json!({})).await;
    let second = running(&server, &receiver, json!({})).await;
    let results = json!({"results": [
        {"taskId": first, "status": "COMPLETED", "result": {"n": 1}},
        {"taskId": second, "status": "FAILED", "error": "bad"},
    ]});
    server.post(WORKER, "tasks/batch/results", results).await.expect(200);
    let mut ids: Vec<String> = receiver.take(2).await.iter().map(Received::task).collect();
    ids.sort();
    let mut expected = vec![first, second];
    expected.sort();
    assert_eq!(ids, expected);

    let id = hooked(&server, &receiver, json!({})).await;
    let mut worker = Worker::open(server.worker_addr(), WORKER).await;
    assert_eq!(worker.take("resize").await.id, id);
    let done = Outcome {
        task_id: id.clone(),
        status: "COMPLETED".into(),
        result_json: r#"{"n":2}"#.to_owned().into(),
        error: String::new(),
        fence: 0,
    };
    worker.ask(ToWorkers::Result(done)).await;
    let call = receiver.next().await;
    assert_eq!((call.task(), call.json()["result"].clone()), (id, json!({"n": 2})));
}

#[tokio::test]
async fn dead_letters_send_callbacks() {
    let server = server_with(|config| config.backoff_base_seconds = 0).await;
    let mut receiver = Receiver::willing().await;
    let last = json!({"maxAttempts": 1});
    let id = running(&server, &receiver, last.clone()).await;
    let nack = json!({"reason": "out of memory"});
    server.post(WORKER, &format!("tasks/{id}/nack"), nack).await.expect(200);
    let expected = |id: &str, error: &str| json!({"taskId": id, "eventType": "Resize", "status": "FAILED", "error": error, "result": null, "artifacts": []});
    assert_eq!(told(&receiver.next().await), expected(&id, "out of memory"));
    let id = running(&server, &receiver, last.clone()).await;
    server.act(WORKER, &format!("tasks/{id}/abandon")).await.expect(200);
    assert_eq!(told(&receiver.next().await), expected(&id, "MAX_ATTEMPTS"));
    // Nobody says anything: its lease of a second ends.
    let id = running(&server, &receiver, last).await;
    let body = told(&receiver.next().await);
    assert_eq!((&body["taskId"], &body["status"]), (&json!(id), &json!("FAILED")));
    assert!(!body["error"].as_str().unwrap().is_empty());
}

#[tokio::test]
async fn cancels_and_purges_send_callbacks() {
    let server = server().await;
    let mut receiver = Receiver::willing().await;
    let expected = |id: &str| json!({"taskId": id, "eventType": "Resize", "status": "FAILED", "error": "CANCELLED", "result": null, "artifacts": []});
    let id = hooked(&server, &receiver, json!({})).await;
    server.act(PRODUCER, &format!("tasks/{id}/cancel")).await.expect(200);
    assert_eq!(told(&receiver.next().await), expected(&id));
    let id = hooked(&server, &receiver, json!({"delaySeconds": 3_600})).await;
    server.act(ADMIN, "admin/queues/resize/purge").await.expect(200);
    assert_eq!(told(&receiver.next().await), expected(&id));
}

/// The callbacks of a task that is dead-lettered, replayed and completed.
async fn ended_twice(server: &Harness, receiver: &mut Receiver) -> (Received, Received) {
    let id = running(server, receiver, json!({"maxAttempts": 1})).await;
    server.act(WORKER, &format!("tasks/{id}/nack")).await.expect(200);
    let first = receiver.next().await;
    server.act(ADMIN, &format!("tasks/{id}/replay")).await.expect(200);
    server.claim(WORKER, "resize").await;
    let done = json!({"status": "COMPLETED"});
    server.post(WORKER, &format!("tasks/{id}/result"), done).await.expect(200);
    let second = receiver.next().await;
    assert_eq!((first.task(), second.task()), (id.clone(), id));
    (first, second)
}

#[tokio::test]
async fn a_replayed_task_sends_another_callback_with_a_new_id() {
    let server = server().await;
    let mut receiver = Receiver::willing().await;
    let (first, second) = ended_twice(&server, &mut receiver).await;
    assert_ne!(first.id(), second.id());
}

#[tokio::test]
async fn a_replayed_task_sends_another_callback_even_while_the_first_hangs() {
    let server = server().await;
    let mut receiver = Receiver::start(|call, _| match call.json()["status"].as_str() {
        Some("COMPLETED") => answer(200),
        _ => Act::Hang,
    })
    .await;
    let (_, second) = ended_twice(&server, &mut receiver).await;
    assert_eq!(second.json()["status"], "COMPLETED");
}

#[tokio::test]
async fn a_webhook_that_may_not_be_called_is_refused_at_once() {
    let server = Harness::start().await;
    for url in
        ["http://127.0.0.1:9/x", "http://[::1]/", "http://10.0.0.1/", "http://u:p@a.example/"]
    {
        let task = json!({"command": "a", "payload": {}, "webhook": url});
        let refused = server.post(PRODUCER, "tasks", task).await;
        let problem = refused.refused(400, "invalid webhook url");
        assert_eq!(problem["code"], "invalid_webhook");
    }
}
