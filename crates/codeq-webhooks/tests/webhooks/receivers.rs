//! Receivers that misbehave: none costs more than its limits of time and bytes.

use std::time::{Duration, Instant};

use codeq_webhooks::client::SendError;
use futures_util::FutureExt;
use hyper::StatusCode;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{interval, timeout};

use crate::support::{Names, PATIENCE, Receiver, SHORT, client, gone, post, read_request};

const OPEN: &[&str] = &["127.0.0.1/32"];
/// No test waits this long, so a call that ends earlier did not time out.
const LONG: Duration = Duration::from_secs(600);

/// A receiver that writes `first`, and then `rest` for ever. Tells when the other side has gone.
async fn flood(first: &'static str, rest: &'static str) -> (Receiver, mpsc::UnboundedReceiver<()>) {
    let (left, ended) = mpsc::unbounded_channel();
    let receiver = Receiver::start("127.0.0.1", move |mut stream| {
        let left = left.clone();
        async move {
            let rest = rest.repeat(1 + 4_096 / rest.len());
            if read_request(&mut stream).await.is_none() {
                return;
            }
            let _ = stream.write_all(first.as_bytes()).await;
            while stream.write_all(rest.as_bytes()).await.is_ok() {}
            left.send(()).unwrap();
        }
    })
    .await;
    (receiver, ended)
}

/// The same, one byte after the other.
async fn drip(first: &'static str, rest: &'static str) -> (Receiver, mpsc::UnboundedReceiver<()>) {
    let (left, ended) = mpsc::unbounded_channel();
    let receiver = Receiver::start("127.0.0.1", move |mut stream| {
        let left = left.clone();
        async move {
            if read_request(&mut stream).await.is_none() {
                return;
            }
            let _ = stream.write_all(first.as_bytes()).await;
            let mut drops = interval(Duration::from_millis(10));
            for byte in rest.bytes().cycle() {
                drops.tick().await;
                if stream.write_all(&[byte]).await.is_err() {
                    break;
                }
            }
            left.send(()).unwrap();
        }
    })
    .await;
    (receiver, ended)
}

async fn ended(mut ended: mpsc::UnboundedReceiver<()>) {
    timeout(PATIENCE, ended.recv()).await.expect("the connection to end").unwrap();
}

#[tokio::test]
async fn endless_heads_are_refused() {
    let informational = "HTTP/1.1 100 Continue\r\n\r\n";
    let early = "HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n";
    for (first, rest) in [
        ("HTTP/1.1 200 OK\r\n", "x: y\r\n"),
        ("HTTP/1.1 200 OK\r\nx: ", "y"),
        ("HTTP/1.1 200 O", "K"),
        ("", "\r\n"),
        ("", informational),
        ("", early),
    ] {
        let (receiver, end) = flood(first, rest).await;
        let client = client(OPEN, &Names::none(), LONG);
        let posted = post(&client, &receiver.url()).await;
        assert_eq!(posted, Err(SendError::Unreachable), "{first:?} {rest:?}");
        ended(end).await;
    }
}

#[tokio::test]
async fn heads_that_are_too_large_are_refused() {
    let client = client(OPEN, &Names::none(), PATIENCE);
    let answer = |headers: usize, bytes: usize| {
        let head = "x: y\r\n".repeat(headers) + &format!("z: {}\r\n", "z".repeat(bytes));
        &*format!("HTTP/1.1 200 OK\r\n{head}content-length: 0\r\n\r\n").leak()
    };
    for (answer, good) in [
        (answer(98, 1), true),
        (answer(99, 1), false),
        (answer(0, 16_000), true),
        (answer(0, 20_000), false),
        ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", true),
    ] {
        let receiver = Receiver::answering("127.0.0.1", answer).await;
        assert_eq!(post(&client, &receiver.url()).await.is_ok(), good, "{}", answer.len());
    }
}

#[tokio::test]
async fn an_endless_body_does_not_hide_the_status() {
    for (first, rest) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 10000000000\r\n\r\n", "x"),
        ("HTTP/1.1 200 OK\r\n\r\n", "x"),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", "1\r\nx\r\n"),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", "x: y\r\n"),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1;", "x"),
        ("HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n", "\u{1f}"),
    ] {
        let (receiver, end) = flood(first, rest).await;
        let client = client(OPEN, &Names::none(), LONG);
        let posted = post(&client, &receiver.url()).await;
        assert_eq!(posted.unwrap().status, StatusCode::OK, "{first:?} {rest:?}");
        ended(end).await;
    }
}

#[tokio::test]
async fn a_slow_body_does_not_hide_the_status() {
    for first in [
        "HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n",
        "HTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffff\r\n",
    ] {
        let (mut receiver, end) = drip(first, "x").await;
        // A tenth of the time limit is for the body.
        let client = client(OPEN, &Names::none(), SHORT);
        let start = Instant::now();
        assert_eq!(post(&client, &receiver.url()).await.unwrap().status, StatusCode::OK);
        assert!(start.elapsed() < PATIENCE);
        ended(end).await;
        // The connection is not used again.
        assert!(post(&client, &receiver.url()).await.is_ok());
        assert_eq!(receiver.came().await, 2);
    }
}

#[tokio::test]
async fn heads_that_drip_run_out_of_time() {
    for (first, rest) in
        [("", "HTTP/1.1 200 OK\r\n"), ("HTTP/1.1 200 OK\r\n", "x: y\r\n"), ("", "\r\n")]
    {
        let (receiver, end) = drip(first, rest).await;
        let client = client(OPEN, &Names::none(), SHORT);
        let start = Instant::now();
        let posted = post(&client, &receiver.url()).await;
        assert_eq!(posted, Err(SendError::TimedOut), "{first:?} {rest:?}");
        assert!(start.elapsed() >= SHORT);
        ended(end).await;
    }
}

#[tokio::test]
async fn silence_runs_out_of_time() {
    let (left, end) = mpsc::unbounded_channel();
    let receiver = Receiver::start("127.0.0.1", move |mut stream| {
        let left = left.clone();
        async move {
            gone(&mut stream).await;
            left.send(()).unwrap();
        }
    })
    .await;
    let client = client(OPEN, &Names::none(), SHORT);
    let start = Instant::now();
    assert_eq!(post(&client, &receiver.url()).await, Err(SendError::TimedOut));
    assert!(start.elapsed() >= SHORT);
    ended(end).await;
}

#[tokio::test]
async fn a_receiver_that_takes_nothing_runs_out_of_time() {
    let receiver = Receiver::start("127.0.0.1", |stream| async move {
        // Holds the connection and reads nothing of it.
        std::future::pending::<()>().map(|()| drop(stream)).await;
    })
    .await;
    let client = client(OPEN, &Names::none(), SHORT);
    let to = crate::support::everything().read(&receiver.url()).unwrap();
    let body = vec![b'x'; 64 << 20].into();
    let posted = timeout(PATIENCE, client.post(&"t".into(), &to, Default::default(), body)).await;
    assert_eq!(posted.unwrap(), Err(SendError::TimedOut));
}

/// A tenant gets the same error whatever is at an address.
#[tokio::test]
async fn closed_filtered_and_broken_ports_look_the_same() {
    // The port is bound, so that nobody else takes it, but nothing listens on it.
    let closed = TcpSocket::new_v4().unwrap();
    closed.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let closed = closed.local_addr().map(|addr| (addr, closed)).unwrap();
    let silent = |mut stream: TcpStream| async move { gone(&mut stream).await };
    let says = |text: &'static [u8]| {
        move |mut stream: TcpStream| async move {
            let _ = stream.write_all(text).await;
            gone(&mut stream).await;
        }
    };
    let resets = |stream: TcpStream| async move { stream.set_zero_linger().unwrap() };
    let http = Receiver::answering("127.0.0.1", "HTTP/1.1 200 OK\r\n\r\n").await;
    let silent = Receiver::start("127.0.0.1", silent).await;
    let resets = Receiver::start("127.0.0.1", resets).await;
    let leaves = Receiver::start("127.0.0.1", |stream| async { drop(stream) }).await;
    let ssh = Receiver::start("127.0.0.1", says(b"SSH-2.0-OpenSSH_9.9\r\n")).await;
    let redis = Receiver::start("127.0.0.1", says(b"-ERR unknown command\r\n")).await;
    let binary = Receiver::start("127.0.0.1", says(&[0, 255, 13, 10, 13, 10])).await;
    let tls = |receiver: &Receiver| format!("https://{}/", receiver.addr);
    let urls = [
        ("refused", format!("http://127.0.0.2:{}/", http.addr.port())),
        ("no such name", "http://missing.example/".to_owned()),
        ("closed", format!("http://{}/", closed.0)),
        ("closed, with TLS", format!("https://{}/", closed.0)),
        ("reset", resets.url()),
        ("reset, with TLS", tls(&resets)),
        ("closed at once", leaves.url()),
        ("closed at once, with TLS", tls(&leaves)),
        ("garbage", ssh.url()),
        ("garbage, with TLS", tls(&ssh)),
        ("another protocol", redis.url()),
        ("binary", binary.url()),
        ("no TLS there", tls(&http)),
        ("no handshake", tls(&silent)),
    ];
    let client = client(OPEN, &Names::none(), SHORT);
    for (case, url) in urls {
        let error = post(&client, &url).await.unwrap_err();
        assert_eq!(error.to_string(), "the destination cannot be reached", "{case}");
        let refused = case == "refused";
        assert_eq!(error == SendError::NotAllowed, refused, "{case}");
    }
}
