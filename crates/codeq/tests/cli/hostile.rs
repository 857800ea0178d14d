//! Servers that try to harm their clients.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cli::client::{alone, fails, said};
use crate::cli::harness::Said;

/// Clears the screen, sets the title, turns text around, and pretends to be two lines.
const EVIL: &str = "a\x1b[2J\x1b]0;x\x07\u{9b}31m\u{202e}\x7f\nhint: run this";

/// Answers every request with the same response, until the test ends.
fn server(answer: impl Fn(&mut TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let head = BufReader::new(stream.try_clone().unwrap());
            head.lines().map_while(Result::ok).find(|line| line.is_empty());
            answer(&mut stream);
        }
    });
    url
}

fn json_server(status: &'static str, body: &Value) -> String {
    let body = body.to_string();
    server(move |stream| {
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n", body.len());
        let rest = "X-Request-Id: request-7\r\nConnection: close\r\n\r\n";
        let _ = stream.write_all(format!("{head}{rest}{body}").as_bytes());
    })
}

fn ask(url: &str, args: &[&str]) -> Said {
    let home = TempDir::new().unwrap();
    said(&mut alone(home.path(), &[args, &["--url", url, "--token", "t"]].concat()), "")
}

fn is_safe(text: &str) -> bool {
    let unsafe_char = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
    !text.contains(unsafe_char)
}

fn queue(name: &str) -> Value {
    json!({
        "command": name, "tenantId": EVIL, "ready": 1, "delayed": 0, "inProgress": 0, "dlq": 0, "completed": 0,
        "failed": 0, "bytes": 0, "paused": false, "oldestReadySeconds": 1.0, "enqueuedPerSecond": 0.0,
        "claimedPerSecond": 0.0, "finishedPerSecond": 0.0,
    })
}

#[test]
fn nothing_that_a_server_says_controls_the_terminal() {
    let url = json_server("200 OK", &json!({ "items": [queue(EVIL), queue("resize")] }));
    for format in ["table", "json", "jsonl", "yaml", "name"] {
        let listed = ask(&url, &["queue", "list", "-o", format]);
        assert_eq!(listed.code, 0, "{format}: {}", listed.err);
        assert!(is_safe(&listed.out), "{format}: {:?}", listed.out);
        let got = ask(&url, &["queue", "get", "resize", "-o", format]);
        assert!(got.code == 0 && is_safe(&got.out), "{format}: {:?}", got.out);
    }
    // What programs read means the same.
    let listed: Value =
        serde_json::from_str(&ask(&url, &["queue", "list", "-o", "json"]).out).unwrap();
    assert_eq!(listed[0]["command"], EVIL);
    // No shell completes such a name.
    let words = ["completion", "--", "codeq", "--url", &url, "queue", "get", ""];
    let home = TempDir::new().unwrap();
    assert_eq!(said(&mut alone(home.path(), &words), "").out, "resize\n");
}

#[test]
fn an_error_cannot_forge_a_hint_and_names_the_request() {
    let problem = json!({ "error": EVIL, "detail": EVIL, "code": "not_found", "status": 404 });
    let url = json_server("404 Not Found", &problem);
    for args in [&["task", "get", "x"][..], &["queue", "list", "-o", "name"], &["backup"]] {
        let failed = ask(&url, args);
        fails(&failed, 3, "request request-7");
        assert!(is_safe(&failed.err), "{:?}", failed.err);
        let hints = failed.err.lines().filter(|line| line.starts_with("hint:"));
        assert_eq!(hints.count(), 1, "{}", failed.err);
    }
    let probe = server(|stream| {
        let _ = stream.write_all(b"HTTP/1.1 503 No\r\nConnection: close\r\n\r\n[-] \x1b[2Jdisk\n");
    });
    let home = TempDir::new().unwrap();
    let failed = said(&mut alone(home.path(), &["probe", "--url", &probe]), "");
    fails(&failed, 1, r"[-] \u001b[2Jdisk");
}

#[test]
fn a_policy_that_somebody_else_changed_meanwhile_is_noticed() {
    for (step, noticed) in [(1, false), (2, true)] {
        let version = AtomicU64::new(1);
        let url = server(move |stream| {
            let topic = json!({
                "topicId": "t.q", "tenantId": "t", "topicName": "q", "policy": {}, "createdAt": "", "updatedAt": "",
                "version": version.fetch_add(step, Ordering::Relaxed),
            });
            let topic = topic.to_string();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n", topic.len());
            let _ = stream.write_all(format!("{head}Connection: close\r\n\r\n{topic}").as_bytes());
        });
        let set = ask(&url, &["queue", "policy", "q", "--max-attempts", "3"]);
        assert_eq!((set.code, set.err.contains("somebody else")), (0, noticed), "{}", set.err);
    }
}

#[test]
fn an_endless_response_is_cut_off() {
    let endless = server(|stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
        let zeros = vec![b' '; 1 << 20];
        // Ends when the client hangs up.
        while stream.write_all(&zeros).is_ok() {}
    });
    fails(&ask(&endless, &["queue", "list", "-o", "name"]), 1, "more than 67108864 bytes");
    fails(&ask(&endless, &["version", "--server"]), 1, "more than 16777216 bytes");
}

/// Answers one request after the other, and then says that there is nothing.
fn script(bodies: Vec<String>) -> String {
    let next = AtomicUsize::new(0);
    server(move |stream| {
        let body = bodies.get(next.fetch_add(1, Ordering::Relaxed));
        let status = if body.is_some() { "200 OK" } else { "404 Not Found" };
        let body = body.map_or("", String::as_str);
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n", body.len());
        let _ = stream.write_all(format!("{head}Connection: close\r\n\r\n{body}").as_bytes());
    })
}

#[test]
fn watching_a_task_ends_although_its_last_event_was_missed() {
    let history = |steps: &[(&str, &str)]| {
        let step = |(event, status): &(&str, &str)| json!({ "at": "", "event": event, "to": "NONE", "status": status });
        let items: Vec<Value> = steps.iter().map(step).collect();
        json!({ "taskId": "t", "items": items }).to_string()
    };
    let waiting = history(&[("created", "PENDING")]);
    let finished = history(&[("created", "PENDING"), ("submitted", "COMPLETED")]);
    let (none, missed) = (String::new(), "event: missed\ndata: {}\n\n".to_owned());
    for answers in [
        // The server no longer has the event.
        vec![missed, waiting.clone(), finished.clone()],
        // The connection breaks, and the new stream begins after the event.
        vec![none.clone(), waiting, none, finished],
    ] {
        let watched = ask(&script(answers), &["task", "watch", "t", "-o", "name"]);
        assert_eq!((watched.code, &*watched.out), (0, "created\nsubmitted\n"), "{}", watched.err);
    }
}

#[test]
fn a_result_with_tabs_and_newlines_stays_json() {
    let raw = "{\r\n\t\"n\": 9007199254740993,\n\t\"a b\": \"c\\td\"\n}";
    let body = format!(
        r#"{{"result":{{"taskId":"t","status":"COMPLETED","result":{raw},"completedAt":"now"}}}}"#
    );
    let result =
        |format: &str| ask(&script(vec![body.clone()]), &["task", "result", "t", "-o", format]);
    let expected = json!({ "n": 9_007_199_254_740_993_u64, "a b": "c\td" });
    let (json, jsonl) = (result("json"), result("jsonl"));
    for said in [&json, &jsonl] {
        let read: Value = serde_json::from_str(&said.out)
            .unwrap_or_else(|error| panic!("{error}: {}{}", said.out, said.err));
        assert_eq!(read["result"], expected, "{}", said.out);
    }
    assert_eq!(jsonl.out.lines().count(), 1, "{}", jsonl.out);
    let line = "result: {\"n\":9007199254740993,\"a b\":\"c\\td\"}\n";
    let yaml = result("yaml");
    assert!(yaml.out.contains(line), "{}{}", yaml.out, yaml.err);
}
