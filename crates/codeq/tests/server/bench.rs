//! `codeq bench` against a real server: it counts what happened, and reports when it cannot.

use std::io::BufRead;
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use codeq_core::id::TaskId;
use codeq_core::place::Place;
use codeq_engine::{Engine, Options};
use serde_json::Value;

use crate::server::node::{Node, Process, codeq};
use crate::server::random::Random;

/// Long enough for thousands of cycles, short enough to be run with every change.
const SHORT: [&str; 6] = ["--seconds", "0.5", "--warm-up", "0.1", "--json", "--quiet"];

/// The tool's exit code, its document if any, and its standard error.
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
            // The slowest cycle took no less than the average, which follows from the rate.
            let at = |name: &str| run["completed_ms"][name].as_f64().unwrap();
            let average = 1_000.0 / run["cycles_per_second"].as_f64().unwrap();
            assert!(at("max") > average * 0.9 && at("p50") < average * 2.2, "{run:#}");
            assert!(run["assigned_ms"]["p50"].as_f64().unwrap() < at("p50"), "{run:#}");
        }
        if flags.contains(&"--rate") {
            // 500 a second for 0.6 seconds, and the one at the very start.
            assert_eq!((&run["counts"]["sent"], &run["unsent"]), (&301.into(), &0.into()));
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
fn clients_that_hang_up_leave_nobody_waiting_for_results() {
    let dir = tempfile::tempdir().unwrap();
    let node = server(dir.path());
    let addr = format!("--addr={}", node.addr);
    let flags = ["--waits", "4000", "--seconds", "1", "--rounds", "1", "--json"];
    let output = codeq(&["bench", "http", "waits", &addr]).args(flags).output().unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    let rows: Vec<Value> = out.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert_eq!(rows[1]["what"], "waits", "{out}");
    assert!(rows[1]["note"].as_str().unwrap().ends_with("codeq_result_waiters 0"), "{out}");
    assert!(rows.len() == 3 && rows[2]["per_second"].as_f64().unwrap() > 0.0, "{out}");
}

#[test]
fn the_start_of_a_running_server_is_not_measured() {
    let output = codeq(&["bench", "http", "start", "--addr=127.0.0.1:1"]).output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && err.contains("cannot be measured with --addr"), "{err}");
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

/// Kills of one test run; `make campaign` asks for more.
const KILLS: usize = 2;

/// What `codeq bench` saw acknowledged.
#[derive(Default)]
struct Acknowledged {
    created: Vec<TaskId>,
    completed: Vec<TaskId>,
}

impl Acknowledged {
    fn read(ledger: &str) -> Acknowledged {
        let mut found = Acknowledged::default();
        for line in ledger.lines() {
            match line.split_once(' ').unwrap() {
                ("C", id) => found.created.push(id.parse().unwrap()),
                ("D", id) => found.completed.push(id.parse().unwrap()),
                _ => panic!("{line}"),
            }
        }
        found
    }

    /// Looks for all of it in a directory that no server has open.
    fn check(&self, dir: &Path) {
        let engine = Engine::open(dir, Options::default()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            for (ids, done) in [(&self.created, false), (&self.completed, true)] {
                for id in ids {
                    let task = engine.task("dev-tenant", *id).await.unwrap();
                    let task = task.unwrap_or_else(|| panic!("{id} is lost"));
                    assert!(!done || task.place == Place::Completed, "{id} is {:?}", task.place);
                }
            }
        });
        engine.shutdown();
    }
}

#[test]
fn what_streams_acknowledged_survives_sigkill() {
    let kills = std::env::var("CODEQ_STREAM_KILLS").ok();
    let kills = kills.map_or(KILLS, |text| text.parse().expect("CODEQ_STREAM_KILLS is a number"));
    let mut random = Random::of_this_run();
    let dir = tempfile::tempdir().unwrap();
    let (data, path) = (dir.path().join("data"), dir.path().join("ledger"));
    let mut all = Acknowledged::default();
    for kill in 1..=kills {
        let node = Node::dev(&data, &[]);
        let [producer, worker] = streams(&node);
        let mut command = codeq(&["bench", &producer, &worker, "--seconds", "60", "--json"]);
        if kill % 2 == 0 {
            command.args(["--create-batch=8", "--ready-batch=8", "--result-batch=8"]);
        }
        command.arg("--ledger").arg(&path).stderr(Stdio::piped());
        let mut process = Process::spawn(&mut command);
        // The first line of progress shows that the run is under way.
        let (mut stderr, mut line) = (process.stderr(), String::new());
        stderr.read_line(&mut line).unwrap();
        assert!(line.contains(" cycles, "), "{line}");
        std::thread::sleep(Duration::from_millis(random.below(500)));
        node.kill();
        let (status, out) = process.finished();
        assert_eq!(status.code(), Some(3));
        let document: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(document["server_went_away"], true);
        let mut seen = Acknowledged::read(&std::fs::read_to_string(&path).unwrap());
        let counts = &document["runs"][0]["counts"];
        assert_eq!(counts["created"], seen.created.len());
        assert_eq!(counts["completed"], seen.completed.len());
        assert!(!seen.completed.is_empty());
        seen.check(&data);
        let (created, completed) = (seen.created.len(), seen.completed.len());
        println!("kill {kill}: {created} creates and {completed} completions are there");
        all.created.append(&mut seen.created);
        all.completed.append(&mut seen.completed);
    }
    all.check(&data);
    println!("{kills} kills: {} creates, {} completions", all.created.len(), all.completed.len());
}
