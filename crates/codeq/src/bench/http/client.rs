//! A small HTTP/1.1 client for load: one connection, keep-alive, one request at a time. Its own cost per
//! request is a fraction of the server's, which shares the machine with it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A connection.
pub struct Client {
    addr: SocketAddr,
    stream: TcpStream,
    head: String,
    request: Vec<u8>,
    buffer: Vec<u8>,
}

/// An answer. Its body is in the client's buffer.
pub struct Answer<'a> {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: &'a [u8],
}

impl Client {
    /// Connects.
    pub async fn connect(addr: SocketAddr, token: &str) -> anyhow::Result<Client> {
        Client::with(addr, format!("host: {addr}\r\nauthorization: Bearer {token}\r\n")).await
    }

    async fn with(addr: SocketAddr, head: String) -> anyhow::Result<Client> {
        let stream = TcpStream::connect(addr).await.context("cannot connect")?;
        stream.set_nodelay(true)?;
        Ok(Client { addr, stream, head, request: Vec::new(), buffer: Vec::new() })
    }

    /// Connects to the same server once more.
    pub async fn again(&self) -> anyhow::Result<Client> {
        Client::with(self.addr, self.head.clone()).await
    }

    /// Closes the connection without waiting for an answer, by a reset: thousands of connections that are closed in the
    /// usual way would occupy their ports for another minute.
    pub fn hang_up(self) -> anyhow::Result<()> {
        Ok(self.stream.set_zero_linger()?)
    }

    /// Reads a gauge of the server until it has a wanted value.
    pub async fn wait_for_gauge(
        &mut self,
        name: &str,
        wanted: impl Fn(f64) -> bool,
    ) -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let answer = self.get("/metrics").await?;
            let text = String::from_utf8_lossy(answer.expect(200)?);
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
            if value.is_some_and(&wanted) {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{name}is still {value:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Posts a JSON body and waits for the answer.
    pub async fn post(&mut self, path: &str, body: &[u8]) -> anyhow::Result<Answer<'_>> {
        self.send(path, body).await?;
        self.answer().await
    }

    /// Posts a JSON body. [`Client::answer`] then waits for the answer.
    pub async fn send(&mut self, path: &str, body: &[u8]) -> anyhow::Result<()> {
        let head =
            format!("POST {path} HTTP/1.1\r\n{}content-length: {}\r\n\r\n", self.head, body.len());
        self.request.clear();
        self.request.extend_from_slice(head.as_bytes());
        self.request.extend_from_slice(body);
        self.stream.write_all(&self.request).await.context("cannot send")
    }

    /// Gets a path and waits for the answer.
    pub async fn get(&mut self, path: &str) -> anyhow::Result<Answer<'_>> {
        self.ask(path).await?;
        self.answer().await
    }

    /// Sends a GET request. [`Client::answer`] then waits for the answer.
    pub async fn ask(&mut self, path: &str) -> anyhow::Result<()> {
        let head = format!("GET {path} HTTP/1.1\r\n{}\r\n", self.head);
        self.stream.write_all(head.as_bytes()).await.context("cannot send")
    }

    /// Waits for the answer to the last request.
    pub async fn answer(&mut self) -> anyhow::Result<Answer<'_>> {
        self.buffer.clear();
        let end = loop {
            if let Some(at) = find(&self.buffer, b"\r\n\r\n") {
                break at + 4;
            }
            self.fill().await?;
        };
        let head = self.buffer.get(..end).unwrap_or_default();
        let head = std::str::from_utf8(head).context("the head is not text")?;
        let status = head.get(9..12).and_then(|text| text.parse().ok()).context("no status")?;
        let field = |wanted: &str| {
            head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case(wanted).then_some(value.trim())
            })
        };
        if field("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
            self.chunks(end).await?;
            return Ok(Answer { status, body: &self.buffer });
        }
        let length: usize = field("content-length").map(str::parse).transpose()?.unwrap_or(0);
        while self.buffer.len() < end + length {
            self.fill().await?;
        }
        Ok(Answer { status, body: self.buffer.get(end..end + length).unwrap_or_default() })
    }

    /// Reads a chunked body, which some servers send, and leaves its bytes in the buffer without the framing.
    async fn chunks(&mut self, mut at: usize) -> anyhow::Result<()> {
        let mut body = Vec::new();
        loop {
            let rest = self.buffer.get(at..).unwrap_or_default();
            let Some(line) = find(rest, b"\r\n") else {
                self.fill().await?;
                continue;
            };
            let size = std::str::from_utf8(rest.get(..line).unwrap_or_default())?;
            let size = size.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(size, 16).context("a chunk without a size")?;
            let from = at + line + 2;
            let to = from.checked_add(size).context("a chunk without an end")?;
            while self.buffer.len() < to + 2 {
                self.fill().await?;
            }
            body.extend_from_slice(self.buffer.get(from..to).unwrap_or_default());
            at = to + 2;
            if size == 0 {
                self.buffer = body;
                return Ok(());
            }
        }
    }

    async fn fill(&mut self) -> anyhow::Result<()> {
        self.buffer.reserve(4_096);
        if self.stream.read_buf(&mut self.buffer).await.context("cannot receive")? == 0 {
            bail!("the server closed the connection");
        }
        Ok(())
    }
}

impl Answer<'_> {
    /// The body of an answer that must have this status.
    pub fn expect(&self, status: u16) -> anyhow::Result<&[u8]> {
        if self.status != status {
            bail!(
                "status {} instead of {status}: {}",
                self.status,
                String::from_utf8_lossy(self.body)
            );
        }
        Ok(self.body)
    }
}

/// The ids of the tasks in an answer. Payloads are ours, so `{"id":"` only ever begins a task.
pub fn task_ids(body: &[u8]) -> Vec<String> {
    const MARK: &[u8] = b"{\"id\":\"";
    const ID: usize = 36;
    let (mut ids, mut rest) = (Vec::new(), body);
    while let Some(at) = find(rest, MARK) {
        let id = rest.get(at + MARK.len()..at + MARK.len() + ID).unwrap_or_default();
        ids.push(String::from_utf8_lossy(id).into_owned());
        rest = rest.get(at + MARK.len()..).unwrap_or_default();
    }
    ids
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn bodies_in_pieces_are_put_together() {
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = server.local_addr().unwrap();
        let answers = std::thread::spawn(move || {
            let (mut stream, _) = server.accept().unwrap();
            let mut ask = [0; 1_024];
            for answer in [
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nA;x=y\r\n, you all!\r\n0\r\n\r\n",
                "HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\n\r\nok",
            ] {
                assert!(stream.read(&mut ask).unwrap() > 0);
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut client = Client::connect(addr, "t").await.unwrap();
            let answer = client.get("/").await.unwrap();
            assert_eq!((answer.status, answer.body), (200, b"hello, you all!".as_slice()));
            let answer = client.get("/").await.unwrap();
            assert_eq!((answer.status, answer.body), (202, b"ok".as_slice()));
        });
        answers.join().unwrap();
    }
}
