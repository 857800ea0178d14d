//! A producer and a worker with connections that are cut, slow or silent, and a server that stops.

use std::time::Duration;

use codeq_client::Options;
use codeq_client::testing::TestServer;

use crate::ledger::{Ledger, TASKS};
use crate::proxy::Proxy;
use crate::support::server;

struct Network {
    producers: Proxy,
    workers: Proxy,
}

impl Network {
    async fn start(server: &TestServer) -> Network {
        let producers = Proxy::start(server.producer_addr()).await;
        Network { producers, workers: Proxy::start(server.worker_addr()).await }
    }

    fn options(&self, server: &TestServer) -> Options {
        let options = server.options().keep_alive(Duration::from_millis(500));
        options.producer_url(self.producers.url()).worker_url(self.workers.url())
    }

    fn each(&self, change: impl Fn(&Proxy)) {
        change(&self.producers);
        change(&self.workers);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_task_is_lost_or_doubled_when_connections_are_cut() {
    let server = server().await;
    let network = Network::start(&server).await;
    let ledger = Ledger::start(network.options(&server)).await;
    for step in 1..10 {
        ledger.reaches(step * TASKS / 10).await;
        network.each(Proxy::cut);
    }
    ledger.check().await;
    assert!(network.workers.connections() > 2, "a cut may come before the reconnect");
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_task_is_lost_or_doubled_when_connections_go_silent() {
    let server = server().await;
    let network = Network::start(&server).await;
    let ledger = Ledger::start(network.options(&server)).await;
    for step in 1..4 {
        ledger.reaches(step * TASKS / 5).await;
        // Nothing signals that these connections are dead.
        network.each(Proxy::resume_new);
    }
    ledger.check().await;
    assert!(network.workers.connections() > 3);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_task_is_lost_or_doubled_on_a_slow_network() {
    let server = server().await;
    let network = Network::start(&server).await;
    let options = network.options(&server).keep_alive(Duration::from_secs(20));
    let ledger = Ledger::start(options).await;
    ledger.reaches(TASKS / 5).await;
    // Tasks are assigned but do not arrive. Waits until their leases have ended.
    network.workers.pause();
    ledger.in_progress(|tasks| tasks > 0).await;
    network.producers.pause();
    ledger.in_progress(|tasks| tasks == 0).await;
    network.each(Proxy::resume);
    ledger.reaches(TASKS / 3).await;
    network.each(|proxy| proxy.delay(Duration::from_millis(20)));
    ledger.check().await;
    assert_eq!(network.workers.connections(), 1, "a slow connection is not a broken one");
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_task_is_lost_or_doubled_when_the_server_restarts() {
    let mut server = server().await;
    let ledger = Ledger::start(server.options()).await;
    for step in 1..5 {
        ledger.reaches(step * TASKS / 10).await;
        server.restart().await.unwrap();
    }
    ledger.check().await;
    server.end().await;
}
