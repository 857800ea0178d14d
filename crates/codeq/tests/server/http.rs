//! A small HTTP/1.1 client: one connection kept alive, bounded waiting.

use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde::de::DeserializeOwned;

/// A request without an answer within this time hangs. Far more than a busy machine needs, and less than the longest
/// poll.
const PATIENCE: Duration = Duration::from_secs(25);

pub struct Client {
    addr: SocketAddr,
    token: String,
    stream: Option<BufReader<TcpStream>>,
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// Names in lowercase.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Answer {
    pub fn json<T: DeserializeOwned>(&self) -> T {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn is_replayed(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }
}

/// Whether the client timed out.
pub fn is_hang(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

impl Client {
    pub fn new(addr: SocketAddr) -> Client {
        Client::with_token(addr, "dev-token")
    }

    pub fn with_token(addr: SocketAddr, token: &str) -> Client {
        Client { addr, token: token.to_owned(), stream: None }
    }

    pub fn get(&mut self, path: &str) -> Result<Answer> {
        self.call("GET", path, "")
    }

    pub fn post(&mut self, path: &str, body: &str) -> Result<Answer> {
        self.call("POST", path, body)
    }

    /// One request. After an error it is unknown whether the server did it.
    fn call(&mut self, method: &str, path: &str, body: &str) -> Result<Answer> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.connect()?,
        };
        let path = match path.starts_with("/tasks") {
            true => format!("/v1/codeq{path}"),
            false => path.to_owned(),
        };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.addr,
            self.token,
            body.len()
        );
        stream.get_mut().write_all(request.as_bytes())?;
        let answer = read_answer(&mut stream)?;
        if answer.header("connection") != Some("close") {
            self.stream = Some(stream);
        }
        Ok(answer)
    }

    fn connect(&self) -> Result<BufReader<TcpStream>> {
        let stream = TcpStream::connect_timeout(&self.addr, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(BufReader::new(stream))
    }
}

fn read_answer(stream: &mut BufReader<TcpStream>) -> Result<Answer> {
    let first = read_line(stream)?;
    let status = first.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.ok_or_else(|| Error::new(ErrorKind::InvalidData, first))?;
    let mut headers = Vec::new();
    loop {
        let line = read_line(stream)?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let mut answer = Answer { status, headers, body: String::new() };
    let length = match answer.header("content-length") {
        Some(length) => length.parse().expect("a length is a number"),
        None if status == 204 => 0,
        None => panic!("an answer without a length: {answer:?}"),
    };
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    answer.body = String::from_utf8(body).expect("answers are text");
    Ok(answer)
}

fn read_line(stream: &mut BufReader<TcpStream>) -> Result<String> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 || !line.ends_with('\n') {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}
