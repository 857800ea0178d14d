//! Draining: requests in flight finish, idle connections close, and no new ones are accepted.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::frames::{HEADERS, get, preface, until};
use crate::support::{LONG, SHORT, Server, limits};

/// A setting of HTTP/2.
const INITIAL_WINDOW: u16 = 4;

#[tokio::test]
async fn requests_in_flight_finish_and_idle_connections_close() {
    let server = Server::start(limits()).await;
    let mut busy = server.connect().await;
    busy.send("GET /wait HTTP/1.1\r\nHost: t\r\n\r\n").await;
    server.events.begun.pass().await;
    let mut idle = server.connect().await;
    assert_eq!(idle.get("/hello").await.status, 200);
    let mut silent = server.connect().await;

    server.stop();
    assert!(idle.closed().await.is_empty());
    assert!(silent.closed().await.is_empty());
    assert!(TcpStream::connect(server.addr).await.is_err(), "the listener is closed");

    server.events.release.open(1);
    let answer = busy.answer().await;
    assert_eq!(answer.body, b"released");
    assert!(answer.head.contains("connection: close"), "{}", answer.head);
    assert!(busy.closed().await.is_empty());
    server.ended().await;
}

#[tokio::test]
async fn what_does_not_finish_in_time_is_dropped() {
    let server = Server::start_with(limits(), None, SHORT).await;
    let mut busy = server.connect().await;
    busy.send("GET /wait HTTP/1.1\r\nHost: t\r\n\r\n").await;
    server.events.begun.pass().await;
    server.stop();
    assert!(busy.closed().await.is_empty());
    server.ended().await;
}

#[tokio::test]
async fn clients_that_take_nothing_do_not_hold_up_the_stop() {
    let server = Server::start_with(limits(), None, LONG).await;
    let mut deaf = server.connect().await;
    deaf.send("GET /endless HTTP/1.1\r\nHost: t\r\n\r\n").await;
    // A client that gives no window, and one whose window is used up.
    let mut streams = Vec::new();
    for window in [0, 65_535] {
        let mut stream = TcpStream::connect(server.addr).await.unwrap();
        let ask = [preface(&[(INITIAL_WINDOW, window)]), get(1, "/endless"), get(3, "/endless")];
        stream.write_all(&ask.concat()).await.unwrap();
        streams.push(stream);
    }
    let mut busy = server.connect().await;
    busy.send("GET /wait HTTP/1.1\r\nHost: t\r\n\r\n").await;
    server.events.begun.pass().await;
    for stream in &mut streams {
        until(stream, HEADERS, 1).await;
        until(stream, HEADERS, 3).await;
    }
    server.stop();
    // The endless answers are given up; a client that waits for an answer has the whole grace.
    for _ in 0..5 {
        server.events.dropped.pass().await;
    }
    server.events.release.open(1);
    assert_eq!(busy.answer().await.body, b"released");
    server.ended().await;
    drop((deaf, streams));
}

#[tokio::test]
async fn a_stop_without_connections_is_immediate() {
    let server = Server::start_with(limits(), None, LONG).await;
    server.stop();
    server.ended().await;
}

#[tokio::test]
async fn a_grace_of_zero_drops_requests_at_once() {
    let server = Server::start_with(limits(), None, Duration::ZERO).await;
    let mut busy = server.connect().await;
    busy.send("GET /wait HTTP/1.1\r\nHost: t\r\n\r\n").await;
    server.events.begun.pass().await;
    server.stop();
    server.ended().await;
    assert!(busy.closed().await.is_empty());
}
