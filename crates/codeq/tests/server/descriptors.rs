//! Idle connections that use up descriptors, a disk that is full for a while, and one that fails for good.

use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::server::http::Client;
use crate::server::node::{Node, PATIENCE, codeq};

/// The limit of the process, and the number of connections: many more.
const DESCRIPTORS: usize = 256;
const STRANGERS: usize = 500;
/// Writes of a megabyte each: more than a segment of the log holds, so that the next one must be opened.
const WRITES: usize = 70;

/// `codeq dev` on this directory with few descriptors, and its log beside it.
fn node(dir: &Path, descriptors: usize) -> Node {
    let log = dir.with_extension("log");
    let file = std::fs::File::create(&log).unwrap();
    let args = ["dev", "--data-dir", dir.to_str().unwrap(), "--http-addr", "127.0.0.1:0"];
    let mut inner = codeq(&args);
    inner.args(["--durability", "os", "--log-level", "info,codeq::http=off"]);
    // The shell sets both limits of descriptors, so that the process cannot raise its own. With the signal ignored, a write
    // beyond the limit of a file's size fails instead of ending the process.
    let limited = format!("trap '' XFSZ; ulimit -n {descriptors} && exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command.arg("-c").arg(limited).arg(inner.get_program()).args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::piped()).stderr(file);
    Node::greeted(&mut command, &log)
}

fn write(client: &mut Client) -> std::io::Result<u16> {
    let payload = "x".repeat(1_000_000);
    let body = format!(r#"{{"command":"large","payload":"{payload}"}}"#);
    client.post("/tasks", &body).map(|answer| answer.status)
}

#[test]
fn idle_connections_leave_descriptors_for_the_log() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("data");
    let node = node(&dir, DESCRIPTORS);
    let mut client = node.client();
    assert_eq!(client.get("/readyz").unwrap().status, 200);
    let strangers: Vec<TcpStream> =
        (0..STRANGERS).filter_map(|_| TcpStream::connect(node.addr).ok()).collect();
    assert!(strangers.len() > DESCRIPTORS, "{}", strangers.len());
    for number in 0..WRITES {
        assert_eq!(write(&mut client).unwrap(), 202, "write {number}");
    }
    let ready = client.get("/readyz?verbose").unwrap();
    assert_eq!((ready.status, ready.body.contains("[+] writes")), (200, true), "{ready:?}");
    drop(strangers);
    let log = std::fs::read_to_string(dir.with_extension("log")).unwrap();
    assert!(log.contains("http.maxConnections is 16384, but 92 connections"), "{log}");
    for bad in ["waits", "refused", "cannot accept"] {
        assert!(!log.contains(bad), "{bad}: {log}");
    }
    node.terminate();
    assert_eq!(node.ended().code(), Some(0));
}

/// Simulates a full disk: no file may become as long as a segment.
fn let_files_grow_to(node: &Node, bytes: Option<u64>) {
    let pid = Pid::from_raw(node.pid() as i32);
    let limit = Rlimit { current: bytes, maximum: None };
    prlimit(pid, Resource::Fsize, limit).unwrap();
}

#[test]
fn a_server_that_refuses_writes_is_not_ready() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("data");
    let node = node(&dir, 1_024);
    let mut client = node.client();
    assert_eq!(write(&mut client).unwrap(), 202);
    let_files_grow_to(&node, Some((64 << 20) - 4_096));
    // Two segments are ready, and there is no third.
    let refused =
        (0..4 * WRITES).find_map(|_| Some(write(&mut client).unwrap()).filter(|it| *it != 202));
    assert_eq!(refused, Some(503), "every write was taken");
    let ready = client.get("/readyz?verbose").unwrap();
    assert_eq!(ready.status, 503);
    assert!(ready.body.contains("[+] store\n[-] writes: the disk is full"), "{ready:?}");
    assert_eq!(client.get("/livez").unwrap().status, 200);
    let_files_grow_to(&node, None);
    let until = Instant::now() + PATIENCE;
    while client.get("/readyz").unwrap().status != 200 {
        assert!(Instant::now() < until, "it is never ready again");
        std::thread::yield_now();
    }
    assert_eq!(write(&mut client).unwrap(), 202);
    node.terminate();
    assert_eq!(node.ended().code(), Some(0));
    let log = std::fs::read_to_string(dir.with_extension("log")).unwrap();
    for once in ["engine: writes are refused", "engine: writes are accepted again"] {
        assert_eq!(log.matches(once).count(), 1, "{once}: {log}");
    }
}

#[test]
fn a_log_that_cannot_go_on_ends_the_process() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("data");
    let node = node(&dir, 1_024);
    let mut client = node.client();
    assert_eq!(write(&mut client).unwrap(), 202);
    // Open files stay open, but the next segment cannot be created.
    std::fs::rename(dir.join("log"), dir.join("gone")).unwrap();
    let refused = (0..4 * WRITES).find(|_| !matches!(write(&mut client), Ok(202)));
    assert!(refused.is_some(), "every write was taken");
    assert_eq!(node.ended().code(), Some(1));
    let log = std::fs::read_to_string(dir.with_extension("log")).unwrap();
    assert!(log.contains("ERROR codeq::server: stopped after a failure"), "{log}");
    assert!(
        log.contains("codeq: stopped after a failure: the engine has stopped: cannot "),
        "{log}"
    );
}
