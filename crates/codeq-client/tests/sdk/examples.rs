//! The examples, run.

use codeq_client::testing::TestServer;
use codeq_client::{NewTask, Status};

use crate::support::{result, soon};

#[allow(dead_code, reason = "its main is not used here")]
#[path = "../../examples/hello.rs"]
mod hello;
#[allow(dead_code, reason = "its main is not used here")]
#[path = "../../examples/shutdown.rs"]
mod shutdown;
#[allow(dead_code, reason = "its main is not used here")]
#[path = "../../examples/typed.rs"]
mod typed;

#[tokio::test(flavor = "multi_thread")]
async fn hello_says_hello() {
    let server = TestServer::start().await.unwrap();
    assert_eq!(soon(hello::run(server.options())).await.unwrap(), "Hello, world!");
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn typed_payloads_become_receipts_and_errors() {
    let server = TestServer::start().await.unwrap();
    let answers = soon(typed::run(server.options())).await.unwrap();
    let cents: Vec<_> = answers.iter().map(|answer| answer.as_ref().map(|r| r.cents)).collect();
    let failure = "the task failed: nothing to charge to acme".to_owned();
    assert_eq!(cents, [Ok(250), Err(&failure), Ok(2_000_000)]);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_works_until_it_is_told_to_stop() {
    let server = TestServer::start().await.unwrap();
    let producer = server.producer().await.unwrap();
    let task = NewTask::new("resize", &100_u64).unwrap();
    let id = producer.enqueue(task).await.unwrap().task_id;
    let finished = async {
        assert_eq!(result(&producer, &id).await.status, Status::Completed);
    };
    let stats = soon(shutdown::run(server.options(), finished)).await.unwrap();
    assert_eq!((stats.completed, stats.abandoned), (1, 0));
    server.end().await;
}
