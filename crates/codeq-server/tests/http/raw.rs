//! Requests that no library would send, and event streams.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Long enough on a busy machine; a test that waits so long has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// Sends bytes and reads the answer's head, and what came with it.
pub async fn exchange(addr: SocketAddr, request: &[u8]) -> (u16, String) {
    let mut socket = TcpStream::connect(addr).await.unwrap();
    socket.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    let read = socket.read_to_end(&mut answer);
    tokio::time::timeout(PATIENCE, read).await.expect("no answer").unwrap();
    let text = String::from_utf8_lossy(&answer).into_owned();
    let status = text.split(' ').nth(1).and_then(|code| code.parse().ok());
    (status.unwrap_or_else(|| panic!("no status: {text}")), text)
}

/// The head of a POST; the connection closes after the answer.
pub fn post_head(token: &str, path: &str, headers: &str) -> String {
    format!(
        "POST /v1/codeq/{path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\
         Authorization: Bearer {token}\r\n{headers}\r\n"
    )
}

/// Sends a request and keeps the connection, without reading an answer.
pub async fn send_only(addr: SocketAddr, request: &[u8]) -> TcpStream {
    let mut socket = TcpStream::connect(addr).await.unwrap();
    socket.write_all(request).await.unwrap();
    socket
}

/// A stream of server-sent events.
pub struct Sse {
    socket: reqwest::Response,
    text: String,
}

/// One event.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub id: String,
    pub kind: String,
    pub data: serde_json::Value,
}

impl Sse {
    /// Opens the stream and waits until the server says that it is connected.
    pub async fn open(request: reqwest::RequestBuilder) -> Sse {
        let socket = request.send().await.unwrap();
        assert_eq!(socket.status(), 200);
        assert_eq!(socket.headers()["content-type"], "text/event-stream");
        let mut sse = Sse { socket, text: String::new() };
        while !sse.text.contains(": connected\n\n") {
            assert!(sse.more().await, "the stream ended before it began");
        }
        sse
    }

    /// The next event; None when the stream ends.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            let event = parse(&self.block().await?);
            if event.is_some() {
                return event;
            }
        }
    }

    /// The next event, comment or setting, as it was sent; None when the stream ends.
    pub async fn block(&mut self) -> Option<String> {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.text = rest;
                return Some(block);
            }
            if !self.more().await {
                return None;
            }
        }
    }

    /// The next `count` events.
    pub async fn take(&mut self, count: usize) -> Vec<Event> {
        let mut events = Vec::new();
        while events.len() < count {
            events.push(self.next().await.expect("the stream ended"));
        }
        events
    }

    async fn more(&mut self) -> bool {
        let chunk = tokio::time::timeout(PATIENCE, self.socket.chunk()).await.expect("silence");
        // A connection that is cut instead of closed ends the stream, too.
        let Ok(Some(chunk)) = chunk else { return false };
        self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        true
    }
}

/// An event; None for comments and settings.
fn parse(block: &str) -> Option<Event> {
    let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name));
    Some(Event {
        id: field("id: ")?.to_owned(),
        kind: field("event: ")?.to_owned(),
        data: serde_json::from_str(field("data: ")?).unwrap(),
    })
}
