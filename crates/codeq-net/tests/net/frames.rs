//! HTTP/2 frames written by hand: a client that follows no rules.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::support::PATIENCE;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const CONTINUATION: u8 = 9;

pub const ACK: u8 = 1;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Debug)]
pub struct Seen {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The preface and settings, each a pair of identifier and value.
pub fn preface(settings: &[(u16, u32)]) -> Vec<u8> {
    let mut payload = Vec::new();
    for (id, value) in settings {
        payload.extend(id.to_be_bytes());
        payload.extend(value.to_be_bytes());
    }
    [PREFACE, &frame(SETTINGS, 0, 0, &payload)].concat()
}

/// The header block of a GET: indexed method and scheme, literal path and authority.
pub fn block(path: &str) -> Vec<u8> {
    let mut block = vec![0x82, 0x86, 0x04, u8::try_from(path.len()).unwrap()];
    block.extend(path.as_bytes());
    block.extend(b"\x01\x01t");
    block
}

pub fn get(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, stream, &block(path))
}

pub fn reset(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())
}

/// The next frame; `None` when the server has closed.
pub async fn next(from: &mut (impl AsyncRead + Unpin)) -> Option<Seen> {
    let read = async {
        let mut head = [0; 9];
        from.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        from.read_exact(&mut payload).await.ok()?;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        Some(Seen { kind: head[3], flags: head[4], stream, payload })
    };
    timeout(PATIENCE, read).await.expect("a frame in time")
}

/// Reads until a frame of a kind on a stream.
pub async fn until(from: &mut (impl AsyncRead + Unpin), kind: u8, stream: u32) -> Seen {
    loop {
        let seen = next(from).await.expect("the connection is open");
        if (seen.kind, seen.stream) == (kind, stream) {
            return seen;
        }
    }
}

/// Everything until the server closes.
pub async fn rest(from: &mut (impl AsyncRead + Unpin)) -> Vec<Seen> {
    let mut all = Vec::new();
    while let Some(seen) = next(from).await {
        all.push(seen);
    }
    all
}

/// Writes on a connection that may be closed meanwhile, and reads until it is.
pub async fn flood<S: AsyncRead + AsyncWrite + Unpin>(stream: S, bytes: &[u8]) -> Vec<Seen> {
    let (mut from, mut to) = tokio::io::split(stream);
    let write = async {
        let _ = to.write_all(bytes).await;
    };
    tokio::join!(rest(&mut from), write).0
}
