//! Producers.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use codeq_client::testing::TestServer;
use codeq_client::{Error, NewTask, Options, Outcome, Producer, Status, Task};
use codeq_server::config::RateLimit;
use serde_json::{Value, json};

use crate::proxy::Proxy;
use crate::support::{Running, enqueue, server, soon};

#[tokio::test(flavor = "multi_thread")]
async fn every_field_of_a_task_arrives() {
    let server = TestServer::start().await.unwrap();
    let producer = server.producer().await.unwrap();
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let task = NewTask::new("Mail", &json!({"n": 9_007_199_254_740_993_u64}))
        .unwrap()
        .priority(7)
        .max_attempts(3)
        .webhook("http://127.0.0.1:9/hook")
        .trace(trace, "vendor=1")
        .run_at(SystemTime::now() + Duration::from_secs(3_600));
    let enqueued = producer.enqueue(task).await.unwrap();
    assert!(!enqueued.repeated);
    let task = server.http().unwrap().task(&enqueued.task_id).await.unwrap();
    assert_eq!(task.payload, r#"{"n":9007199254740993}"#);
    assert_eq!((task.command.as_str(), task.priority, task.max_attempts), ("Mail", 7, 3));
    assert_eq!(task.webhook, "http://127.0.0.1:9/hook");
    assert_eq!((task.trace_parent.as_str(), task.trace_state.as_str()), (trace, "vendor=1"));
    assert_eq!(task.last_known_location, "DELAYED_ZSET");
    let delayed = NewTask::new("mail", &1).unwrap().delay(Duration::from_secs(60));
    let id = producer.enqueue(delayed).await.unwrap().task_id;
    assert!(server.http().unwrap().task(&id).await.unwrap().visible_at.is_some());
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_task_of_a_batch_succeeds_or_fails_on_its_own() {
    let server = TestServer::start().await.unwrap();
    let producer = server.producer().await.unwrap();
    let tasks = vec![
        NewTask::new("mail", &1).unwrap(),
        NewTask::new("", &2).unwrap(),
        NewTask::from_json("mail", "not json"),
        NewTask::new("mail", &4).unwrap(),
    ];
    let answers = producer.enqueue_batch(tasks).await;
    let codes: Vec<_> =
        answers.iter().map(|answer| answer.as_ref().err().map(Error::code)).collect();
    assert_eq!(codes[0], None);
    assert_eq!(codes[1], Some(Some("invalid_command")));
    assert!(matches!(codes[2], Some(Some(_))));
    let last = &answers[3].as_ref().unwrap().task_id;
    assert_eq!(server.http().unwrap().task(last).await.unwrap().payload, "4");
    assert_eq!(producer.enqueue_batch(Vec::new()).await.len(), 0);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_makes_one_task() {
    let server = TestServer::start().await.unwrap();
    let producer = server.producer().await.unwrap();
    let task = NewTask::new("mail", &1).unwrap().idempotency_key("order-1");
    let first = producer.enqueue(task.clone()).await.unwrap();
    let second = producer.enqueue(task).await.unwrap();
    assert_eq!((first.repeated, second.repeated), (false, true));
    assert_eq!(first.task_id, second.task_id);
    let other = NewTask::new("mail", &2).unwrap().idempotency_key("order-1");
    let refused = producer.enqueue(other).await.unwrap_err();
    assert_eq!(refused.code(), Some("idempotency_conflict"));
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_enqueues_share_a_stream_within_its_bound() {
    let server = TestServer::start().await.unwrap();
    let producer = Producer::connect(server.options().max_in_flight(16)).await.unwrap();
    let tasks = (0..2_000).map(|n| NewTask::new("mail", &n).unwrap()).collect();
    let answers = soon(producer.enqueue_batch(tasks)).await;
    let ids: HashSet<_> = answers.into_iter().map(|answer| answer.unwrap().task_id).collect();
    assert_eq!(ids.len(), 2_000);
    assert_eq!(server.http().unwrap().queue("mail").await.unwrap().ready, 2_000);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_token_and_an_unreachable_server_are_told_apart() {
    let mut server = TestServer::start().await.unwrap();
    let stranger = |port| {
        let url = format!("http://{port}");
        Options::new("s3cret-token").producer_url(url).connect_timeout(Duration::from_secs(5))
    };
    // The HTTP port does not speak gRPC.
    assert!(Producer::connect(stranger(server.http_addr())).await.is_err());
    let refused = Producer::connect(stranger(server.producer_addr())).await.unwrap_err();
    assert_eq!(refused.code(), Some("unauthenticated"));
    assert!(!format!("{refused} {refused:?}").contains("s3cret"));
    server.stop().await;
    let away = server.producer().await.unwrap_err();
    assert!(matches!(away, Error::Unavailable(_)), "{away}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enqueue_without_an_answer_ends_in_time_and_the_next_one_works() {
    let server = TestServer::start().await.unwrap();
    let proxy = Proxy::start(server.producer_addr()).await;
    let options =
        server.options().producer_url(proxy.url()).enqueue_timeout(Duration::from_millis(300));
    let producer = Producer::connect(options).await.unwrap();
    proxy.pause();
    let late = producer.enqueue(NewTask::new("mail", &1).unwrap()).await.unwrap_err();
    assert!(matches!(late, Error::Timeout));
    proxy.resume();
    // Allow time for a slow machine: the limit above is the producer's, and short.
    while producer.enqueue(NewTask::new("mail", &2).unwrap()).await.is_err() {}
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_connections_neither_lose_nor_double_a_task() {
    let server = TestServer::start().await.unwrap();
    let proxy = Proxy::start(server.producer_addr()).await;
    let options = server.options().producer_url(proxy.url()).max_in_flight(64);
    let producer = Producer::connect(options).await.unwrap();
    let mut ids = HashSet::new();
    for round in 0..10 {
        let tasks = (0..50).map(|n| NewTask::new("mail", &(round * 50 + n)).unwrap()).collect();
        // The first acknowledgement of the round triggers the cut: the others are still on their way.
        let cut = async {
            let first = producer.enqueue(NewTask::new("signal", &round).unwrap()).await;
            proxy.cut();
            first
        };
        let (first, answers) =
            soon(async { tokio::join!(cut, producer.enqueue_batch(tasks)) }).await;
        first.unwrap();
        ids.extend(answers.into_iter().map(|answer| answer.unwrap().task_id));
    }
    assert_eq!(ids.len(), 500);
    assert_eq!(server.http().unwrap().queue("mail").await.unwrap().ready, 500);
    assert_eq!(server.http().unwrap().queue("signal").await.unwrap().ready, 10);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_went_silent_is_given_up() {
    let server = TestServer::start().await.unwrap();
    let proxy = Proxy::start(server.producer_addr()).await;
    let options = server.options().producer_url(proxy.url()).keep_alive(Duration::from_millis(300));
    let producer = Producer::connect(options).await.unwrap();
    enqueue(&producer, "mail", &1).await;
    proxy.pause();
    let waiting = producer.enqueue(NewTask::new("mail", &2).unwrap());
    tokio::pin!(waiting);
    let given_up = async {
        while proxy.connections() < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        answer = &mut waiting => panic!("{answer:?}"),
        () = soon(given_up) => {}
    }
    // New connections are fine; the first one stays silent.
    proxy.resume_new();
    soon(waiting).await.unwrap();
    assert_eq!(server.http().unwrap().queue("mail").await.unwrap().ready, 2);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_server_is_asked_again() {
    let server = TestServer::start_with(|config| {
        config.rate_limit.producer = Some(RateLimit { requests_per_minute: 600, burst: 1 });
    })
    .await
    .unwrap();
    let producer = server.producer().await.unwrap();
    let tasks = (0..5).map(|n| NewTask::new("mail", &n).unwrap()).collect();
    let answers = soon(producer.enqueue_batch(tasks)).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(server.http().unwrap().queue("mail").await.unwrap().ready, 5);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn results_are_waited_for() {
    let server = server().await;
    let producer = server.producer().await.unwrap();
    let missing = producer.wait_result("no-such-task", Duration::from_secs(5)).await.unwrap_err();
    assert!(matches!(missing, Error::Api { status: 404, .. }), "{missing}");
    let id = enqueue(&producer, "double", &21).await;
    let early = producer.wait_result(&id, Duration::from_millis(1_200)).await.unwrap_err();
    assert!(matches!(early, Error::Timeout));
    let worker = Running::start(server.worker().handle("double", |task: Task<u64>| async move {
        match task.payload {
            0 => Ok(Outcome::fail("nothing to double")),
            n => Outcome::complete(&json!({"n": n * 2})),
        }
    }));
    let result = producer.wait_result(&id, Duration::from_secs(30)).await.unwrap();
    assert_eq!(result.status, Status::Completed);
    assert_eq!(result.json::<Value>().unwrap(), json!({"n": 42}));
    let id = enqueue(&producer, "double", &0).await;
    let result = producer.wait_result(&id, Duration::from_secs(30)).await.unwrap();
    let failed = result.json::<Value>().unwrap_err();
    assert!(matches!(failed, Error::TaskFailed(text) if text == "nothing to double"));
    worker.stop().await;
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_oversized_task_is_refused_and_the_stream_goes_on() {
    let server = server().await;
    let producer = server.producer().await.unwrap();
    let long = "x".repeat(20 << 20);
    for task in [
        NewTask::new("mail", &long).unwrap(),
        NewTask::new("mail", &1).unwrap().idempotency_key(long.clone()),
    ] {
        let (refused, other) = tokio::join!(producer.enqueue(task), enqueue(&producer, "mail", &1));
        let Err(Error::Refused { .. }) = refused else { panic!("{refused:?}") };
        assert!(!other.is_empty());
    }
}
