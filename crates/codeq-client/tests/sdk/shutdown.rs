//! Shutting down a worker.

use std::sync::Arc;
use std::time::Duration;

use codeq_client::testing::TestServer;
use codeq_client::{CancelReason, Error, NewTask, Outcome, Status, Task};
use tokio::sync::{Notify, mpsc};

use crate::support::{Running, enqueue, outlives_its_lease, result, soon};

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_worker_ends_and_takes_nothing_more() {
    let server = TestServer::start().await.unwrap();
    let producer = server.producer().await.unwrap();
    let handler = |_: Task<u64>| async { Ok(Outcome::done()) };
    let worker = Running::start(server.worker().handle("work", handler));
    let id = enqueue(&producer, "work", &1).await;
    result(&producer, &id).await;
    assert_eq!(worker.stop().await.completed, 1);
    // The worker's credits ended with it: the task stays for another one.
    let id = enqueue(&producer, "work", &2).await;
    assert_eq!(server.http().unwrap().task(&id).await.unwrap().status, Status::Pending);
    let next = Running::start(server.worker().handle("work", handler));
    result(&producer, &id).await;
    next.stop().await;
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn handlers_finish_within_the_grace() {
    let server = TestServer::start().await.unwrap();
    let producer = server.producer().await.unwrap();
    let (started, mut starts) = mpsc::channel(8);
    let go = Arc::new(Notify::new());
    let gate = Arc::clone(&go);
    // A short lease: it must be extended during the shutdown, too.
    let builder = server.worker().concurrency(2).lease(Duration::from_secs(1));
    let worker = Running::start(builder.handle("work", move |_: Task<u64>| {
        let (started, gate) = (started.clone(), Arc::clone(&gate));
        async move {
            started.send(()).await?;
            gate.notified().await;
            Ok(Outcome::done())
        }
    }));
    let first = enqueue(&producer, "work", &1).await;
    soon(starts.recv()).await.unwrap();
    worker.handle.shutdown();
    // The second credit is returned: this task is not touched.
    let http = server.http().unwrap();
    let history = || async { http.history(&first).await.unwrap().items.len() };
    let second = enqueue(&producer, "work", &2).await;
    outlives_its_lease(&http, &first).await;
    assert_eq!(history().await, 2, "created and claimed");
    go.notify_one();
    let handle = worker.handle.clone();
    worker.ended().await.unwrap();
    let stats = handle.stats();
    assert_eq!((stats.completed, stats.lost), (1, 0));
    assert_eq!(result(&producer, &first).await.status, Status::Completed);
    let second = http.task(&second).await.unwrap();
    assert_eq!((second.status, second.attempts), (Status::Pending, 0));
    server.end().await;
}

/// Records when it is dropped.
struct Dropped(mpsc::Sender<Option<CancelReason>>, codeq_client::Cancellation);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.try_send(self.1.reason()).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unfinished_tasks_go_back_without_penalty() {
    let server = TestServer::start().await.unwrap();
    let producer = server.producer().await.unwrap();
    let (started, mut starts) = mpsc::channel(8);
    let (dropped, mut drops) = mpsc::channel(8);
    let builder = server.worker().concurrency(3).grace(Duration::from_millis(200));
    let worker = Running::start(builder.handle("work", move |task: Task<u64>| {
        let (started, dropped) = (started.clone(), dropped.clone());
        async move {
            let _dropped = Dropped(dropped, task.cancellation.clone());
            started.send(()).await?;
            std::future::pending().await
        }
    }));
    let tasks = (0..5).map(|n| NewTask::new("work", &n).unwrap()).collect();
    let answers = producer.enqueue_batch(tasks).await;
    for _ in 0..3 {
        soon(starts.recv()).await.unwrap();
    }
    let stats = worker.stop().await;
    assert_eq!((stats.abandoned, stats.completed, stats.lost), (3, 0, 0));
    for _ in 0..3 {
        assert_eq!(soon(drops.recv()).await.unwrap(), Some(CancelReason::Shutdown));
    }
    let http = server.http().unwrap();
    for answer in answers {
        let task = http.task(&answer.unwrap().task_id).await.unwrap();
        assert_eq!((task.status, task.attempts), (Status::Pending, 0));
    }
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_on_their_way_at_the_shutdown_go_back() {
    let server = TestServer::start().await.unwrap();
    let producer = server.producer().await.unwrap();
    // Tasks keep arriving while one worker after another shuts down: at whatever moment that happens, no task stays with a
    // worker that is gone.
    let feeding = {
        let producer = producer.clone();
        tokio::spawn(async move {
            let tasks = (0..1_000).map(|n| NewTask::new("work", &n).unwrap()).collect();
            producer.enqueue_batch(tasks).await
        })
    };
    let handler = |_: Task<u64>| async { Ok(Outcome::done()) };
    let mut completed = 0;
    for _ in 0..10 {
        let worker = Running::start(server.worker().concurrency(4).handle("work", handler));
        soon(async {
            while worker.handle.stats().completed < 5 {
                tokio::task::yield_now().await
            }
        })
        .await;
        completed += worker.stop().await.completed;
        let queue = server.http().unwrap().queue("work").await.unwrap();
        assert_eq!(queue.in_progress, 0);
    }
    let enqueued = feeding.await.unwrap();
    assert!(enqueued.iter().all(Result::is_ok));
    let queue = server.http().unwrap().queue("work").await.unwrap();
    assert_eq!((queue.ready + completed, queue.delayed), (1_000, 0));
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_without_a_server_ends_too() {
    let mut server = TestServer::start().await.unwrap();
    let producer = server.producer().await.unwrap();
    let (started, mut starts) = mpsc::channel(8);
    let builder = server.worker().grace(Duration::from_millis(100));
    let worker = Running::start(builder.handle("work", move |_: Task<u64>| {
        let started = started.clone();
        async move {
            started.send(()).await?;
            std::future::pending().await
        }
    }));
    enqueue(&producer, "work", &1).await;
    soon(starts.recv()).await.unwrap();
    server.stop().await;
    worker.handle.shutdown();
    let left = worker.ended().await.unwrap_err();
    assert!(matches!(&left, Error::Unavailable(text) if text.contains("1 tasks")), "{left}");
}
