//! Rates: streams draw from the buckets that requests over HTTP draw from.

use codeq_proto::worker::server_event::Event as FromWorkers;
use codeq_proto::worker::worker_event::Event as ToWorkers;
use codeq_proto::worker::{Result as Outcome, ResultBatch};
use codeq_server::config::RateLimit;
use serde_json::json;

use crate::grpc::acks::{ack, each};
use crate::grpc::client::{Producer, Worker, new_task};
use crate::http::harness::{Harness, PRODUCER, PRODUCER_B, UNKNOWN_ID, WORKER};

fn limit(requests_per_minute: u32, burst: u32) -> Option<RateLimit> {
    Some(RateLimit { requests_per_minute, burst })
}

#[tokio::test]
async fn a_bucket_that_http_has_drained_refuses_creates() {
    let server = Harness::with(|config| config.rate_limit.producer = limit(1, 3)).await;
    let mut producer = Producer::open(server.producer_addr(), PRODUCER).await;
    for _ in 0..3 {
        server.task("c").await;
    }
    let body = json!({"command": "c", "payload": {}});
    assert_eq!(server.post(PRODUCER, "tasks", body).await.status, 429);
    let refused = producer.create(new_task(7, "c")).await;
    let got = (refused.ok, &*refused.code, &*refused.error_message);
    assert_eq!(got, (false, "rate_limited", "rate limit exceeded"));
    let acks = producer.create_all(vec![new_task(8, "c"), new_task(9, "c")]).await;
    let got: Vec<_> = acks.iter().map(|ack| (ack.seq, ack.ok, &*ack.code)).collect();
    assert_eq!(got, [(8, false, "rate_limited"), (9, false, "rate_limited")]);
    // Each tenant has its own bucket, and the stream goes on.
    Producer::open(server.producer_addr(), PRODUCER_B).await.make(new_task(1, "c")).await;
    producer.closes().await;
}

#[tokio::test]
async fn every_event_draws_one_token_a_batch_too() {
    let server = Harness::with(|config| config.rate_limit.producer = limit(1, 3)).await;
    let mut producer = Producer::open(server.producer_addr(), PRODUCER).await;
    for first in [0, 50] {
        let acks =
            producer.create_all((first..first + 50).map(|n| new_task(n, "c")).collect()).await;
        assert!(acks.iter().all(|ack| ack.ok));
    }
    producer.make(new_task(1, "c")).await;
    assert_eq!(producer.create(new_task(2, "c")).await.code, "rate_limited");
    let body = json!({"command": "c", "payload": {}});
    assert_eq!(server.post(PRODUCER, "tasks", body).await.status, 429);
}

#[tokio::test]
async fn workers_events_are_refused_in_their_acknowledgements() {
    let server = Harness::with(|config| config.rate_limit.worker = limit(1, 1)).await;
    let mut worker = Worker::open(server.worker_addr(), WORKER).await;
    let id = server.task("c").await;
    assert_eq!(worker.take("c").await.id, id);
    for (kind, event) in each(&id) {
        let got = ack(worker.ask(event).await);
        assert_eq!((got.kind, got.ok, &*got.code), (kind, false, "rate_limited"));
        assert_eq!(got.id, id);
    }
    let results = vec![Outcome { task_id: UNKNOWN_ID.into(), ..Outcome::default() }; 2];
    let batch = worker.ask(ToWorkers::ResultBatch(ResultBatch { results })).await;
    let FromWorkers::ResultAckBatch(batch) = batch else { panic!("{batch:?}") };
    let got: Vec<_> = batch.acks.iter().map(|ack| (&*ack.task_id, &*ack.code)).collect();
    assert_eq!(got, [(UNKNOWN_ID, "rate_limited"); 2]);
}

#[tokio::test]
async fn a_ready_beyond_the_rate_waits_and_is_not_dropped() {
    let server = Harness::with(|config| config.rate_limit.worker = limit(30, 1)).await;
    let mut worker = Worker::open(server.worker_addr(), WORKER).await;
    let (one, two) = (server.task("c").await, server.task("c").await);
    let start = std::time::Instant::now();
    worker.ready("c", 1).await;
    worker.ready("c", 1).await;
    let mut got = [worker.task().await.id, worker.task().await.id];
    let mut want = [one, two];
    got.sort();
    want.sort();
    assert_eq!(got, want);
    assert!(start.elapsed().as_millis() >= 1_500, "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_ready_draws_one_token_over_several_shards_too() {
    let server = Harness::with(|config| {
        config.shards = Some(2);
        config.rate_limit.worker = limit(1, 3);
    })
    .await;
    let mut worker = Worker::open(server.worker_addr(), WORKER).await;
    for _ in 0..2 {
        let id = server.task("c").await;
        assert_eq!(worker.take("c").await.id, id);
    }
    // One of three tokens is left, and none will be added for a minute.
    let got = [
        ack(worker.ask(each(UNKNOWN_ID)[1].1.clone()).await).code,
        ack(worker.ask(each(UNKNOWN_ID)[1].1.clone()).await).code,
    ];
    assert_eq!(got, ["not_found", "rate_limited"]);
}
