//! What a receiver gets, and how its answer is read.

use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use codeq_webhooks::client::Answered;
use hyper::{HeaderMap, StatusCode};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;

use crate::support::{Names, PATIENCE, Receiver, client, everything, post, read_request};

#[tokio::test]
async fn a_receiver_gets_the_documented_request() {
    let (heard, mut requests) = mpsc::unbounded_channel();
    let receiver = Receiver::start("127.0.0.1", move |mut stream| {
        let heard = heard.clone();
        async move {
            while let Some(request) = read_request(&mut stream).await {
                heard.send(request).unwrap();
                stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
            }
        }
    })
    .await;
    let names = Names::of("hook.example", &[&["127.0.0.1"]]);
    let client = client(&["127.0.0.1/32"], &names, PATIENCE);
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("content-type", "application/json"),
        ("webhook-id", "1"),
        // The caller may not set these.
        ("host", "inside.example"),
        ("content-length", "1"),
        ("transfer-encoding", "chunked"),
        ("connection", "upgrade"),
        ("upgrade", "x"),
        ("expect", "100-continue"),
        ("te", "trailers"),
        ("user-agent", "me"),
    ] {
        headers.insert(name, value.parse().unwrap());
    }
    let port = receiver.addr.port();
    let to = everything().read(&format!("http://Hook.Example:{port}/a%20b?c=d#e")).unwrap();
    let answered =
        client.post(&"t".into(), &to, headers, Bytes::from_static(b"{\"a\":1}")).await.unwrap();
    assert_eq!(answered, Answered { status: StatusCode::NO_CONTENT, retry_after: None });
    let request = requests.recv().await.unwrap();
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    assert_eq!(body, "{\"a\":1}");
    let mut lines: Vec<&str> = head.split("\r\n").collect();
    assert_eq!(lines.remove(0), "POST /a%20b?c=d HTTP/1.1");
    lines.sort_unstable();
    let host = format!("host: hook.example:{port}");
    let agent = format!("user-agent: codeq/{}", env!("CARGO_PKG_VERSION"));
    let want =
        ["content-length: 7", "content-type: application/json", &host, &agent, "webhook-id: 1"];
    assert_eq!(lines, want);
}

#[tokio::test]
async fn retry_after_is_reported() {
    let client = client(&["127.0.0.1/32"], &Names::none(), PATIENCE);
    for (answer, status, seconds) in [
        ("HTTP/1.1 429 Slow\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n", 429, Some(7)),
        ("HTTP/1.1 503 No\r\nRetry-After: soon\r\ncontent-length: 0\r\n\r\n", 503, None),
        ("HTTP/1.0 410 Gone\r\n\r\n", 410, None),
        ("HTTP/1.1 200 OK\r\nretry-after: 1\r\ncontent-length: 2\r\n\r\nok", 200, Some(1)),
    ] {
        let receiver = Receiver::answering("127.0.0.1", answer).await;
        // An answer without a length ends with its connection; the client does not wait long for that.
        let got = post(&client, &receiver.url()).await.unwrap();
        assert_eq!(
            (got.status.as_u16(), got.retry_after),
            (status, seconds.map(Duration::from_secs))
        );
    }
}

#[tokio::test]
async fn connections_are_used_again() {
    let mut receiver =
        Receiver::answering("127.0.0.1", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").await;
    let client = client(&["127.0.0.1/32"], &Names::none(), PATIENCE);
    for _ in 0..20 {
        assert!(post(&client, &receiver.url()).await.is_ok());
    }
    assert_eq!(receiver.came().await, 1);
}

/// A process cannot change its own environment safely, so another one runs a test from above with a proxy in its
/// environment.
#[test]
fn a_proxy_in_the_environment_has_no_effect() {
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    proxy.set_nonblocking(true).unwrap();
    let address = format!("http://{}", proxy.local_addr().unwrap());
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "posts::a_receiver_gets_the_documented_request"]);
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"]
    {
        child.env(name, &address);
    }
    let done = child.env("NO_PROXY", "").env("no_proxy", "").output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && said.contains("1 passed"), "{said}");
    let came = proxy.accept().map(|(_, peer)| peer);
    assert_eq!(came.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}
