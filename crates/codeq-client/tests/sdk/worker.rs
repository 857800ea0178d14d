//! Workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use codeq_client::testing::TestServer;
use codeq_client::{
    CancelReason, Error, NewTask, Options, Outcome, Status, Task, Worker, WorkerBuilder,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{Barrier, Semaphore, mpsc, watch};

use crate::proxy::Proxy;
use crate::support::{Running, enqueue, failure, outlives_its_lease, result, server, soon};

#[tokio::test(flavor = "multi_thread")]
async fn each_command_has_its_handler_whatever_its_case() {
    let server = TestServer::start().await.unwrap();
    let producer = server.producer().await.unwrap();
    let worker = Running::start(
        server
            .worker()
            .handle("Upper", |task: Task<String>| async move {
                Outcome::complete(&json!({"text": task.payload.to_uppercase()}))
            })
            .handle("count", |task: Task<Vec<u8>>| async move {
                Outcome::complete(&json!({"count": task.payload.len()}))
            })
            .handle("nothing", |_: Task<Value>| async move { Ok(Outcome::done()) }),
    );
    let upper = enqueue(&producer, "UPPER", &"shout").await;
    let count = enqueue(&producer, "count", &[1, 2, 3]).await;
    let nothing = enqueue(&producer, "nothing", &0).await;
    let value = |id: String| {
        let producer = producer.clone();
        async move { result(&producer, &id).await.json::<Value>().unwrap() }
    };
    assert_eq!(value(upper).await, json!({"text": "SHOUT"}));
    assert_eq!(value(count).await, json!({"count": 3}));
    assert_eq!(value(nothing).await, json!({}));
    assert_eq!(worker.stop().await.completed, 3);
    server.end().await;
}

#[derive(Deserialize)]
struct Order {
    how: String,
}

#[tokio::test(flavor = "multi_thread")]
async fn all_outcomes_reach_the_server() {
    let server = server().await;
    let producer = server.producer().await.unwrap();
    let worker = Running::start(server.worker().handle("order", |task: Task<Order>| async move {
        if task.attempts > 0 {
            return Outcome::complete(&json!({"attempts": task.attempts}));
        }
        match task.payload.how.as_str() {
            "fail" => Ok(Outcome::fail("for good")),
            "nack" => Ok(Outcome::nack("later")),
            "nack now" => Ok(Outcome::nack_after(Duration::ZERO, "at once")),
            "abandon" => Ok(Outcome::Abandon),
            "error" => Err("a broken pipe".into()),
            "not an object" => Outcome::complete(&"text"),
            "too large" => Outcome::complete(&json!({"text": "x".repeat(2 << 20)})),
            _ => panic!("an unknown order"),
        }
    }));
    let order = |how: &str| json!({"how": how});
    let failed = enqueue(&producer, "order", &order("fail")).await;
    assert_eq!(failure(&producer, &failed).await, "for good");
    let cases = [
        ("nack", "later"),
        ("nack now", "at once"),
        ("abandon", ""),
        ("error", "a broken pipe"),
        ("panic", "the handler panicked: an unknown order"),
        ("not an object", "the result is not a JSON object"),
        ("too large", "the result has more than 1048576 bytes"),
    ];
    let http = server.http().unwrap();
    for (how, error) in cases {
        let id = enqueue(&producer, "order", &order(how)).await;
        let value: Value = result(&producer, &id).await.json().unwrap();
        assert_eq!(value, json!({"attempts": 1}), "{how}");
        let task = http.task(&id).await.unwrap();
        assert!(task.error.starts_with(error), "{how}: {}", task.error);
    }
    let stats = worker.stop().await;
    assert_eq!((stats.completed, stats.failed, stats.nacked, stats.abandoned), (7, 1, 6, 1));
    server.end().await;
}

/// A bad deploy must not empty a queue: tasks that one worker cannot read stay for the next.
#[tokio::test(flavor = "multi_thread")]
async fn a_payload_that_cannot_be_read_is_given_back_with_the_reason() {
    let server = server().await;
    let producer = server.producer().await.unwrap();
    let handler = |_: Task<Order>| async { Ok(Outcome::done()) };
    let worker = Running::start(server.worker().handle("order", handler));
    let http = server.http().unwrap();
    let id = enqueue(&producer, "order", &json!({"what": "secret"})).await;
    soon(async {
        while worker.handle.stats().nacked == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let task = http.task(&id).await.unwrap();
    assert_ne!(task.status, Status::Failed);
    assert!(task.error.contains("::Order: missing field `how` at line 1"), "{}", task.error);
    assert!(!task.error.contains("secret"), "{}", task.error);
    assert_eq!(worker.stop().await.failed, 0);
    let handler = |_: Task<Value>| async { Ok(Outcome::done()) };
    let fixed = Running::start(server.worker().handle("order", handler));
    assert_eq!(result(&producer, &id).await.status, Status::Completed);
    assert_eq!(fixed.stop().await.completed, 1);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_handlers_run_as_were_asked_for_and_no_more() {
    let server = TestServer::start().await.unwrap();
    let producer = server.producer().await.unwrap();
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let barrier = Arc::new(Barrier::new(8));
    let worker = Running::start({
        let (now, most) = (Arc::clone(&now), Arc::clone(&most));
        server.worker().concurrency(8).handle("work", move |_: Task<u64>| {
            let (now, most, barrier) = (Arc::clone(&now), Arc::clone(&most), Arc::clone(&barrier));
            async move {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                // None continues before all eight are here.
                barrier.wait().await;
                now.fetch_sub(1, Ordering::SeqCst);
                Ok(Outcome::done())
            }
        })
    });
    let tasks = (0..400).map(|n| NewTask::new("work", &n).unwrap()).collect();
    for answer in producer.enqueue_batch(tasks).await {
        result(&producer, &answer.unwrap().task_id).await;
    }
    assert_eq!(most.load(Ordering::SeqCst), 8);
    assert_eq!(worker.stop().await.completed, 400);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_lasts_as_long_as_its_handler() {
    let server = TestServer::start().await.unwrap();
    let producer = server.producer().await.unwrap();
    let lease = Duration::from_secs(1);
    let (done, until_done) = watch::channel(false);
    let worker =
        Running::start(server.worker().lease(lease).handle("slow", move |_: Task<u64>| {
            let mut until_done = until_done.clone();
            async move {
                until_done.wait_for(|done| *done).await?;
                Ok(Outcome::done())
            }
        }));
    let id = enqueue(&producer, "slow", &1).await;
    let http = server.http().unwrap();
    outlives_its_lease(&http, &id).await;
    done.send_replace(true);
    result(&producer, &id).await;
    let history = http.history(&id).await.unwrap();
    let events: Vec<_> = history.items.iter().map(|item| item.event.as_str()).collect();
    assert_eq!(events, ["created", "claimed", "submitted"]);
    assert_eq!(worker.stop().await.lost, 0);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_is_told_of_a_cancellation_and_its_outcome_counts() {
    let server = TestServer::start().await.unwrap();
    let producer = server.producer().await.unwrap();
    let (started, mut starts) = mpsc::channel(1);
    let lease = Duration::from_secs(1);
    let worker =
        Running::start(server.worker().lease(lease).handle("long", move |task: Task<u64>| {
            let started = started.clone();
            async move {
                started.send(task.id.clone()).await?;
                assert!(!task.cancellation.is_cancelled());
                let reason = task.cancellation.cancelled().await;
                Outcome::complete(&json!({"reason": format!("{reason:?}")}))
            }
        }));
    let id = enqueue(&producer, "long", &1).await;
    soon(starts.recv()).await.unwrap();
    assert!(!server.http().unwrap().cancel(&id).await.unwrap(), "a worker has it");
    let value: Value = result(&producer, &id).await.json().unwrap();
    assert_eq!(value, json!({"reason": "Requested"}));
    assert_eq!(worker.stop().await.completed, 1);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_lease_stops_the_work_and_its_outcome_is_thrown_away() {
    let server = server().await;
    let producer = server.producer().await.unwrap();
    let proxy = Proxy::start(server.worker_addr()).await;
    let runs = Arc::new(AtomicU64::new(0));
    let (seen, mut reasons) = mpsc::channel(4);
    let (started, mut starts) = mpsc::channel(4);
    let options = server.options().worker_url(proxy.url());
    let builder = Worker::builder(options).concurrency(1).lease(Duration::from_secs(1));
    let worker = Running::start(builder.handle("long", move |task: Task<u64>| {
        let (runs, seen, started) = (Arc::clone(&runs), seen.clone(), started.clone());
        async move {
            let run = runs.fetch_add(1, Ordering::SeqCst);
            started.send(()).await?;
            if run == 0 {
                seen.send(task.cancellation.cancelled().await).await?;
            }
            Outcome::complete(&json!({"run": run}))
        }
    }));
    let id = enqueue(&producer, "long", &1).await;
    soon(starts.recv()).await.unwrap();
    proxy.pause();
    // The server ends the lease, and the worker does not learn of it.
    let http = server.http().unwrap();
    soon(async { while http.task(&id).await.unwrap().attempts == 0 {} }).await;
    proxy.resume();
    assert_eq!(soon(reasons.recv()).await, Some(CancelReason::LeaseLost));
    let value: Value = result(&producer, &id).await.json().unwrap();
    assert_eq!(value, json!({"run": 1}));
    let stats = worker.stop().await;
    assert_eq!((stats.completed, stats.lost), (1, 1));
    server.end().await;
}

/// A worker whose handler reports that it has started, and then waits for the gate.
fn gated(builder: WorkerBuilder) -> (Running, mpsc::Receiver<()>, Arc<Semaphore>) {
    let (started, starts) = mpsc::channel(8);
    let gate = Arc::new(Semaphore::new(0));
    let inner = Arc::clone(&gate);
    let worker = Running::start(builder.handle("work", move |task: Task<u64>| {
        let (started, gate) = (started.clone(), Arc::clone(&inner));
        async move {
            started.send(()).await?;
            gate.acquire().await?.forget();
            Outcome::complete(&json!({"fence": task.fence}))
        }
    }));
    (worker, starts, gate)
}

async fn events(server: &TestServer, id: &str) -> Vec<String> {
    let history = server.http().unwrap().history(id).await.unwrap();
    history.items.into_iter().map(|item| item.event).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_in_hand_survives_a_new_connection() {
    let server = TestServer::start().await.unwrap();
    let producer = server.producer().await.unwrap();
    let proxy = Proxy::start(server.worker_addr()).await;
    let builder = Worker::builder(server.options().worker_url(proxy.url()));
    let (worker, mut starts, gate) = gated(builder.concurrency(2));
    let first = enqueue(&producer, "work", &1).await;
    soon(starts.recv()).await.unwrap();
    proxy.cut();
    // The worker is back when it takes another task while the first one is still running.
    let second = enqueue(&producer, "work", &2).await;
    soon(starts.recv()).await.unwrap();
    gate.add_permits(2);
    result(&producer, &first).await;
    assert_eq!(events(&server, &first).await, ["created", "claimed", "submitted"]);
    // This one may have been claimed over the connection that was cut, and returned by the server.
    result(&producer, &second).await;
    assert_eq!(server.http().unwrap().task(&second).await.unwrap().attempts, 0);
    assert_eq!(proxy.connections(), 2);
    let stats = worker.stop().await;
    assert_eq!((stats.completed, stats.lost), (2, 0));
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_ends_while_the_server_is_away_is_reported_when_it_is_back() {
    let mut server = TestServer::start().await.unwrap();
    let producer = server.producer().await.unwrap();
    let (worker, mut starts, gate) = gated(server.worker());
    let id = enqueue(&producer, "work", &1).await;
    soon(starts.recv()).await.unwrap();
    server.stop().await;
    gate.add_permits(1);
    server.resume().await.unwrap();
    result(&producer, &id).await;
    assert_eq!(events(&server, &id).await, ["created", "claimed", "submitted"]);
    assert_eq!(worker.stop().await.completed, 1);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_goes_through_a_task_to_the_next() {
    let server = TestServer::start().await.unwrap();
    let producer = server.producer().await.unwrap();
    let inner = producer.clone();
    let worker = Running::start(server.worker().handle("first", move |task: Task<u64>| {
        let producer = inner.clone();
        async move {
            let next = NewTask::new("second", &task.payload)?.continues(&task);
            let next = producer.enqueue(next).await?;
            Outcome::complete(&json!({"next": next.task_id, "trace": task.trace_parent}))
        }
    }));
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let task = NewTask::new("first", &1).unwrap().trace(trace, "vendor=1");
    let id = producer.enqueue(task).await.unwrap().task_id;
    let value: Value = result(&producer, &id).await.json().unwrap();
    assert_eq!(value["trace"], trace);
    let next = value["next"].as_str().unwrap();
    let next = server.http().unwrap().task(next).await.unwrap();
    assert_eq!((next.trace_parent.as_str(), next.trace_state.as_str()), (trace, "vendor=1"));
    worker.stop().await;
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_waits_for_its_server() {
    let mut server = TestServer::start().await.unwrap();
    server.stop().await;
    let handler = |_: Task<u64>| async { Ok(Outcome::done()) };
    let worker = Running::start(server.worker().handle("work", handler));
    server.resume().await.unwrap();
    let producer = server.producer().await.unwrap();
    let id = enqueue(&producer, "work", &1).await;
    assert_eq!(result(&producer, &id).await.status, Status::Completed);
    worker.stop().await;
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_without_permission_ends_with_an_error() {
    let server = TestServer::start_with(|config| {
        config.allow_producer_as_worker = false;
        for token in &mut config.worker_auth.static_tokens {
            token.event_types = vec!["mail".to_owned()];
        }
    })
    .await
    .unwrap();
    let handler = |_: Task<u64>| async { Ok(Outcome::done()) };
    let other = Running::start(server.worker().handle("other", handler));
    let refused = other.ended().await.unwrap_err();
    assert_eq!(refused.code(), Some("forbidden"));
    let url = format!("http://{}", server.worker_addr());
    let stranger = Worker::builder(Options::new("s3cret").worker_url(url));
    let refused = Running::start(stranger.handle("mail", handler)).ended().await.unwrap_err();
    assert_eq!(refused.code(), Some("unauthenticated"));
    server.end().await;
}

#[test]
fn invalid_settings_are_refused_at_build() {
    let handler = |_: Task<u64>| async { Ok(Outcome::done()) };
    let builder = || Worker::builder(Options::new("t"));
    let with = || builder().handle("mail", handler);
    let bad = [
        builder(),
        with().concurrency(0),
        with().concurrency(10_001),
        with().lease(Duration::ZERO),
        with().lease(Duration::from_secs(50_000)),
        Worker::builder(Options::new("t").worker_url("ftp://queue")).handle("mail", handler),
    ];
    for builder in bad {
        assert!(matches!(builder.build(), Err(Error::Config(_))));
    }
}

/// The lease is a minute, so the next heartbeat would be due after 20 s: the worker learns of its loss at the limit.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_is_told_when_its_task_has_run_for_too_long() {
    let server = server().await;
    let producer = server.producer().await.unwrap();
    let (sender, mut told) = mpsc::unbounded_channel();
    let worker = Running::start(server.worker().handle("stuck", move |task: Task<Value>| {
        let sender = sender.clone();
        async move {
            let reason = task.cancellation.cancelled().await;
            sender.send((task.run_until, reason)).unwrap();
            Ok(Outcome::done())
        }
    }));
    let task = NewTask::new("stuck", &1).unwrap().max_attempts(1).max_run(Duration::from_secs(1));
    let id = producer.enqueue(task).await.unwrap().task_id;
    let (run_until, reason) = soon(told.recv()).await.unwrap();
    assert_eq!(reason, CancelReason::LeaseLost);
    assert!(run_until.is_some_and(|end| end <= SystemTime::now()), "{run_until:?}");
    assert_eq!(failure(&producer, &id).await, "TIMED_OUT");
    let stats = worker.stop().await;
    assert_eq!((stats.lost, stats.completed), (1, 0));
    server.end().await;
}
