//! Load: creates whose answers nobody reads, and thousands of waiting streams.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use codeq_proto::producer::producer_event::Event as ToProducers;
use codeq_proto::producer::{CreateTask, ProducerEvent};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::grpc::client::{Producer, Worker, channel, endpoint, new_task};
use crate::http::harness::{ADMIN, Harness, PRODUCER, WORKER};

/// Streams on one connection; the server allows 256.
const PER_CONNECTION: usize = 250;
const CONNECTIONS: usize = 40;

async fn made(server: &Harness) -> u64 {
    let queue = server.get(ADMIN, "admin/queues/c").await;
    if queue.status == 200 { queue.json()["ready"].as_u64().unwrap() } else { 0 }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_takes_no_answers_is_not_read() {
    const ALL: u64 = 10_000;
    let server = Harness::start().await;
    let narrow = endpoint(server.producer_addr())
        .initial_stream_window_size(65_535)
        .initial_connection_window_size(65_535);
    let mut producer = Producer::open_on(narrow.connect().await.unwrap(), PRODUCER).await;
    let sender = producer.sender();
    let sending = tokio::spawn(async move {
        for seq in 0..ALL {
            let payload = format!("\"{}\"", "x".repeat(1_000)).into();
            let event = Some(ToProducers::Create(CreateTask { payload, ..new_task(seq, "c") }));
            sender.send(ProducerEvent { event }).await.unwrap();
        }
    });
    // Waits until nothing moves any more. If it looks too early, it sees fewer tasks, which does not fail the test.
    let (mut stuck, mut same) = (0, 0);
    while stuck == 0 || same < 5 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let now = made(&server).await;
        same = if now == stuck { same + 1 } else { 0 };
        stuck = now;
    }
    assert!(stuck < ALL * 3 / 4 && !sending.is_finished(), "{stuck} were made");
    let (mut seqs, mut ids) = (HashSet::new(), HashSet::new());
    for _ in 0..ALL {
        let ack = producer.ack().await;
        assert!(ack.ok && seqs.insert(ack.seq) && ids.insert(ack.task_id));
    }
    sending.await.unwrap();
    producer.closes().await;
    assert_eq!(made(&server).await, ALL);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_bytes_than_may_be_in_flight_are_all_acknowledged() {
    let server = Harness::start().await;
    let mut producer = Producer::open(server.producer_addr(), PRODUCER).await;
    let sender = producer.sender();
    let payload = Bytes::from(format!("\"{}\"", "x".repeat(1_000_000)));
    let sending = tokio::spawn(async move {
        for seq in 0..30 {
            let task = CreateTask { payload: payload.clone(), ..new_task(seq, "c") };
            sender.send(ProducerEvent { event: Some(ToProducers::Create(task)) }).await.unwrap();
        }
    });
    let mut seqs = HashSet::new();
    for _ in 0..30 {
        let ack = producer.ack().await;
        assert!(ack.ok && seqs.insert(ack.seq), "{ack:?}");
    }
    sending.await.unwrap();
    // They come back in batches that a client with the usual limit of 4 MiB can take.
    let mut worker = Worker::open(server.worker_addr(), WORKER).await;
    let mut got = HashSet::new();
    while got.len() < 30 {
        worker.ready("c", 256).await;
        let tasks = worker.tasks().await;
        assert!(!tasks.is_empty() && tasks.iter().all(|task| task.payload.len() == 1_000_002));
        got.extend(tasks.into_iter().map(|task| task.id));
    }
    worker.closes().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_streams_wait_and_each_is_woken_once() {
    let server = Harness::start().await;
    let (woken, mut arrivals) = mpsc::channel(PER_CONNECTION * CONNECTIONS);
    let mut opening = JoinSet::new();
    for connection in 0..CONNECTIONS {
        let addr = server.worker_addr();
        opening.spawn(async move {
            let shared = channel(addr).await;
            let mut workers = Vec::new();
            for n in 0..PER_CONNECTION {
                let id = (connection * PER_CONNECTION + n).to_string();
                let mut worker = Worker::open_on(shared.clone(), WORKER, &id).await;
                worker.ready("c", 1).await;
                worker.settle().await;
                workers.push(worker);
            }
            workers
        });
    }
    let workers: Vec<Worker> = opening.join_all().await.into_iter().flatten().collect();
    let count = workers.len();
    assert_eq!(count, PER_CONNECTION * CONNECTIONS);
    // No stream has a thread of its own; other tests have a few threads.
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let threads = status.lines().find_map(|line| line.strip_prefix("Threads:")).unwrap();
    assert!(threads.trim().parse::<usize>().unwrap() < 500, "{threads}");
    let mut waiting = JoinSet::new();
    for mut worker in workers {
        let woken = woken.clone();
        waiting.spawn(async move {
            let task = worker.task().await;
            woken.send((task.id, task.worker_id)).await.unwrap();
            worker
        });
    }
    let mut producer = Producer::open(server.producer_addr(), PRODUCER).await;
    let mut want = HashSet::new();
    for first in (0..count as u64).step_by(100) {
        let acks =
            producer.create_all((first..first + 100).map(|n| new_task(n, "c")).collect()).await;
        want.extend(acks.into_iter().map(|ack| ack.task_id));
    }
    let (mut tasks, mut who) = (HashSet::new(), HashSet::new());
    for _ in 0..count {
        let (task, worker) = arrivals.recv().await.unwrap();
        assert!(tasks.insert(task) && who.insert(worker));
    }
    assert_eq!(tasks, want);
    // No worker gets anything else.
    for mut worker in waiting.join_all().await.into_iter().step_by(50) {
        worker.settle().await;
    }
}
