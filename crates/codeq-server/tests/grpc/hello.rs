//! The Hello: who is accepted, and how it is acknowledged.

use codeq_proto::producer::producer_event::Event as ToProducers;
use codeq_proto::producer::server_event::Event as FromProducers;
use codeq_proto::worker::server_event::Event as FromWorkers;
use codeq_proto::worker::worker_event::Event as ToWorkers;
use codeq_proto::worker::{Heartbeat, Ready};
use codeq_proto::{producer, worker};
use tonic::{Code, Request};

use crate::grpc::client::{self, Producer, Worker, channel, new_task, producer_on, worker_on};
use crate::http::harness::{ADMIN, Harness, PRODUCER, PRODUCER_B, WORKER};

const NOT_FIRST: (Code, &str) = (Code::FailedPrecondition, "first event must be Hello");
const MISSING: (Code, &str) = (Code::Unauthenticated, "missing token");

/// A call with this header as its metadata.
fn with(header: &str) -> Request<()> {
    let mut call = Request::new(());
    if !header.is_empty() {
        call.metadata_mut().insert("authorization", header.parse().unwrap());
    }
    call
}

#[track_caller]
fn assert_end(end: &(Code, String), want: (Code, &str)) {
    assert_eq!((end.0, &*end.1), want);
}

#[tokio::test]
async fn the_first_event_is_a_hello() {
    let server = Harness::start().await;
    let to_producers = [
        producer::ProducerEvent { event: Some(ToProducers::Create(new_task(1, "c"))) },
        producer::ProducerEvent {
            event: Some(ToProducers::CreateBatch(producer::CreateTaskBatch::default())),
        },
        producer::ProducerEvent { event: None },
    ];
    for event in to_producers {
        let mut stream =
            producer_on(channel(server.producer_addr()).await, with("Bearer a-producer")).await;
        stream.send(event).await;
        assert_end(&stream.ended().await, NOT_FIRST);
    }
    let to_workers = [
        Some(ToWorkers::Ready(Ready::default())),
        Some(ToWorkers::Heartbeat(Heartbeat::default())),
        None,
    ];
    for event in to_workers {
        let mut stream =
            worker_on(channel(server.worker_addr()).await, with("Bearer a-worker")).await;
        stream.send(worker::WorkerEvent { event }).await;
        assert_end(&stream.ended().await, NOT_FIRST);
    }
    // A half-close is not a Hello either.
    let mut stream = client::producer(server.producer_addr()).await;
    stream.half_close();
    assert_end(&stream.ended().await, NOT_FIRST);
    assert_eq!(server.get(ADMIN, "admin/queues").await.expect(200).text(), "{}");
}

#[tokio::test]
async fn a_hello_is_awaited_for_ten_seconds() {
    let server = Harness::start().await;
    let start = std::time::Instant::now();
    let mut producer = client::producer(server.producer_addr()).await;
    let mut worker = client::worker(server.worker_addr()).await;
    for end in [producer.ended().await, worker.ended().await] {
        assert_end(&end, (Code::DeadlineExceeded, "no Hello in time"));
    }
    assert!(start.elapsed().as_secs() >= 9, "{:?}", start.elapsed());
}

#[tokio::test]
async fn invalid_tokens_are_refused() {
    let server = Harness::start().await;
    // The token of the Hello and that of the metadata: the Hello's counts if there is one.
    let cases = [
        ("", "", "missing token"),
        ("nobody", "", "auth failed: "),
        ("", "Bearer nobody", "auth failed: "),
        ("nobody", "Bearer GOOD", "auth failed: "),
        ("WRONG", "", "auth failed: "),
        ("WRONG", "Bearer GOOD", "auth failed: "),
        ("", "Bearer WRONG", "auth failed: "),
    ];
    for (token, header, want) in cases {
        let fill = |text: &str, good, wrong| text.replace("GOOD", good).replace("WRONG", wrong);
        let call = with(&fill(header, PRODUCER, WORKER));
        let mut stream = producer_on(channel(server.producer_addr()).await, call).await;
        stream.hello(&fill(token, PRODUCER, WORKER)).await;
        let (code, text) = stream.ended().await;
        assert!(
            code == Code::Unauthenticated && text.starts_with(want),
            "{token} {header}: {text}"
        );
        assert!(!text.contains("nobody") && !text.contains(WORKER), "{text}");

        let call = with(&fill(header, WORKER, PRODUCER));
        let mut stream = worker_on(channel(server.worker_addr()).await, call).await;
        stream.hello(&fill(token, WORKER, PRODUCER), "w").await;
        let (code, text) = stream.ended().await;
        assert!(
            code == Code::Unauthenticated && text.starts_with(want),
            "{token} {header}: {text}"
        );
    }
    // Other authentication schemes carry no token.
    let mut stream = producer_on(channel(server.producer_addr()).await, with("Basic YTpi")).await;
    stream.hello("").await;
    assert_end(&stream.ended().await, MISSING);
}

#[tokio::test]
async fn a_valid_token_is_acknowledged() {
    let server = Harness::start().await;
    let rows = [
        (PRODUCER, "", "a", "producer"),
        ("", "Bearer a-producer", "a", "producer"),
        (PRODUCER, "Bearer nobody", "a", "producer"),
        (PRODUCER_B, "", "b", "producer"),
        (ADMIN, "", "a", "admin"),
    ];
    for (token, header, tenant, subject) in rows {
        let mut stream = producer_on(channel(server.producer_addr()).await, with(header)).await;
        stream.hello(token).await;
        let FromProducers::HelloAck(ack) = stream.event().await else { panic!("no ack") };
        assert_eq!((&*ack.tenant_id, &*ack.subject), (tenant, subject), "{token}{header}");
        stream.closes().await;
    }
    let rows = [
        (WORKER, "", "", "worker", "a"),
        ("", "Bearer a-worker", "", "worker", "a"),
        (WORKER, "Bearer nobody", "w1", "worker/w1", "a"),
        (WORKER, "", "worker", "worker", "a"),
        ("b-worker", "", "pod 7/ünï", "worker/pod 7/ünï", "b"),
    ];
    for (token, header, id, worker_id, tenant) in rows {
        let mut stream = worker_on(channel(server.worker_addr()).await, with(header)).await;
        stream.hello(token, id).await;
        let FromWorkers::HelloAck(ack) = stream.event().await else { panic!("no ack") };
        assert_eq!((&*ack.worker_id, &*ack.tenant_id), (worker_id, tenant), "{token}{header}");
        stream.closes().await;
    }
}

#[tokio::test]
async fn invalid_instance_names_are_refused() {
    let server = Harness::start().await;
    for id in ["a\nb", "\u{1f}", "a\0", &"x".repeat(257)] {
        let mut stream = client::worker(server.worker_addr()).await;
        stream.hello(WORKER, id).await;
        let end = stream.ended().await;
        assert_end(&end, (Code::InvalidArgument, "worker_id is too long or not printable"));
    }
}

#[tokio::test]
async fn a_second_hello_and_an_event_without_content_change_nothing() {
    let server = Harness::start().await;
    let mut stream = Producer::open(server.producer_addr(), PRODUCER).await;
    stream.hello(PRODUCER_B).await;
    stream.send(producer::ProducerEvent { event: None }).await;
    for want in ["Hello must be the first event and cannot be repeated", "unknown event"] {
        let FromProducers::Error(error) = stream.event().await else { panic!("no error") };
        assert_eq!((&*error.code, &*error.message), ("InvalidArgument", want));
    }
    let id = stream.make(new_task(1, "c")).await;
    server.get(PRODUCER, &format!("tasks/{id}")).await.expect(200);
    stream.closes().await;

    let mut stream = Worker::open(server.worker_addr(), WORKER).await;
    stream.hello("b-worker", "other").await;
    stream.send(worker::WorkerEvent { event: None }).await;
    for want in ["Hello must be the first event and cannot be repeated", "unknown event"] {
        let error = stream.error().await;
        assert_eq!((&*error.code, &*error.message), ("InvalidArgument", want));
    }
    assert_eq!(stream.take("c").await.worker_id, "worker");
    stream.closes().await;
}
