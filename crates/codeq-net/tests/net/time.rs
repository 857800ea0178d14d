//! Clients that are slow, silent or idle.

use codeq_net::NetLimits;
use tokio::io::AsyncReadExt;
use tokio::io::AsyncWriteExt;
use tokio::time::{interval, sleep, timeout};

use crate::support::{HUGE, PATIENCE, SHORT, Server, limits};

fn short_head() -> NetLimits {
    NetLimits { header_timeout: SHORT, ..limits() }
}

fn short_idle() -> NetLimits {
    NetLimits { idle_timeout: SHORT, ..limits() }
}

#[tokio::test]
async fn a_client_that_sends_nothing_is_closed() {
    let server = Server::start(short_head()).await;
    assert!(server.connect().await.closed().await.is_empty());
}

#[tokio::test]
async fn a_head_that_is_not_finished_is_closed() {
    let server = Server::start(short_head()).await;
    // The last two could become the preface of HTTP/2.
    for start in ["G", "GET /hello HTTP/1.1\r\nHost: t\r\n", "\r\n", "P", "PRI * HTTP/2.0\r\n"] {
        let mut client = server.connect().await;
        client.send(start).await;
        assert!(client.closed().await.is_empty(), "{}", start.escape_debug());
    }
}

#[tokio::test]
async fn a_head_sent_byte_by_byte_is_closed() {
    let server = Server::start(short_head()).await;
    let mut client = server.connect().await;
    let (mut from, mut to) = client.stream.split();
    let drip = async {
        let mut ticks = interval(SHORT / 10);
        loop {
            ticks.tick().await;
            if to.write_all(b"a").await.is_err() {
                return;
            }
        }
    };
    let mut seen = Vec::new();
    let closed = async {
        // Ends with the connection, by a close or a reset.
        let _ = from.read_to_end(&mut seen).await;
    };
    timeout(PATIENCE, async {
        tokio::select! { () = drip => {}, () = closed => {} }
    })
    .await
    .expect("closed in time");
    assert!(seen.is_empty());
}

#[tokio::test]
async fn a_second_head_has_the_same_limit() {
    let server = Server::start(short_head()).await;
    let mut client = server.connect().await;
    assert_eq!(client.get("/hello").await.status, 200);
    client.send("GET /hel").await;
    assert!(client.closed().await.is_empty());
}

#[tokio::test]
async fn an_idle_connection_outlives_the_limit_of_a_head() {
    let server = Server::start(short_head()).await;
    let mut client = server.connect().await;
    assert_eq!(client.get("/hello").await.status, 200);
    sleep(SHORT * 2).await;
    assert_eq!(client.get("/hello").await.status, 200);
}

#[tokio::test]
async fn an_idle_connection_is_closed() {
    let server = Server::start(short_idle()).await;
    let mut client = server.connect().await;
    assert_eq!(client.get("/hello").await.status, 200);
    assert!(client.closed().await.is_empty());
}

#[tokio::test]
async fn a_request_in_flight_is_not_idle() {
    let limits = NetLimits { header_timeout: SHORT, idle_timeout: SHORT, ..limits() };
    let server = Server::start(limits).await;
    let mut client = server.connect().await;
    client.send("GET /wait HTTP/1.1\r\nHost: t\r\n\r\n").await;
    server.events.begun.pass().await;
    sleep(SHORT * 3).await;
    server.events.release.open(1);
    assert_eq!(client.answer().await.body, b"released");
    client.closed().await;
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_closed() {
    let server = Server::start(short_idle()).await;
    let mut client = server.connect().await;
    client.send("GET /endless HTTP/1.1\r\nHost: t\r\n\r\n").await;
    server.events.dropped.pass().await;
}

#[tokio::test]
async fn a_client_that_reads_slowly_is_served() {
    let server = Server::start(short_idle()).await;
    let mut client = server.connect().await;
    client.send("GET /huge HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n").await;
    let mut piece = vec![0; HUGE / 64];
    let mut read = 0;
    loop {
        let n = timeout(PATIENCE, client.stream.read(&mut piece)).await.expect("in time").unwrap();
        read += n;
        if n == 0 {
            break;
        }
        sleep(SHORT / 16).await;
    }
    assert!(read > HUGE, "cut at {read}");
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_request() {
    let server = Server::start(limits()).await;
    let mut client = server.connect().await;
    client.send("GET /endless HTTP/1.1\r\nHost: t\r\n\r\n").await;
    let mut some = [0; 1024];
    client.stream.read_exact(&mut some).await.unwrap();
    drop(client);
    server.events.dropped.pass().await;
}
