//! Readys: held until there is a task, answered once, given back when the stream ends.

use std::time::Duration;

use codeq_proto::worker::Ready;
use codeq_proto::worker::worker_event::Event as ToWorkers;
use codeq_server::config::BackoffPolicy;
use futures_util::future::select_all;
use serde_json::json;

use crate::grpc::client::{Producer, Worker, channel, endpoint, new_task};
use crate::http::harness::{ADMIN, Harness, PRODUCER, WORKER, WORKER_2, pass};

#[tokio::test]
async fn a_ready_is_held_longer_than_any_request_and_connection_waits() {
    let server = Harness::with(|config| config.http.idle_timeout_seconds = 2).await;
    let mut worker = Worker::open(server.worker_addr(), WORKER).await;
    worker.ready("rare", 1).await;
    worker.ready("rare", 3).await;
    // Longer than a claim over HTTP can wait: time alone must not end a Ready.
    pass(Duration::from_secs(35)).await;
    worker.settle().await;
    let first = server.task("rare").await;
    assert_eq!(worker.task().await.id, first);
    let second = server.task("rare").await;
    let batch = worker.tasks().await;
    assert_eq!(batch.iter().map(|task| &*task.id).collect::<Vec<_>>(), [&*second]);
    // Both Readys are used up.
    server.task("rare").await;
    worker.settle().await;
    worker.closes().await;
}

#[tokio::test]
async fn the_count_says_how_a_ready_is_answered() {
    let server = Harness::start().await;
    let mut worker = Worker::open(server.worker_addr(), WORKER).await;
    for count in [i32::MIN, -1, 0, 1] {
        let id = server.task("c").await;
        worker.ready("c", count).await;
        assert_eq!(worker.task().await.id, id, "{count}");
    }
    for (there, count, want) in
        [(1, 2, 1), (3, 2, 2), (0, 5, 1), (300, i32::MAX, 256), (0, 100, 44)]
    {
        let mut producer = Producer::open(server.producer_addr(), PRODUCER).await;
        for first in (0..there).step_by(100) {
            let tasks = (first..there.min(first + 100)).map(|seq| new_task(seq, "c")).collect();
            assert!(producer.create_all(tasks).await.iter().all(|ack| ack.ok));
        }
        worker.ready("c", count).await;
        let mut tasks = worker.tasks().await;
        // The order among shards is not defined, but no task may come twice.
        tasks.sort_by(|a, b| a.id.cmp(&b.id));
        tasks.dedup_by(|a, b| a.id == b.id);
        assert_eq!(tasks.len(), want, "{there} {count}");
        assert!(
            tasks.iter().all(|task| task.status == "IN_PROGRESS" && task.worker_id == "worker")
        );
    }
}

#[tokio::test]
async fn a_ready_sets_leases_and_commands() {
    let server = Harness::start().await;
    let mut worker = Worker::open(server.worker_addr(), WORKER).await;
    let ready = |commands: &[&str], lease_seconds| {
        let commands = commands.iter().map(|command| (*command).to_owned()).collect();
        ToWorkers::Ready(Ready { commands, lease_seconds, count: 1 })
    };
    // No commands mean all of them, several mean any of these. A lease of zero means the default.
    for (commands, made, lease, want) in [
        (&[][..], "x", 0, 300),
        (&["a", "b"], "b", 60, 60),
        (&["A"], "a", 43_200, 43_200),
        (&["a"], "A", 1, 1),
        (&["a"], "a", -1, 300),
    ] {
        server.task("unwanted").await;
        if commands.is_empty() {
            worker.say(ready(&["unwanted"], 10)).await;
            worker.task().await;
        }
        let id = server.task(made).await;
        worker.say(ready(commands, lease)).await;
        let task = worker.task().await;
        assert_eq!(task.id, id);
        let until: jiff::Timestamp = task.lease_until.parse().unwrap();
        let left = until.as_second() - task.updated_at.unwrap().seconds;
        assert!((want - 1..=want + 1).contains(&left), "{left} {want}");
    }
    worker.say(ready(&["x"], 43_201)).await;
    let error = worker.error().await;
    assert_eq!(error.code, "InvalidArgument");
    assert!(error.message.starts_with("invalid lease"), "{}", error.message);
    let many: Vec<String> = (0..1_001).map(|n| format!("c{n}")).collect();
    worker.say(ToWorkers::Ready(Ready { commands: many, ..Ready::default() })).await;
    assert_eq!(worker.error().await.message, "too many commands (at most 1000)");
    worker.say(ready(&[""], 0)).await;
    assert_eq!(worker.error().await.code, "InvalidArgument");
    worker.closes().await;
}

#[tokio::test]
async fn one_task_wakes_one_ready_of_many() {
    let server = Harness::start().await;
    let mut workers = Vec::new();
    for n in 0..20 {
        let mut worker = Worker::open_as(server.worker_addr(), WORKER, &n.to_string()).await;
        for count in [1, 0, 5] {
            worker.ready("c", count).await;
        }
        worker.settle().await;
        workers.push(worker);
    }
    let id = server.task("c").await;
    let answers = workers.iter_mut().map(|worker| Box::pin(worker.answer()));
    let (answer, woken, rest) = select_all(answers).await;
    drop(rest);
    assert!(format!("{answer:?}").contains(&id), "{answer:?}");
    for worker in &mut workers {
        worker.settle().await;
    }
    // The next task goes to another Ready of any of the workers: nobody has lost a Ready.
    let id = server.task("c").await;
    let answers = workers.iter_mut().map(|worker| Box::pin(worker.answer()));
    let (answer, other, _) = select_all(answers).await;
    assert!(format!("{answer:?}").contains(&id), "{woken} {other} {answer:?}");
}

#[tokio::test]
async fn the_longest_waiting_ready_is_woken_first() {
    let server = Harness::with(|config| config.shards = Some(1)).await;
    let mut workers = Vec::new();
    for n in 0..10 {
        let mut worker = Worker::open_as(server.worker_addr(), WORKER, &n.to_string()).await;
        worker.ready("c", 1).await;
        worker.settle().await;
        workers.push(worker);
    }
    for worker in &mut workers {
        let id = server.task("c").await;
        assert_eq!(worker.task().await.id, id);
    }
}

/// How a client can leave.
#[derive(Debug, Clone, Copy)]
enum Leave {
    HalfClose,
    Stream,
    Connection,
}

#[tokio::test]
async fn a_stream_that_ends_drops_its_readys() {
    let server = Harness::start().await;
    for leave in [Leave::HalfClose, Leave::Stream, Leave::Connection] {
        let shared = channel(server.worker_addr()).await;
        let mut gone = match leave {
            Leave::Connection => Worker::open(server.worker_addr(), WORKER).await,
            _ => Worker::open_on(shared.clone(), WORKER, "").await,
        };
        for _ in 0..10 {
            gone.ready("c", 1).await;
        }
        gone.settle().await;
        match leave {
            Leave::HalfClose => gone.closes().await,
            _ => drop(gone),
        }
        let mut worker = Worker::open_on(shared, WORKER_2, "").await;
        worker.ready("c", 1).await;
        worker.settle().await;
        let id = server.task("c").await;
        let task = worker.task().await;
        assert_eq!((&*task.id, task.attempts, &*task.worker_id), (&*id, 0, "worker2"), "{leave:?}");
        worker.closes().await;
    }
}

#[tokio::test]
async fn a_task_that_could_not_be_sent_is_back_at_once() {
    let server = Harness::start().await;
    // The client takes no answers, and its window holds less than the first task: the second one is claimed
    // but cannot be written.
    let narrow = endpoint(server.worker_addr()).initial_stream_window_size(65_535);
    let mut gone = Worker::open_on(narrow.connect().await.unwrap(), WORKER, "gone").await;
    gone.ready("c", 1).await;
    gone.ready("c", 1).await;
    gone.settle().await;
    let large = json!({"command": "c", "payload": "x".repeat(500_000)});
    let sent = server.enqueue(PRODUCER, large).await;
    let path = format!("tasks/{sent}");
    while server.get(PRODUCER, &path).await.expect(200).json()["status"] == "PENDING" {}
    let kept = server.task("c").await;
    let path = format!("tasks/{kept}");
    while server.get(PRODUCER, &path).await.expect(200).json()["status"] == "PENDING" {}
    drop(gone);
    let mut worker = Worker::open_as(server.worker_addr(), WORKER, "next").await;
    let task = worker.take("c").await;
    assert_eq!((&*task.id, task.attempts, &*task.worker_id), (&*kept, 0, "worker/next"));
    // A task whose sending had begun may have arrived, so its lease stays.
    let first = server.get(PRODUCER, &format!("tasks/{sent}")).await.expect(200).json();
    assert_eq!(
        (&first["status"], &first["workerId"]),
        (&json!("IN_PROGRESS"), &json!("worker/gone"))
    );
}

#[tokio::test]
async fn leases_stay_when_the_stream_ends_until_they_expire() {
    let server = Harness::with(|config| {
        config.backoff_policy = BackoffPolicy::Fixed;
        config.backoff_base_seconds = 0;
    })
    .await;
    let mut first = Worker::open_as(server.worker_addr(), WORKER, "one").await;
    let id = server.task("c").await;
    let kept = server.task("kept").await;
    first
        .say(ToWorkers::Ready(Ready { commands: vec!["c".into()], lease_seconds: 2, count: 1 }))
        .await;
    assert_eq!(first.task().await.id, id);
    assert_eq!(first.take("kept").await.id, kept);
    first.closes().await;
    let task = server.get(PRODUCER, &format!("tasks/{id}")).await.expect(200).json();
    assert_eq!((&task["status"], &task["workerId"]), (&json!("IN_PROGRESS"), &json!("worker/one")));
    // Somebody else's Ready gets it when the lease is over.
    let mut second = Worker::open_as(server.worker_addr(), WORKER, "two").await;
    let task = second.take("c").await;
    assert_eq!((&*task.id, task.attempts, task.fence), (&*id, 1, 2));
    // The worker that holds the other task comes back on a new stream and goes on.
    let mut first = Worker::open_as(server.worker_addr(), WORKER, "one").await;
    let done = crate::grpc::acks::result(&kept, "COMPLETED");
    assert!(crate::grpc::acks::ack(first.ask(done).await).ok);
    let queue = server.get(ADMIN, "admin/queues/c").await.expect(200).json();
    assert_eq!((&queue["inProgress"], &queue["dlq"]), (&json!(1), &json!(0)));
}

#[tokio::test]
async fn too_many_readys_end_the_stream() {
    let server = Harness::start().await;
    let mut worker = Worker::open(server.worker_addr(), WORKER).await;
    for _ in 0..10_000 {
        worker.ready("c", 1).await;
    }
    worker.settle().await;
    worker.ready("c", 1).await;
    let (code, text) = worker.ended().await;
    assert_eq!(
        (code, &*text),
        (tonic::Code::ResourceExhausted, "more than 10000 Ready events are waiting")
    );
}

#[tokio::test]
async fn every_ready_of_many_is_answered() {
    let server = Harness::start().await;
    let mut worker = Worker::open(server.worker_addr(), WORKER).await;
    // More than the server looks for at once: the others get their turn as these are answered.
    for _ in 0..600 {
        worker.ready("c", 1).await;
    }
    let mut producer = Producer::open(server.producer_addr(), PRODUCER).await;
    for first in (0..600).step_by(100) {
        let tasks = (first..first + 100).map(|seq| new_task(seq, "c")).collect();
        assert!(producer.create_all(tasks).await.iter().all(|ack| ack.ok));
    }
    let mut ids = std::collections::HashSet::new();
    for _ in 0..600 {
        assert!(ids.insert(worker.task().await.id));
    }
    worker.settle().await;
}
