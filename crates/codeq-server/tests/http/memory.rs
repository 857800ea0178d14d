//! What requests may hold of the server's memory.

use std::time::{Duration, Instant};

use reqwest::{Client, Response};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use crate::http::harness::{Harness, PRODUCER, PRODUCER_B, WORKER};

const MEGABYTE: usize = 1_000_000;
const LIST_BYTES_MAX: usize = 4 << 20;

async fn fill(h: &Harness, token: &str, tasks: usize) -> Vec<String> {
    let payload = "x".repeat(MEGABYTE);
    let mut ids = Vec::new();
    for _ in 0..tasks {
        ids.insert(0, h.enqueue(token, json!({"command": "c", "payload": payload})).await);
    }
    ids
}

/// The value of a metric, over all kinds.
async fn metric(h: &Harness, name: &str) -> u64 {
    let text = h.get("", "/metrics").await.expect(200).text();
    let values = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('{'));
    values.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

#[tokio::test]
async fn pages_end_after_four_megabytes() {
    let h = Harness::start().await;
    let ids = fill(&h, PRODUCER, 10).await;
    for path in ["tasks?limit=1000", "tasks?limit=1000&command=c&status=PENDING"] {
        let (mut seen, mut cursor, mut pages) = (Vec::new(), String::new(), 0);
        loop {
            let page = h.get(PRODUCER, &format!("{path}{cursor}")).await.expect(200);
            assert!(page.body.len() <= LIST_BYTES_MAX, "{}", page.body.len());
            let page = page.json();
            let items = page["items"].as_array().unwrap();
            seen.extend(items.iter().map(|task| task["id"].as_str().unwrap().to_owned()));
            pages += 1;
            let Some(next) = page["nextCursor"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
        assert_eq!((seen, pages), (ids.clone(), 3));
    }
}

/// An HTTP/2 client that receives hardly anything of an answer that is not read.
fn reluctant() -> Client {
    let client = Client::builder().no_proxy().tls_certs_only([]).http2_prior_knowledge();
    let client = client.http2_initial_stream_window_size(65_535);
    client.http2_initial_connection_window_size(65_535).build().unwrap()
}

async fn list(h: &Harness, client: &Client, token: &str) -> Response {
    let url = format!("http://{}/v1/codeq/tasks?limit=1000", h.addr());
    client.get(url).bearer_auth(token).send().await.unwrap()
}

#[tokio::test]
async fn answers_that_nobody_takes_are_bounded_and_one_tenant_has_half() {
    const HALF: u64 = 32 << 20;
    let h = Harness::with(|config| config.http.max_buffered_bytes = Some(64 << 20)).await;
    fill(&h, PRODUCER, 5).await;
    fill(&h, PRODUCER_B, 1).await;
    let clients = [reluctant(), reluctant()];
    let mut answers = Vec::new();
    for n in 0..12 {
        answers.push(list(&h, &clients[n % 2], PRODUCER).await);
    }
    let refused: Vec<_> = answers.iter().filter(|answer| answer.status() == 503).collect();
    assert!((4..=6).contains(&refused.len()), "{}", refused.len());
    assert!(refused.iter().all(|answer| answer.headers().contains_key("retry-after")));
    let held = metric(&h, "codeq_held_bytes").await;
    assert!((HALF / 2..=HALF + (64 << 10)).contains(&held), "{held}");
    assert!(metric(&h, "codeq_held_refusals_total").await >= refused.len() as u64);
    // Another tenant notices nothing.
    assert_eq!(list(&h, &Client::new(), PRODUCER_B).await.status(), 200);
    // Answers that are given up no longer count.
    drop((answers, clients));
    let start = Instant::now();
    while metric(&h, "codeq_held_bytes").await > 1 << 20 {
        assert!(start.elapsed() < Duration::from_secs(30), "not given back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    h.get(PRODUCER, "tasks?limit=1000").await.expect(200);
}

#[tokio::test]
async fn answers_over_http_1_that_nobody_takes_are_bounded_too() {
    const HALF: u64 = 32 << 20;
    let h = Harness::with(|config| config.http.max_buffered_bytes = Some(64 << 20)).await;
    fill(&h, PRODUCER, 5).await;
    let mut connections = Vec::new();
    for _ in 0..12 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4_096).unwrap();
        let mut connection = socket.connect(h.addr()).await.unwrap();
        let head = format!(
            "GET /v1/codeq/tasks?limit=1000 HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {PRODUCER}\r\n\r\n"
        );
        connection.write_all(head.as_bytes()).await.unwrap();
        let mut status = [0; 12];
        connection.read_exact(&mut status).await.unwrap();
        connections.push((status, connection));
    }
    let refused = connections.iter().filter(|(status, _)| status.ends_with(b"503")).count();
    assert!((4..=6).contains(&refused), "{refused}");
    let held = metric(&h, "codeq_held_bytes").await;
    assert!((HALF / 2..=HALF + (64 << 10)).contains(&held), "{held}");
    // Answers that are given up no longer count.
    drop(connections);
    let start = Instant::now();
    while metric(&h, "codeq_held_bytes").await > 1 << 20 {
        assert!(start.elapsed() < Duration::from_secs(30), "not given back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_connection_leaves_room_for_the_others_of_its_tenant() {
    const TENANT: u64 = 32 << 20;
    let h = Harness::with(|config| config.http.max_buffered_bytes = Some(64 << 20)).await;
    fill(&h, PRODUCER, 5).await;
    let client = reluctant();
    let mut answers = Vec::new();
    for _ in 0..9 {
        answers.push(list(&h, &client, PRODUCER).await);
    }
    assert!(answers.iter().any(|answer| answer.status() == 503), "the connection is full");
    let held = metric(&h, "codeq_held_bytes").await;
    assert!((TENANT / 2..=TENANT / 4 * 3 + (64 << 10)).contains(&held), "{held}");
    assert_eq!(list(&h, &reluctant(), PRODUCER).await.status(), 200);
}

#[tokio::test]
async fn a_claim_whose_answer_has_no_room_gives_its_tasks_back() {
    let h = Harness::with(|config| config.http.max_buffered_bytes = Some(64 << 20)).await;
    let ids = fill(&h, PRODUCER, 5).await;
    let (client, other) = (reluctant(), reluctant());
    let mut answers = Vec::new();
    for n in 0..8 {
        answers.push(list(&h, if n < 4 { &client } else { &other }, PRODUCER).await);
    }
    let room = answers.iter().filter(|answer| answer.status() == 200).count();
    assert!(room >= 6, "{room}");
    // There is room for a few tasks beside seven or eight pages; then they stay in the queue.
    let (mut got, mut refused) = (Vec::new(), 0);
    let url = format!("http://{}/v1/codeq/tasks/claim", h.addr());
    for _ in 0..ids.len() {
        let claim = client.post(&url).bearer_auth(WORKER).body("{}").send().await.unwrap();
        if claim.status() == 503 {
            refused += 1;
        }
        got.push(claim);
    }
    assert!(refused > 0, "none of {} was refused", got.len());
    drop((answers, got, client, other));
    let free = || async { metric(&h, "codeq_held_bytes").await < 1 << 20 };
    while !free().await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Tasks that no worker received are claimable at once, in any order.
    for _ in 0..refused {
        h.claim(WORKER, "c").await;
    }
}
