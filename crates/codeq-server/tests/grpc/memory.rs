//! How much of the server's memory streams may hold.

use std::collections::BTreeSet;
use std::time::Duration;

use codeq_proto::producer::producer_event::Event as ToProducers;
use codeq_proto::producer::{CreateTask, CreateTaskBatch};
use codeq_proto::worker::Ready;
use codeq_proto::worker::worker_event::Event as ToWorkers;
use serde_json::Value;
use tonic::Code;

use crate::grpc::client::{self, Producer, Worker, endpoint, new_task};
use crate::http::harness::{ADMIN, Harness, PRODUCER, WORKER, WORKER_B};

async fn held(server: &Harness) -> u64 {
    let text = server.get("", "/metrics").await.expect(200).text();
    let values = text.lines().filter_map(|line| line.strip_prefix("codeq_held_bytes{"));
    values.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

#[tokio::test]
async fn a_long_hello_is_refused_before_it_has_come() {
    let server = Harness::start().await;
    let mut stream = client::producer(server.producer_addr()).await;
    let tasks = vec![CreateTask { payload: vec![0; 64 << 10].into(), ..new_task(1, "c") }];
    stream.say(ToProducers::CreateBatch(CreateTaskBatch { tasks })).await;
    assert_eq!(stream.ended().await.0, Code::OutOfRange);
}

#[tokio::test]
async fn readys_that_wait_are_bounded_in_bytes() {
    let server = Harness::start().await;
    let mut worker = Worker::open(server.worker_addr(), WORKER).await;
    let mut other = Worker::open(server.worker_addr(), WORKER_B).await;
    let send = worker.sender();
    let sent = tokio::spawn(async move {
        let mut sent = 0;
        // Without a bound there would be 10,000 of them.
        for n in 0..2_000 {
            let commands = (0..900).map(|command| format!("{n:0>60}-{command:0>60}")).collect();
            let ready = Ready { commands, lease_seconds: 60, count: 1 };
            let event = codeq_proto::worker::WorkerEvent { event: Some(ToWorkers::Ready(ready)) };
            if send.send(event).await.is_err() {
                break;
            }
            sent = n;
        }
        sent
    });
    let (code, text) = worker.ended().await;
    assert_eq!(code, Code::ResourceExhausted, "{text}");
    drop(worker);
    assert!(sent.await.unwrap() < 200);
    other.settle().await;
    other.closes().await;
    assert_eq!(server.get(ADMIN, "admin/queues").await.expect(200).text(), "{}");
}

/// Many streams of one connection, whose Readys take all the bytes that they may.
#[tokio::test]
async fn the_streams_of_a_connection_leave_room_for_those_of_another() {
    let server = Harness::with(|config| config.http.max_buffered_bytes = Some(64 << 20)).await;
    let channel = endpoint(server.worker_addr()).connect().await.unwrap();
    let mut small = Worker::open_on(channel.clone(), WORKER, "").await;
    let mut streams = Vec::new();
    for _ in 0..6 {
        let worker = Worker::open_on(channel.clone(), WORKER, "").await;
        let send = worker.sender();
        let sending = tokio::spawn(async move {
            for n in 0..17 {
                let commands = (0..900).map(|name| format!("{n:0>60}-{name:0>60}")).collect();
                let ready = Ready { commands, lease_seconds: 60, count: 1 };
                let event =
                    codeq_proto::worker::WorkerEvent { event: Some(ToWorkers::Ready(ready)) };
                // A Ready for which there is no room waits here.
                if send.send(event).await.is_err() {
                    break;
                }
            }
        });
        streams.push((worker, sending));
    }
    let full = || async {
        let text = server.get("", "/metrics").await.expect(200).text();
        let count = text.lines().find_map(|line| {
            line.strip_prefix("codeq_held_refusals_total{kind=\"streams\"} ").map(str::to_owned)
        });
        count.is_some_and(|count| count != "0")
    };
    while !full().await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let bytes = held(&server).await;
    assert!((16 << 20..28 << 20).contains(&bytes), "{bytes}");
    let mut other = Worker::open(server.worker_addr(), WORKER).await;
    other.settle().await;
    other.closes().await;
    // Another stream of the full connection is read even while a Ready of its own waits.
    small.ready("small", 1).await;
    small.settle().await;
    small.closes().await;
    for (_, sending) in streams {
        sending.abort();
    }
}

/// 40 Readys ask for 40 tasks of a megabyte each. Those that the client does not read stay in their queue.
async fn tasks_that_nobody_takes(shards: u16) {
    const TASKS: u64 = 40;
    let server = Harness::with(|config| config.shards = Some(shards)).await;
    let mut producer = Producer::open(server.producer_addr(), PRODUCER).await;
    for seq in 0..TASKS {
        let payload = format!("\"{}\"", "x".repeat(1_000_000));
        producer.make(CreateTask { payload: payload.into(), ..new_task(seq, "c") }).await;
    }
    let narrow = endpoint(server.worker_addr())
        .initial_stream_window_size(65_535)
        .initial_connection_window_size(65_535);
    let mut worker = Worker::open_on(narrow.connect().await.unwrap(), WORKER, "").await;
    for _ in 0..TASKS {
        worker.ready("c", 1).await;
    }
    let in_progress = || async {
        let queue: Value = server.get(ADMIN, "admin/queues/c").await.expect(200).json();
        queue["inProgress"].as_u64().unwrap()
    };
    // As many tasks as may wait for the client, and the one that is being sent. For a moment there are more, which are
    // about to go back.
    let mut seen = Vec::new();
    while seen.len() < 100 && !seen.last().is_some_and(|now| (16..=20).contains(now)) {
        tokio::time::sleep(Duration::from_millis(50)).await;
        seen.push(in_progress().await);
    }
    assert!(seen.len() < 100, "{seen:?}");
    let bytes = held(&server).await;
    assert!((10 << 20..24 << 20).contains(&bytes), "{bytes}");
    // When the client reads, it gets all of them, each once.
    let mut got = BTreeSet::new();
    while got.len() < TASKS as usize {
        assert!(got.insert(worker.task().await.id), "the same task twice");
    }
    worker.closes().await;
}

#[tokio::test]
async fn tasks_that_a_client_does_not_take_go_back() {
    tasks_that_nobody_takes(1).await;
}

#[tokio::test]
async fn tasks_of_several_shards_that_a_client_does_not_take_go_back() {
    tasks_that_nobody_takes(3).await;
}
