//! HTTP/2: what is served, and known denial-of-service attacks.

use std::sync::atomic::Ordering;

use codeq_net::NetLimits;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::frames::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, RST_STREAM, Seen,
    block, flood, frame, get, preface, reset, rest, until,
};
use crate::support::{HUGE, SHORT, Server, limits};

/// Error codes.
const REFUSED_STREAM: [u8; 4] = 7_u32.to_be_bytes();
const INITIAL_WINDOW: u16 = 4;

async fn connect(server: &Server, settings: &[(u16, u32)]) -> TcpStream {
    let mut stream = TcpStream::connect(server.addr).await.unwrap();
    stream.write_all(&preface(settings)).await.unwrap();
    stream
}

fn says_goodbye(seen: &[Seen]) -> bool {
    seen.iter().any(|frame| frame.kind == GOAWAY)
}

#[tokio::test]
async fn requests_in_clear_text_are_answered_at_once() {
    let server = Server::start(limits()).await;
    let client = reqwest::Client::builder().http2_prior_knowledge().no_proxy().build().unwrap();
    let url = |path: &str| format!("http://{}{path}", server.addr);
    let hello = client.get(url("/hello")).send().await.unwrap();
    assert_eq!(hello.version(), reqwest::Version::HTTP_2);
    assert_eq!(hello.text().await.unwrap(), "hello");

    let waiting = tokio::spawn(client.get(url("/wait")).send());
    server.events.begun.pass().await;
    let echoed = client.post(url("/echo")).body(vec![b'y'; 300_000]).send().await.unwrap();
    assert_eq!(echoed.bytes().await.unwrap().len(), 300_000);
    let huge = client.get(url("/huge")).send().await.unwrap();
    assert_eq!(huge.bytes().await.unwrap().len(), HUGE);
    server.events.release.open(1);
    assert_eq!(waiting.await.unwrap().unwrap().text().await.unwrap(), "released");
    assert_eq!(server.stats.accepted.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn rapid_resets_end_the_connection_and_nobody_elses() {
    let server = Server::start(limits()).await;
    let mut bystander = server.connect().await;
    assert_eq!(bystander.get("/hello").await.status, 200);
    let attacker = connect(&server, &[]).await;
    let attack: Vec<u8> =
        (0..10_000).flat_map(|i| [get(2 * i + 1, "/wait"), reset(2 * i + 1)].concat()).collect();
    let (seen, ()) = tokio::join!(flood(attacker, &attack), async {
        for _ in 0..20 {
            assert_eq!(bystander.get("/hello").await.status, 200);
        }
    });
    assert!(says_goodbye(&seen), "{seen:?}");
    assert!(server.events.waiting.load(Ordering::SeqCst) < 10_000);
    assert_eq!(bystander.get("/hello").await.status, 200);
}

#[tokio::test]
async fn headers_without_end_end_the_connection() {
    let server = Server::start(limits()).await;
    let attacker = connect(&server, &[]).await;
    let mut attack = frame(HEADERS, END_STREAM, 1, &block("/hello"));
    // Each frame carries literal headers: "x" with 100 bytes.
    let header = [&b"\x00\x01x\x64"[..], &[b'y'; 100]].concat();
    for _ in 0..10_000 {
        attack.extend(frame(CONTINUATION, 0, 1, &header));
    }
    let seen = flood(attacker, &attack).await;
    assert!(says_goodbye(&seen), "{seen:?}");
    assert_eq!(server.connect().await.get("/hello").await.status, 200);
}

#[tokio::test]
async fn empty_continuations_end_the_connection() {
    let server = Server::start(limits()).await;
    let attacker = connect(&server, &[]).await;
    let mut attack = frame(HEADERS, END_STREAM, 1, &block("/hello"));
    for _ in 0..100_000 {
        attack.extend(frame(CONTINUATION, 0, 1, b""));
    }
    let seen = flood(attacker, &attack).await;
    assert!(says_goodbye(&seen), "{seen:?}");
}

#[tokio::test]
async fn a_header_list_that_is_too_large_is_431() {
    let server = Server::start(limits()).await;
    let mut client = connect(&server, &[]).await;
    // 16 KiB in one header, twice: length 16000 is 127 + 15873 in HPACK.
    let header = [&b"\x00\x01x\x7f\x81\x7c"[..], &[b'y'; 16_000]].concat();
    client.write_all(&frame(HEADERS, END_STREAM, 1, &block("/hello"))).await.unwrap();
    client.write_all(&frame(CONTINUATION, 0, 1, &header)).await.unwrap();
    client.write_all(&frame(CONTINUATION, END_HEADERS, 1, &header)).await.unwrap();
    let head = until(&mut client, HEADERS, 1).await;
    // The name of index 8 (":status"), then three bytes of Huffman code: "431".
    assert!(head.payload.starts_with(b"\x48\x83\x69\x90\xff"), "{head:?}");
    client.write_all(&get(3, "/empty")).await.unwrap();
    until(&mut client, HEADERS, 3).await;
}

#[tokio::test]
async fn streams_beyond_the_limit_are_refused() {
    let server = Server::start(limits()).await;
    let mut attacker = connect(&server, &[]).await;
    let attack: Vec<u8> = (0..10_000).flat_map(|i| get(2 * i + 1, "/wait")).collect();
    let (mut from, mut to) = attacker.split();
    let write = async {
        let _ = to.write_all(&attack).await;
    };
    let (seen, ()) = tokio::join!(rest(&mut from), write);
    let refused = |seen: &&Seen| seen.kind == RST_STREAM && seen.payload == REFUSED_STREAM;
    assert!(seen.iter().filter(refused).count() > 0 && says_goodbye(&seen), "{seen:?}");
    assert!(server.events.waiting.load(Ordering::SeqCst) <= 256);
    assert_eq!(server.connect().await.get("/hello").await.status, 200);
}

#[tokio::test]
async fn a_stream_whose_client_gives_no_window_is_reset_alone() {
    let server = Server::start(NetLimits { idle_timeout: SHORT, ..limits() }).await;
    let mut client = connect(&server, &[(INITIAL_WINDOW, 0)]).await;
    // Keeps the connection from being idle.
    client.write_all(&get(1, "/wait")).await.unwrap();
    client.write_all(&get(3, "/endless")).await.unwrap();
    until(&mut client, HEADERS, 3).await;
    until(&mut client, RST_STREAM, 3).await;
    server.events.dropped.pass().await;
    client.write_all(&get(5, "/empty")).await.unwrap();
    until(&mut client, HEADERS, 5).await;
}

#[tokio::test]
async fn a_response_in_part_is_reset_when_the_window_stays_shut() {
    let server = Server::start(NetLimits { idle_timeout: SHORT, ..limits() }).await;
    let mut client = connect(&server, &[(INITIAL_WINDOW, 1000)]).await;
    client.write_all(&get(1, "/wait")).await.unwrap();
    client.write_all(&get(3, "/huge")).await.unwrap();
    let data = until(&mut client, DATA, 3).await;
    assert_eq!((data.payload.len(), data.flags), (1000, 0));
    until(&mut client, RST_STREAM, 3).await;
}

#[tokio::test]
async fn an_idle_connection_is_told_and_closed() {
    let limits = NetLimits { header_timeout: SHORT, idle_timeout: SHORT, ..limits() };
    let server = Server::start(limits).await;
    let mut client = connect(&server, &[]).await;
    client.write_all(&get(1, "/empty")).await.unwrap();
    let seen = rest(&mut client).await;
    assert!(says_goodbye(&seen) && seen.iter().any(|frame| frame.kind == HEADERS), "{seen:?}");
}

#[tokio::test]
async fn a_drain_does_not_wait_for_a_client_that_ignores_it() {
    let server = Server::start(NetLimits { header_timeout: SHORT, ..limits() }).await;
    let mut client = connect(&server, &[]).await;
    client.write_all(&get(1, "/empty")).await.unwrap();
    until(&mut client, HEADERS, 1).await;
    server.stop();
    assert!(says_goodbye(&rest(&mut client).await));
    server.ended().await;
}

#[tokio::test]
async fn a_drain_lets_streams_finish() {
    let server = Server::start(limits()).await;
    let mut client = connect(&server, &[]).await;
    client.write_all(&get(1, "/wait")).await.unwrap();
    server.events.begun.pass().await;
    server.stop();
    until(&mut client, GOAWAY, 0).await;
    // The server sends a ping to learn that the client has seen the GOAWAY, so that no request on its way is lost.
    let ping = until(&mut client, PING, 0).await;
    client.write_all(&frame(PING, ACK, 0, &ping.payload)).await.unwrap();
    server.events.release.open(1);
    let data = until(&mut client, DATA, 1).await;
    assert_eq!(data.payload, b"released");
    rest(&mut client).await;
    server.ended().await;
}
