//! `codeq bench` against a real server: what it counts is what happened, and it says so when it cannot.

use std::io::BufRead;
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use crate::node::{Node, Process, codeq};

/// Long enough for thousands of cycles, short enough to be run with every change.
const SHORT: [&str; 6] = ["--seconds", "0.5", "--warm-up", "0.1", "--json", "--quiet"];

/// What the tool said: exit code, its document if any, standard error.
struct Said {
    code: i32,
    document: Value,
    err: String,
}

fn bench(args: &[&str]) -> Said {
    let output = codeq(&["bench"]).args(args).args(SHORT).output().unwrap();
    Said {
        code: output.status.code().unwrap(),
        document: serde_json::from_slice(&output.stdout).unwrap_or(Value::Null),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

fn server(dir: &Path) -> Node {
    let os = ["--durability", "os"];
    let streams = ["--producer-addr", "127.0.0.1:0", "--worker-addr", "127.0.0.1:0"];
    Node::dev(&dir.join("data"), &[os.as_slice(), &streams].concat())
}

/// The flags that lead to the server's streams, from its greeting.
fn streams(node: &Node) -> [String; 2] {
    let line = node.greeting.lines().find_map(|line| line.trim().strip_prefix("Streams "));
    let (producer, worker) = line.unwrap().split_once(" (producers), ").unwrap();
    let worker = worker.split(' ').next().unwrap();
    [format!("--producer-addr={}", producer.trim()), format!("--worker-addr={worker}")]
}

fn all_was_done_once(said: &Said, runs: usize) {
    assert_eq!(said.code, 0, "{}\n{:#}", said.err, said.document);
    assert_eq!(said.document["verified"], true);
    assert_eq!(said.document["runs"].as_array().unwrap().len(), runs);
    for run in said.document["runs"].as_array().unwrap() {
        let counts = &run["counts"];
        let sent = counts["sent"].as_u64().unwrap();
        assert!(sent > 0);
        for what in ["created", "assigned", "completed"] {
            assert_eq!(counts[what], sent, "{what}: {run:#}");
        }
        assert_eq!(run["errors"], serde_json::json!({}));
        assert!(run["cycles_per_second"].as_f64().unwrap() > 0.0);
        for latency in ["completed_ms", "assigned_ms", "created_ms"] {
            let at = |name: &str| run[latency][name].as_f64().unwrap();
            assert!(at("p50") > 0.0, "{run:#}");
            assert!(at("p50") <= at("p99") && at("p99") <= at("max"), "{run:#}");
        }
    }
}

#[test]
fn full_cycles_over_the_streams_are_all_accounted_for() {
    let dir = tempfile::tempdir().unwrap();
    let node = server(dir.path());
    let [producer, worker] = streams(&node);
    let pid = node.pid().to_string();
    for (flags, runs) in [
        (vec!["--server-pid", pid.as_str()], 1),
        (vec!["--one-at-a-time", "--runs", "2"], 2),
        (vec!["--producers", "2", "--workers", "3", "--slots", "7", "--payload", "1000"], 1),
        (vec!["--create-batch", "10", "--ready-batch", "4", "--result-batch", "8"], 1),
        (vec!["--rate", "500"], 1),
    ] {
        let said = bench(&[[producer.as_str(), &worker].as_slice(), &flags].concat());
        all_was_done_once(&said, runs);
        assert_eq!(said.document["mode"], "grpc");
        let run = &said.document["runs"][0];
        assert_eq!(run["server_rss_mib"].is_f64(), flags.contains(&"--server-pid"));
        if flags.contains(&"--one-at-a-time") {
            // The slowest took no less than the average, which is known from how many there were.
            let at = |name: &str| run["completed_ms"][name].as_f64().unwrap();
            let average = 1_000.0 / run["cycles_per_second"].as_f64().unwrap();
            assert!(at("max") > average * 0.9 && at("p50") < average * 2.2, "{run:#}");
            assert!(run["assigned_ms"]["p50"].as_f64().unwrap() < at("p50"), "{run:#}");
        }
        if flags.contains(&"--rate") {
            // One more is due at the very start.
            let sent = run["counts"]["sent"].as_u64().unwrap() + run["unsent"].as_u64().unwrap();
            assert!((300..=301).contains(&sent), "{run:#}");
        }
    }
}

#[test]
fn full_cycles_over_http_are_all_accounted_for() {
    let dir = tempfile::tempdir().unwrap();
    let node = server(dir.path());
    let url = format!("http://{}", node.addr);
    for flags in [
        vec!["--in-flight", "4", "--slots", "4"],
        vec!["--create-batch", "10", "--ready-batch", "5", "--result-batch", "10", "--slots", "20"],
    ] {
        let said = bench(&[["--http-url", url.as_str()].as_slice(), &flags].concat());
        all_was_done_once(&said, 1);
        assert_eq!(said.document["mode"], "http");
    }
}

#[test]
fn a_server_that_is_not_there_is_named() {
    // Nobody listens on a port that was just given back.
    let addr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (flag, url) = (format!("--producer-addr={addr}"), format!("--http-url=http://{addr}"));
    for flag in [flag, url] {
        let said = bench(&[&flag]);
        assert_eq!(said.code, 1);
        assert!(said.err.contains("cannot reach the "), "{}", said.err);
        assert!(said.err.contains(&addr.to_string()), "{}", said.err);
    }
}

#[test]
fn a_token_that_is_not_known_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let node = server(dir.path());
    let [producer, worker] = streams(&node);
    let said = bench(&[&producer, &worker, "--token", "wrong"]);
    assert_eq!(said.code, 1);
    assert!(said.err.contains("the producer stream was refused: Unauthenticated"), "{}", said.err);
}

#[test]
fn the_ledger_has_what_was_acknowledged_when_the_server_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let node = server(dir.path());
    let [producer, worker] = streams(&node);
    let path = dir.path().join("ledger");
    let mut command = codeq(&["bench", &producer, &worker, "--seconds", "60", "--json"]);
    command.arg("--ledger").arg(&path).stderr(Stdio::piped());
    let mut process = Process::spawn(&mut command);
    // The first line of progress: it is in the middle of it.
    let (mut stderr, mut line) = (process.stderr(), String::new());
    stderr.read_line(&mut line).unwrap();
    assert!(line.contains(" cycles, "), "{line}");
    node.kill();
    let (status, out) = process.finished();
    assert_eq!(status.code(), Some(3));
    let document: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(document["server_went_away"], true);
    let ledger = std::fs::read_to_string(path).unwrap();
    let ids = |what: &str| -> Vec<&str> {
        ledger.lines().filter_map(|line| line.strip_prefix(what)).collect()
    };
    let (created, completed) = (ids("C "), ids("D "));
    assert_eq!(created.len() + completed.len(), ledger.lines().count());
    let counts = &document["runs"][0]["counts"];
    assert_eq!(counts["created"], created.len());
    assert_eq!(counts["completed"], completed.len());
    assert!(!completed.is_empty());
    // What was acknowledged is still there: durability os outlives the process.
    let node = server(dir.path());
    let mut client = node.client();
    for (ids, status) in [(&created, None), (&completed, Some("COMPLETED"))] {
        for id in ids.iter().rev().take(200) {
            let answer = client.get(&format!("/tasks/{id}")).unwrap();
            assert_eq!(answer.status, 200, "{id}: {answer:?}");
            let task: Value = answer.json();
            assert!(status.is_none_or(|status| task["status"] == status), "{id}: {answer:?}");
        }
    }
}
