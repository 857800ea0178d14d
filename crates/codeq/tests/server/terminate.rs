//! SIGTERM under load: every request gets an answer or a closed connection, and nothing answered is lost.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::server::check::after_restart;
use crate::server::finish::finish;
use crate::server::http::{Client, is_hang};
use crate::server::ledger::Ledger;
use crate::server::load;
use crate::server::node::{Node, PATIENCE};
use crate::server::random::Random;

const CYCLES: u64 = 3;
const SHARDS: usize = 2;
const LONG_POLLS: usize = 4;
/// A poll that is answered within this was woken by the drain, because its own wait is much longer.
const PROMPT: Duration = Duration::from_secs(15);

#[test]
fn what_was_answered_survives_sigterm() {
    let mut random = Random::of_this_run();
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("data");
    let ledger = Mutex::new(Ledger::default());
    for _ in 0..CYCLES {
        let node = Node::dev(&dir, &["--shards", &SHARDS.to_string()]);
        after_restart(node.addr, &ledger, &mut random);
        let life = Duration::from_millis(50 + random.below(251));
        terminate(node, &ledger, &mut random, life);
    }
    let node = Node::dev(&dir, &[]);
    let count = finish(node.addr, &ledger, &mut random);
    assert!(count.completed > 0, "{count:?}");
}

#[test]
fn the_log_says_why_it_stops_and_how_long_that_took() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("data");
    let node = Node::dev(&dir, &["--log-level", "info"]);
    assert_eq!(node.client().get("/livez").unwrap().status, 200);
    node.terminate();
    assert_eq!(node.ended().code(), Some(0));
    let log = std::fs::read_to_string(dir.with_extension("log")).unwrap();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("codeq::server: ")).collect();
    assert_eq!(lines.len(), 2, "{log}");
    assert!(lines[0].ends_with(" INFO codeq::server: draining why=SIGTERM"), "{log}");
    let request = log.lines().find(|line| line.contains(" GET /livez 200 ")).unwrap();
    assert!(request.ends_with(" ms"), "{log}");
    assert!(lines[1].contains(" INFO codeq::server: stopped took_ms="), "{log}");
    let times: Vec<&str> = log.split("took_ms=").skip(1).collect();
    assert_eq!(times.len(), 1, "{log}");
    for time in times {
        let time = time.split_whitespace().next().unwrap();
        assert!(time.parse::<f64>().is_ok(), "{time}");
        assert!(time.split_once('.').is_none_or(|(_, part)| part.len() <= 3), "{time}");
    }
}

fn terminate(node: Node, ledger: &Mutex<Ledger>, random: &mut Random, life: Duration) {
    let addr = node.addr;
    let stopping = AtomicBool::new(false);
    let told = Mutex::new(None);
    std::thread::scope(|scope| {
        let polls: Vec<_> = (0..LONG_POLLS).map(|_| scope.spawn(move || poll(addr))).collect();
        await_polls(&mut node.client());
        load::run(addr, ledger, random, &stopping, || {
            std::thread::sleep(life);
            let mut probe = node.client();
            assert_eq!(probe.get("/readyz").unwrap().status, 200);
            stopping.store(true, Ordering::SeqCst);
            *told.lock() = Some(Instant::now());
            node.terminate();
            await_not_ready(probe);
            assert_eq!(node.ended().code(), Some(0));
        });
        let told = told.lock().unwrap();
        for poll in polls {
            let answered = poll.join().unwrap();
            assert!(answered.duration_since(told) < PROMPT, "a poll was left waiting");
        }
    });
}

/// Waits for a task that never comes. Returns when the empty answer arrived.
fn poll(addr: SocketAddr) -> Instant {
    let body = r#"{"commands":["nobody-sends-this"],"waitSeconds":30}"#;
    let answer = Client::new(addr).post("/tasks/claim", body).unwrap();
    assert_eq!(answer.status, 204, "{answer:?}");
    Instant::now()
}

/// Waits until the server counts every poll as waiting. A claim waits in every shard.
fn await_polls(http: &mut Client) {
    let deadline = Instant::now() + PATIENCE;
    let all = format!("codeq_claims_waiting {}", LONG_POLLS * SHARDS);
    while !http.get("/metrics").unwrap().body.lines().any(|line| line == all) {
        assert!(Instant::now() < deadline, "the polls do not wait");
    }
}

/// Waits until the probe reports not ready, or is no longer answered.
fn await_not_ready(mut probe: Client) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match probe.get("/readyz") {
            Ok(answer) if answer.status == 503 => return,
            Ok(answer) => assert_eq!(answer.status, 200, "{answer:?}"),
            Err(error) => {
                assert!(!is_hang(&error), "a probe hangs");
                return;
            }
        }
        assert!(Instant::now() < deadline, "ready although it was told to stop");
    }
}
