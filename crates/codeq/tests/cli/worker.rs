//! `codeq worker run`: programs as workers.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command};

use serde_json::json;

use crate::cli::client::{Shop, fails};

/// A running `codeq worker run`, killed at the end of the test.
struct Working {
    child: Child,
    stderr: BufReader<std::process::ChildStderr>,
}

impl Working {
    fn start(shop: &Shop, queues: &[&str], more: &[&str], script: &str) -> Working {
        let program = ["--", "sh", "-c", script];
        let args = [&["worker", "run"], queues, more, &program].concat();
        let mut child = shop.command(&args).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        Working { child, stderr }
    }

    /// Reads stderr until a line has this text.
    fn line(&mut self, part: &str) -> String {
        let mut line = String::new();
        while !line.contains(part) {
            line.clear();
            assert!(self.stderr.read_line(&mut line).unwrap() > 0, "no line with '{part}'");
        }
        line
    }

    fn signal(&self, name: &str) {
        let done =
            Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status();
        assert!(done.unwrap().success());
    }

    fn end(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap().code(), rest)
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn fifo(path: &Path) -> String {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    path.to_str().unwrap().to_owned()
}

#[test]
fn the_exit_code_decides_and_stdout_is_the_result() {
    let shop = Shop::open();
    let script = r#"
        payload=$(cat)
        case $payload in
            '"json"') echo "{\"id\": \"$CODEQ_TASK_ID\", \"queue\": \"$CODEQ_QUEUE\", \"attempt\": $CODEQ_ATTEMPT}" ;;
            '"text"') echo hello ;;
            '"nothing"') ;;
            '"killed"') kill -9 $$ ;;
            '"deep"') printf '{"a":'; printf '[%.0s' $(seq 2000); printf ']%.0s' $(seq 2000); echo '}' ;;
            '"busy"') echo first >&2; echo "try later" >&2; exit 75 ;;
            *) echo "cannot read $payload" >&2; exit 3 ;;
        esac"#;
    let enqueue = |queue: &str, payload: &str| {
        shop.enqueue(queue, &["--payload", payload, "--max-attempts", "1"])
    };
    let ids = [
        enqueue("Resize", "\"json\""),
        enqueue("resize", "\"text\""),
        enqueue("crop", "\"nothing\""),
        enqueue("crop", "\"busy\""),
        enqueue("crop", "[1]"),
        enqueue("crop", "\"killed\""),
        enqueue("crop", "\"deep\""),
    ];
    let mut working = Working::start(&shop, &["resize", "crop"], &["--concurrency", "2"], script);
    for id in &ids {
        shop.run(&["task", "wait", id]);
    }
    let result = |id: &str| shop.json(&["task", "result", id])["result"].clone();
    assert_eq!(result(&ids[0]), json!({ "id": ids[0], "queue": "Resize", "attempt": 1 }));
    assert_eq!(result(&ids[1]), json!({ "output": "hello" }));
    assert_eq!(result(&ids[2]), json!({}));
    let error = |id: &str| shop.json(&["task", "get", id])["error"].clone();
    assert_eq!(error(&ids[3]), "try later");
    assert_eq!(error(&ids[4]), "exit code 3: cannot read [1]");
    assert_eq!(error(&ids[5]), "killed by signal 9");
    // The line says what the server did: it refuses such a result.
    let refused = error(&ids[6]);
    assert!(refused.as_str().unwrap().starts_with("the server refused the result"), "{refused}");
    let said = working.line(&format!("{} crop: ", ids[6]));
    assert!(said.contains("nacked") && said.contains("now a dead letter: the server"), "{said}");
    working.signal("TERM");
    let said = working.line("stopped:");
    assert!(said.contains("3 completed, 4 nacked"), "{said}");
    assert_eq!(working.end().0, Some(0));
}

#[test]
fn a_signal_lets_the_program_finish() {
    let shop = Shop::open();
    let (started, go) =
        (fifo(&shop.home.path().join("started")), fifo(&shop.home.path().join("go")));
    let script = format!(
        "echo here > {started}; read word < {go}; echo \"{{\\\"word\\\": \\\"$word\\\"}}\""
    );
    let id = shop.enqueue("slow", &[]);
    let mut working = Working::start(&shop, &["slow"], &["--lease", "5s"], &script);
    // Opens when the program has begun.
    File::open(&started).unwrap().read_to_end(&mut Vec::new()).unwrap();
    working.signal("INT");
    working.line("stopping");
    let second = shop.enqueue("slow", &[]);
    File::options().write(true).open(&go).unwrap().write_all(b"drained\n").unwrap();
    working.line("1 completed");
    assert_eq!(working.end().0, Some(0));
    assert_eq!(shop.json(&["task", "result", &id])["result"], json!({ "word": "drained" }));
    assert_eq!(shop.json(&["task", "get", &second])["status"], "PENDING");

    // A second signal does not wait. The program is gone as well: nobody holds its pipe.
    let mut working = Working::start(&shop, &["slow"], &[], &script);
    let mut pipe = File::open(&started).unwrap();
    working.signal("TERM");
    working.line("stopping");
    working.signal("TERM");
    let (code, rest) = working.end();
    assert_eq!(code, Some(1), "{rest}");
    assert!(rest.contains("without waiting") && rest.contains("hint: "), "{rest}");
    pipe.read_to_end(&mut Vec::new()).unwrap();
}

#[test]
fn a_cancelled_task_stops_its_program() {
    let shop = Shop::open();
    let started = fifo(&shop.home.path().join("started"));
    let script = format!("echo here > {started}; exec sleep 1000");
    let id = shop.enqueue("slow", &[]);
    let working = Working::start(&shop, &["slow"], &["--lease", "1s"], &script);
    File::open(&started).unwrap().read_to_end(&mut Vec::new()).unwrap();
    assert_eq!(shop.json(&["task", "cancel", &id])[0]["state"], "requested");
    let waited = shop.run(&["task", "wait", &id]);
    assert_eq!(waited.code, 1, "{}", waited.err);
    assert!(waited.err.contains("CANCELLED"), "{}", waited.err);
    drop(working);
}

#[test]
fn a_killed_worker_takes_its_program_along() {
    let shop = Shop::open();
    let started = fifo(&shop.home.path().join("started"));
    // A child of the program holds the pipe as well.
    let script = format!("exec 3> {started}; echo here >&3; sleep 1000; sleep 1000");
    shop.enqueue("slow", &[]);
    let working = Working::start(&shop, &["slow"], &[], &script);
    let mut pipe = BufReader::new(File::open(&started).unwrap());
    let mut line = String::new();
    pipe.read_line(&mut line).unwrap();
    assert_eq!(line, "here\n");
    working.signal("KILL");
    // Ends when nobody holds the other end any more.
    assert_eq!(pipe.read_to_end(&mut Vec::new()).unwrap(), 0);
    assert_eq!(working.end().0, None);
    // A supervisor whose worker is gone runs nothing.
    let late = shop.run(&["supervise", "--worker", "1", "--", "echo", "here"]);
    assert_eq!((late.code, late.out.as_str()), (127, ""), "{}", late.err);
}

#[test]
fn a_wrong_port_is_named() {
    let shop = Shop::open();
    // Nobody listens, or something else does.
    for (url, why) in [("http://127.0.0.1:9", "refused"), (shop.url().as_str(), "404")] {
        let args = ["worker", "run", "resize", "--worker-url", url, "--", "true"];
        let mut child = shop.command(&args).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let line = Working { child, stderr }.line("reconnecting");
        assert!(line.contains(url) && line.contains(why), "{line}");
    }
}

#[test]
fn a_task_that_runs_for_too_long_stops_its_program() {
    let shop = Shop::open();
    let (started, ended) =
        (fifo(&shop.home.path().join("started")), fifo(&shop.home.path().join("ended")));
    let script = format!(
        "trap 'echo TERM > {ended}; exit 1' TERM; echo here > {started}; sleep 1000 & wait"
    );
    let id = shop.enqueue("slow", &["--max-run", "1s", "--max-attempts", "1"]);
    // With the default lease: its heartbeats would be due much later.
    let working = Working::start(&shop, &["slow"], &[], &script);
    File::open(&started).unwrap().read_to_end(&mut Vec::new()).unwrap();
    let mut signal = String::new();
    File::open(&ended).unwrap().read_to_string(&mut signal).unwrap();
    assert_eq!(signal, "TERM\n");
    let waited = shop.run(&["task", "wait", &id]);
    assert_eq!(waited.code, 1, "{}", waited.err);
    assert!(waited.err.contains("TIMED_OUT"), "{}", waited.err);
    drop(working);
}

#[test]
fn invalid_arguments_are_refused_at_once() {
    let shop = Shop::open();
    let run = |more: &[&str]| shop.run(&[&["worker", "run"], more].concat());
    fails(&run(&["resize", "--", "/no/such/program"]), 2, "/no/such/program");
    fails(&run(&["resize", "--", "no-such-program"]), 2, "no-such-program");
    fails(&run(&["resize"]), 2, "PROGRAM");
    fails(&run(&["--", "true"]), 2, "QUEUE");
    fails(&run(&["resize", "--lease", "0s", "--", "true"]), 2, "lease");
    fails(&run(&["resize", "--token", "wrong", "--", "true"]), 6, "token");
    let start = shop.run(&["worker", "start", "--events", "a,b", "--token", "wrong", "--", "true"]);
    fails(&start, 6, "working on a, b");
}

#[test]
fn a_process_left_behind_does_not_swallow_the_result() {
    let shop = Shop::open();
    let id = shop.enqueue("resize", &[]);
    let script = r#"echo '{"answer":42}'; setsid sleep 8 & exit 0"#;
    let mut working = Working::start(&shop, &["resize"], &[], script);
    working.line("completed");
    let result = shop.json(&["task", "wait", &id]);
    assert_eq!(result["result"], json!({ "answer": 42 }));
}
