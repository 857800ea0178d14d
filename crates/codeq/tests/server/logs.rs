//! A log that nobody reads.

use std::io::{BufRead, Read};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::server::node::{Node, codeq};

/// Far more lines than the pipe and the server hold.
const REQUESTS: usize = 5_000;

fn flood(node: &Node) {
    let mut client = node.client();
    for number in 0..REQUESTS {
        let answer = client.get("/v1/codeq/tasks/00000000-0000-8fff-8000-00000000abcd").unwrap();
        assert_eq!(answer.status, 404, "request {number}");
    }
}

#[test]
fn a_log_that_nobody_reads_stops_nobody() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("data");
    let args = ["dev", "--data-dir", dir.to_str().unwrap(), "--http-addr", "127.0.0.1:0"];
    let mut command = codeq(&args);
    command.args(["--log-level", "info", "--log-format", "text"]).stderr(Stdio::piped());
    let mut node = Node::greeted(&mut command, &dir.with_extension("log"));
    let mut stderr = node.stderr();
    flood(&node);
    // When the log is read at last, it says how many lines are missing.
    let mut line = String::new();
    let lost: u64 = loop {
        line.clear();
        assert!(stderr.read_line(&mut line).unwrap() > 0, "the log ended");
        if let Some((_, lost)) =
            line.split_once("codeq::logs: ").and_then(|_| line.split_once("lost="))
        {
            break lost.trim().parse().unwrap();
        }
    };
    assert!(lost > 0 && lost < REQUESTS as u64, "{lost}");
    let metrics = node.client().get("/metrics").unwrap().body;
    let counted = metrics.lines().find_map(|line| line.strip_prefix("codeq_log_lines_lost_total "));
    assert!(counted.is_some_and(|counted| counted.parse::<u64>().unwrap() >= lost), "{counted:?}");
    // When it is not read again, the server can be stopped nevertheless.
    flood(&node);
    let start = Instant::now();
    node.terminate();
    assert_eq!(node.ended().code(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    let mut rest = Vec::new();
    stderr.read_to_end(&mut rest).unwrap();
}
