//! HTTP/1: what is served, and the bounds of a head and of the number of connections.

use std::sync::atomic::Ordering;
use std::time::Duration;

use codeq_net::{Hosts, NetLimits};

use crate::support::{HUGE, PATIENCE, Server, limits};

#[tokio::test]
async fn requests_are_answered_one_after_the_other_on_one_connection() {
    let server = Server::start(limits()).await;
    let mut client = server.connect().await;
    for _ in 0..3 {
        let answer = client.get("/hello").await;
        assert_eq!((answer.status, answer.body.as_slice()), (200, &b"hello"[..]));
    }
    let peer = client.get("/peer").await;
    let local = client.stream.local_addr().unwrap().to_string();
    assert_eq!(String::from_utf8(peer.body).unwrap(), local);
    assert_eq!(server.stats.accepted.load(Ordering::Relaxed), 1);
    assert_eq!(server.stats.open.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn requests_sent_at_once_are_all_answered() {
    let server = Server::start(limits()).await;
    let mut client = server.connect().await;
    let chunked =
        "POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    let sized = "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\ndef";
    client.send([chunked, sized, chunked, sized].concat()).await;
    for body in [b"abc", b"def", b"abc", b"def"] {
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.body.as_slice()), (200, &body[..]));
    }
}

#[tokio::test]
async fn a_large_response_arrives_whole() {
    let server = Server::start(limits()).await;
    let answer = server.connect().await.get("/huge").await;
    assert_eq!(answer.body.len(), HUGE);
}

#[tokio::test]
async fn a_refusal_is_read_although_the_body_was_not() {
    let server = Server::start(limits()).await;
    let mut client = server.connect().await;
    let size = 512 * 1024;
    client
        .send(format!("POST /refuse HTTP/1.1\r\nHost: t\r\nContent-Length: {size}\r\n\r\n"))
        .await;
    client.send(vec![b'x'; size]).await;
    let answer = client.answer().await;
    assert_eq!(answer.status, 413);
    assert!(answer.head.contains("connection: close"), "{}", answer.head);
    client.closed().await;
}

#[tokio::test]
async fn a_connection_is_used_again_after_a_refusal_with_a_small_body() {
    let server = Server::start(limits()).await;
    let mut client = server.connect().await;
    let chunked = "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n".to_owned();
    let sized = format!("Content-Length: 60000\r\n\r\n{}", "x".repeat(60_000));
    for (path, status) in [("/refuse", 413), ("/nowhere", 404), ("/hello", 405)] {
        for body in [&chunked, &sized] {
            // The body follows its head, as over a network.
            let (head, body) = body.split_at(30);
            client.send(format!("POST {path} HTTP/1.1\r\nHost: t\r\n{head}")).await;
            client.send(body).await;
            let answer = client.answer().await;
            assert_eq!(answer.status, status, "{path}");
            assert!(!answer.head.contains("connection:"), "{}", answer.head);
        }
    }
    assert_eq!(client.get("/hello").await.status, 200);
    assert_eq!(server.stats.accepted.load(Ordering::Relaxed), 1);
}

/// The client may never send its body: after a refusal it does not have to.
#[tokio::test]
async fn a_refusal_does_not_wait_for_a_body_that_may_never_come() {
    let server = Server::start(limits()).await;
    for expect in ["Expect: 100-continue\r\n", ""] {
        let mut client = server.connect().await;
        let head = "POST /refuse HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n";
        client.send(format!("{head}{expect}\r\n")).await;
        let answer = client.answer().await;
        assert_eq!(answer.status, 413);
        assert!(answer.head.contains("connection: close"), "{}", answer.head);
        client.closed().await;
    }
}

#[tokio::test]
async fn a_head_that_is_too_large_is_431() {
    let server = Server::start(limits()).await;
    let mut client = server.connect().await;
    let big = "x".repeat(40 * 1024);
    client.send(format!("GET /hello HTTP/1.1\r\nHost: t\r\nX: {big}\r\n\r\n")).await;
    assert_eq!(client.answer().await.status, 431);
    client.closed().await;
}

#[tokio::test]
async fn a_head_with_a_large_token_is_served() {
    let server = Server::start(limits()).await;
    let mut client = server.connect().await;
    let token = "x".repeat(16 * 1024);
    client
        .send(format!("GET /hello HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {token}\r\n\r\n"))
        .await;
    assert_eq!(client.answer().await.status, 200);
}

#[tokio::test]
async fn more_than_100_headers_are_431() {
    let server = Server::start(limits()).await;
    for (count, status) in [(99, 200), (101, 431)] {
        let mut client = server.connect().await;
        let headers: String = (1..count).map(|i| format!("x{i}: y\r\n")).collect();
        client.send(format!("GET /hello HTTP/1.1\r\nHost: t\r\n{headers}\r\n")).await;
        assert_eq!(client.answer().await.status, status, "{count} headers");
    }
}

#[tokio::test]
async fn a_request_without_one_host_is_refused() {
    let server = Server::start(limits()).await;
    for hosts in ["", "Host: a\r\nHost: a\r\n", "Host: a\r\nHost: b\r\n"] {
        let mut client = server.connect().await;
        client.send(format!("GET /hello HTTP/1.1\r\n{hosts}\r\n")).await;
        assert_eq!(client.answer().await.status, 400, "{hosts:?}");
    }
    let hosts = Hosts::local([]);
    let server = Server::start(NetLimits { hosts, ..limits() }).await;
    for (host, status) in [("localhost:1", 200), ("rebound.example", 421)] {
        let mut client = server.connect().await;
        client.send(format!("GET /hello HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
        assert_eq!(client.answer().await.status, status, "{host}");
    }
}

#[tokio::test]
async fn the_newest_connection_is_refused_when_there_are_too_many() {
    let server = Server::start(NetLimits { max_connections: 2, ..limits() }).await;
    let mut first = server.connect().await;
    let mut second = server.connect().await;
    assert_eq!(first.get("/hello").await.status, 200);
    assert_eq!(second.get("/hello").await.status, 200);

    let mut third = server.connect().await;
    assert!(third.closed().await.is_empty());
    assert_eq!(server.stats.refused.load(Ordering::Relaxed), 1);
    assert_eq!(first.get("/hello").await.status, 200);

    drop(second);
    let served = async {
        loop {
            let mut next = server.connect().await;
            // May fail, because the connection may be refused meanwhile.
            let _ = tokio::io::AsyncWriteExt::write_all(
                &mut next.stream,
                b"GET /hello HTTP/1.1\r\nHost: t\r\n\r\n",
            )
            .await;
            if let Some(answer) = next.try_answer().await {
                return answer.status;
            }
        }
    };
    assert_eq!(tokio::time::timeout(PATIENCE, served).await.expect("a slot came free"), 200);
    assert_eq!(first.get("/hello").await.status, 200);
}

#[tokio::test]
async fn endless_timeouts_are_accepted() {
    let forever = Duration::MAX;
    let limits = NetLimits { header_timeout: forever, idle_timeout: forever, ..limits() };
    let server = Server::start_with(limits, None, forever).await;
    assert_eq!(server.connect().await.get("/hello").await.status, 200);
    server.stop();
    server.ended().await;
}

#[tokio::test]
async fn a_panic_ends_its_own_connection_only() {
    let server = Server::start(limits()).await;
    let mut bystander = server.connect().await;
    assert_eq!(bystander.get("/hello").await.status, 200);
    let mut client = server.connect().await;
    client.send("GET /panic HTTP/1.1\r\nHost: t\r\n\r\n").await;
    assert!(client.closed().await.is_empty());
    assert_eq!(bystander.get("/hello").await.status, 200);
    assert_eq!(server.connect().await.get("/hello").await.status, 200);
}
