//! Tokens that are no longer accepted.

use std::net::SocketAddr;

use codeq_client::testing::TOKEN;
use codeq_client::{NewTask, Options, Outcome, Producer, Task, Worker};
use codeq_server::{Config, Server};

use crate::support::{Running, enqueue, result, soon};

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_token_is_reported_to_producer_and_worker() {
    let dir = tempfile::tempdir().unwrap();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut config = Config::dev(dir.path().to_owned(), any).unwrap();
    let server = Server::start(config.clone()).await.unwrap();
    config.http_addr = server.http_addr();
    config.producer_addr = Some(server.producer_addr());
    config.worker_addr = Some(server.worker_addr());
    let options = Options::new(TOKEN)
        .http_url(format!("http://{}", server.http_addr()))
        .producer_url(format!("http://{}", server.producer_addr()))
        .worker_url(format!("http://{}", server.worker_addr()));
    let producer = Producer::connect(options.clone()).await.unwrap();
    let handler = |_: Task<u64>| async { Ok(Outcome::done()) };
    let worker = Running::start(Worker::builder(options).handle("work", handler));
    let id = enqueue(&producer, "work", &1).await;
    result(&producer, &id).await;

    server.stop().await;
    for auth in [&mut config.producer_auth, &mut config.worker_auth] {
        for token in &mut auth.static_tokens {
            token.token = Some("another-token-altogether".to_owned());
        }
    }
    let server = Server::start(config).await.unwrap();
    // Long before the enqueue times out.
    let refused = soon(producer.enqueue(NewTask::new("work", &2).unwrap())).await.unwrap_err();
    assert_eq!(refused.code(), Some("unauthenticated"));
    let refused = worker.ended().await.unwrap_err();
    assert_eq!(refused.code(), Some("unauthenticated"));
    server.stop().await;
}
