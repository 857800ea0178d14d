//! Host names that tenants choose: name servers that never answer, and many names for one address.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use codeq_webhooks::dns::DnsResolver;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};

use crate::callbacks::receiver::{PATIENCE, Receiver, server_with};
use crate::http::harness::{ADMIN_B, Harness, PRODUCER, PRODUCER_B, WORKER, WORKER_B};

/// A name server: all names lead to this machine, but for those that begin with `silent`, which it ignores.
async fn name_server() -> Arc<DnsResolver> {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let addr = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut packet = [0; 512];
        while let Ok((_, from)) = socket.recv_from(&mut packet).await {
            if let Some(answer) = answer(&packet) {
                socket.send_to(&answer, from).await.unwrap();
            }
        }
    });
    Arc::new(DnsResolver::of(addr).unwrap())
}

/// The answer to a question for an address.
fn answer(packet: &[u8]) -> Option<Vec<u8>> {
    let question = &packet[12..];
    let name_end = question.iter().position(|byte| *byte == 0)?;
    if question[1..].starts_with(b"silent") {
        return None;
    }
    let question = &question[..name_end + 5];
    let is_v4 = question[name_end + 1..name_end + 3] == [0, 1];
    let mut answer = packet[..2].to_vec();
    answer.extend([0x81, 0x80, 0, 1, 0, u8::from(is_v4), 0, 0, 0, 0]);
    answer.extend(question);
    if is_v4 {
        // The name of the question, an address, for a minute.
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
    }
    Some(answer)
}

/// Creates and completes tasks whose webhooks each have their own host name.
async fn finish(server: &Harness, of: (&str, &str), name: &str, to: SocketAddr, count: usize) {
    for number in 0..count {
        let url = format!("http://{name}{number}.example:{}/", to.port());
        let task = json!({"command": "c", "payload": {}, "webhook": url});
        let id = server.enqueue(of.0, task).await;
        server.claim(of.1, "c").await;
        let done = json!({"status": "COMPLETED"});
        server.post(of.1, &format!("tasks/{id}/result"), done).await.expect(200);
    }
}

/// Waits until the second tenant has no pending deliveries. None may have failed.
async fn settled(server: &Harness) {
    let until = Instant::now() + PATIENCE;
    loop {
        let list = server.get(ADMIN_B, "admin/webhooks/deliveries").await.expect(200).json();
        let items = list["items"].as_array().unwrap().clone();
        assert!(items.iter().all(|item| item["lastError"] == Value::Null), "{items:?}");
        if items.is_empty() {
            return;
        }
        assert!(Instant::now() < until, "{items:?}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn unanswered_lookups_delay_no_other_receiver() {
    let server = server_with(|_| ()).await.resolving(name_server().await).await;
    let mut receiver = Receiver::willing().await;
    finish(&server, (PRODUCER, WORKER), "silent", receiver.addr, 150).await;
    let start = Instant::now();
    finish(&server, (PRODUCER_B, WORKER_B), "b", receiver.addr, 20).await;
    receiver.take(20).await;
    let took = start.elapsed();
    // No longer than a single lookup may take: the other tenant does not wait for those that hang.
    assert!(took < Duration::from_secs(4), "{took:?}");
    settled(&server).await;
    server.stop().await;
}

/// A receiver that answers after a moment. Counts the calls that run now, the most that ran at once, and those answered.
async fn slow(now: Arc<AtomicUsize>, most: Arc<AtomicUsize>, told: Arc<AtomicUsize>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (now, most, told) = (Arc::clone(&now), Arc::clone(&most), Arc::clone(&told));
            tokio::spawn(async move {
                let running = now.fetch_add(1, Ordering::SeqCst) + 1;
                most.fetch_max(running, Ordering::SeqCst);
                let mut head = [0; 4_096];
                let _ = stream.read(&mut head).await;
                tokio::time::sleep(Duration::from_millis(50)).await;
                now.fetch_sub(1, Ordering::SeqCst);
                told.fetch_add(1, Ordering::SeqCst);
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                let _ = stream.write_all(answer).await;
            });
        }
    });
    addr
}

#[tokio::test]
async fn many_names_of_one_address_share_its_slots() {
    let limited = server_with(|config| config.webhooks.max_per_host = 4).await;
    let server = limited.resolving(name_server().await).await;
    let (now, most, told) = (Arc::default(), Arc::default(), Arc::default());
    let addr = slow(Arc::clone(&now), Arc::clone(&most), Arc::clone(&told)).await;
    finish(&server, (PRODUCER_B, WORKER_B), "name", addr, 30).await;
    let until = Instant::now() + PATIENCE;
    while told.load(Ordering::SeqCst) < 30 {
        assert!(Instant::now() < until, "{told:?} of 30");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // One tenant gets at most three quarters of the slots.
    assert!((2..=3).contains(&most.load(Ordering::SeqCst)), "{most:?} at once");
    settled(&server).await;
    assert_eq!(told.load(Ordering::SeqCst), 30, "nothing was tried twice");
    server.stop().await;
}
