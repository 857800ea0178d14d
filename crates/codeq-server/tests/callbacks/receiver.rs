//! A receiver of callbacks whose behaviour the test chooses.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use codeq_server::Config;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::http::harness::Harness;

/// Longer than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A call that was received.
#[derive(Debug, Clone)]
pub struct Received {
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Received {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn task(&self) -> String {
        self.json()["taskId"].as_str().unwrap().to_owned()
    }

    pub fn id(&self) -> String {
        self.header("webhook-id").unwrap().to_owned()
    }
}

/// What a receiver does with a call.
#[derive(Debug, Clone)]
pub enum Act {
    /// Answers with this status, and these lines in the head.
    Answer(u16, String),
    /// Says nothing.
    Hang,
    /// Sends its head a byte at a time, for ever.
    Drip,
    /// Closes the connection.
    Close,
    /// Sends what is not HTTP.
    Babble,
    /// Answers 200 with an endless body.
    Flood,
}

pub fn answer(status: u16) -> Act {
    Act::Answer(status, String::new())
}

/// A receiver on a free port.
pub struct Receiver {
    pub addr: SocketAddr,
    calls: mpsc::UnboundedReceiver<Received>,
}

impl Receiver {
    /// `act` chooses what to do with each call, given how often its `webhook-id` came before.
    pub async fn start(act: impl Fn(&Received, usize) -> Act + Send + Sync + 'static) -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Receiver::on(listener, act)
    }

    pub fn on(
        listener: TcpListener,
        act: impl Fn(&Received, usize) -> Act + Send + Sync + 'static,
    ) -> Receiver {
        let addr = listener.local_addr().unwrap();
        let (tell, calls) = mpsc::unbounded_channel();
        let act = Arc::new(act);
        tokio::spawn(async move {
            let seen = Arc::new(tokio::sync::Mutex::new(std::collections::HashMap::new()));
            while let Ok((stream, _)) = listener.accept().await {
                let (act, tell, seen) = (Arc::clone(&act), tell.clone(), Arc::clone(&seen));
                tokio::spawn(async move {
                    let mut stream = stream;
                    while let Some(call) = read(&mut stream).await {
                        let nth = {
                            let mut seen = seen.lock().await;
                            let nth = seen.entry(call.id()).or_insert(0);
                            *nth += 1;
                            *nth - 1
                        };
                        let what = act(&call, nth);
                        let _ = tell.send(call);
                        if !perform(&mut stream, what).await {
                            return;
                        }
                    }
                });
            }
        });
        Receiver { addr, calls }
    }

    /// A receiver that accepts everything.
    pub async fn willing() -> Receiver {
        Receiver::start(|_, _| answer(200)).await
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    /// The next call.
    pub async fn next(&mut self) -> Received {
        let next = tokio::time::timeout(PATIENCE, self.calls.recv()).await;
        next.expect("a call in time").expect("a receiver")
    }

    /// The next `count` calls.
    pub async fn take(&mut self, count: usize) -> Vec<Received> {
        let mut calls = Vec::new();
        while calls.len() < count {
            calls.push(self.next().await);
        }
        calls
    }

    /// Calls that have come and were not looked at.
    pub fn rest(&mut self) -> Vec<Received> {
        std::iter::from_fn(|| self.calls.try_recv().ok()).collect()
    }
}

/// Reads one request; none when the connection ends.
async fn read(stream: &mut TcpStream) -> Option<Received> {
    let mut bytes = Vec::new();
    let head = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let text = String::from_utf8(bytes[..head].to_vec()).unwrap();
    let mut lines = text.split("\r\n");
    let line = lines.next().unwrap();
    let mut words = line.split(' ');
    assert_eq!(words.next(), Some("POST"), "{line}");
    let path = words.next().unwrap().to_owned();
    let headers: Vec<(String, String)> = lines
        .map(|line| line.split_once(':').unwrap())
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length: usize = length.map_or(0, |(_, value)| value.parse().unwrap());
    let mut body = bytes.split_off(head + 4);
    while body.len() < length {
        if stream.read_buf(&mut body).await.ok()? == 0 {
            return None;
        }
    }
    Some(Received { path, headers, body })
}

/// Acts on a call. Returns whether the connection stays open.
async fn perform(stream: &mut TcpStream, act: Act) -> bool {
    match act {
        Act::Answer(status, lines) => {
            let head = format!("HTTP/1.1 {status} Well\r\ncontent-length: 2\r\n{lines}\r\nok");
            stream.write_all(head.as_bytes()).await.is_ok()
        }
        Act::Hang => {
            std::future::pending::<()>().await;
            false
        }
        Act::Drip => {
            let mut pace = tokio::time::interval(Duration::from_millis(200));
            for byte in b"HTTP/1.1 200 OK\r\nx: ".iter().chain([b'y'; 10_000].iter()) {
                pace.tick().await;
                if stream.write_all(&[*byte]).await.is_err() {
                    break;
                }
            }
            false
        }
        Act::Close => false,
        Act::Babble => {
            let _ = stream.write_all(b"220 mail.example ESMTP ready\r\n").await;
            false
        }
        Act::Flood => {
            let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
            let _ = stream.write_all(head).await;
            let chunk = format!("4000\r\n{}\r\n", "x".repeat(0x4000));
            while stream.write_all(chunk.as_bytes()).await.is_ok() {}
            false
        }
    }
}

/// A server whose webhooks may go to this machine, and which retries them after a second.
pub async fn server() -> Harness {
    server_with(|_| ()).await
}

pub async fn server_with(change: impl FnOnce(&mut Config)) -> Harness {
    Harness::with(|config| {
        config.webhooks.allowed_networks = vec!["127.0.0.0/8".parse().unwrap()];
        config.result_webhook_base_backoff_seconds = 1;
        config.result_webhook_max_backoff_seconds = 1;
        change(config);
    })
    .await
}
