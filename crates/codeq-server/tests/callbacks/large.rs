//! The largest possible payloads and results, through HTTP and streams, a restart, reads, lists and callbacks.

use codeq_proto::producer::CreateTask;
use codeq_proto::worker::Result as Outcome;
use codeq_proto::worker::server_event::Event as FromWorkers;
use codeq_proto::worker::worker_event::Event as ToWorkers;

use crate::callbacks::receiver::{Receiver, server_with};
use crate::grpc::client::{Producer, Worker, new_task};
use crate::http::harness::{Harness, PRODUCER, WORKER};

const MAX: usize = 16 << 20;

/// A JSON object of this many bytes that contains a mark.
fn object(bytes: usize, mark: &str) -> String {
    let empty = format!(r#"{{"mark":"{mark}","fill":""}}"#);
    let fill = "x".repeat(bytes - empty.len());
    format!(r#"{{"mark":"{mark}","fill":"{fill}"}}"#)
}

/// Compared without printing sixteen megabytes.
#[track_caller]
fn assert_same(got: &str, want: &str) {
    assert!(
        got == want,
        "{} bytes, wanted {}: {}…",
        got.len(),
        want.len(),
        &got[..got.len().min(99)]
    );
}

async fn make(server: &Harness, command: &str, payload: &str) -> crate::http::harness::Reply {
    let body = format!(r#"{{"command":"{command}","payload":{payload}}}"#);
    server.post_text(PRODUCER, "tasks", body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_largest_payloads_and_results_go_all_the_way() {
    let mut receiver = Receiver::willing().await;
    let server = server_with(|config| config.max_payload_bytes = Some(MAX)).await;
    let (by_http, by_stream) = (object(MAX, "http"), object(MAX, "stream"));
    let first = make(&server, "h", &by_http).await.expect(202).id();
    make(&server, "h", &object(MAX + 1, "beyond"))
        .await
        .refused(413, "invalid payload (1 to 16777216 bytes)");
    let mut producer = Producer::open(server.producer_addr(), PRODUCER).await;
    let webhook = receiver.url("/done");
    let payload = by_stream.clone().into();
    let second = producer.make(CreateTask { payload, webhook, ..new_task(1, "s") }).await;
    drop(producer);

    let server = server.restart().await;
    let task = server.get(PRODUCER, &format!("tasks/{first}")).await.expect(200).json();
    assert_same(task["payload"].as_str().unwrap(), &by_http);
    // Each is larger than a page, and has one to itself.
    let page = server.get(PRODUCER, "tasks").await.expect(200).json();
    assert_eq!(page["items"].as_array().unwrap().len(), 1);
    assert_eq!(page["items"][0]["id"], *second);
    let next = format!("tasks?cursor={}", page["nextCursor"].as_str().unwrap());
    let page = server.get(PRODUCER, &next).await.expect(200).json();
    assert_same(page["items"][0]["payload"].as_str().unwrap(), &by_http);

    let claimed = server.claim(WORKER, "h").await;
    assert_same(claimed["payload"].as_str().unwrap(), &by_http);
    let result = object(MAX, "result");
    let path = format!("tasks/{first}/result");
    let submit = |result: &str| format!(r#"{{"status":"COMPLETED","result":{result}}}"#);
    server
        .post_text(WORKER, &path, submit(&object(MAX + 1, "beyond")))
        .await
        .refused(413, "invalid result (at most 16777216 bytes)");
    server.post_text(WORKER, &path, submit(&result)).await.expect(200);
    let read = server.get(PRODUCER, &path).await.expect(200).text();
    assert!(read.contains(&result));

    let mut worker = Worker::open(server.worker_addr(), WORKER).await;
    let task = worker.take("s").await;
    assert_same(std::str::from_utf8(&task.payload).unwrap(), &by_stream);
    let status = "COMPLETED".to_owned();
    let result_json = result.clone().into();
    let outcome = Outcome { task_id: second, status, result_json, ..Outcome::default() };
    match worker.ask(ToWorkers::Result(outcome)).await {
        FromWorkers::ResultAck(ack) => assert!(ack.ok, "{ack:?}"),
        other => panic!("{other:?}"),
    }
    let told = String::from_utf8(receiver.next().await.body).unwrap();
    assert!(told.contains(&result), "{} bytes", told.len());
}

/// Without the setting it is 1 MiB, in batches and on streams, whose messages may be longer.
#[tokio::test]
async fn payloads_are_limited_to_a_mebibyte_by_default() {
    let server = server_with(|_| ()).await;
    let beyond = object((1 << 20) + 1, "beyond");
    let batch = format!(r#"{{"tasks":[{{"command":"c","payload":{beyond}}}]}}"#);
    let answer = server.post_text(PRODUCER, "tasks/batch", batch).await.expect(200).json();
    assert_eq!(answer["results"][0]["error"], "invalid payload (1 to 1048576 bytes)");
    let mut producer = Producer::open(server.producer_addr(), PRODUCER).await;
    let ack = producer.create(CreateTask { payload: beyond.into(), ..new_task(1, "c") }).await;
    assert_eq!((ack.ok, &*ack.code), (false, "invalid_payload"));
    let exact = object(1 << 20, "exact").into();
    producer.make(CreateTask { payload: exact, ..new_task(1, "c") }).await;
}
